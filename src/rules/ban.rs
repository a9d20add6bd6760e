//! Bans: who is kept out, for how long, and the buckets by which all gateways know it.
//!
//! A ban needs nothing of a store that a limit does not. Its subject's *ban* is a bucket of GCRA
//! whose debt is what is left of the ban: a unit is a millisecond, and its burst is the longest
//! ban. A request is let through where the bucket is full, so it is checked for the whole burst, and
//! nothing is taken. *Strikes* are a bucket of as many units as strikes ban. *Offences* are a bucket
//! whose units come back each by each as they are forgotten. And a *turn* is a bucket of one unit:
//! of many strikes at once, on however many gateways, the one that gets it begins the ban.

mod terms;

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use smallvec::smallvec;

use crate::limit::{Batch, BucketKey, BucketKeys, Decision, Mode, Quota, Transaction};
use crate::rules::limit_rule::check_name;
use crate::rules::override_id::{self, IdDoubt, IdError};
use crate::rules::part::Parts;
use crate::rules::{HashKey, KeySource, LimitNameError, RequestAttributes};

pub use terms::{Terms, TermsError};

/// How long the gateway that begins a ban may take to do so before another strike may begin it.
const LONGEST_TURN: Duration = Duration::from_secs(5);

/// A named rule: whom it bans, after how many strikes, and for how long.
#[derive(Clone, Debug)]
pub struct Ban {
    name: Arc<str>,
    prefixes: Prefixes,
    per: Vec<KeySource>,
    key: HashKey,
    strikes: Quota,
    turn: Quota,
    terms: Terms,
}

/// How the keys of a ban's buckets begin, which tells stores their
/// [`BucketClass`](crate::limit::BucketClass).
#[derive(Clone, Debug)]
struct Prefixes {
    ban: String,
    strikes: String,
    offences: String,
    turn: String,
}

impl Prefixes {
    fn of(name: &str) -> Self {
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
    /// A ban of whom a request is counted per, as soon as a bucket of `strikes` is empty. What may
    /// be secret is hashed with `key`, as in [`Limit`](crate::rules::Limit).
    ///
    /// # Errors
    /// When the name cannot stand in bucket keys.
    pub fn new(
        name: &str,
        mut per: Vec<KeySource>,
        key: HashKey,
        strikes: Quota,
        terms: Terms,
    ) -> Result<Self, LimitNameError> {
        check_name(name)?;
        if per.is_empty() {
            per.push(KeySource::Global);
        }
        let turn = LONGEST_TURN.min(terms.first());
        // The turn is of a second at least, as the shortest ban is.
        let turn = Quota::new(1, 1, turn).unwrap_or(strikes);
        Ok(Self {
            name: name.into(),
            prefixes: Prefixes::of(name),
            per,
            key,
            strikes,
            turn,
            terms,
        })
    }

    /// The name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// What makes up the subject.
    pub fn per(&self) -> &[KeySource] {
        &self.per
    }

    /// How many strikes in how long begin a ban.
    pub fn strikes(&self) -> Quota {
        self.strikes
    }

    /// In how long so many strikes begin a ban, to the millisecond, up to which emission intervals
    /// are rounded down.
    pub fn period(&self) -> Duration {
        Duration::from_millis(self.strikes.tolerance().ceil_millis())
    }

    /// How long bans are.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// The subject of a request; none where it lacks a value.
    pub fn subject(&self, facts: &RequestAttributes<'_>) -> Option<BucketKey> {
        let mut subject = BucketKey::default();
        for (index, source) in self.per.iter().enumerate() {
            if index > 0 {
                subject.push_str(":");
            }
            let mut parts = Parts {
                key: &mut subject,
                hash_key: &self.key,
                composite: self.per.len() > 1,
            };
            parts.write(source, facts)?;
        }
        Some(subject)
    }

    /// The subject of an id, which is written as those of overrides are.
    ///
    /// # Errors
    /// When the id has not the form that the ban's sources ask for.
    pub fn subject_of(&self, id: &str) -> Result<BucketKey, IdError> {
        let mut subject = BucketKey::default();
        override_id::write_subject(&self.per, id, &self.key, &mut subject)?;
        Ok(subject)
    }

    /// What to know of an id that may not be of the subject that is meant.
    pub fn doubt_about(&self, id: &str) -> Option<IdDoubt> {
        override_id::looks_hashed(&self.per, id)
    }

    /// The key of a subject's ban.
    pub fn ban_key(&self, subject: &BucketKey) -> BucketKey {
        key(&self.prefixes.ban, subject)
    }

    /// Denies who is banned; the decision's `retry_in` is what is left of the ban.
    pub fn check(&self, subject: &BucketKey) -> Transaction {
        let quota = self.terms.quota();
        Transaction {
            kind: Mode::CheckOnly,
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

    /// Whether it is time for a ban, by what came of [`Ban::strike`]: the strikes are used up, and
    /// nobody is banned yet.
    pub fn is_due(&self, decisions: &[Option<Decision>]) -> bool {
        match decisions {
            [Some(ban), Some(strikes)] => ban.allowed && strikes.remaining == 0,
            // A denial that is remembered answers for the whole batch.
            [None, Some(strikes)] => !strikes.allowed,
            _ => false,
        }
    }

    /// Takes the turn to begin a ban, unless somebody has it or the subject is banned already, and
    /// looks how many offences there were.
    pub fn take_turn(&self, subject: &BucketKey) -> Batch {
        let turn = key(&self.prefixes.turn, subject);
        let turn = Transaction::new(turn, self.turn, NonZeroU64::MIN);
        let offences = self.offend(subject).map(|one| Transaction {
            kind: Mode::Peek,
            ..one
        });
        let both = [self.check(subject), turn];
        both.into_iter().chain(offences).collect()
    }

    /// Which offence it is, counted from 1, by what came of [`Ban::take_turn`]; none where somebody
    /// else begins the ban, or has begun it.
    pub fn offence(&self, decisions: &[Option<Decision>]) -> Option<usize> {
        let is_ours = |decision: &Option<Decision>| decision.is_some_and(|it| it.allowed);
        let so_far = || decisions.get(2).and_then(Option::as_ref);
        decisions
            .iter()
            .all(is_ours)
            .then(|| self.terms.offence(so_far()))
    }

    /// Counts an offence, of which as many are counted as make bans longer; none where bans are
    /// all alike.
    fn offend(&self, subject: &BucketKey) -> Option<Transaction> {
        let quota = self.terms.offences()?;
        let offences = key(&self.prefixes.offences, subject);
        Some(Transaction {
            kind: Mode::SpendOnly,
            ..Transaction::new(offences, quota, NonZeroU64::MIN)
        })
    }

    /// Begins the ban for an offence and counts the offence, unless the subject is banned already:
    /// somebody else may have had a turn as well, from a store that stood in for another.
    pub fn punish(&self, subject: &BucketKey, offence: usize) -> Batch {
        let begin = self.begin(subject, self.terms.length(offence));
        let both = [self.check(subject), begin];
        both.into_iter().chain(self.offend(subject)).collect()
    }

    /// Whether a ban has begun, by what came of [`Ban::punish`].
    pub fn has_begun(&self, decisions: &[Option<Decision>]) -> bool {
        matches!(decisions, [Some(ban), Some(begun), ..] if ban.allowed && begun.fits())
    }

    /// Bans the subject for so long, which is no longer than [`Terms::longest`]. The subject must
    /// not be banned.
    pub fn begin(&self, subject: &BucketKey, length: Duration) -> Transaction {
        Transaction {
            kind: Mode::SpendOnly,
            cost: self.terms.cost(length),
            ..self.check(subject)
        }
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

    /// Asks how a subject stands and changes nothing: its ban, its strikes, and its offences where
    /// they are counted.
    pub fn look(&self, subject: &BucketKey) -> Batch {
        let all = [self.check(subject), self.one_strike(subject)];
        let all = all.into_iter().chain(self.offend(subject));
        all.map(|one| Transaction {
            kind: Mode::CheckOnly,
            ..one
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

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::limit::BucketClass;
    use crate::time::Nanos;

    const MINUTE: Duration = Duration::from_secs(60);

    fn banning(per: &str, factor: u32) -> Ban {
        let source = KeySource::parse(per, 64).unwrap();
        let key = HashKey::from_bytes(&[7; 16]).unwrap();
        let strikes = Quota::new(3, 3, MINUTE).unwrap();
        let factor = NonZeroU32::new(factor).unwrap();
        let terms = Terms::new(MINUTE, factor, 16 * MINUTE, 60 * MINUTE).unwrap();
        Ban::new("scanners", vec![source], key, strikes, terms).unwrap()
    }

    fn subject(ban: &Ban) -> BucketKey {
        ban.subject_of("203.0.113.9").unwrap()
    }

    /// What a transaction decides about a bucket with this debt, in seconds.
    fn decide(one: &Transaction, debt: u64) -> Decision {
        one.decide(Nanos::from_secs(debt))
    }

    #[test]
    fn no_bucket_of_a_ban_has_the_key_of_another() {
        let ban = banning("address", 4);
        let keys = ban.keys(&subject(&ban));
        let texts: Vec<&str> = keys.iter().map(BucketKey::as_str).collect();
        assert_eq!(
            texts,
            [
                ":ban:scanners:203.0.113.9",
                ":strikes:scanners:203.0.113.9",
                ":offences:scanners:203.0.113.9",
                ":turn:scanners:203.0.113.9"
            ]
        );
        let classes: Vec<BucketClass> = keys.iter().map(BucketKey::class).collect();
        use BucketClass::{Ban, Limit, Offences, Strikes};
        assert_eq!(classes, [Ban, Strikes, Offences, Strikes]);
        assert_eq!(BucketKey::from("ban:203.0.113.9").class(), Limit);
    }

    #[test]
    fn whoever_owes_the_least_of_a_ban_is_banned_until_it_is_over() {
        let ban = banning("address", 4);
        let check = ban.check(&subject(&ban));
        assert!(decide(&check, 0).allowed);
        let denied = decide(&check, 7);
        assert_eq!(
            (denied.allowed, denied.retry_in),
            (false, Nanos::from_secs(7))
        );
        let begun = decide(&ban.begin(&subject(&ban), 4 * MINUTE), 0);
        assert_eq!(begun.reset_in, Nanos::from_secs(240));
    }

    #[test]
    fn the_last_of_the_strikes_is_the_one_that_bans() {
        let ban = banning("address", 4);
        let [check, strike] =
            <[Transaction; 2]>::try_from(ban.strike(&subject(&ban)).to_vec()).unwrap();
        let free = Some(decide(&check, 0));
        assert!(!ban.is_due(&[free, Some(decide(&strike, 19))]));
        assert!(ban.is_due(&[free, Some(decide(&strike, 40))]), "the third");
        assert!(
            ban.is_due(&[free, Some(decide(&strike, 60))]),
            "one too many"
        );
        assert!(ban.is_due(&[None, Some(decide(&strike, 60))]), "remembered");
    }

    #[test]
    fn who_is_banned_earns_no_further_ban() {
        let ban = banning("address", 4);
        let [check, strike] =
            <[Transaction; 2]>::try_from(ban.strike(&subject(&ban)).to_vec()).unwrap();
        let banned = Some(decide(&check, 1));
        assert!(!ban.is_due(&[banned, Some(decide(&strike, 60))]));
        assert!(!ban.is_due(&[banned, None]));
        assert!(!ban.is_due(&[None, None]), "the store is out of reach");
    }

    #[test]
    fn each_offence_that_is_not_forgotten_makes_the_next_ban_longer() {
        let ban = banning("address", 4);
        let turn = ban.take_turn(&subject(&ban));
        let length = |offences| {
            let free = [0, 1].map(|index| Some(decide(&turn[index], 0)));
            let so_far = Some(turn[2].decide(Nanos::from(offences)));
            let decisions = [free[0], free[1], so_far];
            let offence = ban.offence(&decisions).unwrap();
            ban.terms().length(offence).as_secs() / 60
        };
        let forgotten_after = 60 * MINUTE;
        assert_eq!(length(Duration::ZERO), 1);
        assert_eq!(length(forgotten_after - Duration::from_secs(1)), 4);
        assert_eq!(length(2 * forgotten_after - Duration::from_secs(1)), 16);
        assert_eq!(
            length(3 * forgotten_after),
            16,
            "no longer than the longest"
        );
        assert!(banning("address", 1).offend(&subject(&ban)).is_none());
        let taken = decide(&turn[1], 5);
        let free = decide(&turn[0], 0);
        assert_eq!(ban.offence(&[Some(free), Some(taken), None]), None);
    }

    #[test]
    fn what_may_be_a_secret_is_hashed_in_a_subject() {
        let ban = banning("account", 4);
        let subject = ban.subject_of("acme").unwrap();
        assert_eq!(subject.as_str().len(), 32);
        assert!(!subject.as_str().contains("acme"));
    }
}
