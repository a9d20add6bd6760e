//! Decides for other proxies. For each request nginx (`auth_request`), Traefik (ForwardAuth) and
//! Caddy (`forward_auth`) send a subrequest, and forward the request if the response is 2xx.
//!
//! The subrequest describes the request in header fields. The layer restores that request as if the
//! proxy's listener were Weir's own, so that no layer below knows of subrequests. At the bottom,
//! [`UpstreamRouter::admitting`](crate::UpstreamRouter::admitting) responds in place of upstreams.

use std::net::IpAddr;
use std::pin::Pin;
use std::str;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HOST, MAX_FORWARDS, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{
    Extensions, HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Uri, Version,
};
use http_body_util::Full;
use ipnet::IpNet;
use pin_project_lite::pin_project;
use thiserror::Error;
use tower::{Layer, Service};
use weir_http::address::canonical;
use weir_http::host::is_host_and_port;
use weir_http::problem::Problem;
use weir_http::request::{BoxedRequest, HttpRequest};
use weir_rules::{Node, unmapped};

use super::identify::is_tls_scheme;
use super::route::Admitted;
use super::{Peer, RequestContext};

const FORWARDED_METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The status of a denial to nginx, which is always sent 403.
const WEIR_STATUS: HeaderName = HeaderName::from_static("weir-status");

/// Fields about the subrequest itself: its connection, its missing body, and its hops.
const SUBREQUEST_FIELDS: [HeaderName; 8] = [
    CONNECTION,
    CONTENT_LENGTH,
    EXPECT,
    MAX_FORWARDS,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// How a proxy reads the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    /// Traefik and Caddy send a denial to the client as it is.
    ForwardAuth,
    /// nginx knows 2xx, 401 and 403; any other status is an error of the subrequest.
    AuthRequest,
}

/// Why a subrequest describes no request.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SubrequestError {
    /// A peer that is not trusted.
    #[error("This listener responds only to the proxies in `decide.trusted_proxies`.")]
    Untrusted,
    /// A path that names no protocol.
    #[error("Send subrequests to /forward-auth (Traefik, Caddy) or /auth-request (nginx).")]
    Path,
    /// A field that is not there.
    #[error("The subrequest lacks the header {0}.")]
    Missing(HeaderName),
    /// A field that is there twice, or whose value says nothing.
    #[error("The subrequest has an unreadable header {0}.")]
    Malformed(HeaderName),
}

impl SubrequestError {
    /// The response to a subrequest that was not understood, for
    /// [`RejectInvalidLayer`](crate::RejectInvalidLayer).
    pub fn refusal(head: &Parts) -> Option<Response<Full<Bytes>>> {
        let error = head.extensions.get::<Self>()?;
        let status = match error {
            Self::Untrusted => StatusCode::FORBIDDEN,
            Self::Path => StatusCode::NOT_FOUND,
            Self::Missing(_) | Self::Malformed(_) => StatusCode::BAD_REQUEST,
        };
        Some(Problem::new(status, error.to_string()).into_response())
    }
}

impl Protocol {
    /// The path selects it, as the proxy's operator writes the path and no client can.
    fn from_path(path: &str) -> Option<Self> {
        match path {
            "/forward-auth" => Some(Self::ForwardAuth),
            "/auth-request" => Some(Self::AuthRequest),
            _ => None,
        }
    }

    /// Gives a response the status by which the proxy tells an admission from a denial.
    fn mark<B>(self, response: &mut Response<B>) {
        if response.extensions().get::<Admitted>().is_some() {
            return;
        }
        let status = response.status();
        match self {
            // No other response may pass for an admission, whatever status is configured for it.
            Self::ForwardAuth if !status.is_success() => {}
            Self::ForwardAuth => *response.status_mut() = StatusCode::FORBIDDEN,
            Self::AuthRequest => {
                *response.status_mut() = StatusCode::FORBIDDEN;
                let headers = response.headers_mut();
                headers.insert(WEIR_STATUS, status.as_u16().into());
            }
        }
    }
}

/// Restores the requests that subrequests of trusted proxies describe. A subrequest that describes
/// none has a [`SubrequestError`] in its extensions.
#[derive(Clone, Debug)]
pub struct ForwardAuthLayer {
    trusted: Arc<[IpNet]>,
}

impl ForwardAuthLayer {
    /// Believes the proxies of these networks.
    pub fn new(trusted: &[IpNet]) -> Self {
        Self {
            trusted: trusted.iter().copied().map(unmapped).collect(),
        }
    }

    /// Makes sure that a request is from a trusted proxy.
    ///
    /// # Errors
    /// [`SubrequestError::Untrusted`].
    pub fn require_trusted(&self, extensions: &Extensions) -> Result<(), SubrequestError> {
        let peer = RequestContext::peer(extensions);
        let peer = peer.map(|peer| canonical(peer.address));
        let is_trusted = |peer: IpAddr| self.trusted.iter().any(|network| network.contains(&peer));
        match peer.is_some_and(is_trusted) {
            true => Ok(()),
            false => Err(SubrequestError::Untrusted),
        }
    }

    /// The protocol of a subrequest by a trusted proxy.
    fn protocol(&self, head: &Parts) -> Result<Protocol, SubrequestError> {
        self.require_trusted(&head.extensions)?;
        Protocol::from_path(head.uri.path()).ok_or(SubrequestError::Path)
    }
}

impl<S> Layer<S> for ForwardAuthLayer {
    type Service = ForwardAuth<S>;

    fn layer(&self, inner: S) -> ForwardAuth<S> {
        ForwardAuth {
            inner,
            layer: self.clone(),
        }
    }
}

/// A service that decides about requests of other proxies; see [`ForwardAuthLayer`].
#[derive(Clone, Debug)]
pub struct ForwardAuth<S> {
    inner: S,
    layer: ForwardAuthLayer,
}

impl<S, Q, R> Service<Q> for ForwardAuth<S>
where
    S: Service<BoxedRequest<Q::Body>, Response = Response<R>>,
    Q: HttpRequest,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = ForwardAuthFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Q) -> Self::Future {
        let mut request = request.into_boxed();
        let head = &mut *request.head;
        let protocol = self.layer.protocol(head);
        let restored = protocol.clone().and_then(|_| restore(head));
        if let Err(error) = restored {
            head.extensions.insert(error);
        }
        ForwardAuthFuture {
            future: self.inner.call(request),
            protocol: protocol.ok(),
        }
    }
}

pin_project! {
    /// The response of [`ForwardAuth`].
    #[derive(Debug)]
    pub struct ForwardAuthFuture<F> {
        #[pin]
        future: F,
        // None where the configuration of the proxy or of Weir is wrong: the proxy has to see an error.
        protocol: Option<Protocol>,
    }
}

impl<F, R, E> Future for ForwardAuthFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let mut response = ready!(this.future.poll(cx))?;
        if let Some(protocol) = this.protocol {
            protocol.mark(&mut response);
        }
        Poll::Ready(Ok(response))
    }
}

/// Puts the request that a subrequest describes in its place, as the proxy received it. The client's
/// other fields are there already, as the proxy has copied them.
fn restore(head: &mut Parts) -> Result<(), SubrequestError> {
    let headers = &head.headers;
    let malformed = |name| move || SubrequestError::Malformed(name);
    let method = Method::from_bytes(single(headers, &FORWARDED_METHOD)?.as_bytes());
    let target = target(single(headers, &FORWARDED_URI)?);
    let host = single(headers, &FORWARDED_HOST)?;
    let host = is_host_and_port(host.as_bytes()).then(|| host.clone());
    let secure = is_tls_scheme(single(headers, &FORWARDED_PROTO)?.as_bytes());
    let (address, forwarded_for) = last_hop(headers)?;
    let method = method.map_err(|_| SubrequestError::Malformed(FORWARDED_METHOD))?;
    let target = target.ok_or_else(malformed(FORWARDED_URI))?;
    let host = host.ok_or_else(malformed(FORWARDED_HOST))?;
    let peer = Peer {
        address: address.ok_or_else(malformed(FORWARDED_FOR))?,
        secure: secure.ok_or_else(malformed(FORWARDED_PROTO))?,
    };
    // Nothing is replaced before all of it is known.
    (head.method, head.uri, head.version) = (method, target, Version::HTTP_11);
    RequestContext::entry(&mut head.extensions).connection.peer = Some(peer);
    replace_fields(&mut head.headers, host, forwarded_for);
    Ok(())
}

/// Removes what is about the subrequest, and sets what the proxy has changed.
fn replace_fields(headers: &mut HeaderMap, host: HeaderValue, forwarded_for: Vec<HeaderValue>) {
    let described = [FORWARDED_METHOD, FORWARDED_URI, FORWARDED_FOR];
    for name in SUBREQUEST_FIELDS.iter().chain(&described) {
        headers.remove(name);
    }
    headers.insert(HOST, host);
    for line in forwarded_for {
        headers.append(FORWARDED_FOR, line);
    }
}

/// A field that has to be there once. A second line is one that the proxy has not replaced.
fn single<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
) -> Result<&'h HeaderValue, SubrequestError> {
    let mut lines = headers.get_all(name).iter();
    match (lines.next(), lines.next()) {
        (Some(line), None) if !line.is_empty() => Ok(line),
        (Some(_), Some(_)) => Err(SubrequestError::Malformed(name.clone())),
        _ => Err(SubrequestError::Missing(name.clone())),
    }
}

fn target(value: &HeaderValue) -> Option<Uri> {
    let target = PathAndQuery::try_from(value.as_bytes()).ok()?;
    let is_path = target.as_str().starts_with('/') || target == "*";
    is_path.then(|| target.into())
}

/// The proxy's peer, which is the last element of `X-Forwarded-For`, and the lines without it.
fn last_hop(headers: &HeaderMap) -> Result<(Option<IpAddr>, Vec<HeaderValue>), SubrequestError> {
    let mut lines: Vec<_> = headers.get_all(FORWARDED_FOR).iter().cloned().collect();
    let last = lines.pop().filter(|line| !line.is_empty());
    let last = last.ok_or(SubrequestError::Missing(FORWARDED_FOR))?;
    let mut parts = last.as_bytes().rsplitn(2, |byte| *byte == b',');
    let hop = parts.next().map(<[u8]>::trim_ascii);
    let earlier = parts.next().map(<[u8]>::trim_ascii);
    let earlier = earlier.and_then(|earlier| HeaderValue::from_bytes(earlier).ok());
    lines.extend(earlier.filter(|earlier| !earlier.is_empty()));
    let hop = hop.and_then(|hop| str::from_utf8(hop).ok());
    let address = hop.and_then(|hop| Node::parse(hop).ok()?.address());
    Ok((address.filter(|address| !address.is_unspecified()), lines))
}

#[cfg(test)]
mod tests;
