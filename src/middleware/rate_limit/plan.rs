//! What is to be asked about one request: which buckets, with which quotas.

use http::Request;
use http_body::Body;
use smallvec::SmallVec;

use super::deferred_charge::DeferredCharge;
use super::policy::{HeaderForms, PreparedPolicy};
use crate::limit::{Batch, Claim, Decision, Mode, Quota, Transaction};
use crate::middleware::ClientIdentity;
use crate::middleware::route::Routed;
use crate::rules::{Admission, Captures, KeySource, RequestAttributes, Subject};
use crate::store::{DecisionSource, Outcome};
use crate::time::Timestamp;

/// What is to be done about a request.
#[expect(
    clippy::large_enum_variant,
    reason = "nearly every plan is the large one, and none is kept"
)]
pub(super) enum Plan {
    /// No limit applies.
    Unlimited,
    /// A limit must have a value that the request lacks.
    Missing(Box<MissingValue>),
    /// The store has to be asked.
    Ask(StoreQuery),
}

/// A limit without the value that it counts by.
pub(super) struct MissingValue {
    pub(super) limit: usize,
    pub(super) source: KeySource,
}

/// What the store is asked about a request.
#[derive(Default)]
pub(super) struct StoreQuery {
    pub(super) batch: Batch,
    /// The places that it asks for among the requests in flight, if the store allows it.
    pub(super) claims: Vec<Claim>,
    pub(super) queried: QueriedLimits,
    /// What is charged once the request is through; most requests leave nothing.
    pub(super) charges: Vec<DeferredCharge>,
}

/// The limits that a batch asks about, in its order, and then those on requests in flight.
#[derive(Default)]
pub(super) struct QueriedLimits {
    pub(super) limits: SmallVec<[QueriedLimit; 3]>,
    /// A limit that would deny the request for want of a value, if that were acted upon.
    pub(super) would_lack: Option<usize>,
}

/// A limit that a batch asks about.
#[derive(Clone, Copy)]
pub(super) struct QueriedLimit {
    /// Its index among those of the route.
    pub(super) limit: usize,
    pub(super) quota: Quota,
    pub(super) role: Role,
    /// The units that it takes, or asks for; as many as a log line has to show.
    pub(super) cost: u32,
}

/// What a limit has to say about a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// It denies what does not fit.
    Denies,
    /// It would, if that were acted upon.
    WouldDeny,
    /// It never denies.
    Counts,
}

impl Role {
    fn new(kind: Mode, acts: bool) -> Self {
        match (kind.checks(), acts) {
            (true, true) => Self::Denies,
            (true, false) => Self::WouldDeny,
            (false, _) => Self::Counts,
        }
    }
}

/// What limits and bans go by in a request on a route of this name.
pub(super) fn attributes<'a, B>(
    request: &'a Request<B>,
    route: &'a str,
    no_captures: &'a Captures,
    now: Timestamp,
) -> RequestAttributes<'a> {
    let sender = request.extensions().get::<ClientIdentity>();
    let routed = request.extensions().get::<Routed>();
    RequestAttributes {
        method: request.method(),
        uri: request.uri(),
        headers: request.headers(),
        client: sender.map_or(ClientIdentity::UNKNOWN, |sender| sender.client.address),
        account: sender.and_then(|sender| sender.account.as_ref()),
        route,
        captures: routed.map_or(no_captures, |routed| &routed.captures),
        now,
    }
}

impl PreparedPolicy {
    /// Names the buckets of a request.
    pub(super) fn plan<B: Body>(
        &self,
        request: &Request<B>,
        attributes: &RequestAttributes<'_>,
    ) -> Plan {
        let policy = self.policy();
        let cors = policy.cors.as_deref();
        if cors.is_some_and(|cors| cors.spares(request)) {
            return Plan::Unlimited;
        }
        let mut query = StoreQuery::default();
        for (index, used) in policy.limits.iter().enumerate() {
            if !used.is_enabled() {
                continue;
            }
            match used.subject(attributes) {
                Subject::Counted { transaction, .. } if used.is_plain() => {
                    query.ask(index, Role::new(used.kind, true), transaction);
                }
                Subject::Counted { transaction, .. } => {
                    let size = size(request.body());
                    let arrival = used.at_arrival(transaction, attributes.headers, size);
                    // Clients are told where they stand, if they are told at all.
                    if !arrival.is_free || policy.headers != HeaderForms::NONE {
                        query.add(index, used.kind, arrival);
                    }
                }
                Subject::Skipped(_) | Subject::Exempt => {}
                // A request without a subject is not among the share that is acted upon.
                Subject::Missing(_) if used.enforcement.is_partial() => {
                    query.queried.would_lack.get_or_insert(index);
                }
                // A browser sends no credentials with its preflights.
                Subject::Missing(_) if cors.is_some_and(|cors| cors.is_preflight(request)) => {}
                Subject::Missing(source) => {
                    return Plan::Missing(Box::new(MissingValue {
                        limit: index,
                        source: source.clone(),
                    }));
                }
            }
        }
        if query.queried.is_empty() {
            Plan::Unlimited
        } else {
            Plan::Ask(query)
        }
    }
}

/// The bytes of a body, where they are known before it is read.
fn size<B: Body>(body: &B) -> Option<u64> {
    if body.is_end_stream() {
        return Some(0);
    }
    body.size_hint().exact()
}

impl QueriedLimits {
    /// Each limit with its decision, if there is one.
    pub(super) fn decided(
        &self,
        outcome: &Outcome,
    ) -> impl Iterator<Item = (&QueriedLimit, Option<Decision>)> + Clone {
        let decisions = outcome.decisions.iter().copied();
        self.limits.iter().zip(decisions)
    }

    /// Whether nothing that the store may say would be acted upon.
    pub(super) fn is_idle(&self) -> bool {
        self.limits.iter().all(|limit| limit.role != Role::Denies)
    }

    /// Whether no limit applies.
    pub(super) fn is_empty(&self) -> bool {
        self.limits.is_empty() && self.would_lack.is_none()
    }

    /// Decisions as a real answer could show them, for a request that took from no bucket. They are
    /// made up even where a bucket was asked: it is not every time, and would give itself away.
    pub(super) fn imagined(&self, basis: DecisionSource, now: Timestamp) -> Outcome {
        let imagine = |limit: &QueriedLimit| {
            let full = Decision::of_full(&limit.quota);
            Some(match limit.quota.is_in_flight() {
                true => Decision {
                    remaining: full.remaining - 1,
                    ..full
                },
                false => full.after_taking(&limit.quota, 1, now),
            })
        };
        Outcome {
            decisions: self.limits.iter().map(imagine).collect(),
            basis,
        }
    }

    /// Learns what a limit takes in the end.
    pub(super) fn costs(&mut self, index: usize, cost: u64) {
        if let Some(queried) = self.limits.get_mut(index) {
            queried.cost = shown(cost);
        }
    }
}

fn shown(cost: u64) -> u32 {
    u32::try_from(cost).unwrap_or(u32::MAX)
}

impl StoreQuery {
    fn add(&mut self, limit: usize, kind: Mode, arrival: Admission) {
        let transaction = arrival.transaction;
        if let Some(later) = arrival.later {
            self.charges.push(DeferredCharge {
                limit,
                decision: self.batch.len(),
                transaction: transaction.clone(),
                units: arrival.units,
                later,
                taken_until: None,
            });
        }
        let role = match arrival.is_free {
            true => Role::Counts,
            false => Role::new(kind, arrival.acts),
        };
        self.ask(limit, role, transaction);
    }

    fn ask(&mut self, limit: usize, role: Role, transaction: Transaction) {
        let cost = match transaction.kind.spends() {
            true => shown(transaction.cost.get()),
            false => 0,
        };
        let queried = QueriedLimit {
            limit,
            quota: transaction.quota,
            role,
            cost,
        };
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
