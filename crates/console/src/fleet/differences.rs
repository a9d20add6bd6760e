//! The limits of a configuration as gateways compare them.

use std::collections::BTreeSet;
use std::time::Duration;

use weir_limit::Algorithm;
use weir_yaml::HumanDuration;

use super::published::{LimitDefinition, PublishedLimits};

/// A limit that two configurations define differently, or that one of them lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitDifference {
    /// Its name.
    pub limit: String,
    /// Its definition in words on the gateway that is asked; none if it has no such limit.
    pub here: Option<String>,
    /// The same of the others.
    pub there: Option<String>,
    /// What passes while both are in force.
    pub bound: String,
}

/// The limits that differ between two configurations, in the order of their names.
pub fn differences(here: &PublishedLimits, there: &PublishedLimits) -> Vec<LimitDifference> {
    let names: BTreeSet<&String> = here.limits.keys().chain(there.limits.keys()).collect();
    let differing = names.into_iter().filter_map(|name| {
        let (here, there) = (here.limits.get(name), there.limits.get(name));
        let text = |definition: Option<&LimitDefinition>| {
            definition.map(|definition| definition.text.clone())
        };
        (here != there).then(|| LimitDifference {
            limit: name.clone(),
            here: text(here),
            there: text(there),
            bound: bound(here, there),
        })
    });
    differing.collect()
}

/// What passes of one subject while both definitions are in force: docs/ALGORITHMS.md, "Changed
/// limits" and "Changed periods".
fn bound(here: Option<&LimitDefinition>, there: Option<&LimitDefinition>) -> String {
    let (Some(here), Some(there)) = (here, there) else {
        return "a gateway without the limit lets everything through".to_owned();
    };
    if here.per != there.per || here.algorithm != there.algorithm {
        return "each counts for itself: what both allow passes in all".to_owned();
    }
    let most = here.burst.max(there.burst);
    let span = |nanos| HumanDuration(Duration::from_nanos(nanos));
    let names = [Algorithm::Gcra, Algorithm::InFlight].map(|algorithm| algorithm.name());
    if here.algorithm == names[0] {
        let interval = |of: &LimitDefinition| of.period / of.burst.max(1);
        return format!(
            "at most {} at once, then one each {}",
            here.burst.saturating_add(there.burst),
            span(interval(here).min(interval(there))),
        );
    }
    if here.algorithm == names[1] {
        return format!("at most {most} in flight");
    }
    match here.period == there.period {
        true => format!("at most {most} in a window"),
        false => format!(
            "at most {most} in {}, and windows end by both definitions",
            span(here.period.min(there.period))
        ),
    }
}
