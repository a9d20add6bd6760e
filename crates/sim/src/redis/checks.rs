//! Why a server refuses a command: rights, redirections, memory, its role, and what ails it.

use bytes::Bytes;

use super::call::Done;
use super::client::Client;
use super::cluster::Access;
use super::command::Command;
use super::role::Role;
use super::server::{Now, Server, millis};

/// What a client that listens to channels may send in RESP2.
const LISTENING: [&str; 4] = ["ping", "quit", "subscribe", "unsubscribe"];

const MISCONF: &str = "-MISCONF Redis is configured to save RDB snapshots, but it's currently \
    unable to persist to disk. Commands that may modify the data set are disabled, because this \
    instance is configured to report errors during writes if RDB snapshotting fails \
    (stop-writes-on-bgsave-error option). Please check the Redis logs for details about the RDB \
    error.";

impl Server {
    /// Why a command is refused, in the order in which Redis looks.
    pub(super) fn check(
        &mut self,
        client: &Client,
        command: &'static Command,
        words: &[Bytes],
        now: Now,
    ) -> Done {
        if command.needs_login() && self.needs_login(client) {
            return Err("-NOAUTH Authentication required.".into());
        }
        self.check_rights(client, command, words)?;
        let queued = client
            .transaction
            .as_ref()
            .filter(|_| command.name == "exec");
        let queued = queued.map_or(&[][..], |queued| &queued.commands);
        let is_sentinel = self.watched.is_some();
        let queued = queued.iter().filter_map(|words| {
            let command = Command::find(words, is_sentinel).ok()?;
            Some((command, words))
        });
        let queued: Vec<_> = queued.collect();
        let any =
            |is: fn(&Command) -> bool| is(command) || queued.iter().any(|(command, _)| is(command));
        let all =
            |is: fn(&Command) -> bool| is(command) && queued.iter().all(|(command, _)| is(command));
        let writes = any(Command::writes);
        if let Some(view) = &self.cluster {
            let of_queued = queued
                .iter()
                .flat_map(|(command, words)| command.keys(words));
            let keys = command.keys(words).iter().chain(of_queued);
            let access = Access::new(client, writes);
            let millis = millis(now);
            let keyspace = self.databases.first();
            let is_there = |key: &[u8]| {
                keyspace.is_some_and(|own| own.get(key).is_some() && !own.is_due(key, millis))
            };
            view.redirect(keys.map(AsRef::as_ref), access, is_there)?;
        }
        let is_collected =
            client.transaction.is_some() && !["exec", "discard", "quit"].contains(&command.name);
        if !self.evict() && (any(Command::grows) || is_collected) {
            return Err("-OOM command not allowed when used memory > 'maxmemory'.".into());
        }
        if self.conditions.is_disk_failing && (writes || command.name == "ping") {
            return Err(MISCONF.into());
        }
        if self.conditions.lacks_replicas && writes && self.is_primary() {
            return Err("-NOREPLICAS Not enough good replicas to write.".into());
        }
        if writes && !self.is_primary() {
            return Err("-READONLY You can't write against a read only replica.".into());
        }
        let is_listening = !client.channels.is_empty() && !client.is_resp3;
        if is_listening && !LISTENING.contains(&command.name) {
            let only = "only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed \
                        in this context";
            return Err(format!("Can't execute '{}': {only}", command.name).into());
        }
        let is_cut_off = matches!(self.role, Role::Replica { is_linked, .. } if !is_linked);
        if is_cut_off && !self.config.serves_stale && !all(Command::is_answered_when_stale) {
            let why = "-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to \
                       'no'.";
            return Err(why.into());
        }
        if self.conditions.is_loading && !all(Command::is_answered_while_loading) {
            return Err("-LOADING Redis is loading the dataset in memory".into());
        }
        if self.conditions.is_busy && !command.is_answered_while_busy() {
            let why = "-BUSY Redis is busy running a script. You can only call SCRIPT KILL or \
                       SHUTDOWN NOSAVE.";
            return Err(why.into());
        }
        Ok(())
    }

    pub(super) fn check_rights(&self, client: &Client, command: &Command, words: &[Bytes]) -> Done {
        // Logging in needs no right.
        let Some(user) = self
            .users
            .get(&client.user)
            .filter(|_| command.needs_login())
        else {
            return Ok(());
        };
        if !user.may_run(command.name) {
            let why = "-NOPERM this user has no permissions to run the";
            return Err(format!("{why} '{}' command", command.name).into());
        }
        if !command.keys(words).iter().all(|key| user.may_touch(key)) {
            let why = "-NOPERM this user has no permissions to access one of the keys used as \
                       arguments";
            return Err(why.into());
        }
        Ok(())
    }
}
