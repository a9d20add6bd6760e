//! The smallest store: the pure algorithm on a map. Other stores are held against it.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::limit::{Batch, BucketKey, BucketKeys, Kind, Transaction};
use crate::store::contract::Subject;
use crate::store::{Basis, Outcome, Pending, Store};
use crate::time::{Nanos, Timestamp};

#[derive(Default)]
pub(super) struct Reference(Mutex<HashMap<BucketKey, Timestamp>>);

type Tats = HashMap<BucketKey, Timestamp>;

impl Reference {
    pub(super) fn tat(&self, key: &BucketKey) -> Option<Timestamp> {
        self.0.lock().get(key).copied()
    }
}

fn debt(tats: &Tats, one: &Transaction, now: Timestamp) -> Nanos {
    match one.kind {
        Kind::AllowOnly => Nanos::ZERO,
        _ => tats.get(&one.key).map_or(Nanos::ZERO, |tat| tat.since(now)),
    }
}

impl Store for Reference {
    fn decide(&self, batch: Batch, now: Timestamp) -> Pending<Outcome> {
        let mut tats = self.0.lock();
        let before = tats.clone();
        let mut decisions = Vec::new();
        let mut debts = Vec::new();
        for one in &batch {
            let debt = debt(&tats, one, now);
            let decision = one.decide(debt);
            if one.kind.spends() && one.fitting_increment(debt).is_some() {
                tats.insert(one.key.clone(), now + decision.reset_in);
            }
            debts.push(debt);
            decisions.push(decision);
        }
        if decisions.iter().any(|decision| !decision.allowed) {
            *tats = before;
            for (decision, (one, &debt)) in decisions.iter_mut().zip(batch.iter().zip(&debts)) {
                if decision.allowed {
                    *decision = one.untouched(debt);
                }
            }
        }
        for (one, &debt) in batch.iter().zip(&debts) {
            if one.quota.is_left_over(debt) {
                tats.insert(one.key.clone(), now + one.quota.tolerance());
            }
        }
        Pending::ready(Outcome {
            decisions: decisions.into_iter().map(Some).collect(),
            basis: Basis::Store,
        })
    }

    fn refund(&self, batch: Batch, now: Timestamp) -> Pending<()> {
        let mut tats = self.0.lock();
        for one in batch.iter().filter(|one| one.kind.spends()) {
            if let (Some(tat), Some(taken)) =
                (tats.get_mut(&one.key), one.quota.increment(one.cost))
            {
                *tat = now + tat.since(now).saturating_sub(taken);
            }
        }
        Pending::ready(())
    }

    fn reset(&self, keys: BucketKeys) -> Pending<()> {
        let mut tats = self.0.lock();
        for key in &keys {
            tats.remove(key);
        }
        Pending::ready(())
    }
}

impl Subject for Reference {
    fn store(&self) -> &dyn Store {
        self
    }
}

crate::store::contract::store_contract!(Reference::default());
