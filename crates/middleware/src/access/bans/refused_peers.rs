//! The banned and the blocked whose connections may be refused before there is a request: who they
//! are, until when, and how often they came.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use ipnet::IpNet;
use parking_lot::Mutex;
use tokio::sync::Notify;
use weir_limit::BucketKey;
use weir_limit::time::Timestamp;

/// Upper bound on the peers that are known. Several times as many as the kernel takes.
const MAX_PEERS: usize = 16_384;

/// A peer whose requests are dropped, with all of its connections.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RefusedPeer {
    /// A subject of a ban.
    Banned {
        /// The ban's name.
        ban: Arc<str>,
        /// As bucket keys have it.
        subject: String,
    },
    /// A network on the block list.
    Blocked(IpNet),
}

impl RefusedPeer {
    /// A subject of a ban.
    pub fn banned(ban: &Arc<str>, subject: &BucketKey) -> Self {
        Self::Banned {
            ban: Arc::clone(ban),
            subject: subject.as_str().to_owned(),
        }
    }
}

/// When a ban ends, and how often its subject came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The end of the ban.
    pub until: Timestamp,
    /// Requests that got here, each of which counts half as much after a minute.
    pub hits: u32,
}

/// The peers whose requests are dropped.
#[derive(Default)]
pub struct RefusedPeers {
    peers: Mutex<HashMap<RefusedPeer, Refusal>>,
    wake: Notify,
    by_hand: Notify,
}

impl RefusedPeers {
    /// Counts a request of a peer that is banned until then.
    pub fn came(&self, peer: RefusedPeer, until: Timestamp) {
        let mut peers = self.peers.lock();
        let has_room = peers.len() < MAX_PEERS;
        match peers.entry(peer) {
            Entry::Occupied(mut known) => {
                let known = known.get_mut();
                known.hits = known.hits.saturating_add(1);
                known.until = until;
            }
            Entry::Vacant(new) if has_room => {
                new.insert(Refusal { until, hits: 1 });
                self.wake.notify_one();
            }
            Entry::Vacant(_) => {}
        }
    }

    /// Those whose bans last, without the others.
    pub fn list(&self, now: Timestamp) -> HashMap<RefusedPeer, Refusal> {
        let mut peers = self.peers.lock();
        peers.retain(|_, refusal| refusal.until > now);
        peers.clone()
    }

    /// Sets the end of a ban that is known.
    pub fn set_end(&self, peer: &RefusedPeer, until: Timestamp) {
        if let Some(refusal) = self.peers.lock().get_mut(peer) {
            refusal.until = until;
        }
    }

    /// Lifts a ban at once.
    pub fn lift(&self, ban: &Arc<str>, subject: &BucketKey) {
        self.peers.lock().remove(&RefusedPeer::banned(ban, subject));
        self.look_again();
    }

    /// Makes what came before count half as much, and forgets who has not come for long if there is
    /// little room for others.
    pub fn age(&self) {
        let mut peers = self.peers.lock();
        let is_full = peers.len() > MAX_PEERS / 2;
        peers.retain(|_, refusal| {
            refusal.hits /= 2;
            !is_full || refusal.hits > 0
        });
    }

    /// Waits until a peer is there that was not, or a ban was set or lifted by hand.
    pub async fn changed(&self) {
        self.wake.notified().await;
    }

    /// Waits until a ban was set or lifted by hand, which must not wait for others.
    pub async fn changed_by_hand(&self) {
        self.by_hand.notified().await;
    }

    pub(super) fn look_again(&self) {
        self.wake.notify_one();
        self.by_hand.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(number: u32) -> RefusedPeer {
        RefusedPeer::banned(&"scanners".into(), &number.to_string().as_str().into())
    }

    fn at(nanos: u64) -> Timestamp {
        Timestamp::from_nanos(nanos)
    }

    #[test]
    fn a_peer_is_known_until_its_ban_ends_or_is_lifted() {
        let peers = RefusedPeers::default();
        peers.came(peer(1), at(10));
        peers.came(peer(2), at(20));
        peers.came(peer(3), at(20));
        peers.lift(&"scanners".into(), &"3".into());
        peers.set_end(&peer(2), at(15));
        assert_eq!(peers.list(at(9)).len(), 2);
        let left = peers.list(at(10));
        assert_eq!(
            left.into_iter().collect::<Vec<_>>(),
            [(
                peer(2),
                Refusal {
                    until: at(15),
                    hits: 1
                }
            )]
        );
        assert!(peers.list(at(15)).is_empty());
    }

    #[test]
    fn those_who_come_often_count_for_more_and_less_with_time() {
        let peers = RefusedPeers::default();
        (0..5).for_each(|_| peers.came(peer(1), at(10)));
        peers.came(peer(2), at(10));
        let hits = || {
            let all = peers.list(at(1));
            [peer(1), peer(2)].map(|peer| all[&peer].hits)
        };
        assert_eq!(hits(), [5, 1]);
        peers.age();
        assert_eq!(hits(), [2, 0]);
    }

    #[test]
    fn a_flood_of_peers_takes_no_more_than_its_room_and_those_who_leave_make_some() {
        let peers = RefusedPeers::default();
        let most = u32::try_from(MAX_PEERS).unwrap();
        (0..most + 10).for_each(|number| peers.came(peer(number), at(10)));
        assert_eq!(peers.list(at(1)).len(), MAX_PEERS);
        peers.came(peer(0), at(10));
        peers.age();
        assert_eq!(peers.list(at(1)).len(), 1);
    }
}
