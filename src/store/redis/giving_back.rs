//! Takes off again what was taken from buckets of any algorithm.

use redis::Value;

use super::asked::Asked;
use super::channel::Client;
use super::commands::{self, Question};
use super::link::Live;
use super::mixed::Key;
use super::request::Request;
use super::windows::{WindowQuestion, fixed, sliding};
use crate::limit::{SubWindow, Transaction};
use crate::store::StoreError;
use crate::time::Timestamp;

/// What is to be taken off again: commands, and units of sub-windows, which need to be looked after.
#[derive(Default)]
pub(super) struct GivingBack {
    pub(super) request: Request,
    pub(super) taken: Vec<Taken>,
}

pub(super) struct Taken {
    pub(super) key: Key,
    pub(super) sub_window: SubWindow,
    pub(super) transaction: Transaction,
}

impl Client {
    /// Takes off what is to be given back. A sub-window that a reset has emptied meanwhile would
    /// have less than nothing: that is made up for at once.
    pub(super) async fn give_back(
        &self,
        live: &Live,
        giving: GivingBack,
    ) -> Result<(), StoreError> {
        let GivingBack { mut request, taken } = giving;
        let first = request.len();
        for taken in &taken {
            sliding::increase(
                &mut request,
                &taken.key,
                taken.sub_window.start,
                -taken.units(),
            );
            sliding::expire(&mut request, &taken.key, &taken.transaction.quota);
        }
        if request.is_empty() {
            return Ok(());
        }
        let replies = self.send(live, request).await?;
        let mut amends = Request::default();
        let results = replies.iter().skip(first).step_by(2);
        for (taken, result) in taken.iter().zip(results) {
            if let Value::Int(below @ ..0) = result {
                let missing = below.saturating_neg().min(taken.units());
                let start = taken.sub_window.start;
                sliding::increase(&mut amends, &taken.key, start, missing);
            }
        }
        if amends.is_empty() {
            return Ok(());
        }
        self.send(live, amends).await.map(drop)
    }
}

impl Taken {
    fn units(&self) -> i64 {
        i64::try_from(self.sub_window.used).unwrap_or(i64::MAX)
    }
}

impl GivingBack {
    pub(super) fn is_empty(&self) -> bool {
        self.request.is_empty() && self.taken.is_empty()
    }

    /// Adds just what a question took.
    pub(super) fn add(&mut self, asked: Asked, key: Key, one: &Transaction, now: Timestamp) {
        match asked {
            Asked::Gcra(Question::Take(increment, _)) => {
                let costs = (increment, one.quota.tolerance());
                commands::give_back(&mut self.request, &key, costs, now);
            }
            Asked::Window(WindowQuestion::TakeFixed) => {
                add_fixed_refund(&mut self.request, &key, one, now);
            }
            Asked::Window(WindowQuestion::TakeLog(members)) => {
                members.remove(&mut self.request, &key);
            }
            Asked::Window(WindowQuestion::TakeSliding) => {
                let sub_window = SubWindow {
                    start: SubWindow::start_at(&one.quota, now),
                    used: one.cost.get(),
                };
                self.taken.push(Taken {
                    key,
                    sub_window,
                    transaction: one.clone(),
                });
            }
            Asked::Gcra(_) | Asked::Window(_) => {}
        }
    }
}

pub(super) fn add_fixed_refund(
    request: &mut Request,
    key: &[u8],
    one: &Transaction,
    now: Timestamp,
) {
    fixed::give_back(request, key, one, now);
    fixed::expire(request, key, &one.quota, now);
}
