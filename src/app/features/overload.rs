//! Watches how late the event loop of each worker is, and makes the worker shed requests while it
//! is too late.
//!
//! A timer that is late by the length of the event loop's queue tells how long each request waits
//! there. Connections are accepted ahead of that queue, so a backlog of them is seen in it as well.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use weir_config::Settings;
use weir_console::findings::{GatewayFinding, GatewayFindingKind as Kind};
use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{OverloadControl, Priority, ShedLevel};
use weir_middleware::{OverloadSettings, set_shed_level};
use weir_rules::Enforcement;
use weir_telemetry::{Failures, Metrics, OverloadMetrics};
use weir_yaml::pluralized;

use crate::app::wording::was_or_were;

/// The target of its log lines, as filters name it.
const TARGET: &str = "weir::app::overload";

/// Between two looks at the event loop.
const PROBE_INTERVAL: Duration = Duration::from_millis(10);

/// Upper bound on routes that findings name: those of which the most was shed.
const MAX_ROUTES: usize = 4;

/// For how long nothing must be shed until an overload is over.
const CALM: Duration = Duration::from_secs(10);

/// The overload of a process, for all its workers.
#[derive(Clone)]
pub(in crate::app) struct Overload {
    metrics: OverloadMetrics,
    logged: Arc<Mutex<Option<Logged>>>,
    /// Of the workers that are watched.
    levels: Arc<Mutex<BTreeMap<usize, ShedLevel>>>,
}

/// What the log has said of the overload that lasts.
struct Logged {
    /// The highest priority of which some was shed.
    highest: Priority,
    /// Whether that was no dry run.
    enforced: bool,
    /// When something was shed last.
    last: Instant,
}

impl Overload {
    pub(super) fn new(metrics: &Metrics) -> Self {
        Self {
            metrics: metrics.overload(),
            logged: Arc::default(),
            levels: Arc::default(),
        }
    }

    /// How much each worker that is watched sheds.
    pub(in crate::app) fn levels(&self) -> Vec<ShedLevel> {
        self.levels.lock().values().copied().collect()
    }

    /// Watches the worker of this thread whenever the configuration in force says so, whose settings
    /// `settings_of` gets.
    pub(super) async fn follow<C>(
        self,
        worker: usize,
        mut configurations: watch::Receiver<Arc<C>>,
        settings_of: impl Fn(&C) -> &Settings,
    ) -> Infallible {
        let overload_of = |configuration: &C| settings_of(configuration).shedding.overload;
        loop {
            let settings = overload_of(&configurations.borrow_and_update());
            if let Some(settings) = settings {
                self.watch(worker, settings, &mut configurations, &overload_of)
                    .await;
                set_shed_level(ShedLevel::NONE);
                self.levels.lock().remove(&worker);
                self.metrics.worker_delay(worker, None);
                *self.logged.lock() = None;
            } else if configurations.changed().await.is_err() {
                return pending().await;
            }
        }
    }

    /// Watches the worker until a configuration says otherwise.
    async fn watch<C>(
        &self,
        worker: usize,
        mut settings: OverloadSettings,
        configurations: &mut watch::Receiver<Arc<C>>,
        overload_of: impl Fn(&C) -> Option<OverloadSettings>,
    ) {
        let epoch = Instant::now();
        let mut control = OverloadControl::new(settings.max_delay.into(), Timestamp::from_nanos(0));
        loop {
            let due = Instant::now() + PROBE_INTERVAL;
            sleep_until(due).await;
            let (delay, since) = (due.elapsed(), epoch.elapsed());
            let now = Timestamp::from_nanos(Nanos::from(since).get());
            if let Some(delay) = control.observe(delay.into(), now) {
                let delay = Duration::from(delay);
                set_shed_level(control.level());
                self.levels.lock().insert(worker, control.level());
                let seconds = Some(delay.as_secs_f64());
                self.metrics.worker_delay(worker, seconds);
                self.log(worker, control.level(), delay, settings.enforcement);
            }
            if configurations.has_changed().unwrap_or(false) {
                let Some(changed) = overload_of(&configurations.borrow_and_update()) else {
                    return;
                };
                control.set_max_delay(changed.max_delay.into());
                settings = changed;
            }
        }
    }

    /// Logs that an overload begins, that a higher priority is shed, and that it is over.
    fn log(&self, worker: usize, level: ShedLevel, delay: Duration, enforcement: Enforcement) {
        let mut logged = self.logged.lock();
        let now = Instant::now();
        let Some(highest) = level.highest() else {
            if logged
                .as_ref()
                .is_some_and(|logged| now - logged.last >= CALM)
            {
                *logged = None;
                tracing::info!(target: TARGET, "workers keep up again; none sheds requests");
            }
            return;
        };
        let enforced = enforcement > Enforcement::NONE;
        let known = logged.as_ref().filter(|logged| logged.enforced == enforced);
        let known = known.map(|logged| logged.highest);
        *logged = Some(Logged {
            highest: known.map_or(highest, |known| known.max(highest)),
            enforced,
            last: now,
        });
        if known.is_none_or(|known| known < highest) {
            let delay_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
            let priority = highest.as_str();
            tracing::warn!(
                target: TARGET,
                worker,
                delay_ms,
                priority,
                enforced,
                "a worker has more to do than its CPU can handle; requests up to this priority are shed"
            );
        }
    }
}

/// What was shed in the last minute, for the sake of the gateway and of its upstreams.
pub(super) fn findings(failures: &Failures) -> impl Iterator<Item = GatewayFinding> {
    let own = own_overload(failures.shed.by_workers);
    own.into_iter().chain(of_routes(failures))
}

/// Requests that were shed for the sake of the gateway, whatever their routes.
fn own_overload(shed: u64) -> Option<GatewayFinding> {
    let requests = pluralized(usize::try_from(shed).unwrap_or(usize::MAX), "request");
    let text = format!(
        "{requests} in the last minute {} shed by the gateway itself: a worker had more to do than \
         its CPU can handle",
        was_or_were(shed)
    );
    let remedy = "Give the gateway more cores, or add gateways. Look for what takes its CPU: a flood \
                  of connections, TLS handshakes, or other programs on its machine";
    (shed > 0).then(|| GatewayFinding::new(Kind::Overload, text, remedy))
}

/// The routes of whose requests some were shed for the sake of an upstream, those of which the most
/// were shed first.
fn of_routes(failures: &Failures) -> impl Iterator<Item = GatewayFinding> {
    let shed = failures.shed.by_upstreams.iter();
    let shed = shed.map(|(name, shed)| (name, *shed));
    let mut shed: Vec<_> = shed.filter(|(_, shed)| *shed > 0).collect();
    shed.sort_by_key(|(_, shed)| Reverse(*shed));
    let shed = shed.into_iter().take(MAX_ROUTES);
    shed.map(|(name, shed)| {
        let mut routes = failures.routes.iter();
        let others = routes.find(|(of, _)| of == name);
        let others = others.map_or(0, |(_, counts)| counts.requests);
        let text = format!(
            "{shed} of {} requests of route {name} in the last minute {} shed: there were more than can \
             be served",
            others.saturating_add(shed),
            was_or_were(shed)
        );
        let remedy = "Look at the app: is it slower than usual, or is there more to do? Give routes \
                      and clients that matter less a low `priority`, so that they are shed first";
        GatewayFinding::new(Kind::Overload, text, remedy)
    })
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use weir_telemetry::Disposition;

    use super::*;

    #[test]
    fn no_route_is_blamed_for_what_another_one_or_the_gateway_itself_shed() {
        let metrics = Metrics::new();
        let passed = Disposition::Allowed;
        let (shop, search) = (metrics.route("shop"), metrics.route("search"));
        shop.finished(StatusCode::OK, passed, Duration::ZERO);
        search.finished(StatusCode::OK, passed, Duration::ZERO);
        metrics.overload().of_route("search");
        metrics.overload().of_route("shop").inc_by(3);
        let of_worker = metrics.overload().of_priority("low");
        of_worker.count(true);
        of_worker.count(false);
        let failures = metrics.failures();
        let texts: Vec<_> = findings(&failures).map(|finding| finding.text).collect();
        assert_eq!(
            texts,
            [
                "1 request in the last minute was shed by the gateway itself: a worker had more to do than \
                 its CPU can handle",
                "3 of 4 requests of route shop in the last minute were shed: there were more than can \
                 be served",
            ]
        );
    }
}
