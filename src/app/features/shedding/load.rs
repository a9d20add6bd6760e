//! What a running gateway knows of its load, for the explanation of a request that would come now.

use weir_limit::ShedLevel;
use weir_telemetry::ConcurrencySample;

use crate::app::upstreams::ActiveUpstream;

/// How much a running gateway has to do.
pub(in crate::app) struct Load {
    /// By upstream; none where its requests in flight are not limited.
    pub(super) upstreams: Vec<Option<ConcurrencySample>>,
    /// How much each worker sheds, where that is measured.
    pub(super) workers: Vec<ShedLevel>,
}

impl Load {
    /// The load of these upstreams, which are in the order of the settings, and of the workers.
    pub(in crate::app) fn new(upstreams: &[ActiveUpstream], workers: Vec<ShedLevel>) -> Self {
        let upstreams = upstreams.iter();
        Self {
            upstreams: upstreams.map(ActiveUpstream::limit_sample).collect(),
            workers,
        }
    }
}
