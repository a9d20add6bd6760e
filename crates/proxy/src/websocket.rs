//! WebSockets: client and upstream agree to speak another protocol, and bytes pass both ways.
//!
//! No other protocol is let through. A tunnel for `h2c` above all would carry requests that nothing
//! counts.
//!
//! Bytes pass through a tunnel unread, but for the lengths of frames on their way to the client.
//! When the gateway drains, clients are sent a Close frame (1001, going away) between two of the
//! upstream's. What they send goes on to the upstream, so that both ends see an orderly closing
//! handshake. A tunnel through which nothing passes for the upstream's body time-out is cut.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use http::header::{CONNECTION, CONTENT_LENGTH, HeaderValue, SEC_WEBSOCKET_ACCEPT, UPGRADE};
use http::{Extensions, HeaderMap, Method, Response, StatusCode, Version, request};
use hyper::ext::Protocol;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy, sink, split};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use weir_telemetry::{Traffic, Tunnel};

use super::connection::{Connection, DeadlineTimer};
use super::handshake::{Handshake, HandshakeError};
use super::hop_by_hop::has_token;

/// The target of log lines, which filters name.
const TARGET: &str = "weir::proxy::websocket";

/// The one protocol that a connection may be upgraded to.
pub(super) const PROTOCOL: HeaderValue = HeaderValue::from_static("websocket");

/// The client's end of a tunnel.
pub(super) struct Upgrade {
    client: OnUpgrade,
    /// For a stream of HTTP/2, whose client cannot verify the server's response.
    handshake: Option<Box<Handshake>>,
    /// What rode in the request's extensions stays until the tunnel ends: its client is still
    /// being served.
    extensions: Extensions,
}

/// The client's end of a tunnel, if the request asks for one (RFC 6455 section 4.1).
pub(super) fn asked_for(parts: &mut request::Parts) -> Option<Upgrade> {
    let asked = parts.headers.contains_key(UPGRADE)
        && parts.version == Version::HTTP_11
        && parts.method == Method::GET
        && has_token(&parts.headers, CONNECTION, "upgrade")
        && has_token(&parts.headers, UPGRADE, "websocket");
    // It is not there when the request did not come by a connection that can be upgraded.
    let client = asked.then(|| parts.extensions.remove()).flatten()?;
    Some(Upgrade {
        client,
        handshake: None,
        extensions: std::mem::take(&mut parts.extensions),
    })
}

/// As [`asked_for`], for a stream of HTTP/2 (RFC 8441). Turns the request into that of HTTP/1.1.
pub(super) fn asked_for_by_stream(parts: &mut request::Parts) -> Option<Upgrade> {
    if parts.method != Method::GET {
        return None;
    }
    let protocol = parts.extensions.get::<Protocol>()?;
    if protocol.as_str() != "websocket" {
        return None;
    }
    let client = parts.extensions.remove()?;
    Some(Upgrade {
        client,
        handshake: Some(Box::new(Handshake::begin(parts)?)),
        extensions: std::mem::take(&mut parts.extensions),
    })
}

impl Upgrade {
    /// Whether the client's end is a stream of HTTP/2.
    pub(super) fn is_stream(&self) -> bool {
        self.handshake.is_some()
    }

    /// Checks the head of a response that changes the protocol. A client of HTTP/1.1 verifies the
    /// rest of it.
    pub(super) fn check(&self, response: &HeaderMap) -> Result<(), HandshakeError> {
        match &self.handshake {
            Some(handshake) => handshake.check(response),
            None if has_token(response, UPGRADE, "websocket") => Ok(()),
            None => Err(HandshakeError::Upgrade),
        }
    }
}

/// How long both ends may take to close a tunnel after the gateway has sent a Close frame.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// How long a client may still send after its direction was closed. A stream of HTTP/2 has no
/// socket that would see to that.
const LINGER: Duration = Duration::from_secs(2);

/// How much is carried at a time, in bytes.
const PIECE: usize = 8 * 1024;

/// Tells the client that the upstream agreed, and connects the two when the client's connection is
/// ready, for as long as bytes pass within each `idle_timeout`. The returned record lasts as long
/// as the tunnel.
pub(super) fn begin(
    response: &mut Response<()>,
    upgrade: Upgrade,
    upstream: Box<Connection>,
    idle_timeout: Duration,
    shutdown: ShutdownSignal,
) -> Tunnel {
    // None tells a length, as what follows is no content (RFC 9110 section 8.6).
    response.headers_mut().remove(CONTENT_LENGTH);
    if upgrade.is_stream() {
        *response.status_mut() = StatusCode::OK;
        response.headers_mut().remove(SEC_WEBSOCKET_ACCEPT);
    } else {
        let headers = response.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, PROTOCOL);
    }
    let tunnel = Tunnel::default();
    let carried = tunnel.clone();
    tokio::spawn(async move {
        let Upgrade {
            client, extensions, ..
        } = upgrade;
        let traffic = carried.traffic();
        let carrying = carry(client, *upstream, traffic, shutdown);
        match unless_idle(carrying, traffic, idle_timeout).await {
            Ok(()) => carried.traffic().complete(),
            Err(error) => {
                tracing::debug!(target: TARGET, %error, "an upgraded connection broke off");
            }
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
    shutdown: ShutdownSignal,
) -> io::Result<()> {
    let client = TokioIo::new(client.await.map_err(io::Error::other)?);
    let (from_client, to_client) = split(client);
    // The request of an upgrade has no body, so that it is sent.
    let to_upstream = upstream.writer.ok_or(io::ErrorKind::BrokenPipe)?;
    let (read, reader) = upstream.reader.into_parts();
    let from_upstream = io::Cursor::new(read).chain(reader);
    let upward = pin!(upward(from_client, to_upstream, traffic));
    let downward = pin!(downward(from_upstream, to_client, traffic, shutdown));
    let ended = both(upward, downward).await;
    if ended.is_err() {
        traffic.break_off();
    }
    ended
}

/// Waits for both directions. Once the client was sent all, it is not waited for long. Once the
/// upstream has sent its Close frame, it may end the connection in any way.
async fn both(
    mut upward: impl Future<Output = io::Result<io::Result<()>>> + Unpin,
    mut downward: impl Future<Output = io::Result<bool>> + Unpin,
) -> io::Result<()> {
    tokio::select! {
        taken = &mut upward => {
            let taken = taken?;
            let has_closed = downward.await?;
            if has_closed { Ok(()) } else { taken }
        }
        ended = &mut downward => {
            ended?;
            let _ = timeout(LINGER, upward).await;
            Ok(())
        }
    }
}

/// Fails when a tunnel is carried through which nothing passes for `timeout`.
async fn unless_idle(
    carrying: impl Future<Output = io::Result<()>>,
    traffic: &Traffic,
    timeout: Duration,
) -> io::Result<()> {
    let mut carrying = pin!(carrying);
    let mut timer = DeadlineTimer::default();
    let (mut seen, mut since) = (traffic.bytes(), Instant::now());
    poll_fn(|cx| {
        if let Poll::Ready(ended) = carrying.as_mut().poll(cx) {
            return Poll::Ready(ended);
        }
        let now_seen = traffic.bytes();
        if now_seen != seen {
            (seen, since) = (now_seen, Instant::now());
        }
        timer.poll_past(since + timeout, cx).map(|()| {
            traffic.break_off();
            Err(io::Error::new(io::ErrorKind::TimedOut, "nothing passed"))
        })
    })
    .await
}

/// Carries what the client sends until it sends no more, or the upstream takes no more, which is the
/// inner error.
async fn upward(
    mut client: impl AsyncRead + Unpin,
    mut upstream: impl AsyncWrite + Unpin,
    traffic: &Traffic,
) -> io::Result<io::Result<()>> {
    let mut piece = vec![0; PIECE];
    loop {
        let some = client.read(&mut piece).await?;
        let bytes = piece.get(..some).unwrap_or_default();
        if bytes.is_empty() {
            return Ok(upstream.shutdown().await);
        }
        if let Err(error) = upstream.write_all(bytes).await {
            return Ok(Err(error));
        }
        if let Err(error) = upstream.flush().await {
            return Ok(Err(error));
        }
        traffic.received(bytes.len());
    }
}

/// Carries bytes from the upstream to the client until the upstream closes or the gateway drains. A
/// drain sends a Close frame between two frames, and nothing more; the client's Close then ends the
/// tunnel. Returns whether the client was sent a Close frame.
async fn downward(
    mut upstream: impl AsyncRead + Unpin,
    mut client: impl AsyncWrite + Unpin,
    traffic: &Traffic,
    mut shutdown: ShutdownSignal,
) -> io::Result<bool> {
    let mut frames = Frames::default();
    let mut piece = vec![0; PIECE];
    loop {
        let some = tokio::select! {
            biased;
            () = shutdown.begun(), if frames.is_between() => {
                client.write_all(&GOING_AWAY).await?;
                client.flush().await?;
                traffic.sent(GOING_AWAY.len());
                let _ = timeout(CLOSE_WITHIN, copy(&mut upstream, &mut sink())).await;
                return client.shutdown().await.map(|()| true);
            }
            some = upstream.read(&mut piece) => match some {
                Err(_) if frames.has_closed => 0,
                some => some?,
            },
        };
        let mut bytes = piece.get(..some).unwrap_or_default();
        if bytes.is_empty() {
            return client.shutdown().await.map(|()| frames.has_closed);
        }
        if shutdown.has_begun() {
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
pub struct ShutdownSignal(watch::Receiver<bool>);

impl ShutdownSignal {
    /// Told when this becomes true.
    pub fn when(told: watch::Receiver<bool>) -> Self {
        Self(told)
    }

    /// A gateway that never goes away.
    pub fn never() -> Self {
        Self(watch::channel(false).1)
    }

    fn has_begun(&self) -> bool {
        *self.0.borrow()
    }

    async fn begun(&mut self) {
        if self.0.wait_for(|shutdown| *shutdown).await.is_err() {
            // Nothing is left that could say so.
            std::future::pending::<()>().await;
        }
    }
}

/// A Close frame that says that this end is going away (RFC 6455 section 7.4.1).
const GOING_AWAY: [u8; 4] = [0x88, 2, 0x03, 0xe9];

/// The opcode of a Close frame, after which nothing may be sent.
const CLOSE: u8 = 8;

/// How long a frame's header can be: two bytes, a length in eight, and a mask.
const MAX_HEADER_BYTES: usize = 14;

/// Where in a stream of frames (RFC 6455 section 5.2) its reader is.
#[derive(Debug, Default)]
struct Frames {
    header: [u8; MAX_HEADER_BYTES],
    there: usize,
    /// How much of a payload is still to come.
    left: u64,
    has_closed: bool,
}

impl Frames {
    /// Whether a frame may be put in here.
    fn is_between(&self) -> bool {
        self.there == 0 && self.left == 0 && !self.has_closed
    }

    /// Follows the stream through these bytes.
    fn pass(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            bytes = self.step(bytes);
        }
    }

    /// Follows the stream through these bytes, to the end of the frame that they begin in at most.
    /// Returns how many bytes that were.
    fn pass_to_end(&mut self, bytes: &[u8]) -> usize {
        let mut rest = bytes;
        while !rest.is_empty() && !self.is_between() {
            rest = self.step(rest);
        }
        bytes.len() - rest.len()
    }

    /// Passes the rest of a payload, or a byte of a header. Returns what comes after it.
    fn step<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        if self.left > 0 {
            let there =
                usize::try_from(self.left).map_or(bytes.len(), |left| left.min(bytes.len()));
            self.left -= there as u64;
            return bytes.get(there..).unwrap_or_default();
        }
        let Some((byte, rest)) = bytes.split_first() else {
            return bytes;
        };
        if let Some(place) = self.header.get_mut(self.there) {
            *place = *byte;
            self.there += 1;
        }
        self.end_header();
        rest
    }

    /// Goes on to the payload if the header is complete.
    fn end_header(&mut self) {
        let [first, second, long @ ..] = self.header;
        let length_bytes = match second & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let mask = if second & 0x80 == 0 { 0 } else { 4 };
        if self.there < 2 + length_bytes + mask {
            return;
        }
        let length = long.iter().take(length_bytes);
        self.left = match length_bytes {
            0 => u64::from(second & 0x7f),
            _ => length.fold(0, |length, byte| length << 8 | u64::from(*byte)),
        };
        self.has_closed |= first & 0x0f == CLOSE;
        self.there = 0;
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
        carried: JoinHandle<io::Result<bool>>,
    }

    fn down() -> Down {
        let (upstream, from_upstream) = duplex(1024);
        let (to_client, client) = duplex(1024);
        let (leave, shutdown) = watch::channel(false);
        let shutdown = ShutdownSignal::when(shutdown);
        let carried = tokio::spawn(async move {
            downward(from_upstream, to_client, &Traffic::default(), shutdown).await
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
    async fn a_client_that_does_not_answer_the_close_is_not_waited_for_long() {
        let down = down();
        let start = Instant::now();
        down.leave.send_replace(true);
        assert_eq!(rest(down.client).await, GOING_AWAY);
        assert_eq!(start.elapsed(), CLOSE_WITHIN);
        drop(down.upstream);
    }

    #[tokio::test]
    async fn an_upstream_that_takes_no_more_is_in_order_after_its_close_alone() {
        for has_closed in [true, false] {
            let broken = || Ok(Err(io::ErrorKind::BrokenPipe.into()));
            let upward = pin!(std::future::ready(broken()));
            // It has more to send.
            let downward = pin!(async {
                tokio::task::yield_now().await;
                Ok(has_closed)
            });
            assert_eq!(both(upward, downward).await.is_ok(), has_closed);
        }
    }

    /// Nothing but the end of the process, or an hour of silence, ended such a stream of HTTP/2.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_was_sent_all_and_does_not_close_is_not_waited_for_long() {
        let start = Instant::now();
        let (silent, over) = (
            pin!(std::future::pending()),
            pin!(std::future::ready(Ok(false))),
        );
        both(silent, over).await.unwrap();
        assert_eq!(start.elapsed(), LINGER);
    }

    #[tokio::test]
    async fn a_server_may_break_the_connection_after_its_close_and_not_before() {
        struct Broken;
        impl AsyncRead for Broken {
            fn poll_read(
                self: std::pin::Pin<&mut Self>,
                _: &mut std::task::Context<'_>,
                _: &mut tokio::io::ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
            }
        }
        let close: &[u8] = b"\x88\x02\x03\xe8";
        for (sent, is_in_order) in [(close, true), (TEXT, false)] {
            let (traffic, never) = (Traffic::default(), ShutdownSignal::never());
            let carried = downward(sent.chain(Broken), sink(), &traffic, never).await;
            assert_eq!(carried.is_ok(), is_in_order, "{sent:?}");
        }
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

    /// A frame with this opcode and a payload of as many bytes, which look like headers.
    fn frame(opcode: u8, length: usize, mask: Option<[u8; 4]>) -> Vec<u8> {
        let mut frame = vec![0x80 | opcode];
        let masked = if mask.is_some() { 0x80 } else { 0 };
        match length {
            0..126 => frame.push(masked | u8::try_from(length).unwrap()),
            126..65_536 => {
                frame.push(masked | 126);
                frame.extend(u16::try_from(length).unwrap().to_be_bytes());
            }
            _ => {
                frame.push(masked | 127);
                frame.extend((length as u64).to_be_bytes());
            }
        }
        frame.extend(mask.into_iter().flatten());
        frame.extend(std::iter::repeat_n(0x81, length));
        frame
    }

    #[test]
    fn a_frame_ends_where_its_length_says_however_it_arrives() {
        for length in [0, 1, 125, 126, 127, 65_535, 65_536, 100_000] {
            for mask in [None, Some([1, 2, 3, 4])] {
                let whole = frame(2, length, mask);
                let mut frames = Frames::default();
                for byte in &whole {
                    frames.pass(&[*byte]);
                }
                assert!(frames.is_between(), "{length}");
                frames.pass(&whole[..whole.len() - 1]);
                assert!(!frames.is_between(), "{length}");
                let next = frame(1, 9, None);
                let rest = [&whole[whole.len() - 1..], &next].concat();
                assert_eq!(frames.pass_to_end(&rest), 1, "{length}");
                assert!(frames.is_between());
                frames.pass(&next);
                assert!(frames.is_between());
            }
        }
    }

    #[test]
    fn no_frame_follows_a_close() {
        let mut frames = Frames::default();
        frames.pass(&frame(9, 3, None));
        assert!(frames.is_between(), "a ping is none");
        frames.pass(&GOING_AWAY);
        assert!(!frames.is_between());
        assert_eq!(frames.pass_to_end(&[0; 10]), 10);
    }

    #[test]
    fn nothing_but_whole_frames_lets_one_in_between() {
        let mut frames = Frames::default();
        let stream: Vec<u8> = [3, 0, 200, 70_000, 1]
            .iter()
            .flat_map(|length| frame(2, *length, None))
            .collect();
        let places = stream.iter().filter(|byte| {
            frames.pass(&[**byte]);
            frames.is_between()
        });
        assert_eq!(places.count(), 5);
    }
}
