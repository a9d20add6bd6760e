//! Where passwords are verified: on threads of their own, few at a time, so that a flood of wrong ones
//! takes neither the workers' time nor all processors.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZero;
use std::pin::Pin;
use std::sync::Arc;
use std::thread::available_parallelism;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;

use crate::rules::Verification;
use crate::telemetry::LastWarning;

/// How many requests may wait for each verification at a time. A request beyond them has no account.
const QUEUE: usize = 64;

/// A verification under way, or one that waits for its turn.
pub(super) type Verifying = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Bounds verifications; all workers share it.
#[derive(Debug)]
pub(super) struct Verifiers {
    /// Those that run.
    running: Arc<Semaphore>,
    /// Those that run or wait.
    admitted: Arc<Semaphore>,
    /// How many of these each client has.
    clients: Arc<Mutex<HashMap<IpAddr, usize>>>,
    /// How many one client may have, so that one alone does not keep the others out.
    most_of_client: usize,
    warned: LastWarning,
}

/// A verification's place among those that run or wait.
struct Place {
    client: IpAddr,
    clients: Arc<Mutex<HashMap<IpAddr, usize>>>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut clients = self.clients.lock();
        if let Some(places) = clients.get_mut(&self.client) {
            *places = places.saturating_sub(1);
            if *places == 0 {
                clients.remove(&self.client);
            }
        }
    }
}

/// The address as which a client is counted: a machine of IPv6 has a network of them.
fn counted_as(client: IpAddr) -> IpAddr {
    match client {
        IpAddr::V4(_) => client,
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
    }
}

impl Verifiers {
    /// Half of the processors, but one at least.
    pub(super) fn new() -> Self {
        let processors = available_parallelism().map_or(1, NonZero::get);
        Self::at_most((processors / 2).max(1))
    }

    fn at_most(running: usize) -> Self {
        let most = running * (1 + QUEUE);
        Self {
            running: Arc::new(Semaphore::new(running)),
            admitted: Arc::new(Semaphore::new(most)),
            clients: Arc::default(),
            most_of_client: most / 2,
            warned: LastWarning::default(),
        }
    }

    /// A place for a verification of this client; none if too many have one.
    fn place(&self, client: IpAddr) -> Option<Place> {
        let client = counted_as(client);
        let mut clients = self.clients.lock();
        let places = clients.get(&client).copied().unwrap_or_default();
        if places >= self.most_of_client {
            return None;
        }
        let permit = Arc::clone(&self.admitted).try_acquire_owned().ok()?;
        clients.insert(client, places + 1);
        Some(Place {
            client,
            clients: Arc::clone(&self.clients),
            _permit: permit,
        })
    }

    /// Verifies, for this client; none if too many wait already.
    pub(super) fn verify(&self, client: IpAddr, verification: Verification) -> Option<Verifying> {
        let Some(place) = self.place(client) else {
            if self.warned.is_due() {
                tracing::warn!(
                    "too many passwords to verify; requests with further ones have no account, \
                     logged once a minute at most"
                );
            }
            return None;
        };
        let running = Arc::clone(&self.running);
        Some(Box::pin(async move {
            let Ok(turn) = running.acquire_owned().await else {
                return;
            };
            // A client that leaves does not stop it, so the thread keeps its place.
            let verified = spawn_blocking(move || {
                verification();
                drop((turn, place));
            });
            let _ = verified.await;
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::sync::mpsc;

    use super::*;

    const CLIENT: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

    #[tokio::test]
    async fn few_run_at_a_time_and_few_wait() {
        let verifiers = Verifiers::at_most(1);
        let (begun, most) = (Arc::<AtomicUsize>::default(), 1 + QUEUE);
        let clients = [1, 2, 3].map(|host| IpAddr::from([192, 0, 2, host]));
        let client = |place: usize| clients[place % 3];
        let (go, wait) = mpsc::channel::<()>();
        let wait = Arc::new(Mutex::new(wait));
        let verification = || -> Verification {
            let (begun, wait) = (Arc::clone(&begun), Arc::clone(&wait));
            Box::new(move || {
                begun.fetch_add(1, SeqCst);
                let _ = wait.lock().recv();
            })
        };
        let admitted: Vec<_> = (0..most)
            .map(|place| tokio::spawn(verifiers.verify(client(place), verification()).unwrap()))
            .collect();
        assert!(verifiers.verify(CLIENT, verification()).is_none());
        while begun.load(SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(begun.load(SeqCst), 1);
        // A client that leaves while it waits gives its place back.
        admitted[most - 1].abort();
        while verifiers.admitted.available_permits() == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(begun.load(SeqCst), 1);
        drop(go);
        for verifying in admitted.into_iter().take(most - 1) {
            verifying.await.unwrap();
        }
        assert_eq!(begun.load(SeqCst), most - 1);
        assert_eq!(verifiers.admitted.available_permits(), most);
        assert!(verifiers.clients.lock().is_empty());
    }

    #[test]
    fn one_client_must_not_keep_all_others_out() {
        let verifiers = Verifiers::at_most(1);
        let network = |low: u16| IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, low]);
        let places: Vec<_> = (0..)
            .map_while(|low| verifiers.place(network(low)))
            .collect();
        assert_eq!(places.len(), QUEUE.div_ceil(2));
        let other = IpAddr::from([0x2001, 0xdb8, 0, 2, 0, 0, 0, 1]);
        assert!(verifiers.place(other).is_some());
        drop(places);
        assert!(verifiers.place(network(0)).is_some());
    }
}
