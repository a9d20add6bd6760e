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
use tokio::time::sleep;

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

/// How many entries one command adds, or reads.
const AT_ONCE: usize = 200;

/// An end that never comes, in the list and here.
const FOR_GOOD: u64 = u64::MAX;

/// What this process shares with others of bans. Clones share it.
#[derive(Clone)]
pub(super) struct SharedBans {
    known: KnownBans,
    standing: Arc<RwLock<Vec<StandingBan>>>,
    clock: Arc<dyn Clock>,
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

    fn entry(&self) -> SharedEntry {
        SharedEntry {
            until: self.until.unwrap_or(FOR_GOOD),
            text: json(self),
        }
    }
}

impl SharedBans {
    pub(super) fn new(known: KnownBans, clock: Arc<dyn Clock>) -> Self {
        Self {
            known,
            standing: Arc::default(),
            clock,
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
    pub(super) async fn refresh(&self, lists: Option<&dyn SharedLists>) -> Result<(), StoreError> {
        match lists {
            Some(lists) => self.read_standing(lists).await,
            None => Ok(()),
        }
    }

    /// Sets a standing ban in place of those of the same clients, or lifts these. Tells whether there
    /// were any.
    pub(super) async fn change(
        &self,
        lists: Option<&dyn SharedLists>,
        ban: &str,
        banned: &Banned,
        set: Option<StandingBan>,
    ) -> Result<bool, StoreError> {
        self.refresh(lists).await?;
        let of_same = |standing: &&StandingBan| standing.is_of(ban, banned);
        let earlier: Vec<StandingBan> = {
            let standing = self.standing.read();
            standing.iter().filter(of_same).cloned().collect()
        };
        if earlier.is_empty() && set.is_none() {
            return Ok(false);
        }
        if let Some(lists) = lists {
            let remove = earlier.iter().map(json).collect();
            let add = set.iter().map(StandingBan::entry).collect();
            let now = self.clock.now();
            lists.change(STANDING, add, remove, now).await?;
        }
        let mut standing = self.standing.read().clone();
        standing.retain(|standing| !standing.is_of(ban, banned));
        standing.extend(set);
        self.put_in_force(standing);
        Ok(!earlier.is_empty())
    }

    /// The next bans that have begun: at most `count` behind the one with this end and text, and whether
    /// there are no others.
    pub(super) async fn begun(
        &self,
        lists: Option<&dyn SharedLists>,
        behind: (u64, &str),
        count: usize,
    ) -> Result<(Vec<SharedEntry>, bool), StoreError> {
        let (from, after) = behind;
        let from = from.max(millis(self.clock.now()));
        let is_behind =
            |entry: &SharedEntry| (entry.until, entry.text.as_str()) > (behind.0, after);
        let Some(lists) = lists else {
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
        self.tell(lists).await?;
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
    pub(super) async fn forget(
        &self,
        lists: Option<&dyn SharedLists>,
        stale: Vec<String>,
    ) -> Result<(), StoreError> {
        match lists {
            Some(lists) if !stale.is_empty() => {
                let now = self.clock.now();
                lists.change(BEGUN, Vec::new(), stale, now).await
            }
            _ => Ok(()),
        }
    }

    /// Tells other gateways of bans that have begun here, and learns of standing bans.
    pub(super) async fn follow(&self, lists: Arc<dyn SharedLists>) -> Infallible {
        let mut version = None;
        let mut polls = 0_u32;
        let per_repeat = REPEAT_INTERVAL.as_secs() / POLL_INTERVAL.as_secs();
        loop {
            // A store that is out of reach is reported elsewhere, and asked again.
            match lists.version(STANDING).await {
                Ok(found) if version == Some(found) => {}
                Ok(found) if self.read_standing(&*lists).await.is_ok() => version = Some(found),
                Err(error) if error.is_forbidden() => sleep(FORBIDDEN_INTERVAL).await,
                _ => {}
            }
            if u64::from(polls) % per_repeat == per_repeat - 1 {
                let own = self.known.list(self.clock.now());
                let _ = self.add_begun(&*lists, &own).await;
                self.put_in_force(self.standing());
            }
            polls = polls.wrapping_add(1);
            let told = self.tell(&*lists).await;
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

    async fn read_standing(&self, lists: &dyn SharedLists) -> Result<(), StoreError> {
        let from = millis(self.clock.now());
        let mut standing = Vec::new();
        loop {
            let skip = standing.len();
            let found = lists.entries(STANDING, from, skip, AT_ONCE).await?;
            let is_last = found.len() < AT_ONCE;
            // What another version of the gateway has written may be of another form.
            standing.extend(
                found
                    .iter()
                    .map(|entry| serde_json::from_str(&entry.text).ok()),
            );
            if is_last {
                break;
            }
        }
        self.put_in_force(standing.into_iter().flatten().collect());
        Ok(())
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

/// A moment in milliseconds since 1970, to the last one that is over.
pub(super) fn millis(moment: Timestamp) -> u64 {
    moment.as_nanos() / 1_000_000
}

/// The moment that is this many milliseconds after 1970 began.
pub(super) fn moment(millis: u64) -> Timestamp {
    Timestamp::from_nanos(millis.saturating_mul(1_000_000))
}

/// Its keys are names of fields, so it can always be written.
fn json(entry: &impl Serialize) -> String {
    serde_json::to_string(entry).unwrap_or_default()
}
