//! Peers that name other clients although nobody trusts them: most often a load balancer that
//! `trusted_proxies` lacks, whose clients then share one bucket.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use weir_telemetry::events;

/// Peers that are watched at once. A client may pretend to be a proxy, so the number is bounded.
const MAX_PEERS: usize = 64;

/// Requests within [`WINDOW`] from which on a peer is reported.
const REPORTED_REQUESTS: u32 = 30;

const WINDOW: Duration = Duration::from_secs(60);

/// The peers of one configuration that send forwarding fields and are not trusted.
#[derive(Debug, Default)]
pub struct UntrustedForwarders(Mutex<HashMap<IpAddr, Forwarder>>);

#[derive(Debug)]
struct Forwarder {
    window_start: Instant,
    requests: u32,
    reported: bool,
}

impl UntrustedForwarders {
    /// Counts requests with forwarding fields of a peer that is not trusted. The peer is logged
    /// once, when it has sent many.
    pub fn count(&self, peer: IpAddr, requests: u32, now: Instant) {
        // A count that is missed because another worker counts changes nothing.
        let Some(mut peers) = self.0.try_lock() else {
            return;
        };
        if peers.len() >= MAX_PEERS && !peers.contains_key(&peer) {
            peers.retain(|_, peer| {
                peer.reported || now.saturating_duration_since(peer.window_start) < WINDOW
            });
            if peers.len() >= MAX_PEERS {
                return;
            }
        }
        let forwarder = peers.entry(peer).or_insert(Forwarder {
            window_start: now,
            requests: 0,
            reported: false,
        });
        if now.saturating_duration_since(forwarder.window_start) >= WINDOW {
            (forwarder.window_start, forwarder.requests) = (now, 0);
        }
        forwarder.requests = forwarder.requests.saturating_add(requests);
        if forwarder.requests >= REPORTED_REQUESTS && !forwarder.reported {
            forwarder.reported = true;
            events::untrusted_forwarder(peer);
        }
    }

    /// The peers that were reported.
    pub fn reported(&self) -> Vec<IpAddr> {
        let peers = self.0.lock();
        let reported = peers.iter().filter(|(_, forwarder)| forwarder.reported);
        reported.map(|(peer, _)| *peer).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 9));

    fn counted(times: u32, apart: Duration) -> bool {
        let forwarders = UntrustedForwarders::default();
        let start = Instant::now();
        for n in 0..times {
            forwarders.count(PEER, 1, start + n * apart);
        }
        forwarders.reported() == [PEER]
    }

    #[test]
    fn only_peers_that_often_name_others_are_reported() {
        assert!(counted(REPORTED_REQUESTS, Duration::from_secs(1)));
        assert!(!counted(REPORTED_REQUESTS - 1, Duration::from_secs(1)));
        assert!(!counted(10 * REPORTED_REQUESTS, Duration::from_secs(3)));
    }

    #[test]
    fn clients_that_pretend_to_be_proxies_take_no_memory_without_bound() {
        let forwarders = UntrustedForwarders::default();
        let start = Instant::now();
        let address = |n: u32| IpAddr::V4(std::net::Ipv4Addr::from_bits(n));
        for n in 0..1_000 {
            forwarders.count(address(n), 1, start);
        }
        assert_eq!(forwarders.0.lock().len(), MAX_PEERS);
        // Those that have stopped make room.
        for _ in 0..REPORTED_REQUESTS {
            forwarders.count(PEER, 1, start + WINDOW);
        }
        assert_eq!(forwarders.reported(), [PEER]);
        assert_eq!(forwarders.0.lock().len(), 1);
    }
}
