//! Decides about descriptors of requests that others forward: which limit each descriptor is for,
//! one question to the store about all of them, and what came of it. The steps are those of
//! requests. What speaks with those others, such as Envoy's rate limit service, stands above it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::Arc;

use http::{HeaderMap, Response, header};
use smallvec::SmallVec;
use weir_limit::time::{Clock, Nanos};
use weir_limit::{Decision, Quota, Transaction, WaitForm};
use weir_rules::{
    Account, AccountRules, Admission, DescriptorEntry, DescriptorRules, DescriptorValues,
    LimitMatch,
};
use weir_runtime::loop_time;
use weir_store::Store;
use weir_telemetry::Disposition;

use super::WaitSpreader;
use super::decision::{Conclusion, Next, PendingDecision};
use super::decisions::{LimitRole, QueriedLimit, QueriedLimits, logged_cost, meaning};
use super::plan::{Purpose, StoreQuery, ends_in};
use super::policy::{PreparedLimit, RoutePolicy};
use crate::Verdict;
use crate::backend::{Backend, BackgroundTasks};
use crate::header_text::integer;
use crate::rejection::retry_after;
use crate::route::RouteState;

/// The rules for descriptors, by their domain.
pub type Domains = HashMap<Box<str>, DescriptorRules>;

/// Decides about descriptors by the limits of the route that their calls take.
#[derive(Clone)]
pub struct DescriptorLimits {
    backend: Backend,
    waits: WaitSpreader,
    domains: Arc<Domains>,
    /// Which hash the names of accounts.
    accounts: AccountRules,
}

/// A descriptor to decide about.
#[derive(Clone, Debug)]
pub struct AskedDescriptor<'c> {
    /// Its keys and values.
    pub entries: Vec<(Cow<'c, str>, Cow<'c, str>)>,
    /// How many requests it stands for; with none it asks whether there is room for one.
    pub hits: u64,
}

/// What was decided about the descriptors of a call.
#[derive(Clone, Debug)]
pub struct DecidedDescriptors {
    /// Whether the call is denied.
    pub is_denied: bool,
    /// About each of them, in their order.
    pub descriptors: Vec<DescriptorDecision>,
    /// What the client is told.
    pub headers: HeaderMap,
}

/// What was decided about one descriptor.
#[derive(Clone, Debug, Default)]
pub struct DescriptorDecision {
    /// Whether it is over its limit.
    pub is_denied: bool,
    /// Its limit; none where none counts it, or where its decision is not shown or not known.
    pub limit: Option<ShownLimit>,
}

/// How a limit stands after a decision.
#[derive(Clone, Debug)]
pub struct ShownLimit {
    /// Its name.
    pub name: Arc<str>,
    /// What a bucket may hold.
    pub quota: Quota,
    /// The units that are left.
    pub remaining: u64,
    /// When more of them are there, no earlier than a denied request should come back.
    pub reset_in: Nanos,
}

/// A call whose buckets are known.
struct PlannedCall {
    decision: PendingDecision,
    descriptors: Vec<PlannedDescriptor>,
    /// The accounts that the buckets of the batch are for, in its order.
    accounts: Vec<Option<Account>>,
}

/// What is to be decided about a descriptor.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PlannedDescriptor {
    /// No limit counts it.
    Unlimited,
    /// The index of its bucket among those that the store is asked about.
    Queried(usize),
    /// It lacks a value that its limit, of this index, counts per, and the limit denies that. An error
    /// would deny nothing: who asks, such as Envoy, may let requests pass whose call fails.
    Denied(usize),
}

impl DescriptorLimits {
    /// Decides by the rules of these domains, with buckets in `store`.
    pub fn new(store: Arc<dyn Store>, domains: Arc<Domains>, accounts: AccountRules) -> Self {
        Self {
            backend: Backend::new(store),
            waits: WaitSpreader::default(),
            domains,
            accounts,
        }
    }

    /// The same by this clock, with these tasks for what outlives a call.
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn Clock>, tasks: BackgroundTasks) -> Self {
        (self.backend.clock, self.backend.tasks) = (clock, tasks);
        self
    }

    /// The same, with the waits of denials spread as [`RateLimitLayer::with_wait_spreader`] does.
    ///
    /// [`RateLimitLayer::with_wait_spreader`]: crate::RateLimitLayer::with_wait_spreader
    #[must_use]
    pub fn with_wait_spreader(self, waits: WaitSpreader) -> Self {
        Self { waits, ..self }
    }

    /// Whether there are rules for this domain.
    pub fn has_domain(&self, domain: &str) -> bool {
        self.domains.contains_key(domain)
    }

    /// Decides about the descriptors of a call that takes this route; none if the store is out of
    /// reach. The call has its verdict, whatever came of it.
    pub async fn decide(
        &self,
        route: &Arc<RouteState>,
        domain: &str,
        descriptors: &[AskedDescriptor<'_>],
    ) -> (Option<DecidedDescriptors>, Verdict) {
        let mut planned = self.plan(route, domain, descriptors);
        if let Some(verdict) = planned.denial() {
            return (Some(denied_for_want(&planned.descriptors)), verdict);
        }
        planned.record_subjects();
        let PlannedCall {
            mut decision,
            descriptors,
            ..
        } = planned;
        let since = loop_time::now();
        let answer = decision.ask(&self.backend).await;
        let store = loop_time::now().saturating_duration_since(since);
        // Calls have no path, and their limits neither delay nor count requests in flight.
        let next = decision.answered(answer, "", &self.backend);
        let Next::Known(Conclusion::Decided(None)) = next else {
            let verdict = Verdict {
                store: Some(store),
                ..Verdict::new(Disposition::Unavailable)
            };
            return (None, verdict);
        };
        decision.count();
        self.spread(&mut decision);
        let shown = descriptors.iter().map(|descriptor| match descriptor {
            PlannedDescriptor::Queried(index) => shown(&route.policy, &decision, *index),
            _ => DescriptorDecision::default(),
        });
        let shown = shown.collect();
        let (decided, verdict) = conclude(decision, shown);
        let store = Some(store);
        (Some(decided), Verdict { store, ..verdict })
    }

    fn plan(
        &self,
        route: &Arc<RouteState>,
        domain: &str,
        descriptors: &[AskedDescriptor<'_>],
    ) -> PlannedCall {
        let mut planned = PlannedCall {
            decision: PendingDecision::new(route, self.backend.now()),
            descriptors: Vec::with_capacity(descriptors.len()),
            accounts: Vec::new(),
        };
        let rules = self.domains.get(domain);
        for descriptor in descriptors {
            let entries = descriptor.entries.iter();
            let entries = entries.map(|(key, value)| (&**key, &**value));
            let entries: Vec<DescriptorEntry<'_>> = entries.collect();
            let decided = match rules.and_then(|rules| rules.find(&entries)) {
                Some(limit) => {
                    let values = DescriptorValues::new(&entries, &self.accounts);
                    planned.add(limit, (&values, domain), descriptor.hits)
                }
                None => PlannedDescriptor::Unlimited,
            };
            planned.descriptors.push(decided);
        }
        planned
    }

    /// Spreads the wait of a denial over the callers that share the bucket.
    fn spread(&self, decision: &mut PendingDecision) {
        let (policy, queried) = (&decision.route.policy, &mut decision.queried);
        let index = policy.strictest_denied(queried);
        if let Some(limit) = index.and_then(|index| queried.limits.get_mut(index))
            && let (Some(bucket), Some(denied)) = (limit.subject, limit.decision)
        {
            let wait = (denied.retry_in, WaitForm::Seconds);
            let retry_in = self.waits.tell(bucket, limit, wait, decision.arrived);
            limit.decision = Some(Decision { retry_in, ..denied });
        }
    }
}

/// Counts the call as one request.
fn conclude(
    mut decision: PendingDecision,
    descriptors: Vec<DescriptorDecision>,
) -> (DecidedDescriptors, Verdict) {
    let route = Arc::clone(&decision.route);
    keep_strictest(&route.policy, &mut decision.queried);
    let denial = route.policy.denial(&decision.queried);
    let is_denied = denial.is_some();
    let mut shown = Response::new(());
    let wait = denial.as_ref().and_then(|it| retry_after(it.told_wait()));
    let wait = wait.map(|seconds| (header::RETRY_AFTER, integer(seconds)));
    shown.headers_mut().extend(wait);
    let context = match &denial {
        Some(denial) => decision.denied(denial),
        None => *decision.allowed(None, None),
    };
    context.add_verdict_and_headers(&mut shown);
    let verdict = shown.extensions_mut().remove();
    let decided = DecidedDescriptors {
        is_denied,
        descriptors,
        headers: std::mem::take(shown.headers_mut()),
    };
    (decided, verdict.unwrap_or(context.verdict))
}

impl PlannedCall {
    /// Adds the bucket of a descriptor, if its limit counts it.
    fn add(
        &mut self,
        limit: usize,
        (values, domain): (&DescriptorValues, &str),
        hits: u64,
    ) -> PlannedDescriptor {
        let (route, now) = (Arc::clone(&self.decision.route), self.decision.arrived);
        let Some(prepared) = route.policy.limit(limit) else {
            return PlannedDescriptor::Unlimited;
        };
        let (mut admission, quota_ends_in) = match values.matching(&prepared.used, domain, now) {
            LimitMatch::Counted {
                admission,
                overridden,
            } => (multiplied(admission, hits), ends_in(overridden, now)),
            LimitMatch::Missing { acts: true, .. } => return PlannedDescriptor::Denied(limit),
            LimitMatch::Missing { acts: false, .. } => {
                let missing = &mut self.decision.queried.missing_in_dry_run;
                missing.get_or_insert(limit);
                return PlannedDescriptor::Unlimited;
            }
            _ => return PlannedDescriptor::Unlimited,
        };
        let role = LimitRole::new(prepared.used.mode, admission.acts);
        if let Some(index) = self.join(&admission.transaction, role) {
            return PlannedDescriptor::Queried(index);
        }
        let index = self.decision.batch.len();
        self.accounts.push(values.account().cloned());
        let mut query = StoreQuery {
            batch: &mut self.decision.batch,
            claims: Vec::new(),
            queried: &mut self.decision.queried,
            charges: &mut Vec::new(),
            purpose: Purpose::Decide,
        };
        query.add(
            (limit, None),
            prepared.used.mode,
            (&mut admission, quota_ends_in),
            None,
        );
        PlannedDescriptor::Queried(index)
    }

    /// The verdict, counted, if a descriptor is denied for want of a value.
    fn denial(&self) -> Option<Verdict> {
        let policy = &self.decision.route.policy;
        let denied = self
            .descriptors
            .iter()
            .filter_map(|descriptor| match descriptor {
                PlannedDescriptor::Denied(limit) => policy.limit(*limit),
                _ => None,
            });
        let denied: Vec<&PreparedLimit> = denied.collect();
        for limit in &denied {
            limit.metrics.decided(Disposition::Denied);
        }
        Some(Verdict {
            denied_by: Some(Arc::clone(&denied.first()?.name)),
            decided_at: Some(self.decision.arrived),
            ..Verdict::new(Disposition::Denied)
        })
    }

    /// Records that the subjects of the buckets are decided about.
    fn record_subjects(&mut self) {
        let (policy, now) = (&self.decision.route.policy, self.decision.arrived);
        let buckets = self.decision.batch.iter().zip(&self.accounts);
        for (queried, (transaction, account)) in
            self.decision.queried.limits.iter_mut().zip(buckets)
        {
            if let Some(limit) = policy.limit(queried.limit.into()) {
                queried.subject = limit.record_subject(transaction, now, account.as_ref());
            }
        }
    }

    /// Adds a cost to that of an earlier descriptor with the same bucket, if there is one. Apart, the
    /// later would be decided beside the earlier one's cost, also where the call is denied.
    fn join(&mut self, transaction: &Transaction, role: LimitRole) -> Option<usize> {
        let decision = &mut self.decision;
        let earlier = decision.batch.iter_mut().zip(&mut decision.queried.limits);
        let (index, (asked, queried)) = earlier.enumerate().find(|(_, (asked, queried))| {
            asked.key == transaction.key && asked.mode == transaction.mode && queried.role == role
        })?;
        if asked.mode.spends() {
            asked.cost = asked.cost.saturating_add(transaction.cost.get());
            queried.cost = logged_cost(asked.cost.get());
        } else {
            asked.cost = asked.cost.max(transaction.cost);
        }
        Some(index)
    }
}

/// The admission of so many hits. None of them still asks whether there is room for one.
fn multiplied(mut admission: Admission, hits: u64) -> Admission {
    let transaction = &mut admission.transaction;
    match NonZeroU64::new(hits) {
        Some(hits) => transaction.cost = transaction.cost.saturating_mul(hits),
        None => transaction.mode = transaction.mode.non_spending(),
    }
    admission
}

/// Leaves the strictest decision of each limit, as headers name a limit once: descriptors may be of
/// several subjects.
fn keep_strictest(policy: &RoutePolicy<PreparedLimit>, queried: &mut QueriedLimits) {
    let name = |queried: &QueriedLimit| policy.limit(queried.limit.into()).map(|limit| &limit.name);
    let strictness = |limit: &QueriedLimit| limit.decision.map(|it| it.strictness());
    let mut kept = SmallVec::<[QueriedLimit; 3]>::new();
    for limit in &queried.limits {
        let is_same =
            |kept: &&mut QueriedLimit| kept.role == limit.role && name(kept) == name(limit);
        match kept.iter_mut().find(is_same) {
            Some(known) if strictness(known) < strictness(limit) => *known = *limit,
            Some(_) => {}
            None => kept.push(*limit),
        }
    }
    queried.limits = kept;
}

/// What is shown of a descriptor. A dry run shows as one without a limit: it is for operators
/// alone.
fn shown(
    policy: &RoutePolicy<PreparedLimit>,
    pending: &PendingDecision,
    index: usize,
) -> DescriptorDecision {
    let queried = pending.queried.limits.get(index);
    let queried = queried.filter(|queried| queried.role.is_shown());
    let limit = queried.and_then(|queried| Some((queried, policy.limit(queried.limit.into())?)));
    // Where a denial of another limit is remembered, nobody knows how much this one has left.
    let known = limit.and_then(|(queried, limit)| Some((queried, limit, queried.decision?)));
    let Some((queried, limit, decision)) = known else {
        return DescriptorDecision::default();
    };
    // No earlier than `Retry-After`.
    let reset_in = decision
        .wait_of_denial()
        .map_or(decision.reset_in, |wait| wait.max(decision.reset_in));
    DescriptorDecision {
        is_denied: meaning(queried.role, &decision) == Disposition::Denied,
        limit: Some(ShownLimit {
            name: Arc::clone(&limit.name),
            quota: queried.quota,
            remaining: decision.remaining,
            reset_in: reset_in.min(queried.quota_ends_in),
        }),
    }
}

/// The decision about a call that is denied for want of a value, and takes nothing.
fn denied_for_want(descriptors: &[PlannedDescriptor]) -> DecidedDescriptors {
    let shown = descriptors.iter().map(|descriptor| DescriptorDecision {
        is_denied: matches!(descriptor, PlannedDescriptor::Denied(_)),
        limit: None,
    });
    DecidedDescriptors {
        is_denied: true,
        descriptors: shown.collect(),
        headers: HeaderMap::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weir_limit::{BucketKey, Mode};
    use weir_rules::{Estimate, PendingCost};

    use super::*;

    #[test]
    fn hits_multiply_the_cost_and_none_only_check() {
        let quota = Quota::new(10, 10, Duration::from_secs(60)).unwrap();
        let cost = NonZeroU64::new(3).unwrap();
        let admission = || Admission {
            transaction: Transaction::new(BucketKey::default(), quota, cost),
            is_free: false,
            mode: Mode::CheckAndSpend,
            acts: true,
            estimate: Estimate {
                units: cost.get(),
                pending: PendingCost::Nothing,
            },
            later: None,
        };
        let of = |hits| {
            let transaction = multiplied(admission(), hits).transaction;
            (transaction.mode, transaction.cost.get())
        };
        assert_eq!(of(1), (Mode::CheckAndSpend, 3));
        assert_eq!(of(4), (Mode::CheckAndSpend, 12));
        assert_eq!(of(u64::MAX), (Mode::CheckAndSpend, u64::MAX));
        assert_eq!(of(0), (Mode::CheckOnly, 3));
    }
}
