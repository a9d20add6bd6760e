//! Bans that a reload shortens. A bucket is cut to the longest ban of today when it is checked, so
//! each listed ban that is too long now is checked at once, in place of the subject's next request.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use smallvec::smallvec;
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::timeout;
use weir_limit::time::Nanos;
use weir_rules::Ban;
use weir_store::{SharedEntry, Store, StoreError};

use super::{BATCH_SIZE, BEGUN, BegunEntry, SharedBans};
use crate::app::shared_list::{millis, moment};

/// Upper bound on the batches of entries that a reload has checked. Further bans are cut with their
/// subjects' next requests.
const MAX_BATCHES: usize = 500;

/// When bans are checked once more: the Redis store writes no cut within five seconds after its
/// clock was set, as it is at the start of a gateway.
const AGAIN_AFTER: Duration = Duration::from_secs(6);

type Entries = Vec<SharedEntry>;

/// A configuration's bans.
pub(super) type Bans = Vec<Arc<Ban>>;

impl SharedBans {
    /// Cuts bans in this store whenever a configuration is published whose bans, got by `bans_of`,
    /// are shorter than those before.
    pub(super) async fn follow_lengths<C>(
        &self,
        mut configurations: watch::Receiver<Arc<C>>,
        bans_of: impl Fn(&C) -> Bans,
        store: Arc<dyn Store>,
    ) -> Infallible {
        let mut before = bans_of(&configurations.borrow_and_update());
        while configurations.changed().await.is_ok() {
            let now = bans_of(&configurations.borrow_and_update());
            let shortened = shortened(&before, &now);
            before = now;
            // Without an answer they are cut with the next requests. An unreachable store is logged
            // elsewhere.
            let Ok(cut) = self.cut(&shortened, &*store).await else {
                continue;
            };
            if self.lists.is_some() && !cut.is_empty() {
                // The next configuration does not wait for this one.
                let _ = timeout(AGAIN_AFTER, configurations.clone().changed()).await;
                let _ = self.cut_again(&shortened, cut, &*store).await;
            }
        }
        std::future::pending().await
    }

    /// Checks the listed bans that last longer than their longest. Returns their entries.
    async fn cut(&self, bans: &[Arc<Ban>], store: &dyn Store) -> Result<Entries, StoreError> {
        let mut cut = Vec::new();
        let lengths = bans.iter().map(|ban| ban.schedule().longest());
        let Some(shortest) = lengths.min() else {
            return Ok(cut);
        };
        let mut end = millis(self.clock.now() + Nanos::from(shortest));
        let mut text = String::new();
        for _ in 0..MAX_BATCHES {
            let (found, is_last) = self.begun((end, &text), BATCH_SIZE).await?;
            let Some(last) = found.last().cloned() else {
                break;
            };
            (end, text) = (last.until, last.text);
            cut.extend(self.cut_batch(bans, found, store).await?);
            if is_last {
                break;
            }
            yield_now().await;
        }
        Ok(cut)
    }

    /// Checks bans whose cut may not have been written.
    async fn cut_again(
        &self,
        bans: &[Arc<Ban>],
        mut entries: Entries,
        store: &dyn Store,
    ) -> Result<(), StoreError> {
        while !entries.is_empty() {
            let batch = entries.split_off(entries.len().saturating_sub(BATCH_SIZE));
            self.cut_batch(bans, batch, store).await?;
        }
        Ok(())
    }

    /// Checks the bans of these entries, and returns the entries whose ends have changed.
    async fn cut_batch(
        &self,
        bans: &[Arc<Ban>],
        entries: Entries,
        store: &dyn Store,
    ) -> Result<Entries, StoreError> {
        let checks = entries
            .into_iter()
            .map(|entry| self.cut_entry(bans, entry, store));
        let cut: Result<Vec<_>, _> = join_all(checks).await.into_iter().collect();
        let (begun, entries): (Vec<BegunEntry>, Entries) = cut?.into_iter().flatten().unzip();
        self.list_again(&begun, &entries).await?;
        Ok(entries)
    }

    /// Checks the ban of an entry, if it is one of these, and returns the entry with its new end.
    async fn cut_entry(
        &self,
        bans: &[Arc<Ban>],
        entry: SharedEntry,
        store: &dyn Store,
    ) -> Result<Option<(BegunEntry, SharedEntry)>, StoreError> {
        let Ok(begun) = serde_json::from_str::<BegunEntry>(&entry.text) else {
            return Ok(None);
        };
        let Some(ban) = bans.iter().find(|ban| **ban.name() == *begun.ban) else {
            return Ok(None);
        };
        let now = self.clock.now();
        let check = ban.check(&begun.subject.as_str().into());
        let outcome = store.decide(&smallvec![check], now).await?;
        let left = outcome.decisions.into_iter().flatten().next();
        let left = left.filter(|left| !left.reset_in.is_zero());
        let until = left.map_or(entry.until, |left| millis(now + left.reset_in));
        let is_other = until != entry.until;
        Ok(is_other.then_some((begun, SharedEntry { until, ..entry })))
    }

    /// Lists bans by their new ends.
    async fn list_again(
        &self,
        begun: &[BegunEntry],
        entries: &[SharedEntry],
    ) -> Result<(), StoreError> {
        if entries.is_empty() {
            return Ok(());
        }
        let ends = begun.iter().zip(entries).map(|(begun, entry)| {
            let of = (begun.ban.as_str(), begun.subject.as_str());
            (of, moment(entry.until))
        });
        self.known.set_ends(&ends.collect());
        let Some(lists) = &self.lists else {
            return Ok(());
        };
        let change = lists.change(BEGUN, entries.to_vec(), Vec::new(), self.clock.now());
        change.await.map(drop)
    }
}

/// The bans of `now` whose longest is shorter than `before`.
fn shortened(before: &[Arc<Ban>], now: &[Arc<Ban>]) -> Bans {
    let longest = |ban: &Arc<Ban>| -> Duration { ban.schedule().longest() };
    let is_shorter = |ban: &&Arc<Ban>| {
        let mut others = before.iter();
        let earlier = others.find(|earlier| earlier.name() == ban.name());
        earlier.is_some_and(|earlier| longest(ban) < longest(earlier))
    };
    now.iter().filter(is_shorter).cloned().collect()
}
