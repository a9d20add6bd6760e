//! The fleet: which gateways share the store, whose figures an answer counts, and what needs
//! attention among the gateways.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use weir_limit::time::Timestamp;
use weir_telemetry::Metrics;
use weir_yaml::{HumanDuration, pluralized};

use super::error::ApiError;
use super::gateway_findings;
use super::request::parameters;
use super::responses::{
    Counted, CountedScope, DateTime, Gateway, GatewayCounts, GatewayFinding,
    GatewayFindingKind as Kind, Gateways, LimitDifference, OtherConfiguration,
};
use crate::app::fleet::{
    self, Figures, FleetView, GatewayState, KnownGateway, MAX_GATEWAYS, PublishedFinding, Scope,
    Solitude,
};
use crate::app::reloads::Snapshot;
use crate::app::stores::Stores;

/// Upper bound on findings that are shown of other gateways.
const MAX_FINDINGS: usize = 12;

/// Upper bound on the characters of a finding's detail that others see: each gateway reads the
/// findings of all.
const MAX_DETAIL: usize = 400;

const PARAMETERS: &str = "there is scope=gateway or fleet";

/// The scope of a query without other parameters.
pub(super) fn scope(query: Option<&str>) -> Result<CountedScope, ApiError> {
    let mut scope = CountedScope::Gateway;
    for (pair, (name, value)) in parameters(query) {
        let known = CountedScope::parse(&value).filter(|_| name == "scope");
        scope = known.ok_or_else(|| ApiError::parameter(pair, PARAMETERS))?;
    }
    Ok(scope)
}

/// Whose figures are counted in an answer about this gateway, or about the fleet.
pub(super) fn counted<'v>(
    fleet: Option<&'v FleetView>,
    metrics: &'v Metrics,
    now: Timestamp,
) -> (Scope<'v>, Counted) {
    match fleet {
        None => {
            let counted = Counted {
                scope: CountedScope::Gateway,
                gateways: 1,
                known: 1,
                is_fleet: false,
                alone: None,
            };
            (Scope::Gateway(metrics, now), counted)
        }
        Some(fleet) => {
            let counted = Counted {
                scope: CountedScope::Fleet,
                gateways: fleet.counted(),
                known: fleet.known(),
                is_fleet: is_fleet(fleet),
                alone: fleet.alone.as_ref().map(why_alone),
            };
            // Its own figures are all that there are.
            let scope = match counted.is_fleet {
                true => Scope::Fleet(fleet),
                false => Scope::Gateway(metrics, now),
            };
            (scope, counted)
        }
    }
}

/// Whether the gateway shares its store, by its configuration.
fn is_fleet(view: &FleetView) -> bool {
    !matches!(view.alone, Some(Solitude::Configured(_)))
}

fn why_alone(alone: &Solitude) -> String {
    match alone {
        Solitude::Configured(why) => (*why).to_owned(),
        Solitude::Failed(why) => why.clone(),
    }
}

pub(super) fn gateways(view: &FleetView) -> Gateways {
    let others = view.configurations.iter();
    Gateways {
        is_fleet: is_fleet(view),
        alone: view.alone.as_ref().map(why_alone),
        gateways: view.gateways.iter().map(gateway).collect(),
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

fn gateway(known: &KnownGateway) -> Gateway {
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
        since: DateTime(since),
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

fn refuses_configuration(figures: &Figures) -> bool {
    let mut kinds = figures.findings.iter().filter_map(known_kind);
    kinds.any(|kind| kind == Kind::Configuration)
}

fn difference(difference: &fleet::LimitDifference) -> LimitDifference {
    LimitDifference {
        limit: difference.limit.clone(),
        here: difference.here.clone(),
        there: difference.there.clone(),
        meanwhile: difference.bound.clone(),
    }
}

/// What is wrong with this gateway, in the form in which others read it.
pub(in crate::app) fn published_findings(
    snapshot: &Snapshot,
    stores: &Stores,
    metrics: &Metrics,
) -> Vec<PublishedFinding> {
    let findings = gateway_findings::all(snapshot, stores, metrics).into_iter();
    let published = findings.map(|finding| {
        let kind = serde_json::to_value(finding.kind).unwrap_or_default();
        PublishedFinding {
            kind: kind.as_str().unwrap_or_default().to_owned(),
            text: finding.text,
            detail: finding
                .detail
                .map(|detail| detail.chars().take(MAX_DETAIL).collect()),
            remedy: finding.remedy.into_owned(),
        }
    });
    published.collect()
}

/// What needs attention among the gateways, and what the others say of themselves.
pub(super) fn findings(view: &FleetView) -> Vec<GatewayFinding> {
    let mut found: Vec<GatewayFinding> = Vec::new();
    if let Some(Solitude::Failed(why)) = &view.alone {
        let text = format!("this gateway shows its own figures alone: {why}");
        let remedy = "Look at Redis by what it says, and if it speaks of rights, at docs/REDIS.md. Ask \
                      other gateways what they see";
        found.push(GatewayFinding::new(Kind::Fleet, text, remedy));
    }
    if view.is_cut {
        let text = format!("at least {MAX_GATEWAYS} gateways are listed, and no more are shown");
        let remedy = "Sums lack the others. Gateways that were killed are listed for five minutes; \
                      give other gateways another store.redis.prefix";
        found.push(GatewayFinding::new(Kind::Fleet, text, remedy));
    }
    let silent = view.gateways.iter();
    let silent = silent.filter(|gateway| gateway.state() == GatewayState::Silent);
    found.extend(silent.map(|gateway| {
        let seen = Duration::from_secs(gateway.seen.as_secs());
        let text = format!(
            "gateway {} has been silent for {}",
            gateway.title(),
            HumanDuration(seen)
        );
        let remedy = "Look whether it runs, and reaches Redis. One that was killed is forgotten \
                      five minutes after its last word";
        GatewayFinding::new(Kind::Fleet, text, remedy)
    }));
    found.extend(view.configurations.iter().map(other_configuration));
    found.extend(other_keys(view));
    found.extend(view.figures().flat_map(|(gateway, figures)| {
        let others = figures.findings.iter().filter(|_| !gateway.is_self);
        others.filter_map(|finding| of_other(gateway, finding))
    }));
    found.truncate(MAX_FINDINGS);
    found
}

/// The gateways whose `hash_key` is another than here.
fn other_keys(view: &FleetView) -> Option<GatewayFinding> {
    let own = view.gateways.iter().find(|gateway| gateway.is_self)?;
    let others = view.gateways.iter();
    let others = others.filter(|gateway| gateway.has_other_key(&own.entry));
    let names: Vec<_> = others.map(KnownGateway::title).collect();
    let gateways = pluralized(names.len(), "gateway");
    let text = format!(
        "{gateways} with another hash_key, so that accounts and other hashed subjects are counted \
         apart: {}",
        names.join(", ")
    );
    let remedy = "Give all gateways the same hash_key. Until then, limits and bans of such subjects \
                  hold once for each key";
    (!names.is_empty()).then(|| GatewayFinding::new(Kind::Fleet, text, remedy))
}

fn other_configuration(other: &fleet::OtherConfiguration) -> GatewayFinding {
    let gateways = pluralized(other.gateways.len(), "gateway");
    let mut text = format!(
        "{gateways} with another configuration: {}",
        other.gateways.join(", ")
    );
    let lines = other.limits.as_deref().map(|limits| {
        let shown = |side: &Option<String>| side.clone().unwrap_or_else(|| "none".to_owned());
        let lines = limits.iter().map(|difference| {
            let (here, there) = (shown(&difference.here), shown(&difference.there));
            let (limit, bound) = (&difference.limit, &difference.bound);
            format!("{limit}: here {here}; there {there}. Meanwhile: {bound}")
        });
        lines.collect::<Vec<_>>()
    });
    match other.limits.as_deref() {
        None => text.push_str("; its limits are not known"),
        Some([]) => text.push_str("; no limit differs"),
        Some(limits) => {
            let names: Vec<_> = limits.iter().map(|limit| &*limit.limit).collect();
            text = format!("{text}; different limits: {}", names.join(", "));
        }
    }
    let remedy = "Roll out one configuration. Units that were spent stay spent meanwhile";
    GatewayFinding {
        detail: lines
            .filter(|lines| !lines.is_empty())
            .map(|lines| lines.join("\n")),
        ..GatewayFinding::new(Kind::Fleet, text, remedy)
    }
}

fn known_kind(finding: &PublishedFinding) -> Option<Kind> {
    Kind::deserialize(&Value::from(&*finding.kind)).ok()
}

/// A finding that another gateway has published; none of a kind that this version does not know.
/// Whoever can write into the store can write it, so its remedy is quoted.
fn of_other(gateway: &KnownGateway, finding: &PublishedFinding) -> Option<GatewayFinding> {
    let kind = known_kind(finding)?;
    Some(GatewayFinding {
        gateway: Some(gateway.title()),
        detail: finding.detail.clone(),
        remedy: format!("That gateway advises: \"{}\"", finding.remedy).into(),
        ..GatewayFinding::new(kind, finding.text.clone(), "")
    })
}
