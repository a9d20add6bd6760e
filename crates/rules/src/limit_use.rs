//! A limit as a route uses it: what is asked of the bucket when a request arrives, and what is
//! left to be done when the response is there.

use std::num::NonZeroU64;
use std::sync::Arc;

use http::{HeaderMap, StatusCode};
use weir_limit::{Algorithm, BucketKey, Mode, Quota, Transaction};

use crate::cost::{Cost, Estimate, PendingCost};
use crate::{Enforcement, KeySource, Limit, Missing, Override, RequestAttributes, StatusSet};

/// A limit as a route uses it.
#[derive(Clone, Debug)]
pub struct LimitUse {
    /// The limit.
    pub limit: Arc<Limit>,
    /// The mode of the transaction; [`Mode::AllowOnly`] for a limit that is switched off.
    pub mode: Mode,
    /// Units that a request takes.
    pub cost: Cost,
    /// Which requests take them, by their responses.
    pub spend: SpendWhen,
    /// On which subjects its denials are acted upon.
    pub enforcement: Enforcement,
    /// The limit that this one leaves denials to; few have one.
    pub yields_to: Option<Box<YieldsTo>>,
}

/// A limit of the same route that denies in place of another, which then only spends, where an
/// override of it applies.
#[derive(Clone, Debug)]
pub struct YieldsTo {
    /// The limit.
    pub limit: Arc<Limit>,
    /// On which subjects its denials are acted upon; on others, it denies in place of nothing.
    pub enforcement: Enforcement,
}

/// Which requests take their cost, by the status of the response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SpendWhen {
    /// All.
    #[default]
    Always,
    /// Only those with such a response. When a request arrives, there has to be room for its cost.
    On(StatusSet),
    /// All but those with such a response, which are given their cost back.
    ExceptOn(StatusSet),
}

/// What every request takes of a limit that does the same with each, and at once.
#[doc(hidden)] // The layers know it at load time.
#[derive(Clone, Copy, Debug)]
pub struct PlainCost {
    units: NonZeroU64,
    estimate: Estimate,
}

/// A limit's use of what comes after the head of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResponseUse {
    /// It counts the request until the response has ended.
    InFlight,
    /// It takes the cost after the response, or by the size of a body.
    Take,
    /// It gives the cost back after the response.
    GiveBack,
}

/// The match of a limit with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitMatch<'l> {
    /// Nothing, as it is switched off.
    Off,
    /// The request is counted by a bucket.
    Counted {
        /// The transaction of the request, and the rest to do.
        admission: Admission,
        /// The override that applies.
        overridden: Option<&'l Override>,
    },
    /// Not counted: the request has no value for this source.
    Skipped(&'l KeySource),
    /// Not counted: the limit has only overrides, and none for this subject.
    Exempt,
    /// The request is to be denied: it has no value for a source.
    Missing {
        /// The source.
        source: &'l KeySource,
        /// Whether that is acted upon. A request without a subject is not among the share for which
        /// a limit is enforced.
        acts: bool,
    },
}

/// The actions of a limit on a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The transaction on arrival. It only reads the bucket if the request costs nothing.
    pub transaction: Transaction,
    /// Whether the request is known to cost nothing, so that it is not denied either.
    pub is_free: bool,
    /// What the limit does with the bucket, unless something else decides about it.
    pub mode: Mode,
    /// Whether a denial is acted upon. When it is not, the transaction never denies.
    pub acts: bool,
    /// The cost, as far as is known.
    pub estimate: Estimate,
    /// The action after the response.
    pub later: Option<Deferred>,
}

/// An action after the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deferred {
    /// To take the cost, if the response counts, once this is known.
    Take(PendingCost),
    /// To give the cost back, unless the response counts.
    GiveBack,
}

impl LimitUse {
    /// A limit of which every request takes one unit.
    pub fn new(limit: Arc<Limit>) -> Self {
        Self {
            limit,
            mode: Mode::default(),
            cost: Cost::default(),
            spend: SpendWhen::default(),
            enforcement: Enforcement::default(),
            yields_to: None,
        }
    }

    /// Whether it denies requests: its mode checks, and not in a dry run for all.
    pub fn can_deny(&self) -> bool {
        self.mode.checks() && self.enforcement != Enforcement::NONE
    }

    /// Whether the limit does anything at all.
    pub fn is_enabled(&self) -> bool {
        self.mode != Mode::AllowOnly
    }

    /// Whether the limit does the same with every request, and at once.
    pub fn is_plain(&self) -> bool {
        matches!(self.cost, Cost::Fixed(_))
            && self.spend == SpendWhen::Always
            && !self.enforcement.is_partial()
    }

    /// What every request takes, if the limit does the same with each, and at once.
    #[doc(hidden)]
    pub fn plain_cost(&self) -> Option<PlainCost> {
        let Cost::Fixed(units) = self.cost else {
            return None;
        };
        let cost = PlainCost {
            units,
            estimate: Estimate::fixed(units),
        };
        self.is_plain().then_some(cost)
    }

    /// What the limit uses beside the head of a request.
    pub fn response_use(&self) -> Option<ResponseUse> {
        let overrides = self.limit.overrides().map(|overridden| overridden.quota);
        let mut quotas = self.limit.quota().into_iter().chain(overrides);
        let is_cost_known = match &self.cost {
            Cost::Fixed(_) => true,
            Cost::Measured(measured) => measured.is_known_by_head(),
        };
        match self.spend {
            _ if !self.is_enabled() => None,
            _ if quotas.any(|quota| quota.is_in_flight()) => Some(ResponseUse::InFlight),
            _ if !self.mode.spends() => None,
            SpendWhen::On(_) => Some(ResponseUse::Take),
            _ if !is_cost_known => Some(ResponseUse::Take),
            SpendWhen::ExceptOn(_) => Some(ResponseUse::GiveBack),
            SpendWhen::Always => None,
        }
    }

    /// The limit where only the heads of requests are seen: it takes nothing later, and gives
    /// nothing back. `None` for a limit on requests in flight.
    pub fn by_head_alone(&self) -> Option<Self> {
        let by_head = |mode| Self {
            mode,
            spend: SpendWhen::Always,
            ..self.clone()
        };
        match self.response_use() {
            None => Some(self.clone()),
            Some(ResponseUse::InFlight) => None,
            Some(ResponseUse::Take) => Some(by_head(self.mode.non_spending())),
            Some(ResponseUse::GiveBack) => Some(by_head(self.mode)),
        }
    }

    /// The most entries that one request may add to a sliding log, whosever it is.
    pub fn max_log_entries(&self) -> u64 {
        let overrides = self.limit.overrides().map(|overridden| overridden.quota);
        let quotas = self.limit.quota().into_iter().chain(overrides);
        let entries = quotas.map(|quota| self.log_entries(&quota));
        entries.max().unwrap_or_default()
    }

    /// The admission by a bucket with this quota.
    pub fn log_entries(&self, quota: &Quota) -> u64 {
        let count = quota.burst().get();
        match (quota.algorithm(), &self.cost) {
            _ if !self.mode.spends() => 0,
            (Algorithm::SlidingLog { .. }, Cost::Fixed(cost)) => cost.get().min(count),
            (Algorithm::SlidingLog { .. }, Cost::Measured(_)) => count,
            _ => 0,
        }
    }

    /// Whether a request is counted although this limit denies it.
    pub fn counts_denied(&self) -> bool {
        let quota = self.limit.quota();
        let counts = quota.is_some_and(|quota| quota.algorithm().counts_denied());
        counts && self.mode.checks() && self.mode.spends()
    }

    /// Matches a request, whose body has `body_bytes` if that is known.
    pub fn matching(
        &self,
        attributes: &RequestAttributes<'_>,
        body_bytes: impl FnOnce() -> Option<u64>,
    ) -> LimitMatch<'_> {
        self.matching_at(self.plain_cost(), attributes, body_bytes)
    }

    /// The same where the plain cost of this limit is known.
    #[doc(hidden)]
    #[inline(always)]
    pub fn matching_at(
        &self,
        plain_cost: Option<PlainCost>,
        attributes: &RequestAttributes<'_>,
        body_bytes: impl FnOnce() -> Option<u64>,
    ) -> LimitMatch<'_> {
        if !self.is_enabled() {
            return LimitMatch::Off;
        }
        let limit = &*self.limit;
        let mode = match &self.yields_to {
            Some(to) if to.denies(attributes) => self.mode.non_denying(),
            _ => self.mode,
        };
        let key = match limit.bucket(attributes) {
            Ok(key) => key,
            // What never denies does not do so for want of a value either.
            Err(source) if limit.missing() == Missing::Deny && mode.checks() => {
                let acts = !self.enforcement.is_partial();
                return LimitMatch::Missing { source, acts };
            }
            Err(source) => return LimitMatch::Skipped(source),
        };
        let overridden = limit.override_for(&key, attributes);
        let quota = overridden.map_or(limit.quota(), |overridden| Some(overridden.quota));
        let Some(quota) = quota else {
            return LimitMatch::Exempt;
        };
        let admission = match plain_cost {
            Some(cost) => Admission {
                estimate: cost.estimate,
                transaction: Transaction {
                    mode,
                    ..Transaction::new(key, quota, cost.units)
                },
                is_free: false,
                mode,
                acts: true,
                later: None,
            },
            None => self.admission((key, quota), mode, attributes.headers, body_bytes()),
        };
        LimitMatch::Counted {
            admission,
            overridden,
        }
    }

    /// The admission of a request with these headers and a body of `body_bytes`, if that is known.
    fn admission(
        &self,
        (key, quota): (BucketKey, Quota),
        mode: Mode,
        headers: &HeaderMap,
        body_bytes: Option<u64>,
    ) -> Admission {
        let estimate = match &self.cost {
            Cost::Fixed(cost) => Estimate::fixed(*cost),
            Cost::Measured(measured) => measured.estimate(headers, body_bytes),
        };
        // What is taken later has to find room for one unit at least.
        let cost = NonZeroU64::new(estimate.units).unwrap_or(NonZeroU64::MIN);
        let counted = Transaction::new(key, quota, cost);
        let acts = self.enforcement.acts_on(&counted.key);
        let is_known = estimate.pending == PendingCost::Nothing;
        let is_prepaid = is_known && !matches!(self.spend, SpendWhen::On(_));
        if is_known && estimate.units == 0 {
            return Admission {
                transaction: Transaction {
                    mode: Mode::Peek,
                    ..counted
                },
                is_free: true,
                mode,
                acts,
                estimate,
                later: None,
            };
        }
        let later = match self.spend {
            _ if !self.mode.spends() => None,
            _ if !is_prepaid => Some(Deferred::Take(estimate.pending)),
            SpendWhen::ExceptOn(_) => Some(Deferred::GiveBack),
            SpendWhen::Always | SpendWhen::On(_) => None,
        };
        let arrival = match mode {
            mode if is_prepaid => mode,
            mode if mode.checks() => Mode::CheckOnly,
            _ => Mode::Peek,
        };
        let transaction = Transaction {
            mode: if acts { arrival } else { arrival.non_denying() },
            ..counted
        };
        Admission {
            transaction,
            is_free: false,
            mode,
            acts,
            estimate,
            later,
        }
    }
}

impl YieldsTo {
    /// Whether an override of the limit applies to a request, so that the limit denies it or not.
    #[inline(never)]
    fn denies(&self, attributes: &RequestAttributes<'_>) -> bool {
        let key = self.limit.bucket(attributes).ok();
        key.is_some_and(|key| {
            let overridden = self.limit.override_for(&key, attributes);
            overridden.is_some() && self.enforcement.acts_on(&key)
        })
    }
}

impl SpendWhen {
    /// Whether a request takes its cost when it is answered so, or not at all because the client
    /// left before.
    pub fn counts(&self, status: Option<StatusCode>) -> bool {
        let is_in = |set: &StatusSet| status.is_some_and(|status| set.contains(status));
        match self {
            Self::Always => true,
            Self::On(set) => is_in(set),
            Self::ExceptOn(set) => !is_in(set),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cost::MeasuredCost;
    use crate::{HashKey, Statuses};

    fn usage() -> LimitUse {
        let quota = Quota::new(10, 10, Duration::from_secs(60)).unwrap();
        let (per, missing) = (vec![KeySource::Global], Missing::Skip);
        let limit = Limit::new("L", per, Some(quota), missing, HashKey::random()).unwrap();
        LimitUse::new(Arc::new(limit))
    }

    fn failures() -> StatusSet {
        ["401", "5xx"]
            .map(|text| text.parse::<Statuses>().unwrap())
            .into_iter()
            .collect()
    }

    fn arrival(usage: &LimitUse, body_bytes: Option<u64>) -> Admission {
        let quota = usage.limit.quota().unwrap();
        usage.admission(
            ("L:*".into(), quota),
            usage.mode,
            &HeaderMap::new(),
            body_bytes,
        )
    }

    /// The mode and the cost of what is asked, and what is left to do.
    fn asked(usage: &LimitUse) -> ((Mode, u64), Option<Deferred>) {
        let arrival = arrival(usage, None);
        let asked = arrival.transaction;
        ((asked.mode, asked.cost.get()), arrival.later)
    }

    fn by_body() -> Cost {
        Cost::Measured(Arc::new(MeasuredCost {
            request_bytes: NonZeroU64::new(1024),
            ..MeasuredCost::default()
        }))
    }

    #[test]
    fn what_counts_by_its_response_is_checked_first_and_taken_later() {
        let usage = LimitUse {
            spend: SpendWhen::On(failures()),
            ..usage()
        };
        let later = Some(Deferred::Take(PendingCost::Nothing));
        assert_eq!(asked(&usage), ((Mode::CheckOnly, 1), later));
        assert!(!usage.is_plain());
    }

    #[test]
    fn without_responses_nothing_is_taken_or_given_back_later() {
        let by_head = |usage: &LimitUse| asked(&usage.by_head_alone().unwrap());
        let failures_only = LimitUse {
            spend: SpendWhen::On(failures()),
            ..usage()
        };
        assert_eq!(by_head(&failures_only), ((Mode::CheckOnly, 1), None));
        let refunded = LimitUse {
            spend: SpendWhen::ExceptOn(failures()),
            ..usage()
        };
        assert_eq!(by_head(&refunded), ((Mode::CheckAndSpend, 1), None));
        let by_body = LimitUse {
            cost: by_body(),
            ..usage()
        };
        assert_eq!(by_head(&by_body), ((Mode::CheckOnly, 1), None));
        let dry_run = LimitUse {
            mode: Mode::SpendOnly,
            ..failures_only
        };
        assert_eq!(by_head(&dry_run), ((Mode::Peek, 1), None));
        assert_eq!(by_head(&usage()), asked(&usage()));
    }

    #[test]
    fn without_responses_no_request_is_counted_as_in_flight() {
        let quota = Quota::in_flight(10).unwrap();
        let (per, missing) = (vec![KeySource::Global], Missing::Skip);
        let limit = Limit::new("L", per, Some(quota), missing, HashKey::random()).unwrap();
        let usage = LimitUse::new(Arc::new(limit));
        assert_eq!(usage.response_use(), Some(ResponseUse::InFlight));
        assert!(usage.by_head_alone().is_none());
        let off = LimitUse {
            mode: Mode::AllowOnly,
            ..usage
        };
        assert_eq!(off.response_use(), None);
    }

    #[test]
    fn what_may_be_given_back_is_taken_first() {
        let usage = LimitUse {
            spend: SpendWhen::ExceptOn(failures()),
            ..usage()
        };
        let later = Some(Deferred::GiveBack);
        assert_eq!(asked(&usage), ((Mode::CheckAndSpend, 1), later));
    }

    #[test]
    fn an_unknown_cost_needs_room_for_a_unit_and_no_cost_only_looks() {
        let usage = LimitUse {
            cost: by_body(),
            ..usage()
        };
        let later = Some(Deferred::Take(PendingCost::Body));
        assert_eq!(asked(&usage), ((Mode::CheckOnly, 1), later));
        let free = arrival(&usage, Some(0));
        assert!(free.is_free);
        assert_eq!((free.transaction.mode, free.later), (Mode::Peek, None));
        let known = arrival(&usage, Some(1025));
        assert_eq!((known.transaction.cost.get(), known.is_free), (2, false));
        assert_eq!(known.later, None);
    }

    #[test]
    fn a_dry_run_asks_the_same_of_the_bucket_and_never_denies() {
        let dry = |usage| LimitUse {
            enforcement: Enforcement::NONE,
            ..usage
        };
        let plain = dry(usage());
        assert_eq!(asked(&plain), ((Mode::SpendOnly, 1), None));
        assert!(!arrival(&plain, None).acts && !plain.is_plain());
        let postpaid = dry(LimitUse {
            spend: SpendWhen::On(failures()),
            ..usage()
        });
        let later = Some(Deferred::Take(PendingCost::Nothing));
        assert_eq!(asked(&postpaid), ((Mode::Peek, 1), later));
    }

    #[test]
    fn a_client_that_left_has_spent_what_it_took_and_fails_no_login() {
        let counts =
            |spend: SpendWhen, status: u16| spend.counts(StatusCode::from_u16(status).ok());
        let unanswered = 0;
        for (status, on, except_on) in [
            (200, false, true),
            (401, true, false),
            (503, true, false),
            (unanswered, false, true),
        ] {
            assert_eq!(counts(SpendWhen::On(failures()), status), on, "{status}");
            let except = SpendWhen::ExceptOn(failures());
            assert_eq!(counts(except, status), except_on, "{status}");
            assert!(counts(SpendWhen::Always, status));
        }
    }
}
