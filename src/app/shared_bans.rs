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
use thiserror::Error;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, sleep_until};
use weir_limit::time::{Clock, Timestamp};
use weir_middleware::{BanCause, BegunBan, KnownBans, StrikeCause};
use weir_rules::{Banned, StandingBans};
use weir_store::{SharedEntry, SharedLists, StoreError};

use super::shared_list::{FOR_GOOD, ListChange, SharedList, millis, moment};

/// The list of bans that have begun.
const BEGUN: &str = "bans";

/// The list of bans that operators have set beyond the buckets.
const STANDING: &str = "standing-bans";

/// How many standing bans there may be: each gateway knows all of them, and reads all of them again
/// when one has changed.
const MAX_STANDING: usize = 1_000;

/// How often a gateway asks whether another has changed the standing bans.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How much longer it waits before it asks again if Redis's user has no right to.
const FORBIDDEN_INTERVAL: Duration = Duration::from_secs(60);

/// How often it adds those to the list again that it has begun itself, in case Redis has lost it.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);

/// How many entries one command adds.
const AT_ONCE: usize = 200;

/// Why a standing ban is not changed.
#[derive(Debug, Error)]
pub(super) enum StandingBanError {
    /// There are too many.
    #[error(
        "there are {MAX_STANDING} bans already that are of networks, for good, or longer than the \
         longest of their kind; lift some, or write such clients into a list under `block`"
    )]
    Full,
    /// The store gave no answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

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
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "Cause"))]
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
        /// Of the token that was shown, or a loopback address.
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

fn shared_entry(begun: &BegunBan) -> SharedEntry {
    SharedEntry {
        until: millis(begun.until),
        text: json(&BegunEntry::from(begun)),
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
        let lists = lists.map(|all| {
            known.share();
            Lists {
                standing: Arc::new(Mutex::new(SharedList::new(Arc::clone(&all), STANDING))),
                all,
            }
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

    /// Sets a standing ban in place of those of the same clients, or lifts these. Whether there
    /// were any is returned.
    pub(super) async fn change(
        &self,
        ban: &str,
        banned: &Banned,
        set: Option<StandingBan>,
    ) -> Result<bool, StandingBanError> {
        self.refresh().await?;
        let standing = self.standing();
        let is_known = standing.iter().any(|standing| standing.is_of(ban, banned));
        if set.is_some() && !is_known && standing.len() >= MAX_STANDING {
            return Err(StandingBanError::Full);
        }
        let Some(lists) = &self.lists else {
            let mut standing = standing;
            standing.retain(|standing| !standing.is_of(ban, banned));
            standing.extend(set);
            self.put_in_force(standing);
            return Ok(is_known);
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
        Ok(is_known)
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
                .map(shared_entry)
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
        let mut poll_at = Instant::now();
        let mut repeat_at = poll_at + REPEAT_INTERVAL;
        loop {
            if poll_at <= Instant::now() {
                // A store that is out of reach is reported elsewhere, and asked again.
                if let Err(error) = self.refresh().await
                    && error.is_forbidden()
                {
                    sleep(FORBIDDEN_INTERVAL).await;
                }
                poll_at = Instant::now() + POLL_INTERVAL;
            }
            if repeat_at <= Instant::now() {
                let own = self.known.list(self.clock.now());
                let _ = self.add_begun(&**lists, &own).await;
                self.drop_ended().await;
                repeat_at = Instant::now() + REPEAT_INTERVAL;
            }
            // Bans that begin meanwhile are told together.
            let told = self.tell(&**lists).await;
            tokio::select! {
                () = sleep_until(poll_at) => {}
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
            let add = some.iter().map(shared_entry).collect();
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
    use weir_limit::time::ManualClock;

    fn bans_on(store: &Arc<Lists>) -> SharedBans {
        let clock = Arc::new(ManualClock::new(moment(1000)));
        SharedBans::new(
            KnownBans::default(),
            clock,
            Some(Arc::<Lists>::clone(store)),
        )
    }

    fn standing(of: &str) -> StandingBan {
        StandingBan {
            ban: "Abuse".to_owned(),
            of: of.to_owned(),
            is_network: false,
            since: 1000,
            until: None,
            by: "alice".to_owned(),
            comment: None,
        }
    }

    async fn set(bans: &SharedBans, of: &str) -> Result<bool, StandingBanError> {
        let banned = Banned::Subject(of.to_owned());
        bans.change("Abuse", &banned, Some(standing(of))).await
    }

    /// Each ban counted as one of the sixty polls after which all were written again.
    #[tokio::test(start_paused = true)]
    async fn a_ban_that_begins_does_not_have_those_before_it_told_again() {
        let store = Arc::new(Lists::default());
        let bans = bans_on(&store);
        let told = async || store.entries(BEGUN, 0, 0, usize::MAX).await.unwrap().len();
        let begin = |number: usize| {
            bans.known().begun(BegunBan {
                ban: "Abuse".into(),
                subject: number.to_string(),
                since: moment(1000),
                until: moment(4_000_000),
                cause: BanCause::Operator {
                    name: "alice".into(),
                    comment: None,
                },
            });
        };
        let beginning = async {
            for number in 0..300 {
                begin(number);
                sleep(Duration::from_millis(10)).await;
            }
            assert_eq!(told().await, 300);
            sleep(REPEAT_INTERVAL).await;
            // Once, in case the store has lost them.
            assert_eq!(told().await, 600);
        };
        tokio::select! {
            never = bans.follow() => match never {},
            () = beginning => {}
        }
    }

    #[tokio::test]
    async fn there_are_no_more_standing_bans_than_each_gateway_can_know() {
        let store = Arc::new(Lists::default());
        for bans in [
            bans_on(&store),
            SharedBans::new(
                KnownBans::default(),
                Arc::new(ManualClock::new(moment(1000))),
                None,
            ),
        ] {
            for number in 0..MAX_STANDING {
                set(&bans, &number.to_string()).await.unwrap();
            }
            let refused = set(&bans, "one more").await;
            assert!(
                matches!(refused, Err(StandingBanError::Full)),
                "{refused:?}"
            );
            assert!(set(&bans, "7").await.unwrap(), "replaced");
            let seven = Banned::Subject("7".to_owned());
            assert!(bans.change("Abuse", &seven, None).await.unwrap());
            assert!(!set(&bans, "one more").await.unwrap());
        }
    }

    #[tokio::test]
    async fn a_ban_that_is_set_while_ended_ones_are_dropped_is_not_lost() {
        let store = Arc::new(Lists::default());
        let bans = bans_on(&store);
        *store.change_waits.lock() = true;
        let mut change = pin!(set(&bans, "203.0.113.9"));
        assert!(change.as_mut().now_or_never().is_none());
        let mut drop_ended = pin!(bans.drop_ended());
        assert!(
            drop_ended.as_mut().now_or_never().is_none(),
            "the bans before the change were put in force"
        );
        store.go_on.notify_one();
        change.await.unwrap();
        drop_ended.await;
        assert_eq!(bans.standing(), [standing("203.0.113.9")]);
    }
}
