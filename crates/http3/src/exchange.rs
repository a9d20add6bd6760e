//! One request and its response.

use std::pin::pin;
use std::time::SystemTime;

use bytes::Bytes;
use h3::error::Code;
use h3::server::{RequestResolver, RequestStream};
use http::header::{CONNECTION, CONTENT_LENGTH, DATE, HeaderName, TE, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::BodyExt;
use httpdate::fmt_http_date;
use tokio::time::timeout;
use weir_server::{BusyStream, ConnectionService, Refusal, StreamBounds, StreamService};

use crate::body::{BoxError, Malformed, RequestBody, declared_length};
use crate::quic::{Beside, Connection, SendStream};

type Sender = RequestStream<SendStream, Bytes>;

/// Fields of one connection alone (RFC 9114, section 4.2).
const OF_CONNECTIONS: [HeaderName; 5] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    TRANSFER_ENCODING,
    UPGRADE,
];

/// How an exchange ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// By the gateway.
    Ended,
    /// By a client that did not want what it asked for, or that may not have it: its request is
    /// malformed, or gets no response.
    Wasted,
}

/// What one request is served with.
pub(crate) struct Exchange<S> {
    pub(crate) busy: BusyStream,
    pub(crate) service: StreamService<S>,
    pub(crate) bounds: StreamBounds,
    pub(crate) beside: Beside,
}

impl<S: ConnectionService + Sync> Exchange<S> {
    pub(crate) async fn serve(self, request: RequestResolver<Connection, Bytes>) -> Outcome {
        let head = timeout(self.bounds.head_timeout, request.resolve_request()).await;
        let (mut request, stream) = match head {
            Ok(Ok(begun)) => begun,
            // The client has cancelled it; or h3 has responded, or ended the stream or the
            // connection.
            Ok(Err(_)) => return Outcome::Wasted,
            Err(_) => return Outcome::Ended,
        };
        let (mut sender, receiver) = stream.split();
        let Ok(length) = checked(&request) else {
            sender.stop_stream(Code::H3_MESSAGE_ERROR);
            return Outcome::Wasted;
        };
        if let Some(handshake) = self.beside.early.clone() {
            // While it waits, its head is not counted among those in flight.
            if !request.method().is_safe() && !self.bounds.may_keep(&request) {
                sender.stop_stream(Code::H3_REQUEST_REJECTED);
                return Outcome::Ended;
            }
            if !handshake.admit(&mut request).await {
                return Outcome::Ended;
            }
        }
        let body = RequestBody::new(receiver, length, self.beside.empty_data.clone());
        let waits = may_wait(&request, &self.bounds);
        match timeout(self.bounds.head_timeout, begun(waits, body)).await {
            Ok(Ok(body)) => self.respond(request, body, sender).await,
            Ok(Err(_)) => {
                sender.stop_stream(Code::H3_MESSAGE_ERROR);
                Outcome::Wasted
            }
            Err(_) => Outcome::Ended,
        }
    }

    async fn respond(
        self,
        request: Request<()>,
        body: Option<RequestBody>,
        mut sender: Sender,
    ) -> Outcome {
        let Self {
            busy: _busy,
            service,
            bounds,
            beside: Beside { mut stopped, .. },
        } = self;
        let response = tokio::select! {
            biased;
            response = service.respond(request, body) => response,
            _ = &mut stopped => return Outcome::Wasted,
        };
        let sent = match response {
            Ok(response) => tokio::select! {
                biased;
                sent = send(response, &mut sender) => sent,
                _ = &mut stopped => return Outcome::Wasted,
            },
            Err(refusal) => {
                sender.stop_stream(code_of(refusal));
                return match refusal {
                    Refusal::NotBegun => Outcome::Ended,
                    Refusal::Malformed | Refusal::Unanswered => Outcome::Wasted,
                };
            }
        };
        match sent {
            Ok(()) => {
                // Otherwise a connection that closes now would lose what is under way.
                let _ = timeout(bounds.stall_timeout, stopped).await;
            }
            Err(code) => sender.stop_stream(code),
        }
        Outcome::Ended
    }
}

fn code_of(refusal: Refusal) -> Code {
    match refusal {
        Refusal::Malformed => Code::H3_MESSAGE_ERROR,
        Refusal::NotBegun => Code::H3_REQUEST_REJECTED,
        Refusal::Unanswered => Code::H3_REQUEST_CANCELLED,
    }
}

/// Checks what h3 does not, and returns the length that the request declares.
fn checked(request: &Request<()>) -> Result<Option<u64>, Malformed> {
    let headers = request.headers();
    let is_of_connection = OF_CONNECTIONS.iter().any(|name| headers.contains_key(name));
    let mut codings = headers.get_all(TE).iter();
    let has_codings = codings.any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"trailers"));
    // Tunnels were not offered (RFC 9220, section 3).
    let is_tunnel = request.extensions().get::<h3::ext::Protocol>().is_some();
    if is_of_connection || has_codings || is_tunnel {
        return Err(Malformed);
    }
    declared_length(headers)
}

/// Whether to wait until it is known whether a request has a body. Clients end a request without
/// one right behind its head, and so the head of what usually has none includes that. No large head
/// is kept meanwhile: it is not counted among those in flight yet.
fn may_wait(request: &Request<()>, bounds: &StreamBounds) -> bool {
    let method = request.method();
    let usually_has_one = matches!(*method, Method::POST | Method::PUT | Method::PATCH);
    !usually_has_one && *method != Method::CONNECT && bounds.may_keep(request)
}

/// The body, if there is one.
async fn begun(waits: bool, mut body: RequestBody) -> Result<Option<RequestBody>, BoxError> {
    let is_empty = match waits {
        true => body.is_empty().await?,
        false => body.is_known_empty()?,
    };
    Ok((!is_empty).then_some(body))
}

/// Sends a response as its client accepts it. An error is the code to reset the stream with.
async fn send<B>(response: Response<B>, sender: &mut Sender) -> Result<(), Code>
where
    B: Body<Data = Bytes, Error = BoxError>,
{
    let (mut head, body) = response.into_parts();
    complete(&mut head.headers, head.status, &body);
    let failed = |_| Code::H3_INTERNAL_ERROR;
    let head = Response::from_parts(head, ());
    sender.send_response(head).await.map_err(failed)?;
    let mut body = pin!(body);
    while !body.is_end_stream() {
        let Some(frame) = body.frame().await else {
            break;
        };
        // The response breaks off, and its client has to see that.
        let frame = frame.map_err(|_| Code::H3_INTERNAL_ERROR)?;
        match frame.into_data() {
            Ok(data) if data.is_empty() => {}
            Ok(data) => sender.send_data(data).await.map_err(failed)?,
            Err(frame) => {
                if let Ok(trailers) = frame.into_trailers() {
                    sender.send_trailers(trailers).await.map_err(failed)?;
                }
            }
        }
    }
    sender.finish().await.map_err(failed)
}

/// Leaves out what has no meaning here, and adds what hyper adds to responses of HTTP/2.
fn complete(headers: &mut HeaderMap, status: StatusCode, body: &impl Body) {
    for name in &OF_CONNECTIONS {
        headers.remove(name);
    }
    if !headers.contains_key(DATE)
        && let Ok(now) = HeaderValue::try_from(fmt_http_date(SystemTime::now()))
    {
        headers.insert(DATE, now);
    }
    let has_no_content = status == StatusCode::NO_CONTENT || status == StatusCode::NOT_MODIFIED;
    let length = body.size_hint().exact();
    // A response to HEAD has no content either, and its length is not that of none.
    let length = length.filter(|length| *length > 0 && !has_no_content);
    if let Some(length) = length {
        let length = || HeaderValue::from(length);
        headers.entry(CONTENT_LENGTH).or_insert_with(length);
    }
}
