//! What a running gateway knows of its load, for the explanation of a request that would come now.

use std::collections::HashMap;
use std::sync::Arc;

use weir_limit::ShedLevel;
use weir_telemetry::ConcurrencySample;

use crate::app::upstreams::ActiveUpstreams;

/// How much a running gateway has to do.
pub(in crate::app) struct Load {
    /// By the names of the upstreams whose requests in flight are limited.
    pub(super) upstreams: HashMap<Arc<str>, ConcurrencySample>,
    /// How much each worker sheds, where that is measured.
    pub(super) workers: Vec<ShedLevel>,
}

impl Load {
    /// The load of these upstreams and of the workers.
    pub(in crate::app) fn new(upstreams: &ActiveUpstreams, workers: Vec<ShedLevel>) -> Self {
        Self {
            upstreams: upstreams.limit_samples().collect(),
            workers,
        }
    }
}
