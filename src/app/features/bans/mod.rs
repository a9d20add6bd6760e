//! Lists about bans: those that have begun and why, and the standing bans of operators. With Redis
//! gateways share both; without, this process alone has them.
//!
//! The list of bans that have begun has what a bucket lacks: the name of the subject, and why.
//! Whether a ban holds is in its bucket alone, so an entry whose end is not the bucket's is not
//! shown. So entries may be late, or left behind, and the list is right all the same. Under attack
//! it is long, so gateways add to it, and do not copy it.

mod admin;
mod explain;
mod findings;
mod refused_peers;
mod responses;
mod room;
mod shortened;
mod standing;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::{Instant, interval_at, sleep};
use weir_config::Settings;
use weir_limit::time::Clock;
use weir_middleware::{BanCause, BegunBan, KnownBans, StrikeCause};
use weir_store::{SharedEntry, SharedLists, Store, StoreError};

use self::refused_peers::RefusalRules;
pub(super) use self::room::BansRoom;
use self::standing::MAX_SHORT_BANS;
pub(super) use self::standing::StandingBan;
use self::standing::StandingTarget;
#[cfg(test)]
pub(in crate::app) use self::{
    admin::Setting,
    responses::{Ban, BanPage},
};
use crate::app::shared_list::{ListChanges, ListError, ListKeeper, millis};
use crate::app::sockets::Sockets;

/// The list of bans that have begun.
const BEGUN: &str = "bans";

/// How long to wait before bans are added again that could not be.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// How often a gateway adds the bans that it has begun again, in case Redis has lost them.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);

/// Entries that one command adds.
const BATCH_SIZE: usize = 200;

/// The lists about bans. Clones share them.
#[derive(Clone)]
pub(super) struct SharedBans {
    known: KnownBans,
    /// Puts standing bans in force.
    pub(super) standing: StandingTarget,
    standing_changes: ListChanges<StandingBan>,
    clock: Arc<dyn Clock>,
    /// None if this process is alone.
    lists: Option<Arc<dyn SharedLists>>,
}

/// A ban that has begun, as the list has it.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
struct BegunEntry {
    ban: String,
    /// As bucket keys have it.
    subject: String,
    /// When it began, in milliseconds since 1970.
    since: u64,
    why: ListedCause,
}

/// Why a subject is banned.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "Cause"))]
#[serde(tag = "by", rename_all = "snake_case")]
enum ListedCause {
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

fn shared_entry(begun: &BegunBan) -> SharedEntry {
    SharedEntry {
        until: millis(begun.until),
        text: json(&BegunEntry::from(begun)),
    }
}

impl From<&BegunBan> for BegunEntry {
    fn from(begun: &BegunBan) -> Self {
        let why = match begun.cause.clone() {
            BanCause::Operator { name, comment } => ListedCause::Operator {
                name: name.to_string(),
                comment: comment.map(|comment| comment.to_string()),
            },
            BanCause::Strikes {
                last,
                count: strikes,
                offence,
            } => match last {
                StrikeCause::Limit(limit) => ListedCause::Limit {
                    limit: limit.to_string(),
                    strikes,
                    offence,
                },
                StrikeCause::Status(status) => ListedCause::Status {
                    status,
                    strikes,
                    offence,
                },
                StrikeCause::Path(path) => ListedCause::Path {
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

/// The keys of an entry are names of fields, so it can always be written.
fn json(entry: &impl Serialize) -> String {
    serde_json::to_string(entry).unwrap_or_default()
}

impl SharedBans {
    /// The lists, and the keeper of the standing bans. Without `lists`, this process is alone.
    pub(super) fn new(
        known: KnownBans,
        clock: Arc<dyn Clock>,
        lists: Option<Arc<dyn SharedLists>>,
    ) -> (Self, ListKeeper<StandingBan>) {
        if lists.is_some() {
            known.share();
        }
        let (keeper, standing_changes) = ListKeeper::new(lists.clone(), Arc::clone(&clock));
        let bans = Self {
            standing: StandingTarget::new(known.clone()),
            known,
            standing_changes,
            clock,
            lists,
        };
        (bans, keeper)
    }

    /// What the workers know.
    const fn known(&self) -> &KnownBans {
        &self.known
    }

    /// The standing bans that have not ended, in the order of bans and subjects.
    async fn standing(&self) -> Result<Vec<Arc<StandingBan>>, ListError> {
        self.standing_changes.look().await?;
        Ok(self.standing.holding(self.clock.now()))
    }

    /// The next bans that have begun: at most `count` behind the one with this end and text, and
    /// whether there are no others.
    async fn begun(
        &self,
        behind: (u64, &str),
        count: usize,
    ) -> Result<(Vec<SharedEntry>, bool), StoreError> {
        let (end, text) = behind;
        let now = self.clock.now();
        let is_behind = |entry: &SharedEntry| (entry.until, entry.text.as_str()) > (end, text);
        let Some(lists) = &self.lists else {
            let begun = self.known.list(now);
            let mut all: Vec<SharedEntry> = begun.iter().map(shared_entry).collect();
            all.sort_unstable();
            all.retain(is_behind);
            let is_last = all.len() <= count;
            all.truncate(count);
            return Ok((all, is_last));
        };
        self.add_begun().await?;
        // Of entries that end at once, the first ones are those of the page before.
        let (from, mut skip) = (end.max(millis(now)), 0);
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
    async fn forget(&self, stale: Vec<String>) -> Result<(), StoreError> {
        match &self.lists {
            Some(lists) if !stale.is_empty() => {
                let change = lists.change(BEGUN, Vec::new(), stale, self.clock.now());
                change.await.map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Keeps up with the bans that begin here, and with the configurations that are published, whose
    /// settings `settings_of` gets: cuts bans in this store that a reload shortens, and has
    /// connections of those dropped who are kept out.
    pub(super) async fn follow_all<C>(
        &self,
        configurations: watch::Receiver<Arc<C>>,
        settings_of: impl Fn(&C) -> &Settings,
        store: Arc<dyn Store>,
        sockets: &Sockets,
    ) -> Infallible {
        let bans_of = |configuration: &C| {
            let bans = settings_of(configuration).access.bans.iter();
            bans.map(|policy| Arc::clone(&policy.ban)).collect()
        };
        let rules_of = |configuration: &C| RefusalRules::new(settings_of(configuration));
        let (filter, published) = (&sockets.peer_filter, configurations.clone());
        let (never, ..) = tokio::join!(
            self.follow(),
            self.follow_lengths(published, bans_of, Arc::clone(&store)),
            self.follow_refused_peers(configurations, rules_of, store, filter),
        );
        never
    }

    /// Adds bans that begin here to the list.
    async fn follow(&self) -> Infallible {
        if self.lists.is_none() {
            return std::future::pending().await;
        }
        let mut repeat = interval_at(Instant::now() + REPEAT_INTERVAL, REPEAT_INTERVAL);
        loop {
            // Bans that begin meanwhile are added together. An unreachable store is logged
            // elsewhere.
            let added = self.add_begun().await;
            tokio::select! {
                _ = repeat.tick() => {
                    let _ = self.add(&self.known.list(self.clock.now())).await;
                }
                () = sleep(RETRY_INTERVAL), if added.is_err() => {}
                () = self.known.changed(), if added.is_ok() => {}
            }
        }
    }

    /// Adds the bans that have begun here since the last time.
    async fn add_begun(&self) -> Result<(), StoreError> {
        let begun = self.known.take_unpublished();
        self.add(begun.bans()).await?;
        begun.published();
        Ok(())
    }

    async fn add(&self, begun: &[BegunBan]) -> Result<(), StoreError> {
        let Some(lists) = &self.lists else {
            return Ok(());
        };
        for some in begun.chunks(BATCH_SIZE) {
            let add = some.iter().map(shared_entry).collect();
            let change = lists.change(BEGUN, add, Vec::new(), self.clock.now());
            change.await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::shared_list::tests::Lists;
    use crate::app::shared_list::{ListEntry, MAX_ENTRIES, moment};
    use futures_util::FutureExt;
    use weir_limit::time::ManualClock;

    fn bans_on(store: &Arc<Lists>) -> SharedBans {
        let clock = Arc::new(ManualClock::new(moment(1000)));
        SharedBans::new(
            KnownBans::default(),
            clock,
            Some(Arc::<Lists>::clone(store)),
        )
        .0
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

    fn begun_ban(subject: &str) -> BegunBan {
        BegunBan {
            ban: "Abuse".into(),
            subject: subject.to_owned(),
            since: moment(1000),
            until: moment(4_000_000),
            cause: BanCause::Operator {
                name: "alice".into(),
                comment: None,
            },
        }
    }

    /// It was in the list of other gateways a minute later.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_leaves_while_it_lists_bans_takes_none_from_other_gateways() {
        let store = Arc::new(Lists::default());
        let bans = bans_on(&store);
        let told = async || store.entries(BEGUN, 0, 0, usize::MAX).await.unwrap().len();
        let leaving = async {
            *store.change_waits.lock() = true;
            bans.known().begun(begun_ban("a"));
            let mut listing = Box::pin(bans.begun((0, ""), 10));
            assert!((&mut listing).now_or_never().is_none());
            // The task that publishes bans finds none.
            sleep(Duration::from_millis(1)).await;
            *store.change_waits.lock() = false;
            drop(listing);
            sleep(2 * RETRY_INTERVAL).await;
            // The first time nobody waited for the reply.
            assert_eq!(told().await, 2);
        };
        tokio::select! {
            never = bans.follow() => match never {},
            () = leaving => {}
        }
    }

    /// Each ban counted as one of the sixty polls after which all were written again.
    #[tokio::test(start_paused = true)]
    async fn a_ban_that_begins_does_not_have_those_before_it_told_again() {
        let store = Arc::new(Lists::default());
        let bans = bans_on(&store);
        let told = async || store.entries(BEGUN, 0, 0, usize::MAX).await.unwrap().len();
        let beginning = async {
            for number in 0..300 {
                bans.known().begun(begun_ban(&number.to_string()));
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
        for lists in [Some(Arc::clone(&store) as Arc<dyn SharedLists>), None] {
            let clock = Arc::new(ManualClock::new(moment(1000)));
            let (bans, mut keeper) = SharedBans::new(KnownBans::default(), clock, lists);
            let set = async |of: &str| bans.standing_changes.set(standing(of)).await;
            let lift = async |of: &str| bans.standing_changes.delete(standing(of).key()).await;
            let changes = async {
                for number in 0..MAX_ENTRIES {
                    set(&number.to_string()).await.unwrap();
                }
                let refused = set("one more").await;
                assert!(matches!(refused, Err(ListError::Full(_))), "{refused:?}");
                set("7").await.expect("it is replaced");
                assert!(lift("7").await.unwrap().is_some());
                assert!(lift("7").await.unwrap().is_none());
                set("one more").await.unwrap();
                assert_eq!(bans.standing().await.unwrap().len(), MAX_ENTRIES);
            };
            tokio::select! {
                never = keeper.follow(&bans.standing) => match never {},
                () = changes => {}
            }
        }
    }
}
