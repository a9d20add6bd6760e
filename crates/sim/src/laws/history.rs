//! A trace, sorted out: each request with what became of it, what was in force when, and what was
//! out of order when.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::scenario::client::Request;
use crate::scenario::{
    Act, Algorithm, Client, Configuration, Cost, FaultKind, Keeps, Limit, LimitKind, LimitUse,
    LinkFault, OnFailure, Operation, Parameters, Per, Route, Scenario, Topology, subject,
};
use crate::trace::{Trace, What};

/// The longest back-off of a breaker is five seconds; then a probe has to succeed.
const RECOVERS: Duration = Duration::from_secs(7);

/// A broken connection is noticed within two seconds, by the check once a second.
const NOTICED: Duration = Duration::from_millis(2200);

/// How long a failover lasts until all have heard of it.
const SETTLES: Duration = Duration::from_secs(6);

/// How much earlier than its fault's beginning something may be touched by it: what was on its way.
const BEFORE: Duration = Duration::from_millis(100);

/// How long a gateway may not know of a change to the lists of overrides and standing bans, or
/// remember a ban that is over.
pub const LIST_SPREADS: Duration = Duration::from_millis(2200);

/// How long before or after its line in the log a configuration may come into force.
pub const AROUND: Duration = Duration::from_millis(100);

/// Older writes than these have reached a replica, where nothing is wrong.
const REPLICATED: Duration = Duration::from_millis(60);

/// A gateway that is not told of a slot's new owner by MOVED learns of it with its next map.
const MAPPED: Duration = Duration::from_secs(60);

/// How far the clocks of two servers differ that count as equal.
pub const SERVERS_DIFFER: Duration = Duration::from_millis(20);

/// What has no end, ends then: later than any simulation, and no overflow.
pub const FOREVER: Duration = Duration::from_secs(1 << 32);

/// A stretch of world time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Its beginning.
    pub from: Duration,
    /// Its end.
    pub until: Duration,
}

impl Span {
    /// From `from` until `until`.
    #[must_use]
    pub fn new(from: Duration, until: Duration) -> Self {
        Self { from, until }
    }

    /// Whether the two have a moment in common.
    #[must_use]
    pub fn meets(self, other: Self) -> bool {
        self.from <= other.until && other.from <= self.until
    }
}

/// A request, and what became of it.
#[derive(Debug)]
pub struct Exchange<'a> {
    /// The request.
    pub request: &'a Request,
    /// Who sent it.
    pub client: &'a Client,
    /// When it was sent.
    pub sent: Duration,
    /// When the app got it.
    pub reached: Option<Duration>,
    /// The head of its response.
    pub answer: Option<ResponseHead<'a>>,
    /// When the last byte of its response got to the client.
    pub finished: Option<Duration>,
    /// When its client left.
    pub left: Option<Duration>,
    /// When its connection broke.
    pub broken: Option<Duration>,
}

/// The head of a response.
#[derive(Debug, Clone, Copy)]
pub struct ResponseHead<'a> {
    /// When it got to the client.
    pub at: Duration,
    /// Its status.
    pub status: u16,
    /// Its header fields.
    pub headers: &'a [(String, String)],
}

impl ResponseHead<'_> {
    /// The first value of a header field.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Retry-After, in seconds.
    #[must_use]
    pub fn retry_after(&self) -> Option<u64> {
        self.header("retry-after")?.parse().ok()
    }

    /// The parameter `key` of a limit's item in `RateLimit`.
    #[must_use]
    pub fn rate_limit(&self, limit: &str, key: &str) -> Option<u64> {
        self.item("ratelimit", limit, key)
    }

    /// The parameter `key` of a limit's item in `RateLimit-Policy`.
    #[must_use]
    pub fn policy(&self, limit: &str, key: &str) -> Option<u64> {
        self.item("ratelimit-policy", limit, key)
    }

    /// Whether a field has an item of a limit.
    #[must_use]
    pub fn names(&self, field: &str, limit: &str) -> bool {
        self.parameters(field, limit).is_some()
    }

    fn item(&self, field: &str, limit: &str, key: &str) -> Option<u64> {
        let of_key = |part: &str| part.strip_prefix(&format!("{key}="))?.parse().ok();
        self.parameters(field, limit)?.find_map(of_key)
    }

    /// The parameters of a limit's item in a field.
    fn parameters(&self, field: &str, limit: &str) -> Option<impl Iterator<Item = &str>> {
        let fields = self.headers.iter().filter(|(name, _)| name == field);
        let mut items = fields.flat_map(|(_, value)| value.split(','));
        items.find_map(|item| {
            let mut parts = item.trim().split(';');
            (parts.next() == Some(&format!("\"{limit}\""))).then_some(parts)
        })
    }
}

impl Exchange<'_> {
    /// When it was over for its client, if it was.
    #[must_use]
    pub fn over(&self) -> Duration {
        let ends = [self.finished, self.left, self.broken];
        ends.into_iter().flatten().min().unwrap_or(FOREVER)
    }

    /// From when it was sent until it was over.
    #[must_use]
    pub fn span(&self) -> Span {
        Span::new(self.sent, self.over())
    }

    /// When it was decided at the latest.
    #[must_use]
    pub fn decided(&self) -> Duration {
        let answered = self.answer.map(|answer| answer.at);
        [self.reached, answered]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(self.over())
    }

    /// Whether the gateway refused it: it has a response, and never got to the app.
    #[must_use]
    pub fn refused(&self) -> bool {
        self.answer.is_some() && self.reached.is_none()
    }

    /// The value of one of its header fields.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.request.headers.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }

    /// What it costs before there is a response.
    #[must_use]
    pub fn cost(&self, one: &LimitUse) -> u64 {
        match one.cost {
            Cost::Fixed(cost) => cost,
            Cost::RequestHeader { default } => self
                .header("x-cost")
                .and_then(|text| text.parse().ok())
                .unwrap_or(default),
            Cost::ResponseHeader { default } => default,
        }
    }
}

/// Writes that a server may have lost, as a whole or in part.
#[derive(Debug, Clone, Copy)]
pub struct Loss {
    /// When.
    pub span: Span,
    /// Of which gateway's memory; `None` is Redis.
    pub gateway: Option<usize>,
    /// When the writes were made that may be lost, if all others are kept.
    pub writes: Option<[Span; 2]>,
}

impl Loss {
    /// Whether a store lacks by a moment what was written to it in a span.
    #[must_use]
    pub fn may_concern(&self, gateway: Option<usize>, written: Span, by: Duration) -> bool {
        let writes = self.writes.as_ref();
        self.gateway == gateway
            && self.span.meets(Span::new(written.from, by))
            && writes.is_none_or(|lost| lost.iter().any(|span| span.meets(written)))
    }
}

/// A clock by which decisions are taken was set.
#[derive(Debug, Clone, Copy)]
pub struct Jump {
    /// When.
    pub at: Duration,
    /// By how many nanoseconds.
    pub by: i64,
    /// How long gateways may take to learn of it.
    pub learned: Duration,
}

impl Jump {
    /// Whether gateways slew, as it is by no more than two seconds.
    #[must_use]
    pub fn is_slewed(self) -> bool {
        self.by.unsigned_abs() <= 2_100_000_000
    }

    /// Until when gateways may differ, or run faster or slower.
    #[must_use]
    pub fn span(self) -> Span {
        let slews = if self.is_slewed() {
            self.by.unsigned_abs() * 10
        } else {
            0
        };
        Span::new(
            self.at,
            self.at + self.learned + Duration::from_nanos(slews) + Duration::from_secs(8),
        )
    }
}

/// A trace, sorted out.
#[derive(Debug)]
pub struct History<'a> {
    /// What was simulated.
    pub scenario: &'a Scenario,
    /// What happened.
    pub trace: &'a Trace,
    /// The requests, in the order in which they were sent.
    pub exchanges: Vec<Exchange<'a>>,
    /// By gateway: when it may have been without its store.
    pub outages: Vec<Vec<Span>>,
    /// By gateway: when it stood still.
    pub freezes: Vec<Vec<Span>>,
    /// By gateway: when it ran.
    pub runs: Vec<Vec<Span>>,
    /// What was lost of what stores knew.
    pub losses: Vec<Loss>,
    /// Clocks that were set.
    pub jumps: Vec<Jump>,
    /// By gateway: since when which configuration is in force.
    pub in_force: Vec<Vec<(Duration, usize)>>,
    /// By operation: when it was sent, and its response.
    pub operations: Vec<Operated<'a>>,
    /// When it became quiet.
    pub quiet: Duration,
    /// The end of the trace.
    pub end: Duration,
}

/// An operation, and its response.
#[derive(Debug)]
pub struct Operated<'a> {
    /// What was asked for.
    pub operation: &'a Operation,
    /// When.
    pub sent: Option<Duration>,
    /// When the response came, its status and its body.
    pub answer: Option<(Duration, u16, &'a str)>,
}

impl<'a> History<'a> {
    /// Sorts out a trace.
    #[must_use]
    pub fn new(scenario: &'a Scenario, trace: &'a Trace) -> Self {
        let gateways = scenario.gateways.len();
        let operated = |operation| Operated {
            operation,
            sent: None,
            answer: None,
        };
        let mut history = Self {
            scenario,
            trace,
            exchanges: Vec::new(),
            outages: vec![Vec::new(); gateways],
            freezes: vec![Vec::new(); gateways],
            runs: vec![Vec::new(); gateways],
            losses: Vec::new(),
            jumps: Vec::new(),
            in_force: vec![Vec::new(); gateways],
            operations: scenario.operations.iter().map(operated).collect(),
            quiet: scenario.duration,
            end: trace.events.last().map_or(Duration::ZERO, |event| event.at),
        };
        history.read();
        history.learn_faults();
        history
    }

    fn read(&mut self) {
        let trace = self.trace;
        let clients: BTreeMap<u64, &Client> = self
            .scenario
            .clients
            .iter()
            .map(|client| (client.id, client))
            .collect();
        let mut index = BTreeMap::new();
        for event in &trace.events {
            let at = event.at;
            let of = |request: &(u64, u32)| index.get(request).copied();
            match &event.what {
                What::Sent(request) => {
                    let Some(client) = clients.get(&request.id.0) else {
                        continue;
                    };
                    index.insert(request.id, self.exchanges.len());
                    self.exchanges.push(Exchange {
                        request,
                        client,
                        sent: at,
                        reached: None,
                        answer: None,
                        finished: None,
                        left: None,
                        broken: None,
                    });
                }
                What::ReachedApp { request, .. } => {
                    if let Some(exchange) = of(request).and_then(|i| self.exchanges.get_mut(i)) {
                        exchange.reached.get_or_insert(at);
                    }
                }
                What::Answered {
                    request,
                    status,
                    headers,
                } => {
                    if let Some(exchange) = of(request).and_then(|i| self.exchanges.get_mut(i)) {
                        exchange.answer = Some(ResponseHead {
                            at,
                            status: *status,
                            headers,
                        });
                    }
                }
                What::Finished { request } => {
                    if let Some(exchange) = of(request).and_then(|i| self.exchanges.get_mut(i)) {
                        exchange.finished = Some(at);
                    }
                }
                What::Left { request } => {
                    if let Some(exchange) = of(request).and_then(|i| self.exchanges.get_mut(i)) {
                        exchange.left = Some(at);
                    }
                }
                What::Broken { request } => {
                    if let Some(exchange) = of(request).and_then(|i| self.exchanges.get_mut(i)) {
                        exchange.broken = Some(at);
                    }
                }
                What::Operated { operation } => {
                    if let Some(operated) = self.operations.get_mut(*operation) {
                        operated.sent = Some(at);
                    }
                }
                What::OperationAnswered {
                    operation,
                    status,
                    body,
                } => {
                    if let Some(operated) = self.operations.get_mut(*operation) {
                        operated.answer = Some((at, *status, body));
                    }
                }
                What::Started {
                    gateway,
                    configuration,
                } => {
                    self.in_force(*gateway, at, *configuration);
                    if let Some(runs) = self.runs.get_mut(*gateway) {
                        // What stood in memory went with the process before.
                        if !runs.is_empty() {
                            let loss = Loss {
                                span: Span::new(at, at),
                                gateway: Some(*gateway),
                                writes: None,
                            };
                            self.losses.push(loss);
                        }
                        runs.push(Span::new(at, FOREVER));
                    }
                }
                What::Ended { gateway } => {
                    let run = self.runs.get_mut(*gateway).and_then(|runs| runs.last_mut());
                    // One that ends before it serves ends no run.
                    if let Some(run) = run {
                        run.until = run.until.min(at);
                    }
                }
                What::InForce {
                    gateway,
                    configuration,
                } => {
                    self.in_force(*gateway, at, *configuration);
                }
                What::Promoted {
                    server, replaced, ..
                } => {
                    self.promoted(at);
                    self.follow(at, (*replaced, *server), Duration::ZERO);
                }
                What::SlotZeroMoved { from, to } => self.follow(at, (*from, *to), MAPPED),
                What::Quiet => self.quiet = at,
                What::FaultBegan { .. } | What::FaultEnded { .. } | What::Log { .. } => {}
                What::Holds { .. } => {}
            }
        }
    }

    fn in_force(&mut self, gateway: usize, at: Duration, configuration: usize) {
        if let Some(changes) = self.in_force.get_mut(gateway) {
            changes.push((at, configuration));
        }
    }

    /// Gateways follow another server's clock.
    fn follow(&mut self, at: Duration, (from, to): (usize, usize), learned: Duration) {
        let by = self.ahead(to, at) - self.ahead(from, at);
        if Duration::from_nanos(by.unsigned_abs()) > SERVERS_DIFFER {
            self.jumps.push(Jump { at, by, learned });
        }
    }

    /// How many nanoseconds a server's clock is ahead of the world's at a time.
    fn ahead(&self, server: usize, at: Duration) -> i64 {
        let clock = self.scenario.store.clocks.get(server).copied();
        let clock = clock.unwrap_or_default();
        let micros = i64::try_from(at.as_micros()).unwrap_or(0);
        let drift = micros * i64::from(clock.drift) / 1000;
        let set = self.scenario.faults.iter().map(|fault| match fault.kind {
            FaultKind::StepServerClock { server: own, by }
                if fault.at <= at && own.is_none_or(|own| own == server) =>
            {
                by
            }
            _ => 0,
        });
        clock.ahead + drift + set.sum::<i64>()
    }

    /// A replica that takes over lacks the latest writes.
    fn promoted(&mut self, at: Duration) {
        let span = Span::new(
            at.saturating_sub(Duration::from_secs(20)),
            at + Duration::from_secs(2),
        );
        // From when the old primary failed, and while it takes writes again, until it is told.
        let absence = self.scenario.faults.iter().filter_map(|fault| {
            let lasts = match &fault.kind {
                FaultKind::FreezeServer { lasts, .. } => *lasts,
                FaultKind::RestartServer { down, .. } => *down,
                _ => return None,
            };
            let absence = Span::new(fault.at.saturating_sub(REPLICATED), fault.at + lasts);
            absence.meets(Span::new(at, at)).then_some(absence)
        });
        let absence = absence.reduce(|one, other| Span {
            from: one.from.min(other.from),
            until: one.until.max(other.until),
        });
        let planned = Span::new(at.saturating_sub(Duration::from_secs(1)), at);
        let absence = absence.unwrap_or(planned);
        let told = absence.until + Duration::from_secs(5);
        self.losses.push(Loss {
            span,
            gateway: None,
            writes: Some([
                Span::new(absence.from, at + BEFORE),
                Span::new(absence.until, told),
            ]),
        });
    }

    fn set(&mut self, at: Duration, by: i64) {
        let learned = Duration::ZERO;
        self.jumps.push(Jump { at, by, learned });
    }

    fn learn_faults(&mut self) {
        let scenario = self.scenario;
        let redis = scenario.store.topology != Topology::Memory;
        let all = 0..scenario.gateways.len();
        for fault in &scenario.faults {
            let at = fault.at;
            let spans =
                |lasts: Duration| Span::new(at.saturating_sub(BEFORE), at + lasts + RECOVERS);
            let mut outage = |gateways: std::ops::Range<usize>, lasts| {
                for gateway in gateways.filter(|_| redis) {
                    self.outages[gateway].push(spans(lasts));
                }
            };
            let one = |gateway: usize| gateway..gateway + 1;
            match &fault.kind {
                FaultKind::Link { gateway, lasts, .. } => {
                    outage(gateway.map_or(all.clone(), one), *lasts);
                }
                FaultKind::FreezeServer { lasts, .. }
                | FaultKind::OutOfMemory { lasts, .. }
                | FaultKind::Refuse { lasts, .. } => outage(all.clone(), *lasts),
                FaultKind::RestartServer { down, keeps, .. } => {
                    outage(all.clone(), *down);
                    if *keeps != Keeps::Everything {
                        let span = Span::new(at.saturating_sub(BEFORE), at + *down + RECOVERS);
                        self.losses.push(Loss {
                            span,
                            gateway: None,
                            writes: None,
                        });
                    }
                }
                FaultKind::Flush { .. } | FaultKind::Evict { .. } => {
                    let span = Span::new(at.saturating_sub(BEFORE), at + BEFORE);
                    self.losses.push(Loss {
                        span,
                        gateway: None,
                        writes: None,
                    });
                }
                FaultKind::Failover { .. } => outage(all.clone(), Duration::from_secs(5)),
                FaultKind::FreezeGateway { gateway, lasts } => {
                    outage(one(*gateway), *lasts);
                    let span = Span::new(at.saturating_sub(BEFORE), at + *lasts + BEFORE);
                    self.freezes[*gateway].push(span);
                }
                FaultKind::KillGateway {
                    gateway,
                    restarts_after,
                }
                | FaultKind::StopGateway {
                    gateway,
                    restarts_after,
                } => {
                    // A gateway that starts while the store is out of reach waits for a second.
                    outage(one(*gateway), restarts_after.unwrap_or_default());
                }
                FaultKind::StepServerClock { by, .. } if redis => self.set(at, *by),
                FaultKind::StepGatewayClock { by, .. } if !redis || scenario.store.local_clock => {
                    self.set(at, *by);
                }
                FaultKind::StepServerClock { .. }
                | FaultKind::StepGatewayClock { .. }
                | FaultKind::MoveSlots { .. }
                | FaultKind::SlowApp { .. } => {}
            }
        }
    }

    /// Whether a gateway may have been without its store at some time.
    #[must_use]
    pub fn is_outage(&self, gateway: usize, span: Span) -> bool {
        let outages = self.outages.get(gateway);
        outages.is_some_and(|outages| outages.iter().any(|outage| outage.meets(span)))
    }

    /// When a gateway that was to do something from a moment on has had so long for it, with its
    /// store and without standing still.
    #[must_use]
    pub fn undisturbed(&self, gateway: usize, since: Duration, lasts: Duration) -> Duration {
        let disturbed = [&self.outages, &self.freezes].map(|all| all.get(gateway));
        let disturbed: Vec<&Span> = disturbed.into_iter().flatten().flatten().collect();
        let mut from = since;
        while let Some(span) = disturbed
            .iter()
            .find(|span| span.meets(Span::new(from, from + lasts)))
        {
            from = span.until + Duration::from_nanos(1);
        }
        from + lasts
    }

    /// Whether a gateway stood still at some time.
    #[must_use]
    pub fn is_frozen(&self, gateway: usize, span: Span) -> bool {
        let freezes = self.freezes.get(gateway);
        freezes.is_some_and(|freezes| freezes.iter().any(|freeze| freeze.meets(span)))
    }

    /// Whether anything was out of order for anybody.
    #[must_use]
    pub fn is_disturbed(&self, span: Span) -> bool {
        let gateways = 0..self.scenario.gateways.len();
        let mut gateways = gateways;
        gateways.any(|gateway| self.is_outage(gateway, span) || self.is_frozen(gateway, span))
            || self.jumps.iter().any(|jump| jump.span().meets(span))
            || self.losses.iter().any(|loss| loss.span.meets(span))
    }

    /// Whether a fault can have broken connections to Redis, so that it is unknown for good whether
    /// what was on its way was carried out.
    #[must_use]
    pub fn may_break(&self, gateway: usize, span: Span) -> bool {
        self.scenario.faults.iter().any(|fault| {
            let short = |lasts: Duration| lasts < Duration::from_millis(900);
            let (whose, lasts, breaks) = match &fault.kind {
                FaultKind::Link {
                    gateway,
                    lasts,
                    what,
                    ..
                } => match what {
                    LinkFault::Slow(_) => (*gateway, *lasts, false),
                    LinkFault::Stall => (*gateway, *lasts, !short(*lasts)),
                    _ => (*gateway, *lasts, true),
                },
                FaultKind::FreezeServer { lasts, .. } => (None, *lasts, !short(*lasts)),
                FaultKind::FreezeGateway { gateway, lasts } => (Some(*gateway), *lasts, true),
                FaultKind::KillGateway { gateway, .. } | FaultKind::StopGateway { gateway, .. } => {
                    (Some(*gateway), Duration::ZERO, true)
                }
                FaultKind::RestartServer { down, .. } => (None, *down, true),
                FaultKind::Failover { .. } => (None, Duration::ZERO, true),
                FaultKind::OutOfMemory { lasts, .. } | FaultKind::Refuse { lasts, .. } => {
                    (None, *lasts, true)
                }
                FaultKind::Flush { .. } | FaultKind::Evict { .. } => (None, Duration::ZERO, true),
                FaultKind::StepServerClock { .. }
                | FaultKind::StepGatewayClock { .. }
                | FaultKind::MoveSlots { .. }
                | FaultKind::SlowApp { .. } => return false,
            };
            // Servers close connections when they change their roles.
            let after = match &fault.kind {
                FaultKind::FreezeServer { .. }
                | FaultKind::RestartServer { .. }
                | FaultKind::Failover { .. } => SETTLES,
                _ => NOTICED,
            };
            let during = Span::new(fault.at.saturating_sub(BEFORE), fault.at + lasts + after);
            breaks && whose.is_none_or(|whose| whose == gateway) && during.meets(span)
        })
    }

    /// The routes of all configurations.
    #[must_use]
    pub fn route(&self, exchange: &Exchange<'_>) -> Option<&'a Route> {
        self.scenario
            .configurations
            .first()?
            .routes
            .get(exchange.request.route)
    }

    /// For how long a request may wait.
    #[must_use]
    pub fn may_wait(&self, exchange: &Exchange<'_>) -> Duration {
        self.route(exchange).map_or(Duration::ZERO, Route::delay)
    }

    /// How a limit is used for a request, unless its gateway may go by a configuration without the
    /// limit.
    #[must_use]
    pub fn limit_use(&self, exchange: &Exchange<'_>, limit: &str) -> Option<&'a LimitUse> {
        let one = self.possible_use(exchange, limit)?;
        (!self.may_lack(exchange, limit)).then_some(one)
    }

    /// How a limit is used for a request, if it is.
    #[must_use]
    pub fn possible_use(&self, exchange: &Exchange<'_>, limit: &str) -> Option<&'a LimitUse> {
        let mut uses = self.route(exchange)?.limits.iter();
        uses.find(|one| one.limit == limit)
    }

    /// Whether the gateway of a request may go by a configuration without a limit.
    #[must_use]
    pub fn may_lack(&self, exchange: &Exchange<'_>, limit: &str) -> bool {
        let lacks = |one: &Configuration| one.limit(limit).is_none();
        let span = Span::new(exchange.sent.saturating_sub(AROUND), exchange.decided());
        let mut met = self.configurations(exchange.request.gateway);
        self.scenario.configurations.iter().any(lacks)
            && met.any(|(during, one)| {
                let during = Span::new(during.from.saturating_sub(AROUND), during.until);
                lacks(one) && during.meets(span)
            })
    }

    /// How long after it was sent the decision about a request that does not wait may become
    /// visible, when nothing is wrong.
    #[must_use]
    pub fn jitter(&self) -> Duration {
        self.scenario.store.latency.1 * 8 + Duration::from_millis(6)
    }

    /// How far the clocks are apart that decisions go by, where gateways go by their own.
    #[must_use]
    pub fn clocks_differ(&self) -> Duration {
        if !self.scenario.store.local_clock {
            return Duration::ZERO;
        }
        let gateways = self.scenario.gateways.iter();
        let ahead = gateways.map(|gateway| gateway.clock.ahead).chain([0]);
        let (least, most) = (ahead.clone().min(), ahead.max());
        let apart = most.unwrap_or(0) - least.unwrap_or(0);
        Duration::from_nanos(apart.unsigned_abs()) + self.end / 3000
    }

    /// The buckets that there may be, each with the exchanges that may touch it.
    #[must_use]
    pub fn buckets(&self) -> Vec<Bucket<'_>> {
        let Some(configuration) = self.scenario.configurations.first() else {
            return Vec::new();
        };
        let memory = self.scenario.store.topology == Topology::Memory;
        let mut found: BTreeMap<(usize, String, Option<usize>), Vec<&Exchange<'_>>> =
            BTreeMap::new();
        for exchange in &self.exchanges {
            let uses = self
                .route(exchange)
                .map_or(&[][..], |route| &route.limits[..]);
            for one in uses {
                let limits = &configuration.limits;
                let Some(index) = limits.iter().position(|limit| limit.name == one.limit) else {
                    continue;
                };
                let Some(subject) = subject(exchange.client, limits[index].per) else {
                    continue;
                };
                let gateway = memory.then_some(exchange.request.gateway);
                found
                    .entry((index, subject, gateway))
                    .or_default()
                    .push(exchange);
            }
        }
        let bucket = |((index, subject, gateway), exchanges): (_, Vec<_>)| {
            let limit: &Limit = configuration.limits.get::<usize>(index)?;
            Some(Bucket {
                limit,
                subject,
                gateway,
                exchanges,
            })
        };
        found.into_iter().filter_map(bucket).collect()
    }

    /// The configurations that a gateway went by, each with when, while it ran.
    pub fn configurations(
        &self,
        gateway: usize,
    ) -> impl Iterator<Item = (Span, &'a Configuration)> {
        let changes = self.in_force.get(gateway).map_or(&[][..], |all| &all[..]);
        let runs = self.runs.get(gateway).map_or(&[][..], |all| &all[..]);
        let all = self.scenario.configurations.as_slice();
        changes
            .iter()
            .enumerate()
            .filter_map(move |(index, (from, number))| {
                let next = changes.get(index + 1).map_or(FOREVER, |(at, _)| *at);
                let run = runs.iter().rfind(|run| run.from <= *from);
                let until = run.map_or(next, |run| run.until.min(next));
                Some((Span::new(*from, until), all.get(*number)?))
            })
    }

    /// The definitions of a limit that may be in force for a subject at some time of a span, on
    /// some gateway or on the one that is named.
    #[must_use]
    pub fn definitions(&self, bucket: &Bucket<'_>, span: Span) -> Vec<Parameters> {
        let mut all: Vec<Parameters> = Vec::new();
        let mut add = |parameters| {
            if !all.contains(&parameters) {
                all.push(parameters);
            }
        };
        let gateways = 0..self.scenario.gateways.len();
        for gateway in gateways.filter(|one| bucket.gateway.is_none_or(|own| own == *one)) {
            for (during, configuration) in self.configurations(gateway) {
                let limit = configuration.limit(&bucket.limit.name);
                if let Some(limit) = limit
                    && Span::new(during.from, during.until + BEFORE).meets(span)
                {
                    add(limit.parameters(&bucket.subject));
                }
            }
        }
        for (parameters, during) in self.overrides(bucket) {
            if during.meets(span) {
                add(parameters);
            }
        }
        all
    }

    /// Overrides by the admin API that a subject may have had, and when.
    fn overrides(&self, bucket: &Bucket<'_>) -> Vec<(Parameters, Span)> {
        let mut all: Vec<(Parameters, Span)> = Vec::new();
        for operated in &self.operations {
            let Some(sent) = operated.sent else { continue };
            match &operated.operation.act {
                Act::SetOverride {
                    limit,
                    subject,
                    parameters,
                    length,
                } if *limit == bucket.limit.name && *subject == bucket.subject => {
                    let answered = operated.answer.map_or(self.end, |(at, ..)| at);
                    let lasts = |length| answered + length + Duration::from_secs(4);
                    let until = length.map_or(FOREVER, lasts);
                    let until = until + self.set_back(sent);
                    all.push((*parameters, Span::new(sent, until)));
                }
                _ => {}
            }
        }
        // One that is deleted by everybody's word is gone two seconds later.
        let undisturbed = self.scenario.faults.is_empty();
        for operated in self.operations.iter().filter(|_| undisturbed) {
            if let Act::DeleteOverride { limit, subject } = &operated.operation.act
                && *limit == bucket.limit.name
                && *subject == bucket.subject
                && let Some((at, 200..=204, _)) = operated.answer
            {
                for (_, span) in &mut all {
                    if span.from < operated.sent.unwrap_or_default() {
                        span.until = span.until.min(at + Duration::from_millis(2500));
                    }
                }
            }
        }
        all
    }

    /// From when on a gateway must know of a change to the lists of overrides and standing bans
    /// that another was asked for, if it must. The one that was asked knows it while it runs;
    /// another after a look at the list, and a Redis that has lost it gets it back from a gateway
    /// that knows it.
    #[must_use]
    pub fn listed(
        &self,
        (asked, gateway): (usize, usize),
        written: Span,
        by: Duration,
    ) -> Option<Duration> {
        let run = |gateway: usize| self.runs.get(gateway)?.iter().rfind(|run| run.from <= by);
        let keeps = |run: &Span| run.from <= written.from && run.until >= by;
        let keeps = run(asked).is_some_and(keeps);
        if keeps && gateway == asked {
            return Some(written.until);
        }
        let mut since = written.until.max(run(gateway)?.from);
        for loss in &self.losses {
            if loss.may_concern(None, written, by) {
                let lost = since.max(loss.span.until);
                since = keeps.then(|| self.undisturbed(asked, lost, LIST_SPREADS))?;
            }
        }
        Some(self.undisturbed(gateway, since, LIST_SPREADS))
    }

    /// By how much what ends at a moment of the store's clock may end earlier, as that was set:
    /// ahead since, or back while the gateway that wrote the moment may not have followed.
    #[must_use]
    pub fn ends_earlier(&self, written: Span, by: Duration) -> Duration {
        let jumps = self.jumps.iter().filter(|jump| {
            let until = if jump.by > 0 { by } else { written.until };
            jump.span().meets(Span::new(written.from, until))
        });
        jumps
            .map(|jump| Duration::from_nanos(jump.by.unsigned_abs()))
            .sum()
    }

    /// By how much what ends at a moment of the store's clock may last longer, as that was set back.
    #[must_use]
    pub fn set_back(&self, since: Duration) -> Duration {
        let jumps = self.jumps.iter();
        let back = jumps.filter(|jump| jump.by < 0 && jump.span().until >= since);
        back.map(|jump| Duration::from_nanos(jump.by.unsigned_abs()))
            .sum()
    }

    /// Whether an operator changed a bucket, its limit for the subject, or refunded it.
    #[must_use]
    pub fn is_operated(&self, bucket: &Bucket<'_>) -> bool {
        self.operations
            .iter()
            .any(|operated| match &operated.operation.act {
                Act::SetOverride { limit, subject, .. }
                | Act::DeleteOverride { limit, subject }
                | Act::Refund { limit, subject, .. }
                | Act::Reset { limit, subject } => {
                    *limit == bucket.limit.name && *subject == bucket.subject
                }
                _ => false,
            })
    }

    /// Wall time of the store at a moment of the world, in nanoseconds, if no clock was set.
    #[must_use]
    pub fn store_time(&self, gateway: Option<usize>, at: Duration) -> i128 {
        let scenario = self.scenario;
        let clock = match gateway {
            Some(gateway) => scenario.gateways.get(gateway).map(|gateway| gateway.clock),
            None => scenario.store.clocks.first().copied(),
        };
        let clock = clock.unwrap_or_default();
        let nanos = i128::try_from(at.as_nanos()).unwrap_or(0);
        i128::from(scenario.epoch)
            + i128::from(clock.ahead)
            + nanos
            + nanos * i128::from(clock.drift) / 1_000_000
    }

    /// Whether gateways let requests pass, undecided or by their own memory, without their store.
    #[must_use]
    pub fn passes_without_store(&self) -> bool {
        self.scenario.store.on_failure != OnFailure::Deny
    }

    /// The configuration that all have had from the beginning to the end, if there is one.
    #[must_use]
    pub fn only_configuration(&self) -> Option<&'a Configuration> {
        let mut all = self
            .in_force
            .iter()
            .flatten()
            .map(|(_, configuration)| *configuration);
        let first = all.next()?;
        all.all(|other| other == first)
            .then(|| self.scenario.configurations.get(first))?
    }
}

/// The state of one limit for one subject.
#[derive(Debug)]
pub struct Bucket<'a> {
    /// The limit, as the first configuration has it: its name, algorithm and `per` never change.
    pub limit: &'a Limit,
    /// The subject.
    pub subject: String,
    /// The gateway whose memory it is in.
    pub gateway: Option<usize>,
    /// The requests that may touch it.
    pub exchanges: Vec<&'a Exchange<'a>>,
}

impl Bucket<'_> {
    /// As it is called in stories.
    #[must_use]
    pub fn name(&self) -> String {
        let own = self
            .gateway
            .map(|gateway| format!(" on gateway {gateway}"))
            .unwrap_or_default();
        format!("limit {} of {}{own}", self.limit.name, self.subject)
    }
}

/// Whether requests of a route take from a limit what they cost when they arrive, or are denied.
#[must_use]
pub fn takes_or_denies(one: &LimitUse) -> bool {
    one.kind == LimitKind::CheckAndSpend
        && one.enforce
        && !one.spend_on_errors
        && !matches!(one.cost, Cost::ResponseHeader { .. })
}

/// Whether a limit counts requests that it denies.
#[must_use]
pub fn counts_denied(limit: &Limit) -> bool {
    matches!(
        limit.algorithm,
        Algorithm::SlidingWindow { count_denied: true }
            | Algorithm::SlidingLog { count_denied: true }
    )
}

/// Whether two clients share a bucket of a limit.
#[must_use]
pub fn share(one: &Client, other: &Client, per: Per) -> bool {
    let subject_of_one = subject(one, per);
    subject_of_one.is_some() && subject_of_one == subject(other, per)
}
