//! Whose figures an answer counts: those of one gateway, or of its fleet, added up.

#![allow(
    missing_docs,
    reason = "docs/openapi.json describes members by their comments, and some need none"
)]

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::Serialize;
use weir_limit::time::Timestamp;
use weir_telemetry::{Metrics, Period};

use crate::fleet::{FleetView, Solitude, limit_figures, merged};
use crate::subjects::CountedSubject;

/// Whose subjects are counted.
#[derive(Clone, Copy)]
pub enum Scope<'v> {
    /// This gateway alone, by its counters at a moment.
    Gateway(&'v Metrics, Timestamp),
    /// All gateways of the fleet.
    Fleet(&'v FleetView),
}

impl Scope<'_> {
    /// The subjects of a limit that sent requests within the period, in no order.
    pub fn subjects(self, limit: &str, period: Period) -> Vec<CountedSubject> {
        match self {
            Self::Gateway(metrics, now) => {
                let own = limit_figures(metrics, limit, true, now);
                merged(&[(&own, true)], period, true)
            }
            Self::Fleet(fleet) => fleet.subjects(limit, period),
        }
    }

    /// Whether other gateways count as well, which may see what is not known here.
    pub fn has_others(self) -> bool {
        matches!(self, Self::Fleet(_))
    }
}

/// Whose figures are shown.
#[derive(Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub struct Counted {
    pub scope: CountedScope,
    /// How many gateways are counted.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub gateways: usize,
    /// How many are listed, and not silent; of those that are not counted, the subjects are not
    /// known.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub known: usize,
    /// Whether the gateway that is asked shares its store with others, by its configuration. False
    /// where it alone is asked about.
    pub is_fleet: bool,
    /// Why the fleet is this gateway alone, or lacks figures of others.
    pub alone: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum CountedScope {
    /// The gateway that is asked.
    Gateway,
    /// All gateways that share its store.
    Fleet,
}

impl CountedScope {
    /// The scope of this name.
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "gateway" => Some(Self::Gateway),
            "fleet" => Some(Self::Fleet),
            _ => None,
        }
    }
}

/// Whose figures are counted in an answer about this gateway, or about the fleet.
pub fn counted<'v>(
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
                is_fleet: fleet.is_fleet(),
                alone: fleet.alone.as_ref().map(Solitude::why),
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
