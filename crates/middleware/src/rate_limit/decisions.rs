//! The limits that the store is asked about, and what its decisions come to: which of them deny the
//! request, which would, and what clients are shown.

use std::num::NonZeroU64;
use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use smallvec::SmallVec;
use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{Batch, Decision, Mode, Quota};
use weir_store::{DecisionSource, Outcome};
use weir_telemetry::{Disposition, Strictest};

use super::header_fields::{LimitStatus, LimitStatuses};
use super::policy::{PreparedLimit, RoutePolicy};
use crate::rejection;

/// The limits that a batch asks about, in its order, and then those on requests in flight; with
/// what was decided.
#[derive(Clone)]
pub(super) struct QueriedLimits {
    pub(super) limits: SmallVec<[QueriedLimit; 3]>,
    /// What decided. Of several, what is farthest from the store.
    pub(super) source: DecisionSource,
    /// A limit that would deny the request for want of a value, if that were acted upon.
    pub(super) missing_in_dry_run: Option<usize>,
}

impl Default for QueriedLimits {
    /// What is made by a call is copied to its place.
    #[inline(always)]
    fn default() -> Self {
        Self {
            limits: SmallVec::new(),
            source: DecisionSource::Store,
            missing_in_dry_run: None,
        }
    }
}

/// A limit that a batch asks about.
#[derive(Clone, Copy)]
pub(super) struct QueriedLimit {
    /// Its index among those of the route; few bits, as each request copies it.
    pub(super) limit: u16,
    /// The id of the bucket, by which its subject is counted.
    pub(super) subject: Option<NonZeroU64>,
    pub(super) quota: Quota,
    pub(super) role: LimitRole,
    /// The units that it takes, or asks for; as many as a log line has to show.
    pub(super) cost: u32,
    /// The rest of the subject's override, if it ends: [`Nanos::NEVER`] otherwise.
    pub(super) quota_ends_in: Nanos,
    /// None until it is decided, and where another limit's denial made that unnecessary.
    pub(super) decision: Option<Decision>,
}

impl QueriedLimit {
    /// The same for a request that has waited for its turn.
    pub(super) fn has_waited(&mut self, waited: Nanos) {
        if self.quota_ends_in != Nanos::NEVER {
            self.quota_ends_in = self.quota_ends_in.saturating_sub(waited);
        }
    }

    /// The decision with a wait that is no longer than until the override ends. The limit's own
    /// quota decides from then on, and a client that it denies is told its wait by that.
    pub(super) fn within_override(&self, decision: Decision) -> Decision {
        Decision {
            retry_in: decision.retry_in.min(self.quota_ends_in),
            ..decision
        }
    }
}

/// What a limit's decision may do to a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LimitRole {
    /// It denies what does not fit.
    Denies,
    /// It would, if that were acted upon.
    WouldDeny,
    /// It never denies.
    Counts,
    /// It never denies, and is in a dry run.
    CountsUnseen,
}

impl LimitRole {
    pub(super) const fn new(mode: Mode, acts: bool) -> Self {
        match (mode.checks(), acts) {
            (true, true) => Self::Denies,
            (true, false) => Self::WouldDeny,
            (false, true) => Self::Counts,
            (false, false) => Self::CountsUnseen,
        }
    }

    /// Whether clients see it: dry runs are for operators alone.
    pub(super) const fn is_shown(self) -> bool {
        matches!(self, Self::Denies | Self::Counts)
    }
}

impl QueriedLimits {
    /// Records what was decided about the limits from this index on. What decided some of them
    /// (the store, what stood in for it, or nothing) counts for all, if it is farther from the
    /// store than what decided the others.
    #[inline(always)]
    pub(super) fn record(&mut self, first: usize, outcome: &Outcome) {
        let limits = self.limits.iter_mut().skip(first);
        for (limit, decision) in limits.zip(&outcome.decisions) {
            limit.decision = *decision;
        }
        self.source = self.source.max(outcome.source);
    }

    pub(super) fn decided(
        &self,
    ) -> impl Iterator<Item = (&QueriedLimit, Option<Decision>)> + Clone {
        self.limits.iter().map(|limit| (limit, limit.decision))
    }

    /// Takes what limits got back by this batch off the decisions about it.
    pub(super) fn take_off(&mut self, batch: &Batch) {
        for (transaction, limit) in batch.iter().zip(&mut self.limits) {
            if let Some(decision) = &mut limit.decision
                && transaction.has_taken(decision)
            {
                *decision = decision.after_giving_back(&limit.quota, transaction.cost.get());
            }
        }
    }

    /// What decided in the store's place.
    pub(super) fn decided_by(&self) -> Option<&'static str> {
        self.source.stand_in()
    }

    /// Whether no decision of the store can deny the request.
    pub(super) fn never_deny(&self) -> bool {
        self.limits
            .iter()
            .all(|limit| limit.role != LimitRole::Denies)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.limits.is_empty() && self.missing_in_dry_run.is_none()
    }
}

/// A cost as a log line shows it.
pub(super) fn logged_cost(cost: u64) -> u32 {
    u32::try_from(cost).unwrap_or(u32::MAX)
}

impl RoutePolicy<PreparedLimit> {
    /// Where a request stands with each limit whose decision holds for it.
    pub(super) fn statuses(&self, queried: &QueriedLimits) -> LimitStatuses<'_> {
        let telling = queried.limits.iter().filter(|limit| limit.role.is_shown());
        let statuses = telling.filter_map(|limit| self.status(queried, limit));
        statuses.collect()
    }

    /// Where a request stands with one of the limits that were asked.
    #[inline]
    pub(super) fn status(
        &self,
        queried: &QueriedLimits,
        limit: &QueriedLimit,
    ) -> Option<LimitStatus<'_>> {
        let is_stale = |decision| is_stale(queried.source, &decision);
        Some(LimitStatus {
            label: &self.limit(limit.limit.into())?.label,
            quota: limit.quota,
            quota_ends_in: limit.quota_ends_in,
            decision: limit
                .decision
                .map(|decision| limit.within_override(decision)),
            is_stale: limit.decision.is_some_and(is_stale),
        })
    }

    pub(super) fn count(&self, queried: &QueriedLimits, now: Timestamp) {
        for (queried, decision) in queried.decided() {
            if let (Some(limit), Some(decision)) = (self.limit(queried.limit.into()), decision) {
                let meaning = meaning(queried.role, &decision);
                limit.metrics.decided(meaning);
                if let Some(subject) = queried.subject {
                    let denied = meaning != Disposition::Allowed;
                    let used = || used_percent(&queried.quota, &decision);
                    let metrics = &limit.metrics;
                    metrics.subject_decided(subject, denied, used, || now.as_secs());
                }
            }
        }
        let missing = self.limit_without_value(queried);
        if let Some(limit) = missing {
            limit.metrics.decided(Disposition::WouldDeny);
        }
    }

    /// The limits that denied, if any did.
    pub(super) fn denial(&self, queried: &QueriedLimits) -> Option<Denial<'_>> {
        let mut violated = self.with_meaning(Disposition::Denied, queried);
        let mut strictest = violated.next()?;
        let mut others: Vec<_> = violated.collect();
        if !others.is_empty() {
            others.insert(0, strictest);
            others.sort_by_key(|(_, decision)| decision.strictness());
            strictest = others.pop()?;
        }
        Some(Denial { strictest, others })
    }

    /// The index, among the limits that were asked, of the strictest one that denied.
    pub(super) fn strictest_denied(&self, queried: &QueriedLimits) -> Option<usize> {
        let decided = queried.decided().enumerate();
        let denied = decided.filter_map(|(index, (limit, decision))| {
            let denied = |it: &Decision| meaning(limit.role, it) == Disposition::Denied;
            Some((index, limit.within_override(decision.filter(denied)?)))
        });
        let strictest = denied.max_by_key(|(_, decision)| decision.strictness());
        strictest.map(|(index, _)| index)
    }

    /// How many requests the subject has in flight, this one included if it has a place, of the
    /// limit with the fewest places left.
    pub(super) fn in_flight(&self, queried: &QueriedLimits) -> Option<u64> {
        let known = queried.decided().filter_map(|(limit, decision)| {
            let is_place = limit.quota.is_in_flight();
            Some((limit.quota.burst().get(), decision.filter(|_| is_place)?))
        });
        let strictest = known.max_by_key(|(_, decision)| decision.strictness());
        strictest.map(|(most, decision)| most.saturating_sub(decision.remaining))
    }

    /// What the strictest of the limits whose decisions hold took, and what it has left.
    pub(super) fn strictest(&self, queried: &QueriedLimits) -> Option<Strictest> {
        let known = queried.decided().filter_map(|(limit, decision)| {
            let holds = limit.role.is_shown();
            Some((limit.cost, decision.filter(|_| holds)?))
        });
        let (cost, decision) = known.max_by_key(|(_, decision)| decision.strictness())?;
        Some(Strictest {
            cost,
            remaining: decision.remaining,
        })
    }

    /// The name of the limit that would have denied the request, the strictest where several would.
    pub(super) fn would_deny(&self, queried: &QueriedLimits) -> Option<Arc<str>> {
        let missing = self.limit_without_value(queried);
        let strictest = || {
            self.with_meaning(Disposition::WouldDeny, queried)
                .max_by_key(|(_, decision)| decision.strictness())
        };
        let limit = missing.or_else(|| strictest().map(|(limit, _)| limit));
        limit.map(|limit| Arc::clone(&limit.name))
    }

    /// The names of all limits that would have denied the request.
    pub(super) fn would_denials(
        &self,
        queried: &QueriedLimits,
    ) -> impl Iterator<Item = &str> + Clone {
        let missing = self.limit_without_value(queried);
        let others = self.with_meaning(Disposition::WouldDeny, queried);
        let all = missing.into_iter().chain(others.map(|(limit, _)| limit));
        all.map(|limit| &*limit.name)
    }

    /// How long the client would be told to wait; [`Nanos::NEVER`] where no wait helps.
    pub(super) fn would_wait(&self, queried: &QueriedLimits) -> Nanos {
        if queried.missing_in_dry_run.is_some() {
            return Nanos::NEVER;
        }
        let all = self.with_meaning(Disposition::WouldDeny, queried);
        let waits = all.map(|(_, decision)| decision.retry_in);
        waits.max().unwrap_or(Nanos::NEVER)
    }

    /// The limit that would deny the request for want of a value.
    fn limit_without_value(&self, queried: &QueriedLimits) -> Option<&PreparedLimit> {
        self.limit(queried.missing_in_dry_run?)
    }

    fn with_meaning(
        &self,
        what: Disposition,
        queried: &QueriedLimits,
    ) -> impl Iterator<Item = (&PreparedLimit, Decision)> + Clone {
        queried.decided().filter_map(move |(queried, decision)| {
            let decision = decision.filter(|decision| meaning(queried.role, decision) == what)?;
            Some((
                self.limit(queried.limit.into())?,
                queried.within_override(decision),
            ))
        })
    }
}

/// Whether other requests may have taken from the bucket since, because the decision was
/// remembered. An empty bucket stays empty until its retry time.
fn is_stale(source: DecisionSource, decision: &Decision) -> bool {
    source == DecisionSource::Remembered && decision.remaining > 0
}

/// How many percent of a bucket are taken.
fn used_percent(quota: &Quota, decision: &Decision) -> u8 {
    let burst = quota.burst().get();
    let taken = burst.saturating_sub(decision.remaining);
    u8::try_from(taken.saturating_mul(100) / burst).unwrap_or(100)
}

pub(super) fn meaning(role: LimitRole, decision: &Decision) -> Disposition {
    match role {
        LimitRole::Denies if !decision.allowed => Disposition::Denied,
        LimitRole::WouldDeny if !decision.fits() => Disposition::WouldDeny,
        _ => Disposition::Allowed,
    }
}

/// The limits that denied a request.
pub(super) struct Denial<'a> {
    strictest: (&'a PreparedLimit, Decision),
    others: Vec<(&'a PreparedLimit, Decision)>,
}

impl Denial<'_> {
    /// The name of the strictest.
    pub(super) fn limit(&self) -> Arc<str> {
        Arc::clone(&self.strictest.0.name)
    }

    pub(super) fn limits(&self) -> impl Iterator<Item = &str> + Clone {
        let all = std::iter::once(&self.strictest).chain(&self.others);
        all.map(|(limit, _)| &*limit.name)
    }

    /// How long the client is told to wait; [`Nanos::NEVER`] where no wait helps. All forms of the
    /// response show this wait.
    pub(super) fn told_wait(&self) -> Nanos {
        self.strictest.1.retry_in
    }

    /// Has the client told to wait so long, which is no shorter than the limits ask for.
    pub(super) fn tell(&mut self, wait: Nanos) {
        self.strictest.1.retry_in = wait;
    }

    /// The problem document that names them all, the strictest first.
    pub(super) fn document(&self, status: StatusCode) -> Bytes {
        let retry_in = self.told_wait();
        if self.others.is_empty() && retry_in != Nanos::NEVER {
            return self.strictest.0.document.clone();
        }
        let all = std::iter::once(&self.strictest).chain(self.others.iter().rev());
        let names: SmallVec<[&str; 3]> = all.map(|(limit, _)| &*limit.name).collect();
        rejection::document(status, &names, retry_in)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use smallvec::smallvec;

    use super::*;

    fn limit() -> QueriedLimit {
        QueriedLimit {
            limit: 0,
            subject: None,
            quota: Quota::new(5, 1, Duration::from_secs(1)).unwrap(),
            role: LimitRole::Denies,
            cost: 1,
            quota_ends_in: Nanos::NEVER,
            decision: None,
        }
    }

    fn outcome(source: DecisionSource, decisions: usize) -> Outcome {
        let decision = Decision {
            allowed: true,
            remaining: 1,
            retry_in: Nanos::ZERO,
            reset_in: Nanos::ZERO,
            reset_before_secs: 0,
        };
        Outcome {
            decisions: smallvec![Some(decision); decisions],
            source,
        }
    }

    /// The log shows what decided: the source that is farthest from the store.
    #[test]
    fn the_whole_does_not_hide_the_source_that_is_farther_from_the_store() {
        let by_distance = [
            DecisionSource::Store,
            DecisionSource::Prefetched,
            DecisionSource::Remembered,
            DecisionSource::Local,
            DecisionSource::FailedOpen,
        ];
        for (far, &decided) in by_distance.iter().enumerate() {
            for (farther, &leased) in by_distance.iter().enumerate() {
                let mut whole = QueriedLimits {
                    limits: smallvec![limit(); 3],
                    ..QueriedLimits::default()
                };
                whole.record(0, &outcome(decided, 2));
                whole.record(2, &outcome(leased, 1));
                assert_eq!(whole.source, by_distance[far.max(farther)]);
                assert_eq!(whole.decided().filter_map(|(_, it)| it).count(), 3);
            }
        }
    }
}
