//! A call's way from its descriptors to the response: which limit each descriptor is for, one
//! question to the store about all of them, and what came of it. The steps are those of requests.

use std::borrow::Cow;
use std::num::NonZeroU64;
use std::sync::Arc;

use http::{HeaderMap, Response, header};
use smallvec::SmallVec;
use weir_limit::time::Nanos;
use weir_limit::{Decision, Quota, Transaction, WaitForm};
use weir_rules::{Account, Admission, DescriptorEntry, DescriptorValues, LimitMatch};
use weir_runtime::loop_time;
use weir_telemetry::Disposition;

use super::messages::{
    Code, CurrentLimit, Descriptor, DescriptorStatus, Duration, Entry, HeaderField,
    RateLimitRequest, RateLimitResponse, Unit,
};
use super::{CallError, Settings};
use crate::Verdict;
use crate::header_text::integer;
use crate::rejection::retry_after;
use crate::route::RouteState;

use super::super::decision::{Conclusion, Next, PendingDecision};
use super::super::decisions::{LimitRole, QueriedLimit, QueriedLimits, logged_cost, meaning};
use super::super::plan::{StoreQuery, ends_in};
use super::super::policy::{PreparedLimit, RoutePolicy};

const SECOND: u64 = 1_000_000_000;
const DAY: u64 = 86_400 * SECOND;

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
    /// would deny nothing, as Envoy lets requests pass whose call fails.
    Denied(usize),
}

impl Settings {
    /// Decides about a call. The response has its verdict, whatever came of the call.
    pub(super) async fn should_rate_limit(
        &self,
        route: &Arc<RouteState>,
        call: &RateLimitRequest,
    ) -> (Result<RateLimitResponse, CallError>, Verdict) {
        let mut planned = match self.plan(route, call) {
            Ok(planned) => planned,
            Err(error) => return (Err(error), Verdict::new(Disposition::Unlimited)),
        };
        if let Some(verdict) = planned.denial() {
            let response = RateLimitResponse::denied(&planned.descriptors);
            return (Ok(response), verdict);
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
            return (Err(CallError::Unavailable), verdict);
        };
        decision.count();
        self.spread(&mut decision);
        let statuses = descriptors.iter().map(|descriptor| match descriptor {
            PlannedDescriptor::Queried(index) => status(&route.policy, &decision, *index),
            _ => DescriptorStatus::from_code(Code::Ok),
        });
        let mut response = RateLimitResponse {
            statuses: statuses.collect(),
            ..RateLimitResponse::default()
        };
        let verdict = self.conclude(decision, &mut response);
        let store = Some(store);
        (Ok(response), Verdict { store, ..verdict })
    }

    fn plan(
        &self,
        route: &Arc<RouteState>,
        call: &RateLimitRequest,
    ) -> Result<PlannedCall, CallError> {
        let mut planned = PlannedCall {
            decision: PendingDecision::new(route, self.backend.now()),
            descriptors: Vec::with_capacity(call.descriptors.len()),
            accounts: Vec::new(),
        };
        let Some(rules) = self.domains.get(&*call.domain) else {
            let unlimited = PlannedDescriptor::Unlimited;
            planned
                .descriptors
                .resize(call.descriptors.len(), unlimited);
            return Ok(planned);
        };
        for descriptor in &call.descriptors {
            if descriptor.limit.is_some() || descriptor.is_negative_hits {
                return Err(CallError::Unsupported);
            }
            let texts: Vec<_> = descriptor.entries.iter().map(Entry::texts).collect();
            let entries = texts.iter().map(|(key, value)| (&**key, &**value));
            let entries: Vec<DescriptorEntry<'_>> = entries.collect();
            let decided = match rules.find(&entries) {
                Some(limit) => {
                    let values = DescriptorValues::new(&entries, &self.accounts);
                    planned.add(limit, (&values, &call.domain), descriptor.hits(call))
                }
                None => PlannedDescriptor::Unlimited,
            };
            planned.descriptors.push(decided);
        }
        Ok(planned)
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

    /// Completes the response, and counts the call as one request.
    fn conclude(&self, mut decision: PendingDecision, response: &mut RateLimitResponse) -> Verdict {
        let route = Arc::clone(&decision.route);
        keep_strictest(&route.policy, &mut decision.queried);
        let denial = route.policy.denial(&decision.queried);
        let code = denial.as_ref().map_or(Code::Ok, |_| Code::OverLimit);
        response.set_overall_code(code);
        let mut shown = Response::new(());
        let wait = denial.as_ref().and_then(|it| retry_after(it.told_wait()));
        let wait = wait.map(|seconds| (header::RETRY_AFTER, integer(seconds)));
        shown.headers_mut().extend(wait);
        let context = match &denial {
            Some(denial) => decision.denied(denial),
            None => *decision.allowed(None, None),
        };
        context.add_verdict_and_headers(&mut shown);
        response.response_headers_to_add = header_fields(shown.headers());
        shown.extensions_mut().remove().unwrap_or(context.verdict)
    }
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
            looks: false,
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
pub(super) fn multiplied(mut admission: Admission, hits: u64) -> Admission {
    let transaction = &mut admission.transaction;
    match NonZeroU64::new(hits) {
        Some(hits) => transaction.cost = transaction.cost.saturating_mul(hits),
        None => transaction.mode = transaction.mode.non_spending(),
    }
    admission
}

impl Descriptor {
    /// Those of the call, unless the descriptor has its own. A call without a number has zero.
    fn hits(&self, call: &RateLimitRequest) -> u64 {
        self.hits_addend
            .unwrap_or_else(|| call.hits_addend.max(1).into())
    }
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

/// The status of a descriptor. A dry run shows as one without a limit: it is for operators alone.
fn status(
    policy: &RoutePolicy<PreparedLimit>,
    pending: &PendingDecision,
    index: usize,
) -> DescriptorStatus {
    let queried = pending.queried.limits.get(index);
    let queried = queried.filter(|queried| queried.role.is_shown());
    let limit = queried.and_then(|queried| Some((queried, policy.limit(queried.limit.into())?)));
    let Some((queried, limit)) = limit else {
        return DescriptorStatus::from_code(Code::Ok);
    };
    // Where a denial of another limit is remembered, nobody knows how much this one has left.
    let Some(decision) = queried.decision else {
        return DescriptorStatus::from_code(Code::Ok);
    };
    DescriptorStatus::new(queried, limit, decision)
}

impl Entry {
    /// Key and value. What is no text becomes some, and is counted.
    fn texts(&self) -> (Cow<'_, str>, Cow<'_, str>) {
        let [key, value] = [&self.key, &self.value].map(|bytes| String::from_utf8_lossy(bytes));
        (key, value)
    }
}

impl RateLimitResponse {
    /// The response to a call that is denied for want of a value, and takes nothing.
    fn denied(descriptors: &[PlannedDescriptor]) -> Self {
        let statuses = descriptors.iter().map(|descriptor| match descriptor {
            PlannedDescriptor::Denied(_) => DescriptorStatus::from_code(Code::OverLimit),
            _ => DescriptorStatus::from_code(Code::Ok),
        });
        let mut response = Self {
            statuses: statuses.collect(),
            ..Self::default()
        };
        response.set_overall_code(Code::OverLimit);
        response
    }
}

impl DescriptorStatus {
    fn from_code(code: Code) -> Self {
        let mut status = Self::default();
        status.set_code(code);
        status
    }

    fn new(queried: &QueriedLimit, limit: &PreparedLimit, decision: Decision) -> Self {
        let code = match meaning(queried.role, &decision) {
            Disposition::Denied => Code::OverLimit,
            _ => Code::Ok,
        };
        // No earlier than `Retry-After`.
        let reset_in = decision
            .wait_of_denial()
            .map_or(decision.reset_in, |wait| wait.max(decision.reset_in));
        Self {
            current_limit: Some(CurrentLimit::new(&limit.name, &queried.quota)),
            limit_remaining: u32::try_from(decision.remaining).unwrap_or(u32::MAX),
            duration_until_reset: Some(reset_in.min(queried.quota_ends_in).into()),
            ..Self::from_code(code)
        }
    }
}

impl CurrentLimit {
    /// The rate of a quota in the shortest unit in which it is a whole number, or else about so many
    /// in the shortest unit that has one. Intervals are whole nanoseconds.
    pub(super) fn new(name: &str, quota: &Quota) -> Self {
        let interval = quota.emission_interval().get().max(1);
        let units = [
            (Unit::Second, SECOND),
            (Unit::Minute, 60 * SECOND),
            (Unit::Hour, 3_600 * SECOND),
            (Unit::Day, DAY),
            (Unit::Month, 30 * DAY),
            (Unit::Year, 365 * DAY),
        ];
        let counts = units.map(|(unit, length)| (unit, length / interval, length % interval));
        let is_some = |(_, count, _): &&(Unit, u64, u64)| *count > 0;
        let is_whole = |(_, count, rest): &&(Unit, u64, u64)| rest < count;
        let found = counts.iter().find(is_whole);
        let found = found.or_else(|| counts.iter().find(is_some));
        let (unit, count) = found.map_or((Unit::Unknown, 0), |(unit, count, _)| (*unit, *count));
        Self {
            requests_per_unit: u32::try_from(count).unwrap_or(u32::MAX),
            unit: unit.into(),
            name: name.to_owned(),
        }
    }
}

impl From<Nanos> for Duration {
    fn from(span: Nanos) -> Self {
        let (seconds, nanos) = (span.get() / SECOND, span.get() % SECOND);
        Self {
            seconds: i64::try_from(seconds).unwrap_or(i64::MAX),
            nanos: i32::try_from(nanos).unwrap_or_default(),
        }
    }
}

fn header_fields(headers: &HeaderMap) -> Vec<HeaderField> {
    let field = |(name, value): (&header::HeaderName, &header::HeaderValue)| HeaderField {
        key: name.to_string(),
        value: String::from_utf8_lossy(value.as_bytes()).into_owned(),
    };
    headers.iter().map(field).collect()
}
