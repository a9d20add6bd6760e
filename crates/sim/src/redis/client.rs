//! What a server knows of a client.

use std::collections::BTreeSet;
use std::fmt;

use bytes::Bytes;

use super::protocol::CommandReader;

/// A connection to a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(u64);

impl ClientId {
    pub(super) fn number(self) -> i64 {
        i64::try_from(self.0).unwrap_or(i64::MAX)
    }

    pub(super) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[derive(Debug)]
pub(super) struct Client {
    pub(super) id: ClientId,
    pub(super) reader: CommandReader,
    pub(super) is_resp3: bool,
    pub(super) user: String,
    pub(super) is_authenticated: bool,
    pub(super) name: Bytes,
    pub(super) database: usize,
    /// The command after `ASKING` is executed although the slot is still arriving.
    pub(super) is_asking: bool,
    pub(super) is_readonly: bool,
    pub(super) transaction: Option<Queued>,
    pub(super) channels: BTreeSet<Bytes>,
    /// The connection ends after the replies that were made.
    pub(super) is_closing: bool,
}

/// Commands between `MULTI` and `EXEC`.
#[derive(Debug, Default)]
pub(super) struct Queued {
    pub(super) commands: Vec<Vec<Bytes>>,
    /// One was refused, so none is executed.
    pub(super) is_aborted: bool,
}

impl Client {
    pub(super) fn new(id: ClientId, is_authenticated: bool) -> Self {
        Self {
            id,
            reader: CommandReader::default(),
            is_resp3: false,
            user: "default".to_owned(),
            is_authenticated,
            name: Bytes::new(),
            database: 0,
            is_asking: false,
            is_readonly: false,
            transaction: None,
            channels: BTreeSet::new(),
            is_closing: false,
        }
    }

    pub(super) fn set_name(&mut self, name: &Bytes) -> bool {
        let is_valid = name.iter().all(|byte| (b'!'..=b'~').contains(byte));
        if is_valid {
            self.name = name.clone();
        }
        is_valid
    }
}
