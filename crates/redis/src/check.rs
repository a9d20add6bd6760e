//! The questions to a server before it is used, and once a second from then on: whether it is a
//! primary by itself, and what time it has.
//!
//! `HELLO` needs no right and tells the role. A server older than Redis 6 does not know it;
//! that one is found out by the errors that it answers.

use std::io;
use std::sync::Arc;

use redis::{ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::time::Instant;
use weir_limit::time::{Clock, Timestamp};
use weir_store::{ClockOffset, DecisionClock, Observer};

use super::connection::Connection;
use super::gcra::{self, ReadBy};
use super::resp::Request;
use super::server_error::{closed_at, is_refused_command, verbatim, words};

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
    let introduced = introduce(connection, clock, observer).await;
    let Introduction { mode, role } = introduced.map_err(|error| closed_at("HELLO", error))?;
    if role.as_deref() == Some(ACTIVE_REPLICA) {
        observer.server_is_peculiar(
            "it is an active replica of KeyDB, which replication alone tells of what others count: \
             gateways on different replicas let more pass; let all of them use the same one",
        );
    }
    match expected {
        ExpectedServer::Alone { prefix } if mode.as_ref().is_none_or(|mode| mode == "cluster") => {
            look_up_samples(connection, prefix).await
        }
        ExpectedServer::Node if mode.as_ref().is_some_and(|mode| mode != "cluster") => {
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
    let hello = hello.transpose().map_err(verbatim)?;
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

/// The words of a server about itself, unless it is too old for them.
struct Introduction {
    mode: Option<String>,
    role: Option<String>,
}

/// The role of a KeyDB that takes writes, and replicates those of others.
const ACTIVE_REPLICA: &str = "active-replica";

/// Reads role and time of the server, and returns what it says of itself.
async fn introduce(
    connection: &Connection,
    clock: &DecisionClock,
    observer: &dyn Observer,
) -> Result<Introduction, Arc<RedisError>> {
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
                observer.clock_measured(None, Err(&*verbatim(error)));
            }
        }
        Some(Err(error)) => return Err(verbatim(error)),
        None => return Err(wrong_server("HELLO is answered by no reply")),
    }
    let (mode, role) = (told("mode"), told("role"));
    Ok(Introduction { mode, role })
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
        gcra::read(&mut request, key.as_bytes(), ReadBy::Bitfield);
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
             primary that holds all keys in `store.redis.url` ({})",
            words(error)
        ))
    })
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
    use super::super::server_error::tests::error;
    use super::*;

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
