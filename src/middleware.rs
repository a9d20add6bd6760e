//! The tower layers, one concern each. Most services need only [`RateLimitLayer`].
//!
//! They stand on each other through the [`RequestContext`] in a request's extensions:
//! [`IdentifyLayer`] leaves the [`ClientIdentity`] there, [`RouteLayer`] the route, and
//! `CorrelateLayer` the request's id and its place in a trace;
//! [`RateLimitLayer`] and the proxy leave a [`Verdict`] and what came of the upstream in the
//! response's extensions, where `AccessLogLayer` finds them. If a client leaves before there is a
//! response, it asks the future itself ([`HasVerdict`]).
//!
//! ```
//! use std::convert::Infallible;
//!
//! use bytes::Bytes;
//! use http::{Request, Response, StatusCode};
//! use http_body_util::Full;
//! use tower::{Layer, ServiceExt, service_fn};
//! use weir::limit::Quota;
//! use weir::middleware::{KeyExtractor, Metered, RateLimitLayer, RequestHead};
//!
//! struct ByApiKey;
//!
//! impl KeyExtractor for ByApiKey {
//!     type Key = String;
//!
//!     fn extract(&self, request: &RequestHead<'_>) -> Option<String> {
//!         let key = request.headers.get("x-api-key")?;
//!         key.to_str().ok().map(str::to_owned)
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let hello = service_fn(|_: Request<Metered<Full<Bytes>>>| async {
//!     Ok::<_, Infallible>(Response::new(Full::from("hello")))
//! });
//! let service = RateLimitLayer::per_key(Quota::per_hour(1), ByApiKey)?.layer(hello);
//! for status in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
//!     let request = Request::builder().header("x-api-key", "mine").body(Full::default())?;
//!     assert_eq!(service.clone().oneshot(request).await?.status(), status);
//! }
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "decoys")]
pub use weir_middleware::decoy;
pub use weir_middleware::{
    AccessControl, AccessSettings, BackgroundTasks, BanCause, BanPolicy, BegunBan, BoxedRequest,
    ClientConnection, ClientIdentity, ConnectionEnds, Cors, Delay, Denied, FixedResponse,
    HasVerdict, HeaderEdits, HeaderForm, HeaderForms, HeaderTemplate, HttpRequest, Identify,
    IdentifyLayer, InFlight, KeyExtractor, KnownBans, LimitHook, LimitedService, LocalResponse,
    Metered, OnDenied, OriginPattern, Origins, PathRewrite, Peer, PreflightResponse, RateLimit,
    RateLimitLayer, Redirect, RedirectError, Rejection, RequestBody, RequestContext, RequestHead,
    RequestTemplate, ResponseBody, ResponseFuture, Route, RouteAction, RouteLayer, RoutePolicy,
    RouteState, StrikeCause, Tarpit, TarpitSlots, TemplateError, Treatment, UpstreamRouter,
    Verdict, WaitSpreader, WebSocketStream, upstream_key,
};
