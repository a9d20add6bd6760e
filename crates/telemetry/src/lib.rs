//! Metrics, events and logs, for operators.
//!
//! An event is a function that logs and counts at once, so that neither is forgotten where
//! something happens. The names of metrics are listed in `names`, and each metric is described where
//! it is counted; no subject (an address, an account) is ever a label. The crate `weir` has what is
//! promised of it to users, as `weir::telemetry`; what else is public here serves Weir's other
//! crates.

#![forbid(unsafe_code)]
// A limiter alone leaves out what calls some of the code that it shares with the gateway.
#![cfg_attr(not(feature = "gateway"), allow(dead_code, unused_imports))]

mod access_log;
pub mod audit;
pub mod events;
mod log_field;
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
mod printable;
mod striped;
mod tail;
mod top_subjects;

pub use access_log::{
    FIELDS as ACCESS_LOG_FIELDS, LoggedHeaders, RequestFinished, SentResponse, UpstreamResponse,
    is_logged,
};
pub use log_field::{LogField, LogValue, Notes, StepField};
#[cfg(feature = "internals")]
pub use logging::log_level;
#[cfg(feature = "gateway")]
pub use logging::{
    LevelInForce, LogError, LogFormat, LogLevel, LogSettings, Template, TemplateError, install,
};
pub use metrics::{
    BanMetrics, Bans, ConcurrencySample, DecisionSample, Family, Gauge, GaugeGuard, Handshake,
    LatencyCounts, LimitMetrics, Metrics, Name, OverloadMetrics, OverloadShed, PageFormat,
    ProxyHeader, RefusalMetrics, Refusals, RouteErrors, RouteMetrics, RouteSample, ServerMetrics,
    Settled, ShedSample, StoreCallMetrics, UpstreamSample, UpstreamServerSample,
};
#[cfg(feature = "otlp")]
pub use otlp::TracerSettings;
pub use otlp::{ActiveTrace, Tracer};
pub use outcome::{Disposition, ListenerKind, RequestId, Shed, Strictest, Verdict};
pub use outcome::{Traffic, Tunnel, UpstreamFailed, UpstreamOutcome};
pub use printable::{is_deceptive, printable, printable_json, printable_lines};
pub use striped::{Counter, StripedGauge};
pub use tail::{Tail, TailFilter, Watch};
pub use top_subjects::{Period, SubjectActivity};
