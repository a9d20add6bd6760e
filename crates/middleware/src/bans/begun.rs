//! The bans that this process has begun, kept so that they can be listed: the bucket of a ban says that
//! its subject is banned, and until when, but neither the subject's name nor why.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;
use weir_limit::time::{Nanos, Timestamp};
use weir_rules::{Ban, RequestAttributes, StandingBans};

/// How many bans are remembered. Of more, those that end last are.
const MOST: usize = 10_000;

/// A ban that has begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BegunBan {
    /// The ban's name.
    pub ban: Arc<str>,
    /// The subject, as bucket keys have it.
    pub subject: String,
    /// When it began.
    pub since: Timestamp,
    /// When it ends.
    pub until: Timestamp,
    /// Why.
    pub cause: BanCause,
}

/// Why a subject is banned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BanCause {
    /// Strikes have led to it, of which the last was this.
    Strikes {
        /// What the last strike was for.
        last: StrikeCause,
        /// How many it took.
        count: u64,
        /// Which offence it was, counted from 1.
        offence: usize,
    },
    /// An operator has said so.
    Operator {
        /// Who it was.
        name: Arc<str>,
        /// What the operator had to say.
        comment: Option<Arc<str>>,
    },
}

/// What is a strike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StrikeCause {
    /// A limit's denial.
    Limit(Arc<str>),
    /// The status of a response.
    Status(u16),
    /// The path of a request.
    Path(String),
}

/// What a process knows of the banned beside the buckets. Clones share it.
#[derive(Clone, Default)]
pub struct KnownBans(Arc<Known>);

#[derive(Default)]
struct Known {
    begun: Mutex<Begun>,
    /// Wakes what tells others of bans that have begun.
    wake: Notify,
    /// Whether there are standing bans. Nearly always there are none, and no request looks further.
    any_standing: AtomicBool,
    standing: RwLock<Arc<StandingBans>>,
}

#[derive(Default)]
struct Begun {
    /// By when they end; the number tells those apart that end at once.
    bans: BTreeMap<(Timestamp, u64), BegunBan>,
    count: u64,
    /// Those that no other gateway was told of; none where there are no others.
    untold: Option<VecDeque<BegunBan>>,
}

impl KnownBans {
    /// A ban has begun.
    pub fn begun(&self, ban: BegunBan) {
        let mut begun = self.0.begun.lock();
        let begun = &mut *begun;
        begun.count += 1;
        if let Some(untold) = &mut begun.untold {
            untold.push_back(ban.clone());
            if untold.len() > MOST {
                untold.pop_front();
            }
        }
        begun.bans.insert((ban.until, begun.count), ban);
        if begun.bans.len() > MOST {
            begun.bans.pop_first();
        }
        self.0.wake.notify_one();
    }

    /// The bans that have not ended yet, those that end first before the others.
    pub fn list(&self, now: Timestamp) -> Vec<BegunBan> {
        let mut begun = self.0.begun.lock();
        begun.bans = begun.bans.split_off(&(now, 0));
        begun.bans.values().cloned().collect()
    }

    /// There are other gateways, which are told of bans that begin from now on.
    pub fn share(&self) {
        self.0.begun.lock().untold.get_or_insert_default();
    }

    /// Takes the bans of which no other gateway was told.
    pub fn take_untold(&self) -> Vec<BegunBan> {
        let mut begun = self.0.begun.lock();
        let untold = begun.untold.as_mut().map(std::mem::take);
        untold.unwrap_or_default().into()
    }

    /// Gives back what was taken and could not be told. Of too many, the latest are kept.
    pub fn put_back(&self, taken: Vec<BegunBan>) {
        if let Some(untold) = &mut self.0.begun.lock().untold {
            let room = MOST.saturating_sub(untold.len());
            for ban in taken.into_iter().rev().take(room) {
                untold.push_front(ban);
            }
        }
    }

    /// Waits until a ban has begun.
    pub async fn changed(&self) {
        self.0.wake.notified().await;
    }

    /// The bans that operators have set beyond the buckets, from now on these.
    pub fn set_standing(&self, bans: StandingBans) {
        let any = !bans.is_empty();
        *self.0.standing.write() = Arc::new(bans);
        self.0.any_standing.store(any, Ordering::Release);
    }

    pub(super) fn any_standing(&self) -> bool {
        self.0.any_standing.load(Ordering::Acquire)
    }

    /// How long the client of a request is banned yet by a standing ban.
    pub(super) fn standing(
        &self,
        ban: &Ban,
        request: &RequestAttributes<'_>,
        now: Timestamp,
    ) -> Option<Nanos> {
        self.0.standing.read().left(ban, request, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ban(subject: &str, until: u64) -> BegunBan {
        BegunBan {
            ban: "abusers".into(),
            subject: subject.to_owned(),
            since: Timestamp::from_nanos(0),
            until: Timestamp::from_nanos(until),
            cause: BanCause::Operator {
                name: "ops".into(),
                comment: None,
            },
        }
    }

    fn subjects(bans: &[BegunBan]) -> Vec<&str> {
        bans.iter().map(|ban| &*ban.subject).collect()
    }

    #[test]
    fn bans_are_listed_until_they_end() {
        let known = KnownBans::default();
        for (subject, until) in [("a", 30), ("b", 10), ("c", 20)] {
            known.begun(ban(subject, until));
        }
        let at = |nanos| known.list(Timestamp::from_nanos(nanos));
        assert_eq!(subjects(&at(5)), ["b", "c", "a"]);
        assert_eq!(subjects(&at(11)), ["c", "a"]);
        assert_eq!(subjects(&at(31)), [""; 0]);
    }

    #[test]
    fn of_too_many_bans_those_that_end_last_are_kept() {
        let known = KnownBans::default();
        let most = u64::try_from(MOST).unwrap();
        for until in 1..=most + 7 {
            known.begun(ban("a", until));
        }
        let kept = known.list(Timestamp::default());
        assert_eq!((kept.len(), kept[0].until.as_nanos()), (MOST, 8));
    }

    #[test]
    fn what_could_not_be_told_is_told_again() {
        let known = KnownBans::default();
        known.share();
        known.begun(ban("a", 1));
        let taken = known.take_untold();
        known.begun(ban("b", 2));
        known.put_back(taken);
        assert_eq!(subjects(&known.take_untold()), ["a", "b"]);
        assert!(known.take_untold().is_empty());
    }

    /// With the memory store nobody took them, and each ban moved ten thousand under a lock.
    #[test]
    fn where_there_is_no_other_gateway_nothing_is_kept_to_be_told() {
        let known = KnownBans::default();
        known.begun(ban("a", 1));
        assert!(known.0.begun.lock().untold.is_none());
    }

    #[test]
    fn of_too_many_bans_that_could_not_be_told_the_latest_are_kept() {
        let known = KnownBans::default();
        known.share();
        let most = u64::try_from(MOST).unwrap();
        (1..=most).for_each(|number| known.begun(ban("a", number)));
        let taken = known.take_untold();
        (most + 1..=most + 3).for_each(|number| known.begun(ban("a", number)));
        known.put_back(taken);
        known.begun(ban("a", most + 4));
        let untold = known.take_untold();
        let ends = [&untold[0], &untold[MOST - 1]].map(|ban| ban.until.as_nanos());
        assert_eq!((untold.len(), ends), (MOST, [5, most + 4]));
    }
}
