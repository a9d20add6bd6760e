//! A ban as it is configured: whom it bans, for what, and what the banned get.

use std::sync::Arc;

use crate::middleware::Treatment;
use crate::rules::{Ban, Enforcement, PathSet, StatusSet};

/// A ban, what counts as a strike, and what the banned get. It holds on every route, and for
/// requests without one.
#[derive(Clone, Debug)]
pub struct BanPolicy {
    /// Whom it bans, after how many strikes, and for how long.
    pub ban: Arc<Ban>,
    /// The limits whose denials are strikes.
    pub limits: Vec<Arc<str>>,
    /// The statuses of responses that are strikes.
    pub statuses: StatusSet,
    /// The paths whose requests are strikes.
    pub paths: PathSet,
    /// What the banned get.
    pub treatment: Treatment,
    /// Whom of the banned it is acted upon.
    pub enforcement: Enforcement,
}

impl BanPolicy {
    /// Whether it is a strike that these limits deny a request.
    pub(super) fn strikes_by<'l>(&self, mut limits: impl Iterator<Item = &'l str>) -> bool {
        limits.any(|limit| self.limits.iter().any(|it| **it == *limit))
    }
}
