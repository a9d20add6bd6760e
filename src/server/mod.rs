//! Sockets, workers, HTTP connections, drain, and the admin listener.
//!
//! The server knows nothing of limits, routes or upstreams: it is given a tower service for each
//! connection, and sees to it that every request that reaches the process is answered, up to its
//! last moment.

mod accept;
mod accepted;
mod activity;
mod admin;
mod ambiguity;
mod body;
mod certificate_error;
mod certificates;
mod connection;
mod connection_limit;
mod conversation;
mod drain;
mod identity;
mod inherited;
mod io;
mod listeners;
mod serve;
mod service;
mod settings;
mod signals;
mod supervise;
#[cfg(target_os = "linux")]
mod takeover;
#[cfg(not(target_os = "linux"))]
#[path = "no_takeover.rs"]
mod takeover;
mod tls;
mod unread;
mod workers;

pub use admin::{Admin, AdminApi, AdminThread, Readiness};
pub use body::RequestBody;
pub use certificate_error::CertificateError;
pub use certificates::Certificates;
pub use drain::{Drain, DrainSettings, Draining};
pub use identity::{Chain, Identity, PrivateKey};
pub use inherited::{Inherited, ListeningSocket};
pub use listeners::{BindError, Listeners};
pub use serve::{Connection, Http};
pub use service::ConnectionService;
pub use settings::HttpSettings;
pub use signals::{Signal, Signals};
pub use supervise::{Duties, Ended, Event, supervise};
pub use takeover::{Predecessor, Replaced, Takeover};
pub use tls::Tls;
pub use workers::{WorkerFailed, Workers};

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
