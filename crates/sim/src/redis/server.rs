//! The server: its clients and data, how it is set up, and what ails it.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use super::call::Done;
use super::client::{Client, ClientId};
use super::cluster::ClusterView;
use super::effect::{Change, Effect};
use super::keyspace::Keyspace;
use super::protocol::Reply;
use super::role::Role;
use super::users::User;
use super::watched::Watched;

/// The release whose replies these are.
pub(super) const VERSION: &str = "7.0.15";

pub(super) const DATABASES: usize = 16;

/// How many bytes a server without data uses.
pub const EMPTY_BYTES: usize = 1 << 20;

/// What time the server's own clock has, since the Unix epoch.
pub type Now = Duration;

/// What comes of what a server has received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    Write(ClientId, Bytes),
    /// The connection ends, after what was written to it before.
    Close(ClientId),
}

/// How a server is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// Who may log in. Without a user `default`, that one needs no password and may do everything.
    pub users: Vec<User>,
    /// How many bytes may be in use, by a model of its own (`maxmemory`): a real server's use
    /// depends on its allocator. With one byte, all commands that could grow the data are refused.
    pub max_memory: Option<usize>,
    /// What happens when that is not enough (`maxmemory-policy`).
    pub eviction: Eviction,
    /// How many clients may be connected (`maxclients`).
    pub max_clients: usize,
    /// Whether a replica without its primary answers by what it has (`replica-serve-stale-data`).
    pub serves_stale: bool,
    /// Whether what changes is collected for [`Server::drain_replication`].
    pub is_replicated: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            users: Vec::new(),
            max_memory: None,
            eviction: Eviction::None,
            max_clients: 10_000,
            serves_stale: true,
            is_replicated: false,
        }
    }
}

/// Which key goes first when memory is out. A real server takes samples; this one knows the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// No key: commands that could grow the data are refused (`noeviction`).
    None,
    /// The one that was not used for the longest (`allkeys-lru`).
    AllKeysLru,
    /// The same among those that expire (`volatile-lru`).
    VolatileLru,
    /// The one that expires next (`volatile-ttl`).
    VolatileTtl,
}

/// What ails a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// It is reading its data from the disk (`LOADING`).
    pub is_loading: bool,
    /// Its last snapshot could not be written (`MISCONF`).
    pub is_disk_failing: bool,
    /// A script runs for too long (`BUSY`).
    pub is_busy: bool,
    /// Fewer replicas are linked than `min-replicas-to-write` (`NOREPLICAS`).
    pub lacks_replicas: bool,
}

/// A Redis server.
#[derive(Debug)]
pub struct Server {
    pub(super) config: Config,
    pub(super) users: BTreeMap<String, User>,
    pub(super) databases: Vec<Keyspace>,
    pub(super) clients: BTreeMap<ClientId, Client>,
    last_client: ClientId,
    pub(super) role: Role,
    pub(super) cluster: Option<ClusterView>,
    /// What it watches, if it is a Sentinel.
    pub(super) watched: Option<BTreeMap<String, Watched>>,
    pub(super) offset: i64,
    /// What the command that is executed has changed.
    pub(super) changes: Vec<Change>,
    pub(super) effects: Vec<Effect>,
    /// What ails it.
    pub conditions: Conditions,
}

impl Server {
    /// An empty primary that belongs to no Cluster.
    pub fn new(config: Config) -> Self {
        let default = User::unlimited("default");
        let users = [default].into_iter().chain(config.users.iter().cloned());
        Self {
            users: users.map(|user| (user.name.clone(), user)).collect(),
            config,
            databases: vec![Keyspace::default(); DATABASES],
            clients: BTreeMap::new(),
            last_client: ClientId::default(),
            role: Role::Primary {
                replicas: Vec::new(),
            },
            cluster: None,
            watched: None,
            offset: 0,
            changes: Vec::new(),
            effects: Vec::new(),
            conditions: Conditions::default(),
        }
    }

    /// A client connects.
    ///
    /// # Errors
    /// What the server says before it closes the connection again, if it has too many.
    pub fn open(&mut self) -> Result<ClientId, Bytes> {
        if self.clients.len() >= self.config.max_clients {
            return Err(Bytes::from_static(
                b"-ERR max number of clients reached\r\n",
            ));
        }
        self.last_client = self.last_client.next();
        let id = self.last_client;
        self.clients.insert(id, Client::new(id, self.is_open()));
        Ok(id)
    }

    /// A client has gone.
    pub fn close(&mut self, id: ClientId) {
        self.clients.remove(&id);
    }

    /// Closes all connections, as `CLIENT KILL TYPE normal` does, which Sentinels send to a server
    /// whose role they have changed.
    pub fn close_all(&mut self) -> Vec<Output> {
        let clients = std::mem::take(&mut self.clients);
        clients.into_keys().map(Output::Close).collect()
    }

    /// Bytes come from a client. The commands that are complete are executed, and answered in their
    /// order.
    pub fn receive(&mut self, id: ClientId, bytes: &[u8], now: Now) -> Vec<Output> {
        let Some(mut client) = self.clients.remove(&id) else {
            return Vec::new();
        };
        client.reader.receive(bytes);
        let mut reply = Reply::new(client.is_resp3);
        while !client.is_closing {
            let is_logged_in = !self.needs_login(&client);
            match client.reader.next(is_logged_in) {
                None => break,
                Some(Ok(words)) if words.is_empty() => {}
                Some(Ok(words)) => self.process(&mut client, words, now, &mut reply),
                Some(Err(why)) => {
                    reply.error(format!("Protocol error: {why}").as_bytes());
                    client.is_closing = true;
                }
            }
        }
        let mut outputs = Vec::new();
        let replies = reply.into_bytes();
        if !replies.is_empty() {
            outputs.push(Output::Write(id, replies));
        }
        match client.is_closing {
            true => outputs.push(Output::Close(id)),
            false => drop(self.clients.insert(id, client)),
        }
        outputs
    }

    /// Evicts keys until memory suffices, and tells whether it does.
    pub(super) fn evict(&mut self) -> bool {
        let Some(max) = self.config.max_memory else {
            return true;
        };
        while self.used_memory() > max {
            let mut candidates = self.databases.iter().enumerate();
            let found = candidates.find_map(|(database, keyspace)| {
                let key = match self.config.eviction {
                    Eviction::None => None,
                    Eviction::AllKeysLru => keyspace.least_recently_used(false),
                    Eviction::VolatileLru => keyspace.least_recently_used(true),
                    Eviction::VolatileTtl => keyspace.next_to_expire(),
                };
                Some((database, key?))
            });
            let Some((database, key)) = found else {
                return false;
            };
            self.delete(database, key);
            self.finish_effect();
        }
        true
    }

    fn delete(&mut self, database: usize, key: Bytes) {
        if let Some(keyspace) = self.databases.get_mut(database) {
            keyspace.remove(&key);
            self.changes.push(Change::delete(database, key));
        }
    }

    /// Deletes all keys that have expired, as a primary does some times a second. Without it they
    /// are not seen either, but take up memory.
    pub fn expire(&mut self, now: Now) {
        if !self.is_primary() {
            return;
        }
        for database in 0..DATABASES {
            let due = self
                .databases
                .get(database)
                .map(|keyspace| keyspace.due(millis(now)));
            for key in due.unwrap_or_default() {
                self.delete(database, key);
                self.finish_effect();
            }
        }
    }

    pub(super) fn cluster(&self) -> Option<&ClusterView> {
        self.cluster.as_ref()
    }

    /// Makes it a node of a Cluster, by what it believes about that.
    pub fn set_cluster(&mut self, view: Option<ClusterView>) {
        self.cluster = view;
    }

    /// What it believes about its Cluster, to be changed.
    pub fn cluster_mut(&mut self) -> Option<&mut ClusterView> {
        self.cluster.as_mut()
    }

    /// The keys of the first database, in the order of their bytes, those that have expired among
    /// them.
    pub fn keys(&self) -> impl Iterator<Item = &Bytes> {
        self.databases
            .iter()
            .take(1)
            .flat_map(|keyspace| keyspace.iter().map(|(key, _)| key))
    }

    pub(super) fn keys_in(&self, database: usize) -> usize {
        self.databases.get(database).map_or(0, Keyspace::len)
    }

    pub(super) fn flush(&mut self, database: usize) {
        if let Some(keyspace) = self.databases.get_mut(database) {
            keyspace.clear();
        }
    }

    /// How many bytes are in use, by the model of [`Config::max_memory`].
    pub fn used_memory(&self) -> usize {
        let data: usize = self.databases.iter().map(Keyspace::bytes).sum();
        EMPTY_BYTES + data
    }

    /// How the server is set up, to be changed as `CONFIG SET` does.
    pub fn config_mut(&mut self) -> &mut Config {
        &mut self.config
    }

    /// Adds a user, or changes one: what the user may do changes at once for all connections.
    pub fn set_user(&mut self, user: User) {
        self.users.insert(user.name.clone(), user);
    }

    /// Whether clients need not log in.
    pub(super) fn is_open(&self) -> bool {
        let default = self.users.get("default");
        default.is_some_and(|default| default.password.is_none())
    }

    pub(super) fn needs_login(&self, client: &Client) -> bool {
        !client.is_authenticated && !self.is_open()
    }

    pub(super) fn log_in(&self, client: &mut Client, user: &[u8], password: &[u8]) -> Done {
        let name = String::from_utf8_lossy(user).into_owned();
        let found = self.users.get(&name).filter(|user| match &user.password {
            None => true,
            Some(own) => own.as_bytes() == password,
        });
        found.ok_or("-WRONGPASS invalid username-password pair or user is disabled.")?;
        client.user = name;
        client.is_authenticated = true;
        Ok(())
    }

    /// Sends a message to all that listen to the channel.
    pub(super) fn publish(&self, channel: &str, text: &str) -> Vec<Output> {
        let listening = self.clients.iter();
        let listening =
            listening.filter(|(_, client)| client.channels.contains(channel.as_bytes()));
        let message = |(id, client): (&ClientId, &Client)| {
            let mut reply = Reply::new(client.is_resp3);
            reply.push(3);
            for text in ["message", channel, text] {
                reply.bulk(text.as_bytes());
            }
            Output::Write(*id, reply.into_bytes())
        };
        listening.map(message).collect()
    }

    pub(super) fn mode(&self) -> &'static str {
        match (&self.watched, &self.cluster) {
            (Some(_), _) => "sentinel",
            (None, Some(_)) => "cluster",
            (None, None) => "standalone",
        }
    }

    /// The text of `INFO`.
    pub(super) fn describe(&self) -> String {
        let mode = self.mode();
        let mut text = format!("# Server\r\nredis_version:{VERSION}\r\nredis_mode:{mode}\r\n\r\n");
        let memory = (
            self.used_memory(),
            self.config.max_memory.unwrap_or_default(),
        );
        text += &format!(
            "# Memory\r\nused_memory:{}\r\nmaxmemory:{}\r\n\r\n",
            memory.0, memory.1
        );
        text += "# Replication\r\n";
        match &self.role {
            Role::Primary { replicas } => {
                text += &format!("role:master\r\nconnected_slaves:{}\r\n", replicas.len());
            }
            Role::Replica {
                host,
                port,
                is_linked,
            } => {
                let status = if *is_linked { "up" } else { "down" };
                text += &format!(
                    "role:slave\r\nmaster_host:{host}\r\nmaster_port:{port}\r\n\
                     master_link_status:{status}\r\nconnected_slaves:0\r\n"
                );
            }
        }
        text += &format!("master_repl_offset:{}\r\n\r\n# Keyspace\r\n", self.offset);
        for (index, keyspace) in self.databases.iter().enumerate() {
            if keyspace.len() > 0 {
                let expiring = keyspace.iter().filter(|(_, entry)| entry.expires.is_some());
                let (all, expiring) = (keyspace.len(), expiring.count());
                text += &format!("db{index}:keys={all},expires={expiring},avg_ttl=0\r\n");
            }
        }
        text
    }
}

pub(super) fn millis(now: Now) -> i64 {
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}
