//! The tower layers, one concern each. Most services need only [`RateLimitLayer`]. The crate `weir`
//! has what is promised of it to users, as `weir::middleware`; what else is public here serves
//! Weir's other crates.
//!
//! They stand on each other through the [`RequestContext`] in a request's extensions:
//! [`IdentifyLayer`] leaves the [`ClientIdentity`] there, [`RouteLayer`] the route, and
//! `CorrelateLayer` the request's id and its place in a trace;
//! [`RateLimitLayer`] and the proxy leave a [`Verdict`] and what came of the upstream in the
//! response's extensions, where `AccessLogLayer` finds them. If a client leaves before there is a
//! response, it asks the future itself ([`HasVerdict`]).

#![forbid(unsafe_code)]

mod access;
mod access_log;
mod backend;
mod concurrency;
#[cfg(feature = "decoys")]
pub mod decoy;
#[cfg(not(feature = "decoys"))]
#[path = "no_decoys.rs"]
pub(crate) mod decoy;
mod forward_auth;
mod forwarded;
mod header_text;
mod identify;
mod overload;
mod rate_limit;
mod redirect;
mod redirect_to_https;
mod reject_invalid;
mod rejection;
mod request_bounds;
mod request_template;
mod response_body;
mod response_format;
#[cfg(feature = "config")]
mod response_keys;
mod route;
mod route_action;
mod route_decoys;
mod steps;
mod untrusted_forwarders;
mod verifiers;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;

use http::Extensions;

pub use access::*;
pub use access_log::{AccessLog, AccessLogLayer, LoggedBody};
pub use backend::{Backend, BackgroundTasks};
pub use concurrency::*;
pub use forward_auth::{ForwardAuth, ForwardAuthFuture, ForwardAuthLayer, SubrequestError};
pub use forwarded::{Forwarded, ForwardedLayer};
pub use identify::{ClientIdentity, Identify, IdentifyLayer, KeyExtractor, Peer, RequestHead};
pub use overload::*;
#[cfg(feature = "config")]
pub use rate_limit::OnDeniedKeys;
pub use rate_limit::{
    AskedDescriptor, DecidedDescriptors, DescriptorDecision, DescriptorLimits, Domains,
    LimitedRequest, ShownLimit,
};
pub use rate_limit::{
    BodyBytes, Delay, Denied, HeaderForm, HeaderForms, InFlight, LimitHook, LimitedService,
    Metered, OnDenied, RateLimit, RateLimitLayer, RequestBody, ResponseFuture, RoutePolicy,
    WaitSpreader,
};
pub use rate_limit::{LimitDecision, Progress, Simulated, Simulation, Waiting};
pub use redirect::{Redirect, RedirectError};
pub use redirect_to_https::HttpsRedirect;
pub use reject_invalid::{Refusal, RejectInvalid, RejectInvalidLayer};
pub use rejection::Rejection;
pub use request_bounds::{BodyLimit, BodyLimitLayer, LimitedBody, RequestBounds};
pub use request_template::{RequestTemplate, TemplateError};
pub use response_body::{BodyCoder, ResponseBody};
pub use response_format::{ResponseFormat, ResponseFormatLayer};
#[cfg(feature = "config")]
pub use response_keys::RejectionKeys;
pub use route::{Route, RouteLayer, RouteState, UpstreamRouter, upstream_key};
pub use route_action::{FixedResponse, LocalResponse, PathRewrite, RouteAction};
pub use steps::*;
pub use weir_http::request::{BoxedRequest, HttpRequest, WebSocketStream};
use weir_rules::ClientCertificate;
use weir_telemetry::{ActiveTrace, Notes, RequestId};
pub use weir_telemetry::{Shed, Verdict};

use self::identify::UnverifiedAccount;
use self::route::Routed;

/// The two ends of the connection that a request came by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionEnds {
    /// The other end: the client, or a proxy.
    pub peer: SocketAddr,
    /// The gateway's end.
    pub local: SocketAddr,
}

/// The connection that a request came by. All requests of the connection have the same.
#[derive(Clone, Default)]
pub struct ClientConnection {
    /// The other end, if the server knows it.
    pub peer: Option<Peer>,
    /// The certificate that the client has shown.
    pub certificate: Option<Arc<ClientCertificate>>,
    /// Its two ends, if an upstream is told of them.
    pub ends: Option<Arc<ConnectionEnds>>,
}

/// The knowledge of the layers about a request. It is one entry of the request's extensions, since
/// each entry costs allocations.
#[derive(Clone, Default)]
pub struct RequestContext {
    connection: ClientConnection,
    identity: Option<ClientIdentity>,
    /// `None` once the identity is complete.
    unverified: Option<Arc<UnverifiedAccount>>,
    routed: Option<Routed>,
    /// Whether the server writes header lines of a [`ProblemResponse`], and no layer above the
    /// limits looks at them.
    ///
    /// [`ProblemResponse`]: weir_http::problem::ProblemResponse
    takes_lines: bool,
    request_id: Option<Arc<RequestId>>,
    trace: Option<Arc<ActiveTrace>>,
}

impl ClientConnection {
    /// One of which only the peer is known.
    pub fn of(peer: Peer) -> Self {
        Self {
            peer: Some(peer),
            ..Self::default()
        }
    }
}

impl RequestContext {
    /// The context of a request from this peer.
    pub fn new(peer: Peer) -> Self {
        Self::of_connection(ClientConnection::of(peer), false)
    }

    /// The context of a request that came by this connection. `takes_lines` says whether the server
    /// writes the header lines of a [`ProblemResponse`] before those of the response's map.
    ///
    /// [`ProblemResponse`]: weir_http::problem::ProblemResponse
    pub fn of_connection(connection: ClientConnection, takes_lines: bool) -> Self {
        // At once: each step of a builder would copy it.
        Self {
            connection,
            takes_lines,
            ..Self::default()
        }
    }

    /// The certificate that the client has shown, if the server left it here.
    fn certificate(extensions: &Extensions) -> Option<&ClientCertificate> {
        let connection = &extensions.get::<Self>()?.connection;
        connection.certificate.as_deref()
    }

    /// The peer that the request came from, if the server left it here.
    fn peer(extensions: &Extensions) -> Option<Peer> {
        extensions.get::<Self>()?.connection.peer
    }

    /// The addresses of a request's client and of the gateway's end. The client's port is zero if a
    /// proxy has named its address.
    pub fn connection_addrs(extensions: &Extensions) -> Option<(SocketAddr, SocketAddr)> {
        let context = extensions.get::<Self>()?;
        let client = context.identity.as_ref()?.client;
        let ends = context.connection.ends.as_deref();
        let peer = ends.map(|ends| ends.peer);
        let port = peer.filter(|_| client.address == client.peer);
        let unknown = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
        let local = ends.map_or(unknown, |ends| ends.local);
        Some((
            SocketAddr::new(client.address, port.map_or(0, |peer| peer.port())),
            local,
        ))
    }

    /// Whether the request's client asked by TLS, as a trusted proxy says or by the connection.
    pub fn is_secure(extensions: &Extensions) -> bool {
        Self::identity(extensions).is_some_and(|identity| identity.secure)
    }

    /// The request's client, if a layer has identified it.
    fn identity(extensions: &Extensions) -> Option<&ClientIdentity> {
        extensions.get::<Self>()?.identity.as_ref()
    }

    /// The request's account, if it is not known before its password is verified.
    fn unverified(extensions: &Extensions) -> Option<&Arc<UnverifiedAccount>> {
        extensions.get::<Self>()?.unverified.as_ref()
    }

    /// Takes over the account that another layer has learned.
    fn complete_identity(&mut self) {
        if let (Some(identity), Some(unverified)) = (&mut self.identity, &self.unverified) {
            identity.account = unverified.learned().cloned();
        }
    }

    /// The request's id, if a layer has given it one.
    pub fn request_id(extensions: &Extensions) -> Option<&Arc<RequestId>> {
        extensions.get::<Self>()?.request_id.as_ref()
    }

    /// Gives a request its id.
    #[inline]
    pub fn set_request_id(extensions: &mut Extensions, id: Option<Arc<RequestId>>) {
        Self::entry(extensions).request_id = id;
    }

    /// Gives a request its place in a trace.
    #[inline]
    pub fn set_trace(extensions: &mut Extensions, trace: Arc<ActiveTrace>) {
        Self::entry(extensions).trace = Some(trace);
    }

    /// Whether the fields of a response may be lines.
    fn takes_lines(extensions: &Extensions) -> bool {
        let context = extensions.get::<Self>();
        context.is_some_and(|context| context.takes_lines)
    }

    /// The state of the request's route, if a layer has found one.
    pub fn route(extensions: &Extensions) -> Option<&Arc<RouteState>> {
        Some(&Self::routed(extensions)?.route)
    }

    /// The request's route, if a layer has found one.
    fn routed(extensions: &Extensions) -> Option<&Routed> {
        extensions.get::<Self>()?.routed.as_ref()
    }

    /// The request's route and its client, by one look-up, and whether its account is not known yet;
    /// the client as [`ClientIdentity::from_extensions`] finds it.
    fn routed_client(extensions: &Extensions) -> (Option<&Routed>, Option<&ClientIdentity>, bool) {
        let context = extensions.get::<Self>();
        let identified = context.and_then(|context| context.identity.as_ref());
        let routed = context.and_then(|context| context.routed.as_ref());
        let is_unverified = context.is_some_and(|context| context.unverified.is_some());
        (
            routed,
            identified.or_else(|| extensions.get()),
            is_unverified,
        )
    }

    /// The context of a request, made if there is none.
    fn entry(extensions: &mut Extensions) -> &mut Self {
        extensions.get_or_insert_default()
    }
}

/// A response that is on its way.
pub trait HasVerdict {
    /// The decision about its request, once there is one.
    fn verdict(&self) -> Option<&Verdict>;

    /// What the steps on the response add to the log, once it is there.
    fn take_notes(self: Pin<&mut Self>) -> Option<Box<Notes>> {
        None
    }
}
