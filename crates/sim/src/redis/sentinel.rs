//! A Sentinel: where the primary is, by name, and messages about failovers. Which failovers there
//! are is the world's to say.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::call::Done;
use super::client::{Client, ClientId};
use super::protocol::Reply;
use super::server::{Config, Now, Output, Server};
use super::users::User;
use super::watched::Watched;

/// A Sentinel, which is a Redis server with other commands.
#[derive(Debug)]
pub struct Sentinel(Server);

impl Sentinel {
    /// A Sentinel that watches nothing yet.
    pub fn new(users: Vec<User>) -> Self {
        let mut server = Server::new(Config {
            users,
            ..Config::default()
        });
        server.watched = Some(BTreeMap::new());
        Self(server)
    }

    /// Watches a primary by this name.
    pub fn watch(&mut self, name: &str, primary: Watched) {
        let watched = self.0.watched.get_or_insert_default();
        watched.insert(name.to_owned(), primary);
    }

    /// What it believes about a primary, to be changed without a word to anybody.
    pub fn watched_mut(&mut self, name: &str) -> Option<&mut Watched> {
        self.0.watched.as_mut()?.get_mut(name)
    }

    /// A client connects; see [`Server::open`].
    ///
    /// # Errors
    /// What the Sentinel says before it closes the connection again.
    pub fn open(&mut self) -> Result<ClientId, Bytes> {
        self.0.open()
    }

    /// A client has gone.
    pub fn close(&mut self, id: ClientId) {
        self.0.close(id);
    }

    /// Bytes come from a client; see [`Server::receive`].
    pub fn receive(&mut self, id: ClientId, bytes: &[u8], now: Now) -> Vec<Output> {
        self.0.receive(id, bytes, now)
    }

    /// The process ends, and another begins with what it knew, which is on its disk.
    pub fn restart(&mut self) {
        self.0.restart(None);
    }

    /// It leads a failover, has chosen a replica, and told it to become the primary.
    pub fn choose(&mut self, name: &str, replica: (&str, u16)) -> Vec<Output> {
        let Some(watched) = self.watched_mut(name) else {
            return Vec::new();
        };
        let text = watched.of_replica(name, replica);
        let mut outputs = self.0.publish("+selected-slave", &text);
        outputs.extend(self.0.publish("+failover-state-wait-promotion", &text));
        outputs
    }

    /// The replica says that it is a primary now: that is the answer from here on, unless a later
    /// failover was heard of.
    pub fn promote(&mut self, name: &str, replica: (&str, u16), epoch: u64) -> Vec<Output> {
        let watched = self.watched_mut(name);
        let Some(watched) = watched.filter(|watched| watched.epoch <= epoch) else {
            return Vec::new();
        };
        watched.epoch = epoch;
        watched.promoted = Some((replica.0.to_owned(), replica.1));
        let text = watched.of_replica(name, replica);
        self.0.publish("+promoted-slave", &text)
    }

    /// The failover is over, or another Sentinel has told of it. A later one may have been heard of
    /// before.
    pub fn switch(&mut self, name: &str, primary: (&str, u16), epoch: u64) -> Vec<Output> {
        let watched = self.watched_mut(name);
        let Some(watched) = watched.filter(|watched| watched.epoch <= epoch) else {
            return Vec::new();
        };
        let (host, port) = primary;
        let text = format!("{name} {} {} {host} {port}", watched.host, watched.port);
        watched.host = host.to_owned();
        watched.port = port;
        watched.epoch = epoch;
        watched.promoted = None;
        self.0.publish("+switch-master", &text)
    }
}

/// `SENTINEL GET-MASTER-ADDR-BY-NAME name`
pub(super) fn address(
    server: &mut Server,
    _: &mut Client,
    words: &[Bytes],
    _: Now,
    reply: &mut Reply,
) -> Done {
    let Some(watched) = find(server, words) else {
        reply.null_array();
        return Ok(());
    };
    let own = (watched.host.clone(), watched.port);
    let (host, port) = watched.promoted.clone().unwrap_or(own);
    reply.array(2);
    reply.bulk(host.as_bytes());
    reply.bulk(port.to_string().as_bytes());
    Ok(())
}

/// `SENTINEL MASTER name`
pub(super) fn primary(
    server: &mut Server,
    _: &mut Client,
    words: &[Bytes],
    _: Now,
    reply: &mut Reply,
) -> Done {
    let watched = find(server, words).ok_or("No such master with that name")?;
    let name = words
        .get(2)
        .map(|name| String::from_utf8_lossy(name).into_owned());
    let fields = [
        ("name", name.unwrap_or_default()),
        ("ip", watched.host.clone()),
        ("port", watched.port.to_string()),
        ("runid", String::new()),
        ("flags", "master".to_owned()),
        ("link-pending-commands", "0".to_owned()),
        ("link-refcount", "1".to_owned()),
        ("last-ping-sent", "0".to_owned()),
        ("last-ok-ping-reply", "0".to_owned()),
        ("last-ping-reply", "0".to_owned()),
        ("down-after-milliseconds", "30000".to_owned()),
        ("info-refresh", "0".to_owned()),
        ("role-reported", "master".to_owned()),
        ("role-reported-time", "0".to_owned()),
        ("config-epoch", watched.epoch.to_string()),
        ("num-slaves", watched.replicas.to_string()),
        ("num-other-sentinels", watched.sentinels.to_string()),
        ("quorum", watched.quorum.to_string()),
        ("failover-timeout", "180000".to_owned()),
        ("parallel-syncs", "1".to_owned()),
    ];
    reply.map(fields.len());
    for (field, value) in fields {
        reply.bulk(field.as_bytes());
        reply.bulk(value.as_bytes());
    }
    Ok(())
}

fn find<'s>(server: &'s Server, words: &[Bytes]) -> Option<&'s Watched> {
    let name = std::str::from_utf8(words.get(2)?).ok()?;
    server.watched.as_ref()?.get(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It took the epoch of the later one for itself, so that two primaries had the same.
    #[test]
    fn what_is_heard_late_of_an_earlier_failover_changes_nothing() {
        let mut sentinel = Sentinel::new(Vec::new());
        sentinel.watch("main", Watched::new("a", 1));
        sentinel.switch("main", ("c", 1), 2);
        sentinel.switch("main", ("b", 1), 1);
        sentinel.promote("main", ("b", 1), 1);
        let watched = sentinel.watched_mut("main").unwrap();
        assert_eq!((&*watched.host, watched.epoch), ("c", 2));
        assert_eq!(watched.promoted, None);
    }
}
