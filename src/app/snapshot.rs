//! A configuration in force: immutable, and replaced as a whole.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use super::sockets::Sockets;
use super::stack::Layers;
use crate::config::Settings;
use crate::middleware::decoy::Shadow;
use crate::middleware::{ShadowOf, TarpitSlots};
use crate::proxy::Server;
use crate::telemetry::Metrics;

/// What a process has once, whatever is configured.
#[derive(Clone)]
pub(super) struct ProcessState {
    /// The address of the demo upstream.
    pub(super) demo_upstream: SocketAddr,
    /// The sockets for clients.
    pub(super) sockets: Sockets,
    /// Where requests of the banned are held.
    pub(super) tarpit_slots: TarpitSlots,
    pub(super) metrics: Arc<Metrics>,
}

/// Where a decoy is: on a route, and for whom.
type Place<'s> = (&'s str, ShadowOf<'s>);

/// A configuration and the layers made from it.
pub(super) struct Snapshot {
    pub(super) settings: Settings,
    pub(super) layers: Layers,
}

impl Snapshot {
    /// A snapshot of these settings.
    pub(super) fn new(mut settings: Settings, process: &ProcessState) -> Self {
        for upstream in settings
            .upstreams
            .iter_mut()
            .filter(|upstream| upstream.is_demo)
        {
            upstream.settings.servers = vec![Server::from(process.demo_upstream)];
        }
        let layers = Layers::new(&settings, &process.tarpit_slots, &process.metrics);
        Self { settings, layers }
    }

    /// Lets decoys know what those of the same routes and bans have learnt so far.
    pub(super) fn inherit(&self, earlier: &Self) {
        let learnt: HashMap<Place<'_>, &Shadow> = earlier.shadows().collect();
        for (place, shadow) in self.shadows() {
            if let Some(before) = learnt.get(&place) {
                shadow.inherit(before);
            }
        }
    }

    fn shadows(&self) -> impl Iterator<Item = (Place<'_>, &Shadow)> {
        let routes = self.layers.routes();
        routes.flat_map(|route| {
            let shadows = route.shadows();
            shadows.map(|(of, shadow)| ((route.name(), of), shadow))
        })
    }
}
