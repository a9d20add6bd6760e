//! The gateways as they are shown.

#![allow(
    missing_docs,
    reason = "docs/openapi.json describes members by their comments, and some need none"
)]

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::Serialize;
use weir_limit::time::Timestamp;

use super::differences;
use super::findings::refuses_configuration;
use super::published::FiguresState;
use super::view::{FleetView, GatewayState, KnownGateway, Solitude};

/// The gateways that share the store.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub struct Gateways {
    /// Whether the gateway that is asked shares its store with others, by its configuration.
    pub is_fleet: bool,
    /// Why no others are shown, or none of their figures.
    pub alone: Option<String>,
    /// The one that is asked comes first.
    pub gateways: Vec<Gateway>,
    /// The configurations of others that differ from that of the gateway that is asked.
    pub configurations: Vec<OtherConfiguration>,
}

#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub struct Gateway {
    /// Of the process, at random.
    pub id: String,
    /// Of the machine.
    pub name: String,
    /// Of its admin listener, or of its first listener for clients.
    pub address: String,
    pub version: String,
    /// The digest of what a reload applies of its configuration.
    pub configuration: String,
    /// A fingerprint of its `hash_key`, which the digest does not cover; null without one.
    pub hash_key: Option<String>,
    /// In UTC, to the second.
    #[cfg_attr(feature = "schema", schemars(extend("format" = "date-time")))]
    pub since: String,
    /// It is the one that is asked.
    pub is_self: bool,
    pub state: GatewayState,
    /// Its files have another configuration, which it refused. False where figures are not known.
    pub configuration_refused: bool,
    /// How many seconds ago it published its figures.
    pub seen: f64,
    pub figures: FiguresState,
    /// Of the last minute; null where figures are not known.
    pub counts: Option<GatewayCounts>,
}

#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub struct GatewayCounts {
    /// Requests that were let through.
    pub requests: u64,
    /// Those of them that ended with a server error.
    pub failed: u64,
    /// Requests that were not.
    pub denied: u64,
    /// Now.
    pub in_flight: u64,
    /// Now.
    pub connections: u64,
}

#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub struct OtherConfiguration {
    pub configuration: String,
    /// The gateways that have it.
    pub gateways: Vec<String>,
    /// The limits that differ; null where they are not known.
    pub limits: Option<Vec<LimitDifference>>,
}

/// A limit of which two configurations have different definitions.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub struct LimitDifference {
    pub limit: String,
    /// On the gateway that is asked; null if it has no such limit.
    pub here: Option<String>,
    pub there: Option<String>,
    /// What passes of one subject while both are in force.
    pub meanwhile: String,
}

/// All gateways, as they are shown; `moment` writes one in UTC.
pub fn gateways(view: &FleetView, moment: impl Fn(Timestamp) -> String) -> Gateways {
    let others = view.configurations.iter();
    Gateways {
        is_fleet: view.is_fleet(),
        alone: view.alone.as_ref().map(Solitude::why),
        gateways: view
            .gateways
            .iter()
            .map(|known| gateway(known, &moment))
            .collect(),
        configurations: others
            .map(|other| OtherConfiguration {
                configuration: other.digest.clone(),
                gateways: other.gateways.clone(),
                limits: other
                    .limits
                    .as_ref()
                    .map(|limits| limits.iter().map(difference).collect()),
            })
            .collect(),
    }
}

fn gateway(known: &KnownGateway, moment: impl Fn(Timestamp) -> String) -> Gateway {
    let entry = &known.entry;
    let since = Timestamp::from_nanos(entry.since.saturating_mul(1_000_000_000));
    let figures = known.figures.as_ref().ok();
    Gateway {
        id: entry.id.clone(),
        name: entry.name.clone(),
        address: entry.address.clone(),
        version: entry.version.clone(),
        configuration: entry.configuration.clone(),
        hash_key: entry.hash_key.clone(),
        since: moment(since),
        is_self: known.is_self,
        state: known.state(),
        configuration_refused: figures.is_some_and(refuses_configuration),
        seen: known.seen.as_secs_f64(),
        figures: known.figures_state(),
        counts: figures.map(|figures| GatewayCounts {
            requests: figures.requests,
            failed: figures.failed,
            denied: figures.denied,
            in_flight: figures.in_flight,
            connections: figures.connections,
        }),
    }
}

fn difference(difference: &differences::LimitDifference) -> LimitDifference {
    LimitDifference {
        limit: difference.limit.clone(),
        here: difference.here.clone(),
        there: difference.there.clone(),
        meanwhile: difference.bound.clone(),
    }
}
