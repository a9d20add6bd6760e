//! What operators see: metrics, events and logs.
//!
//! An event is a function that logs and counts at once, so that neither is forgotten where
//! something happens. Metric names live in `names`; no subject (an address, an account) is ever a
//! label.
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

pub use weir_telemetry::{
    BanMetrics, Bans, Disposition, LimitMetrics, ListenerKind, Metrics, PageFormat, Period,
    RequestId, RouteMetrics, ServerMetrics, SubjectActivity,
};
