//! Changes by operators through the admin API, but for bans, which log their own: a line for each,
//! with the operator's name (`by`). Possible secrets in subjects and keys are hashed.

use tracing::info;

/// The target of the lines about what operators change through the admin API.
pub const AUDIT_TARGET: &str = "weir::audit";

/// An operator made a bucket full.
pub fn bucket_reset(by: &str, limit: &str, key: &str) {
    info!(target: AUDIT_TARGET, by, limit, key, "bucket reset");
}

/// An operator gave back units to a bucket; `cost` may be more than were owed.
pub fn bucket_refunded(by: &str, limit: &str, key: &str, cost: u64) {
    info!(target: AUDIT_TARGET, by, limit, key, cost, "bucket refunded");
}

/// An operator set the level of the log, or restored that of the configuration. After `until` the
/// configured one holds again.
pub fn log_level_set(by: &str, level: &str, until: Option<&str>) {
    info!(target: AUDIT_TARGET, by, level, until, "log level set");
}

/// An operator set an override, with these parameters as JSON, for an id as they wrote it.
pub fn override_set(by: &str, limit: &str, id: &str, parameters: &str) {
    info!(target: AUDIT_TARGET, by, limit, id, parameters, "override set");
}

/// An operator deleted an override.
pub fn override_deleted(by: &str, limit: &str, id: &str) {
    info!(target: AUDIT_TARGET, by, limit, id, "override deleted");
}
