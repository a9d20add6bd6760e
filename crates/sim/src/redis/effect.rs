//! What commands have done to a primary's data, as its replicas are told.

use bytes::Bytes;

use super::keyspace::Entry;

/// What a command, or a transaction, has done to a primary's data: a replica does all of it or
/// nothing.
#[derive(Clone, Debug, Default)]
pub struct Effect {
    pub(super) changes: Vec<Change>,
}

#[derive(Clone, Debug)]
pub(super) enum Change {
    Command {
        database: usize,
        words: Vec<Bytes>,
    },
    /// A key that was moved here from another node.
    Restore {
        key: Bytes,
        entry: Entry,
    },
}

impl Effect {
    /// How many bytes it takes up in the stream to replicas.
    pub(super) fn bytes(&self) -> i64 {
        let bytes = self.changes.iter().map(|change| match change {
            Change::Command { words, .. } => words.iter().map(|word| word.len() + 8).sum(),
            Change::Restore { key, .. } => key.len() + 64,
        });
        i64::try_from(bytes.sum::<usize>()).unwrap_or(i64::MAX)
    }
}

impl Change {
    pub(super) fn delete(database: usize, key: Bytes) -> Self {
        let words = vec![Bytes::from_static(b"DEL"), key];
        Self::Command { database, words }
    }
}
