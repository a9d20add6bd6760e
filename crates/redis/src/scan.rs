//! Lists keys by `SCAN`, which never holds the server up as `KEYS` does: one step looks at some
//! keys of one node. A Cluster's nodes are gone through in the order of their addresses.

use std::sync::Arc;

use redis::{RedisError, Value};
use weir_store::{KeyScan, ScanPosition, ScannedKeys, StoreError, StoreFuture};

use super::Redis;
use super::client::Nodes;
use super::node::Node;
use super::resp::Request;
use super::{lease_commands, window};

/// How many keys the server looks at in one step, of whatever prefix: some hundred microseconds.
const COUNT: u32 = 1000;

impl KeyScan for Redis {
    fn scan(&self, prefix: &str, from: ScanPosition) -> StoreFuture<ScannedKeys> {
        let mut whole = self.client.key(&"".into()).into_vec();
        let own = whole.len();
        whole.extend_from_slice(prefix.as_bytes());
        let nodes = self.nodes_from(&from.node);
        let client = Arc::clone(&self.client);
        StoreFuture::waiting(async move {
            let mut nodes = nodes?.into_iter();
            let Some((name, node)) = nodes.next() else {
                return Ok(ScannedKeys::default());
            };
            let session = node.session()?;
            // Another node has taken the place of one that is gone, and is begun with.
            let position = if name == from.node { from.position } else { 0 };
            let mut request = Request::default();
            request.command(6, "SCAN").int(position);
            request.word(b"MATCH").word(&pattern(&whole));
            request.word(b"COUNT").int(COUNT);
            let answer = client.send_checked(&session, request).await;
            session.record(answer.as_ref().err());
            let values = answer.map_err(|error| session.failure(error))?;
            let found = values.into_iter().next().and_then(parse);
            let Some((position, found)) = found else {
                let why = RedisError::from((
                    redis::ErrorKind::UnexpectedReturnType,
                    "SCAN is answered by no list",
                ));
                return Err(StoreError::Failed(Box::new(why)));
            };
            let next = match position {
                0 => nodes
                    .next()
                    .map(|(node, _)| ScanPosition { position, node }),
                position => Some(ScanPosition {
                    position,
                    node: name,
                }),
            };
            let keys = found
                .into_iter()
                .filter_map(|key| bucket_key(key.get(own..)?));
            let mut keys: Vec<String> = keys.collect();
            keys.sort_unstable();
            keys.dedup();
            Ok(ScannedKeys { keys, next })
        })
    }
}

impl Redis {
    /// The nodes from this one on, by their addresses; the only one has no name.
    fn nodes_from(&self, first: &str) -> Result<Vec<(String, Arc<Node>)>, StoreError> {
        let mut nodes: Vec<(String, Arc<Node>)> = match self.client.nodes() {
            Nodes::One(node) => vec![(String::new(), Arc::clone(node))],
            Nodes::Cluster(cluster) => {
                cluster.check_known()?;
                let name = |node: &Arc<Node>| Some(node.member()?.name.to_string());
                let topology = cluster.topology();
                let nodes = topology.nodes();
                nodes
                    .filter_map(|node| Some((name(node)?, Arc::clone(node))))
                    .collect()
            }
        };
        nodes.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        nodes.retain(|(name, _)| **name >= *first);
        Ok(nodes)
    }
}

/// The pattern of the keys that begin so, and of no others.
fn pattern(prefix: &[u8]) -> Vec<u8> {
    let mut pattern = Vec::with_capacity(prefix.len() + 1);
    for byte in prefix {
        if b"*?[]^\\".contains(byte) {
            pattern.push(b'\\');
        }
        pattern.push(*byte);
    }
    pattern.push(b'*');
    pattern
}

/// The position of the next step, and the keys.
fn parse(reply: Value) -> Option<(u64, Vec<Vec<u8>>)> {
    let (position, keys): (String, Vec<Vec<u8>>) = redis::from_redis_value(reply).ok()?;
    Some((position.parse().ok()?, keys))
}

/// The key without what tells algorithms apart.
fn bucket_key(key: &[u8]) -> Option<String> {
    let key = str::from_utf8(key).ok()?;
    let mut marks = window::MARKS.into_iter().chain([lease_commands::MARK]);
    let unmarked = marks.find_map(|mark| key.strip_suffix(mark));
    Some(unmarked.unwrap_or(key).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_matches_itself_whatever_it_has() {
        assert_eq!(pattern(b"weir:L:"), b"weir:L:*");
        assert_eq!(pattern(b"w*[a]?\\:"), b"w\\*\\[a\\]\\?\\\\:*");
    }

    #[test]
    fn keys_are_told_without_the_marks_of_algorithms() {
        for key in ["L:a", "L:a%f", "L:a%w", "L:a%l", "L:a%i"] {
            assert_eq!(bucket_key(key.as_bytes()).as_deref(), Some("L:a"));
        }
        assert_eq!(bucket_key(b"L:a%3A").as_deref(), Some("L:a%3A"));
        assert_eq!(bucket_key(b"\xff"), None);
    }
}
