//! `weir check`: every error and everything doubtful, or what was loaded.

use std::path::Path;

use crate::config::{self, Diagnostics, Settings, StoreSettings, counted};

/// What is loaded from `path`, or all that is wrong with it.
pub(super) fn check(path: &Path) -> Result<String, Diagnostics> {
    let settings = config::check(path)?;
    let loaded = format!("{}: {}", path.display(), summary(&settings));
    if settings.warnings.is_empty() {
        Ok(format!("{loaded}; configuration OK"))
    } else {
        Ok(format!("{}\n{loaded}", settings.warnings))
    }
}

/// What was loaded, in a line.
fn summary(settings: &Settings) -> String {
    let limits = settings.limits();
    let overrides = limits.iter().map(|limit| limit.overrides().count()).sum();
    let store = match &settings.process.store {
        StoreSettings::Memory(_) => "the memory store".to_owned(),
        StoreSettings::Redis(store) => format!("Redis at {}", store.redis.address()),
    };
    format!(
        "{}, {}, {} in use with {}, {store}",
        counted(settings.routes.len(), "route"),
        counted(settings.upstreams.len(), "upstream"),
        counted(limits.len(), "limit"),
        counted(overrides, "overridden id"),
    )
}
