//! A configuration in force: immutable, and replaced as a whole.

use std::net::SocketAddr;
use std::sync::Arc;

use super::stack::Layers;
use crate::config::Settings;
use crate::middleware::OnDenied;
use crate::middleware::decoy::Shadow;
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

    /// Lets decoys know what those of the same routes have learnt so far.
    pub(super) fn inherit(&self, earlier: &Self) {
        for (name, shadow) in self.shadows() {
            let mut before = earlier.shadows().filter(|(known, _)| *known == name);
            if let Some((_, before)) = before.next() {
                shadow.inherit(before);
            }
        }
    }

    /// The routes that shadow-ban, by name.
    fn shadows(&self) -> impl Iterator<Item = (&str, &Shadow)> {
        let policies = self.settings.routes.iter().map(|route| &route.policy);
        policies.filter_map(|policy| match &policy.on_denied {
            OnDenied::Shadow(shadow) => Some((&*policy.name, &**shadow)),
            OnDenied::Reject(_) => None,
        })
    }
}
