//! What is to be asked about one request: which buckets, with which quotas.

use std::num::NonZeroU64;
use std::sync::Arc;

use http::Request;
use http_body::Body;
use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{Batch, Claim, Mode, Transaction};
use weir_rules::{Account, Admission, Captures, KeySource, LimitMatch, RequestAttributes};

use super::decisions::{QueriedLimit, QueriedLimits, Role, logged_cost};
use super::deferred_charge::DeferredCharge;
use super::header_fields::HeaderForms;
use super::policy::{PreparedLimit, RoutePolicy};
use crate::ClientIdentity;

/// A limit without the value that it counts by.
#[derive(Clone)]
pub(super) struct MissingValue {
    pub(super) limit: Arc<str>,
    pub(super) source: KeySource,
}

/// What the store is asked about a request; nothing where no limit applies.
#[derive(Default)]
pub(super) struct StoreQuery {
    pub(super) batch: Batch,
    /// The places that it asks for among the requests in flight, if the store allows it.
    pub(super) claims: Vec<Claim>,
    pub(super) queried: QueriedLimits,
    /// What is charged once the request is through; most requests leave nothing.
    pub(super) charges: Vec<DeferredCharge>,
    /// Whether the request is looked at and no more: its account is not known yet, or it is kept out.
    /// Then limits by an account that it lacks are left out, and no subject is tracked.
    looks: bool,
}

/// What limits and bans go by in a request on a route of this name, which captured this.
pub(super) fn attributes<'a, B>(
    request: &'a Request<B>,
    route: &'a str,
    captures: &'a Captures,
    now: Timestamp,
) -> RequestAttributes<'a> {
    let identity = ClientIdentity::of(request.extensions());
    RequestAttributes {
        method: request.method(),
        uri: request.uri(),
        headers: request.headers(),
        client: identity.map_or(ClientIdentity::UNKNOWN, |identity| identity.client.address),
        account: identity.and_then(|identity| identity.account.as_ref()),
        route,
        captures,
        now,
    }
}

impl RoutePolicy<PreparedLimit> {
    /// Adds the buckets of a request to `query`, unless a limit must have a value that the request
    /// lacks.
    pub(super) fn plan<B: Body>(
        &self,
        request: &Request<B>,
        attributes: &RequestAttributes<'_>,
        query: &mut StoreQuery,
    ) -> Result<(), Box<MissingValue>> {
        let cors = self.cors.as_deref();
        if cors.is_some_and(|cors| cors.exempts(request)) {
            return Ok(());
        }
        let ahead = self.delay.as_deref().map(|delay| delay.longest.into());
        for (index, limit) in self.limits.iter().enumerate() {
            let used = &limit.used;
            if !used.is_enabled() {
                continue;
            }
            match used.matching(attributes) {
                LimitMatch::Counted { transaction, .. } if used.is_plain() => {
                    let asked = limit.asked(index, &transaction, attributes, query.looks);
                    query.ask(asked, Role::new(used.mode, true), transaction, ahead);
                }
                LimitMatch::Counted { transaction, .. } => {
                    let size = size(request.body());
                    let arrival = used.admission(transaction, attributes.headers, size);
                    // The limit's headers are logged_cost all the same, if the route shows any.
                    if !arrival.is_free || self.headers != HeaderForms::NONE {
                        let asked =
                            limit.asked(index, &arrival.transaction, attributes, query.looks);
                        query.add(asked, used.mode, arrival, ahead);
                    }
                }
                LimitMatch::Skipped(_) | LimitMatch::Exempt => {}
                LimitMatch::Missing(KeySource::Account) if query.looks => {}
                // A request without a subject is not among the share that is acted upon.
                LimitMatch::Missing(_) if used.enforcement.is_partial() => {
                    query.queried.missing_in_dry_run.get_or_insert(index);
                }
                // A browser sends no credentials with its preflights.
                LimitMatch::Missing(_) if cors.is_some_and(|cors| cors.is_preflight(request)) => {}
                LimitMatch::Missing(source) => {
                    return Err(Box::new(MissingValue {
                        limit: Arc::clone(&limit.name),
                        source: source.clone(),
                    }));
                }
            }
        }
        Ok(())
    }
}

/// The bytes of a body, where they are known before it is read.
fn size<B: Body>(body: &B) -> Option<u64> {
    if body.is_end_stream() {
        return Some(0);
    }
    body.size_hint().exact()
}

/// A limit of the route by its index, and the subject of it that is tracked.
#[derive(Clone, Copy)]
struct Asked {
    limit: usize,
    subject: Option<NonZeroU64>,
}

impl PreparedLimit {
    fn asked(
        &self,
        index: usize,
        transaction: &Transaction,
        attributes: &RequestAttributes<'_>,
        looks: bool,
    ) -> Asked {
        let subject = match looks {
            true => None,
            false => self.tracked(transaction, attributes.now, attributes.account),
        };
        Asked {
            limit: index,
            subject,
        }
    }

    /// The subject of a request, where subjects are tracked.
    pub(super) fn tracked(
        &self,
        transaction: &Transaction,
        now: Timestamp,
        account: Option<&Account>,
    ) -> Option<NonZeroU64> {
        let is_account = || self.used.limit.per().contains(&KeySource::Account);
        let name = || account?.name().filter(|_| is_account());
        let key = transaction.key.as_bytes();
        self.metrics.subject_asked(key, || now.as_secs(), name)
    }
}

impl StoreQuery {
    /// An empty one. It `looks` if the account of the request is not known yet, or it is kept out.
    pub(super) fn new(looks: bool) -> Self {
        Self {
            looks,
            ..Self::default()
        }
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
            *key = key.of_kept_out();
        }
    }

    fn add(&mut self, asked: Asked, mode: Mode, arrival: Admission, ahead: Option<Nanos>) {
        let transaction = arrival.transaction;
        if let Some(later) = arrival.later {
            self.charges.push(DeferredCharge {
                limit: asked.limit,
                decision: self.batch.len(),
                transaction: transaction.clone(),
                units: arrival.units,
                later,
                taken_until: None,
            });
        }
        // What costs nothing is not denied.
        let mode = if arrival.is_free { Mode::Peek } else { mode };
        let role = Role::new(mode, arrival.acts);
        self.ask(asked, role, transaction, ahead);
    }

    fn ask(
        &mut self,
        asked: Asked,
        role: Role,
        mut transaction: Transaction,
        ahead: Option<Nanos>,
    ) {
        let cost = match transaction.mode.spends() {
            true => logged_cost(transaction.cost.get()),
            false => 0,
        };
        let queried = QueriedLimit {
            limit: asked.limit,
            subject: asked.subject,
            quota: transaction.quota,
            role,
            cost,
        };
        // What a full bucket does not hold never fits, however long it waits.
        if let Some(ahead) = ahead
            && role == Role::Denies
            && transaction.mode.spends()
            && transaction.cost <= transaction.quota.burst()
        {
            transaction.quota = transaction.quota.lending(ahead);
        }
        match transaction.claim() {
            Some(claim) => {
                self.claims.push(claim);
                self.queried.limits.push(queried);
            }
            // Those of the batch come first, so that decisions are in the order of what is asked.
            None => {
                self.queried.limits.insert(self.batch.len(), queried);
                self.batch.push(transaction);
            }
        }
    }
}
