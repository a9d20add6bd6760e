//! Requests that wait for their turn in place of a denial.
//!
//! A limit that delays lends units before they have come back: its bucket may owe as many as come
//! back in the longest delay. A request that borrows waits until they are back. So each request has
//! its turn from the beginning, in the order of arrival and through all gateways, and the store is
//! asked once.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::decisions::QueriedLimits;
use crate::limit::{Batch, Decision};
use crate::middleware::backend::Backend;
use crate::store::Outcome;
use crate::time::Nanos;

/// How requests of a route wait for their turn.
#[derive(Debug)]
pub struct Delay {
    /// How long a request may wait. One that would have to wait longer is denied.
    pub longest: Duration,
    /// How many requests may wait at the same time, over all workers. One more is denied.
    pub max_requests: NonZeroU32,
    /// Whether responses tell in `Server-Timing` how long their requests waited.
    pub server_timing: bool,
    waiting: AtomicU32,
}

impl Delay {
    /// A delay of at most `longest`, of at most `max_requests` at the same time.
    pub const fn new(longest: Duration, max_requests: NonZeroU32, server_timing: bool) -> Self {
        Self {
            longest,
            max_requests,
            server_timing,
            waiting: AtomicU32::new(0),
        }
    }

    /// A place among those that wait, if there is one.
    fn enter(self: &Arc<Self>) -> Option<Place> {
        let one_more = |waiting: u32| (waiting < self.max_requests.get()).then_some(waiting + 1);
        let relaxed = Ordering::Relaxed;
        let entered = self.waiting.fetch_update(relaxed, relaxed, one_more);
        entered.is_ok().then(|| Place(Arc::clone(self)))
    }
}

struct Place(Arc<Delay>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The units that a request has taken before its turn. They are given back when its client leaves
/// while it waits.
pub(super) struct Turn {
    taken: Batch,
    backend: Backend,
    _place: Place,
    /// How long it has to wait.
    pub(super) wait: Duration,
}

impl Turn {
    /// The turn of a request that was allowed, if it has to wait for it. Where nothing more may
    /// wait, it gives back what the request took, and turns the decisions into denials.
    pub(super) fn of(
        delay: &Arc<Delay>,
        batch: Batch,
        queried: &QueriedLimits,
        outcome: &mut Outcome,
        backend: &Backend,
    ) -> Option<Self> {
        let wait = waits(queried, outcome).max()?;
        if wait.is_zero() {
            return None;
        }
        let taken = outcome
            .taken(&batch)
            .map(|(transaction, _)| transaction.clone());
        let taken: Batch = taken.collect();
        let Some(place) = delay.enter() else {
            let waits: Vec<Nanos> = waits(queried, outcome).collect();
            backend.undo(taken);
            deny(&batch, queried, &waits, outcome);
            return None;
        };
        at_its_turn(queried, outcome, wait);
        Some(Self {
            taken,
            backend: backend.clone(),
            _place: place,
            wait: wait.into(),
        })
    }

    /// Waits until the units are back.
    pub(super) async fn come(self) {
        tokio::time::sleep(self.wait).await;
        self.has_come();
    }

    /// The units are back.
    pub(super) fn has_come(mut self) {
        self.taken.clear();
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.backend.undo(std::mem::take(&mut self.taken));
    }
}

/// How long each decision has its request wait.
fn waits<'q>(queried: &'q QueriedLimits, outcome: &'q Outcome) -> impl Iterator<Item = Nanos> + 'q {
    queried.decided(outcome).map(|(limit, decision)| {
        let lends = !limit.quota.algorithm().is_windowed() && !limit.quota.is_in_flight();
        let owed = decision.filter(|_| lends).map(|decision| decision.reset_in);
        owed.map_or(Nanos::ZERO, |owed| {
            owed.saturating_sub(limit.quota.tolerance())
        })
    })
}

/// Brings decisions to what they are when the request has waited.
fn at_its_turn(queried: &QueriedLimits, outcome: &mut Outcome, wait: Nanos) {
    for (limit, decision) in queried.limits.iter().zip(&mut outcome.decisions) {
        if let Some(decision) = decision
            && !limit.quota.algorithm().is_windowed()
        {
            *decision = decision.later(&limit.quota, wait);
        }
    }
}

/// Turns decisions whose costs were given back into denials by those that had it wait.
fn deny(batch: &Batch, queried: &QueriedLimits, waits: &[Nanos], outcome: &mut Outcome) {
    let limits = queried.limits.iter().zip(batch).zip(waits);
    for (((limit, transaction), &wait), decision) in limits.zip(&mut outcome.decisions) {
        let Some(decision) = decision else { continue };
        if transaction.has_taken(decision) {
            *decision = decision.after_giving_back(&limit.quota, transaction.cost.get());
        }
        if !wait.is_zero() {
            *decision = Decision {
                allowed: false,
                retry_in: wait,
                ..*decision
            };
        }
    }
}
