//! What needs attention among the gateways, and what each publishes of itself.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use weir_yaml::{HumanDuration, pluralized};

use super::published::{Figures, PublishedFinding};
use super::view::{
    FleetView, GatewayState, KnownGateway, MAX_GATEWAYS, OtherConfiguration, Solitude,
};
use crate::findings::{GatewayFinding, GatewayFindingKind as Kind};

/// Upper bound on findings that are shown of other gateways.
const MAX_FINDINGS: usize = 12;

/// Upper bound on the characters of a finding's detail that others see: each gateway reads the
/// findings of all.
const MAX_DETAIL: usize = 400;

/// Whether a gateway's files have a configuration that it refused.
pub fn refuses_configuration(figures: &Figures) -> bool {
    let mut kinds = figures.findings.iter().filter_map(known_kind);
    kinds.any(|kind| kind == Kind::Configuration)
}

/// What is wrong with a gateway, in the form in which others read it.
pub fn published(findings: Vec<GatewayFinding>) -> Vec<PublishedFinding> {
    let published = findings.into_iter().map(|finding| {
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
pub fn findings(view: &FleetView) -> Vec<GatewayFinding> {
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

fn other_configuration(other: &OtherConfiguration) -> GatewayFinding {
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
