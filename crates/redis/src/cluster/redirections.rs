//! The answers of a node of a Cluster about keys that are with another, and how what it did not do
//! is asked again there.
//!
//! A redirected command was not executed, so to repeat it takes nothing twice. Commands between
//! `MULTI` and `EXEC` stand or fall together: one that is redirected aborts them all.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use super::super::endpoint::HostPort;
use super::super::resp::{Replies, Request, split_first, value};
use super::super::server_error::is_refused_command;
use super::slots::parse_address;

const MULTI: &[u8] = b"*1\r\n$5\r\nMULTI\r\n";
const EXEC: &[u8] = b"*1\r\n$4\r\nEXEC\r\n";

/// A `MOVED` or `ASK` reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Redirection {
    pub(super) slot: u16,
    pub(super) to: HostPort,
    /// The slot is on its way there: this key is there already, but others are not.
    pub(super) asking: bool,
}

/// Commands that are executed together or not at all, and their replies.
#[derive(Debug)]
pub(super) struct Unit<'r> {
    request: &'r [u8],
    commands: usize,
    replies: &'r [u8],
    pub(super) redirection: Option<Redirection>,
}

/// The units of a request to the node at `asked`, and its replies to them.
pub(super) fn units<'r>(
    request: &'r Request,
    replies: &'r Replies,
    asked: &HostPort,
) -> Option<Vec<Unit<'r>>> {
    let (mut request, mut replies) = (request.as_bytes(), replies.as_bytes());
    let mut units = Vec::new();
    while !request.is_empty() {
        units.push(Unit::split(&mut request, &mut replies, asked)?);
    }
    Some(units)
}

/// The addresses that redirections name, each once.
pub(super) fn targets(units: &[Unit<'_>]) -> Vec<HostPort> {
    let mut targets = Vec::new();
    for redirection in units.iter().filter_map(|unit| unit.redirection.as_ref()) {
        if !targets.contains(&redirection.to) {
            targets.push(redirection.to.clone());
        }
    }
    targets
}

/// The commands to repeat at this address.
pub(super) fn repetition(units: &[Unit<'_>], to: &HostPort) -> Request {
    let mut request = Request::default();
    for unit in units.iter().filter(|unit| unit.is_redirected_to(to)) {
        if unit.is_asking() {
            request.command(1, "ASKING");
        }
        request.commands(unit.commands, unit.request);
    }
    request
}

/// Puts the replies to a repetition in the place of redirections. What the other node failed to do
/// stays redirected, and its error is returned. A refused command is an answer.
pub(super) fn replace<'r>(
    units: &mut [Unit<'r>],
    to: &HostPort,
    replies: &'r Replies,
) -> Option<RedisError> {
    let mut rest = replies.as_bytes();
    let mut failure = None;
    for unit in units.iter_mut().filter(|unit| unit.is_redirected_to(to)) {
        if unit.is_asking() {
            take(&mut rest, 1);
        }
        let Some(own) = take(&mut rest, unit.commands) else {
            break;
        };
        let error = errors(own).next();
        match error.filter(|error| !is_refused_command(error)) {
            None => unit.replies = own,
            error => failure = failure.or(error),
        }
    }
    failure
}

pub(super) fn joined_replies(units: &[Unit<'_>]) -> Replies {
    let replies: Vec<&[u8]> = units.iter().map(|unit| unit.replies).collect();
    Replies::new(replies.concat())
}

impl<'r> Unit<'r> {
    fn split(request: &mut &'r [u8], replies: &mut &'r [u8], asked: &HostPort) -> Option<Self> {
        let whole = *request;
        let mut commands = 0;
        let mut is_transaction = false;
        loop {
            let (command, rest) = split_first(request)?;
            *request = rest;
            commands += 1;
            is_transaction |= command == MULTI;
            if !is_transaction || command == EXEC {
                break;
            }
        }
        let replies = take(replies, commands)?;
        Some(Self {
            request: whole.get(..whole.len() - request.len())?,
            commands,
            replies,
            redirection: errors(replies).find_map(|error| parse(&error, asked)),
        })
    }

    fn is_redirected_to(&self, address: &HostPort) -> bool {
        let redirection = self.redirection.as_ref();
        redirection.is_some_and(|redirection| redirection.to == *address)
    }

    fn is_asking(&self) -> bool {
        let redirection = self.redirection.as_ref();
        redirection.is_some_and(|redirection| redirection.asking)
    }
}

/// Splits `count` replies off.
fn take<'r>(bytes: &mut &'r [u8], count: usize) -> Option<&'r [u8]> {
    let whole = *bytes;
    for _ in 0..count {
        *bytes = split_first(bytes)?.1;
    }
    whole.get(..whole.len() - bytes.len())
}

fn errors(mut replies: &[u8]) -> impl Iterator<Item = RedisError> {
    std::iter::from_fn(move || {
        while let Some((reply, rest)) = split_first(replies) {
            replies = rest;
            if reply.starts_with(b"-") {
                return value(reply).err();
            }
        }
        None
    })
}

fn parse(error: &RedisError, asked: &HostPort) -> Option<Redirection> {
    let (to, slot) = error.redirect_node()?;
    Some(Redirection {
        slot,
        to: parse_address(to, asked)?,
        asking: error.kind() == ErrorKind::Server(ServerErrorKind::Ask),
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::{gcra, window};
    use super::*;

    fn here() -> HostPort {
        HostPort {
            host: "10.0.0.1".to_owned(),
            port: 7000,
        }
    }

    /// A request and its replies.
    fn exchange(fill: impl FnOnce(&mut Request), replies: &str) -> (Request, Replies) {
        let mut request = Request::default();
        fill(&mut request);
        let replies = replies.replace('\n', "\r\n");
        (request, Replies::new(replies.into_bytes()))
    }

    fn text(request: Request) -> String {
        let commands = Replies::new(request.into_bytes()).values().unwrap();
        let line = |command| {
            let words: Vec<String> = redis::from_redis_value(command).unwrap();
            words.join(" ")
        };
        commands
            .into_iter()
            .map(line)
            .collect::<Vec<_>>()
            .join("; ")
    }

    #[test]
    fn what_is_not_redirected_is_not_repeated() {
        let (request, replies) = exchange(
            |request| {
                gcra::delete(request, b"a");
                gcra::delete(request, b"b");
            },
            ":1\n-CLUSTERDOWN no\n",
        );
        let units = units(&request, &replies, &here()).unwrap();
        assert!(targets(&units).is_empty());
    }

    #[test]
    fn each_redirected_command_is_repeated_at_the_node_that_is_named() {
        let fill = |request: &mut Request| {
            for key in [b"a", b"b", b"c", b"d"] {
                gcra::delete(request, key);
            }
        };
        let (request, replies) = exchange(
            fill,
            "-MOVED 1 10.0.0.2:7000\n:7\n-ASK 2 10.0.0.3:7000\n-MOVED 3 :7002\n",
        );
        let mut found = units(&request, &replies, &here()).unwrap();
        let to = targets(&found);
        let said = |to: &HostPort| (to.to_string(), text(repetition(&found, to)));
        assert_eq!(
            to.iter().map(said).collect::<Vec<_>>(),
            [
                ("10.0.0.2:7000", "DEL a"),
                ("10.0.0.3:7000", "ASKING; DEL c"),
                ("10.0.0.1:7002", "DEL d"),
            ]
            .map(|(to, commands)| (to.to_owned(), commands.to_owned()))
        );
        let answers = [":4\r\n", "+OK\r\n:5\r\n", "-LOADING not yet\r\n"];
        let answers = answers.map(|text| Replies::new(text.as_bytes().to_vec()));
        let failures: Vec<_> = to
            .iter()
            .zip(&answers)
            .map(|(to, answer)| replace(&mut found, to, answer))
            .collect();
        assert!(failures[..2].iter().all(Option::is_none));
        assert!(
            failures[2]
                .as_ref()
                .unwrap()
                .to_string()
                .contains("not yet")
        );
        let whole = joined_replies(&found);
        let numbers: Vec<_> = whole.iter().map(Result::ok).collect();
        let int = |number| Some(redis::Value::Int(number));
        assert_eq!(numbers, [int(4), int(7), int(5), None]);
    }

    #[test]
    fn a_transaction_is_repeated_as_a_whole() {
        let fill = |request: &mut Request| {
            gcra::delete(request, b"a");
            window::at_once(request, |request| {
                gcra::delete(request, b"b");
                gcra::delete(request, b"b");
            });
        };
        for replies in [
            ":1\n+OK\n-ASK 2 10.0.0.3:7000\n-ASK 2 10.0.0.3:7000\n-EXECABORT no\n",
            ":1\n+OK\n+QUEUED\n+QUEUED\n-MOVED 2 10.0.0.3:7000\n",
        ] {
            let (request, replies) = exchange(fill, replies);
            let mut found = units(&request, &replies, &here()).unwrap();
            let to = targets(&found);
            assert_eq!(to.len(), 1);
            let asking = found.iter().any(Unit::is_asking);
            let prefix = if asking { "ASKING; " } else { "" };
            let repeated = text(repetition(&found, &to[0]));
            assert_eq!(repeated, format!("{prefix}MULTI; DEL b; DEL b; EXEC"));
            let ok = if asking { "+OK\r\n" } else { "" };
            let answer = format!("{ok}+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n:1\r\n:1\r\n");
            let answer = Replies::new(answer.into_bytes());
            assert!(replace(&mut found, &to[0], &answer).is_none());
            assert_eq!(joined_replies(&found).values().unwrap().len(), 5);
        }
    }
}
