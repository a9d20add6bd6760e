//! WebSockets: client and upstream agree to speak another protocol, and bytes pass both ways.
//!
//! No other protocol is let through. A tunnel for `h2c` above all would carry requests that nobody
//! counts.

use http::header::{CONNECTION, HeaderMap, HeaderValue, UPGRADE};
use http::{Extensions, Method, Version, request};
use std::io;

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, copy_bidirectional, join};

use super::connection::Connection;
use super::hop;

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

/// Tells the client that the upstream agreed, and connects the two when the client's connection is
/// ready for that.
pub(super) fn begin(headers: &mut HeaderMap, upgrade: Upgrade, upstream: Box<Connection>) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, PROTOCOL);
    tokio::spawn(async move {
        let Upgrade { client, extensions } = upgrade;
        if let Err(error) = tunnel(client, *upstream).await {
            tracing::debug!(%error, "an upgraded connection broke off");
        }
        drop(extensions);
    });
}

async fn tunnel(client: OnUpgrade, upstream: Connection) -> io::Result<()> {
    let mut client = TokioIo::new(client.await.map_err(io::Error::other)?);
    // The request of an upgrade has no body, so that it is sent.
    let writer = upstream.writer.ok_or(io::ErrorKind::BrokenPipe)?;
    let (read, reader) = upstream.wire.into_parts();
    let mut upstream = join(io::Cursor::new(read).chain(reader), writer);
    copy_bidirectional(&mut client, &mut upstream).await?;
    Ok(())
}
