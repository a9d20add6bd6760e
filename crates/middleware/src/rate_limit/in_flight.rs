//! What a request holds of the limits on requests in flight.

use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;
use weir_rules::Limit;
use weir_store::LeaseGuard;
use weir_telemetry::{Family, Gauge, GaugeGuard, Metrics, Name};

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

/// Counts the requests in flight that hold a place of a limit. Most limits have none, and are not on
/// the page.
#[derive(Clone, Debug)]
pub(super) struct PlaceCounter {
    limit: Arc<str>,
    all: Family<Gauge>,
    /// There where it was expected, or from the first request on.
    own: Arc<OnceLock<Gauge>>,
}

impl PlaceCounter {
    /// The counter of a limit, at zero if one of its quotas bounds the requests in flight.
    pub(super) fn of(limit: &Limit, metrics: &Metrics) -> Self {
        let all = metrics.gauges(Name::new(
            "weir_leases_held",
            "Requests that hold a place of a limit on requests in flight, by limit",
        ));
        let counter = Self {
            limit: limit.name().into(),
            all,
            own: Arc::default(),
        };
        let of_overrides = limit.overrides().map(|overridden| overridden.quota);
        let mut quotas = limit.quota().into_iter().chain(of_overrides);
        if quotas.any(|quota| quota.is_in_flight()) {
            counter.gauge();
        }
        counter
    }

    /// Counts a request, as long as the guard lives.
    pub(super) fn taken(&self) -> GaugeGuard {
        GaugeGuard::new(self.gauge())
    }

    fn gauge(&self) -> &Gauge {
        let gauge = || self.all.member([("limit", &*self.limit)]);
        self.own.get_or_init(gauge)
    }
}

#[cfg(test)]
mod tests {
    use weir_limit::Quota;
    use weir_rules::{HashKey, KeySource, Missing};
    use weir_telemetry::PageFormat;

    use super::*;

    /// A gauge that is born with its first event looks to a query like one that never grew.
    #[test]
    fn no_limit_on_requests_in_flight_is_missing_from_the_page_before_the_first() {
        let metrics = Metrics::new();
        let held = || {
            let page = metrics.page(PageFormat::Text).unwrap();
            let held = page.lines().filter(|it| it.starts_with("weir_leases_held"));
            held.map(str::to_owned).collect::<Vec<_>>()
        };
        let of = |name, quota| {
            let key = HashKey::random();
            let limit = Limit::new(name, vec![KeySource::Global], quota, Missing::Skip, key);
            PlaceCounter::of(&limit.unwrap(), &metrics)
        };
        let rare = of("PerMinute", Quota::per_minute(1).try_into().unwrap());
        assert_eq!(held(), [""; 0]);
        of("AtOnce", Quota::in_flight(1).unwrap());
        assert_eq!(held(), ["weir_leases_held{limit=\"AtOnce\"} 0"]);
        let _taken = rare.taken();
        assert!(held().contains(&"weir_leases_held{limit=\"PerMinute\"} 1".to_owned()));
    }
}
