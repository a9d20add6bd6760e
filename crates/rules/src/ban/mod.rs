//! Bans: which subjects are banned, for how long, and the buckets by which all gateways know it.
//!
//! A ban needs nothing of a store that a limit does not. Its subject's *ban* is a bucket of GCRA
//! whose debt is what is left of the ban: a unit is a millisecond, and its burst is the longest
//! ban. A request is let through where the bucket is full, so it is checked for the whole burst,
//! and nothing is taken. *Strikes* are a bucket of as many units as strikes ban. *Offences* are a
//! bucket whose units come back each by each as they are forgotten. And a *turn* is a bucket of one
//! unit: of many strikes at once, on however many gateways, the one that gets it begins the ban.

mod standing;
#[cfg(test)]
mod tests;

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::time::Duration;

use smallvec::smallvec;
use thiserror::Error;
use weir_http::address::Nat64Prefixes;
use weir_limit::{Batch, BucketKey, BucketKeys, Decision, Mode, Quota, QuotaError, Transaction};

pub use self::standing::{Banned, BannedError, StandingBans};
use crate::key_parts::KeySchema;
use crate::limit::check_name;
use crate::{HashKey, IdError, IdWarning, KeySource, LimitNameError, RequestAttributes};

/// Upper bound on the time from taking the turn to the ban. After it another strike may take the
/// turn.
const MAX_TURN: Duration = Duration::from_secs(5);

/// Upper bound on the difference between gateways' clocks.
const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_secs(1);

/// A named rule: which subjects it bans, after how many strikes, and for how long.
#[derive(Clone, Debug)]
pub struct Ban {
    name: Arc<str>,
    prefixes: Prefixes,
    schema: KeySchema,
    strikes: Quota,
    turn: Quota,
    schedule: BanSchedule,
}

/// The beginnings of the keys of a ban's buckets, by which stores know their
/// [`BucketClass`](weir_limit::BucketClass).
#[derive(Clone, Debug)]
struct Prefixes {
    ban: String,
    strikes: String,
    offences: String,
    turn: String,
}

impl Prefixes {
    fn new(name: &str) -> Self {
        let prefix = |what: &str| format!(":{what}:{name}:");
        Self {
            ban: prefix("ban"),
            strikes: prefix("strikes"),
            offences: prefix("offences"),
            turn: prefix("turn"),
        }
    }
}

impl Ban {
    /// A ban of the subject that `per` makes up, as soon as a bucket of `strikes` is empty. What
    /// may be secret is hashed with `key`, as in [`Limit`](crate::Limit).
    ///
    /// # Errors
    /// When the name cannot stand in bucket keys.
    pub fn new(
        name: &str,
        per: Vec<KeySource>,
        key: HashKey,
        strikes: Quota,
        schedule: BanSchedule,
    ) -> Result<Self, LimitNameError> {
        check_name(name)?;
        let turn = MAX_TURN.min(schedule.first());
        // The turn is of a second at least, as the shortest ban is.
        let turn = Quota::new(1, 1, turn).unwrap_or(strikes);
        Ok(Self {
            name: name.into(),
            prefixes: Prefixes::new(name),
            schema: KeySchema::new(per, key),
            strikes,
            turn,
            schedule,
        })
    }

    /// Takes addresses with the prefixes of these translators for those of IPv4, in requests and in
    /// ids.
    #[must_use]
    pub fn with_nat64_prefixes(mut self, prefixes: Nat64Prefixes) -> Self {
        self.schema.nat64 = prefixes;
        self
    }

    /// The name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The sources that make up the subject.
    pub fn per(&self) -> &[KeySource] {
        &self.schema.per
    }

    /// The number of strikes that begin a ban, and their period.
    pub fn strikes(&self) -> Quota {
        self.strikes
    }

    /// The period in which that many strikes begin a ban, to the millisecond, to which emission
    /// intervals are rounded down.
    pub fn period(&self) -> Duration {
        Duration::from_millis(self.strikes.tolerance().ceil_millis())
    }

    /// The lengths of bans.
    pub fn schedule(&self) -> &BanSchedule {
        &self.schedule
    }

    /// The subject of a request; none where it lacks a value.
    pub fn subject(&self, attributes: &RequestAttributes<'_>) -> Option<BucketKey> {
        let mut subject = BucketKey::default();
        self.schema.write(attributes, &mut subject).ok()?;
        Some(subject)
    }

    /// The subject of an id, which is written as those of overrides are.
    ///
    /// # Errors
    /// When the id has not the form that the ban's sources ask for.
    pub fn subject_of(&self, id: &str) -> Result<BucketKey, IdError> {
        let mut subject = BucketKey::default();
        self.schema.write_id(id, &mut subject)?;
        Ok(subject)
    }

    /// Why an id may not name the subject that is meant, if so.
    pub fn id_warning(&self, id: &str) -> Option<IdWarning> {
        self.schema.looks_hashed(id)
    }

    /// The key of a subject's ban.
    pub fn ban_key(&self, subject: &BucketKey) -> BucketKey {
        key(&self.prefixes.ban, subject)
    }

    /// Denies a banned subject; the decision's `retry_in` is what is left of the ban.
    pub fn check(&self, subject: &BucketKey) -> Transaction {
        let quota = self.schedule.quota;
        Transaction {
            mode: Mode::CheckOnly,
            ..Transaction::new(self.ban_key(subject), quota, quota.burst())
        }
    }

    /// Counts a strike, unless the subject is banned already.
    pub fn strike(&self, subject: &BucketKey) -> Batch {
        smallvec![self.check(subject), self.one_strike(subject)]
    }

    fn one_strike(&self, subject: &BucketKey) -> Transaction {
        Transaction::new(self.strikes_key(subject), self.strikes, NonZeroU64::MIN)
    }

    /// Whether a ban is due after [`Ban::strike`] with these decisions: the strikes are used up,
    /// and the subject is not banned yet.
    pub fn is_due(&self, decisions: &[Option<Decision>]) -> bool {
        match decisions {
            [Some(ban), Some(strikes)] => ban.allowed && self.is_last(strikes),
            // A cached denial stands for the whole batch.
            [None, Some(strikes)] => !strikes.allowed,
            _ => false,
        }
    }

    /// Whether a strike was the last of those that ban. Gateways' clocks differ: a strike that was
    /// counted by a clock behind leaves a debt a little above that of the strikes so far, which is
    /// not one strike more.
    fn is_last(&self, strike: &Decision) -> bool {
        let interval = self.strikes.emission_interval();
        let others = self.strikes.tolerance().saturating_sub(interval);
        let difference = MAX_CLOCK_DIFFERENCE.min(Duration::from(interval) / 8);
        !strike.allowed || strike.reset_in > others + difference.into()
    }

    /// Takes the turn to begin a ban, unless another gateway has it or the subject is banned
    /// already, and reads the number of offences.
    pub fn take_turn(&self, subject: &BucketKey) -> Batch {
        let turn = key(&self.prefixes.turn, subject);
        let turn = Transaction::new(turn, self.turn, NonZeroU64::MIN);
        let offences = self.count_offence(subject).map(|transaction| Transaction {
            mode: Mode::Peek,
            ..transaction
        });
        let both = [self.check(subject), turn];
        both.into_iter().chain(offences).collect()
    }

    /// The number of the offence, from 1, after [`Ban::take_turn`] with these decisions. `None`
    /// where another gateway begins the ban, or has begun it.
    pub fn offence(&self, decisions: &[Option<Decision>]) -> Option<usize> {
        let is_ours =
            |decision: &Option<Decision>| decision.is_some_and(|decision| decision.allowed);
        let so_far = || decisions.get(2).and_then(Option::as_ref);
        decisions
            .iter()
            .all(is_ours)
            .then(|| self.schedule.offence(so_far()))
    }

    /// Counts an offence, up to the number that still makes bans longer. `None` where all bans are
    /// equally long.
    fn count_offence(&self, subject: &BucketKey) -> Option<Transaction> {
        let quota = self.schedule.offences()?;
        let offences = key(&self.prefixes.offences, subject);
        Some(Transaction {
            mode: Mode::SpendOnly,
            ..Transaction::new(offences, quota, NonZeroU64::MIN)
        })
    }

    /// Begins the ban for an offence and counts the offence, unless the subject is banned already:
    /// after a fallback to the memory store two gateways may both take the turn.
    pub fn begin_for(&self, subject: &BucketKey, offence: usize) -> Batch {
        let begin = self.begin(subject, self.schedule.length(offence));
        let both = [self.check(subject), begin];
        both.into_iter()
            .chain(self.count_offence(subject))
            .collect()
    }

    /// Whether [`Ban::begin_for`] with these decisions has begun a ban.
    pub fn has_begun(&self, decisions: &[Option<Decision>]) -> bool {
        matches!(decisions, [Some(ban), Some(begun), ..] if ban.allowed && begun.fits())
    }

    /// Bans the subject for `length`, which is no longer than [`BanSchedule::longest`]. The subject
    /// must not be banned.
    pub fn begin(&self, subject: &BucketKey, length: Duration) -> Transaction {
        Transaction {
            mode: Mode::SpendOnly,
            cost: self.schedule.cost(length),
            quota: self.schedule.kept,
            ..self.check(subject)
        }
    }

    /// Reads the rest of the subject's ban, even if it exceeds the longest ban of today.
    pub fn left(&self, subject: &BucketKey) -> Transaction {
        Transaction {
            mode: Mode::Peek,
            quota: self.schedule.kept_for(MAX_LENGTH),
            ..self.check(subject)
        }
    }

    /// Shortens a ban by `by` when it is refunded.
    pub fn shortening(&self, subject: &BucketKey, by: Duration) -> Transaction {
        let quota = self.schedule.kept_for(by);
        Transaction::new(self.ban_key(subject), quota, units(by))
    }

    /// The bucket of strikes, which is made full again when they have led to a ban.
    pub fn strikes_key(&self, subject: &BucketKey) -> BucketKey {
        key(&self.prefixes.strikes, subject)
    }

    /// All buckets of a subject: without them nothing is held against it.
    pub fn keys(&self, subject: &BucketKey) -> BucketKeys {
        let Prefixes {
            ban,
            strikes,
            offences,
            turn,
        } = &self.prefixes;
        let prefixes = [ban, strikes, offences, turn];
        prefixes
            .map(|prefix| key(prefix, subject))
            .into_iter()
            .collect()
    }

    /// Reads a subject's ban, its strikes, and its offences where they are counted.
    pub fn peek(&self, subject: &BucketKey) -> Batch {
        let all = [self.check(subject), self.one_strike(subject)];
        let all = all.into_iter().chain(self.count_offence(subject));
        all.map(|transaction| Transaction {
            mode: Mode::CheckOnly,
            ..transaction
        })
        .collect()
    }
}

fn key(prefix: &str, subject: &BucketKey) -> BucketKey {
    let mut key = BucketKey::default();
    key.push_str(prefix);
    key.push_str(subject.as_str());
    key
}

const UNIT: Duration = Duration::from_millis(1);

const MIN_LENGTH: Duration = MAX_CLOCK_DIFFERENCE;

/// The longest debt that a store can hold.
const MAX_LENGTH: Duration = Duration::from_nanos(1 << 62);

/// Extra time for which a ban is kept. Stores keep buckets for up to a minute, or a sub-window,
/// longer than they must.
const SPARE: Duration = Duration::from_secs(120);

/// The lengths of bans: of the first, and of each that follows before the last offence is
/// forgotten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BanSchedule {
    /// By offence, in ascending order; never empty.
    lengths: Box<[Duration]>,
    /// Has the longest ban for its burst. A debt that is greater stems from a ban that was longer
    /// before the configuration changed, and is cut to that.
    quota: Quota,
    /// The quota by which stores keep a ban: with more room; see [`BanSchedule::outliving`].
    kept: Quota,
    /// `None` if all bans are equally long.
    offences: Option<Quota>,
}

/// Why a schedule is refused, and what to write instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BanScheduleError {
    /// The first ban is shorter than a second.
    #[error("a ban is for a second at least; write `1s`")]
    TooShort,
    /// The longest ban is shorter than the first.
    #[error("the longest ban is shorter than the first; leave `max` out, or raise it")]
    LongestTooShort,
    /// The longest ban is too long.
    #[error("a ban is for 146 years at most; say `max: 365d`")]
    TooLong,
    /// Offences are forgotten before the first ban is over.
    #[error(
        "offences are forgotten before the first ban is over, so bans never grow; raise `forget` above `for`"
    )]
    ForgottenTooSoon,
    /// Offences are never forgotten.
    #[error("the time until an offence is forgotten is too long: {0}")]
    Forgetting(QuotaError),
}

impl BanSchedule {
    /// A `first` ban, and then each `factor` times as long as the one before, up to `longest`. An
    /// offence is forgotten after `forget`, one at a time.
    ///
    /// # Errors
    /// See [`BanScheduleError`].
    pub fn new(
        first: Duration,
        factor: NonZeroU32,
        longest: Duration,
        forget: Duration,
    ) -> Result<Self, BanScheduleError> {
        if first < MIN_LENGTH {
            return Err(BanScheduleError::TooShort);
        }
        if longest < first {
            return Err(BanScheduleError::LongestTooShort);
        }
        let lengths = lengths(first, factor, longest);
        let greatest = lengths.last().copied().unwrap_or(first);
        let quota =
            Quota::new(units(greatest).get(), 1, UNIT).map_err(|_| BanScheduleError::TooLong)?;
        let offences = match lengths.len() as u64 {
            1 => None,
            _ if forget <= first => return Err(BanScheduleError::ForgottenTooSoon),
            several => Some(Quota::new(several, 1, forget).map_err(BanScheduleError::Forgetting)?),
        };
        Ok(Self {
            lengths,
            quota,
            kept: quota,
            offences,
        })
    }

    /// Keeps bans longer than any other bucket that is kept for `span` after it was taken from.
    ///
    /// A store forgets a bucket some time after it could be full at the latest, and one that is
    /// short of memory forgets first what it would forget the soonest. So the bucket of a ban has
    /// room for more than the longest ban.
    #[must_use]
    pub fn outliving(self, span: Duration) -> Self {
        let longest = self.longest().saturating_add(span);
        let spare = (span / 16).saturating_add(SPARE);
        let quota = Quota::new(units(longest.saturating_add(spare)).get(), 1, UNIT);
        Self {
            // There is no room for more than a store can count: bans of a hundred years need no
            // spare.
            kept: quota.unwrap_or(self.quota),
            ..self
        }
    }

    /// The length of the first ban.
    pub fn first(&self) -> Duration {
        self.lengths.first().copied().unwrap_or(MIN_LENGTH)
    }

    /// The length of the longest ban.
    pub fn longest(&self) -> Duration {
        self.lengths.last().copied().unwrap_or(MIN_LENGTH)
    }

    /// All lengths, by offence.
    pub fn lengths(&self) -> &[Duration] {
        &self.lengths
    }

    /// The time after which an offence is forgotten, if bans grow.
    pub fn forget(&self) -> Option<Duration> {
        self.offences.map(|quota| quota.emission_interval().into())
    }

    /// Which offence comes next, counted from 1, by a look at those so far.
    fn offence(&self, so_far: Option<&Decision>) -> usize {
        let Some((quota, so_far)) = self.offences.zip(so_far) else {
            return 1;
        };
        let most = quota.burst().get();
        let next = most.saturating_sub(so_far.remaining).saturating_add(1);
        usize::try_from(next.min(most)).unwrap_or(usize::MAX)
    }

    /// The length of the ban for this offence.
    pub fn length(&self, offence: usize) -> Duration {
        let of_offence = self.lengths.get(offence.saturating_sub(1));
        of_offence.copied().unwrap_or_else(|| self.longest())
    }

    fn offences(&self) -> Option<Quota> {
        self.offences
    }

    /// A quota by which a store counts this length as well.
    fn kept_for(&self, length: Duration) -> Quota {
        let units = units(length).max(self.kept.burst());
        Quota::new(units.get(), 1, UNIT).unwrap_or(self.kept)
    }

    /// A ban of this length in units of its bucket; of the longest at most.
    fn cost(&self, length: Duration) -> NonZeroU64 {
        units(length.min(self.longest()))
    }
}

fn lengths(first: Duration, factor: NonZeroU32, longest: Duration) -> Box<[Duration]> {
    let longer = |last: &Duration| {
        let next = last.saturating_mul(factor.get()).min(longest);
        (next > *last).then_some(next)
    };
    std::iter::successors(Some(first), longer).collect()
}

fn units(length: Duration) -> NonZeroU64 {
    let units = length.as_nanos() / UNIT.as_nanos();
    let units = u64::try_from(units).unwrap_or(u64::MAX);
    NonZeroU64::new(units).unwrap_or(NonZeroU64::MIN)
}
