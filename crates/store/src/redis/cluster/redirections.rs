//! What a node of a Cluster answers about keys that are with another, and how what it did not do is
//! asked again there.
//!
//! A redirected command was not executed, so to repeat it takes nothing twice. Commands between
//! `MULTI` and `EXEC` stand or fall together: one that is redirected aborts them all.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use super::super::check::is_refused_command;
use super::super::endpoint::HostPort;
use super::super::resp::{Replies, Request, split_first, value};
use super::slots::parse_address;

const MULTI: &[u8] = b"*1\r\n$5\r\nMULTI\r\n";
const EXEC: &[u8] = b"*1\r\n$4\r\nEXEC\r\n";

/// Where another node is said to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Redirection {
    pub(super) slot: u16,
    pub(super) to: HostPort,
    /// The slot is on its way there: this key is there already, but others are not.
    pub(super) asking: bool,
}

/// A request and its replies, of which some are redirections.
#[derive(Debug)]
pub(super) struct Redirected<'r> {
    units: Vec<Unit<'r>>,
}

/// Commands that are executed together or not at all, and their replies.
#[derive(Debug)]
struct Unit<'r> {
    request: &'r [u8],
    commands: usize,
    replies: &'r [u8],
    redirection: Option<Redirection>,
}

/// Commands for one node.
#[derive(Debug)]
pub(super) struct Repetition {
    pub(super) to: HostPort,
    pub(super) request: Request,
    /// The units, by their places.
    units: Vec<usize>,
}

impl<'r> Redirected<'r> {
    /// What the node at `asked` redirects in its replies to a request that is kept with them; none
    /// when that is nothing.
    pub(super) fn find(replies: &'r Replies, asked: &HostPort) -> Option<Self> {
        let (mut request, mut rest) = (replies.request(), replies.as_bytes());
        let mut units = Vec::new();
        while !request.is_empty() {
            let unit = Unit::split(&mut request, &mut rest, asked)?;
            units.push(unit);
        }
        let redirects = units.iter().any(|unit| unit.redirection.is_some());
        redirects.then_some(Self { units })
    }

    pub(super) fn redirections(&self) -> impl Iterator<Item = &Redirection> {
        self.units
            .iter()
            .filter_map(|unit| unit.redirection.as_ref())
    }

    /// What is to be asked again, by node.
    pub(super) fn repetitions(&self) -> Vec<Repetition> {
        let mut repetitions = Vec::<Repetition>::new();
        for (place, unit) in self.units.iter().enumerate() {
            let Some(redirection) = &unit.redirection else {
                continue;
            };
            let known = |repetition: &Repetition| repetition.to == redirection.to;
            let at = repetitions.iter().position(known).unwrap_or_else(|| {
                repetitions.push(Repetition {
                    to: redirection.to.clone(),
                    request: Request::default(),
                    units: Vec::new(),
                });
                repetitions.len() - 1
            });
            if let Some(repetition) = repetitions.get_mut(at) {
                repetition.add(place, unit, redirection.asking);
            }
        }
        repetitions
    }

    /// Puts what a repetition brought in the place of redirections. What the other node failed to
    /// do stays redirected, and its error is returned. A refused command is an answer.
    pub(super) fn replace(&mut self, units: &[usize], answer: &'r Replies) -> Option<RedisError> {
        let mut rest = answer.as_bytes();
        let mut failure = None;
        for unit in units {
            let Some(unit) = self.units.get_mut(*unit) else {
                continue;
            };
            if unit.is_asking() {
                // The reply to `ASKING`.
                rest = split_first(rest).map_or(rest, |(_, rest)| rest);
            }
            let Some(own) = take(&mut rest, unit.commands) else {
                break;
            };
            match first_error(own).filter(|error| !is_refused_command(error)) {
                None => unit.replies = own,
                error => failure = failure.or(error),
            }
        }
        failure
    }

    /// All replies in the order of the commands.
    pub(super) fn into_replies(self) -> Replies {
        let replies: Vec<&[u8]> = self.units.iter().map(|unit| unit.replies).collect();
        Replies::new(replies.concat())
    }
}

impl Repetition {
    fn add(&mut self, place: usize, unit: &Unit<'_>, asking: bool) {
        if asking {
            self.request.command(1, "ASKING");
        }
        self.request.commands(unit.commands, unit.request);
        self.units.push(place);
    }

    /// The request, and which units it repeats.
    pub(super) fn into_parts(self) -> (Request, Vec<usize>) {
        (self.request, self.units)
    }
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
            redirection: redirection(replies, asked),
        })
    }

    fn is_asking(&self) -> bool {
        let redirection = self.redirection.as_ref();
        redirection.is_some_and(|redirection| redirection.asking)
    }
}

/// Cuts so many replies off.
fn take<'r>(bytes: &mut &'r [u8], count: usize) -> Option<&'r [u8]> {
    let whole = *bytes;
    for _ in 0..count {
        *bytes = split_first(bytes)?.1;
    }
    whole.get(..whole.len() - bytes.len())
}

/// The first redirection among replies.
fn redirection(replies: &[u8], asked: &HostPort) -> Option<Redirection> {
    errors(replies).find_map(|error| parse(&error, asked))
}

fn first_error(replies: &[u8]) -> Option<RedisError> {
    errors(replies).next()
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

    /// A request and its replies as they are kept together.
    fn kept(fill: impl FnOnce(&mut Request), replies: &str) -> Replies {
        let mut request = Request::default();
        fill(&mut request);
        let replies = replies.replace('\n', "\r\n");
        Replies::behind(request.into_bytes(), replies.as_bytes())
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
        let replies = kept(
            |request| {
                gcra::delete(request, b"a");
                gcra::delete(request, b"b");
            },
            ":1\n-CLUSTERDOWN no\n",
        );
        assert!(Redirected::find(&replies, &here()).is_none());
    }

    #[test]
    fn each_redirected_command_is_repeated_at_the_node_that_is_named() {
        let fill = |request: &mut Request| {
            for key in [b"a", b"b", b"c", b"d"] {
                gcra::delete(request, key);
            }
        };
        let replies = kept(
            fill,
            "-MOVED 1 10.0.0.2:7000\n:7\n-ASK 2 10.0.0.3:7000\n-MOVED 3 :7002\n",
        );
        let mut found = Redirected::find(&replies, &here()).unwrap();
        let repetitions = found.repetitions();
        let said: Vec<_> = repetitions
            .into_iter()
            .map(|repetition| {
                let to = repetition.to.to_string();
                let (request, units) = repetition.into_parts();
                (to, text(request), units)
            })
            .collect();
        assert_eq!(
            said,
            [
                ("10.0.0.2:7000".to_owned(), "DEL a".to_owned(), vec![0]),
                (
                    "10.0.0.3:7000".to_owned(),
                    "ASKING; DEL c".to_owned(),
                    vec![2]
                ),
                ("10.0.0.1:7002".to_owned(), "DEL d".to_owned(), vec![3]),
            ]
        );
        let (moved, asked, failing) = (
            Replies::new(b":4\r\n".to_vec()),
            Replies::new(b"+OK\r\n:5\r\n".to_vec()),
            Replies::new(b"-LOADING not yet\r\n".to_vec()),
        );
        assert!(found.replace(&[0], &moved).is_none());
        assert!(found.replace(&[2], &asked).is_none());
        let failure = found.replace(&[3], &failing).unwrap();
        assert!(failure.to_string().contains("not yet"));
        let whole = found.into_replies();
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
            let replies = kept(fill, replies);
            let mut found = Redirected::find(&replies, &here()).unwrap();
            let mut repetitions = found.repetitions();
            assert_eq!(repetitions.len(), 1);
            let (request, units) = repetitions.remove(0).into_parts();
            let asking = found.redirections().any(|redirection| redirection.asking);
            let prefix = if asking { "ASKING; " } else { "" };
            assert_eq!(text(request), format!("{prefix}MULTI; DEL b; DEL b; EXEC"));
            let ok = if asking { "+OK\r\n" } else { "" };
            let answer = format!("{ok}+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n:1\r\n:1\r\n");
            let answer = Replies::new(answer.into_bytes());
            assert!(found.replace(&units, &answer).is_none());
            assert_eq!(found.into_replies().values().unwrap().len(), 5);
        }
    }
}
