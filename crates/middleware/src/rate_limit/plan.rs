//! What is to be asked about one request: which buckets, with which quotas.

use std::hash::BuildHasher;
use std::mem;
use std::num::NonZeroU64;
use std::sync::{Arc, LazyLock};

use http_body::Body;
use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{Batch, Claim, Mode, Transaction};
use weir_rules::{Account, Admission, KeySource, LimitMatch, Override, RequestAttributes};

use super::decisions::{LimitRole, QueriedLimit, QueriedLimits, logged_cost};
use super::deferred_charge::DeferredCharge;
use super::header_fields::HeaderForms;
use super::policy::{PreparedLimit, RoutePolicy};

/// A limit without the value that it counts by.
#[derive(Clone)]
pub(super) struct MissingValue {
    pub(super) limit: Arc<str>,
    pub(super) source: KeySource,
}

/// What the store is asked about a request; nothing where no limit applies. It is written where it
/// stays, as it is large.
pub(super) struct StoreQuery<'q> {
    pub(super) batch: &'q mut Batch,
    /// The places that it asks for among the requests in flight, if the store allows it.
    pub(super) claims: Vec<Claim>,
    pub(super) queried: &'q mut QueriedLimits,
    /// What is charged once the request is through; most requests leave nothing.
    pub(super) charges: &'q mut Vec<DeferredCharge>,
    pub(super) purpose: Purpose,
}

/// What the store is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To decide about the request.
    Decide,
    /// To see how things stand, as its account is not known yet.
    LookAhead,
    /// To count a request that is kept out, apart from others.
    KeptOut,
}

impl Purpose {
    /// Whether its limits note their subjects, which operators see.
    fn tracks_subjects(self) -> bool {
        self == Self::Decide
    }

    /// Whether limits by an account that the request lacks are left out.
    fn may_lack_account(self) -> bool {
        self != Self::Decide
    }
}

impl RoutePolicy<PreparedLimit> {
    /// Adds the buckets of a request to `query`, unless a limit must have a value that the request
    /// lacks.
    pub(super) fn plan(
        &self,
        attributes: &RequestAttributes<'_>,
        body_bytes: impl Fn() -> Option<u64>,
        query: &mut StoreQuery<'_>,
    ) -> Result<(), Box<MissingValue>> {
        let longest_delay = self.delay.as_deref().map(|delay| delay.longest.into());
        let limits = self.limits_for(attributes, &body_bytes);
        for (index, limit) in limits.iter().enumerate() {
            // What it says is large: it stays where it is.
            match &mut self.matching(limit, attributes, &body_bytes) {
                // A free request is not counted, but its headers show the limit if the route sends any.
                LimitMatch::Counted {
                    admission,
                    overridden,
                } if !admission.is_free || self.header_forms != HeaderForms::NONE => {
                    let subject = match query.purpose.tracks_subjects() {
                        true => limit.record_subject(
                            &admission.transaction,
                            attributes.now,
                            attributes.account,
                        ),
                        false => None,
                    };
                    let mode = admission.mode;
                    let ends_in = ends_in(*overridden, attributes.now);
                    query.add((index, subject), mode, (admission, ends_in), longest_delay);
                }
                LimitMatch::Missing { source, .. }
                    if query.purpose.may_lack_account() && **source == KeySource::Account => {}
                LimitMatch::Missing { acts: false, .. } => {
                    query.queried.missing_in_dry_run.get_or_insert(index);
                }
                LimitMatch::Missing { source, .. } => {
                    return Err(Box::new(MissingValue {
                        limit: Arc::clone(&limit.name),
                        source: (*source).clone(),
                    }));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The rest of an override; [`Nanos::NEVER`] where none applies, and for one that does not end.
pub(super) fn ends_in(overridden: Option<&Override>, now: Timestamp) -> Nanos {
    let until = overridden.and_then(|overridden| overridden.until);
    until.map_or(Nanos::NEVER, |until| until.since(now))
}

/// The bytes of a body, where they are known before it is read.
pub(super) fn size<B: Body>(body: &B) -> Option<u64> {
    if body.is_end_stream() {
        return Some(0);
    }
    body.size_hint().exact()
}

impl PreparedLimit {
    /// Records that the request's subject was decided about. Returns the id of its bucket.
    pub(super) fn record_subject(
        &self,
        transaction: &Transaction,
        now: Timestamp,
        account: Option<&Account>,
    ) -> Option<NonZeroU64> {
        let is_account = || self.used.limit.per().contains(&KeySource::Account);
        let name = || account?.name().filter(|_| is_account());
        let key = transaction.key.as_bytes();
        let counted = self.metrics.subject_asked(key, || now.as_secs(), name);
        counted.or_else(|| self.bucket_id(key))
    }

    /// The id of a bucket by its key, also where no subjects are counted, or this one found no place.
    #[inline(always)]
    fn bucket_id(&self, key: &[u8]) -> Option<NonZeroU64> {
        /// With a seed of the process. A client that found two buckets of the same id would but be
        /// told waits of the one for the other.
        static IDS: LazyLock<foldhash::fast::RandomState> = LazyLock::new(Default::default);
        let counted = self.metrics.subject_id(key);
        counted.or_else(|| NonZeroU64::new(IDS.hash_one(key)))
    }
}

impl StoreQuery<'_> {
    /// Asks nothing.
    pub(super) fn clear(&mut self) {
        self.batch.clear();
        self.claims.clear();
        *self.queried = QueriedLimits::default();
        self.charges.clear();
    }

    /// Asks about buckets of those who are kept out, in place of the real ones, and denies nothing:
    /// whoever shares the real ones loses no unit. Nothing is lent, as nothing waits.
    pub(super) fn set_aside(&mut self) {
        for (transaction, queried) in self.batch.iter_mut().zip(&self.queried.limits) {
            transaction.quota = queried.quota;
            transaction.mode = transaction.mode.non_denying();
        }
        for claim in &mut self.claims {
            claim.mode = claim.mode.non_denying();
        }
        let charges = self
            .charges
            .iter_mut()
            .map(|charge| &mut charge.transaction);
        let asked = self.batch.iter_mut().chain(charges);
        let keys = asked.map(|transaction| &mut transaction.key);
        for key in keys.chain(self.claims.iter_mut().map(|claim| &mut claim.key)) {
            *key = key.for_kept_out();
        }
    }

    /// Adds the transaction of an admission, which is left without its key.
    #[inline(always)]
    pub(super) fn add(
        &mut self,
        (limit, subject): (usize, Option<NonZeroU64>),
        mode: Mode,
        (admission, quota_ends_in): (&mut Admission, Nanos),
        longest_delay: Option<Nanos>,
    ) {
        let transaction = &mut admission.transaction;
        if let Some(later) = admission.later {
            self.charges.push(DeferredCharge {
                limit,
                decision: self.batch.len(),
                transaction: transaction.clone(),
                units: admission.estimate.units,
                later,
                owed_until: None,
            });
        }
        // What costs nothing is not denied.
        let mode = if admission.is_free { Mode::Peek } else { mode };
        let role = LimitRole::new(mode, admission.acts);
        let cost = match transaction.mode.spends() {
            true => logged_cost(transaction.cost.get()),
            false => 0,
        };
        let queried = QueriedLimit {
            limit: u16::try_from(limit).unwrap_or(u16::MAX),
            subject,
            quota: transaction.quota,
            role,
            cost,
            quota_ends_in,
            decision: None,
        };
        // What a full bucket does not hold never fits, however long it waits.
        if let Some(longest_delay) = longest_delay
            && role == LimitRole::Denies
            && transaction.mode.spends()
            && transaction.cost <= transaction.quota.burst()
        {
            transaction.quota = transaction.quota.allow_borrowing(longest_delay);
        }
        match transaction.claim() {
            Some(claim) => {
                self.claims.push(claim);
                self.queried.limits.push(queried);
            }
            // Those of the batch come first, so that decisions are in the order of what is asked.
            None => {
                self.queried.limits.insert(self.batch.len(), queried);
                self.batch.push(Transaction {
                    key: mem::take(&mut transaction.key),
                    ..*transaction
                });
            }
        }
    }
}
