//! The failures of the last minute, as differences of counters, so that they cost requests nothing.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::overload::ShedRequests;
use super::{Metrics, Refusals, RouteSample};
use crate::Disposition;

/// Between samples of counters.
const INTERVAL: Duration = Duration::from_secs(5);

/// Samples that are kept; the first of them is a minute old.
const REMEMBERED: usize = 13;

/// Counters of up to a minute ago, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Remembered(Mutex<VecDeque<(Instant, Counts)>>);

#[derive(Clone, Debug, Default)]
struct Counts {
    routes: HashMap<Arc<str>, RouteErrors>,
    failed_store_calls: u64,
    shed: ShedRequests,
    refused: u64,
}

/// Requests that limits, bans and lists let through, those that failed, and those that were held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteErrors {
    /// All that were let through.
    pub requests: u64,
    /// Those of them that ended with a status of 500 and above.
    pub failed: u64,
    /// Others that were denied, or whose client was banned or blocked.
    pub denied: u64,
}

/// The failures of the last minute, or since the start if that is later.
#[derive(Debug)]
pub struct Failures {
    /// By route, in the order of their names.
    pub routes: Vec<(Arc<str>, RouteErrors)>,
    /// Calls of the store.
    pub failed_store_calls: u64,
    /// Requests that were shed.
    pub shed: ShedRequests,
    /// Those who are refused now, and what was refused of them.
    pub refusals: Refusals,
}

impl Metrics {
    /// Remembers the counters of now, if the last time is long enough ago. Nobody asks for them
    /// where subjects are not tracked, as there is no admin listener.
    pub fn remember(&self) {
        if self.subjects.lock().is_none() {
            return;
        }
        let now = Instant::now();
        let mut remembered = self.remembered.0.lock();
        let last = remembered.back().map(|(at, _)| *at);
        if last.is_some_and(|last| now - last < INTERVAL) {
            return;
        }
        // All that was counted before the first time is of the last minute as well.
        let counts = match last {
            Some(_) => self.counts(),
            None => Counts::default(),
        };
        remembered.push_back((now, counts));
        if remembered.len() > REMEMBERED {
            remembered.pop_front();
        }
    }

    /// The failures of the last minute.
    pub fn failures(&self) -> Failures {
        let remembered = self.remembered.0.lock();
        let before = remembered.front().map(|(_, counts)| counts);
        let now = self.counts();
        let routes = now.routes.into_iter().map(|(name, now)| {
            let before = before.and_then(|before| before.routes.get(&name)).copied();
            let before = before.unwrap_or_default();
            let since = RouteErrors {
                requests: now.requests - before.requests,
                failed: now.failed - before.failed,
                denied: now.denied - before.denied,
            };
            (name, since)
        });
        let mut routes: Vec<_> = routes.collect();
        routes.sort_by(|(one, _), (other, _)| one.cmp(other));
        let failed_before = before.map_or(0, |before| before.failed_store_calls);
        let shed = match before {
            Some(before) => now.shed.since(&before.shed),
            None => now.shed,
        };
        let refused_before = before.map_or(0, |before| before.refused);
        Failures {
            routes,
            failed_store_calls: now.failed_store_calls - failed_before,
            shed,
            refusals: Refusals {
                connections: now.refused - refused_before,
                ..self.refusals.sample()
            },
        }
    }

    fn counts(&self) -> Counts {
        let routes = self.route_samples().into_iter();
        Counts {
            routes: routes
                .map(|(name, sample)| (name, (&sample).into()))
                .collect(),
            failed_store_calls: self.failed_store_calls.get(),
            shed: self.overload.sample(),
            refused: self.refusals.sample().connections,
        }
    }
}

impl From<&RouteSample> for RouteErrors {
    fn from(sample: &RouteSample) -> Self {
        let counts = sample.decisions.iter().zip(sample.server_errors);
        let decided = Disposition::ALL.into_iter().zip(counts);
        decided.fold(Self::default(), |sum, (decision, (requests, failed))| {
            if decision.is_shed() {
                return sum;
            }
            match decision.lets_through() {
                true => Self {
                    requests: sum.requests + requests,
                    failed: sum.failed + failed,
                    ..sum
                },
                false => Self {
                    denied: sum.denied + requests,
                    ..sum
                },
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use tokio::time::advance;

    use super::*;

    #[test]
    fn no_route_is_blamed_for_what_the_gateway_itself_sheds() {
        let metrics = Metrics::new();
        let route = metrics.route("all");
        let shed = StatusCode::SERVICE_UNAVAILABLE;
        route.finished(shed, Disposition::Shed, Duration::ZERO);
        assert_eq!(metrics.failures().routes[0].1, RouteErrors::default());
        let of_routes = || {
            let failures = metrics.failures();
            let of_routes = failures.shed.by_upstreams.into_iter();
            let named = of_routes.map(|(name, count)| (name.to_string(), count));
            named.collect::<Vec<_>>()
        };
        assert_eq!(of_routes(), []);
        metrics.overload().of_route("all").inc();
        assert_eq!(of_routes(), [("all".to_owned(), 1)]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_failed_is_told_for_a_minute_and_no_longer() {
        let metrics = Metrics::new();
        metrics.track_subjects();
        let route = metrics.route("all");
        let store = metrics.store_call("decide", &["deadline"]);
        let fail = |decision| {
            route.finished(StatusCode::BAD_GATEWAY, decision, Duration::ZERO);
            store.called(Duration::ZERO, Some("deadline"));
        };
        let failed = || {
            let failures = metrics.failures();
            let routes = failures.routes.iter();
            let failed: u64 = routes.map(|(_, errors)| errors.failed).sum();
            (failed, failures.failed_store_calls)
        };
        fail(Disposition::WouldDeny);
        assert_eq!(failed(), (1, 1));
        metrics.remember();
        // The response of a limit is no failure of the app.
        fail(Disposition::Denied);
        for seconds in 0..60 {
            assert_eq!(failed(), (1, 2), "after {seconds} s");
            advance(Duration::from_secs(1)).await;
            metrics.remember();
        }
        for _ in 0..5 {
            advance(Duration::from_secs(1)).await;
            metrics.remember();
        }
        assert_eq!(failed(), (0, 0));
    }
}
