//! What the answers to an inquiry come to: who denies the request, who would, and what clients are
//! told.

use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;

use super::inquiry::{AskedLimit, QueriedLimits, Role};
use super::{Prepared, PreparedLimit};
use crate::limit::Decision;
use crate::middleware::rate_limit::fields::{Standing, Standings};
use crate::middleware::rate_limit::{Rejection, reject};
use crate::store::{DecisionSource, Outcome};
use crate::telemetry::{Disposition, Strictest};
use crate::time::Nanos;

impl Prepared {
    /// Where a request stands with each limit whose decision holds for it.
    pub(in crate::middleware::rate_limit) fn standings(
        &self,
        asked: &QueriedLimits,
        outcome: &Outcome,
    ) -> Standings<'_> {
        let pairs = asked.limits.iter().zip(&outcome.decisions);
        let telling = pairs.filter(|(it, _)| it.role != Role::WouldDeny);
        let standing = |(it, &decision): (&AskedLimit, &Option<Decision>)| {
            Some(Standing {
                label: &self.limit(it.limit)?.label,
                quota: it.quota,
                decision,
                is_stale: decision.is_some_and(|decision| is_stale(outcome.basis, &decision)),
            })
        };
        telling.filter_map(standing).collect()
    }

    /// Counts the decisions, by limit.
    pub(in crate::middleware::rate_limit) fn count(
        &self,
        asked: &QueriedLimits,
        outcome: &Outcome,
    ) {
        for (it, decision) in asked.limits.iter().zip(&outcome.decisions) {
            if let (Some(limit), Some(decision)) = (self.limit(it.limit), decision) {
                limit.metrics.decided(said(it.role, decision));
            }
        }
        let lacking = asked.would_lack.and_then(|index| self.limit(index));
        if let Some(limit) = lacking {
            limit.metrics.decided(Disposition::WouldDeny);
        }
    }

    /// The limits that denied, if any did.
    pub(in crate::middleware::rate_limit) fn denial(
        &self,
        asked: &QueriedLimits,
        outcome: &Outcome,
    ) -> Option<Denial<'_>> {
        let mut violated: SmallVec<[(&PreparedLimit, Decision); 3]> =
            self.that_say(Disposition::Denied, asked, outcome).collect();
        violated.sort_by_key(|(_, decision)| decision.strictness());
        let strictest = violated.pop()?;
        Some(Denial {
            strictest,
            others: violated,
        })
    }

    /// How many requests the subject has in flight, this one included if it has a place, of the
    /// limit with the fewest places left.
    pub(in crate::middleware::rate_limit) fn in_flight(
        &self,
        asked: &QueriedLimits,
        outcome: &Outcome,
    ) -> Option<u64> {
        let pairs = asked.limits.iter().zip(&outcome.decisions);
        let places = pairs.filter(|(it, _)| it.quota.is_in_flight());
        let known =
            places.filter_map(|(it, decision)| Some((it.quota.burst().get(), (*decision)?)));
        let strictest = known.max_by_key(|(_, decision)| decision.strictness());
        strictest.map(|(most, decision)| most.saturating_sub(decision.remaining))
    }

    /// What the strictest of the limits whose decisions hold took, and what it has left.
    pub(in crate::middleware::rate_limit) fn strictest(
        &self,
        asked: &QueriedLimits,
        outcome: &Outcome,
    ) -> Option<Strictest> {
        let pairs = asked.limits.iter().zip(&outcome.decisions);
        let holding = pairs.filter(|(it, _)| it.role != Role::WouldDeny);
        let known = holding.filter_map(|(it, decision)| Some((it.cost, (*decision)?)));
        let (cost, decision) = known.max_by_key(|(_, decision)| decision.strictness())?;
        Some(Strictest {
            cost,
            remaining: decision.remaining,
        })
    }

    /// The name of the limit that would have denied the request, the strictest where several would.
    pub(in crate::middleware::rate_limit) fn would_deny(
        &self,
        asked: &QueriedLimits,
        outcome: &Outcome,
    ) -> Option<Arc<str>> {
        let lacking = asked.would_lack.and_then(|index| self.limit(index));
        let strictest = || {
            self.that_say(Disposition::WouldDeny, asked, outcome)
                .max_by_key(|(_, decision)| decision.strictness())
        };
        let limit = lacking.or_else(|| strictest().map(|(limit, _)| limit));
        limit.map(|limit| Arc::clone(&limit.name))
    }

    /// The names of all limits that would have denied the request.
    pub(in crate::middleware::rate_limit) fn would_denials(
        &self,
        asked: &QueriedLimits,
        outcome: &Outcome,
    ) -> impl Iterator<Item = &str> + Clone {
        let lacking = asked.would_lack.and_then(|index| self.limit(index));
        let others = self.that_say(Disposition::WouldDeny, asked, outcome);
        let all = lacking.into_iter().chain(others.map(|(limit, _)| limit));
        all.map(|limit| &*limit.name)
    }

    fn that_say(
        &self,
        what: Disposition,
        asked: &QueriedLimits,
        outcome: &Outcome,
    ) -> impl Iterator<Item = (&PreparedLimit, Decision)> + Clone {
        let decisions = asked.limits.iter().zip(&outcome.decisions);
        decisions.filter_map(move |(it, decision)| {
            let decision = decision.filter(|decision| said(it.role, decision) == what)?;
            Some((self.limit(it.limit)?, decision))
        })
    }
}

/// Whether others may have taken since from a bucket that is told of from memory. What is empty is
/// so until its retry time.
fn is_stale(basis: DecisionSource, decision: &Decision) -> bool {
    basis == DecisionSource::Remembered && decision.remaining > 0
}

/// What a decision comes to.
fn said(role: Role, decision: &Decision) -> Disposition {
    match role {
        Role::Denies if !decision.allowed => Disposition::Denied,
        Role::WouldDeny if !decision.fits() => Disposition::WouldDeny,
        _ => Disposition::Allowed,
    }
}

/// The limits that denied a request.
pub(in crate::middleware::rate_limit) struct Denial<'a> {
    strictest: (&'a PreparedLimit, Decision),
    others: SmallVec<[(&'a PreparedLimit, Decision); 3]>,
}

impl Denial<'_> {
    /// The name of the strictest.
    pub(in crate::middleware::rate_limit) fn limit(&self) -> Arc<str> {
        Arc::clone(&self.strictest.0.name)
    }

    /// The names of all of them.
    pub(in crate::middleware::rate_limit) fn limits(&self) -> impl Iterator<Item = &str> + Clone {
        let all = std::iter::once(&self.strictest).chain(&self.others);
        all.map(|(limit, _)| &*limit.name)
    }

    /// The strictest decision.
    pub(in crate::middleware::rate_limit) fn decision(&self) -> &Decision {
        &self.strictest.1
    }

    /// The problem document that names them all, the strictest first.
    pub(in crate::middleware::rate_limit) fn document(&self, rejection: &Rejection) -> Bytes {
        let retry_in = self.decision().retry_in;
        if self.others.is_empty() && retry_in != Nanos::NEVER {
            return self.strictest.0.document.clone();
        }
        let all = std::iter::once(&self.strictest).chain(self.others.iter().rev());
        let names: SmallVec<[&str; 3]> = all.map(|(limit, _)| &*limit.name).collect();
        reject::document(rejection.status, &names, retry_in)
    }
}
