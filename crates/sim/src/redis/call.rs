//! What a command that reads or changes keys has at hand while it is executed.

use bytes::Bytes;

use super::keyspace::{Entry, Keyspace, Value};
use super::protocol::{Reply, integer};
use super::sorted_set::SortedSet;

/// An error of a command; one without a code of its own begins with no minus.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failure(pub(super) Vec<u8>);

impl From<&str> for Failure {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Self(text.into_bytes())
    }
}

pub(super) const SYNTAX: &str = "syntax error";
const WRONG_TYPE: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value";
pub(super) const NOT_INTEGER: &str = "value is not an integer or out of range";

pub(super) type Done = Result<(), Failure>;

/// What replicas are told of a command.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Propagation {
    #[default]
    Nothing,
    /// The command itself.
    Same,
    /// Another one in its place, which does the same whenever it is executed.
    Instead(Vec<Bytes>),
}

/// A command that is being executed.
pub(super) struct Call<'c> {
    /// The name of the command comes first.
    pub(super) words: &'c [Bytes],
    pub(super) keys: &'c mut Keyspace,
    /// In milliseconds since the Unix epoch.
    pub(super) now: i64,
    /// Keys that have expired are there still, but not shown: only a primary deletes them.
    pub(super) hides_due: bool,
    /// A replica applies it as its primary has executed it.
    pub(super) is_applied: bool,
    pub(super) reply: &'c mut Reply,
    pub(super) propagation: Propagation,
}

impl<'c> Call<'c> {
    pub(super) fn word(&self, at: usize) -> &'c [u8] {
        self.words.get(at).map_or(&[], |word| word)
    }

    /// The key, which is the first word after the name.
    pub(super) fn key(&self) -> Bytes {
        self.words.get(1).cloned().unwrap_or_default()
    }

    pub(super) fn words_from(&self, at: usize) -> &'c [Bytes] {
        self.words.get(at..).unwrap_or_default()
    }

    pub(super) fn integer(&self, at: usize) -> Result<i64, Failure> {
        integer(self.word(at)).ok_or_else(|| NOT_INTEGER.into())
    }

    /// The command has changed something.
    pub(super) fn changed(&mut self) {
        self.propagation = Propagation::Same;
    }

    pub(super) fn entry(&self, key: &[u8]) -> Option<&Entry> {
        let is_hidden = self.hides_due && self.keys.is_due(key, self.now);
        self.keys.get(key).filter(|_| !is_hidden)
    }

    pub(super) fn string(&self) -> Result<Option<&Vec<u8>>, Failure> {
        match self.entry(self.word(1)).map(|entry| &entry.value) {
            Some(Value::String(string)) => Ok(Some(string)),
            None => Ok(None),
            Some(_) => Err(WRONG_TYPE.into()),
        }
    }

    pub(super) fn string_mut(&mut self) -> Result<&mut Vec<u8>, Failure> {
        let key = self.key();
        match self.keys.get_or_insert(&key, || Value::String(Vec::new())) {
            Value::String(string) => Ok(string),
            _ => Err(WRONG_TYPE.into()),
        }
    }

    /// The hash at the key.
    pub(super) fn hash(&self) -> Result<Option<&Vec<(Bytes, Bytes)>>, Failure> {
        match self.entry(self.word(1)).map(|entry| &entry.value) {
            Some(Value::Hash(fields)) => Ok(Some(fields)),
            None => Ok(None),
            Some(_) => Err(WRONG_TYPE.into()),
        }
    }

    pub(super) fn hash_mut(&mut self) -> Result<&mut Vec<(Bytes, Bytes)>, Failure> {
        let key = self.key();
        match self.keys.get_or_insert(&key, || Value::Hash(Vec::new())) {
            Value::Hash(fields) => Ok(fields),
            _ => Err(WRONG_TYPE.into()),
        }
    }

    pub(super) fn sorted_set(&self) -> Result<Option<&SortedSet>, Failure> {
        match self.entry(self.word(1)).map(|entry| &entry.value) {
            Some(Value::SortedSet(members)) => Ok(Some(members)),
            None => Ok(None),
            Some(_) => Err(WRONG_TYPE.into()),
        }
    }

    pub(super) fn sorted_set_mut(&mut self) -> Result<&mut SortedSet, Failure> {
        let key = self.key();
        let empty = || Value::SortedSet(SortedSet::default());
        match self.keys.get_or_insert(&key, empty) {
            Value::SortedSet(members) => Ok(members),
            _ => Err(WRONG_TYPE.into()),
        }
    }
}
