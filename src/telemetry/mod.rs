//! What Weir tells its operators: metrics, events and logs.
//!
//! An event is a struct that logs and counts at once, so that neither is forgotten where something
//! happens. Metric names live in [`names`]; no subject (an address, an account) is ever a label.

mod access_log;
mod bans;
mod events;
mod handles;
mod latency;
#[cfg(feature = "gateway")]
mod logging;
mod metrics;
pub mod names;
mod openmetrics;
mod outcome;
#[cfg(test)]
mod tests;

pub use access_log::{
    ACCESS_TARGET, LoggedHeaders, RequestFinished, SentResponse, Strictest, UpstreamResponse,
    is_logged,
};
pub use bans::{BanBegun, BanLifted, BanMetrics, BanSet, Bans};
pub use events::{
    AcceptFailed, BucketRefunded, BucketReset, Drained, Draining, ReloadFailed, Reloaded, Started,
    StoreClockMeasured, StoreClockUnknown, StoreFlapped, StoreReachable, StoreUnreachable,
    Unchanged,
};
pub use handles::{
    GaugeGuard, Handshake, HandshakeFailed, LimitMetrics, RouteMetrics, ServerMetrics, Settled,
    StoreCallMetrics,
};
#[cfg(feature = "gateway")]
pub use logging::{LogError, LogFormat, LogGuard, LogSettings, install};
pub use metrics::Metrics;
pub use openmetrics::PageFormat;
pub use outcome::{Disposition, Traffic, Tunnel, UpstreamFailed, UpstreamOutcome};
