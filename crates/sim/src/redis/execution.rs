//! Which command the words of a client are, what becomes of it, and how it is executed.

use bytes::Bytes;

use super::call::{Call, Done, Propagation};
use super::client::Client;
use super::command::{Command, Run};
use super::effect::Change;
use super::protocol::Reply;
use super::server::{Now, Server, millis};

impl Server {
    pub(super) fn process(
        &mut self,
        client: &mut Client,
        words: Vec<Bytes>,
        now: Now,
        reply: &mut Reply,
    ) {
        let is_asking = words
            .first()
            .is_some_and(|name| name.eq_ignore_ascii_case(b"asking"));
        match Command::find(&words, self.watched.is_some()) {
            Ok(command) => match self.check(client, command, &words, now) {
                Ok(()) => self.execute_or_queue(client, command, words, now, reply),
                Err(failure) => reject(client, Some(command), &failure.0, reply),
            },
            Err(why) => reject(client, None, &why, reply),
        }
        if client.transaction.is_none() && !is_asking {
            client.is_asking = false;
        }
    }

    fn execute_or_queue(
        &mut self,
        client: &mut Client,
        command: &'static Command,
        words: Vec<Bytes>,
        now: Now,
        reply: &mut Reply,
    ) {
        match &mut client.transaction {
            Some(queued) if command.is_queued() => {
                if !queued.is_aborted {
                    queued.commands.push(words);
                }
                reply.simple("QUEUED");
            }
            _ => {
                self.execute(client, command, &words, now, reply);
                self.finish_effect();
            }
        }
    }

    /// Executes a command of a transaction, unless it is forbidden by now.
    pub(super) fn execute_queued(
        &mut self,
        client: &mut Client,
        words: &[Bytes],
        now: Now,
        reply: &mut Reply,
    ) {
        let command = match Command::find(words, self.watched.is_some()) {
            Ok(command) => command,
            Err(why) => return reply.error(&why),
        };
        let why = match self.check_rights(client, command, words) {
            Ok(()) => return self.execute(client, command, words, now, reply),
            Err(failure) if failure.0.ends_with(b"arguments") => {
                "no permission to touch the specified keys"
            }
            Err(_) => "no permission to execute the command or subcommand",
        };
        let error = format!(
            "-NOPERM ACLs rules changed between the moment the transaction was accumulated and the \
             EXEC call. This command is no longer allowed for the following reason: {why}"
        );
        reply.error(error.as_bytes());
    }

    fn execute(
        &mut self,
        client: &mut Client,
        command: &'static Command,
        words: &[Bytes],
        now: Now,
        reply: &mut Reply,
    ) {
        let done = match command.run {
            Run::Server(run) => run(self, client, words, now, reply),
            Run::Keys(run) => {
                let now = millis(now);
                self.run_on_keys(client.database, command, run, (words, now), reply, false)
            }
        };
        if let Err(failure) = done {
            reply.error(&failure.0);
        }
    }

    pub(super) fn run_on_keys(
        &mut self,
        database: usize,
        command: &'static Command,
        run: fn(&mut Call<'_>) -> Done,
        (words, now): (&[Bytes], i64),
        reply: &mut Reply,
        is_applied: bool,
    ) -> Done {
        let keys = command.keys(words);
        let is_primary = self.is_primary();
        let Some(keyspace) = self.databases.get_mut(database) else {
            return Ok(());
        };
        if is_primary {
            for key in keys {
                if keyspace.is_due(key, now) {
                    keyspace.remove(key);
                    self.changes.push(Change::delete(database, key.clone()));
                }
            }
        }
        let mut call = Call {
            words,
            keys: keyspace,
            now,
            hides_due: !is_applied,
            is_applied,
            reply,
            propagation: Propagation::Nothing,
        };
        let done = run(&mut call);
        let propagation = call.propagation;
        for key in keys {
            keyspace.settle(key);
        }
        match propagation {
            Propagation::Nothing => {}
            Propagation::Same => self.propagate(database, words.to_vec()),
            Propagation::Instead(words) => self.propagate(database, words),
        }
        done
    }
}

/// A refused command spoils its transaction, and a refused `EXEC` ends it.
fn reject(client: &mut Client, command: Option<&Command>, why: &[u8], reply: &mut Reply) {
    match command {
        Some(command) if command.name == "exec" && !is_redirection(why) => {
            client.transaction = None;
            let why = why.strip_prefix(b"-").unwrap_or(why);
            let start = b"-EXECABORT Transaction discarded because of: ";
            reply.error(&[start.as_slice(), why].concat());
        }
        Some(command) if command.name == "exec" => {
            client.transaction = None;
            reply.error(why);
        }
        _ => {
            if let Some(queued) = &mut client.transaction {
                queued.is_aborted = true;
            }
            reply.error(why);
        }
    }
}

fn is_redirection(why: &[u8]) -> bool {
    let codes: [&[u8]; 5] = [
        b"-MOVED",
        b"-ASK",
        b"-TRYAGAIN",
        b"-CLUSTERDOWN",
        b"-CROSSSLOT",
    ];
    codes.iter().any(|code| why.starts_with(code))
}
