//! Batches with limits that are counted in windows, alone or beside GCRA's.
//!
//! They are one pipeline, too. What differs is what is to be put right afterwards: a window may have
//! been written to although the cost did not fit.

use std::sync::Arc;

use redis::{Pipeline, Value};
use smallvec::SmallVec;

use super::ask::strange_reply;
use super::channel::Channel;
use super::commands::{self, Found, Question};
use super::link::Live;
use super::windows::{Family, Repair, WindowFound, WindowQuestion, fixed, log, sliding};
use crate::limit::{Batch, Decision, Kind, SubWindow, SubWindows, Transaction};
use crate::store::{Basis, Call, Outcome, StoreError};
use crate::time::{Nanos, Timestamp};

type Key = SmallVec<[u8; 96]>;

/// What is asked about a transaction.
#[derive(Clone, Copy)]
enum Asked {
    Gcra(Question),
    Window(WindowQuestion),
}

/// What came of it.
enum Answer {
    Gcra(Found),
    Window(WindowFound, Repair),
}

/// What is to be taken off again: commands, and units of sub-windows, which need to be looked after.
#[derive(Default)]
struct GivingBack {
    commands: Pipeline,
    taken: Vec<Taken>,
}

struct Taken {
    key: Key,
    sub_window: SubWindow,
    transaction: Transaction,
}

impl Channel {
    /// Asks Redis about a batch of which some transactions are counted in windows, takes from all
    /// of its buckets or from none, and decides.
    pub(super) async fn ask_mixed(
        self: Arc<Self>,
        live: Live,
        batch: Batch,
        now: Timestamp,
    ) -> Result<Outcome, StoreError> {
        let asked: SmallVec<[Asked; 3]> = batch.iter().map(|one| Asked::of(one, now)).collect();
        let mut commands = Pipeline::new();
        for (one, asked) in batch.iter().zip(&asked) {
            asked.add(&mut commands, &self.any_key(one), one, now);
        }
        let replies = self.send(&live, &commands).await?;
        let answers = answers(&batch, &asked, &replies, now).ok_or_else(strange_reply)?;
        let looks = || batch.iter().zip(asked.iter().zip(&answers));
        let denied = looks().any(|(one, (asked, answer))| answer.denies(*asked, one));
        let decision = |(one, (asked, answer)): (&Transaction, (&Asked, &Answer))| {
            Some(answer.decision(*asked, one, denied))
        };
        let decisions = looks().map(decision).collect();
        self.put_right(&live, &batch, &asked, &answers, denied, now);
        Ok(Outcome {
            decisions,
            basis: Basis::Store,
        })
    }

    /// Gives back what was taken, as far as it is still owed. What of a sliding window is owed has to
    /// be read first.
    pub(super) async fn refund_mixed(
        self: Arc<Self>,
        live: Live,
        batch: Batch,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let mut giving = GivingBack::default();
        for one in batch.iter().filter(|one| one.kind.spends()) {
            if !one.quota.algorithm().is_windowed() {
                if let Some(increment) = one.quota.increment(one.cost) {
                    self.add_give_back(&mut giving.commands, one, increment, now);
                }
            } else if one.fits_beside(0) {
                self.add_refund(&live, &mut giving, one, now).await?;
            }
        }
        self.give_back(&live, giving).await
    }

    async fn add_refund(
        &self,
        live: &Live,
        giving: &mut GivingBack,
        one: &Transaction,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let key = self.any_key(one);
        match Family::of(&one.quota) {
            Family::Fixed => add_fixed_refund(&mut giving.commands, &key, one, now),
            Family::Log => {
                giving.commands.add_command(log::give_back(&key, one));
            }
            Family::Sliding => {
                let mut commands = Pipeline::new();
                commands.add_command(sliding::read(&key));
                let replies = self.send(live, &commands).await?;
                let all = replies.first().and_then(sliding::sub_windows);
                let all: SubWindows = all.ok_or_else(strange_reply)?.into_iter().collect();
                let taken = |sub_window| Taken {
                    key: key.clone(),
                    sub_window,
                    transaction: one.clone(),
                };
                giving
                    .taken
                    .extend(all.given_back(one.cost.get()).map(taken));
            }
        }
        Ok(())
    }

    /// A bucket's key in Redis, with the mark of its algorithm.
    fn any_key(&self, one: &Transaction) -> Key {
        let mut key = self.key(&one.key);
        if one.quota.algorithm().is_windowed() {
            key.extend_from_slice(Family::of(&one.quota).mark().as_bytes());
        }
        key
    }

    fn put_right(
        self: &Arc<Self>,
        live: &Live,
        batch: &Batch,
        asked: &[Asked],
        answers: &[Answer],
        denied: bool,
        now: Timestamp,
    ) {
        let (mut giving, mut repairs) = (GivingBack::default(), Pipeline::new());
        for (one, (&asked, answer)) in batch.iter().zip(asked.iter().zip(answers)) {
            let key = self.any_key(one);
            answer.add_repair(&mut repairs, &key, one, now);
            if answer.is_to_be_given_back(asked, one, denied) {
                giving.add(asked, key, one, now);
            }
        }
        self.in_background(Call::Clamp, live, repairs);
        if !giving.is_empty() {
            let (channel, live) = (Arc::clone(self), live.clone());
            let work = async move { channel.give_back(&live, giving).await };
            self.off_path(Call::Refund, work);
        }
    }

    /// Takes off what is to be given back. A sub-window that a reset has emptied meanwhile would
    /// have less than nothing: that is made up for at once.
    async fn give_back(&self, live: &Live, mut giving: GivingBack) -> Result<(), StoreError> {
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
    fn is_empty(&self) -> bool {
        self.commands.is_empty() && self.taken.is_empty()
    }

    /// Adds just what a question took.
    fn add(&mut self, asked: Asked, key: Key, one: &Transaction, now: Timestamp) {
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

fn add_fixed_refund(commands: &mut Pipeline, key: &[u8], one: &Transaction, now: Timestamp) {
    commands.add_command(fixed::give_back(key, one, now));
    commands.add_command(fixed::expire(key, &one.quota, now));
}

impl Asked {
    fn of(one: &Transaction, now: Timestamp) -> Self {
        if one.quota.algorithm().is_windowed() {
            Self::Window(WindowQuestion::of(one, now))
        } else {
            Self::Gcra(Question::of(one))
        }
    }

    fn add(self, commands: &mut Pipeline, key: &[u8], one: &Transaction, now: Timestamp) {
        match self {
            Self::Window(question) => question.add(commands, key, one, now),
            Self::Gcra(Question::Nothing) => {}
            Self::Gcra(Question::Read) => {
                commands.add_command(commands::read(key));
            }
            Self::Gcra(Question::Take(increment)) => {
                let tolerance = one.quota.tolerance();
                commands.add_command(commands::take(key, increment, tolerance, now));
                commands.add_command(commands::expire(key, tolerance));
            }
        }
    }

    fn replies(self, one: &Transaction) -> usize {
        match self {
            Self::Gcra(question) => question.replies(),
            Self::Window(question) => question.replies(one),
        }
    }

    fn parse(self, replies: &[Value], one: &Transaction, now: Timestamp) -> Option<Answer> {
        match self {
            Self::Gcra(question) => match replies.first() {
                None => Some(Answer::Gcra(Found::default())),
                Some(reply) => Found::parse(question, reply, now).map(Answer::Gcra),
            },
            Self::Window(question) => question
                .parse(replies, one, now)
                .map(|(found, repair)| Answer::Window(found, repair)),
        }
    }
}

/// Matches replies with questions.
fn answers(
    batch: &Batch,
    asked: &[Asked],
    replies: &[Value],
    now: Timestamp,
) -> Option<SmallVec<[Answer; 3]>> {
    let mut rest = replies;
    let mut answers = SmallVec::new();
    for (one, asked) in batch.iter().zip(asked) {
        let (replies, after) = rest.split_at_checked(asked.replies(one))?;
        rest = after;
        answers.push(asked.parse(replies, one, now)?);
    }
    Some(answers)
}

impl Answer {
    fn denies(&self, asked: Asked, one: &Transaction) -> bool {
        !self.decision(asked, one, false).allowed
    }

    /// The decision about a bucket; `denied` when one of its batch denies.
    fn decision(&self, asked: Asked, one: &Transaction, denied: bool) -> Decision {
        match self {
            Self::Gcra(found) => {
                let debt = match asked {
                    Asked::Gcra(question) => found.deciding_debt(question, one),
                    Asked::Window(_) => Nanos::ZERO,
                };
                match one.decide(debt) {
                    decision if denied && decision.allowed => one.untouched(debt),
                    decision => decision,
                }
            }
            Self::Window(found, _) => match one.decide_in_window(&found.usage) {
                decision if denied && decision.allowed => one.untouched_in_window(&found.usage),
                decision if decision.allowed => decision,
                decision => found
                    .usage_after
                    .map_or(decision, |after| one.decide_in_window(&after)),
            },
        }
    }

    /// Whether something was written that must not stay.
    fn is_to_be_given_back(&self, asked: Asked, one: &Transaction, denied: bool) -> bool {
        match self {
            Self::Gcra(found) => denied && found.taken,
            Self::Window(found, _) => {
                let fits = one.fits_beside(found.usage.used);
                let stays = if fits {
                    !denied
                } else {
                    one.is_counted_when_denied() && self.denies(asked, one)
                };
                found.written && !stays
            }
        }
    }

    fn add_repair(&self, commands: &mut Pipeline, key: &[u8], one: &Transaction, now: Timestamp) {
        match self {
            Self::Gcra(found) if one.quota.is_left_over(found.debt) => {
                let tolerance = one.quota.tolerance();
                commands.add_command(commands::clamp(key, now + tolerance));
                commands.add_command(commands::expire(key, tolerance));
            }
            Self::Window(_, Repair::Cut(end)) => {
                commands.add_command(fixed::cut(key, *end));
                commands.add_command(fixed::expire(key, &one.quota, now));
            }
            Self::Window(_, Repair::Prune(starts)) => {
                commands.add_command(sliding::prune(key, starts));
            }
            Self::Gcra(_) | Self::Window(_, Repair::Nothing) => {}
        }
    }
}

/// Whether a batch has transactions that are counted in windows.
pub(super) fn has_windows(batch: &Batch) -> bool {
    let is_asked = |one: &&Transaction| one.kind != Kind::AllowOnly;
    let mut asked = batch.iter().filter(is_asked);
    asked.any(|one| one.quota.algorithm().is_windowed())
}
