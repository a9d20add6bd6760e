//! Lists that gateways share, in Redis or in a file, as this process knows them. Each gateway looks
//! once a second whether another has changed a list, and writes again what the store has lost.
//!
//! What differs between lists is the entry ([`ListEntry`]) and what a change causes
//! ([`ListTarget`]).

mod error;
mod file;
mod keeper;

use std::cmp::Ordering;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use weir_limit::time::Timestamp;
use weir_store::{SharedEntry, SharedLists, StoreError};

pub(super) use self::error::ListError;
pub(super) use self::file::{FileEntry, FileError, ListFile, read_file};
pub(super) use self::keeper::{ListChanges, ListKeeper, ListTarget, MAX_ENTRIES};

/// The end of an entry that does not end.
pub(super) const FOR_GOOD: u64 = u64::MAX;

/// Entries that one command reads.
const BATCH_SIZE: usize = 500;

/// Versions of a list that are remembered: 512 KiB, for snapshots of the day before.
const MAX_VERSIONS: usize = 65_536;

/// An entry of a list.
pub(super) trait ListEntry: Send + Sync + Sized + 'static {
    /// The name of the list in the store.
    const LIST: &'static str;
    /// An entry, in a word.
    const NOUN: &'static str;
    /// An entry, as the log calls it.
    const SINGULAR: &'static str;
    /// The entries, as the log calls them.
    const PLURAL: &'static str;
    /// The maximum length of an entry as it is written.
    const MAX_BYTES: usize = usize::MAX;

    /// Of several entries with one key the latest holds.
    type Key: Ord + Send;

    /// Reads an entry; none if no gateway wrote the text.
    fn parse(text: &str) -> Option<Self>;

    /// The entry as a JSON object.
    fn text(&self) -> String;

    fn key(&self) -> Self::Key;

    /// When it ends; none for good.
    fn until(&self) -> Option<Timestamp>;

    /// Which of two entries was set first.
    fn cmp_set_at(&self, other: &Self) -> Ordering;

    /// Why there can be no more entries, and what to do.
    fn full() -> String;

    /// Logs that the store had lost the list.
    fn log_restored(entries: usize);

    fn has_ended(&self, now: Timestamp) -> bool {
        self.until().is_some_and(|until| until <= now)
    }

    /// When it ends, in milliseconds.
    fn end(&self) -> u64 {
        self.until().map_or(FOR_GOOD, millis)
    }

    fn to_shared(&self) -> SharedEntry {
        SharedEntry {
            until: self.end(),
            text: self.text(),
        }
    }
}

/// The last copy of a list.
pub(super) struct SharedList<E: ListEntry> {
    /// None if this process is alone.
    lists: Option<Arc<dyn SharedLists>>,
    /// The version of the entries; none if another gateway may have changed them at the same time.
    version: Option<u64>,
    /// The version that was there last.
    there: u64,
    /// Those before it, the latest last. Versions have no order, and none comes twice: a store that
    /// has one of these again has lost what came after it.
    superseded: VecDeque<u64>,
    /// Whether the store has lost something that is not there again.
    has_lost: bool,
    /// Whether the log says so.
    is_loss_told: bool,
    /// In the order of ends and texts.
    entries: Vec<SharedEntry>,
    parsed: Parsed<E>,
    latest: Vec<Arc<E>>,
    /// What this process has removed, the latest last: a gateway that could not look meanwhile may
    /// give it back to a store that has lost the list. Each text has the moment at which it was set,
    /// so none of them is set again by an operator.
    removed: VecDeque<String>,
}

/// The outcome of a look at a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListChange {
    Nothing,
    /// Another gateway has changed it.
    Changed,
    /// The store had lost it, and has it again.
    Restored,
}

/// The entry of each text; none if no gateway wrote the text.
type Parsed<E> = HashMap<String, Option<Arc<E>>>;

impl<E: ListEntry> SharedList<E> {
    /// An empty copy.
    pub(super) fn new(lists: Option<Arc<dyn SharedLists>>) -> Self {
        Self {
            lists,
            version: None,
            there: 0,
            superseded: VecDeque::new(),
            has_lost: false,
            is_loss_told: false,
            entries: Vec::new(),
            parsed: Parsed::new(),
            latest: Vec::new(),
            removed: VecDeque::new(),
        }
    }

    /// A copy that no store has.
    pub(super) fn from_entries(entries: Vec<SharedEntry>) -> Self {
        let mut list = Self::new(None);
        list.replace(entries);
        list
    }

    /// The entries that hold, one for each key, in the order of keys. Some may have ended.
    pub(super) fn latest(&self) -> &[Arc<E>] {
        &self.latest
    }

    /// The texts with this key.
    fn texts_of(&self, key: &E::Key) -> Vec<String> {
        let entries = self.parsed.iter();
        let is_of =
            |entry: &Option<Arc<E>>| entry.as_ref().is_some_and(|entry| entry.key() == *key);
        let same = entries.filter(|(_, entry)| is_of(entry));
        same.map(|(text, _)| text.clone()).collect()
    }

    /// The entries that have ended, with their texts.
    fn ended(&self, now: Timestamp) -> Vec<(String, Arc<E>)> {
        let over = self.entries.iter();
        let over = over.take_while(|entry| entry.until <= millis(now));
        let ended = over.filter_map(|entry| {
            let parsed = self.parsed.get(&entry.text)?.as_ref()?;
            let has_ended = parsed.has_ended(now);
            has_ended.then(|| (entry.text.clone(), Arc::clone(parsed)))
        });
        ended.collect()
    }

    /// Reads what other gateways have changed.
    pub(super) async fn look(&mut self, now: Timestamp) -> Result<ListChange, StoreError> {
        let Some(lists) = &self.lists else {
            return Ok(ListChange::Nothing);
        };
        let version = lists.version(E::LIST).await?;
        if self.version == Some(version) {
            return Ok(ListChange::Nothing);
        }
        self.has_lost |= self.is_earlier(version);
        let (version, mut entries) = read_all::<E>(&**lists, version, now).await?;
        // It may have been lost while it was read.
        self.has_lost |= self.is_earlier(version);
        let lost = match self.has_lost {
            true => self.lost(&entries, now),
            false => Vec::new(),
        };
        let is_complete = lost.is_empty();
        let mut is_restored = false;
        if is_complete {
            (self.has_lost, self.is_loss_told) = (false, false);
            self.note_version(version);
        } else {
            is_restored = self.write_again(lost.clone(), now).await;
            entries.extend(lost);
            entries.sort_unstable();
        }
        // Others may restore theirs at the same time.
        self.version = is_complete.then_some(version);
        let change = match (is_restored, entries == self.entries) {
            (true, _) => ListChange::Restored,
            (false, true) => ListChange::Nothing,
            (false, false) => ListChange::Changed,
        };
        if change != ListChange::Nothing {
            self.replace(entries);
        }
        self.remove_again(now).await;
        Ok(change)
    }

    /// Writes what the store has lost. If that fails, the next look tries again: it stays in force
    /// here, and what others have changed is in force meanwhile.
    async fn write_again(&mut self, lost: Vec<SharedEntry>, now: Timestamp) -> bool {
        match self.change(lost, Vec::new(), now).await {
            Ok(_) => {
                (self.has_lost, self.is_loss_told) = (false, false);
                true
            }
            Err(error) => {
                // Whoever may never write would keep what others lift.
                self.has_lost = !error.is_forbidden();
                not_restored::<E>(&error, std::mem::replace(&mut self.is_loss_told, true));
                false
            }
        }
    }

    /// Whether what came after this version is lost. No gateway deletes a list, be it empty.
    fn is_earlier(&self, version: u64) -> bool {
        version == 0 || self.superseded.contains(&version)
    }

    /// What has not ended and is not among these entries of the store.
    fn lost(&self, there: &[SharedEntry], now: Timestamp) -> Vec<SharedEntry> {
        let is_there = |entry: &SharedEntry| there.iter().any(|other| other.text == entry.text);
        let own = self.entries.iter();
        let is_removed = |entry: &SharedEntry| self.removed.contains(&entry.text);
        let lost = own.filter(|entry| lasts(entry, now) && !is_there(entry) && !is_removed(entry));
        lost.cloned().collect()
    }

    /// Removes what has come back. If that fails, the next look reads the list again, and tries
    /// again: what others have changed is in force meanwhile.
    async fn remove_again(&mut self, now: Timestamp) {
        let texts = self.entries.iter().map(|entry| &entry.text);
        let returned = texts.filter(|text| self.removed.contains(text));
        let returned: Vec<String> = returned.cloned().collect();
        if returned.is_empty() {
            return;
        }
        if let Err(error) = self.change(Vec::new(), returned, now).await {
            let list = E::PLURAL;
            tracing::debug!(%error, list, "what was removed and came back is not removed yet");
        }
    }

    /// Adds entries, and removes texts and what has ended, there and here. Returns how many were
    /// removed there.
    pub(super) async fn change(
        &mut self,
        add: Vec<SharedEntry>,
        remove: Vec<String>,
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        let mut removed_there = None;
        if let Some(lists) = &self.lists {
            // Without a reply the change may have been made or not.
            let known = self.version.take();
            let change = lists.change(E::LIST, add.clone(), remove.clone(), now);
            let changed = change.await?;
            // The copy is complete unless another gateway has changed the list as well.
            self.version = known.map(|known| match known == changed.before {
                true => changed.after,
                false => known,
            });
            // The first change of a list has none before it.
            self.has_lost |= self.superseded.contains(&changed.before) && changed.before != 0;
            self.note_version(changed.before);
            self.note_version(changed.after);
            removed_there = Some(changed.removed);
        }
        self.note_removed(&add, &remove);
        let mut entries = std::mem::take(&mut self.entries);
        let removed = apply_change(&mut entries, add, &remove, now);
        self.replace(entries);
        Ok(removed_there.unwrap_or(removed))
    }

    fn note_version(&mut self, version: u64) {
        if version == self.there {
            return;
        }
        self.superseded.retain(|earlier| *earlier != version);
        let earlier = std::mem::replace(&mut self.there, version);
        self.superseded.push_back(earlier);
        let excess = self.superseded.len().saturating_sub(MAX_VERSIONS);
        self.superseded.drain(..excess);
    }

    fn note_removed(&mut self, add: &[SharedEntry], remove: &[String]) {
        let is_added = |text: &String| add.iter().any(|entry| entry.text == *text);
        self.removed
            .retain(|text| !is_added(text) && !remove.contains(text));
        self.removed.extend(remove.iter().cloned());
        let excess = self.removed.len().saturating_sub(MAX_ENTRIES);
        self.removed.drain(..excess);
    }

    fn replace(&mut self, entries: Vec<SharedEntry>) {
        let (parsed, unreadable) = parse_all(&entries, &mut self.parsed);
        for text in unreadable {
            tracing::warn!(text, "this is not {}; it is left out", E::SINGULAR);
        }
        self.latest = latest(&parsed);
        self.parsed = parsed;
        self.entries = entries;
    }
}

/// Logs once of a loss that it cannot be mended yet.
fn not_restored<E: ListEntry>(error: &StoreError, is_known: bool) {
    let list = E::PLURAL;
    match is_known {
        true => tracing::debug!(%error, list, "what was lost is not written again yet"),
        false => tracing::warn!(
            %error,
            list,
            "what the store has lost cannot be written again yet; it stays in force here"
        ),
    }
}

/// Parses the texts that were not there `earlier`, and returns those of them that are unreadable.
fn parse_all<'e, E: ListEntry>(
    entries: &'e [SharedEntry],
    earlier: &mut Parsed<E>,
) -> (Parsed<E>, Vec<&'e str>) {
    let mut unreadable = Vec::new();
    let parsed = entries.iter().map(|SharedEntry { text, .. }| {
        earlier.remove_entry(text).unwrap_or_else(|| {
            let entry = E::parse(text).map(Arc::new);
            if entry.is_none() {
                unreadable.push(text.as_str());
            }
            (text.clone(), entry)
        })
    });
    (parsed.collect(), unreadable)
}

/// If two gateways have set the same entry at once, the list has both; all gateways take the later
/// one.
fn latest<E: ListEntry>(parsed: &Parsed<E>) -> Vec<Arc<E>> {
    let entries = parsed.iter();
    let entries = entries.filter_map(|(text, entry)| entry.as_ref().map(|entry| (text, entry)));
    let mut latest: Vec<_> = entries
        .map(|(text, entry)| (entry.key(), text, entry))
        .collect();
    latest.sort_by(|(key, text, entry), (other_key, other_text, other)| {
        let later_first = || other.cmp_set_at(entry).then_with(|| other_text.cmp(text));
        key.cmp(other_key).then_with(later_first)
    });
    latest.dedup_by(|(key, ..), (later_key, ..)| key == later_key);
    let entries = latest.into_iter();
    entries.map(|(.., entry)| Arc::clone(entry)).collect()
}

/// All entries, and their version. Between two commands another gateway may change which entries
/// are where.
async fn read_all<E: ListEntry>(
    lists: &dyn SharedLists,
    mut version: u64,
    now: Timestamp,
) -> Result<(u64, Vec<SharedEntry>), StoreError> {
    loop {
        let mut entries = Vec::new();
        loop {
            let (from, skip) = (millis(now), entries.len());
            let found = lists.entries(E::LIST, from, skip, BATCH_SIZE).await?;
            let is_last = found.len() < BATCH_SIZE;
            entries.extend(found);
            if is_last {
                break;
            }
        }
        let after = lists.version(E::LIST).await?;
        if after == version {
            return Ok((version, entries));
        }
        version = after;
    }
}

/// Changes entries as Redis changes a list: `add` replaces what has the same text, and what has
/// ended goes. Returns how many were removed.
pub(super) fn apply_change(
    entries: &mut Vec<SharedEntry>,
    add: Vec<SharedEntry>,
    remove: &[String],
    now: Timestamp,
) -> u64 {
    let count = entries.len();
    entries.retain(|entry| lasts(entry, now) && !remove.contains(&entry.text));
    let removed = (count - entries.len()) as u64;
    entries.retain(|entry| add.iter().all(|added| added.text != entry.text));
    entries.extend(add);
    entries.sort_unstable();
    removed
}

/// Whether the store keeps an entry when it removes what has ended.
fn lasts(entry: &SharedEntry, now: Timestamp) -> bool {
    entry.until >= millis(now)
}

/// Whole milliseconds since the Unix epoch, rounded down.
pub(super) fn millis(moment: Timestamp) -> u64 {
    moment.as_nanos() / 1_000_000
}

/// The moment so many milliseconds after the Unix epoch.
pub(super) fn moment(millis: u64) -> Timestamp {
    Timestamp::from_nanos(millis.saturating_mul(1_000_000))
}

#[cfg(test)]
pub(super) mod tests {
    use parking_lot::Mutex;
    use serde::{Deserialize, Serialize};
    use tokio::sync::Notify;

    use super::*;
    use weir_store::{ChangedList, StoreFuture};

    /// A list of notes, which have nothing but what every entry has.
    #[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
    pub(in crate::app) struct Note {
        pub(in crate::app) id: String,
        pub(in crate::app) set_at: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub(in crate::app) until: Option<u64>,
    }

    impl ListEntry for Note {
        const LIST: &'static str = "notes";
        const NOUN: &'static str = "note";
        const SINGULAR: &'static str = "a note";
        const PLURAL: &'static str = "notes";

        type Key = String;

        fn parse(text: &str) -> Option<Self> {
            serde_json::from_str(text).ok()
        }

        fn text(&self) -> String {
            serde_json::to_string(self).unwrap()
        }

        fn key(&self) -> String {
            self.id.clone()
        }

        fn until(&self) -> Option<Timestamp> {
            self.until.map(moment)
        }

        fn cmp_set_at(&self, other: &Self) -> Ordering {
            self.set_at.cmp(&other.set_at)
        }

        fn full() -> String {
            "too many notes".to_owned()
        }

        fn log_restored(_: usize) {}
    }

    impl FileEntry for Note {
        const ABOUT: &'static str = "Notes.";
        const SETTING: &'static str = "notes: {file: PATH}";
    }

    /// A note that ends so many milliseconds after 1970 began, if it ends.
    pub(in crate::app) fn note(id: &str, until: Option<u64>) -> Note {
        Note {
            id: id.to_owned(),
            set_at: 1,
            until,
        }
    }

    fn entry(number: usize) -> SharedEntry {
        note(&format!("{number:04}"), Some(1000 + number as u64)).to_shared()
    }

    fn list_in(lists: &Arc<Lists>) -> SharedList<Note> {
        SharedList::new(Some(Arc::<Lists>::clone(lists)))
    }

    const NOW: Timestamp = Timestamp::from_nanos(5_000_000);

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
            *version = rand::random_range(1..=1_u64 << 53);
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
        let all = (0..BATCH_SIZE + 2).map(entry).collect();
        lists.change("", all, Vec::new(), NOW).await.unwrap();
        let mut list = list_in(&lists);
        *lists.is_disturbed.lock() = true;
        assert_eq!(list.look(NOW).await.unwrap(), ListChange::Changed);
        let expected: Vec<SharedEntry> = (1..BATCH_SIZE + 2).map(entry).collect();
        assert_eq!(list.entries, expected);
        assert_eq!(list.look(NOW).await.unwrap(), ListChange::Nothing);
    }

    #[tokio::test]
    async fn a_store_that_has_lost_a_list_gets_back_what_has_not_ended() {
        let lists = Arc::new(Lists::default());
        let mut list = list_in(&lists);
        assert_eq!(list.look(NOW).await.unwrap(), ListChange::Nothing);
        let both = vec![entry(0), entry(7)];
        assert_eq!(list.change(both, Vec::new(), NOW).await.unwrap(), 0);
        lists.entries.lock().clear();
        *lists.version.lock() = 0;
        let later = moment(1005);
        assert_eq!(list.look(later).await.unwrap(), ListChange::Restored);
        assert_eq!(*lists.entries.lock(), [entry(7)]);
        assert_eq!(list.entries, [entry(7)]);
        assert_eq!(list.look(later).await.unwrap(), ListChange::Nothing);
        // What others remove is not given back, as the list is still there.
        let removed = lists.change("", Vec::new(), vec![entry(7).text], later);
        assert_eq!(removed.await.unwrap().removed, 1);
        assert_eq!(list.look(later).await.unwrap(), ListChange::Changed);
        assert!(list.entries.is_empty() && lists.entries.lock().is_empty());
    }

    /// A ban that was lifted held again.
    #[tokio::test]
    async fn what_was_removed_does_not_return_by_a_gateway_that_had_not_heard_of_it() {
        let lists = Arc::new(Lists::default());
        let (mut one, mut late) = (list_in(&lists), list_in(&lists));
        let both = vec![entry(7), entry(8)];
        one.change(both, Vec::new(), NOW).await.unwrap();
        late.look(NOW).await.unwrap();
        one.change(Vec::new(), vec![entry(7).text], NOW)
            .await
            .unwrap();
        lists.entries.lock().clear();
        *lists.version.lock() = 0;
        assert_eq!(late.look(NOW).await.unwrap(), ListChange::Restored);
        assert_eq!(*lists.entries.lock(), [entry(7), entry(8)]);
        one.look(NOW).await.unwrap();
        late.look(NOW).await.unwrap();
        assert_eq!(*lists.entries.lock(), [entry(8)]);
        assert_eq!([&one.entries, &late.entries], [&[entry(8)], &[entry(8)]]);
        // It may be set again.
        let again = note("0007", Some(2000)).to_shared();
        late.change(vec![again.clone()], Vec::new(), NOW)
            .await
            .unwrap();
        one.look(NOW).await.unwrap();
        assert!(one.entries.contains(&again));
    }

    /// A version that was less than the last was taken for that of an older snapshot, and versions
    /// are random: every other ban that was lifted elsewhere came back.
    #[tokio::test]
    async fn what_another_gateway_removes_is_never_written_again() {
        for _ in 0..32 {
            let lists = Arc::new(Lists::default());
            let (mut one, mut other) = (list_in(&lists), list_in(&lists));
            let both = vec![entry(7), entry(8)];
            one.change(both, Vec::new(), NOW).await.unwrap();
            other.look(NOW).await.unwrap();
            let lifted = vec![entry(7).text];
            one.change(Vec::new(), lifted, NOW).await.unwrap();
            assert_eq!(other.look(NOW).await.unwrap(), ListChange::Changed);
            assert_eq!(*lists.entries.lock(), [entry(8)]);
        }
    }

    /// A ban that another gateway had set was in force only where the list could be written.
    #[tokio::test]
    async fn what_others_set_is_known_although_what_was_lost_cannot_be_written_again() {
        let lists = Arc::new(Lists::default());
        let mut list = list_in(&lists);
        list.change(vec![entry(7)], Vec::new(), NOW).await.unwrap();
        *lists.entries.lock() = vec![entry(8)];
        *lists.version.lock() = 0;
        *lists.change_fails.lock() = Some(|| StoreError::OutOfReach);
        assert_eq!(list.look(NOW).await.unwrap(), ListChange::Changed);
        assert_eq!(list.entries, [entry(7), entry(8)]);
        *lists.change_fails.lock() = None;
        list.look(NOW).await.unwrap();
        assert_eq!(*lists.entries.lock(), [entry(7), entry(8)]);
    }

    /// They were in force nowhere any more.
    #[tokio::test]
    async fn what_was_lost_is_written_again_although_another_gateway_wrote_first() {
        let lists = Arc::new(Lists::default());
        let mut list = list_in(&lists);
        list.change(vec![entry(7)], Vec::new(), NOW).await.unwrap();
        lists.entries.lock().clear();
        *lists.version.lock() = 0;
        *lists.change_fails.lock() = Some(|| StoreError::OutOfReach);
        list.look(NOW).await.unwrap();
        *lists.change_fails.lock() = None;
        let other = lists.change("", vec![entry(8)], Vec::new(), NOW);
        other.await.unwrap();
        list.look(NOW).await.unwrap();
        assert_eq!(*lists.entries.lock(), [entry(7), entry(8)]);
    }

    /// The log had a line a second.
    #[tokio::test]
    async fn a_loss_that_a_gateway_may_not_mend_is_told_once_and_stays_in_force_there() {
        let lists = Arc::new(Lists::default());
        let mut list = list_in(&lists);
        list.change(vec![entry(7)], Vec::new(), NOW).await.unwrap();
        lists.entries.lock().clear();
        *lists.version.lock() = 0;
        *lists.change_fails.lock() = Some(is_forbidden);
        for _ in 0..3 {
            list.look(NOW).await.unwrap();
            assert_eq!(list.entries, [entry(7)]);
            assert!(list.is_loss_told);
        }
        *lists.change_fails.lock() = None;
        let other = lists.change("", vec![entry(8)], Vec::new(), NOW);
        other.await.unwrap();
        // What others have in force now holds.
        list.look(NOW).await.unwrap();
        assert_eq!(list.entries, [entry(8)]);
        assert!(!list.is_loss_told);
    }

    #[tokio::test]
    async fn what_was_removed_is_not_taken_for_lost() {
        let lists = Arc::new(Lists::default());
        let mut list = list_in(&lists);
        list.change(vec![entry(7)], Vec::new(), NOW).await.unwrap();
        let removed = vec![entry(7).text];
        list.change(Vec::new(), removed, NOW).await.unwrap();
        let back = lists.change("", vec![entry(7)], Vec::new(), NOW);
        back.await.unwrap();
        *lists.change_fails.lock() = Some(|| StoreError::OutOfReach);
        list.look(NOW).await.unwrap();
        lists.entries.lock().clear();
        *lists.version.lock() = 0;
        *lists.change_fails.lock() = None;
        list.look(NOW).await.unwrap();
        assert!(lists.entries.lock().is_empty());
    }

    /// Bans of the time after a snapshot were lost with it, and those lifted since were back.
    #[tokio::test]
    async fn a_store_that_comes_back_with_an_older_snapshot_has_the_list_of_now_again() {
        let lists = Arc::new(Lists::default());
        let (mut one, mut other) = (list_in(&lists), list_in(&lists));
        let old = vec![entry(6), entry(7)];
        one.change(old.clone(), Vec::new(), NOW).await.unwrap();
        let snapshot = *lists.version.lock();
        for number in [8, 9] {
            let add = vec![entry(number)];
            one.change(add, Vec::new(), NOW).await.unwrap();
        }
        other.look(NOW).await.unwrap();
        let lifted = vec![entry(6).text];
        other.change(Vec::new(), lifted, NOW).await.unwrap();
        one.look(NOW).await.unwrap();
        *lists.version.lock() = snapshot;
        *lists.entries.lock() = old;
        assert_eq!(one.look(NOW).await.unwrap(), ListChange::Restored);
        let now = [entry(7), entry(8), entry(9)];
        for _ in 0..2 {
            other.look(NOW).await.unwrap();
            one.look(NOW).await.unwrap();
        }
        assert_eq!(*lists.entries.lock(), now);
        assert_eq!([&one.entries[..], &other.entries[..]], [&now[..], &now[..]]);
    }

    /// A ban that another gateway had set meanwhile held everywhere but here.
    #[tokio::test]
    async fn what_others_set_is_known_although_what_came_back_cannot_be_removed() {
        let lists = Arc::new(Lists::default());
        let mut list = list_in(&lists);
        list.change(vec![entry(7)], Vec::new(), NOW).await.unwrap();
        let removed = vec![entry(7).text];
        list.change(Vec::new(), removed, NOW).await.unwrap();
        let both = vec![entry(7), entry(8)];
        lists.change("", both, Vec::new(), NOW).await.unwrap();
        *lists.change_fails.lock() = Some(|| StoreError::OutOfReach);
        assert_eq!(list.look(NOW).await.unwrap(), ListChange::Changed);
        assert!(list.entries.contains(&entry(8)));
        *lists.change_fails.lock() = None;
        list.look(NOW).await.unwrap();
        assert_eq!(list.entries, [entry(8)]);
        assert_eq!(*lists.entries.lock(), [entry(8)]);
    }

    /// Each override that was set cost what all of them cost.
    #[tokio::test]
    async fn what_this_process_has_changed_is_not_read_again_unless_another_changed_it_too() {
        let lists = Arc::new(Lists::default());
        let mut list = list_in(&lists);
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
        assert_eq!(list.entries, expected);
    }

    #[test]
    fn a_text_that_no_gateway_wrote_is_warned_of_once_and_left_out() {
        let mut parsed = Parsed::<Note>::new();
        let mut entries = Vec::new();
        for (text, warned) in [
            ("[]", 1),
            ("{}", 1),
            ("{", 1),
            ("{\"id\":\"a\",\"set_at\":1}", 0),
        ] {
            entries.push(SharedEntry {
                until: FOR_GOOD,
                text: text.to_owned(),
            });
            let (all, unreadable) = parse_all(&entries, &mut parsed);
            assert_eq!(unreadable, [text; 1][..warned]);
            parsed = all;
        }
        assert_eq!(latest(&parsed), [Arc::new(note("a", None))]);
    }

    /// Two gateways may set the same one before either has seen the other's.
    #[test]
    fn of_two_entries_of_the_same_key_all_gateways_take_the_later_one() {
        let notes = [(2, Some(9000)), (3, Some(5000)), (2, Some(7000))];
        let note = |(set_at, until)| Note {
            set_at,
            ..note("a", until)
        };
        let mut entries = notes.map(|of_note| note(of_note).to_shared());
        for _ in 0..2 {
            let list = SharedList::<Note>::from_entries(entries.to_vec());
            assert_eq!(*list.latest(), [Arc::new(note(notes[1]))]);
            entries.reverse();
        }
    }
}
