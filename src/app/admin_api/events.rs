//! Server-sent events of the gateway: the configuration in force when it changes, the counts of each
//! second, and those of the last hour.
//!
//! ```text
//! GET /v1/events?tail=true&decision=denied,shadowed&by=L&route=api&text=203.0.113
//! ```
//!
//! There are at most [`MAX_STREAMS`] streams at a time. They end when the gateway drains.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::ready;
use futures_util::stream;
use http::request;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use serde_json::{Map, Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Interval, MissedTickBehavior, interval};
use weir_console::history::{self, History};
use weir_console::tail;
use weir_limit::time::Clock;
use weir_server::AdminBody;
use weir_telemetry::{
    DecisionSample, Disposition, LatencyCounts, LimitMetrics, Metrics, Period, RouteSample,
    StoreCallMetrics, TailFilter, UpstreamSample, Watch,
};

use super::configuration;
use super::endpoint::{Endpoint, with_type};
use super::error::ApiError;
use crate::app::features::{DecisionCounters, ROOMS};
use crate::app::reloads::Snapshot;
use crate::app::stores::Stores;

pub(super) const ENDPOINTS: &[Endpoint] = &[Endpoint::new("/v1/events", "GET", |api, call| {
    let stream = api.events.stream(&call.head);
    let response = stream.map(|stream| with_type("text/event-stream", stream));
    Box::pin(ready(response))
})];

const MAX_STREAMS: usize = 8;

const INTERVAL: Duration = Duration::from_secs(1);

/// After how many seconds subjects are counted again, which looks at all of them.
const SUBJECTS_INTERVAL: u64 = 5;

pub(super) struct Events {
    pub(super) snapshots: watch::Receiver<Arc<Snapshot>>,
    pub(super) stores: Stores,
    pub(super) metrics: Arc<Metrics>,
    pub(super) clock: Arc<dyn Clock>,
    /// Becomes true when the gateway begins to drain.
    pub(super) draining: watch::Receiver<bool>,
    pub(super) permits: Arc<Semaphore>,
    pub(super) history: History,
}

impl Events {
    pub(super) fn permits() -> Arc<Semaphore> {
        Arc::new(Semaphore::new(MAX_STREAMS))
    }

    /// Keeps the history for as long as there is a dashboard, until the gateway drains.
    pub(super) async fn keep_history(self: Arc<Self>) {
        let mut snapshots = self.snapshots.clone();
        let mut draining = self.draining.clone();
        let mut counted = Counted::new(&snapshots.borrow_and_update(), &self.metrics);
        counted.point(&self.metrics, self.clock.now().as_secs());
        let mut ticks = interval(history::INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.reset();
        loop {
            tokio::select! {
                _ = draining.wait_for(|begun| *begun) => return,
                _ = ticks.tick() => {}
            }
            let snapshot = Arc::clone(&snapshots.borrow_and_update());
            counted.handles = Handles::new(&snapshot, &self.metrics);
            let point = counted.point(&self.metrics, self.clock.now().as_secs());
            if snapshot.settings.admin_dashboard {
                self.history.push(point);
            }
        }
    }

    fn stream(self: &Arc<Self>, head: &request::Parts) -> Result<AdminBody, ApiError> {
        let filter = tail::filter(head.uri.query().unwrap_or_default())?;
        let permit = Arc::clone(&self.permits).try_acquire_owned();
        let permit = permit.map_err(|_| ApiError::TooManyWatchers(MAX_STREAMS))?;
        let stream = EventStream::new(Arc::clone(self), filter, permit);
        let frames = stream::unfold(stream, |mut stream| async {
            let event = stream.next().await?;
            Some((Ok::<_, Infallible>(Frame::data(event)), stream))
        });
        Ok(StreamBody::new(frames).boxed_unsync())
    }
}

struct EventStream {
    events: Arc<Events>,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    draining: watch::Receiver<bool>,
    watch: Watch,
    ticks: Interval,
    seconds: u64,
    counted: Counted,
    /// The configuration in force was not sent yet.
    is_new: bool,
    /// How many points of the history were sent.
    seen: u64,
    has_ended: bool,
    _permit: OwnedSemaphorePermit,
}

/// The counts until the last event.
struct Counted {
    handles: Handles,
    routes: HashMap<Arc<str>, RouteSample>,
    limits: HashMap<String, DecisionSample>,
    /// By the member that shows them, and the name of what decides.
    of_rooms: HashMap<(&'static str, Arc<str>), DecisionSample>,
    /// Connections of banned and blocked peers.
    refused: u64,
    own: LatencyCounts,
    store: LatencyCounts,
}

struct Handles {
    limits: Vec<(String, LimitMetrics)>,
    of_rooms: Vec<DecisionCounters>,
    /// None for the memory store, whose calls are not timed.
    store: Option<StoreCallMetrics>,
}

enum Due {
    End,
    Configuration,
    Second,
}

impl Handles {
    fn new(snapshot: &Snapshot, metrics: &Metrics) -> Self {
        let limits = snapshot.settings.limits().into_iter();
        let of_rooms = ROOMS.iter();
        let of_rooms = of_rooms.filter_map(|room| room.decisions(&snapshot.settings, metrics));
        let is_shared = snapshot.settings.process.store.is_shared();
        Self {
            limits: limits
                .map(|limit| (limit.name().to_owned(), metrics.limit(limit.name())))
                .collect(),
            of_rooms: of_rooms.collect(),
            store: is_shared.then(|| metrics.store_call("decide", &[])),
        }
    }
}

impl EventStream {
    fn new(events: Arc<Events>, filter: Option<TailFilter>, permit: OwnedSemaphorePermit) -> Self {
        let mut snapshots = events.snapshots.clone();
        let counted = Counted::new(&snapshots.borrow_and_update(), &events.metrics);
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick is at once, and there is nothing to tell then.
        ticks.reset();
        let mut stream = Self {
            watch: events.metrics.tail().watch(filter),
            draining: events.draining.clone(),
            snapshots,
            ticks,
            seconds: 0,
            counted,
            events,
            is_new: true,
            seen: 0,
            has_ended: false,
            _permit: permit,
        };
        // What was counted before is not of the first second.
        stream.second();
        stream
    }

    async fn next(&mut self) -> Option<Bytes> {
        if self.has_ended {
            return None;
        }
        if std::mem::take(&mut self.is_new) {
            return Some(self.configuration());
        }
        if let Some(points) = self.events.history.since(&mut self.seen) {
            return Some(event("history", &points));
        }
        let due = tokio::select! {
            biased;
            _ = self.draining.wait_for(|begun| *begun) => Due::End,
            Ok(()) = self.snapshots.changed() => Due::Configuration,
            _ = self.ticks.tick() => Due::Second,
        };
        Some(match due {
            Due::End => {
                self.has_ended = true;
                event("end", &json!({"why": "the gateway drains"}))
            }
            Due::Configuration => {
                let snapshot = Arc::clone(&self.snapshots.borrow());
                self.counted.handles = Handles::new(&snapshot, &self.events.metrics);
                self.configuration()
            }
            Due::Second => event("second", &self.second()),
        })
    }

    fn configuration(&self) -> Bytes {
        let settings = &self.snapshots.borrow().settings;
        event("configuration", &configuration::describe(settings))
    }

    fn second(&mut self) -> Value {
        let metrics = Arc::clone(&self.events.metrics);
        let (decisions, failed, latency, routes) = self.counted.routes(&metrics);
        let (limits, (by_name, denied)) = (self.counted.limits(), self.counted.of_rooms());
        let own = metrics.tail().own_latency();
        let own_since = own.since(&std::mem::replace(&mut self.counted.own, own));
        let (at, error) = metrics.last_load();
        let server = metrics.server();
        let refused = metrics.refusals().sample().connections;
        let upstreams = self.snapshots.borrow().upstreams.samples();
        let upstreams: Vec<Value> = upstreams.iter().map(upstream).collect();
        let (lines, left_out) = self.watch.lines();
        let now = self.events.clock.now().as_secs();
        let subjects = self.seconds.is_multiple_of(SUBJECTS_INTERVAL);
        self.seconds += 1;
        let counted = json!({"at": now, "decisions": decisions, "failed": failed});
        let process = json!({
            "latency": {"all": quantiles(&latency), "own": quantiles(&own_since)},
            "in_flight": server.in_flight.get(),
            "connections": server.open.get(),
            "refused": refused - std::mem::replace(&mut self.counted.refused, refused),
            "store": self.store(),
            "load": {"at": at, "error": error},
            "limits": limits,
        });
        let others = json!({
            "routes": routes,
            "upstreams": upstreams,
            "subjects": subjects.then(|| self.counted.subjects(&metrics, now)),
            "tail": lines,
            "left_out": left_out,
        });
        joined([counted, denied, process, by_name, others])
    }

    fn store(&mut self) -> Value {
        let stores = &self.events.stores;
        let calls = self.counted.handles.store.as_ref();
        let calls = calls.map(StoreCallMetrics::latency);
        let since = calls.map(|calls| {
            let before = std::mem::replace(&mut self.counted.store, calls);
            calls.since(&before)
        });
        json!({
            "unreachable": stores.trouble(),
            "latency": since.map(|since| quantiles(&since)),
            "buckets_in_memory": stores.memory().stats().buckets,
        })
    }
}

impl Counted {
    fn new(snapshot: &Snapshot, metrics: &Metrics) -> Self {
        Self {
            handles: Handles::new(snapshot, metrics),
            routes: HashMap::new(),
            limits: HashMap::new(),
            of_rooms: HashMap::new(),
            refused: 0,
            own: metrics.tail().own_latency(),
            store: LatencyCounts::default(),
        }
    }

    /// What was counted since the point before. Weir's own latency is known only while somebody
    /// watches.
    fn point(&mut self, metrics: &Metrics, now: u64) -> Value {
        let (decisions, failed, latency, _) = self.routes(metrics);
        let (_, denied) = self.of_rooms();
        let counted = json!({"at": now, "decisions": decisions, "failed": failed});
        joined([
            counted,
            denied,
            json!({"latency": {"all": quantiles(&latency)}}),
        ])
    }

    /// The decisions since the last event, how many of each ended with a server error, how long all
    /// requests took, and all of that by route.
    fn routes(&mut self, metrics: &Metrics) -> (Value, Value, LatencyCounts, Value) {
        let (mut all, mut failed) = ([0; Disposition::ALL.len()], [0; Disposition::ALL.len()]);
        let mut latency = LatencyCounts::default();
        let mut routes = Map::new();
        for (name, now) in metrics.route_samples() {
            let before = self.routes.get(&name).cloned().unwrap_or_default();
            let took = now.latency.since(&before.latency);
            let since = counted_since(now.decisions, before.decisions, &mut all);
            let errors = counted_since(now.server_errors, before.server_errors, &mut failed);
            latency.add(&took);
            let route = json!({
                "requests": since.iter().sum::<u64>(),
                "decisions": by_word(&since),
                "server_errors": errors.iter().sum::<u64>(),
                "latency": quantiles(&took),
            });
            routes.insert(name.to_string(), route);
            self.routes.insert(name, now);
        }
        (by_word(&all), by_word(&failed), latency, routes.into())
    }

    fn limits(&mut self) -> Value {
        let limits = self.handles.limits.iter().map(|(name, counters)| {
            let now = counters.sample();
            let before = self.limits.insert(name.clone(), now).unwrap_or(now);
            (name.clone(), counts(now, before))
        });
        Value::Object(limits.collect())
    }

    /// What rooms show beside limits, each in a member: the counts by name, and how many requests were
    /// denied in all.
    fn of_rooms(&mut self) -> (Value, Value) {
        let (mut all, mut denied) = (Map::new(), Map::new());
        for counters in &self.handles.of_rooms {
            let (mut counted, mut sum) = (Map::new(), 0);
            for (name, sample) in &counters.by_name {
                let now = sample();
                let of = (counters.member, Arc::clone(name));
                let before = self.of_rooms.insert(of, now).unwrap_or(now);
                sum += now.since(before).denied;
                counted.insert(name.to_string(), counts(now, before));
            }
            all.insert(counters.member.to_owned(), counted.into());
            denied.insert(counters.denied_member.to_owned(), sum.into());
        }
        (all.into(), denied.into())
    }

    /// The known subjects of each limit within a minute.
    fn subjects(&self, metrics: &Metrics, now: u64) -> Value {
        let limits = self.handles.limits.iter().map(|(name, _)| {
            let subjects = metrics.subjects(name, Period::Minute, now);
            (name.clone(), subjects.len().into())
        });
        Value::Object(limits.collect())
    }
}

/// The counts since `before` by decision; adds them to the sums.
fn counted_since<const N: usize>(now: [u64; N], before: [u64; N], sums: &mut [u64; N]) -> Vec<u64> {
    let counts = now.iter().zip(before);
    let since: Vec<u64> = counts.map(|(now, before)| now - before).collect();
    for (sum, count) in sums.iter_mut().zip(&since) {
        *sum += count;
    }
    since
}

/// The decisions since `before`, and since the start of the process.
fn counts(now: DecisionSample, before: DecisionSample) -> Value {
    let shown = |sample: DecisionSample| {
        json!({
            "allowed": sample.allowed,
            "denied": sample.denied,
            "would_deny": sample.would_deny,
        })
    };
    json!({"second": shown(now.since(before)), "total": shown(now)})
}

/// One object with the members of all.
fn joined<const N: usize>(objects: [Value; N]) -> Value {
    let objects = objects.into_iter().filter_map(|object| match object {
        Value::Object(members) => Some(members),
        _ => None,
    });
    Value::Object(objects.flatten().collect())
}

/// Without decisions that did not occur.
fn by_word(counts: &[u64]) -> Value {
    let words = Disposition::ALL.into_iter().zip(counts);
    let words = words.filter(|(_, count)| **count > 0);
    let words = words.map(|(word, count)| (word.as_str().to_owned(), (*count).into()));
    Value::Object(words.collect())
}

/// In milliseconds.
fn quantiles(counts: &LatencyCounts) -> Value {
    let milliseconds = |share| counts.quantile(share).map(|seconds| seconds * 1000.0);
    json!({"p50": milliseconds(0.5), "p99": milliseconds(0.99)})
}

fn upstream(sample: &UpstreamSample) -> Value {
    let servers = sample.servers.iter().map(|server| {
        json!({
            "name": &*server.name,
            "available": server.available,
            "trouble": server.trouble,
            "in_flight": server.in_flight,
            "ejections": server.ejections,
        })
    });
    json!({
        "name": &*sample.name,
        "retries": sample.retries,
        "servers": servers.collect::<Vec<_>>(),
    })
}

fn event(name: &str, data: &Value) -> Bytes {
    format!("event: {name}\ndata: {data}\n\n").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_whatever_texts_it_has() {
        let text = event("second", &json!({"path": "a\nevent: other\ndata: b\r\n\n"}));
        let text = String::from_utf8(text.into()).unwrap();
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.ends_with("\n\n"), "{text}");
    }
}
