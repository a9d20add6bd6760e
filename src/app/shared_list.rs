//! A list that gateways share, as this process knows it. Each looks once a second whether another has
//! changed it, and gives back to a store what that has lost.

use std::sync::Arc;

use weir_limit::time::Timestamp;
use weir_store::{SharedEntry, SharedLists, StoreError};

/// An end that never comes.
pub(super) const FOR_GOOD: u64 = u64::MAX;

/// How many entries one command reads.
const AT_ONCE: usize = 500;

/// The last copy of a list.
pub(super) struct SharedList {
    lists: Arc<dyn SharedLists>,
    name: &'static str,
    /// That of the entries; none if another gateway may have changed them at the same time.
    version: Option<u64>,
    entries: Vec<SharedEntry>,
}

/// What has become of a list since the last look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListChange {
    Nothing,
    /// Another gateway has changed it.
    Changed,
    /// The store had lost it, and has got back what is known.
    Restored,
}

impl SharedList {
    /// Knows nothing yet.
    pub(super) const fn new(lists: Arc<dyn SharedLists>, name: &'static str) -> Self {
        Self {
            lists,
            name,
            version: None,
            entries: Vec::new(),
        }
    }

    /// What is known, in the order of ends and texts. Some may have ended.
    pub(super) fn entries(&self) -> &[SharedEntry] {
        &self.entries
    }

    /// Learns what other gateways have changed.
    pub(super) async fn look(&mut self, now: Timestamp) -> Result<ListChange, StoreError> {
        let version = self.lists.version(self.name).await?;
        if self.version == Some(version) {
            return Ok(ListChange::Nothing);
        }
        let lasting = self.entries.iter().filter(|entry| lasts(entry, now));
        let lasting: Vec<SharedEntry> = lasting.cloned().collect();
        // No gateway deletes a list, be it empty.
        if version == 0 && !lasting.is_empty() {
            self.change(lasting, Vec::new(), now).await?;
            return Ok(ListChange::Restored);
        }
        let (version, entries) = self.read(version, now).await?;
        self.version = Some(version);
        let is_same = entries == self.entries;
        self.entries = entries;
        Ok(match is_same {
            true => ListChange::Nothing,
            false => ListChange::Changed,
        })
    }

    /// Adds entries, and removes texts and what has ended, there and here; how many were removed.
    pub(super) async fn change(
        &mut self,
        add: Vec<SharedEntry>,
        remove: Vec<String>,
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        // Without an answer it may have been made or not.
        let known = self.version.take();
        let (added, removed) = (add.clone(), remove.clone());
        let changed = self.lists.change(self.name, add, remove, now).await?;
        // Unless another gateway has changed the list as well, all of it is known.
        self.version = known.map(|known| match known == changed.before {
            true => changed.after,
            false => known,
        });
        self.entries.retain(|entry| {
            let is_replaced = added.iter().any(|added| added.text == entry.text);
            lasts(entry, now) && !is_replaced && !removed.contains(&entry.text)
        });
        self.entries.extend(added);
        self.entries.sort_unstable();
        Ok(changed.removed)
    }

    /// All entries, and a version of which they are. Between two commands another gateway may change
    /// what stands where.
    async fn read(
        &self,
        mut version: u64,
        now: Timestamp,
    ) -> Result<(u64, Vec<SharedEntry>), StoreError> {
        loop {
            let mut entries = Vec::new();
            loop {
                let (from, skip) = (millis(now), entries.len());
                let found = self.lists.entries(self.name, from, skip, AT_ONCE).await?;
                let is_last = found.len() < AT_ONCE;
                entries.extend(found);
                if is_last {
                    break;
                }
            }
            if entries.len() < AT_ONCE {
                return Ok((version, entries));
            }
            let after = self.lists.version(self.name).await?;
            if after == version {
                return Ok((version, entries));
            }
            version = after;
        }
    }
}

/// As the store sees it when it removes what has ended.
fn lasts(entry: &SharedEntry, now: Timestamp) -> bool {
    entry.until >= millis(now)
}

/// A moment in milliseconds since 1970, to the last one that is over.
pub(super) fn millis(moment: Timestamp) -> u64 {
    moment.as_nanos() / 1_000_000
}

/// The moment that is this many milliseconds after 1970 began.
pub(super) fn moment(millis: u64) -> Timestamp {
    Timestamp::from_nanos(millis.saturating_mul(1_000_000))
}

#[cfg(test)]
pub(super) mod tests {
    use parking_lot::Mutex;
    use tokio::sync::Notify;

    use super::*;
    use weir_store::{ChangedList, StoreFuture};

    const NOW: Timestamp = Timestamp::from_nanos(5_000_000);

    fn entry(number: usize) -> SharedEntry {
        SharedEntry {
            until: 1000 + number as u64,
            text: number.to_string(),
        }
    }

    /// A store of one list, of which another gateway removes the first entry while it is read.
    #[derive(Default)]
    pub(in crate::app) struct Lists {
        version: Mutex<u64>,
        entries: Mutex<Vec<SharedEntry>>,
        is_disturbed: Mutex<bool>,
        /// How often entries were read.
        reads: Mutex<usize>,
        /// Why it refuses changes, if it does.
        pub(in crate::app) change_fails: Mutex<Option<fn() -> StoreError>>,
        /// Whether the answer to a change comes only when it is told to go on.
        pub(in crate::app) change_waits: Mutex<bool>,
        pub(in crate::app) go_on: Arc<Notify>,
    }

    /// As Redis says that its user has no right to a command.
    pub(in crate::app) fn is_forbidden() -> StoreError {
        StoreError::Forbidden("NOPERM".into())
    }

    impl SharedLists for Lists {
        fn change(
            &self,
            _: &str,
            add: Vec<SharedEntry>,
            remove: Vec<String>,
            now: Timestamp,
        ) -> StoreFuture<ChangedList> {
            if let Some(why) = *self.change_fails.lock() {
                return StoreFuture::failed(why());
            }
            let mut version = self.version.lock();
            let before = *version;
            *version += 1;
            let mut entries = self.entries.lock();
            let count = entries.len();
            entries.retain(|entry| lasts(entry, now) && !remove.contains(&entry.text));
            let changed = ChangedList {
                removed: (count - entries.len()) as u64,
                before,
                after: *version,
            };
            entries.extend(add);
            entries.sort_unstable();
            if *self.change_waits.lock() {
                let go_on = Arc::clone(&self.go_on);
                return StoreFuture::waiting(async move {
                    go_on.notified().await;
                    Ok(changed)
                });
            }
            StoreFuture::ready(changed)
        }

        fn version(&self, _: &str) -> StoreFuture<u64> {
            StoreFuture::ready(*self.version.lock())
        }

        fn entries(
            &self,
            list: &str,
            from: u64,
            skip: usize,
            count: usize,
        ) -> StoreFuture<Vec<SharedEntry>> {
            *self.reads.lock() += 1;
            let found = {
                let entries = self.entries.lock();
                let lasting = entries.iter().filter(|entry| entry.until >= from);
                lasting.skip(skip).take(count).cloned().collect()
            };
            if std::mem::take(&mut *self.is_disturbed.lock()) {
                let first = self.entries.lock()[0].text.clone();
                drop(self.change(list, Vec::new(), vec![first], NOW));
            }
            StoreFuture::ready(found)
        }
    }

    #[tokio::test]
    async fn no_entry_is_missed_when_another_gateway_changes_a_long_list_while_it_is_read() {
        let lists = Arc::new(Lists::default());
        let all = (0..AT_ONCE + 2).map(entry).collect();
        lists.change("", all, Vec::new(), NOW).await.unwrap();
        let mut list = SharedList::new(Arc::<Lists>::clone(&lists), "");
        *lists.is_disturbed.lock() = true;
        assert_eq!(list.look(NOW).await.unwrap(), ListChange::Changed);
        let expected: Vec<SharedEntry> = (1..AT_ONCE + 2).map(entry).collect();
        assert_eq!(list.entries(), expected);
        assert_eq!(list.look(NOW).await.unwrap(), ListChange::Nothing);
    }

    #[tokio::test]
    async fn a_store_that_has_lost_a_list_gets_back_what_has_not_ended() {
        let lists = Arc::new(Lists::default());
        let mut list = SharedList::new(Arc::<Lists>::clone(&lists), "");
        assert_eq!(list.look(NOW).await.unwrap(), ListChange::Nothing);
        let both = vec![entry(0), entry(7)];
        assert_eq!(list.change(both, Vec::new(), NOW).await.unwrap(), 0);
        lists.entries.lock().clear();
        *lists.version.lock() = 0;
        let later = moment(1005);
        assert_eq!(list.look(later).await.unwrap(), ListChange::Restored);
        assert_eq!(*lists.entries.lock(), [entry(7)]);
        assert_eq!(list.entries(), [entry(7)]);
        assert_eq!(list.look(later).await.unwrap(), ListChange::Nothing);
        // What others remove is not given back, as the list is still there.
        let removed = lists.change("", Vec::new(), vec!["7".to_owned()], later);
        assert_eq!(removed.await.unwrap().removed, 1);
        assert_eq!(list.look(later).await.unwrap(), ListChange::Changed);
        assert!(list.entries().is_empty() && lists.entries.lock().is_empty());
    }

    /// Each override that was set cost what all of them cost.
    #[tokio::test]
    async fn what_this_process_has_changed_is_not_read_again_unless_another_changed_it_too() {
        let lists = Arc::new(Lists::default());
        let mut list = SharedList::new(Arc::<Lists>::clone(&lists), "");
        list.look(NOW).await.unwrap();
        let reads = *lists.reads.lock();
        for number in 0..3 {
            let add = vec![entry(number)];
            list.change(add, Vec::new(), NOW).await.unwrap();
            assert_eq!(list.look(NOW).await.unwrap(), ListChange::Nothing);
        }
        assert_eq!(*lists.reads.lock(), reads);
        let other = lists.change("", vec![entry(3)], Vec::new(), NOW);
        other.await.unwrap();
        list.change(vec![entry(4)], Vec::new(), NOW).await.unwrap();
        assert_eq!(list.look(NOW).await.unwrap(), ListChange::Changed);
        let expected: Vec<SharedEntry> = (0..5).map(entry).collect();
        assert_eq!(list.entries(), expected);
    }
}
