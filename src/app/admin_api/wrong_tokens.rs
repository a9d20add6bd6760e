//! Wrong tokens leave a trace, and the addresses that they come from have to wait.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

use crate::telemetry::{LastWarning, Metrics};

/// How long an address waits for each wrong token, and at most, for its operators may share it.
const DELAY: Duration = Duration::from_secs(1);
const MAX_DELAY: Duration = Duration::from_secs(10);

/// How many addresses are remembered.
const MAX_ADDRESSES: usize = 1024;

/// The addresses that wrong tokens came from a moment ago.
#[derive(Debug, Default)]
pub(super) struct WrongTokens {
    waits: Mutex<HashMap<IpAddr, Instant>>,
    warned: LastWarning,
}

impl WrongTokens {
    /// Waits before a token from this address is looked at. To delay the refusal alone would slow
    /// nobody down who does not wait for it.
    pub(super) async fn wait(&self, peer: IpAddr) {
        let until = self.waits.lock().get(&counted_as(peer)).copied();
        if let Some(until) = until {
            sleep_until(until).await;
        }
    }

    /// Logs and counts a wrong token.
    pub(super) fn shown(&self, peer: IpAddr, metrics: &Metrics) {
        metrics.wrong_admin_token();
        tracing::debug!(%peer, "a wrong token was shown to the admin API");
        if self.warned.is_due() {
            tracing::warn!(
                %peer,
                "a wrong token was shown to the admin API; logged once a minute at most"
            );
        }
        let (now, peer) = (Instant::now(), counted_as(peer));
        let mut waits = self.waits.lock();
        waits.retain(|_, until| *until > now);
        if waits.len() < MAX_ADDRESSES || waits.contains_key(&peer) {
            let until = waits.entry(peer).or_insert(now);
            *until = (*until + DELAY).min(now + MAX_DELAY);
        }
    }
}

/// The address that waits: a machine of IPv6 has a network of them.
fn counted_as(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_address_waits_longer_with_each_wrong_token_and_no_other_does() {
        let (tokens, metrics) = (WrongTokens::default(), Metrics::new());
        let peer = |host| IpAddr::from([192, 0, 2, host]);
        let start = Instant::now();
        tokens.wait(peer(1)).await;
        tokens.shown(peer(1), &metrics);
        tokens.shown(peer(1), &metrics);
        tokens.wait(peer(2)).await;
        assert_eq!(start.elapsed(), Duration::ZERO);
        tokens.wait(peer(1)).await;
        assert_eq!(start.elapsed(), 2 * DELAY);
        (0..100).for_each(|_| tokens.shown(peer(1), &metrics));
        tokens.wait(peer(1)).await;
        assert_eq!(start.elapsed(), 2 * DELAY + MAX_DELAY);
    }

    /// A machine has 2^64 addresses, and would take another one for each guess.
    #[tokio::test(start_paused = true)]
    async fn a_machine_of_ipv6_waits_whichever_of_its_addresses_it_takes() {
        let (tokens, metrics) = (WrongTokens::default(), Metrics::new());
        let start = Instant::now();
        tokens.shown("2001:db8:0:1::1".parse().unwrap(), &metrics);
        tokens.wait("2001:db8:0:2::1".parse().unwrap()).await;
        assert_eq!(start.elapsed(), Duration::ZERO);
        tokens.wait("2001:db8:0:1::2".parse().unwrap()).await;
        assert_eq!(start.elapsed(), DELAY);
    }

    #[tokio::test(start_paused = true)]
    async fn no_flood_of_addresses_takes_more_memory() {
        let (tokens, metrics) = (WrongTokens::default(), Metrics::new());
        let flood = |count: u32| {
            (0..count).for_each(|bits| tokens.shown(IpAddr::V4(bits.into()), &metrics));
        };
        flood(2000);
        assert_eq!(tokens.waits.lock().len(), MAX_ADDRESSES);
        tokio::time::advance(DELAY).await;
        flood(1);
        assert_eq!(tokens.waits.lock().len(), 1);
    }
}
