//! What is asked of a server before it is used, and once a second from then on: whether it is a
//! primary by itself, and what time it has.
//!
//! `HELLO` needs no right and tells the role. A server older than Redis 6 does not know it;
//! that one is found out by the errors that it answers.

use std::io;
use std::sync::Arc;

use redis::{ErrorKind, RedisError, ServerErrorKind, Value};
use thiserror::Error;
use tokio::time::Instant;
use weir_limit::time::{Clock, Timestamp};

use super::connection::Connection;
use super::gcra;
use super::resp::Request;
use crate::{ClockOffset, DecisionClock, Observer, StoreError};

/// How many keys are looked up in a Cluster's node: one that serves half of all slots refuses
/// at least one of them, but for one time in 2^64.
const SLOT_SAMPLES: usize = 64;

/// Errors of a Cluster's nodes about keys of other nodes.
const REDIRECTIONS: [ServerErrorKind; 4] = [
    ServerErrorKind::Moved,
    ServerErrorKind::Ask,
    ServerErrorKind::CrossSlot,
    ServerErrorKind::ClusterDown,
];

/// Checks whether the server can be used. A connection that broke is an error as well.
pub(super) async fn check(
    connection: &Connection,
    clock: &DecisionClock,
    observer: &dyn Observer,
    expected: ExpectedServer<'_>,
) -> Result<(), Arc<RedisError>> {
    let hello = introduce(connection, clock, observer).await?;
    match expected {
        ExpectedServer::Alone { prefix } if hello.as_ref().is_none_or(|mode| mode == "cluster") => {
            look_up_samples(connection, prefix).await
        }
        ExpectedServer::Node if hello.as_ref().is_some_and(|mode| mode != "cluster") => {
            Err(wrong_server(
                "the server is not a node of a Redis Cluster: name it in `store.redis.url`",
            ))
        }
        ExpectedServer::Alone { .. } | ExpectedServer::Node => Ok(()),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExpectedServer<'p> {
    /// A primary that holds all keys, which begin with `prefix`.
    Alone { prefix: &'p str },
    /// A primary of a Cluster.
    Node,
}

/// The same of a server that was found to be usable before: it may have become a replica, and a
/// clock may have been set.
pub(super) async fn check_again(
    connection: &Connection,
    clock: &DecisionClock,
    observer: &dyn Observer,
) -> Result<(), Arc<RedisError>> {
    introduce(connection, clock, observer).await.map(drop)
}

pub(super) async fn is_primary(connection: &Connection) -> Result<bool, Arc<RedisError>> {
    let mut request = Request::default();
    gcra::hello(&mut request);
    let hello = connection.call(request).await?.iter().next();
    let hello = hello.transpose()?;
    let role = hello.and_then(|hello| field(&hello, "role"));
    Ok(role.as_deref() == Some("master"))
}

/// The offset of the decisions' clock, unless the server refuses to tell its time.
pub(super) async fn measure(
    connection: &Connection,
    clock: &DecisionClock,
) -> Result<Option<ClockOffset>, Arc<RedisError>> {
    let mut request = Request::default();
    gcra::time(&mut request);
    let sent = clock.now();
    let replies = connection.call(request).await?;
    let answered = clock.now();
    let time = replies.iter().value();
    let store = time.as_ref().and_then(moment);
    Ok(store.map(|store| ClockOffset::measured(sent, answered, store)))
}

/// Reads role and time of the server, and returns its mode if it has one.
async fn introduce(
    connection: &Connection,
    clock: &DecisionClock,
    observer: &dyn Observer,
) -> Result<Option<String>, Arc<RedisError>> {
    let mut request = Request::default();
    gcra::hello(&mut request);
    gcra::time(&mut request);
    let (sent, began) = (clock.local_now(), Instant::now());
    let replies = connection.call(request).await?;
    let (answered, took) = (clock.local_now(), began.elapsed());
    let mut replies = replies.iter();
    // An error says that the server does not know the command.
    let hello = replies.next().and_then(Result::ok);
    let told = |name| hello.as_ref().and_then(|hello| field(hello, name));
    refuse_unless_primary(told("mode").as_deref(), told("role").as_deref())?;
    match replies.next() {
        Some(Ok(time)) => {
            let store = moment(&time).ok_or_else(|| wrong_server("TIME is answered by no time"))?;
            let offset = ClockOffset::measured(sent, answered, store);
            tell_of_step(observer, clock.measured(began, took, store));
            if clock.is_reference() {
                observer.clock_measured(None, Ok(offset));
            }
            if let Some(node) = clock.node() {
                observer.clock_measured(Some(node), Ok(offset));
            }
            if !clock.follows_store() {
                refuse_wrong_clock(offset)?;
            }
        }
        Some(Err(error)) if is_refused_command(&error) => {
            tell_of_step(observer, clock.unknown());
            if clock.is_reference() {
                observer.clock_measured(None, Err(&error));
            }
        }
        Some(Err(error)) => return Err(Arc::new(error)),
        None => return Err(wrong_server("HELLO is answered by no reply")),
    }
    Ok(told("mode"))
}

fn tell_of_step(observer: &dyn Observer, stepped: Option<f64>) {
    if let Some(seconds) = stepped {
        observer.clock_stepped(seconds);
    }
}

fn refuse_unless_primary(mode: Option<&str>, role: Option<&str>) -> Result<(), Arc<RedisError>> {
    if mode == Some("sentinel") {
        return Err(wrong_server(
            "the server is a Sentinel: name it by `sentinel.nodes`, or name the primary",
        ));
    }
    if matches!(role, Some("replica" | "slave")) {
        return Err(wrong_server("the server is a replica, and not the primary"));
    }
    Ok(())
}

fn refuse_wrong_clock(offset: ClockOffset) -> Result<(), Arc<RedisError>> {
    if !offset.is_beyond_bound() {
        return Ok(());
    }
    Err(wrong_server(format!(
        "this gateway's clock is {offset}, which is too much to share buckets"
    )))
}

/// Reads keys of many slots: the nodes of a Cluster refuse those that they do not serve.
async fn look_up_samples(connection: &Connection, prefix: &str) -> Result<(), Arc<RedisError>> {
    let mut request = Request::default();
    for number in 0..SLOT_SAMPLES {
        let key = format!("{prefix}:probe:{number}");
        gcra::read(&mut request, key.as_bytes());
    }
    let replies = connection.call(request).await?;
    match replies.values().map_err(|error| redirection(&error)) {
        Err(Some(why)) => Err(why),
        Ok(_) | Err(None) => Ok(()),
    }
}

/// Why a server with this error cannot be used; none for other errors.
pub(super) fn redirection(error: &RedisError) -> Option<Arc<RedisError>> {
    let redirects = REDIRECTIONS.map(ErrorKind::Server).contains(&error.kind());
    redirects.then(|| {
        wrong_server(format!(
            "the server is a node of a Redis Cluster: name its nodes in `store.redis.cluster`, or a \
             primary that holds all keys in `store.redis.url` ({error})"
        ))
    })
}

/// Whether the server refuses a command as such, for want of a right or because it does not know
/// it.
pub(super) fn is_refused_command(error: &RedisError) -> bool {
    refused_command(error).is_some()
}

/// The rights that every limit needs. Without one of them the store cannot be used at all.
const RIGHTS_OF_ALL: [&str; 2] = ["bitfield", "pexpire"];

/// Whether the server refuses a command that only some limits need.
pub(super) fn is_right_of_some(error: &RedisError) -> bool {
    refused_command(error).is_some_and(|name| !RIGHTS_OF_ALL.contains(&&*name))
}

/// Whether a key holds another type than the command is for, which concerns the limit that is
/// counted there, and no other.
pub(super) fn is_wrong_type(error: &RedisError) -> bool {
    error.code() == Some("WRONGTYPE")
}

/// What a server replies, whose advice is not that of Weir.
#[derive(Debug, Error)]
#[error("Redis says \"{0}\"")]
struct ErrorReply(RedisError);

/// The failure of a call by the error of one of its commands.
pub(super) fn command_error(error: RedisError) -> StoreError {
    let (is_right, is_type) = (is_right_of_some(&error), is_wrong_type(&error));
    let is_reply = error.code().is_some();
    let source: Box<dyn std::error::Error + Send + Sync> = match is_reply {
        true => Box::new(ErrorReply(error)),
        false => Box::new(error),
    };
    match (is_right, is_type) {
        (true, _) => StoreError::Forbidden(source),
        (_, true) => StoreError::WrongType(source),
        _ => StoreError::Failed(source),
    }
}

/// The name of a command that the server refuses as such.
pub(super) fn refused_command(error: &RedisError) -> Option<String> {
    let text = error.to_string();
    let (_, rest) = ["to run the '", "unknown command '", "unknown command `"]
        .iter()
        .find_map(|start| text.split_once(start))?;
    let (name, _) = rest.split_once(['\'', '`'])?;
    Some(name.to_ascii_lowercase())
}

pub(super) fn wrong_server(
    why: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> Arc<RedisError> {
    Arc::new(io::Error::new(io::ErrorKind::Unsupported, why).into())
}

/// A field of the flat list that `HELLO` answers.
fn field(hello: &Value, name: &str) -> Option<String> {
    let Value::Array(flat) = hello else {
        return None;
    };
    let mut names = flat.iter().step_by(2);
    let at = names.position(|field| text(field) == Some(name))?;
    text(flat.get(2 * at + 1)?).map(str::to_owned)
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

/// The reply of `TIME`: seconds and microseconds.
fn moment(time: &Value) -> Option<Timestamp> {
    let Value::Array(parts) = time else {
        return None;
    };
    let [seconds, micros] = parts.as_slice() else {
        return None;
    };
    let number = |part| text(part)?.parse::<u64>().ok();
    let micros = number(seconds)?
        .checked_mul(1_000_000)?
        .checked_add(number(micros)?)?;
    Some(Timestamp::from_nanos(micros.saturating_mul(1_000)))
}

#[cfg(test)]
mod tests {
    use super::super::resp::Replies;
    use super::*;

    fn error(text: &str) -> RedisError {
        let replies = Replies::new(format!("-{text}\r\n").into_bytes());
        replies.values().unwrap_err()
    }

    #[test]
    fn a_refused_command_is_named_whatever_server_refuses_it() {
        for (text, name) in [
            (
                "NOPERM User weir has no permissions to run the 'hincrby' command",
                "hincrby",
            ),
            (
                "NOPERM this user has no permissions to run the 'zadd' command",
                "zadd",
            ),
            (
                "ERR unknown command 'TIME', with args beginning with:",
                "time",
            ),
            (
                "ERR unknown command `ZPOPMAX`, with args beginning with:",
                "zpopmax",
            ),
            (
                "EXECABORT Transaction discarded because of: NOPERM User weir has no permissions to \
                 run the 'exec' command",
                "exec",
            ),
        ] {
            assert_eq!(refused_command(&error(text)).as_deref(), Some(name));
        }
        for text in [
            "NOPERM No permissions to access a key",
            "OOM command not allowed when used memory > 'maxmemory'.",
            "WRONGTYPE Operation against a key holding the wrong kind of value",
        ] {
            assert_eq!(refused_command(&error(text)), None);
        }
    }

    #[test]
    fn only_what_a_cluster_answers_is_a_redirection() {
        for text in [
            "MOVED 3999 127.0.0.1:6381",
            "ASK 3999 127.0.0.1:6381",
            "CROSSSLOT Keys in request don't hash to the same slot",
            "CLUSTERDOWN Hash slot not served",
        ] {
            let why = redirection(&error(text)).unwrap().to_string();
            let detail = text.split_once(' ').unwrap().1;
            assert!(why.contains("Cluster") && why.contains(detail), "{why}");
        }
        assert!(redirection(&error("OOM no memory")).is_none());
    }

    #[test]
    fn a_time_is_read_to_the_microsecond_and_nothing_else_is_one() {
        let time = |reply: &str| {
            let replies = Replies::new(reply.as_bytes().to_vec());
            moment(&replies.iter().value().unwrap())
        };
        let read = time("*2\r\n$10\r\n1750000000\r\n$3\r\n042\r\n");
        let expected = Timestamp::from_nanos(1_750_000_000_000_042_000);
        assert_eq!(read, Some(expected));
        for strange in [
            ":1\r\n",
            "*0\r\n",
            "*2\r\n:1\r\n:2\r\n",
            "*1\r\n$1\r\n1\r\n",
        ] {
            assert_eq!(time(strange), None, "{strange}");
        }
    }
}
