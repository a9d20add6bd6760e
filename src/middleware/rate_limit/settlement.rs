//! What is left to be done about a request's limits when its response is there, its body is over,
//! or its client is gone.

use std::num::NonZeroU64;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use http::{HeaderMap, StatusCode};
use smallvec::SmallVec;
use tokio::task::JoinHandle;

use super::background::Background;
use super::plan::{Prepared, QueriedLimits};
use crate::limit::{Decision, Transaction};
use crate::rules::{Cost, Deferred, MeasuredCost, Pending, said_by};
use crate::store::Outcome;
use crate::time::Timestamp;

/// What is left to be done about one limit.
pub(super) struct Due {
    /// The limit's index among those of the route.
    pub(super) limit: usize,
    /// Its index in the batch.
    pub(super) asked: usize,
    /// What was asked of its bucket.
    pub(super) transaction: Transaction,
    /// Its cost, as far as was known.
    pub(super) units: u64,
    pub(super) later: Deferred,
}

/// What is left to be done about a request that waits for its decision.
pub(super) struct Dues {
    pub(super) all: Vec<Due>,
    pub(super) background: Background,
    pub(super) arrived: Timestamp,
}

/// What is left to be done about a request that was let through.
///
/// It is done when this is dropped, whatever happened until then. Whoever knows something that
/// matters holds on to it: the response's future, and the request's body where its size matters.
pub(super) struct Settlement {
    policy: Prepared,
    background: Background,
    owed: Vec<Owed>,
    body_bytes: AtomicU64,
    response: OnceLock<Response>,
}

/// What is under way at the store, to be waited for.
pub(super) type Settling = SmallVec<[JoinHandle<()>; 1]>;

struct Owed {
    due: Due,
    /// Until when what was taken is owed; none when nothing was.
    until: Option<Timestamp>,
}

/// What the response says.
struct Response {
    status: StatusCode,
    /// The units that it says, in the order of what is owed.
    units: SmallVec<[Option<u64>; 1]>,
}

impl Settlement {
    pub(super) fn new(policy: Prepared, dues: Dues, outcome: &Outcome) -> Self {
        let arrived = dues.arrived;
        let owe = |due: Due| Owed {
            until: taken(&due, outcome).map(|decision| arrived + decision.reset_in),
            due,
        };
        Self {
            policy,
            background: dues.background,
            owed: dues.all.into_iter().map(owe).collect(),
            body_bytes: AtomicU64::new(0),
            response: OnceLock::new(),
        }
    }

    /// Whether the size of the request's body matters.
    pub(super) fn is_by_body(&self) -> bool {
        let mut owed = self.owed.iter();
        owed.any(|it| it.due.later == Deferred::Take(Pending::Body))
    }

    /// Counts bytes of the request's body.
    pub(super) fn count(&self, bytes: usize) {
        self.body_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Learns what the response says.
    pub(super) fn learn(&self, status: StatusCode, headers: &HeaderMap) {
        let said = |owed: &Owed| {
            let name = self.measured(&owed.due)?.response_header.as_ref()?;
            said_by(headers, name)
        };
        let units = self.owed.iter().map(said).collect();
        let _ = self.response.set(Response { status, units });
    }

    /// Learns that the inner service failed, which counts as the status that stands for that.
    pub(super) fn fail(&self) {
        let _ = self.response.set(Response {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            units: SmallVec::new(),
        });
    }

    /// Brings decisions and costs up to what they will be once all is done, as far as is known.
    pub(super) fn foresee(&self, asked: &mut QueriedLimits, outcome: &mut Outcome) {
        for (index, owed) in self.owed.iter().enumerate() {
            let decision = outcome.decisions.get_mut(owed.due.asked);
            let Some(Some(decision)) = decision else {
                continue;
            };
            let quota = &owed.due.transaction.quota;
            match self.settles(index, owed) {
                Some(Change::Take(units)) => {
                    let now = self.background.now();
                    *decision = decision.after_taking(quota, units, now);
                    asked.costs(owed.due.asked, units);
                }
                Some(Change::GiveBack(units)) => {
                    *decision = decision.after_giving_back(quota, units);
                    asked.costs(owed.due.asked, 0);
                }
                None => {}
            }
        }
    }

    /// What is to become of a bucket, by what is known now.
    fn settles(&self, index: usize, owed: &Owed) -> Option<Change> {
        let response = self.response.get();
        let counts = self
            .policy
            .used(owed.due.limit)?
            .spend
            .counts(response.map(|it| it.status));
        match owed.due.later {
            Deferred::GiveBack if counts => None,
            Deferred::GiveBack => owed.until.map(|_| Change::GiveBack(owed.due.units)),
            Deferred::Take(_) if !counts => None,
            Deferred::Take(pending) => {
                let said = response.and_then(|it| it.units.get(index).copied().flatten());
                let units = said.or_else(|| self.units_of_body(pending, &owed.due));
                Some(Change::Take(units.unwrap_or(owed.due.units)))
            }
        }
    }

    fn units_of_body(&self, pending: Pending, due: &Due) -> Option<u64> {
        let unit = self.measured(due)?.request_bytes?;
        let bytes = self.body_bytes.load(Ordering::Relaxed);
        (pending == Pending::Body).then(|| bytes.div_ceil(unit.get()))
    }

    /// Does what is left, now that all is known.
    pub(super) fn finish(mut self) -> Settling {
        self.settle_all()
    }

    fn settle_all(&mut self) -> Settling {
        let owed = std::mem::take(&mut self.owed);
        let settle = |(index, owed)| self.settle(index, owed);
        owed.iter().enumerate().filter_map(settle).collect()
    }

    fn settle(&self, index: usize, owed: &Owed) -> Option<JoinHandle<()>> {
        let metrics = self.policy.metrics(owed.due.limit)?;
        let one = &owed.due.transaction;
        match self.settles(index, owed)? {
            Change::Take(units) => {
                let cost = NonZeroU64::new(units)?;
                let take = Transaction {
                    cost,
                    ..one.clone()
                };
                self.background.take(take, metrics)
            }
            // What would have come back by itself in the meantime is owed no more.
            Change::GiveBack(_) if owed.until? > self.background.now() => {
                self.background.give_back(one.clone(), metrics)
            }
            Change::GiveBack(_) => None,
        }
    }

    fn measured(&self, due: &Due) -> Option<&MeasuredCost> {
        match &self.policy.used(due.limit)?.cost {
            Cost::Measured(measured) => Some(measured),
            Cost::Fixed(_) => None,
        }
    }
}

/// What is to become of a bucket.
enum Change {
    Take(u64),
    GiveBack(u64),
}

/// The decision by which the cost was taken.
fn taken(due: &Due, outcome: &Outcome) -> Option<Decision> {
    let decision = (*outcome.decisions.get(due.asked)?)?;
    due.transaction.has_taken(&decision).then_some(decision)
}

impl Drop for Settlement {
    fn drop(&mut self) {
        self.settle_all();
    }
}
