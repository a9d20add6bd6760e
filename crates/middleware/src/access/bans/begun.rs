//! The bans that this process has begun, kept for lists: the bucket of a ban has its end, but
//! neither the subject's name nor the cause.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;
use weir_limit::time::{Nanos, Timestamp};
use weir_rules::{Ban, Banned, RequestAttributes, StandingBans};

use super::refused_peers::RefusedPeers;
use super::told_waits::ToldWaits;

/// Upper bound on the bans that are kept. Beyond it, those that end first are dropped.
const MAX_BANS: usize = 10_000;

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
    /// Why it began.
    pub cause: BanCause,
}

/// Why a subject is banned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BanCause {
    /// Enough strikes.
    Strikes {
        /// The cause of the last one.
        last: StrikeCause,
        /// The number of strikes.
        count: u64,
        /// The number of the offence, from 1.
        offence: usize,
    },
    /// An operator, by the admin API.
    Operator {
        /// The operator's name.
        name: Arc<str>,
        /// The operator's comment.
        comment: Option<Arc<str>>,
    },
}

/// The cause of a strike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StrikeCause {
    /// A limit's denial.
    Limit(Arc<str>),
    /// The status of a response.
    Status(u16),
    /// The path of a request.
    Path(String),
}

/// The bans that a process knows beside the buckets. Clones share them.
#[derive(Clone, Default)]
pub struct KnownBans(Arc<BanRegistry>);

#[derive(Default)]
struct BanRegistry {
    begun: Mutex<Begun>,
    /// Wakes the task that publishes bans.
    wake: Notify,
    /// False in nearly all gateways, so that requests need not lock `standing`.
    any_standing: AtomicBool,
    standing: RwLock<Arc<StandingBans>>,
    told_waits: ToldWaits,
    refused: RefusedPeers,
}

#[derive(Default)]
struct Begun {
    /// By end and number, as several may end at once.
    bans: BTreeMap<(Timestamp, u64), BegunBan>,
    count: u64,
    /// Bans to publish; `None` without other gateways.
    unpublished: Option<VecDeque<BegunBan>>,
}

/// Bans on their way to other gateways. Dropped before they are
/// [published](Self::published), they are to be published again.
#[must_use]
pub struct UnpublishedBans {
    known: KnownBans,
    bans: Vec<BegunBan>,
}

impl UnpublishedBans {
    /// The bans, in the order in which they began.
    pub fn bans(&self) -> &[BegunBan] {
        &self.bans
    }

    /// All of them are published.
    pub fn published(mut self) {
        self.bans.clear();
    }
}

impl Drop for UnpublishedBans {
    fn drop(&mut self) {
        if !self.bans.is_empty() {
            self.known.put_back(std::mem::take(&mut self.bans));
        }
    }
}

impl KnownBans {
    /// Adds a ban that has begun.
    pub fn begun(&self, ban: BegunBan) {
        let mut begun = self.0.begun.lock();
        let begun = &mut *begun;
        begun.count += 1;
        if let Some(unpublished) = &mut begun.unpublished {
            unpublished.push_back(ban.clone());
            if unpublished.len() > MAX_BANS {
                unpublished.pop_front();
            }
        }
        begun.bans.insert((ban.until, begun.count), ban);
        if begun.bans.len() > MAX_BANS {
            begun.bans.pop_first();
        }
        self.0.wake.notify_one();
    }

    /// The bans that have not ended yet, by end.
    pub fn list(&self, now: Timestamp) -> Vec<BegunBan> {
        let mut begun = self.0.begun.lock();
        begun.bans = begun.bans.split_off(&(now, 0));
        begun.bans.values().cloned().collect()
    }

    /// Changes the ends of bans, which are given by the ban's name and the subject.
    pub fn set_ends(&self, ends: &HashMap<(&str, &str), Timestamp>) {
        let mut begun = self.0.begun.lock();
        let bans = std::mem::take(&mut begun.bans).into_iter();
        let changed = bans.map(|((until, number), ban)| {
            let end = ends.get(&(&*ban.ban, ban.subject.as_str()));
            let until = end.copied().unwrap_or(until);
            ((until, number), BegunBan { until, ..ban })
        });
        begun.bans = changed.collect();
    }

    /// Collects bans that begin from now on for [`take_unpublished`](Self::take_unpublished), as
    /// there are other gateways.
    pub fn share(&self) {
        self.0.begun.lock().unpublished.get_or_insert_default();
    }

    /// Takes the bans that were not published yet.
    pub fn take_unpublished(&self) -> UnpublishedBans {
        let mut begun = self.0.begun.lock();
        let unpublished = begun.unpublished.as_mut().map(std::mem::take);
        UnpublishedBans {
            known: self.clone(),
            bans: unpublished.unwrap_or_default().into(),
        }
    }

    /// Puts back bans that could not be published. Of too many, the latest are kept.
    fn put_back(&self, taken: Vec<BegunBan>) {
        if let Some(unpublished) = &mut self.0.begun.lock().unpublished {
            let room = MAX_BANS.saturating_sub(unpublished.len());
            for ban in taken.into_iter().rev().take(room) {
                unpublished.push_front(ban);
            }
        }
        self.0.wake.notify_one();
    }

    /// Waits until there is a ban to publish.
    pub async fn changed(&self) {
        self.0.wake.notified().await;
    }

    /// Replaces the standing bans.
    pub fn set_standing(&self, bans: StandingBans) {
        let any = !bans.is_empty();
        *self.0.standing.write() = Arc::new(bans);
        self.0.any_standing.store(any, Ordering::Release);
        self.0.refused.look_again();
    }

    /// The peers whose connections may be refused.
    pub fn refused_peers(&self) -> &RefusedPeers {
        &self.0.refused
    }

    /// The targets of the standing bans with this name, and their ends.
    pub fn standing_of(&self, ban: &str) -> Vec<(Banned, Timestamp)> {
        self.0.standing.read().of(ban)
    }

    pub(super) fn told_waits(&self) -> &ToldWaits {
        &self.0.told_waits
    }

    pub(super) fn any_standing(&self) -> bool {
        self.0.any_standing.load(Ordering::Acquire)
    }

    /// The rest of a standing ban of a request's client.
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
    fn bans_whose_ends_change_are_listed_by_the_new_ones() {
        let known = KnownBans::default();
        for (subject, until) in [("a", 30), ("b", 10), ("c", 20)] {
            known.begun(ban(subject, until));
        }
        let end = |subject, nanos| (("abusers", subject), Timestamp::from_nanos(nanos));
        let other_ban = (("traps", "c"), Timestamp::from_nanos(1));
        known.set_ends(&HashMap::from([end("a", 5), end("b", 15), other_ban]));
        let listed = known.list(Timestamp::default());
        let ends: Vec<_> = listed.iter().map(|ban| ban.until.as_nanos()).collect();
        assert_eq!(
            (subjects(&listed), ends),
            (vec!["a", "b", "c"], vec![5, 15, 20])
        );
        assert_eq!(subjects(&known.list(Timestamp::from_nanos(6))), ["b", "c"]);
    }

    #[test]
    fn of_too_many_bans_those_that_end_last_are_kept() {
        let known = KnownBans::default();
        let most = u64::try_from(MAX_BANS).unwrap();
        for until in 1..=most + 7 {
            known.begun(ban("a", until));
        }
        let kept = known.list(Timestamp::default());
        assert_eq!((kept.len(), kept[0].until.as_nanos()), (MAX_BANS, 8));
    }

    #[test]
    fn what_could_not_be_told_is_told_again() {
        let known = KnownBans::default();
        known.share();
        known.begun(ban("a", 1));
        let taken = known.take_unpublished();
        known.begun(ban("b", 2));
        drop(taken);
        let taken = known.take_unpublished();
        assert_eq!(subjects(taken.bans()), ["a", "b"]);
        taken.published();
        assert!(known.take_unpublished().bans().is_empty());
    }

    /// With the memory store nobody took them, and each ban moved ten thousand under a lock.
    #[test]
    fn where_there_is_no_other_gateway_nothing_is_kept_to_be_told() {
        let known = KnownBans::default();
        known.begun(ban("a", 1));
        assert!(known.0.begun.lock().unpublished.is_none());
    }

    #[test]
    fn of_too_many_bans_that_could_not_be_told_the_latest_are_kept() {
        let known = KnownBans::default();
        known.share();
        let most = u64::try_from(MAX_BANS).unwrap();
        (1..=most).for_each(|number| known.begun(ban("a", number)));
        let taken = known.take_unpublished();
        (most + 1..=most + 3).for_each(|number| known.begun(ban("a", number)));
        drop(taken);
        known.begun(ban("a", most + 4));
        let unpublished = known.take_unpublished();
        let unpublished = unpublished.bans();
        let ends = [&unpublished[0], &unpublished[MAX_BANS - 1]].map(|ban| ban.until.as_nanos());
        assert_eq!((unpublished.len(), ends), (MAX_BANS, [5, most + 4]));
    }
}
