//! Sockets, workers, HTTP connections, drain, and the admin listener.
//!
//! The server knows nothing of limits, routes or upstreams: it is given a service for each connection,
//! and sees to it that every request that reaches the process is answered, up to its
//! last moment.

#![forbid(unsafe_code)]

mod accept;
mod admin;
mod alt_svc;
mod certificate_error;
mod certificates;
mod challenges;
mod client_auth;
mod client_io;
mod connection;
mod connection_limit;
mod connection_state;
mod drain;
mod driver;
mod framing;
#[cfg(any(test, fuzzing, feature = "fuzzing"))]
pub mod fuzzing;
mod http1;
mod http2_frames;
mod listeners;
mod open_connections;
mod peer_filter;
mod proxy_protocol;
mod request_body;
mod serve;
mod service;
mod settings;
mod stream_server;
mod stream_tasks;
mod supervise;
#[cfg(target_os = "linux")]
mod takeover;
#[cfg(not(target_os = "linux"))]
#[path = "no_takeover.rs"]
mod takeover;
mod tls;

pub use admin::{Admin, AdminApi, AdminBody, AdminThread, Readiness};
pub use alt_svc::{AltService, AltSvc};
pub use certificate_error::CertificateError;
pub use certificates::{Certificates, Chain, Identity, PrivateKey};
pub use challenges::{Challenge, ChallengeError, ChallengeGuard, Challenges};
pub use client_auth::{ClientAuth, ClientAuthorities, RevocationLists};
pub use connection::PollConnection;
pub use drain::{Drain, DrainSettings, Draining};
pub use listeners::{BindError, Inherited, Listeners};
pub use peer_filter::{FilteredPeers, PeerFilter};
pub use proxy_protocol::ProxyProtocol;
pub use request_body::RequestBody;
pub use serve::{Connection, Http, Transport};
pub use service::{ConnectionService, ServiceFn, service_fn};
pub use settings::HttpSettings;
pub use stream_server::{
    BusyStream, ClientPlace, Refusal, StreamBounds, StreamServer, StreamService,
};
pub use supervise::{Ended, Event, EventHandler, Signals, WorkerFailed, Workers, supervise};
pub use takeover::{Predecessor, Takeover};
pub use tls::Tls;

#[cfg(test)]
mod tests;
