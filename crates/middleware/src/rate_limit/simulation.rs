//! Decides about requests of the past as the layer decides about those that arrive: by the same
//! plan, bans, store and charges, at a time that the caller says. Nothing is forwarded, and nobody
//! waits. `weir replay` is made of it.
//!
//! The steps are those of `decide`. A request that is let through is [answered](Simulation::answer)
//! and then [ended](Unanswered::end) when the caller says so, so that what is charged by responses
//! and what is in flight count at their times.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Request, StatusCode};
use http_body::Body;
use weir_limit::time::{ManualClock, Timestamp};
use weir_limit::{BucketKey, Quota};
use weir_rules::{Access, RequestAttributes};
use weir_store::{Memory, Outcome, StoreFuture};
use weir_telemetry::Disposition;

use super::decisions::meaning;
use super::deferred_charge::DeferredCharges;
use super::delay::{Turn, at_its_turn};
use super::in_flight::{InFlight, LeaseRequest, join};
use super::plan::StoreQuery;
use super::policy::{PreparedLimit, RoutePolicy};
use crate::backend::{Backend, BackgroundTasks};
use crate::bans::{AccessControl, BanCheck};
use crate::route::RouteState;

/// Limits and bans with a store and a clock of their own.
///
/// Charges and strikes are tasks of tokio, which run at once as memory answers at once: they need
/// an entered runtime, and nothing that drives it.
pub struct Simulation {
    backend: Backend,
    clock: ManualClock,
    store: Arc<Memory>,
    access: AccessControl,
}

/// A request of the past.
pub struct PastRequest<'r, B> {
    /// Its head.
    pub request: &'r Request<B>,
    /// Its route; a route without limits where none matched.
    pub route: &'r Arc<RouteState>,
    /// What limits and bans go by.
    pub attributes: RequestAttributes<'r>,
}

/// How far a request is.
pub enum Progress {
    /// It is decided.
    Decided(Simulated),
    /// It waits for its turn.
    Waits(Box<Waiting>),
}

/// What was decided about a request.
pub struct Simulated {
    /// What was decided.
    pub disposition: Disposition,
    /// The limit that denied it, or would have.
    pub denied_by: Option<Arc<str>>,
    /// The ban that held, or would have.
    pub banned_by: Option<Arc<str>>,
    /// The list that its client is on.
    pub listed: Option<&'static str>,
    /// What is to be done when it is answered and over; none for most.
    pub unanswered: Option<Box<Unanswered>>,
}

/// What one limit decided.
pub struct LimitDecision<'d> {
    /// Its index among those of the route.
    pub limit: usize,
    /// Its bucket.
    pub key: &'d BucketKey,
    /// What the bucket may hold.
    pub quota: Quota,
    /// What the request takes.
    pub cost: NonZeroU64,
    /// Allowed, denied, or would deny; none where another's denial answered for it.
    pub disposition: Option<Disposition>,
}

/// A request that waits for its turn.
pub struct Waiting {
    undecided: Undecided,
    route: Arc<RouteState>,
    outcome: Outcome,
    turn: Turn,
}

/// What a request that was let through leaves to be done.
pub struct Unanswered {
    charges: Option<Arc<DeferredCharges>>,
    bans: Option<Box<BanCheck>>,
    in_flight: Option<InFlight>,
}

/// A request that the store was asked about. It is large, and stays where it is.
struct Undecided {
    query: StoreQuery,
    leases: Option<LeaseRequest>,
    bans: Option<Box<BanCheck>>,
    delayed: bool,
    arrived: Timestamp,
}

impl Simulated {
    fn new(disposition: Disposition) -> Self {
        Self {
            disposition,
            denied_by: None,
            banned_by: None,
            listed: None,
            unanswered: None,
        }
    }
}

impl Simulation {
    /// Limits, lists and bans that keep their buckets in `store`.
    pub fn new(store: Memory, access: AccessControl) -> Self {
        let (store, clock) = (Arc::new(store), ManualClock::default());
        let backend = Backend {
            leases: Arc::new(store.leases().clone()),
            clock: Arc::new(clock.clone()),
            tasks: BackgroundTasks::default(),
            ..Backend::new(Arc::<Memory>::clone(&store))
        };
        Self {
            backend,
            clock,
            store,
            access,
        }
    }

    /// The store.
    pub fn store(&self) -> &Memory {
        &self.store
    }

    /// Decides about a request that arrives at its attributes' time, and passes on what each limit
    /// that was asked decided.
    pub fn arrive<B: Body>(
        &self,
        past: &PastRequest<'_, B>,
        tell: impl FnMut(LimitDecision<'_>),
    ) -> Progress {
        let attributes = &past.attributes;
        let now = attributes.now;
        self.clock.set(now);
        match self.access_of(attributes) {
            Access::Unlisted => {}
            Access::Allowed(_) => {
                return Progress::Decided(Simulated {
                    listed: Some("allow"),
                    ..Simulated::new(Disposition::Unlimited)
                });
            }
            Access::Blocked(_) => {
                return Progress::Decided(Simulated {
                    listed: Some("block"),
                    ..Simulated::new(Disposition::Denied)
                });
            }
        }
        let bans = match self.access.is_empty() {
            true => None,
            false => self.access.check(attributes, &self.backend),
        };
        let mut undecided = Undecided {
            query: StoreQuery::default(),
            leases: None,
            bans: None,
            delayed: false,
            arrived: now,
        };
        let query = &mut undecided.query;
        let policy = &past.route.policy;
        let missing = policy.plan(past.request, attributes, query).err();
        if missing.is_some() {
            *query = StoreQuery::default();
        }
        if bans.is_none() && missing.is_none() && query.queried.is_empty() {
            return Progress::Decided(Simulated::new(Disposition::Unlimited));
        }
        if !query.claims.is_empty() {
            undecided.leases = Some(LeaseRequest {
                claims: std::mem::take(&mut query.claims).into(),
                batch: query.batch.clone(),
            });
        }
        let mut batch = query.batch.clone();
        let mut bans = bans.map(|(bans, checks)| {
            batch.insert_many(0, checks);
            bans
        });
        let Some(mut outcome) = at_once(self.backend.admit(batch, now, false)) else {
            return Progress::Decided(Simulated::new(Disposition::Unavailable));
        };
        let ban = bans.as_mut().and_then(|bans| bans.judge(&mut outcome));
        if let Some(bans) = &mut bans {
            bans.judged(ban.is_some(), past.request.uri().path());
        }
        if let Some(ban) = ban {
            return Progress::Decided(Simulated {
                banned_by: Some(ban.name),
                ..Simulated::new(Disposition::Denied)
            });
        }
        if let Some(missing) = missing {
            if let Some(bans) = &mut bans {
                bans.denied_by(std::iter::once(&*missing.limit));
            }
            return Progress::Decided(Simulated {
                denied_by: Some(missing.limit),
                ..Simulated::new(Disposition::Denied)
            });
        }
        undecided.bans = bans;
        match undecided.turn(past.route, &mut outcome, &self.backend) {
            None => {
                let backend = &self.backend;
                Progress::Decided(undecided.conclude(past.route, &mut outcome, backend, tell))
            }
            Some(turn) => Progress::Waits(Box::new(Waiting {
                undecided,
                route: Arc::clone(past.route),
                outcome,
                turn,
            })),
        }
    }

    fn access_of(&self, attributes: &RequestAttributes<'_>) -> Access {
        let account = attributes.account.map(|account| account.id);
        self.access.access_of(attributes.client, account)
    }

    /// Goes on with a request whose turn has come, at [`Waiting::until`].
    pub fn turn_has_come(
        &self,
        waiting: Waiting,
        tell: impl FnMut(LimitDecision<'_>),
    ) -> Simulated {
        let Waiting {
            mut undecided,
            route,
            mut outcome,
            turn,
        } = waiting;
        let waited = turn.wait.into();
        let now = undecided.arrived + waited;
        self.clock.set(now);
        turn.has_come();
        at_its_turn(&undecided.query.queried, &mut outcome, waited);
        undecided.arrived = now;
        undecided.delayed = true;
        undecided.conclude(&route, &mut outcome, &self.backend, tell)
    }

    /// The response begins: with this status, or not at all, because the client left.
    pub fn answer(&self, unanswered: &mut Unanswered, status: Option<StatusCode>, now: Timestamp) {
        self.clock.set(now);
        if let Some(charges) = unanswered.charges.take() {
            if let Some(status) = status {
                charges.learn(status, &HeaderMap::new());
            }
            drop(charges);
        }
        if let (Some(mut bans), Some(status)) = (unanswered.bans.take(), status) {
            bans.answered(status);
        }
    }
}

impl Waiting {
    /// When its turn comes.
    pub fn until(&self) -> Timestamp {
        self.undecided.arrived + self.wait().into()
    }

    fn wait(&self) -> Duration {
        self.turn.wait
    }
}

impl Unanswered {
    /// Whether its end matters beyond that of its head.
    pub fn is_in_flight(&self) -> bool {
        self.in_flight.is_some()
    }

    /// The response is over.
    pub fn end(self) {}
}

impl Undecided {
    /// The request's turn, if it was allowed and has to wait for it.
    fn turn(&self, route: &RouteState, outcome: &mut Outcome, backend: &Backend) -> Option<Turn> {
        let policy = &route.policy;
        let delay = policy.delay.as_ref()?;
        let queried = &self.query.queried;
        if policy.denial(queried, outcome).is_some() {
            return None;
        }
        let asked = (backend, self.arrived);
        Turn::of(delay, &self.query.batch, queried, outcome, asked)
    }

    /// Decides about a request whose turn it is, or that was denied.
    fn conclude(
        &mut self,
        route: &Arc<RouteState>,
        outcome: &mut Outcome,
        backend: &Backend,
        tell: impl FnMut(LimitDecision<'_>),
    ) -> Simulated {
        let policy = &route.policy;
        let in_flight = self.lease(policy, outcome, backend);
        self.tell(outcome, tell);
        let queried = &self.query.queried;
        if let Some(denial) = policy.denial(queried, outcome) {
            if let Some(bans) = &mut self.bans {
                bans.denied_by(denial.limits());
            }
            return Simulated {
                denied_by: Some(denial.limit()),
                ..Simulated::new(Disposition::Denied)
            };
        }
        let would_deny = policy.would_deny(queried, outcome);
        if let (Some(bans), Some(_)) = (&mut self.bans, &would_deny) {
            bans.would_be_denied_by(policy.would_denials(queried, outcome));
        }
        let would_ban = self.bans.as_mut().and_then(|bans| bans.would_hold());
        let disposition = match () {
            () if would_deny.is_some() || would_ban.is_some() => Disposition::WouldDeny,
            () if self.delayed => Disposition::Delayed,
            () if queried.is_empty() => Disposition::Unlimited,
            () => Disposition::Allowed,
        };
        let charges = std::mem::take(&mut self.query.charges);
        let charges = DeferredCharges::new(route, backend, charges, self.arrived, outcome);
        let bans = self.bans.take();
        let is_over = charges.is_none() && bans.is_none() && in_flight.is_none();
        Simulated {
            denied_by: would_deny,
            banned_by: would_ban,
            unanswered: (!is_over).then(|| {
                Box::new(Unanswered {
                    charges,
                    bans,
                    in_flight,
                })
            }),
            ..Simulated::new(disposition)
        }
    }

    /// Asks for the places in flight, if the other limits have allowed the request.
    fn lease(
        &self,
        policy: &RoutePolicy<PreparedLimit>,
        outcome: &mut Outcome,
        backend: &Backend,
    ) -> Option<InFlight> {
        let leases = self.leases.as_ref()?;
        let queried = &self.query.queried;
        if policy.denial(queried, outcome).is_some() {
            outcome.decisions.resize(queried.limits.len(), None);
            return None;
        }
        let asked = leases.ask(backend, self.arrived);
        let leased = at_once(asked).unwrap_or_else(|| leases.undecided());
        join(outcome, &leased.outcome);
        if policy.denial(queried, outcome).is_some() {
            leases.undo(queried, outcome, backend);
        }
        leases.places(policy, queried, leased)
    }

    /// Passes on what each limit of the batch decided, and then those on requests in flight.
    fn tell(&self, outcome: &Outcome, mut tell: impl FnMut(LimitDecision<'_>)) {
        let asked = self.query.batch.iter();
        let asked = asked.map(|transaction| (&transaction.key, transaction.cost));
        let claims = self.leases.iter().flat_map(|leases| &leases.claims);
        let claims = claims.map(|claim| (&claim.key, NonZeroU64::MIN));
        let decided = self.query.queried.decided(outcome);
        for ((queried, decision), (key, cost)) in decided.zip(asked.chain(claims)) {
            tell(LimitDecision {
                limit: queried.limit,
                key,
                quota: queried.quota,
                cost,
                disposition: decision.map(|decision| meaning(queried.role, &decision)),
            });
        }
    }
}

fn at_once<T>(answer: StoreFuture<T>) -> Option<T> {
    match answer {
        StoreFuture::Ready(answer) => answer?.ok(),
        StoreFuture::Waiting(_) => None,
    }
}
