//! Replays one configuration over the lines of one partition, in their order.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::num::NonZeroUsize;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Method, Request, StatusCode, Uri, Version};
use http_body_util::Empty;
use siphasher::sip::SipHasher13;
use weir_limit::time::Timestamp;
use weir_middleware::{LimitDecision, Progress, RouteState, Simulated, Simulation, Waiting};
use weir_rules::{Captures, RequestAttributes, RouteTable, ValuePattern};
use weir_store::{Memory, MemorySettings};
use weir_telemetry::{Disposition, Metrics};

use super::format::{LogLine, Name, Names, Recorded, TargetMaker};
use super::need::Gauge;
use super::ruleset::{ReplayedLimit, Ruleset};
use super::tally::{Decided, LimitTally, MAX_SUBJECTS, Outcome, Tally};

/// The fewest buckets of a partition.
const MIN_BUCKETS: usize = 65_536;

/// After so many lines, a part of the store is swept.
const SWEEP_EVERY: u64 = 4096;

/// A line, and its request as the layers would get it.
#[derive(Clone, Copy)]
pub struct PastRequest<'p> {
    /// The line without the method and the headers, which `request` has.
    pub line: &'p LogLine,
    pub request: &'p Request<Empty<Bytes>>,
    /// Whether it is refused before any limit is asked.
    is_refused: bool,
}

/// Makes the requests of the lines of a partition, one after the other: to make each anew would cost
/// more than to decide about it.
pub struct RequestMaker {
    request: Request<Empty<Bytes>>,
    targets: TargetMaker,
    is_refused: fn(&Parts) -> bool,
}

impl RequestMaker {
    pub fn new(is_refused: fn(&Parts) -> bool) -> Self {
        Self {
            request: Request::default(),
            targets: TargetMaker::default(),
            is_refused,
        }
    }

    /// The request of a line, whose method and headers it takes.
    pub fn request<'p>(&'p mut self, line: &'p mut LogLine) -> PastRequest<'p> {
        let (mut head, body) = std::mem::take(&mut self.request).into_parts();
        head.method = std::mem::take(&mut line.method);
        // The last target goes before the next one is made in its place.
        head.uri = Uri::default();
        let target = self.targets.target(&[&line.target]);
        head.uri = target.map(Uri::from).unwrap_or_default();
        let details = line.details.as_deref_mut();
        let headers = details.map(|details| std::mem::take(&mut details.headers));
        head.headers = headers.unwrap_or_default();
        // Where the host is not kept, it must not be missed.
        head.version = match head.headers.contains_key(http::header::HOST) {
            true => Version::HTTP_11,
            false => Version::HTTP_10,
        };
        let is_refused = (self.is_refused)(&head);
        self.request = Request::from_parts(head, body);
        PastRequest {
            line,
            request: &self.request,
            is_refused,
        }
    }
}

impl LogLine {
    /// Whether it was denied or kept out at the time, or refused by a status that guessers get.
    fn was_refused(&self) -> bool {
        let refused = |status: StatusCode| matches!(status.as_u16(), 401 | 403 | 429);
        self.was_denied() || self.status.is_some_and(refused)
    }

    /// The status in the log, if it is that of an upstream: what Weir denied got its own.
    fn upstream_status(&self) -> Option<StatusCode> {
        self.status.filter(|_| !self.was_denied())
    }

    fn was_denied(&self) -> bool {
        let denied = |recorded: &Recorded| Outcome::new(recorded.decision, None).is_denied();
        self.recorded.as_ref().is_some_and(denied)
    }
}

/// One configuration with a store and the counts of one partition.
pub struct Replayer<'r> {
    rules: &'r Ruleset,
    names: &'r Names,
    table: &'r RouteTable,
    routes: Vec<Arc<RouteState>>,
    unrouted: Arc<RouteState>,
    simulation: Simulation,
    events: BinaryHeap<Event>,
    hasher: SipHasher13,
    lines: u64,
    pub tally: Tally,
}

/// Something that happens to a request after its arrival.
struct Event {
    at: Timestamp,
    /// Of two at the same time, the one that was foreseen first comes first.
    number: u64,
    kind: EventKind,
}

enum EventKind {
    WaitOver(Box<Waiting>, RecordedResponse),
    Answered(Simulated, RecordedResponse),
    Ended(Simulated),
}

/// The course of a request, by the log.
#[derive(Clone, Copy)]
struct RecordedResponse {
    route: Option<usize>,
    answered: Timestamp,
    ended: Timestamp,
    status: Option<StatusCode>,
    was_refused: bool,
}

impl<'r> Replayer<'r> {
    /// A replay of these rules in one of `partitions`.
    pub fn new(
        rules: &'r Ruleset,
        names: &'r Names,
        table: &'r RouteTable,
        partitions: usize,
        measures: bool,
    ) -> Self {
        let metrics = Metrics::new();
        let access = rules.access(&metrics);
        let (routes, unrouted) = rules.states(&access, &metrics);
        let store = Memory::new(share(rules.memory(), partitions));
        let most_subjects = MAX_SUBJECTS / partitions;
        let limits = rules.limits().iter();
        let limits = limits.map(|limit| {
            let gauge = measures.then(|| gauge(rules, limit)).flatten();
            LimitTally::new(gauge, most_subjects)
        });
        Self {
            rules,
            names,
            table,
            routes,
            unrouted,
            simulation: Simulation::new(store, access),
            events: BinaryHeap::new(),
            hasher: SipHasher13::new_with_key(&rand::random()),
            lines: 0,
            tally: Tally {
                limits: limits.collect(),
                ..Tally::default()
            },
        }
    }

    /// Decides about the next request, and returns what came of it.
    pub fn arrive(&mut self, past: PastRequest<'_>) -> Outcome {
        let line = past.line;
        self.run_until(line.at);
        self.lines += 1;
        if self.lines.is_multiple_of(SWEEP_EVERY) {
            self.simulation.store().sweep(line.at);
        }
        if past.is_refused {
            self.tally.totals.total += 1;
            self.tally.totals.refused += 1;
            return Outcome::PASSES;
        }
        if let Some(outcome) = self.carried_over(past) {
            self.tally.totals.decided(Disposition::Denied);
            self.tally.totals.carried_over += 1;
            return outcome;
        }
        let with_headers = self.with_headers_of_route(past);
        let request = with_headers.as_ref().unwrap_or(past.request);
        let found = self
            .table
            .find(request.method(), request.uri(), request.headers());
        let index = found.as_ref().map(|found| found.id.0);
        let route = index.and_then(|index| self.routes.get(index));
        let route = route.unwrap_or(&self.unrouted);
        if is_preflight(past, index, self.rules) {
            self.tally.totals.decided(Disposition::Unlimited);
            return Outcome::PASSES;
        }
        let accounts = self.rules.account();
        let account = line.details.as_deref();
        let account = account.and_then(|details| details.account.as_deref());
        let account = account.filter(|_| !accounts.sources.is_empty());
        let account = account.map(|shown| accounts.logged(shown));
        let after = RecordedResponse {
            route: index,
            answered: line.answered,
            ended: line.ended,
            status: line.upstream_status(),
            was_refused: line.was_refused(),
        };
        let attributes = RequestAttributes {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            client: self.rules.client(line.client),
            secure: false,
            account: account.as_ref(),
            route: route.name(),
            captures: found
                .as_ref()
                .map_or(Captures::NONE, |found| &found.captures),
            now: line.at,
        };
        let limits = &mut self.tally.limits;
        // No log says how long a body was.
        let body_bytes = || Some(0);
        let progress = self
            .simulation
            .arrive(route, &attributes, body_bytes, |decision| {
                count(
                    self.rules,
                    &self.hasher,
                    limits,
                    &decision,
                    (after, line.at),
                );
            });
        match progress {
            Progress::Decided(simulated) => self.decided(simulated, after),
            Progress::Waits(waiting) => {
                let at = waiting.until();
                self.push(at, EventKind::WaitOver(waiting, after));
                Outcome::PASSES
            }
        }
    }

    /// Counts the events after the last line.
    pub fn finish(&mut self) {
        self.run_until(Timestamp::MAX);
        self.tally.evicted = self.simulation.store().stats().evicted;
    }

    /// What a limit that cannot be replayed has denied took nothing from other limits, so they are
    /// not asked about it.
    fn carried_over(&self, past: PastRequest<'_>) -> Option<Outcome> {
        let recorded = past.line.recorded?;
        let by = recorded.by.filter(|by| self.rules.is_gap(*by))?;
        let outcome = Outcome::new(recorded.decision, Some(by));
        outcome.is_denied().then_some(outcome)
    }

    /// The request with the headers that its route is found by, if the log says that it took such a
    /// route.
    fn with_headers_of_route(&self, past: PastRequest<'_>) -> Option<Request<Empty<Bytes>>> {
        if !self.rules.has_header_matches() {
            return None;
        }
        let taken = past.line.details.as_ref()?.route.as_deref()?;
        let routes = 0..self.routes.len();
        let mut routes = routes.filter_map(|index| self.rules.route(index));
        let (matcher, _) = routes.find(|(_, name)| ***name == *taken)?;
        let mut request = past.request.clone();
        for (name, pattern) in &matcher.headers {
            let value = match pattern {
                ValuePattern::Exact(value) => HeaderValue::from_bytes(value).ok(),
                ValuePattern::Present => Some(HeaderValue::from_static("-")),
                // What a regular expression matches cannot be made up.
                ValuePattern::Regex(_) | ValuePattern::Absent => None,
            };
            request
                .headers_mut()
                .extend(value.map(|value| (name.clone(), value)));
        }
        Some(request)
    }

    fn decided(&mut self, simulated: Simulated, after: RecordedResponse) -> Outcome {
        let verdict = simulated.verdict();
        self.tally.access.decided(verdict, self.names);
        self.tally.totals.blocked += u64::from(verdict.listed == Some("block"));
        let disposition = match verdict.disposition {
            Disposition::Unlimited if after.route.is_none() => Disposition::Unrouted,
            disposition => disposition,
        };
        self.tally.totals.decided(disposition);
        let by = verdict.decider().map(|name| self.names.find(name));
        if simulated.is_unanswered() {
            self.push(after.answered, EventKind::Answered(simulated, after));
        }
        Outcome::new(disposition, by)
    }

    pub const fn names(&self) -> &'r Names {
        self.names
    }

    pub fn limit_named(&mut self, name: Name) -> Option<&mut LimitTally> {
        let name = self.names.name(name);
        let mut limits = self.rules.limits().iter();
        let number = limits.position(|limit| limit.limit.name() == name)?;
        self.tally.limits.get_mut(number)
    }

    fn push(&mut self, at: Timestamp, kind: EventKind) {
        let number = self.lines;
        self.events.push(Event { at, number, kind });
    }

    /// Runs the events before `until`.
    fn run_until(&mut self, until: Timestamp) {
        while self.events.peek().is_some_and(|event| event.at <= until) {
            let Some(Event { at, kind, .. }) = self.events.pop() else {
                return;
            };
            match kind {
                EventKind::WaitOver(waiting, after) => {
                    let later = RecordedResponse {
                        answered: after.answered.max(at),
                        ended: after.ended.max(at),
                        ..after
                    };
                    let limits = &mut self.tally.limits;
                    let simulated = self.simulation.turn_has_come(*waiting, |decision| {
                        count(self.rules, &self.hasher, limits, &decision, (later, at));
                    });
                    self.decided(simulated, later);
                }
                EventKind::Answered(mut request, after) => {
                    self.simulation.answer(&mut request, after.status, at);
                    if request.is_in_flight() {
                        self.push(after.ended.max(at), EventKind::Ended(request));
                    }
                }
                EventKind::Ended(request) => drop(request),
            }
        }
    }
}

/// Counts what a limit has decided about a request.
fn count(
    rules: &Ruleset,
    hasher: &SipHasher13,
    tallies: &mut [LimitTally],
    decision: &LimitDecision<'_>,
    (after, at): (RecordedResponse, Timestamp),
) {
    let route = after.route;
    let number = route.and_then(|route| rules.number(route, decision.limit));
    let Some(number) = number else { return };
    let (Some(tally), Some(limit), Some(disposition)) = (
        tallies.get_mut(number),
        rules.limits().get(number),
        decision.disposition,
    ) else {
        return;
    };
    let is_regular = limit.limit.quota() == Some(decision.quota);
    tally.decided(&Decided {
        key: decision.key.as_str(),
        hash: hasher.hash(decision.key.as_bytes()),
        cost: decision.cost,
        disposition,
        at,
        ended: after.ended,
        is_measured: is_regular && limit.spend.counts(after.status),
        was_refused: after.was_refused,
    });
}

fn gauge(rules: &Ruleset, limit: &ReplayedLimit) -> Option<Gauge> {
    let quota = limit.limit.quota()?;
    Some(Gauge::new(&quota, rules.rate(limit.limit.name(), &quota)))
}

/// The part of a store's bounds that one partition gets. Subjects are not divided evenly.
fn share(whole: MemorySettings, partitions: usize) -> MemorySettings {
    if partitions == 1 {
        return whole;
    }
    let share = (2 * whole.max_buckets.get() / partitions).max(MIN_BUCKETS);
    let most = NonZeroUsize::new(share).unwrap_or(whole.max_buckets);
    MemorySettings {
        max_buckets: most.min(whole.max_buckets),
    }
}

/// Whether the log says that no limit counted this request to options, on a route with CORS.
fn is_preflight(past: PastRequest<'_>, route: Option<usize>, rules: &Ruleset) -> bool {
    let unlimited = |recorded: Recorded| recorded.decision == Disposition::Unlimited;
    past.request.method() == Method::OPTIONS
        && past.line.recorded.is_some_and(unlimited)
        && route.is_some_and(|route| rules.has_cors(route))
}

/// The greatest is the next.
impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Event {}
