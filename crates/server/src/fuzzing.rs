//! What clients send, for the fuzz targets.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a broken invariant has to show"
)]

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, Request, Response, request};
use http_body::Body;
use http_body_util::{BodyExt, Collected, Empty};
use hyper::body::Incoming;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::service::service_fn;
use parking_lot::Mutex;

use super::http1::{self, HeadBounds};
use super::settings::HttpSettings;

/// What a client sends on a connection. Each request that is taken for a plain one is the one that
/// hyper finds there, up to its last byte.
pub fn plain_request(input: &[u8]) {
    let settings = HttpSettings::default().protocols();
    let found = plain(input, settings.plain);
    if found.is_empty() {
        return;
    }
    let by_hyper = Arc::<Mutex<Vec<_>>>::default();
    let seen = Arc::clone(&by_hyper);
    let service = service_fn(move |request: Request<Incoming>| {
        let seen = Arc::clone(&seen);
        async move {
            let request = collected(request).await;
            seen.lock().push(request);
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        }
    });
    let io = Input(input.to_vec(), 0);
    let mut connection = settings.http1.serve_connection(io, service);
    let _ = (&mut connection).now_or_never();
    let by_hyper = by_hyper.lock();
    assert!(
        found.len() <= by_hyper.len(),
        "hyper finds fewer: {found:?}"
    );
    for (plain, by_hyper) in found.iter().zip(&*by_hyper) {
        assert_eq!(plain, by_hyper);
    }
}

/// The plain requests at the beginning of what a client sends.
fn plain(input: &[u8], bounds: HeadBounds) -> Vec<String> {
    let mut input = Bytes::copy_from_slice(input);
    let mut found = Vec::new();
    while let Some(request) = http1::take(&input, bounds, HeaderMap::new()) {
        found.push(collected(request.request.into()).now_or_never().unwrap());
        input = request.rest;
        if request.closes {
            break;
        }
    }
    found
}

async fn collected<B: Body>(request: Request<B>) -> String {
    let (head, body) = request.into_parts();
    let body = body.collect().await;
    let body = body.map_or_else(|_| Bytes::from_static(b"broken"), Collected::to_bytes);
    let request::Parts {
        method,
        uri,
        version,
        headers,
        ..
    } = head;
    let headers: Vec<_> = headers
        .iter()
        .map(|(name, value)| format!("{name}: {}", value.as_bytes().escape_ascii()))
        .collect();
    format!(
        "{method} {uri} {version:?} {headers:?} {}",
        body.escape_ascii()
    )
}

/// A client that has sent this, and waits.
struct Input(Vec<u8>, usize);

impl Read for Input {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let rest = self.0.get(self.1..).unwrap_or_default();
        let (some, _) = rest.split_at(rest.len().min(buffer.remaining()));
        if some.is_empty() {
            return Poll::Pending;
        }
        buffer.put_slice(some);
        let read = some.len();
        self.1 += read;
        Poll::Ready(Ok(()))
    }
}

impl Write for Input {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
