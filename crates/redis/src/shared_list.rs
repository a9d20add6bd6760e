//! Lists of texts beside the buckets: sorted sets, whose scores are the moments at which entries
//! end, in milliseconds since the Unix epoch.
//!
//! The score of one more member is the version of the list, which each change replaces by another
//! random one, so that a gateway asks for no more than that as long as nothing has changed, and
//! does not take a list that was lost and begun anew for the old one. It is below zero, where the
//! score of no entry is. A list is one key, so that everything about it is in one slot of a
//! Cluster, and changes at once.

use std::sync::Arc;

use redis::Value;
use weir_limit::BucketKey;
use weir_limit::time::Timestamp;
use weir_store::{ChangedList, SharedEntry, SharedLists, StoreError, StoreFuture};

use super::Redis;
use super::client::Key;
use super::resp::Request;
use super::window::at_once;

/// The member with the version. Entries are objects in JSON, and none is this.
const VERSION: &[u8] = b"#version";

/// The greatest integer that a score, which is a double, holds exactly.
const MAX_VERSION: u64 = 1 << 53;

impl SharedLists for Redis {
    fn change(
        &self,
        list: &str,
        add: Vec<SharedEntry>,
        remove: Vec<String>,
        now: Timestamp,
    ) -> StoreFuture<ChangedList> {
        let key = self.list_key(list);
        let version = rand::random_range(1..=MAX_VERSION);
        let fill = |request: &mut Request| change(request, &key, (&add, &remove), version, now);
        let removals = 1 + remove.len();
        self.call_node(&key, fill, move |replies| {
            let Value::Array(executed) = replies.last()? else {
                return None;
            };
            Some(ChangedList {
                before: parse_version(executed.first()?.clone())?,
                removed: removed(executed.get(1..)?, removals)?,
                after: version,
            })
        })
    }

    fn version(&self, list: &str) -> StoreFuture<u64> {
        let key = self.list_key(list);
        let fill = |request: &mut Request| get_version(request, &key);
        self.call_node(&key, fill, |replies| parse_version(replies.next()?))
    }

    fn entries(
        &self,
        list: &str,
        from: u64,
        skip: usize,
        count: usize,
    ) -> StoreFuture<Vec<SharedEntry>> {
        let key = self.list_key(list);
        let fill = |request: &mut Request| range(request, &key, from, skip, count);
        self.call_node(&key, fill, |replies| {
            let pairs: Vec<(Vec<u8>, f64)> = redis::from_redis_value(replies.next()?).ok()?;
            let entries = pairs.into_iter().map(|(text, score)| SharedEntry {
                until: end(score),
                text: String::from_utf8(text).unwrap_or_default(),
            });
            Some(entries.collect())
        })
    }
}

impl Redis {
    fn list_key(&self, list: &str) -> Key {
        let mut key = BucketKey::from(":list:");
        key.push_str(list);
        self.client.key(&key)
    }

    /// Asks the node that holds a key, and reads its replies.
    pub(super) fn call_node<T: Send + 'static>(
        &self,
        key: &[u8],
        fill: impl FnOnce(&mut Request),
        parse: impl FnOnce(&mut dyn Iterator<Item = Value>) -> Option<T> + Send + 'static,
    ) -> StoreFuture<T> {
        let requests = self.client.node_requests().and_then(|mut requests| {
            let index = requests.index_for(key)?;
            if let Some(node) = requests.get_mut(index) {
                fill(&mut node.request);
            }
            Ok(requests)
        });
        let requests = match requests {
            Ok(requests) => requests,
            Err(error) => return StoreFuture::failed(error),
        };
        let name = String::from_utf8_lossy(key).into_owned();
        self.client.tracked(move |client, awaited| {
            Ok(async move {
                let send = |_, session, request| {
                    let client = Arc::clone(&client);
                    async move { client.send_checked(&session, request).await }
                };
                let replies = client.each_node(requests.into_requests(), &awaited, send);
                let replies = replies.await.map_err(|error| error.about_key(&name))?;
                let parsed = parse(&mut replies.into_iter().flatten());
                // The store works, whatever others have written there.
                let foreign = StoreError::WrongType("it is not of Weir's form".into());
                parsed.ok_or_else(|| foreign.about_key(&name))
            })
        })
    }
}

fn get_version(request: &mut Request, key: &[u8]) {
    request.command(3, "ZSCORE").word(key).word(VERSION);
}

fn parse_version(score: Value) -> Option<u64> {
    let score: Option<String> = redis::from_redis_value(score).ok()?;
    match score {
        None => Some(0),
        Some(score) => score.strip_prefix('-')?.parse().ok(),
    }
}

fn change(
    request: &mut Request,
    key: &[u8],
    (add, remove): (&[SharedEntry], &[String]),
    version: u64,
    now: Timestamp,
) {
    at_once(request, |request| {
        get_version(request, key);
        let ended = request.command(4, "ZREMRANGEBYSCORE").word(key);
        ended.int(0).word(format!("({}", millis(now)).as_bytes());
        for text in remove {
            request.command(3, "ZREM").word(key).word(text.as_bytes());
        }
        for entry in add {
            let added = request.command(4, "ZADD").word(key);
            added.word(score(entry.until).as_bytes());
            added.word(entry.text.as_bytes());
        }
        let changed = request.command(4, "ZADD").word(key);
        changed.word(format!("-{version}").as_bytes()).word(VERSION);
    });
}

/// How many entries the first commands of a transaction have removed.
fn removed(executed: &[Value], removals: usize) -> Option<u64> {
    let counts = executed.iter().take(removals).map(|reply| match reply {
        Value::Int(count) => u64::try_from(*count).ok(),
        _ => None,
    });
    counts.sum()
}

fn range(request: &mut Request, key: &[u8], from: u64, skip: usize, count: usize) {
    let range = request.command(8, "ZRANGEBYSCORE").word(key);
    range.word(score(from).as_bytes()).word(b"+inf");
    range.word(b"WITHSCORES").word(b"LIMIT");
    range.int(skip).int(count);
}

/// The score of an entry that ends then; `+inf` for one that does not end.
fn score(until: u64) -> String {
    match until {
        u64::MAX => "+inf".to_owned(),
        until => until.to_string(),
    }
}

/// The end of an entry with this score, as others may write it too.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it saturates, so that an infinite score is that of an entry that does not end"
)]
const fn end(score: f64) -> u64 {
    score as u64
}

fn millis(now: Timestamp) -> u64 {
    now.since(Timestamp::default()).ceil_millis()
}

#[cfg(test)]
mod tests {
    use super::super::resp::text;
    use super::*;

    #[test]
    fn a_change_removes_what_has_ended_and_has_a_version() {
        let entry = |until, text: &str| SharedEntry {
            until,
            text: text.to_owned(),
        };
        let (add, remove) = ([entry(5000, "a"), entry(u64::MAX, "b")], ["c".to_owned()]);
        let now = Timestamp::from_nanos(2_000_000_000);
        insta::assert_snapshot!(text(|request| change(request, b"k", (&add, &remove), 7, now)), @r"
        MULTI
        ZSCORE k #version
        ZREMRANGEBYSCORE k 0 (2000
        ZREM k c
        ZADD k 5000 a
        ZADD k +inf b
        ZADD k -7 #version
        EXEC
        ");
        assert_eq!(
            text(|request| range(request, b"k", 2000, 7, 100)),
            "ZRANGEBYSCORE k 2000 +inf WITHSCORES LIMIT 7 100"
        );
    }
}
