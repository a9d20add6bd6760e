//! What a primary tells its replicas, and what a server keeps of its data.

use bytes::Bytes;

use super::client::{Client, ClientId};
use super::command::{Command, Run};
use super::effect::{Change, Effect};
use super::keyspace::{Entry, Keyspace};
use super::protocol::Reply;
use super::role::Role;
use super::server::{Conditions, Now, Server, millis};

/// All data of a server at some moment: what it has on its disk, or sends to a new replica.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub(super) databases: Vec<Keyspace>,
    pub(super) offset: i64,
}

/// A key on its way to another node of a Cluster.
#[derive(Clone, Debug)]
pub struct MovedKey {
    pub(super) entry: Entry,
    /// How many milliseconds it is from its expiry, if it has one.
    pub(super) ttl: Option<i64>,
}

impl Server {
    pub(super) fn propagate(&mut self, database: usize, words: Vec<Bytes>) {
        self.changes.push(Change::Command { database, words });
    }

    pub(super) fn finish_effect(&mut self) {
        let changes = std::mem::take(&mut self.changes);
        if changes.is_empty() || !self.is_primary() {
            return;
        }
        let effect = Effect { changes };
        self.offset += effect.bytes();
        if self.config.is_replicated {
            self.effects.push(effect);
        }
    }

    /// What has changed since the last time, in order, for all replicas.
    pub fn drain_replication(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Does as the primary did.
    pub fn apply(&mut self, effect: &Effect, now: Now) {
        for change in &effect.changes {
            match change {
                Change::Restore { key, entry } => {
                    if let Some(keyspace) = self.databases.first_mut() {
                        keyspace.insert(key, entry.value.clone(), entry.expires);
                    }
                }
                Change::Command { database, words } => self.obey(*database, words, now),
            }
        }
        self.changes.clear();
        self.offset += effect.bytes();
    }

    /// Executes a command of the primary, who does not read the reply.
    fn obey(&mut self, database: usize, words: &[Bytes], now: Now) {
        let mut unread = Reply::new(false);
        let Ok(command) = Command::find(words, false) else {
            return;
        };
        let _ = match command.run {
            Run::Keys(run) => {
                let words = (words, millis(now));
                self.run_on_keys(database, command, run, words, &mut unread, true)
            }
            Run::Server(run) => {
                let mut primary = Client::new(ClientId::default(), true);
                primary.database = database;
                run(self, &mut primary, words, now, &mut unread)
            }
        };
    }

    /// All data, to be kept or sent to a replica.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            databases: self.databases.clone(),
            offset: self.offset,
        }
    }

    /// Takes this data in place of its own.
    pub fn load(&mut self, snapshot: &Snapshot) {
        self.databases.clone_from(&snapshot.databases);
        self.offset = snapshot.offset;
    }

    /// The process ends, and another begins with what was kept, if anything. Connections are gone
    /// without a word, and no later one has the number of one of them. The role and the view of the
    /// Cluster stay, as they are in its configuration.
    pub fn restart(&mut self, kept: Option<&Snapshot>) {
        self.clients.clear();
        self.effects.clear();
        self.conditions = Conditions::default();
        match kept {
            Some(snapshot) => self.load(snapshot),
            None => {
                self.databases.iter_mut().for_each(Keyspace::clear);
                self.offset = 0;
            }
        }
    }

    /// What the server is.
    pub fn role(&self) -> &Role {
        &self.role
    }

    /// Whether it takes writes.
    pub fn is_primary(&self) -> bool {
        matches!(self.role, Role::Primary { .. })
    }

    /// Makes it a primary or a replica. Clients stay connected.
    pub fn set_role(&mut self, role: Role) {
        self.role = role;
    }

    /// How many bytes a primary has sent, or a replica has heard, of the stream of changes.
    pub fn offset(&self) -> i64 {
        self.offset
    }

    /// Takes a key off to another node of the Cluster, as `MIGRATE` does.
    pub fn take_key(&mut self, key: &[u8], now: Now) -> Option<MovedKey> {
        let now = millis(now);
        let keyspace = self.databases.first_mut()?;
        let is_due = keyspace.is_due(key, now);
        let entry = keyspace.remove(key)?;
        self.changes
            .push(Change::delete(0, Bytes::copy_from_slice(key)));
        self.finish_effect();
        let ttl = entry.expires.map(|expires| expires - now);
        (!is_due).then_some(MovedKey { entry, ttl })
    }

    /// Takes over a key from another node. It expires after as long by this server's clock.
    pub fn put_key(&mut self, key: &[u8], moved: &MovedKey, now: Now) {
        let key = Bytes::copy_from_slice(key);
        let mut entry = moved.entry.clone();
        entry.expires = moved.ttl.map(|ttl| millis(now) + ttl);
        if let Some(keyspace) = self.databases.first_mut() {
            keyspace.insert(&key, entry.value.clone(), entry.expires);
        }
        self.changes.push(Change::Restore { key, entry });
        self.finish_effect();
    }
}
