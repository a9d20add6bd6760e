//! What operators see: metrics, events and logs.
//!
//! An event is a struct that logs and counts at once, so that neither is forgotten where something
//! happens. Metric names live in `names`; no subject (an address, an account) is ever a label.
//!
//! ```
//! use weir::telemetry::{Metrics, PageFormat};
//!
//! let metrics = Metrics::new();
//! metrics.limit("SearchesPerAddress"); // is on the page from now on, at 0
//! let page = metrics.page(PageFormat::Text)?;
//! assert!(page.contains(r#"weir_decisions_total{limit="SearchesPerAddress""#));
//! # Ok::<(), std::fmt::Error>(())
//! ```

mod access_log;
mod audit;
mod events;
#[cfg(feature = "gateway")]
mod logging;
mod metrics;
mod names;
#[cfg(feature = "otlp")]
mod otlp;
#[cfg(not(feature = "otlp"))]
#[path = "no_otlp.rs"]
mod otlp;
mod outcome;
#[cfg(feature = "gateway")]
mod tail;
#[cfg(test)]
mod tests;
mod top_subjects;

pub(crate) use access_log::{
    LoggedHeaders, RequestFinished, SentResponse, Strictest, UpstreamResponse, is_logged,
};
pub(crate) use audit::{
    BanLifted, BanSet, BucketRefunded, BucketReset, LogLevelSet, OverrideDeleted, OverrideSet,
};
pub(crate) use events::{
    AcceptFailed, BanBegun, CertificateObtained, CertificateUnavailable, Chain, Drained, Draining,
    HandshakeFailed, JwksExpired, JwksFetched, JwksUnavailable, LastWarning, ProxyHeaderRefused,
    ReloadFailed, Reloaded, Started, StoreClockMeasured, StoreClockStepped, StoreClockUnknown,
    StoreFlapped, StoreNodeLeft, StoreReachable, StoreStillUnreachable, StoreUnreachable,
    Unchanged, UntrustedForwarder,
};
#[cfg(feature = "internals")]
pub(crate) use logging::log_level;
#[cfg(feature = "gateway")]
pub(crate) use logging::{
    LevelInForce, LogError, LogFormat, LogLevel, LogSettings, Template, install,
};
pub(crate) use metrics::{
    AcmeMetrics, GaugeGuard, Handshake, JwksMetrics, ProxyHeader, Settled, StoreCallMetrics,
    UpstreamSample, UpstreamServerSample,
};
pub use metrics::{
    BanMetrics, Bans, LimitMetrics, Metrics, PageFormat, RouteMetrics, ServerMetrics,
};
#[cfg(feature = "gateway")]
pub(crate) use metrics::{DecisionSample, LatencyCounts, RouteErrors, RouteSample};
#[cfg(feature = "otlp")]
pub(crate) use otlp::TracerSettings;
#[cfg(feature = "gateway")]
pub(crate) use otlp::{ActiveTrace, Tracer};
pub use outcome::{Disposition, RequestId};
pub(crate) use outcome::{Traffic, Tunnel, UpstreamFailed, UpstreamOutcome};
#[cfg(feature = "gateway")]
pub(crate) use tail::{Tail, TailFilter, Watch};
pub use top_subjects::{Period, SubjectActivity};
