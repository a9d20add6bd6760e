//! What a gateway shows to those who run it: the dashboard, what was counted, who sends most, what
//! needs attention, and the gateways of a fleet.
//!
//! This crate sees samples: counts of `weir-telemetry`, limits, and plain structs that the gateway
//! fills. It knows no layer, no store and no configuration, and changes nothing.

#![forbid(unsafe_code)]

pub mod dashboard;
pub mod findings;
pub mod fleet;
pub mod history;
pub mod query;
pub mod scope;
pub mod subjects;
pub mod tail;
pub mod top;

/// A number of so many parts in one, rounded down.
pub fn rounded_down(number: f64, parts: f64) -> f64 {
    // A sum of rates may be a little below the number that it stands for.
    (number * parts + 1e-6).floor() / parts
}
