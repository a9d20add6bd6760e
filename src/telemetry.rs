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

#[cfg(feature = "otlp")]
pub(crate) use weir_telemetry::TracerSettings;
#[cfg(feature = "internals")]
pub(crate) use weir_telemetry::log_level;
pub(crate) use weir_telemetry::{
    AcceptFailed, AcmeMetrics, BanBegun, BanLifted, BanSet, BucketRefunded, BucketReset,
    CertificateObtained, CertificateUnavailable, Chain, Drained, Draining, GaugeGuard, Handshake,
    HandshakeFailed, JwksExpired, JwksFetched, JwksMetrics, JwksUnavailable, LastWarning,
    LogLevelSet, LoggedHeaders, OverrideDeleted, OverrideSet, ProxyHeader, ProxyHeaderRefused,
    ReloadFailed, Reloaded, RequestFinished, SentResponse, Settled, Started, StoreCallMetrics,
    StoreClockMeasured, StoreClockStepped, StoreClockUnknown, StoreFlapped, StoreNodeLeft,
    StoreReachable, StoreStillUnreachable, StoreUnreachable, Strictest, Traffic, Tunnel, Unchanged,
    UntrustedForwarder, UpstreamFailed, UpstreamOutcome, UpstreamResponse, UpstreamSample,
    UpstreamServerSample, is_logged,
};
#[cfg(feature = "gateway")]
pub(crate) use weir_telemetry::{
    ActiveTrace, DecisionSample, LatencyCounts, LevelInForce, LogError, LogFormat, LogLevel,
    LogSettings, RouteErrors, RouteSample, Tail, TailFilter, Template, Tracer, Watch, install,
};
pub use weir_telemetry::{
    BanMetrics, Bans, Disposition, LimitMetrics, Metrics, PageFormat, Period, RequestId,
    RouteMetrics, ServerMetrics, SubjectActivity,
};
