//! What Weir tells its operators: metrics, events and logs.
//!
//! An event is a struct that logs and counts at once, so that neither is forgotten where something
//! happens. Metric names live in [`names`]; no subject (an address, an account) is ever a label.

mod access;
mod disposition;
#[cfg(test)]
mod documented;
mod events;
mod handles;
mod handshakes;
mod kept_out;
mod latency;
#[cfg(feature = "gateway")]
mod log_format;
#[cfg(feature = "gateway")]
mod logging;
mod metrics;
pub mod names;
mod page;
mod upstreamed;

pub use access::{
    ACCESS_TARGET, Answer, RequestFinished, Said, Strictest, UpstreamAnswer, is_logged,
};
pub use disposition::Disposition;
pub use events::{
    AcceptFailed, BucketRefunded, BucketReset, Drained, Draining, ReloadFailed, Reloaded, Started,
    StoreClockMeasured, StoreClockUnknown, StoreFlapped, StoreReachable, StoreUnreachable,
    Unchanged,
};
pub use handles::{
    GaugeGuard, LimitMetrics, RouteMetrics, ServerMetrics, Settled, StoreCallMetrics,
};
pub use handshakes::{Handshake, NoHandshake};
pub use kept_out::{BanBegun, BanLifted, BanMetrics, BanSet, KeptOut};
#[cfg(feature = "gateway")]
pub use logging::{LogError, LogFormat, LogGuard, LogSettings, install};
pub use metrics::Metrics;
pub use page::PageFormat;
pub use upstreamed::{Traffic, Tunnel, UpstreamFailed, UpstreamOutcome};
