//! A node's view of its Cluster, and what it answers about keys of other nodes.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use super::call::{Done, Failure};
use super::client::Client;
use super::protocol::Reply;

/// How many slots a Cluster has.
pub const SLOTS: u16 = 16_384;

/// What a node believes about its Cluster. Nodes may disagree, as gossip takes time.
#[derive(Clone, Debug)]
pub struct ClusterView {
    /// The node that has this view, by its index.
    pub myself: usize,
    /// All nodes that are known.
    pub nodes: Vec<ClusterNode>,
    /// The primary of each slot that has one.
    pub owners: BTreeMap<u16, usize>,
    /// Slots of this node that are on their way to another one.
    pub migrating: BTreeMap<u16, usize>,
    /// Slots of another node that are on their way to this one.
    pub importing: BTreeMap<u16, usize>,
    /// Whether the node refuses all keys, as a slot has no primary or a majority is out of reach.
    pub is_down: bool,
}

/// A node of a Cluster.
#[derive(Clone, Debug)]
pub struct ClusterNode {
    /// Forty hexadecimal digits.
    pub id: String,
    /// The address that clients are told.
    pub host: String,
    /// The port that clients are told.
    pub port: u16,
    /// The index of its primary, if it is a replica.
    pub primary: Option<usize>,
}

impl ClusterView {
    /// A view of these nodes in which none has any slot.
    pub fn new(myself: usize, nodes: Vec<ClusterNode>) -> Self {
        Self {
            myself,
            nodes,
            owners: BTreeMap::new(),
            migrating: BTreeMap::new(),
            importing: BTreeMap::new(),
            is_down: false,
        }
    }

    /// Gives slots to a node.
    pub fn assign(&mut self, slots: RangeInclusive<u16>, node: usize) {
        self.owners.extend(slots.map(|slot| (slot, node)));
    }

    /// Where a client is sent instead, or why it cannot be served, if it touches these keys.
    pub(super) fn redirect<'k>(
        &self,
        keys: impl Iterator<Item = &'k [u8]>,
        access: Access,
        is_there: impl Fn(&[u8]) -> bool,
    ) -> Done {
        let mut first: Option<(&[u8], u16)> = None;
        let (mut owner, mut open) = (self.myself, None);
        let (mut missing, mut existing, mut has_several) = (false, false, false);
        for key in keys {
            let slot = slot_of(key);
            match first {
                None => {
                    first = Some((key, slot));
                    let found = self.owners.get(&slot);
                    owner = *found.ok_or("-CLUSTERDOWN Hash slot not served")?;
                    open = match self.migrating.get(&slot) {
                        Some(to) if owner == self.myself => Some(Open::Leaving(*to)),
                        _ if self.importing.contains_key(&slot) => Some(Open::Arriving),
                        _ => None,
                    };
                }
                Some((own, _)) if own == key => {}
                Some((_, own)) if own == slot => has_several = true,
                Some(_) => {
                    return Err("-CROSSSLOT Keys in request don't hash to the same slot".into());
                }
            }
            if open.is_some() {
                let exists = is_there(key);
                existing |= exists;
                missing |= !exists;
            }
        }
        let Some((_, slot)) = first else {
            return Ok(());
        };
        if self.is_down {
            return Err("-CLUSTERDOWN The cluster is down".into());
        }
        let unstable = "-TRYAGAIN Multiple keys request during rehashing of slot";
        match open {
            Some(Open::Leaving(_)) if missing && existing => return Err(unstable.into()),
            Some(Open::Leaving(to)) if missing => return Err(self.redirection("ASK", slot, to)),
            Some(Open::Arriving) if access.is_asking => {
                return match has_several && missing {
                    true => Err(unstable.into()),
                    false => Ok(()),
                };
            }
            _ => {}
        }
        let primary = self.nodes.get(self.myself).and_then(|node| node.primary);
        let reads_replica = access.is_readonly && primary == Some(owner);
        match owner == self.myself || reads_replica {
            true => Ok(()),
            false => Err(self.redirection("MOVED", slot, owner)),
        }
    }

    fn redirection(&self, kind: &str, slot: u16, to: usize) -> Failure {
        let node = self.nodes.get(to);
        let (host, port) = node.map_or(("", 0), |node| (node.host.as_str(), node.port));
        format!("-{kind} {slot} {host}:{port}").into()
    }

    /// Replies to `CLUSTER SLOTS`.
    pub(super) fn slots(&self, reply: &mut Reply) {
        let mut ranges: Vec<(u16, u16, usize)> = Vec::new();
        for (&slot, &owner) in &self.owners {
            match ranges.last_mut() {
                Some((_, last, own)) if *own == owner && *last + 1 == slot => *last = slot,
                _ => ranges.push((slot, slot, owner)),
            }
        }
        reply.array(ranges.len());
        for (first, last, owner) in ranges {
            let replicas = self.nodes.iter().filter(|node| node.primary == Some(owner));
            let nodes: Vec<_> = self.nodes.get(owner).into_iter().chain(replicas).collect();
            reply.array(2 + nodes.len());
            reply.int(first.into());
            reply.int(last.into());
            for node in nodes {
                reply.array(4);
                reply.bulk(node.host.as_bytes());
                reply.int(node.port.into());
                reply.bulk(node.id.as_bytes());
                reply.map(0);
            }
        }
    }
}

/// A slot that is on its way.
#[derive(Clone, Copy)]
enum Open {
    Leaving(usize),
    Arriving,
}

/// How a client wants keys.
#[derive(Clone, Copy)]
pub(super) struct Access {
    is_asking: bool,
    /// It reads, and is content with what a replica has.
    is_readonly: bool,
}

impl Access {
    pub(super) fn new(client: &Client, writes: bool) -> Self {
        Self {
            is_asking: client.is_asking,
            is_readonly: client.is_readonly && !writes,
        }
    }
}

/// The slot of a key: that of the text within the first braces, if there is one.
pub fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = key.get(open + 1..)?;
        let close = rest.iter().position(|byte| *byte == b'}')?;
        rest.get(..close).filter(|tag| !tag.is_empty())
    });
    crc16(tag.unwrap_or(key)) % SLOTS
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        let crc = crc ^ u16::from(*byte) << 8;
        (0..8).fold(crc, |crc, _| match crc & 0x8000 {
            0 => crc << 1,
            _ => crc << 1 ^ 0x1021,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By `CLUSTER KEYSLOT`.
    #[test]
    fn keys_have_the_slots_that_redis_gives_them() {
        for (key, slot) in [
            ("", 0),
            ("123456789", 12_739),
            ("weir:RequestsPerAddress:203.0.113.9", 5_893),
            ("{user1000}.following", 3_443),
            ("foo{}{bar}", 8_363),
            ("foo{{bar}}zap", 4_015),
            ("foo{bar", 15_278),
        ] {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
    }
}
