//! WebSockets: client and upstream agree to speak another protocol, and bytes pass both ways.
//!
//! No other protocol is let through. A tunnel for `h2c` above all would carry requests that nobody
//! counts.
//!
//! When the gateway drains, clients are told by a Close frame (1001, going away) between two frames of the
//! upstream's. Whatever they have to say goes on to the upstream, so that both ends see an orderly
//! closing handshake.

use std::io;
use std::time::Duration;

use http::header::{CONNECTION, HeaderMap, HeaderValue, UPGRADE};
use http::{Extensions, Method, Version, request};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy, sink, split};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio::try_join;

use super::connection::Connection;
use super::hop;
use super::websocket::{Frames, GOING_AWAY};
use crate::telemetry::{Traffic, Tunnel};

/// The one protocol that a connection may be upgraded to.
pub(super) const PROTOCOL: HeaderValue = HeaderValue::from_static("websocket");

/// The client's end of a tunnel.
pub(super) struct Upgrade {
    client: OnUpgrade,
    /// What rode in the request's extensions stays until the tunnel ends: its sender is still
    /// being served.
    extensions: Extensions,
}

/// The client's end of a tunnel, if the request asks for one (RFC 6455 section 4.1).
pub(super) fn asked_for(parts: &mut request::Parts) -> Option<Upgrade> {
    let asked = parts.headers.contains_key(UPGRADE)
        && parts.version == Version::HTTP_11
        && parts.method == Method::GET
        && hop::lists(&parts.headers, CONNECTION, "upgrade")
        && hop::lists(&parts.headers, UPGRADE, "websocket");
    // It is not there when the request did not come by a connection that can be upgraded.
    let client = asked.then(|| parts.extensions.remove()).flatten()?;
    Some(Upgrade {
        client,
        extensions: std::mem::take(&mut parts.extensions),
    })
}

/// How long both ends may take to close a tunnel after the client was told that the gateway goes away.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// How much is carried at a time, in bytes.
const PIECE: usize = 8 * 1024;

/// Tells the client that the upstream agreed, and connects the two when the client's connection is
/// ready for that. What is returned tells of the tunnel, and lasts as long.
pub(super) fn begin(
    headers: &mut HeaderMap,
    upgrade: Upgrade,
    upstream: Box<Connection>,
    leaving: Leaving,
) -> Tunnel {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, PROTOCOL);
    let tunnel = Tunnel::default();
    let carried = tunnel.clone();
    tokio::spawn(async move {
        let Upgrade { client, extensions } = upgrade;
        match carry(client, *upstream, carried.traffic(), leaving).await {
            Ok(()) => carried.traffic().complete(),
            Err(error) => tracing::debug!(%error, "an upgraded connection broke off"),
        }
        drop(extensions);
        carried.end();
    });
    tunnel
}

async fn carry(
    client: OnUpgrade,
    upstream: Connection,
    traffic: &Traffic,
    leaving: Leaving,
) -> io::Result<()> {
    let client = TokioIo::new(client.await.map_err(io::Error::other)?);
    let (from_client, to_client) = split(client);
    // The request of an upgrade has no body, so that it is sent.
    let to_upstream = upstream.writer.ok_or(io::ErrorKind::BrokenPipe)?;
    let (read, reader) = upstream.wire.into_parts();
    let from_upstream = io::Cursor::new(read).chain(reader);
    try_join!(
        upward(from_client, to_upstream, traffic),
        downward(from_upstream, to_client, traffic, leaving),
    )?;
    Ok(())
}

/// Carries what the client sends until it sends no more.
async fn upward(
    mut client: impl AsyncRead + Unpin,
    mut upstream: impl AsyncWrite + Unpin,
    traffic: &Traffic,
) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        let some = client.read(&mut piece).await?;
        let bytes = piece.get(..some).unwrap_or_default();
        if bytes.is_empty() {
            return upstream.shutdown().await;
        }
        upstream.write_all(bytes).await?;
        traffic.received(bytes.len());
    }
}

/// Carries what the upstream sends until it sends no more, or until the gateway goes away: then the
/// client is told so between two frames, and gets nothing more. It will say good-bye to the upstream,
/// which ends the tunnel.
async fn downward(
    mut upstream: impl AsyncRead + Unpin,
    mut client: impl AsyncWrite + Unpin,
    traffic: &Traffic,
    mut leaving: Leaving,
) -> io::Result<()> {
    let mut frames = Frames::default();
    let mut piece = vec![0; PIECE];
    loop {
        let some = tokio::select! {
            biased;
            () = leaving.begun(), if frames.is_between() => {
                client.write_all(&GOING_AWAY).await?;
                client.flush().await?;
                traffic.sent(GOING_AWAY.len());
                let _ = timeout(CLOSE_WITHIN, copy(&mut upstream, &mut sink())).await;
                return client.shutdown().await;
            }
            some = upstream.read(&mut piece) => some?,
        };
        let mut bytes = piece.get(..some).unwrap_or_default();
        if bytes.is_empty() {
            return client.shutdown().await;
        }
        if leaving.has_begun() {
            bytes = bytes.get(..frames.pass_to_end(bytes)).unwrap_or_default();
        } else {
            frames.pass(bytes);
        }
        client.write_all(bytes).await?;
        client.flush().await?;
        traffic.sent(bytes.len());
    }
}

/// Tells tunnels that the gateway is about to go away.
#[derive(Clone, Debug)]
pub struct Leaving(watch::Receiver<bool>);

impl Leaving {
    /// Told when this becomes true.
    pub fn when(told: watch::Receiver<bool>) -> Self {
        Self(told)
    }

    /// It never goes away.
    pub fn never() -> Self {
        Self(watch::channel(false).1)
    }

    fn has_begun(&self) -> bool {
        *self.0.borrow()
    }

    async fn begun(&mut self) {
        if self.0.wait_for(|leaving| *leaving).await.is_err() {
            // Nothing is left that could say so.
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{DuplexStream, duplex};
    use tokio::task::JoinHandle;
    use tokio::time::Instant;

    use super::*;

    struct Down {
        upstream: DuplexStream,
        client: DuplexStream,
        leave: watch::Sender<bool>,
        carried: JoinHandle<io::Result<()>>,
    }

    fn down() -> Down {
        let (upstream, from_upstream) = duplex(1024);
        let (to_client, client) = duplex(1024);
        let (leave, leaving) = watch::channel(false);
        let leaving = Leaving::when(leaving);
        let carried = tokio::spawn(async move {
            downward(from_upstream, to_client, &Traffic::default(), leaving).await
        });
        Down {
            upstream,
            client,
            leave,
            carried,
        }
    }

    /// A text frame of three bytes.
    const TEXT: &[u8] = b"\x81\x03abc";

    async fn rest(mut stream: DuplexStream) -> Vec<u8> {
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        rest
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_is_told_between_two_frames_and_gets_nothing_after_it() {
        let mut down = down();
        down.upstream.write_all(&TEXT[..2]).await.unwrap();
        let mut begun = [0; 2];
        down.client.read_exact(&mut begun).await.unwrap();
        down.leave.send_replace(true);
        // However much follows the rest of the frame, and however it comes.
        let more = [&TEXT[2..], TEXT, TEXT, &TEXT[..4]].concat();
        down.upstream.write_all(&more).await.unwrap();
        down.upstream.write_all(TEXT).await.unwrap();
        drop(down.upstream);
        assert_eq!(rest(down.client).await, [&TEXT[2..], &GOING_AWAY].concat());
        down.carried.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_answer_the_close_is_not_waited_for_long() {
        let down = down();
        let start = Instant::now();
        down.leave.send_replace(true);
        assert_eq!(rest(down.client).await, GOING_AWAY);
        assert_eq!(start.elapsed(), CLOSE_WITHIN);
        drop(down.upstream);
    }

    #[tokio::test(start_paused = true)]
    async fn no_close_follows_that_of_the_upstream() {
        let mut down = down();
        let close = b"\x88\x02\x03\xe8";
        down.upstream.write_all(close).await.unwrap();
        let mut got = [0; 4];
        down.client.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, close);
        down.leave.send_replace(true);
        drop(down.upstream);
        assert_eq!(rest(down.client).await, b"");
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_said_to_a_client_unless_the_gateway_leaves() {
        let mut down = down();
        down.upstream.write_all(TEXT).await.unwrap();
        drop((down.upstream, down.leave));
        assert_eq!(rest(down.client).await, TEXT);
    }
}
