//! What Weir tells its operators: metrics, events and logs.
//!
//! An event is a struct that logs and counts at once, so that neither is forgotten where something
//! happens. Metric names live in [`names`]; no subject (an address, an account) is ever a label.

mod access_log;
mod events;
#[cfg(feature = "gateway")]
mod logging;
mod metrics;
pub mod names;
mod outcome;
#[cfg(test)]
mod tests;

pub use access_log::{
    ACCESS_TARGET, LoggedHeaders, RequestFinished, SentResponse, Strictest, UpstreamResponse,
    is_logged,
};
pub use events::{
    AcceptFailed, BanBegun, BanLifted, BanSet, BucketRefunded, BucketReset, Drained, Draining,
    HandshakeFailed, ReloadFailed, Reloaded, Started, StoreClockMeasured, StoreClockUnknown,
    StoreFlapped, StoreReachable, StoreUnreachable, Unchanged,
};
#[cfg(feature = "gateway")]
pub use logging::{LogError, LogFormat, LogGuard, LogSettings, install};
pub use metrics::{
    BanMetrics, Bans, GaugeGuard, Handshake, LimitMetrics, Metrics, PageFormat, RouteMetrics,
    ServerMetrics, Settled, StoreCallMetrics,
};
pub use outcome::{Disposition, Traffic, Tunnel, UpstreamFailed, UpstreamOutcome};
