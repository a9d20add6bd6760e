//! A database: keys, their values, when they expire, and what memory they take up.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::sorted_set::SortedSet;

/// What a key takes up beside its name and value.
const ENTRY_BYTES: usize = 80;

/// What a field of a hash, or a member of a sorted set, takes up beside itself.
const ELEMENT_BYTES: usize = 24;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    String(Vec<u8>),
    /// Fields in the order in which they were added, as a small hash of Redis has them.
    Hash(Vec<(Bytes, Bytes)>),
    SortedSet(SortedSet),
}

impl Value {
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::String(_) => "string",
            Self::Hash(_) => "hash",
            Self::SortedSet(_) => "zset",
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::String(_) => false,
            Self::Hash(fields) => fields.is_empty(),
            Self::SortedSet(members) => members.len() == 0,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::String(bytes) => bytes.len(),
            Self::Hash(fields) => fields
                .iter()
                .map(|(field, value)| field.len() + value.len() + ELEMENT_BYTES)
                .sum(),
            Self::SortedSet(members) => members.bytes() + members.len() * ELEMENT_BYTES,
        }
    }
}

/// A key's value and what is noted of it.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) value: Value,
    /// In milliseconds since the Unix epoch, by the server's clock.
    pub(super) expires: Option<i64>,
    /// When it was used last: a number that grows with each use.
    used: u64,
    bytes: usize,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Keyspace {
    entries: BTreeMap<Bytes, Entry>,
    bytes: usize,
    uses: u64,
}

impl Keyspace {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.bytes = 0;
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<&Entry> {
        self.entries.get(key)
    }

    /// What follows a change has to be [`Self::settle`].
    pub(super) fn get_mut(&mut self, key: &[u8]) -> Option<&mut Entry> {
        self.entries.get_mut(key)
    }

    /// The value of a key, which begins like this if there is none.
    pub(super) fn get_or_insert(
        &mut self,
        key: &Bytes,
        value: impl FnOnce() -> Value,
    ) -> &mut Value {
        let entry = self.entries.entry(key.clone());
        &mut entry
            .or_insert_with(|| Entry {
                value: value(),
                expires: None,
                used: 0,
                bytes: 0,
            })
            .value
    }

    pub(super) fn insert(&mut self, key: &Bytes, value: Value, expires: Option<i64>) {
        self.remove(key);
        let entry = Entry {
            value,
            expires,
            used: 0,
            bytes: 0,
        };
        self.entries.insert(key.clone(), entry);
        self.settle(key);
    }

    pub(super) fn remove(&mut self, key: &[u8]) -> Option<Entry> {
        let entry = self.entries.remove(key)?;
        self.bytes -= entry.bytes;
        Some(entry)
    }

    /// Accounts for what became of a key, and removes it when nothing is left in it.
    pub(super) fn settle(&mut self, key: &[u8]) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        if entry.value.is_empty() {
            self.remove(key);
            return;
        }
        self.uses += 1;
        entry.used = self.uses;
        self.bytes -= entry.bytes;
        entry.bytes = key.len() + entry.value.bytes() + ENTRY_BYTES;
        self.bytes += entry.bytes;
    }

    /// Whether the key has expired by `now`.
    pub(super) fn is_due(&self, key: &[u8], now: i64) -> bool {
        let expires = self.entries.get(key).and_then(|entry| entry.expires);
        expires.is_some_and(|expires| now > expires)
    }

    /// The keys that have expired by `now`.
    pub(super) fn due(&self, now: i64) -> Vec<Bytes> {
        let keys = self.entries.keys().filter(|key| self.is_due(key, now));
        keys.cloned().collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Bytes, &Entry)> {
        self.entries.iter()
    }

    /// The key that was not used for the longest, of all or of those that expire.
    pub(super) fn least_recently_used(&self, only_expiring: bool) -> Option<Bytes> {
        self.min_by(only_expiring, |entry| i128::from(entry.used))
    }

    pub(super) fn next_to_expire(&self) -> Option<Bytes> {
        self.min_by(true, |entry| i128::from(entry.expires.unwrap_or(i64::MAX)))
    }

    fn min_by(&self, only_expiring: bool, order: impl Fn(&Entry) -> i128) -> Option<Bytes> {
        let candidates = self.entries.iter();
        let candidates = candidates.filter(|(_, entry)| !only_expiring || entry.expires.is_some());
        let least = candidates.min_by_key(|(_, entry)| order(entry))?;
        Some(least.0.clone())
    }
}
