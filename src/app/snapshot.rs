//! A configuration in force: immutable, and replaced as a whole.

use std::net::SocketAddr;
use std::sync::Arc;

use super::stack::Layers;
use crate::config::Settings;
use crate::proxy::Server;
use crate::telemetry::Metrics;

/// A configuration and the layers made from it.
pub(super) struct Snapshot {
    pub(super) settings: Settings,
    pub(super) layers: Layers,
}

impl Snapshot {
    /// A snapshot of these settings, whose built-in upstreams are served at `echo`.
    pub(super) fn new(mut settings: Settings, echo: SocketAddr, metrics: &Arc<Metrics>) -> Self {
        for upstream in settings
            .upstreams
            .iter_mut()
            .filter(|upstream| upstream.echo)
        {
            upstream.settings.servers = vec![Server::from(echo)];
        }
        let layers = Layers::new(&settings, metrics);
        Self { settings, layers }
    }
}
