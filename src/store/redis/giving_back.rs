//! Takes off again what was taken from buckets of any algorithm.

use redis::{Pipeline, Value};

use super::asked::Asked;
use super::channel::Channel;
use super::commands::{self, Question};
use super::link::Live;
use super::mixed::Key;
use super::windows::{WindowQuestion, fixed, sliding};
use crate::limit::{SubWindow, Transaction};
use crate::store::StoreError;
use crate::time::Timestamp;

/// What is to be taken off again: commands, and units of sub-windows, which need to be looked after.
#[derive(Default)]
pub(super) struct GivingBack {
    pub(super) commands: Pipeline,
    pub(super) taken: Vec<Taken>,
}

pub(super) struct Taken {
    pub(super) key: Key,
    pub(super) sub_window: SubWindow,
    pub(super) transaction: Transaction,
}

impl Channel {
    /// Takes off what is to be given back. A sub-window that a reset has emptied meanwhile would
    /// have less than nothing: that is made up for at once.
    pub(super) async fn give_back(
        &self,
        live: &Live,
        mut giving: GivingBack,
    ) -> Result<(), StoreError> {
        let first = giving.commands.len();
        for taken in &giving.taken {
            let units = taken.units();
            let start = taken.sub_window.start;
            let commands = &mut giving.commands;
            commands.add_command(sliding::increase(&taken.key, start, -units));
            commands.add_command(sliding::expire(&taken.key, &taken.transaction.quota));
        }
        if giving.commands.is_empty() {
            return Ok(());
        }
        let replies = self.send(live, &giving.commands).await?;
        let mut amends = Pipeline::new();
        let results = replies.iter().skip(first).step_by(2);
        for (taken, result) in giving.taken.iter().zip(results) {
            if let Value::Int(below @ ..0) = result {
                let missing = below.saturating_neg().min(taken.units());
                let start = taken.sub_window.start;
                amends.add_command(sliding::increase(&taken.key, start, missing));
            }
        }
        if amends.is_empty() {
            return Ok(());
        }
        self.send(live, &amends).await.map(drop)
    }
}

impl Taken {
    fn units(&self) -> i64 {
        i64::try_from(self.sub_window.used).unwrap_or(i64::MAX)
    }
}

impl GivingBack {
    pub(super) fn is_empty(&self) -> bool {
        self.commands.is_empty() && self.taken.is_empty()
    }

    /// Adds just what a question took.
    pub(super) fn add(&mut self, asked: Asked, key: Key, one: &Transaction, now: Timestamp) {
        match asked {
            Asked::Gcra(Question::Take(increment)) => {
                let commands = &mut self.commands;
                commands.add_command(commands::give_back(&key, increment, now));
                commands.add_command(commands::expire(&key, one.quota.tolerance()));
            }
            Asked::Window(WindowQuestion::TakeFixed) => {
                add_fixed_refund(&mut self.commands, &key, one, now);
            }
            Asked::Window(WindowQuestion::TakeLog(members)) => {
                self.commands.add_command(members.remove(&key));
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
    commands: &mut Pipeline,
    key: &[u8],
    one: &Transaction,
    now: Timestamp,
) {
    commands.add_command(fixed::give_back(key, one, now));
    commands.add_command(fixed::expire(key, &one.quota, now));
}
