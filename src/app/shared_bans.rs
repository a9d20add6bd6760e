//! What gateways tell each other of bans: which have begun, and why, and those that operators set
//! beyond the buckets. With Redis both are lists there; without, this process alone knows them.
//!
//! A list of bans that have begun says what a bucket cannot: the name of the subject, and why. Whether a
//! ban holds is said by its bucket alone, so an entry whose end is not the bucket's is not shown. So
//! entries may be late, or left behind, and the list is right all the same.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use tokio::time::sleep;

use super::shared_list::{FOR_GOOD, ListChange, SharedList, millis, moment};
use crate::middleware::{BanCause, BegunBan, KnownBans, StrikeCause};
use crate::rules::{Banned, StandingBans};
use crate::store::{SharedEntry, SharedLists, StoreError};
use crate::time::{Clock, Timestamp};

/// The list of bans that have begun.
const BEGUN: &str = "bans";

/// The list of bans that operators have set beyond the buckets.
const STANDING: &str = "standing-bans";

/// How often a gateway asks whether another has changed the standing bans.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How much longer it waits before it asks again if Redis's user has no right to.
const FORBIDDEN_INTERVAL: Duration = Duration::from_secs(60);

/// How often it adds those to the list again that it has begun itself, in case Redis has lost it.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);

/// How many entries one command adds.
const AT_ONCE: usize = 200;

/// What this process shares with others of bans. Clones share it.
#[derive(Clone)]
pub(super) struct SharedBans {
    known: KnownBans,
    standing: Arc<RwLock<Vec<StandingBan>>>,
    clock: Arc<dyn Clock>,
    /// None if this process is alone.
    lists: Option<Lists>,
}

#[derive(Clone)]
struct Lists {
    all: Arc<dyn SharedLists>,
    standing: Arc<Mutex<SharedList>>,
}

/// A ban that has begun, as the list has it.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(super) struct BegunEntry {
    pub(super) ban: String,
    /// As bucket keys have it.
    pub(super) subject: String,
    /// When it began, in milliseconds since 1970.
    pub(super) since: u64,
    pub(super) why: Why,
}

/// Why a subject is banned.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(tag = "by", rename_all = "snake_case")]
pub(super) enum Why {
    /// It was denied by a limit.
    Limit {
        limit: String,
        strikes: u64,
        offence: usize,
    },
    /// It got responses with a status.
    Status {
        status: u16,
        strikes: u64,
        offence: usize,
    },
    /// It asked for a path.
    Path {
        path: String,
        strikes: u64,
        offence: usize,
    },
    /// An operator has said so.
    Operator {
        name: String,
        comment: Option<String>,
    },
}

/// A ban that an operator has set beyond the buckets, as the list has it.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(super) struct StandingBan {
    pub(super) ban: String,
    /// The subject, as bucket keys have it, or the network.
    pub(super) of: String,
    pub(super) is_network: bool,
    /// In milliseconds since 1970.
    pub(super) since: u64,
    /// The same; none is for good.
    pub(super) until: Option<u64>,
    /// Who has set it.
    pub(super) by: String,
    pub(super) comment: Option<String>,
}

impl From<&BegunBan> for SharedEntry {
    fn from(begun: &BegunBan) -> Self {
        let entry = BegunEntry::from(begun);
        Self {
            until: millis(begun.until),
            text: json(&entry),
        }
    }
}

impl From<&BegunBan> for BegunEntry {
    fn from(begun: &BegunBan) -> Self {
        let why = match begun.cause.clone() {
            BanCause::Operator { name, comment } => Why::Operator {
                name: name.to_string(),
                comment: comment.map(|comment| comment.to_string()),
            },
            BanCause::Strikes {
                last,
                count: strikes,
                offence,
            } => match last {
                StrikeCause::Limit(limit) => Why::Limit {
                    limit: limit.to_string(),
                    strikes,
                    offence,
                },
                StrikeCause::Status(status) => Why::Status {
                    status,
                    strikes,
                    offence,
                },
                StrikeCause::Path(path) => Why::Path {
                    path,
                    strikes,
                    offence,
                },
            },
        };
        Self {
            ban: begun.ban.to_string(),
            subject: begun.subject.clone(),
            since: millis(begun.since),
            why,
        }
    }
}

impl StandingBan {
    /// Whether it is of the same ban and the same clients.
    pub(super) fn is_of(&self, ban: &str, banned: &Banned) -> bool {
        self.ban == ban && self.banned().as_ref() == Some(banned)
    }

    fn banned(&self) -> Option<Banned> {
        Some(match self.is_network {
            true => Banned::Network(self.of.parse().ok()?),
            false => Banned::Subject(self.of.clone()),
        })
    }

    fn parse(entry: &SharedEntry) -> Option<Self> {
        serde_json::from_str(&entry.text).ok()
    }

    fn entry(&self) -> SharedEntry {
        SharedEntry {
            until: self.until.unwrap_or(FOR_GOOD),
            text: json(self),
        }
    }
}

impl SharedBans {
    /// Without lists, this process is alone.
    pub(super) fn new(
        known: KnownBans,
        clock: Arc<dyn Clock>,
        lists: Option<Arc<dyn SharedLists>>,
    ) -> Self {
        let lists = lists.map(|all| Lists {
            standing: Arc::new(Mutex::new(SharedList::new(Arc::clone(&all), STANDING))),
            all,
        });
        Self {
            known,
            standing: Arc::default(),
            clock,
            lists,
        }
    }

    /// What the workers know.
    pub(super) fn known(&self) -> &KnownBans {
        &self.known
    }

    /// The standing bans that have not ended, in the order of bans and subjects.
    pub(super) fn standing(&self) -> Vec<StandingBan> {
        let now = millis(self.clock.now());
        let standing = self.standing.read();
        let standing = standing.iter();
        let holds = |ban: &&StandingBan| ban.until.is_none_or(|until| until > now);
        standing.filter(holds).cloned().collect()
    }

    /// Learns of the standing bans that other gateways have set since the last look.
    pub(super) async fn refresh(&self) -> Result<(), StoreError> {
        let Some(lists) = &self.lists else {
            return Ok(());
        };
        let mut list = lists.standing.lock().await;
        match list.look(self.clock.now()).await? {
            ListChange::Nothing => {}
            ListChange::Changed => self.put_in_force(standing_in(&list)),
            ListChange::Restored => {
                let bans = list.entries().len();
                tracing::warn!(
                    bans,
                    "the standing bans were lost in Redis, and were written again"
                );
            }
        }
        Ok(())
    }

    /// Sets a standing ban in place of those of the same clients, or lifts these.
    pub(super) async fn change(
        &self,
        ban: &str,
        banned: &Banned,
        set: Option<StandingBan>,
    ) -> Result<(), StoreError> {
        self.refresh().await?;
        let Some(lists) = &self.lists else {
            let mut standing = self.standing.read().clone();
            standing.retain(|standing| !standing.is_of(ban, banned));
            standing.extend(set);
            self.put_in_force(standing);
            return Ok(());
        };
        let mut list = lists.standing.lock().await;
        let is_same = |entry: &&SharedEntry| {
            StandingBan::parse(entry).is_some_and(|standing| standing.is_of(ban, banned))
        };
        let earlier = list.entries().iter().filter(is_same);
        let earlier: Vec<String> = earlier.map(|entry| entry.text.clone()).collect();
        if !earlier.is_empty() || set.is_some() {
            let add = set.iter().map(StandingBan::entry).collect();
            list.change(add, earlier, self.clock.now()).await?;
            self.put_in_force(standing_in(&list));
        }
        Ok(())
    }

    /// The next bans that have begun: at most `count` behind the one with this end and text, and whether
    /// there are no others.
    pub(super) async fn begun(
        &self,
        behind: (u64, &str),
        count: usize,
    ) -> Result<(Vec<SharedEntry>, bool), StoreError> {
        let (from, after) = behind;
        let from = from.max(millis(self.clock.now()));
        let is_behind =
            |entry: &SharedEntry| (entry.until, entry.text.as_str()) > (behind.0, after);
        let Some(Lists { all: lists, .. }) = &self.lists else {
            let mut all: Vec<SharedEntry> = self
                .known
                .list(self.clock.now())
                .iter()
                .map(SharedEntry::from)
                .collect();
            all.sort_unstable();
            all.retain(is_behind);
            let is_last = all.len() <= count;
            all.truncate(count);
            return Ok((all, is_last));
        };
        self.tell(&**lists).await?;
        // Of entries that end at once, the first ones are those of the page before.
        let mut skip = 0;
        loop {
            let mut found = lists.entries(BEGUN, from, skip, count).await?;
            let all = found.len();
            found.retain(is_behind);
            if !found.is_empty() || all < count {
                return Ok((found, all < count));
            }
            skip += all;
        }
    }

    /// Removes entries of bans that hold no more.
    pub(super) async fn forget(&self, stale: Vec<String>) -> Result<(), StoreError> {
        match &self.lists {
            Some(lists) if !stale.is_empty() => {
                let now = self.clock.now();
                lists.all.change(BEGUN, Vec::new(), stale, now).await?;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Tells other gateways of bans that have begun here, and learns of standing bans.
    pub(super) async fn follow(&self) -> Infallible {
        let Some(Lists { all: lists, .. }) = &self.lists else {
            return std::future::pending().await;
        };
        let mut polls = 0_u32;
        let per_repeat = REPEAT_INTERVAL.as_secs() / POLL_INTERVAL.as_secs();
        loop {
            // A store that is out of reach is reported elsewhere, and asked again.
            if let Err(error) = self.refresh().await
                && error.is_forbidden()
            {
                sleep(FORBIDDEN_INTERVAL).await;
            }
            if u64::from(polls) % per_repeat == per_repeat - 1 {
                let own = self.known.list(self.clock.now());
                let _ = self.add_begun(&**lists, &own).await;
                self.drop_ended().await;
            }
            polls = polls.wrapping_add(1);
            let told = self.tell(&**lists).await;
            tokio::select! {
                () = sleep(POLL_INTERVAL) => {}
                () = self.known.changed(), if told.is_ok() => {}
            }
        }
    }

    /// Tells other gateways of bans that have begun here.
    async fn tell(&self, lists: &dyn SharedLists) -> Result<(), StoreError> {
        let untold = self.known.take_untold();
        let told = self.add_begun(lists, &untold).await;
        if told.is_err() {
            self.known.put_back(untold);
        }
        told
    }

    async fn add_begun(
        &self,
        lists: &dyn SharedLists,
        begun: &[BegunBan],
    ) -> Result<(), StoreError> {
        for some in begun.chunks(AT_ONCE) {
            let add = some.iter().map(SharedEntry::from).collect();
            let now = self.clock.now();
            lists.change(BEGUN, add, Vec::new(), now).await?;
        }
        Ok(())
    }

    /// Keeps no standing bans that have ended. The list stands still meanwhile: a ban that another
    /// thread puts in force between the two steps would be lost.
    async fn drop_ended(&self) {
        if let Some(lists) = &self.lists {
            let _unchanged = lists.standing.lock().await;
            self.put_in_force(self.standing());
        }
    }

    fn put_in_force(&self, mut standing: Vec<StandingBan>) {
        standing.sort_by(|one, other| (&one.ban, &one.of).cmp(&(&other.ban, &other.of)));
        let mut bans = StandingBans::default();
        for ban in &standing {
            if let Some(banned) = ban.banned() {
                bans.add(&ban.ban, banned, ban.until.map_or(Timestamp::MAX, moment));
            }
        }
        *self.standing.write() = standing;
        self.known.set_standing(bans);
    }
}

/// What another version of the gateway has written may be of another form.
fn standing_in(list: &SharedList) -> Vec<StandingBan> {
    list.entries()
        .iter()
        .filter_map(StandingBan::parse)
        .collect()
}

/// Its keys are names of fields, so it can always be written.
fn json(entry: &impl Serialize) -> String {
    serde_json::to_string(entry).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;

    use super::super::shared_list::tests::Lists;
    use super::*;
    use crate::time::ManualClock;

    #[tokio::test]
    async fn a_ban_that_is_set_while_ended_ones_are_dropped_is_not_lost() {
        let store = Arc::new(Lists::default());
        let clock = Arc::new(ManualClock::at(moment(1000)));
        let bans = SharedBans::new(KnownBans::default(), clock, Some(store.clone()));
        let banned = Banned::Subject("203.0.113.9".to_owned());
        let standing = StandingBan {
            ban: "Abuse".to_owned(),
            of: "203.0.113.9".to_owned(),
            is_network: false,
            since: 1000,
            until: None,
            by: "alice".to_owned(),
            comment: None,
        };
        *store.change_waits.lock() = true;
        let mut change = pin!(bans.change("Abuse", &banned, Some(standing.clone())));
        assert!(change.as_mut().now_or_never().is_none());
        let mut drop_ended = pin!(bans.drop_ended());
        assert!(
            drop_ended.as_mut().now_or_never().is_none(),
            "the bans before the change were put in force"
        );
        store.go_on.notify_one();
        change.await.unwrap();
        drop_ended.await;
        assert_eq!(bans.standing(), [standing]);
    }
}
