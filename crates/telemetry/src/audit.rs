//! What operators change through the admin API: a line of the log for each change, with who did.

use std::time::Duration;

use tracing::info;

/// The target of the lines about what operators change through the admin API.
pub(super) const AUDIT_TARGET: &str = "weir::audit";

/// An operator made a bucket full.
#[derive(Clone, Copy, Debug)]
pub struct BucketReset<'a> {
    /// The limit's name.
    pub limit: &'a str,
    /// The bucket's key, in which what may be a secret is hashed.
    pub key: &'a str,
    /// Who did.
    pub by: &'a str,
}

/// An operator gave units back to a bucket.
#[derive(Clone, Copy, Debug)]
pub struct BucketRefunded<'a> {
    /// The limit's name.
    pub limit: &'a str,
    /// The bucket's key, in which what may be a secret is hashed.
    pub key: &'a str,
    /// How many units, of which only those were given back that were owed.
    pub cost: u64,
    /// Who did.
    pub by: &'a str,
}

/// An operator banned a subject.
#[derive(Clone, Copy, Debug)]
pub struct BanSet<'a> {
    /// The ban's name.
    pub ban: &'a str,
    /// The subject, in which what may be a secret is hashed.
    pub subject: &'a str,
    /// For how long; none is for good.
    pub length: Option<Duration>,
    /// Who did.
    pub by: &'a str,
}

/// An operator lifted a ban.
#[derive(Clone, Copy, Debug)]
pub struct BanLifted<'a> {
    /// The ban's name.
    pub ban: &'a str,
    /// The subject, in which what may be a secret is hashed.
    pub subject: &'a str,
    /// Who did.
    pub by: &'a str,
}

/// An operator set the level of the log, or restored that of the configuration.
#[derive(Clone, Copy, Debug)]
pub struct LogLevelSet<'a> {
    /// The level.
    pub level: &'a str,
    /// When the configured one holds again.
    pub until: Option<&'a str>,
    /// Who did.
    pub by: &'a str,
}

/// An operator set an override.
#[derive(Clone, Copy, Debug)]
pub struct OverrideSet<'a> {
    /// The limit's name.
    pub limit: &'a str,
    /// Whom it is for, as the operator wrote it.
    pub id: &'a str,
    /// Its parameters as JSON.
    pub parameters: &'a str,
    /// Who did.
    pub by: &'a str,
}

/// An operator deleted an override.
#[derive(Clone, Copy, Debug)]
pub struct OverrideDeleted<'a> {
    /// The limit's name.
    pub limit: &'a str,
    /// Whom it was for, as the operator wrote it.
    pub id: &'a str,
    /// Who did.
    pub by: &'a str,
}

impl BucketReset<'_> {
    /// Logs it.
    pub fn emit(&self) {
        let Self { limit, key, by } = *self;
        info!(target: AUDIT_TARGET, by, limit, key, "bucket reset");
    }
}

impl BucketRefunded<'_> {
    /// Logs it.
    pub fn emit(&self) {
        let Self {
            limit,
            key,
            cost,
            by,
        } = *self;
        info!(target: AUDIT_TARGET, by, limit, key, cost, "bucket refunded");
    }
}

impl BanSet<'_> {
    /// Logs it.
    pub fn emit(&self) {
        let Self {
            ban, subject, by, ..
        } = *self;
        let duration_s = self.length.map(|length| length.as_secs_f64());
        info!(target: AUDIT_TARGET, by, ban, subject, duration_s, "ban set");
    }
}

impl BanLifted<'_> {
    /// Logs it.
    pub fn emit(&self) {
        let Self { ban, subject, by } = *self;
        info!(target: AUDIT_TARGET, by, ban, subject, "ban lifted");
    }
}

impl LogLevelSet<'_> {
    /// Logs it.
    pub fn emit(&self) {
        let Self { level, until, by } = *self;
        info!(target: AUDIT_TARGET, by, level, until, "log level set");
    }
}

impl OverrideSet<'_> {
    /// Logs it.
    pub fn emit(&self) {
        let Self {
            limit,
            id,
            parameters,
            by,
        } = *self;
        info!(target: AUDIT_TARGET, by, limit, id, parameters, "override set");
    }
}

impl OverrideDeleted<'_> {
    /// Logs it.
    pub fn emit(&self) {
        let Self { limit, id, by } = *self;
        info!(target: AUDIT_TARGET, by, limit, id, "override deleted");
    }
}
