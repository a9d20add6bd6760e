//! A client's request becomes one that an upstream gets, or is refused before anything counts it.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, HeaderMap, HeaderValue, MAX_FORWARDS, TE,
    TRANSFER_ENCODING, UPGRADE, VIA,
};
use http::uri::{Authority, PathAndQuery, Uri};
use http::{Method, Response, StatusCode, Version, request};
use http_body::Body;
use http_body_util::Full;
use weir_http::host::is_host_and_port;
use weir_http::request::{BoxedRequest, via};
use weir_telemetry::RequestId;

use super::error::ProxyError;
use super::hop_by_hop;
use super::http1::{self, RequestWriter};
use super::http2::Upload;
use super::outgoing_body::{Coding, OutgoingBody};
use super::proxy_header::ConnectionAddrs;
use super::websocket::{self, Upgrade};

/// The target of log lines, which filters name.
const TARGET: &str = "weir::proxy::request";

pub(super) struct Outbound<B> {
    /// The head, but for a `Host` that depends on the server.
    pub(super) head: Box<request::Parts>,
    /// Sends the request over HTTP/1.1.
    pub(super) writer: RequestWriter<B>,
    /// The body, once it was to go out over HTTP/2.
    pub(super) upload: Option<Upload<B>>,
    /// The client's end of the tunnel that it asks for.
    pub(super) upgrade: Option<Upgrade>,
    /// For the PROXY header, where servers get one.
    pub(super) client: Option<Box<ConnectionAddrs>>,
    /// Makes the body again, if all of it is kept.
    pub(super) replay: Option<Replay<B>>,
    pub(super) request_id: Option<Arc<RequestId>>,
}

pub(super) type Replay<B> = Box<dyn Fn() -> B + Send + Sync>;

impl<B> Outbound<B> {
    pub(super) fn without_body(head: Box<request::Parts>) -> Self {
        Self {
            head,
            writer: RequestWriter::new(OutgoingBody::none()),
            upload: None,
            upgrade: None,
            client: None,
            replay: None,
            request_id: None,
        }
    }

    /// Sends this id along. No option of the client's connection removes it.
    pub(super) fn set_request_id(&mut self, id: Arc<RequestId>) {
        let headers = &mut self.head.headers;
        headers.insert(id.header.clone(), id.value.clone());
        self.request_id = Some(id);
    }

    /// Whether the request may be sent twice: it asks for nothing to be done that is not done already
    /// when it arrives again (RFC 9110 section 9.2.2), and has no body.
    pub(super) fn is_repeatable(&self) -> bool {
        self.head.method.is_idempotent()
            && (!self.writer.has_body() || self.replay.is_some())
            && self.upgrade.is_none()
    }

    /// Sends the body from its beginning again, if all of it is kept.
    pub(super) fn rewind(&mut self)
    where
        B: Body,
    {
        if let Some(replay) = &self.replay {
            let body = replay();
            let coding = length(&body).map_or(Coding::Chunked, Coding::Length);
            self.writer = RequestWriter::new(OutgoingBody::new(body, coding));
            self.upload = None;
        }
    }

    /// Whether a server may have got part of it.
    pub(super) fn has_begun(&self) -> bool {
        self.upload.is_some() || self.writer.has_begun()
    }

    /// Whether all of it can be sent again when a server has refused it.
    pub(super) fn can_restart(&self) -> bool {
        self.upload.as_ref().is_none_or(Upload::can_restart)
    }
}

impl<B: Body<Data = Bytes>> Outbound<B> {
    /// Makes a client's request fit to be sent to an upstream. It is boxed, as it is large and
    /// moved from step to step. `is_checked` says that
    /// [`refusal`] found nothing wrong with it.
    pub(super) fn from_request(
        request: BoxedRequest<B>,
        is_checked: bool,
    ) -> Result<Box<Self>, ProxyError> {
        let BoxedRequest { head, body } = request;
        let mut outbound = Box::new(Self::without_body(head));
        let head = &mut outbound.head;
        if is_checked {
            debug_assert!(check(head).is_ok(), "{head:?} is not checked");
        } else {
            check(head)?;
        }
        set_host(head)?;
        set_fields(head);
        outbound.upgrade = set_connection(head);
        let coding = set_framing(&head.method, &mut head.headers, &body);
        set_target(head);
        if coding != Coding::Length(0) {
            outbound.writer = RequestWriter::new(OutgoingBody::new(body, coding));
        }
        Ok(outbound)
    }
}

/// The proxy's own response to a request that it refuses by its head alone; `None` if it forwards
/// the request.
///
/// A limiter asks this first: such a response must not depend on the client, or on how often it
/// asks.
pub fn refusal(head: &request::Parts) -> Option<Response<Full<Bytes>>> {
    if forwards_left(&head.method, &head.headers) == Some(0) {
        return Some(max_forwards_reached());
    }
    check(head).err().map(|error| {
        tracing::debug!(target: TARGET, %error, "refused");
        error.into_response()
    })
}

/// The response to a request for the gateway's own options.
pub(super) fn max_forwards_reached() -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

/// Whether a request may be forwarded at all.
fn check(parts: &request::Parts) -> Result<(), ProxyError> {
    // A tunnel would hide what goes through it, and TRACE would show the client the fields that
    // are meant for the upstream.
    if matches!(parts.method, Method::CONNECT | Method::TRACE) {
        return Err(ProxyError::Method);
    }
    // Methods are case-sensitive, but many apps take `post` for POST, which takes another route
    // here.
    let mut method = parts.method.as_str().bytes();
    if method.any(|byte| byte.is_ascii_lowercase()) {
        return Err(ProxyError::Method);
    }
    check_coding(&parts.headers)?;
    check_target(parts)?;
    check_host(parts)
}

/// The target must be a path, or `*` for OPTIONS. A host alone, as in CONNECT, names no resource
/// (RFC 9112 section 3.2).
fn check_target(parts: &request::Parts) -> Result<(), ProxyError> {
    let path = parts.uri.path_and_query().map_or("", PathAndQuery::as_str);
    match path.as_bytes().first() {
        Some(b'/') => Ok(()),
        // An absolute form may lack the path (RFC 9112 section 3.2.1).
        Some(b'?') | None if parts.uri.scheme().is_some() => Ok(()),
        _ if path == "*" && parts.method == Method::OPTIONS => Ok(()),
        _ => Err(ProxyError::Target),
    }
}

/// The server has removed the chunks. Any coding below chunked would still be applied, and no field
/// would say so any more (RFC 9112 section 6.1).
fn check_coding(headers: &HeaderMap) -> Result<(), ProxyError> {
    let mut lines = headers.get_all(TRANSFER_ENCODING).iter();
    match (lines.next(), lines.next()) {
        (None, _) => Ok(()),
        (Some(coding), None) if coding.as_bytes().eq_ignore_ascii_case(b"chunked") => Ok(()),
        _ => Err(ProxyError::TransferCoding),
    }
}

/// How many times the request may still be forwarded, if it says so (RFC 9110 section 7.6.2).
fn forwards_left(method: &Method, headers: &HeaderMap) -> Option<u64> {
    if method != Method::OPTIONS {
        return None;
    }
    // A value that is not a number counts nothing.
    let left = headers.get(MAX_FORWARDS)?;
    http1::number(left.as_bytes())
}

/// Whether `Max-Forwards` lets the request go no further; otherwise one is taken from it.
pub(super) fn spend_max_forwards(head: &mut request::Parts) -> bool {
    let Some(left) = forwards_left(&head.method, &head.headers) else {
        return false;
    };
    if let Some(value) = head.headers.get_mut(MAX_FORWARDS) {
        *value = HeaderValue::from(left.saturating_sub(1));
    }
    left == 0
}

/// The host that the request's target names, as with HTTP/2 and with an absolute form, takes the
/// place of the `Host` field (RFC 9113 section 8.3.1, RFC 9112 section 3.2.2).
fn set_host(parts: &mut request::Parts) -> Result<(), ProxyError> {
    if let Some(authority) = parts.uri.authority() {
        let host = HeaderValue::from_str(authority.as_str()).map_err(|_| ProxyError::Host)?;
        parts.headers.insert(HOST, host);
    }
    Ok(())
}

/// There must be exactly one `Host` with HTTP/1.1, even where the target names another that takes
/// its place (RFC 9112 section 3.2), and at most one where the target alone is enough: nothing
/// further on may take another for it.
fn check_host(parts: &request::Parts) -> Result<(), ProxyError> {
    let authority = parts.uri.authority();
    let needed = match parts.version {
        Version::HTTP_11 => true,
        // An HTTP/1.0 client need not name a host.
        version => version > Version::HTTP_11 && authority.is_none(),
    };
    let mut lines = parts.headers.get_all(HOST).iter();
    let is_valid = match (lines.next(), lines.next()) {
        (Some(host), None) => is_host_and_port(host.as_bytes()),
        (None, None) => !needed,
        _ => false,
    };
    match is_valid && authority.is_none_or(is_valid_authority) {
        true => Ok(()),
        false => Err(ProxyError::Host),
    }
}

/// A target must name a host, and no user (RFC 9110 sections 4.2.1 and 4.2.4, RFC 9113 section
/// 8.3.1).
fn is_valid_authority(authority: &Authority) -> bool {
    let authority = authority.as_str().as_bytes();
    !matches!(authority, [] | [b':', ..]) && is_host_and_port(authority)
}

/// The fields that a proxy changes on the way.
fn set_fields(parts: &mut request::Parts) {
    if matches!(parts.version, Version::HTTP_2 | Version::HTTP_3) {
        join_cookies(&mut parts.headers);
    }
    // hyper sends `100 Continue` when the body is polled, as the connection to the upstream does
    // when it is there. So the upstream has nothing more to say about it.
    let headers = &mut parts.headers;
    let expect = headers.get(EXPECT).map(HeaderValue::as_bytes);
    if expect.is_some_and(|expect| expect.eq_ignore_ascii_case(b"100-continue")) {
        headers.remove(EXPECT);
    }
    headers.append(VIA, via(parts.version));
}

/// HTTP/2 and HTTP/3 may split cookies for better compression; HTTP/1.1 wants them in one line (RFC 9113
/// section 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let lines = headers.get_all(COOKIE);
    if lines.iter().nth(1).is_none() {
        return;
    }
    let mut joined = BytesMut::new();
    // An empty line has no cookie, and at the end would leave a blank that no header may end with.
    for line in lines.iter().filter(|line| !line.is_empty()) {
        if !joined.is_empty() {
            joined.extend_from_slice(b"; ");
        }
        joined.extend_from_slice(line.as_bytes());
    }
    // Nothing but what was in values, so it is one.
    if let Ok(joined) = HeaderValue::from_maybe_shared(joined.freeze()) {
        headers.insert(COOKIE, joined);
    }
}

/// Ends what concerned the client's connection only, and says what concerns the upstream's: that
/// trailers are welcome (RFC 9110 section 10.1.4), or that another protocol is asked for.
fn set_connection(parts: &mut request::Parts) -> Option<Upgrade> {
    let by_stream = match parts.version {
        Version::HTTP_2 => websocket::asked_for_by_stream(parts),
        _ => None,
    };
    if by_stream.is_none() && !hop_by_hop::has_any(&parts.headers) {
        return None;
    }
    let trailers = hop_by_hop::has_token(&parts.headers, TE, "trailers");
    let upgrade = by_stream.or_else(|| websocket::asked_for(parts));
    hop_by_hop::strip(&mut parts.headers);
    let headers = &mut parts.headers;
    if upgrade.is_some() {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, websocket::PROTOCOL);
    } else if trailers {
        headers.insert(CONNECTION, HeaderValue::from_static("te"));
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    upgrade
}

/// The fields must announce the body's real length, or upstream and proxy would disagree about
/// where the next request begins.
fn set_framing(method: &Method, headers: &mut HeaderMap, body: &impl Body) -> Coding {
    let Some(length) = length(body) else {
        headers.remove(CONTENT_LENGTH);
        headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        return Coding::Chunked;
    };
    let mut lines = headers.get_all(CONTENT_LENGTH).iter();
    let tells = match (lines.next(), lines.next()) {
        (None, _) => length == 0 && !expects_body(method),
        (Some(told), None) => http1::number(told.as_bytes()) == Some(length),
        (Some(_), Some(_)) => false,
    };
    if !tells {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    Coding::Length(length)
}

fn length(body: &impl Body) -> Option<u64> {
    if body.is_end_stream() {
        Some(0)
    } else {
        body.size_hint().exact()
    }
}

/// Whether a length of zero is worth telling (RFC 9110 section 8.6).
fn expects_body(method: &Method) -> bool {
    matches!(*method, Method::POST | Method::PUT | Method::PATCH)
}

/// Requests to an origin server name the path only (RFC 9112 section 3.2.1).
fn set_target(parts: &mut request::Parts) {
    if parts.uri.authority().is_some() {
        let path = parts.uri.path_and_query().cloned();
        parts.uri = Uri::from(path.unwrap_or_else(|| PathAndQuery::from_static("/")));
    }
    parts.version = Version::HTTP_11;
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn status(request: request::Builder) -> Option<u16> {
        let (head, ()) = request.body(()).unwrap().into_parts();
        refusal(&head).map(|answer| answer.status().as_u16())
    }

    #[test]
    fn no_host_is_forwarded_that_is_none_wherever_it_stands() {
        let by_field = |host: &str| status(Request::get("/").header("host", host));
        let by_target = |version, authority: &str| {
            let request = Request::get(format!("http://{authority}/")).version(version);
            let request = match version {
                Version::HTTP_2 => request,
                _ => request.header("host", "app"),
            };
            status(request)
        };
        for valid in ["app", "App.:81", "my_app:", "[::1]:81", "a%2Db"] {
            assert_eq!(by_field(valid), None, "{valid}");
            // http cannot parse percent signs there.
            if !valid.contains('%') {
                assert_eq!(by_target(Version::HTTP_2, valid), None, "{valid}");
                assert_eq!(by_target(Version::HTTP_11, valid), None, "{valid}");
            }
        }
        for invalid in ["::1", "a:x", "a:80:90", "[zz]", "[::1", "%zz", "user@a"] {
            assert_eq!(by_field(invalid), Some(400), "{invalid}");
        }
        for invalid in ["a:x", "a:65536", ":80", "user@a", "user:password@a:80"] {
            assert_eq!(by_target(Version::HTTP_2, invalid), Some(400), "{invalid}");
            assert_eq!(by_target(Version::HTTP_11, invalid), Some(400), "{invalid}");
        }
    }

    #[test]
    fn what_is_not_forwarded_is_known_by_its_head() {
        let options = |left| {
            let request = Request::options("/").header("host", "a");
            status(request.header("max-forwards", left))
        };
        assert_eq!(status(Request::get("/").header("host", "a")), None);
        assert_eq!(status(Request::get("/")), Some(400));
        let two = Request::get("/").header("host", "a").header("host", "b");
        assert_eq!(status(two), Some(400));
        let http2 = |fields: &[&str]| {
            let request = Request::get("https://app/").version(Version::HTTP_2);
            let request = fields
                .iter()
                .fold(request, |request, host| request.header("host", *host));
            status(request)
        };
        assert_eq!((http2(&[]), http2(&["app"])), (None, None));
        assert_eq!(
            (http2(&["app", "b"]), http2(&["a, b"])),
            (Some(400), Some(400))
        );
        let trace = Request::builder().method("TRACE").header("host", "a");
        assert_eq!(status(trace), Some(501));
        let coded = |coding| {
            let request = Request::post("/").header("host", "a");
            status(request.header("transfer-encoding", coding))
        };
        assert_eq!(coded("Chunked"), None);
        assert_eq!(coded("gzip, chunked"), Some(501));
        assert_eq!((options("0"), options("1")), (Some(204), None));
    }
}
