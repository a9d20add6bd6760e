//! Envoy's rate limit service, `envoy.service.ratelimit.v3.RateLimitService`, in place of
//! envoyproxy/ratelimit: a gRPC call asks whether a request with some descriptors is over a limit.
//!
//! It stands where [`RateLimit`](weir_middleware::RateLimit) stands for requests that are
//! forwarded, and [`DescriptorLimits`] decides. A unary call is one message each way, so that no
//! framework for gRPC is needed.

#![forbid(unsafe_code)]

mod messages;
mod should_rate_limit;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use http_body::Body;
use http_body_util::BodyExt;
use prost::Message;
use prost::encoding::{DecodeContext, decode_key, decode_varint, skip_field};
use thiserror::Error;
use tower::Service;
use weir_http::problem::Problem;
use weir_middleware::{
    DescriptorLimits, HasVerdict, LimitedRequest, LimitedService, RequestContext, RequestHead,
    ResponseBody, RouteState, Verdict, grpc,
};
use weir_telemetry::Disposition;
use weir_telemetry::events::LastWarning;

use self::messages::{DESCRIPTORS, ENTRIES, RateLimitRequest};

/// The path of the only method.
pub const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// What stands before a message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;

/// The most descriptors of a call. Each may add a bucket to the question to the store, and Envoy
/// sends one for each action of a route.
const MAX_DESCRIPTORS: usize = 64;

/// The most entries of a descriptor. Each is one action of Envoy's.
const MAX_ENTRIES: usize = 64;

/// Answers calls of Envoy's rate limit service. The limits are those of the call's route.
#[derive(Clone)]
pub struct EnvoyLayer(Arc<Settings>);

struct Settings {
    limits: DescriptorLimits,
    warned: Arc<LastWarning>,
}

impl EnvoyLayer {
    /// Decides by these limits. Layers that share `warned` warn of calls that fail once a minute.
    pub fn new(limits: DescriptorLimits, warned: Arc<LastWarning>) -> Self {
        Self(Arc::new(Settings { limits, warned }))
    }

    /// The service. It stands in for a [`RateLimit`](weir_middleware::RateLimit) over `S`, which is
    /// never called.
    pub fn service<S>(&self) -> EnvoyRateLimit<S> {
        EnvoyRateLimit {
            settings: Arc::clone(&self.0),
            inner: PhantomData,
        }
    }
}

/// A service that answers calls itself; see [`EnvoyLayer`].
pub struct EnvoyRateLimit<S> {
    settings: Arc<Settings>,
    inner: PhantomData<fn() -> S>,
}

impl<S> Clone for EnvoyRateLimit<S> {
    fn clone(&self) -> Self {
        Self {
            settings: Arc::clone(&self.settings),
            inner: PhantomData,
        }
    }
}

impl<S, Q> Service<Q> for EnvoyRateLimit<S>
where
    S: LimitedService<Q>,
    Q: LimitedRequest,
    <Q::Body as Body>::Error: Send,
{
    type Response = Response<ResponseBody<S::ResponseBody>>;
    type Error = Infallible;
    type Future = EnvoyFuture<S::ResponseBody>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Q) -> Self::Future {
        let settings = Arc::clone(&self.settings);
        EnvoyFuture(Box::pin(async move { settings.respond(request).await }))
    }
}

/// The response of [`EnvoyRateLimit`].
pub struct EnvoyFuture<R>(Pin<Box<dyn Future<Output = Response<ResponseBody<R>>> + Send>>);

impl<R> Future for EnvoyFuture<R> {
    type Output = Result<Response<ResponseBody<R>>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx).map(Ok)
    }
}

/// A call that Envoy gives up has no verdict.
impl<R> HasVerdict for EnvoyFuture<R> {
    fn verdict(&self) -> Option<&Verdict> {
        None
    }
}

/// Why a call gets no response but a status of gRPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
enum CallError {
    #[error("there is no such method")]
    NoMethod,
    #[error("the call is not one RateLimitRequest without compression")]
    Malformed,
    #[error("more than {MAX_DESCRIPTORS} descriptors, or {MAX_ENTRIES} entries in one of them")]
    TooMany,
    #[error("limits and negative hits of descriptors are not supported")]
    Unsupported,
    #[error("the store cannot be reached")]
    Unavailable,
}

impl CallError {
    /// The status of gRPC.
    const fn status(self) -> u16 {
        match self {
            Self::Malformed | Self::TooMany => 3,
            Self::NoMethod | Self::Unsupported => 12,
            Self::Unavailable => 14,
        }
    }
}

impl Settings {
    async fn respond<Q: LimitedRequest, R>(&self, request: Q) -> Response<ResponseBody<R>> {
        let Some(content_type) = grpc::content_type(&RequestHead::new(&request)) else {
            let detail = "Call this service by gRPC, over HTTP/2.";
            let problem = Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail);
            return ResponseBody::problem(problem);
        };
        let route = RequestContext::route(request.extensions()).cloned();
        let (reply, verdict) = self.reply(route, request.into_boxed().body).await;
        let mut response = match reply {
            Ok(message) => {
                let trailers = HeaderMap::from_iter([(grpc::STATUS, HeaderValue::from(0))]);
                Response::new(ResponseBody::reply(message, trailers))
            }
            Err(error) => {
                self.warn(error);
                let mut response = Response::new(ResponseBody::full(Bytes::new()));
                grpc::set_status(response.headers_mut(), error.status(), &error.to_string());
                response
            }
        };
        response.headers_mut().insert(CONTENT_TYPE, content_type);
        response.extensions_mut().insert(verdict);
        response
    }

    /// Warns of a call whose request Envoy admits undecided. The store's failures are logged apart.
    fn warn(&self, cause: CallError) {
        if cause != CallError::Unavailable && self.warned.is_due() {
            tracing::warn!(
                target: "weir::middleware::rate_limit::envoy",
                %cause,
                "a call of Envoy's rate limit service fails, and Envoy admits the request undecided; \
                 logged once a minute at most"
            );
        }
    }

    /// The message of the reply.
    async fn reply<B: Body>(
        &self,
        route: Option<Arc<RouteState>>,
        body: B,
    ) -> (Result<Bytes, CallError>, Verdict) {
        let unlimited = || Verdict::new(Disposition::Unlimited);
        let Some(route) = route else {
            return (Err(CallError::NoMethod), unlimited());
        };
        let Ok(body) = body.collect().await else {
            return (Err(CallError::Malformed), unlimited());
        };
        let call = match unframed(body.to_bytes()) {
            Ok(call) => call,
            Err(error) => return (Err(error), unlimited()),
        };
        let (response, verdict) = self.should_rate_limit(&route, &call).await;
        (response.map(|response| framed(&response)), verdict)
    }
}

/// The only message of a call.
fn unframed(mut body: Bytes) -> Result<RateLimitRequest, CallError> {
    let compressed = body.try_get_u8().map_err(|_| CallError::Malformed)?;
    let length = body.try_get_u32().map_err(|_| CallError::Malformed)?;
    if compressed != 0 || usize::try_from(length) != Ok(body.len()) {
        return Err(CallError::Malformed);
    }
    // Decoded, the least descriptor takes fifty times its bytes.
    let descriptors = bounded(body.clone(), DESCRIPTORS, MAX_DESCRIPTORS)?;
    for descriptor in descriptors {
        bounded(descriptor, ENTRIES, MAX_ENTRIES)?;
    }
    RateLimitRequest::decode(body).map_err(|_| CallError::Malformed)
}

/// The fields of a message with this number, of which it may have so many.
fn bounded(mut message: Bytes, number: u32, max: usize) -> Result<Vec<Bytes>, CallError> {
    let mut found = Vec::new();
    while message.has_remaining() {
        let (field, wire_type) = decode_key(&mut message).map_err(|_| CallError::Malformed)?;
        let before = message.clone();
        skip_field(wire_type, field, &mut message, DecodeContext::default())
            .map_err(|_| CallError::Malformed)?;
        if field != number {
            continue;
        }
        if found.len() == max {
            return Err(CallError::TooMany);
        }
        let mut bytes = before.slice(..before.len() - message.len());
        // The length of the field comes first.
        decode_varint(&mut bytes).map_err(|_| CallError::Malformed)?;
        found.push(bytes);
    }
    Ok(found)
}

fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut frame = BytesMut::with_capacity(PREFIX_BYTES + length);
    frame.put_u8(0);
    frame.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    // A buffer that grows has room for any message.
    let _ = message.encode(&mut frame);
    frame.freeze()
}
