//! A request's way from the question to the store to what becomes of it: `ask`, `decided`,
//! `leased`,
//! `conclude`, then `forward` or `deny`.
//!
//! The memory store's answer is there when it is asked for, and all of this then happens within the
//! call of the layer. Another store's answer is waited for, in a box.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{Request, Response, StatusCode};

use super::decisions::{Denial, QueriedLimits};
use super::deferred_charge::{DeferredCharge, DeferredCharges};
use super::in_flight::{InFlight, LeaseRequest, join, undecided};
use super::plan::{MissingValue, Plan, StoreQuery, attributes};
use super::policy::OnDenied;
use super::response_context::{DecoySample, Metered, ResponseContext};
use super::{Denied, LimitedService, RateLimit, RequestBody, Settings, State};
use crate::middleware::backend::PendingTasks;
use crate::middleware::bans::{ActiveBan, BanCheck, PreparedTreatment, TreatmentAnswer};
use crate::middleware::decoy::Shadow;
use crate::middleware::response::{self, Rejection};
use crate::middleware::route::{RouteState, Routed};
use crate::middleware::{ClientIdentity, ResponseBody, Verdict};
use crate::problem::Problem;
use crate::rules::Captures;
use crate::store::{DecisionSource, Leased, Outcome, StoreError, StoreFuture};
use crate::telemetry::Disposition;
use crate::time::{Nanos, Timestamp};

impl<S> RateLimit<S> {
    /// Forwards a request that no limit applies to.
    pub(super) fn pass<B: RequestBody>(
        &mut self,
        request: Request<B>,
        listed: Option<&'static str>,
    ) -> State<S::Future, S::ResponseBody>
    where
        S: LimitedService<B>,
    {
        let route = self.settings.route_or_none(request.extensions());
        let conceals = route.policy.conceals().then(|| Arc::clone(route));
        let mut context = ResponseContext::of(Disposition::Unlimited, conceals);
        context.verdict.listed = listed;
        State::Forwarding {
            future: self.inner.call(request.map(Metered::unmetered)),
            context,
        }
    }

    /// Asks the store about a request, about bans first: one that is remembered has to answer
    /// before another denial that is.
    pub(super) fn ask<B: RequestBody>(
        &mut self,
        request: Request<B>,
    ) -> State<S::Future, S::ResponseBody>
    where
        S: LimitedService<B>,
    {
        let Self { inner, settings } = self;
        let backend = &settings.backend;
        let route = settings.route_or_none(request.extensions());
        if settings.access.is_none() && !route.is_limited() {
            return self.pass(request, None);
        }
        let now = backend.now();
        let no_captures = Captures::default();
        let attributes = attributes(&request, route.name(), &no_captures, now);
        let is_unknown = attributes.client == ClientIdentity::UNKNOWN;
        if is_unknown && route.policy.counts_addresses && !settings.shares_unknown {
            return unidentified();
        }
        let access = settings.access.as_ref();
        let bans = access.and_then(|access| access.check(&attributes, backend));
        let (query, missing) = match route.policy.plan(&request, &attributes) {
            Plan::Ask(query) => (query, None),
            Plan::Missing(missing) => (StoreQuery::default(), Some(missing)),
            Plan::Unlimited if bans.is_none() && route.decoys().next().is_none() => {
                return self.pass(request, None);
            }
            Plan::Unlimited => (StoreQuery::default(), None),
        };
        let StoreQuery {
            mut batch,
            claims,
            queried,
            charges,
        } = query;
        let leases = (!claims.is_empty()).then(|| {
            Box::new(LeaseRequest {
                claims: claims.into(),
                batch: batch.clone(),
            })
        });
        let bans = bans.map(|(bans, checks)| {
            batch.insert_many(0, checks);
            bans
        });
        let undecided = Undecided {
            route: Arc::clone(route),
            settings: Arc::clone(settings),
            queried,
            charges,
            leases,
            bans,
            missing,
            request,
            inner: take_ready(inner),
            arrived: now,
            since: Instant::now(),
        };
        let answer = backend.admit(batch, now, undecided.is_idle());
        undecided.decide(answer)
    }
}

/// The service that is ready, to go with a request; its clone takes its place.
pub(super) fn take_ready<S: Clone>(inner: &mut S) -> S {
    let clone = inner.clone();
    std::mem::replace(inner, clone)
}

/// A request whose limits are being checked.
struct Undecided<S, B> {
    settings: Arc<Settings>,
    route: Arc<RouteState>,
    queried: QueriedLimits,
    /// What is charged when the request is through; most requests leave nothing.
    charges: Vec<DeferredCharge>,
    /// The places to ask for when the store has allowed the request; most requests need none.
    leases: Option<Box<LeaseRequest>>,
    /// What bans have to do with it, where there are any; their decisions come first.
    bans: Option<Box<BanCheck>>,
    /// The limit that denies the request because it lacks a value, unless a ban keeps it out.
    missing: Option<Box<MissingValue>>,
    request: Request<B>,
    inner: S,
    arrived: Timestamp,
    since: Instant,
}

/// Goes on with an answer of the store: at once where it is there, as the memory store's is.
fn when_answered<T, F, R>(
    answer: StoreFuture<T>,
    go_on: impl FnOnce(Result<T, StoreError>) -> State<F, R> + Send + 'static,
) -> State<F, R>
where
    T: Send + Unpin + 'static,
{
    match answer {
        StoreFuture::Ready(Some(answer)) => go_on(answer),
        answer => State::Waiting {
            decision: Box::pin(async move { go_on(answer.await) }),
        },
    }
}

impl<S, B> Undecided<S, B> {
    /// Whether no decision of the store would be acted upon.
    fn is_idle(&self) -> bool {
        self.queried.is_idle() && self.bans.as_ref().is_none_or(|bans| bans.is_idle())
    }
}

impl<S: LimitedService<B>, B: RequestBody> Undecided<S, B> {
    /// Decides about the request by the store's answer.
    fn decide(self, answer: StoreFuture<Outcome>) -> State<S::Future, S::ResponseBody> {
        when_answered(answer, |answer| self.decided(answer))
    }

    /// Goes on with the request, now that the store has answered or failed.
    fn decided(mut self, answer: Result<Outcome, StoreError>) -> State<S::Future, S::ResponseBody> {
        let mut outcome = match answer {
            Ok(outcome) => outcome,
            // A dry run stops no request, whatever becomes of the store.
            Err(_) if self.is_idle() => undecided(self.asked_of_store()),
            Err(_) => return unavailable(self.since.elapsed()),
        };
        if let Some(bans) = &mut self.bans
            && let Some(ban) = bans.judge(&mut outcome, self.request.uri().path())
        {
            return self.treat_banned(&ban, &outcome);
        }
        if let Some(missing) = self.missing.take() {
            return self.deny_missing(&missing);
        }
        if let Some(leases) = self.leases.take() {
            if self.route.policy.denial(&self.queried, &outcome).is_none() {
                let leased = leases.ask(&self.settings.backend, self.arrived);
                return when_answered(leased, move |leased| self.leased(&leases, outcome, leased));
            }
            // No place was asked for.
            outcome.decisions.resize(self.queried.limits.len(), None);
        }
        self.conclude(outcome, None)
    }

    /// How many bans and limits the store was asked about.
    fn asked_of_store(&self) -> usize {
        let leases = self.leases.as_ref();
        let limits = self.queried.limits.len() - leases.map_or(0, |leases| leases.claims.len());
        limits + self.bans.as_ref().map_or(0, |bans| bans.len())
    }

    /// Goes on with the request, now that its places in flight are granted or denied.
    fn leased(
        self,
        leases: &LeaseRequest,
        mut outcome: Outcome,
        answer: Result<Leased, StoreError>,
    ) -> State<S::Future, S::ResponseBody> {
        let leased = match answer {
            Ok(leased) => leased,
            Err(_) if self.queried.is_idle() => leases.undecided(),
            Err(_) => {
                leases.undo(&mut outcome, &self.settings.backend);
                return unavailable(self.since.elapsed());
            }
        };
        join(&mut outcome, &leased.outcome);
        let policy = &self.route.policy;
        if policy.denial(&self.queried, &outcome).is_some() {
            leases.undo(&mut outcome, &self.settings.backend);
        }
        let places = leases.places(policy, &self.queried, leased);
        self.conclude(outcome, places)
    }

    /// Goes on with a request about which all is known.
    fn conclude(
        self,
        outcome: Outcome,
        in_flight: Option<InFlight>,
    ) -> State<S::Future, S::ResponseBody> {
        let store = self.since.elapsed();
        let route = Arc::clone(&self.route);
        route.policy.count(&self.queried, &outcome);
        match route.policy.denial(&self.queried, &outcome) {
            None => self.forward(outcome, store, in_flight),
            Some(denial) => self.deny(&denial, outcome, store),
        }
    }

    /// Gives a banned client what its ban says.
    fn treat_banned(self, ban: &ActiveBan, outcome: &Outcome) -> State<S::Future, S::ResponseBody> {
        let verdict = Verdict {
            banned_by: Some(Arc::clone(&ban.name)),
            decided_by: decided_by(outcome),
            store: Some(self.since.elapsed()),
            ..Verdict::new(Disposition::Denied)
        };
        let now = self.settings.backend.now();
        let simulated = self.queried.simulated(outcome.source, now);
        let context = ResponseContext {
            verdict,
            status: Some((self.queried, simulated)),
            ..ResponseContext::of(Disposition::Denied, Some(Arc::clone(&self.route)))
        };
        let treatment = TreatmentContext {
            treatment: &ban.treatment,
            route: &self.route,
            retry_in: ban.retry_in,
        };
        treatment.treat(self.inner, self.request, context)
    }

    /// Refuses a request without a value that a limit must have, which may be a strike.
    fn deny_missing(mut self, missing: &MissingValue) -> State<S::Future, S::ResponseBody> {
        if let Some(bans) = &mut self.bans {
            bans.denied_by(std::iter::once(&*missing.limit));
        }
        let mut context = ResponseContext::of(Disposition::Denied, None);
        context.verdict.denied_by = Some(Arc::clone(&missing.limit));
        context.bans = self.bans;
        reject(&self.route, self.request, context, |_| {
            response::missing(&missing.limit, &missing.source)
        })
    }

    /// Lets the request through.
    fn forward(
        mut self,
        outcome: Outcome,
        store: Duration,
        in_flight: Option<InFlight>,
    ) -> State<S::Future, S::ResponseBody> {
        let policy = &self.route.policy;
        let would_deny = policy.would_deny(&self.queried, &outcome);
        if let (Some(bans), Some(_)) = (&mut self.bans, &would_deny) {
            bans.would_be_denied_by(policy.would_denials(&self.queried, &outcome));
        }
        let would_ban = self.bans.as_mut().and_then(|bans| bans.would_hold());
        let verdict = Verdict {
            disposition: match outcome.source {
                DecisionSource::FailedOpen => Disposition::FailedOpen,
                _ if would_deny.is_some() || would_ban.is_some() => Disposition::WouldDeny,
                _ if self.queried.is_empty() => Disposition::Unlimited,
                _ => Disposition::Allowed,
            },
            denied_by: would_deny,
            banned_by: would_ban,
            listed: None,
            decided_by: decided_by(&outcome),
            store: Some(store),
            in_flight: policy.in_flight(&self.queried, &outcome),
        };
        let sample = DecoySample::of(&self.route, &self.request);
        let charges = DeferredCharges::new(
            &self.route,
            &self.settings.backend,
            self.charges,
            self.arrived,
            &outcome,
        );
        let meter = charges.clone().filter(|charges| charges.is_by_body());
        let upload = sample.as_ref().and_then(|sample| sample.upload());
        let mut request = self.request.map(|body| Metered::new(body, meter, upload));
        if let Some(in_flight) = &in_flight {
            request.extensions_mut().insert(in_flight.clone());
        }
        State::Forwarding {
            future: self.inner.call(request),
            context: ResponseContext {
                verdict,
                route: Some(self.route),
                status: (!self.queried.is_empty()).then_some((self.queried, outcome)),
                sample,
                charges,
                bans: self.bans,
                in_flight,
            },
        }
    }

    /// Answers a request that limits deny, which may be a strike.
    fn deny(
        mut self,
        denial: &Denial<'_>,
        outcome: Outcome,
        store: Duration,
    ) -> State<S::Future, S::ResponseBody> {
        if let Some(bans) = &mut self.bans {
            bans.denied_by(denial.limits());
        }
        let verdict = Verdict {
            denied_by: Some(denial.limit()),
            decided_by: decided_by(&outcome),
            store: Some(store),
            in_flight: self.route.policy.in_flight(&self.queried, &outcome),
            ..Verdict::new(Disposition::Denied)
        };
        let context = ResponseContext {
            verdict,
            status: Some((self.queried, outcome)),
            bans: self.bans,
            ..ResponseContext::of(Disposition::Denied, Some(Arc::clone(&self.route)))
        };
        let retry_in = denial.retry_in();
        reject(
            &self.route,
            self.request,
            context,
            |rejection| match &self.settings.respond {
                Some(respond) => {
                    let retry_after = (retry_in != Nanos::NEVER).then(|| retry_in.into());
                    let limit = &*denial.limit();
                    respond(&Denied { limit, retry_after }).map(ResponseBody::full)
                }
                None => response::reject(rejection, denial.document(rejection), retry_in),
            },
        )
    }
}

/// What a client gets on a route that a ban or the block list keeps it out of.
pub(super) struct TreatmentContext<'r> {
    pub(super) treatment: &'r Arc<PreparedTreatment>,
    pub(super) route: &'r Arc<RouteState>,
    /// When it would be let in again.
    pub(super) retry_in: Nanos,
}

impl TreatmentContext<'_> {
    /// Treats a request so.
    pub(super) fn treat<S: LimitedService<B>, B: RequestBody>(
        &self,
        mut inner: S,
        mut request: Request<B>,
        mut context: ResponseContext,
    ) -> State<S::Future, S::ResponseBody> {
        if !self.treatment.looks_real() {
            context.status = None;
        }
        let (disposition, answer) = self.treatment.treat(self.retry_in);
        context.verdict.disposition = disposition;
        let made = |mut response, context: ResponseContext| {
            context.mark(&mut response);
            State::answered(response, PendingTasks::new())
        };
        match answer {
            TreatmentAnswer::Response(response) => made(response, context),
            TreatmentAnswer::Later(answer) => State::Answering { answer, context },
            TreatmentAnswer::Decoy => match self.route.decoy(self.treatment) {
                Some(shadow) => decoy(shadow, request, context),
                // Without a route every client gets 404, so a decoy would give the ban away.
                None => made(response::no_route(), context),
            },
            TreatmentAnswer::Upstream(upstream) => {
                let extensions = request.extensions_mut();
                match extensions.get_mut::<Routed>() {
                    Some(routed) => routed.upstream = Some(upstream),
                    None => drop(extensions.insert(Routed {
                        route: Arc::clone(self.route),
                        captures: Captures::default(),
                        upstream: Some(upstream),
                    })),
                }
                State::Forwarding {
                    future: inner.call(request.map(Metered::unmetered)),
                    context,
                }
            }
        }
    }
}

/// Has a decoy answer a request.
fn decoy<B: RequestBody, F, R: Send + 'static>(
    shadow: &Arc<Shadow>,
    request: Request<B>,
    context: ResponseContext,
) -> State<F, R> {
    let (mut head, body) = request.into_parts();
    if let Some(routed) = head.extensions.get::<Routed>() {
        let captures = routed.captures.clone();
        head.extensions.insert(captures);
    }
    State::Answering {
        answer: Box::pin(Arc::clone(shadow).respond(head, body)),
        context,
    }
}

/// Answers a request that is not let through: by the route's decoy, or honestly.
fn reject<B: RequestBody, F, R: Send + 'static>(
    route: &RouteState,
    request: Request<B>,
    mut context: ResponseContext,
    honest: impl FnOnce(&Rejection) -> Response<ResponseBody<R>>,
) -> State<F, R> {
    match &route.policy.on_denied {
        OnDenied::Shadow(shadow) => {
            context.verdict.disposition = Disposition::Shadowed;
            decoy(shadow, request, context)
        }
        OnDenied::Reject(rejection) => {
            let mut response = honest(rejection);
            context.mark(&mut response);
            let strikes = context.strikes();
            State::answered(response, strikes)
        }
    }
}

/// Refuses a request about which nothing can decide.
fn unavailable<F, R>(store: Duration) -> State<F, R> {
    let mut response = response::unavailable();
    let verdict = Verdict {
        store: Some(store),
        ..Verdict::new(Disposition::Unavailable)
    };
    response.extensions_mut().insert(verdict);
    State::answered(response, PendingTasks::new())
}

/// Refuses a request whose client nothing has identified, where a limit counts addresses. One
/// bucket for all of them would let one client use up what others need.
fn unidentified<F, R>() -> State<F, R> {
    tracing::error!(
        "a limit counts addresses, and the server leaves none in the request's extensions"
    );
    let detail = "The client's address is not known.";
    let problem = Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail);
    let mut response = ResponseBody::problem(problem);
    let verdict = Verdict::new(Disposition::Unavailable);
    response.extensions_mut().insert(verdict);
    State::answered(response, PendingTasks::new())
}

/// What decided in the store's place.
fn decided_by(outcome: &Outcome) -> Option<&'static str> {
    match outcome.source {
        DecisionSource::Remembered => Some("remembered"),
        DecisionSource::Local => Some("local"),
        DecisionSource::Store | DecisionSource::FailedOpen => None,
    }
}
