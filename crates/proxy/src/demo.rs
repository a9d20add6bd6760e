//! The demo upstream: it responds to every request with what it received, as JSON.
//!
//! It shows what Weir makes of a request, and lets one try limits with no app at hand.

use std::convert::Infallible;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue, SERVER};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

/// The target of log lines, which filters name.
const TARGET: &str = "weir::proxy::demo";

/// How much of a body is shown.
const SHOWN: usize = 64 * 1024;

/// How long accepting pauses after a failure, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves the demo upstream on `listener` until the future is dropped.
pub async fn serve(listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(serve_connection(stream))),
            Err(error) => {
                tracing::warn!(target: TARGET, %error, "the demo upstream cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve_connection(stream: TcpStream) {
    // A failure only delays responses.
    let _ = stream.set_nodelay(true);
    let served = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service_fn(respond))
        .await;
    if let Err(error) = served {
        tracing::debug!(target: TARGET, %error, "a connection to the demo upstream broke off");
    }
}

/// A request as received. Headers are in an array, because a name can occur more than once.
#[derive(Serialize)]
struct ReceivedRequest<'r> {
    method: &'r str,
    path: &'r str,
    #[serde(skip_serializing_if = "Option::is_none")]
    query: Option<&'r str>,
    version: String,
    headers: Vec<[String; 2]>,
    body: String,
    #[serde(skip_serializing_if = "is_false")]
    base64: bool,
    #[serde(skip_serializing_if = "is_false")]
    truncated: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    trailers: Vec<[String; 2]>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_false(value: &bool) -> bool {
    !value
}

async fn respond(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (parts, body) = request.into_parts();
    let received = Received::from(body).await;
    let (body, base64) = received.text();
    let shown = ReceivedRequest {
        method: parts.method.as_str(),
        path: parts.uri.path(),
        query: parts.uri.query(),
        version: format!("{:?}", parts.version),
        headers: fields(&parts.headers),
        body,
        base64,
        truncated: received.truncated,
        trailers: fields(&received.trailers),
    };
    let mut json = serde_json::to_vec_pretty(&shown).unwrap_or_default();
    json.push(b'\n');
    let mut response = Response::new(Full::from(json));
    let headers = response.headers_mut();
    headers.insert(SERVER, HeaderValue::from_static("weir-demo"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// The beginning of a body, which is read to its end all the same.
#[derive(Default)]
struct Received {
    shown: BytesMut,
    truncated: bool,
    trailers: HeaderMap,
}

impl Received {
    async fn from(mut body: Incoming) -> Self {
        let mut received = Self::default();
        // The client of a body that broke off is gone.
        while let Some(Ok(frame)) = body.frame().await {
            match frame.into_data() {
                Ok(data) => received.show(data),
                Err(frame) => received.trailers = frame.into_trailers().unwrap_or_default(),
            }
        }
        received
    }

    fn show(&mut self, mut data: Bytes) {
        let room = SHOWN - self.shown.len();
        self.truncated |= data.len() > room;
        data.truncate(room);
        self.shown.extend_from_slice(&data);
    }

    /// What is shown as text, and whether it had to be encoded for that. A character that was cut
    /// through at the end is left out.
    fn text(&self) -> (String, bool) {
        let cut = match str::from_utf8(&self.shown) {
            Err(error) if self.truncated && error.error_len().is_none() => error.valid_up_to(),
            _ => self.shown.len(),
        };
        let bytes = self.shown.get(..cut).unwrap_or_default();
        match str::from_utf8(bytes) {
            Ok(text) => (text.to_owned(), false),
            Err(_) => (BASE64_STANDARD.encode(bytes), true),
        }
    }
}

fn fields(headers: &HeaderMap) -> Vec<[String; 2]> {
    headers
        .iter()
        .map(|(name, value)| {
            let value = String::from_utf8_lossy(value.as_bytes());
            [name.to_string(), value.into_owned()]
        })
        .collect()
}
