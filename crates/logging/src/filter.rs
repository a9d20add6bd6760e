//! The filter of events, and a handle that changes it while the process runs.
//!
//! tracing caches for each callsite whether its events are wanted at all, so that a filter that can
//! be changed costs an event nothing: a change clears the cache. `tracing_subscriber::reload` would
//! take a lock that all workers share twice for each line.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Metadata, Subscriber, callsite};
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{EnvFilter, Layer};

use super::{LogError, LogSettings};

/// The filter in force, as a layer.
#[derive(Clone, Debug)]
pub(super) struct SharedFilter(Arc<ArcSwap<EnvFilter>>);

/// Shows and changes what is logged. Clones change the same.
#[derive(Clone)]
pub struct LogLevel(Arc<Levels>);

struct Levels {
    filter: SharedFilter,
    configured: LogSettings,
    /// The level that an operator has set, and a number that identifies it.
    set: Mutex<(u64, Option<LevelInForce>)>,
}

/// A level that an operator has set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LevelInForce {
    /// The level, as a filter of tracing.
    pub level: String,
    /// When the configured one holds again, in seconds since 1970; none if it stays.
    pub until: Option<u64>,
}

impl LogLevel {
    pub(super) fn new(settings: &LogSettings) -> Result<(Self, SharedFilter), LogError> {
        let filter = SharedFilter(Arc::new(ArcSwap::from_pointee(settings.filter()?)));
        let levels = Levels {
            filter: filter.clone(),
            configured: settings.clone(),
            set: Mutex::default(),
        };
        Ok((Self(Arc::new(levels)), filter))
    }

    /// The level of the configuration.
    pub fn configured(&self) -> &str {
        &self.0.configured.level
    }

    /// The level that was set; none if that of the configuration is in force.
    pub fn in_force(&self) -> Option<LevelInForce> {
        self.0.set.lock().1.clone()
    }

    /// Logs by this level from now on. Returns what [`LogLevel::restore`] takes.
    ///
    /// # Errors
    /// When it is not a filter. Then nothing changes.
    pub fn set(&self, level: LevelInForce) -> Result<u64, LogError> {
        let settings = LogSettings {
            level: level.level.clone(),
            ..self.0.configured.clone()
        };
        settings.check()?;
        let filter = settings.filter()?;
        let mut set = self.0.set.lock();
        set.0 += 1;
        set.1 = Some(level);
        self.0.filter.replace(filter);
        Ok(set.0)
    }

    /// Logs by the configured level again, unless another was set after the one that is `meant`.
    pub fn restore(&self, meant: Option<u64>) {
        let mut set = self.0.set.lock();
        if meant.is_some_and(|meant| meant != set.0) {
            return;
        }
        set.1 = None;
        // The configured one was found to be a filter when the process began.
        if let Ok(filter) = self.0.configured.filter() {
            self.0.filter.replace(filter);
        }
    }
}

impl fmt::Debug for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LogLevel").field(&self.in_force()).finish()
    }
}

impl SharedFilter {
    fn replace(&self, filter: EnvFilter) {
        self.0.store(Arc::new(filter));
        callsite::rebuild_interest_cache();
    }
}

impl<S: Subscriber + for<'s> LookupSpan<'s>> Layer<S> for SharedFilter {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        Layer::<S>::register_callsite(&**self.0.load(), metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        self.0.load().max_level_hint()
    }

    fn enabled(&self, metadata: &Metadata<'_>, context: Context<'_, S>) -> bool {
        self.0.load().enabled(metadata, context)
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        self.0.load().on_new_span(attributes, id, context);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        self.0.load().on_record(id, values, context);
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        self.0.load().on_enter(id, context);
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        self.0.load().on_exit(id, context);
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        self.0.load().on_close(id, context);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(level: &str) -> LevelInForce {
        LevelInForce {
            level: level.to_owned(),
            until: None,
        }
    }

    /// The level beyond which nothing is logged.
    fn greatest(filter: &SharedFilter) -> Option<LevelFilter> {
        filter.0.load().max_level_hint()
    }

    #[test]
    fn a_level_holds_until_it_is_restored_and_no_longer() {
        let settings = LogSettings {
            access: false,
            ..LogSettings::default()
        };
        let (levels, filter) = LogLevel::new(&settings).unwrap();
        assert_eq!(greatest(&filter), Some(LevelFilter::INFO));
        let first = levels.set(level("debug")).unwrap();
        assert_eq!(greatest(&filter), Some(LevelFilter::DEBUG));
        assert_eq!(levels.in_force(), Some(level("debug")));
        levels.set(level("warn,weir::proxy=trace")).unwrap();
        // The time of the first is over, and the second stays.
        levels.restore(Some(first));
        assert_eq!(greatest(&filter), Some(LevelFilter::TRACE));
        levels.restore(None);
        assert_eq!(
            (greatest(&filter), levels.in_force()),
            (Some(LevelFilter::INFO), None)
        );
    }

    #[test]
    fn what_is_not_a_level_changes_nothing() {
        let (levels, _) = LogLevel::new(&LogSettings::default()).unwrap();
        for wrong in ["loud", "weir=loud", "info,verbose"] {
            assert!(levels.set(level(wrong)).is_err(), "{wrong}");
        }
        assert_eq!(levels.in_force(), None);
    }
}
