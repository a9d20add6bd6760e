//! The addresses of a server that has a name.
//!
//! Each new connection asks the system for them. What it has said last is remembered, so that an
//! outage of the name service is not an outage of the servers, which most likely are where they
//! were.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, sleep, timeout};

/// How long an answer is waited for if an earlier one is known.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the earlier answer goes before the name service is asked again.
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// How long an address may take to accept before the next one is tried as well (RFC 8305).
const CONNECTION_ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// What the name service has last said of one server. All workers share it.
#[derive(Default)]
pub(in crate::proxy) struct KnownAddresses(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// None before the first answer.
    addresses: Option<Arc<[SocketAddr]>>,
    /// Until when the name service, which failed, is not asked.
    trusted_until: Option<Instant>,
}

impl KnownAddresses {
    /// Connects to the first address of the host that accepts.
    pub(super) async fn connect(&self, host: &str, port: u16) -> io::Result<TcpStream> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return TcpStream::connect((address, port)).await;
        }
        let lookup = async { Ok(lookup_host((host, port)).await?.collect()) };
        let addresses = self.resolve(host, lookup).await?;
        match &*addresses {
            [only] => TcpStream::connect(only).await,
            several => first_to_accept(several).await,
        }
    }

    /// What `lookup` says, or else what an earlier one has said.
    async fn resolve(
        &self,
        host: &str,
        lookup: impl Future<Output = io::Result<Vec<SocketAddr>>>,
    ) -> io::Result<Arc<[SocketAddr]>> {
        let known = {
            let known = self.0.lock();
            match (&known.addresses, known.trusted_until) {
                (Some(addresses), Some(until)) if Instant::now() < until => {
                    return Ok(Arc::clone(addresses));
                }
                (addresses, _) => addresses.clone(),
            }
        };
        let found = match known {
            None => lookup.await,
            Some(_) => timeout(LOOKUP_TIMEOUT, lookup)
                .await
                .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())),
        };
        let found = found.and_then(|found| match found.is_empty() {
            true => Err(no_address()),
            false => Ok(Arc::from(found)),
        });
        let mut remembered = self.0.lock();
        match (found, known) {
            (Ok(found), _) => {
                *remembered = Known {
                    addresses: Some(Arc::clone(&found)),
                    trusted_until: None,
                };
                Ok(found)
            }
            (Err(error), Some(known)) => {
                let until = Instant::now() + ASKED_AGAIN_AFTER;
                if remembered.trusted_until.replace(until).is_none() {
                    tracing::warn!(
                        host,
                        %error,
                        "a server's name cannot be resolved; its last known addresses are used"
                    );
                }
                Ok(known)
            }
            (Err(error), None) => Err(error),
        }
    }
}

/// Tries one address after the other, the next one as soon as one has failed or takes long.
async fn first_to_accept(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut addresses = addresses.iter();
    let mut attempts = FuturesUnordered::new();
    let mut failure = no_address();
    loop {
        attempts.extend(addresses.next().map(TcpStream::connect));
        tokio::select! {
            ended = attempts.next() => match ended {
                Some(Ok(stream)) => return Ok(stream),
                Some(Err(error)) => failure = error,
                None => return Err(failure),
            },
            () = sleep(CONNECTION_ATTEMPT_DELAY), if addresses.len() > 0 => {}
        }
    }
}

fn no_address() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the name has no address")
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::net::TcpListener;

    use super::*;

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    async fn answered(known: &KnownAddresses, texts: &[&str]) -> Vec<SocketAddr> {
        let found = known.resolve("app", async { Ok(addresses(texts)) }).await;
        found.unwrap().to_vec()
    }

    async fn failed(known: &KnownAddresses) -> io::Result<Vec<SocketAddr>> {
        let lookup = async { Err(io::Error::other("no answer")) };
        Ok(known.resolve("app", lookup).await?.to_vec())
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_of_the_name_service_is_not_an_outage_of_the_server() {
        let known = KnownAddresses::default();
        assert!(failed(&known).await.is_err(), "nothing is known");
        assert!(
            known
                .resolve("app", async { Ok(Vec::new()) })
                .await
                .is_err()
        );
        let (first, second) = (["10.0.0.1:80"], ["10.0.0.2:80", "10.0.0.3:80"]);
        assert_eq!(answered(&known, &first).await, addresses(&first));
        assert_eq!(answered(&known, &second).await, addresses(&second));
        assert_eq!(failed(&known).await.unwrap(), addresses(&second));
        // The next ones do not wait for it.
        let unasked = known.resolve("app", pending()).await.unwrap();
        assert_eq!(*unasked, *addresses(&second));
        sleep(ASKED_AGAIN_AFTER).await;
        assert_eq!(answered(&known, &first).await, addresses(&first));
        assert_eq!(answered(&known, &second).await, addresses(&second));
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_service_that_keeps_silent_does_not_hold_up_requests() {
        let known = KnownAddresses::default();
        let first = ["10.0.0.1:80"];
        answered(&known, &first).await;
        let begin = Instant::now();
        let found = known.resolve("app", pending()).await.unwrap();
        assert_eq!(
            (&*found, begin.elapsed()),
            (&*addresses(&first), LOOKUP_TIMEOUT)
        );
    }

    #[tokio::test]
    async fn an_address_that_does_not_accept_does_not_hide_the_others() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let open = listener.local_addr().unwrap();
        let closed = {
            let gone = TcpListener::bind("127.0.0.1:0").await.unwrap();
            gone.local_addr().unwrap()
        };
        let stream = first_to_accept(&[closed, open]).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), open);
        assert!(first_to_accept(&[closed, closed]).await.is_err());
        let known = KnownAddresses::default();
        let stream = known.connect("localhost", open.port()).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), open);
    }
}
