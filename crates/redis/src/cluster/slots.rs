//! Slots: the 16,384 parts into which a Cluster divides its keys.

use std::collections::HashMap;

use crc::{CRC_16_XMODEM, Crc, Table};
use redis::Value;

use super::super::endpoint::HostPort;

pub(super) const SLOTS: u16 = 16_384;

static CHECKSUM: Crc<u16, Table<16>> = Crc::<u16, Table<16>>::new(&CRC_16_XMODEM);

pub(crate) fn slot_of(key: &[u8]) -> u16 {
    CHECKSUM.checksum(hash_tag(key).unwrap_or(key)) % SLOTS
}

/// The part that Redis hashes in place of the key: that between the first brace and the next closing
/// one, if that is anything. No subject of ours contains a brace; a limit's name may.
fn hash_tag(key: &[u8]) -> Option<&[u8]> {
    let open = key.iter().position(|&byte| byte == b'{')?;
    let rest = key.get(open + 1..)?;
    let close = rest.iter().position(|&byte| byte == b'}')?;
    rest.get(..close).filter(|tag| !tag.is_empty())
}

/// Slots that follow each other, and the primary that serves them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlotRange {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) primary: HostPort,
}

/// Reads the reply to `CLUSTER SLOTS` of the node at `asked`; ranges whose primary it does not know
/// are left out. None when it is not such a reply.
pub(super) fn parse_slots(reply: &Value, asked: &HostPort) -> Option<Vec<SlotRange>> {
    let Value::Array(ranges) = reply else {
        return None;
    };
    let mut parsed = Vec::with_capacity(ranges.len());
    for range in ranges {
        let Value::Array(parts) = range else {
            return None;
        };
        let [first, last, primary, ..] = parts.as_slice() else {
            return None;
        };
        let (first, last) = (slot(first)?, slot(last)?);
        if let Some(primary) = node(primary, asked) {
            parsed.push(SlotRange {
                first,
                last,
                primary,
            });
        }
    }
    Some(parsed)
}

fn slot(value: &Value) -> Option<u16> {
    let Value::Int(slot) = value else {
        return None;
    };
    u16::try_from(*slot).ok().filter(|slot| *slot < SLOTS)
}

/// The address that a node announces. One that announces no host is where the one that was asked
/// is; one that is unknown announces `?`.
fn node(value: &Value, asked: &HostPort) -> Option<HostPort> {
    let Value::Array(parts) = value else {
        return None;
    };
    let [host, Value::Int(port), ..] = parts.as_slice() else {
        return None;
    };
    let host = match host {
        Value::Nil => "",
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?,
        Value::SimpleString(text) => text,
        _ => return None,
    };
    announced(host, u16::try_from(*port).ok()?, asked)
}

/// The address that a redirection names, `HOST:PORT`.
pub(super) fn parse_address(text: &str, asked: &HostPort) -> Option<HostPort> {
    let (host, port) = text.rsplit_once(':')?;
    announced(host, port.parse().ok()?, asked)
}

fn announced(host: &str, port: u16, asked: &HostPort) -> Option<HostPort> {
    let host = match host {
        "?" => return None,
        "" => asked.host.clone(),
        host => host.to_owned(),
    };
    (port > 0).then_some(HostPort { host, port })
}

#[derive(Clone)]
pub(super) struct SlotMap<N> {
    owners: Box<[Option<N>]>,
}

impl<N: Copy + PartialEq> SlotMap<N> {
    /// By ranges, of which a later one holds where they overlap.
    pub(super) fn new(ranges: &[SlotRange], owner: &HashMap<&HostPort, N>) -> Self {
        let mut owners = vec![None; usize::from(SLOTS)].into_boxed_slice();
        for range in ranges {
            let slots = usize::from(range.first)..=usize::from(range.last);
            if let Some(slots) = owners.get_mut(slots) {
                slots.fill(owner.get(&range.primary).copied());
            }
        }
        Self { owners }
    }

    pub(super) fn owner(&self, slot: u16) -> Option<N> {
        self.owners.get(usize::from(slot)).copied().flatten()
    }

    pub(super) fn is_complete(&self) -> bool {
        self.owners.iter().all(Option::is_some)
    }

    /// The same with another owner of one slot.
    pub(super) fn with_owner(&self, slot: u16, owner: N) -> Self {
        let mut owners = self.owners.clone();
        if let Some(place) = owners.get_mut(usize::from(slot)) {
            *place = Some(owner);
        }
        Self { owners }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::resp::Replies;
    use super::*;

    fn at(host: &str, port: u16) -> HostPort {
        HostPort {
            host: host.to_owned(),
            port,
        }
    }

    fn parse(reply: &str) -> Option<Vec<SlotRange>> {
        let replies = Replies::new(reply.replace('\n', "\r\n").into_bytes());
        parse_slots(&replies.iter().value()?, &at("asked", 7000))
    }

    /// By `CLUSTER KEYSLOT`.
    #[test]
    fn keys_have_the_slots_that_redis_gives_them() {
        for (key, slot) in [
            ("", 0),
            ("123456789", 12_739),
            ("weir:RequestsPerAddress:203.0.113.9", 5_893),
            ("weir:probe", 421),
            ("{user1000}.following", 3_443),
            ("{user1000}.followers", 3_443),
            ("foo{}{bar}", 8_363),
            ("foo{{bar}}zap", 4_015),
            ("foo{bar", 15_278),
        ] {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
    }

    #[test]
    fn the_reply_of_a_cluster_is_read() {
        let read = parse(
            "*3\n*4\n:0\n:5460\n*4\n$9\n127.0.0.1\n:7001\n$2\nid\n*0\n*4\n$9\n127.0.0.1\n:7004\n$2\n\
             id\n*0\n*3\n:5461\n:5461\n*3\n$0\n\n:7002\n$2\nid\n*3\n:9000\n:16383\n*3\n$-1\n:7003\n\
             $2\nid\n",
        );
        let range = |first, last, primary| SlotRange {
            first,
            last,
            primary,
        };
        assert_eq!(
            read.unwrap(),
            [
                range(0, 5460, at("127.0.0.1", 7001)),
                range(5461, 5461, at("asked", 7002)),
                range(9000, 16_383, at("asked", 7003)),
            ]
        );
        let unknown = parse("*1\n*3\n:0\n:1\n*3\n$1\n?\n:7002\n$2\nid\n");
        assert_eq!(unknown.unwrap(), []);
    }

    #[test]
    fn what_is_not_a_map_of_slots_is_none() {
        for strange in [
            ":1\n",
            "*1\n:1\n",
            "*1\n*2\n:1\n:2\n",
            "*1\n*3\n:0\n:16384\n*2\n$1\na\n:1\n",
            "*1\n*3\n:-1\n:5\n*2\n$1\na\n:1\n",
        ] {
            assert_eq!(parse(strange), None, "{strange}");
        }
    }

    #[test]
    fn a_redirection_names_a_host_and_a_port() {
        let parse = |text| parse_address(text, &at("asked", 7000));
        assert_eq!(parse("127.0.0.1:6381"), Some(at("127.0.0.1", 6381)));
        assert_eq!(parse("::1:6381"), Some(at("::1", 6381)));
        assert_eq!(parse(":6381"), Some(at("asked", 6381)));
        for strange in ["", "host", "host:", "host:0", "host:70000", "?:1"] {
            assert_eq!(parse(strange), None, "{strange}");
        }
    }

    #[test]
    fn a_map_knows_owners_and_what_no_node_serves() {
        let (a, b) = (at("a", 1), at("b", 2));
        let range = |first, last, primary: &HostPort| SlotRange {
            first,
            last,
            primary: primary.clone(),
        };
        let ranges = [range(0, 9, &a), range(5, 7, &b)];
        let map = SlotMap::new(&ranges, &HashMap::from([(&a, 0), (&b, 1)]));
        let owners: Vec<_> = [4, 5, 8, 10, SLOTS].map(|slot| map.owner(slot)).into();
        assert_eq!(owners, [Some(0), Some(1), Some(0), None, None]);
        let moved = map.with_owner(10, 1);
        assert_eq!((moved.owner(10), map.owner(10)), (Some(1), None));
    }
}
