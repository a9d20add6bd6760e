//! Verifies passwords on threads of their own, few at a time, so that a flood of wrong ones takes
//! neither the workers' time nor all processors.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZero;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use weir_rules::Verification;
use weir_telemetry::events::LastWarning;

/// Upper bound on verifications that run or wait. The second half is for clients that have none.
const MAX_ADMITTED: usize = 1024;

/// Upper bound on those of one client.
const MAX_OF_CLIENT: usize = 32;

/// Bounds the time that a request waits for its verification.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// Bounds verifications; all workers share it.
#[derive(Debug)]
pub(super) struct Verifiers {
    /// At most one verification of each client waits for a permit to run, in the order of arrival.
    /// So clients take turns, however many passwords one of them sends.
    running: Arc<Semaphore>,
    admitted: Arc<Mutex<Admitted>>,
    warned: LastWarning,
}

/// The verifications that run or wait.
#[derive(Debug, Default)]
struct Admitted {
    clients: HashMap<IpAddr, AdmittedClient>,
    total: usize,
}

#[derive(Debug)]
struct AdmittedClient {
    count: usize,
    /// Held by the client's next verification.
    next: Arc<Semaphore>,
}

/// Permission for a verification to run or wait.
struct VerificationPermit {
    client: IpAddr,
    next: Arc<Semaphore>,
    admitted: Arc<Mutex<Admitted>>,
}

impl Drop for VerificationPermit {
    fn drop(&mut self) {
        let mut admitted = self.admitted.lock();
        admitted.total = admitted.total.saturating_sub(1);
        if let Some(client) = admitted.clients.get_mut(&self.client) {
            client.count = client.count.saturating_sub(1);
            if client.count == 0 {
                admitted.clients.remove(&self.client);
            }
        }
    }
}

/// The address or network that a client is counted by: a machine has many addresses of IPv6.
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
        Self {
            running: Arc::new(Semaphore::new(running)),
            admitted: Arc::default(),
            warned: LastWarning::default(),
        }
    }

    /// `None` if too many verifications run or wait.
    fn permit(&self, client: IpAddr) -> Option<VerificationPermit> {
        let client = counted_as(client);
        let mut admitted = self.admitted.lock();
        let count = admitted.clients.get(&client).map_or(0, |known| known.count);
        let max_total = match count {
            0 => MAX_ADMITTED,
            _ => MAX_ADMITTED / 2,
        };
        if count >= MAX_OF_CLIENT || admitted.total >= max_total {
            return None;
        }
        admitted.total += 1;
        let known = admitted.clients.entry(client);
        let known = known.or_insert_with(|| AdmittedClient {
            count: 0,
            next: Arc::new(Semaphore::new(1)),
        });
        known.count += 1;
        Some(VerificationPermit {
            client,
            next: Arc::clone(&known.next),
            admitted: Arc::clone(&self.admitted),
        })
    }

    /// Runs a verification for this client. False if that takes too long, or too many wait already.
    pub(super) async fn verify(&self, client: IpAddr, verification: Verification) -> bool {
        let verified = match self.permit(client) {
            Some(permit) => timeout(MAX_WAIT, self.run(permit, verification)).await,
            None => Ok(false),
        };
        let is_verified = verified.unwrap_or(false);
        if !is_verified && self.warned.is_due() {
            tracing::warn!(
                target: "weir::middleware::verifiers",
                "too many passwords to verify; requests with further ones get 503, logged once a \
                 minute at most"
            );
        }
        is_verified
    }

    /// False if the verification could not be made.
    async fn run(&self, permit: VerificationPermit, verification: Verification) -> bool {
        let Ok(next) = permit.next.acquire().await else {
            return false;
        };
        let Ok(slot) = Arc::clone(&self.running).acquire_owned().await else {
            return false;
        };
        drop(next);
        // A client that leaves does not stop it, so the thread keeps the permit.
        let verified = spawn_blocking(move || {
            verification();
            drop((slot, permit));
        });
        verified.await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::task::{JoinHandle, yield_now};

    use super::*;

    fn client(host: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, host])
    }

    /// One verification at a time, each of which ends when the test says so.
    struct World {
        verifiers: Arc<Verifiers>,
        begun: Arc<Mutex<Vec<IpAddr>>>,
        go: mpsc::Sender<()>,
        wait: Arc<Mutex<mpsc::Receiver<()>>>,
    }

    impl World {
        fn new() -> Self {
            let (go, wait) = mpsc::channel();
            Self {
                verifiers: Arc::new(Verifiers::at_most(1)),
                begun: Arc::default(),
                go,
                wait: Arc::new(Mutex::new(wait)),
            }
        }

        fn verification(&self, client: IpAddr) -> Verification {
            let (begun, wait) = (Arc::clone(&self.begun), Arc::clone(&self.wait));
            Box::new(move || {
                begun.lock().push(client);
                let _ = wait.lock().recv();
            })
        }

        async fn verify(&self, client: IpAddr) -> JoinHandle<bool> {
            let (verifiers, verification) =
                (Arc::clone(&self.verifiers), self.verification(client));
            let verifying =
                tokio::spawn(async move { verifiers.verify(client, verification).await });
            yield_now().await;
            verifying
        }

        async fn has_begun(&self, count: usize) {
            while self.begun.lock().len() < count {
                yield_now().await;
            }
        }
    }

    /// Four addresses with 60 connections each kept out a user with the right password, as all
    /// places of one queue were theirs.
    #[tokio::test]
    async fn clients_take_turns_however_many_passwords_one_of_them_sends() {
        let world = World::new();
        let mut verifying = Vec::new();
        for host in [1, 1, 1, 1, 2, 2, 3] {
            verifying.push(world.verify(client(host)).await);
        }
        world.has_begun(1).await;
        for _ in 0..verifying.len() {
            world.go.send(()).unwrap();
        }
        for verified in verifying {
            assert!(verified.await.unwrap());
        }
        let order = [1, 1, 2, 3, 1, 2, 1].map(client);
        assert_eq!(*world.begun.lock(), order);
        assert!(world.verifiers.admitted.lock().clients.is_empty());
        assert_eq!(world.verifiers.admitted.lock().total, 0);
    }

    #[tokio::test]
    async fn a_client_that_leaves_while_it_waits_gives_its_place_back() {
        let world = World::new();
        let first = world.verify(client(1)).await;
        world.has_begun(1).await;
        let second = world.verify(client(1)).await;
        let third = world.verify(client(1)).await;
        second.abort();
        assert!(second.await.unwrap_err().is_cancelled());
        assert_eq!(world.verifiers.admitted.lock().total, 2);
        drop(world.go);
        assert!(first.await.unwrap() && third.await.unwrap());
        assert_eq!(world.begun.lock().len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn no_request_waits_for_ever_for_its_password() {
        let world = World::new();
        let running = Arc::clone(&world.verifiers.running);
        let _slot = running.acquire_owned().await.unwrap();
        assert!(!world.verifiers.verify(client(1), Box::new(|| {})).await);
        assert_eq!(world.verifiers.admitted.lock().total, 0);
    }

    #[test]
    fn a_full_queue_has_places_for_clients_that_have_none() {
        let verifiers = Verifiers::at_most(1);
        let network = |net: u16, host: u16| IpAddr::from([0x2001, 0xdb8, 0, net, 0, 0, 0, host]);
        let of_network = |net| (0..).map(move |host| network(net, host));
        let mut places = Vec::new();
        for net in 0..64 {
            places.extend(of_network(net).map_while(|address| verifiers.permit(address)));
            assert!(places.len() <= (usize::from(net) + 1) * MAX_OF_CLIENT);
        }
        assert!(places.len() >= MAX_ADMITTED / 2);
        assert!(verifiers.permit(network(0, 9)).is_none());
        assert!(verifiers.permit(network(999, 1)).is_some());
        for net in 1000.. {
            match verifiers.permit(network(net, 1)) {
                Some(permit) => places.push(permit),
                None => break,
            }
        }
        assert_eq!(places.len(), MAX_ADMITTED);
        drop(places);
        assert!(verifiers.permit(network(0, 0)).is_some());
    }
}
