//! What a request holds of the limits on requests in flight.

use std::sync::Arc;

use smallvec::SmallVec;
use weir_store::LeaseGuard;
use weir_telemetry::GaugeGuard;

/// A request's leases of the limits on requests in flight, until the last clone of this is dropped.
///
/// The layer puts it into the extensions of the request and into the body of the response. What
/// goes on working for a request when its response has been sent, such as a connection that was
/// upgraded, holds on to it.
#[derive(Clone, Debug)]
pub struct InFlight(#[expect(dead_code, reason = "it is only held")] Arc<CountedLeases>);

#[derive(Debug)]
struct CountedLeases {
    _guard: LeaseGuard,
    _gauges: SmallVec<[GaugeGuard; 1]>,
}

impl InFlight {
    pub(super) fn new(guard: LeaseGuard, gauges: SmallVec<[GaugeGuard; 1]>) -> Self {
        Self(Arc::new(CountedLeases {
            _guard: guard,
            _gauges: gauges,
        }))
    }
}
