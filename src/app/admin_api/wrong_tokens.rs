//! Wrong tokens leave a trace, and the addresses that they come from have to wait.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until};
use weir_rules::canonical_address;
use weir_telemetry::Metrics;
use weir_telemetry::events::LastWarning;

use super::error::ApiError;

/// The wait of an address for each wrong token, and upper bound on it: operators may share the
/// address.
const DELAY: Duration = Duration::from_secs(1);
const MAX_DELAY: Duration = Duration::from_secs(10);

const MAX_ADDRESSES: usize = 1024;

/// Upper bound on waiting requests: half of the connections of the listener.
const MAX_WAITING: usize = 16;

/// The addresses that wrong tokens came from a moment ago.
#[derive(Debug)]
pub(super) struct WrongTokens {
    waits: Mutex<HashMap<IpAddr, Instant>>,
    permits: Semaphore,
    warned: LastWarning,
}

impl Default for WrongTokens {
    fn default() -> Self {
        Self {
            waits: Mutex::default(),
            permits: Semaphore::new(MAX_WAITING),
            warned: LastWarning::default(),
        }
    }
}

impl WrongTokens {
    /// Waits before a token from this address is looked at. To delay the refusal alone would slow
    /// nobody down who does not wait for it. A wrong token has all others of its address that wait
    /// go on waiting, or many connections had as many guesses. Those that wait for too long, or beside
    /// too many others, are refused: they would keep others from being served, and probes from a
    /// reply.
    pub(super) async fn wait(&self, peer: IpAddr) -> Result<(), ApiError> {
        let (peer, latest) = (counted_as(peer), Instant::now() + MAX_DELAY);
        let mut permit = None;
        while let Some(until) = self.end_of_wait(peer) {
            permit = permit.or_else(|| self.permits.try_acquire().ok());
            if until > latest || permit.is_none() {
                return Err(ApiError::TooManyGuesses);
            }
            sleep_until(until).await;
        }
        Ok(())
    }

    fn end_of_wait(&self, peer: IpAddr) -> Option<Instant> {
        let until = self.waits.lock().get(&peer).copied();
        until.filter(|until| *until > Instant::now())
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
    match canonical_address(peer) {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;
    use futures_util::stream::FuturesUnordered;
    use futures_util::{FutureExt, StreamExt};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_address_waits_longer_with_each_wrong_token_and_no_other_does() {
        let (tokens, metrics) = (WrongTokens::default(), Metrics::new());
        let peer = |host| IpAddr::from([192, 0, 2, host]);
        let start = Instant::now();
        tokens.wait(peer(1)).await.unwrap();
        tokens.shown(peer(1), &metrics);
        tokens.shown(peer(1), &metrics);
        tokens.wait(peer(2)).await.unwrap();
        assert_eq!(start.elapsed(), Duration::ZERO);
        tokens.wait(peer(1)).await.unwrap();
        assert_eq!(start.elapsed(), 2 * DELAY);
        (0..100).for_each(|_| tokens.shown(peer(1), &metrics));
        tokens.wait(peer(1)).await.unwrap();
        assert_eq!(start.elapsed(), 2 * DELAY + MAX_DELAY);
    }

    /// Each connection had a guess of its own each time.
    #[tokio::test(start_paused = true)]
    async fn many_connections_of_an_address_have_no_more_guesses_than_one() {
        let (tokens, metrics) = (WrongTokens::default(), Metrics::new());
        let peer = IpAddr::from([192, 0, 2, 1]);
        let guess = async || {
            tokens.wait(peer).await?;
            tokens.shown(peer, &metrics);
            Ok::<_, ApiError>(())
        };
        let start = Instant::now();
        let guesses = join_all((0..100).map(|_| guess())).await;
        // One at once, and one each second.
        assert_eq!(guesses.iter().filter(|guess| guess.is_ok()).count(), 11);
        assert_eq!(start.elapsed(), MAX_DELAY);
        // Those who know a token pass together when it is their turn.
        let passed = join_all((0..MAX_WAITING).map(|_| tokens.wait(peer))).await;
        assert!(passed.iter().all(Result::is_ok));
        assert_eq!(start.elapsed(), MAX_DELAY + DELAY);
    }

    /// Guesses from one address held all connections of the listener for ten seconds: other operators
    /// and `/readyz` waited as long.
    #[tokio::test(start_paused = true)]
    async fn guesses_never_wait_on_more_connections_than_leave_some_to_others() {
        let (tokens, metrics) = (WrongTokens::default(), Metrics::new());
        let peer = IpAddr::from([192, 0, 2, 1]);
        tokens.shown(peer, &metrics);
        let start = Instant::now();
        let mut all: FuturesUnordered<_> = (0..100).map(|_| tokens.wait(peer)).collect();
        let mut refused = 0;
        while let Some(Some(Err(_))) = all.next().now_or_never() {
            refused += 1;
        }
        assert_eq!(
            (refused, start.elapsed()),
            (100 - MAX_WAITING, Duration::ZERO)
        );
        // Whoever has shown no wrong token has nothing to wait for.
        tokens.wait(IpAddr::from([192, 0, 2, 2])).await.unwrap();
        assert_eq!(start.elapsed(), Duration::ZERO);
        // Places are free again when the wait is over, or the client has left.
        drop(all);
        tokens.wait(peer).await.unwrap();
    }

    /// A machine has 2^64 addresses, and would take another one for each guess.
    #[tokio::test(start_paused = true)]
    async fn a_machine_of_ipv6_waits_whichever_of_its_addresses_it_takes() {
        let (tokens, metrics) = (WrongTokens::default(), Metrics::new());
        let start = Instant::now();
        tokens.shown("2001:db8:0:1::1".parse().unwrap(), &metrics);
        tokens
            .wait("2001:db8:0:2::1".parse().unwrap())
            .await
            .unwrap();
        assert_eq!(start.elapsed(), Duration::ZERO);
        tokens
            .wait("2001:db8:0:1::2".parse().unwrap())
            .await
            .unwrap();
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
