//! Requests as they finish, for those who watch: a sample of their lines, and how long Weir itself
//! took over them.
//!
//! While nobody watches, a request costs one relaxed load. Each watcher has a queue of bounded
//! size; when more requests match than it holds, a fair sample of them stays there.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, RwLock};
use serde_json::{Map, Value};

use super::access_log::{FIELDS, FieldVisitor, Milliseconds, RequestFinished, milliseconds};
use super::log_field::Field;
use super::metrics::{Latency, LatencyCounts};
use super::outcome::Disposition;

/// Upper bound on the lines that a watcher gets at a time.
const LINES: usize = 50;

/// Whoever watches requests finish.
#[derive(Debug, Default)]
pub struct Tail {
    is_watched: AtomicBool,
    watchers: RwLock<HashMap<u64, Arc<Watcher>>>,
    /// The time of requests without the upstream's, while they are watched.
    own: Latency,
}

/// Which requests a watcher wants lines of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TailFilter {
    /// Requests with one of these decisions; all if empty.
    pub decisions: Vec<Disposition>,
    /// Requests that this limit, ban or list denied, or would have denied.
    pub decided_by: Option<String>,
    /// Requests of this route.
    pub route: Option<String>,
    /// Requests with this text in the client's address, the account or the path.
    pub text: Option<String>,
}

#[derive(Debug)]
struct Watcher {
    filter: TailFilter,
    queue: Mutex<Queue>,
}

/// A fair sample of the lines since the last look: each one that matched is in it with the same
/// probability.
#[derive(Debug, Default)]
struct Queue {
    matched: usize,
    /// Each with its number among those that matched.
    lines: Vec<(usize, Value)>,
}

/// The watching of one watcher, which ends when this is dropped.
#[derive(Debug)]
pub struct Watch {
    tail: Arc<Tail>,
    /// None for a watcher of figures alone.
    watcher: Option<Arc<Watcher>>,
    id: u64,
}

impl Tail {
    /// Whether somebody watches finished requests. Each request reads it once.
    pub fn is_watched(&self) -> bool {
        self.is_watched.load(Ordering::Relaxed)
    }

    /// Begins to watch; without a filter, there are figures but no lines.
    pub fn watch(self: &Arc<Self>, filter: Option<TailFilter>) -> Watch {
        let id = rand::random();
        let watcher = Arc::new(Watcher {
            queue: Mutex::default(),
            filter: filter.clone().unwrap_or_default(),
        });
        let mut watchers = self.watchers.write();
        watchers.insert(id, Arc::clone(&watcher));
        self.is_watched.store(true, Ordering::Relaxed);
        Watch {
            tail: Arc::clone(self),
            watcher: filter.map(|_| watcher),
            id,
        }
    }

    /// Shows a finished request to those who watch. `own` is what Weir itself took over it, where
    /// that can be told.
    pub fn finished(&self, request: &RequestFinished<'_>, own: Option<Duration>) {
        if let Some(own) = own {
            self.own.observe(own);
        }
        for watcher in self.watchers.read().values() {
            if watcher.filter.matches(request) {
                watcher.queue.lock().offer(|| line(request));
            }
        }
    }

    /// Weir's own time for requests until now, while somebody watched.
    pub fn own_latency(&self) -> LatencyCounts {
        self.own.counts()
    }
}

impl Watch {
    /// The lines since the last look, and how many more requests matched.
    pub fn lines(&self) -> (Vec<Value>, usize) {
        let Some(watcher) = &self.watcher else {
            return (Vec::new(), 0);
        };
        let Queue { matched, mut lines } = std::mem::take(&mut *watcher.queue.lock());
        lines.sort_by_key(|(number, _)| *number);
        let left_out = matched - lines.len();
        (lines.into_iter().map(|(_, line)| line).collect(), left_out)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut watchers = self.tail.watchers.write();
        watchers.remove(&self.id);
        let is_watched = !watchers.is_empty();
        self.tail.is_watched.store(is_watched, Ordering::Relaxed);
    }
}

impl Queue {
    fn offer(&mut self, line: impl FnOnce() -> Value) {
        self.matched += 1;
        if self.lines.len() < LINES {
            self.lines.push((self.matched, line()));
            return;
        }
        let place = rand::random_range(0..self.matched);
        if let Some(place) = self.lines.get_mut(place) {
            *place = (self.matched, line());
        }
    }
}

impl TailFilter {
    fn matches(&self, request: &RequestFinished<'_>) -> bool {
        let deciders = [request.denied_by(), request.banned_by(), request.listed()];
        let by = |name: &String| deciders.contains(&Some(&**name));
        (self.decisions.is_empty() || self.decisions.contains(&request.counted.decision))
            && self.decided_by.as_ref().is_none_or(by)
            && self
                .route
                .as_deref()
                .is_none_or(|route| route == request.counted.route.name())
            && self
                .text
                .as_deref()
                .is_none_or(|text| has_text(request, text))
    }
}

fn has_text(request: &RequestFinished<'_>, text: &str) -> bool {
    let shows = |shown: &dyn fmt::Display| shown.to_string().contains(text);
    request.logged.uri.path().contains(text)
        || request.logged.client.is_some_and(|client| shows(&client))
        || request.account.is_some_and(|account| shows(&account))
}

/// The keys of a line, in its order.
static KEYS: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let mut watched: Vec<_> = FIELDS.iter().filter_map(|field| field.watched).collect();
    watched.sort_unstable();
    watched.into_iter().map(|(_, key)| key).collect()
});

/// The line of a request, with `null` for what it lacks.
fn line(request: &RequestFinished<'_>) -> Value {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let at = (
        "at".to_owned(),
        milliseconds(now.unwrap_or_default()).into(),
    );
    let lacking = KEYS.iter().map(|key| ((*key).to_owned(), Value::Null));
    let mut line = Line([at].into_iter().chain(lacking).collect());
    request.visit(&mut line);
    line.0.into()
}

struct Line(Map<String, Value>);

impl Line {
    fn set(&mut self, field: &'static Field, value: impl FnOnce() -> Value) {
        if let Some((_, key)) = field.watched
            && let Some(place) = self.0.get_mut(key)
        {
            *place = value();
        }
    }
}

impl FieldVisitor for Line {
    fn text(&mut self, field: &'static Field, value: &str) {
        self.set(field, || value.into());
    }

    fn shown(&mut self, field: &'static Field, value: &dyn fmt::Display) {
        self.set(field, || value.to_string().into());
    }

    fn integer(&mut self, field: &'static Field, value: u64) {
        self.set(field, || value.into());
    }

    fn milliseconds(&mut self, field: &'static Field, value: Milliseconds) {
        self.set(field, || value.as_f64().into());
    }

    fn boolean(&mut self, field: &'static Field, value: bool) {
        self.set(field, || value.into());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use http::{Method, StatusCode, Version};
    use tokio::time::Instant;

    use super::*;
    use crate::{CountedRequest, LoggedRequest, Metrics, RouteMetrics, Verdict};

    /// What becomes of a request for this path.
    fn with_finished<T>(
        route: &Arc<RouteMetrics>,
        path: &str,
        verdict: Verdict,
        then: impl FnOnce(&RequestFinished<'_>) -> T,
    ) -> T {
        let uri = path.parse().unwrap();
        then(&RequestFinished {
            counted: &CountedRequest {
                since: Instant::now(),
                route: Arc::clone(route),
                is_head: false,
                status: StatusCode::OK,
                decision: verdict.disposition,
                bytes: 0,
                complete: true,
            },
            logged: &LoggedRequest {
                client: "203.0.113.9".parse().ok(),
                verdict: Some(verdict),
                ..LoggedRequest::new(Method::GET, uri, Version::HTTP_11)
            },
            account: None,
            took: Duration::from_millis(3),
        })
    }

    fn paths(watch: &Watch) -> Vec<String> {
        let (lines, _) = watch.lines();
        let path = |line: &Value| line["path"].as_str().unwrap().to_owned();
        lines.iter().map(path).collect()
    }

    #[test]
    fn requests_are_watched_as_long_as_there_is_a_watcher() {
        let tail = Arc::<Tail>::default();
        assert!(!tail.is_watched());
        let (one, other) = (tail.watch(None), tail.watch(None));
        assert!(tail.is_watched());
        drop(one);
        assert!(tail.is_watched());
        drop(other);
        assert!(!tail.is_watched());
    }

    #[test]
    fn each_watcher_is_shown_what_it_asked_for_once() {
        let (tail, metrics) = (Arc::<Tail>::default(), Metrics::new());
        let [api, web] = ["api", "web"].map(|name| Arc::new(metrics.route(name)));
        let watch = |filter| tail.watch(Some(filter));
        let all = watch(TailFilter::default());
        let denied = watch(TailFilter {
            decisions: vec![Disposition::Denied],
            ..TailFilter::default()
        });
        let by_limit = watch(TailFilter {
            decided_by: Some("PerAddress".to_owned()),
            ..TailFilter::default()
        });
        let of_route = watch(TailFilter {
            route: Some("web".to_owned()),
            ..TailFilter::default()
        });
        let of_text = |text: &str| {
            let text = Some(text.to_owned());
            watch(TailFilter {
                text,
                ..TailFilter::default()
            })
        };
        let (of_path, of_client, of_other) = (of_text("/b"), of_text("0.113"), of_text("other"));
        let figures = tail.watch(None);
        let allowed = Verdict::new(Disposition::Allowed);
        with_finished(&api, "/a", allowed, |request| tail.finished(request, None));
        let verdict = Verdict {
            denied_by: Some("PerAddress".into()),
            ..Verdict::new(Disposition::Denied)
        };
        let own = Some(Duration::from_micros(40));
        with_finished(&web, "/b", verdict, |request| tail.finished(request, own));
        assert_eq!(paths(&all), ["/a", "/b"]);
        assert_eq!(paths(&all), [""; 0]);
        for only_b in [denied, by_limit, of_route, of_path] {
            assert_eq!(paths(&only_b), ["/b"]);
        }
        assert_eq!(paths(&of_client), ["/a", "/b"]);
        assert_eq!(paths(&of_other), [""; 0]);
        assert_eq!(paths(&figures), [""; 0]);
        assert!(tail.own_latency().quantile(1.0).unwrap() <= 0.000_05);
    }

    #[test]
    fn no_two_fields_have_the_same_place_or_key_in_a_line() {
        let watched = || FIELDS.iter().filter_map(|field| field.watched);
        let places: BTreeSet<_> = watched().map(|(place, _)| place).collect();
        let keys: BTreeSet<_> = watched().map(|(_, key)| key).collect();
        assert_eq!(places, (0..KEYS.len()).collect());
        assert_eq!(keys.len(), KEYS.len());
    }

    /// Whoever reads the lines of the admin API finds each key in every line.
    #[test]
    fn a_line_has_a_field_of_the_log_or_null_under_every_key() {
        let metrics = Metrics::new();
        let route = Arc::new(metrics.route("api"));
        let allowed = Verdict::new(Disposition::Allowed);
        let mut line = with_finished(&route, "/a", allowed, line);
        line["at"] = 0.into();
        insta::assert_snapshot!(line, @r#"{"at":0,"client":"203.0.113.9","account":null,"method":"GET","path":"/a","host":null,"user_agent":null,"request_id":null,"status":200,"route":"api","decision":"allowed","limit":null,"ban":null,"list":null,"ms":3.0,"upstream":null,"upstream_ms":null,"upstream_error":null}"#);
    }

    #[test]
    fn a_flood_fills_no_queue_and_is_sampled_from_its_beginning_to_its_end() {
        let (tail, metrics) = (Arc::<Tail>::default(), Metrics::new());
        let route = Arc::new(metrics.route("api"));
        let watch = tail.watch(Some(TailFilter::default()));
        let flood = 100 * LINES;
        for number in 0..flood {
            let path = format!("/{number:05}");
            let allowed = Verdict::new(Disposition::Allowed);
            with_finished(&route, &path, allowed, |request| {
                tail.finished(request, None);
            });
        }
        let (lines, left_out) = watch.lines();
        assert_eq!((lines.len(), left_out), (LINES, flood - LINES));
        let paths: Vec<_> = lines.iter().map(|line| line["path"].as_str()).collect();
        assert!(paths.is_sorted());
        // That all of a fair sample are of one half is as likely as 50 heads in a row.
        let middle = format!("/{:05}", flood / 2);
        assert!(paths[0] < Some(&middle) && Some(&*middle) < paths[LINES - 1]);
    }
}
