//! Leases as plainly as they can be written down: the list of those that are held.

use std::sync::Arc;

use parking_lot::Mutex;

use super::lease_contract::{Subject, lease_contract};
use crate::limit::{BucketKey, BucketKeys, Claim, Claims, Mode};
use crate::store::{DecisionSource, LeaseGuard, Leased, Leases, Outcome, StoreFuture};
use crate::time::Timestamp;

#[derive(Default)]
pub(crate) struct Reference(Arc<Mutex<List>>);

#[derive(Default)]
struct List {
    held: Vec<(BucketKey, u64)>,
    next: u64,
}

struct Ids(Arc<Mutex<List>>, Vec<u64>);

impl Drop for Ids {
    fn drop(&mut self) {
        self.0.lock().held.retain(|(_, id)| !self.1.contains(id));
    }
}

impl Leases for Reference {
    fn acquire(&self, claims: Claims, _: Timestamp) -> StoreFuture<Leased> {
        let mut list = self.0.lock();
        let before = list.held.len();
        let mut others = Vec::new();
        for claim in &claims {
            let in_flight = list.held.iter().filter(|(key, _)| *key == claim.key);
            let in_flight = match claim.mode {
                Mode::AllowOnly => 0,
                _ => in_flight.count() as u64,
            };
            others.push(in_flight);
            if claim.mode.spends() && in_flight < claim.most.get() {
                list.next += 1;
                let id = list.next;
                list.held.push((claim.key.clone(), id));
            }
        }
        let pairs = || claims.iter().zip(others.iter().copied());
        let denied = pairs().any(|(claim, others)| !passes(claim, others));
        let decision = |(claim, others)| match denied && passes(claim, others) {
            true => Some(claim.untouched(others)),
            false => Some(claim.decide(others)),
        };
        let decisions = pairs().map(decision).collect();
        if denied {
            list.held.truncate(before);
        }
        let ids: Vec<u64> = list.held.iter().skip(before).map(|(_, id)| *id).collect();
        let guard = match ids.is_empty() {
            true => LeaseGuard::EMPTY,
            false => LeaseGuard::new(Ids(Arc::clone(&self.0), ids)),
        };
        StoreFuture::ready(Leased {
            outcome: Outcome {
                decisions,
                source: DecisionSource::Store,
            },
            guard,
        })
    }

    fn delete(&self, keys: BucketKeys) -> StoreFuture<()> {
        self.0.lock().held.retain(|(key, _)| !keys.contains(key));
        StoreFuture::ready(())
    }

    fn end(&self) -> StoreFuture<()> {
        StoreFuture::ready(())
    }
}

fn passes(claim: &Claim, others: u64) -> bool {
    !claim.mode.checks() || others < claim.most.get()
}

impl Subject for Reference {
    fn leases(&self) -> &dyn Leases {
        self
    }
}

lease_contract!(Reference::default());
