//! The addresses of a server that has a name.
//!
//! Each new connection resolves the name. The last result is kept, so that an outage of the name
//! service is not an outage of the servers, which most likely have not moved.

use std::io;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use tokio::net::{TcpStream, lookup_host};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::resolver;

/// The target of log lines, which filters name.
const TARGET: &str = "weir::proxy::addresses";

/// The longest wait for a lookup if an earlier result is cached.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the cached addresses are used after a failed lookup before the next one.
const RETRY_LOOKUP_AFTER: Duration = Duration::from_secs(5);

/// How long an address may take to accept before the next one is tried as well (RFC 8305).
const CONNECTION_ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// The last addresses of one server. All workers share them.
#[derive(Default)]
pub(crate) struct CachedAddresses {
    cache: Arc<Mutex<AddressCache>>,
    /// The DNS servers that know the name; the system's if there are none.
    resolvers: Arc<[SocketAddr]>,
}

/// Shared by all requests that wait for the lookup.
type LookupResult = Result<Arc<[SocketAddr]>, Arc<io::Error>>;

#[derive(Default)]
struct AddressCache {
    /// `None` before the first result.
    addresses: Option<Arc<[SocketAddr]>>,
    /// Until when the addresses are used without a lookup, after one has failed or was late.
    trusted_until: Option<Instant>,
    /// Whether the last lookup failed or was late.
    is_failing: bool,
    /// Gets the result of the lookup that is under way.
    lookup: Option<watch::Receiver<Option<LookupResult>>>,
}

impl CachedAddresses {
    pub(crate) fn new(resolvers: &[SocketAddr]) -> Self {
        Self {
            resolvers: resolvers.into(),
            ..Self::default()
        }
    }

    /// Takes over the last addresses that another configuration knew of the same name.
    pub(crate) fn inherit(&self, earlier: &Self) {
        let addresses = earlier.cache.lock().addresses.clone();
        self.cache.lock().addresses = addresses;
    }

    /// Connects to the first address of the host that accepts. The caller gives up at `deadline`.
    pub(super) async fn connect(
        &self,
        host: &str,
        port: u16,
        deadline: Instant,
    ) -> io::Result<TcpStream> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return TcpStream::connect((address, port)).await;
        }
        let name = host.to_owned();
        let resolvers = Arc::clone(&self.resolvers);
        let lookup = async move {
            match resolvers.is_empty() {
                true => Ok(lookup_host((name, port)).await?.collect()),
                false => resolver::lookup_host(&resolvers, &name, port).await,
            }
        };
        let addresses = self.resolve(host, deadline, lookup).await?;
        match &*addresses {
            [only] => TcpStream::connect(only).await,
            several => first_to_accept(several).await,
        }
    }

    /// The result of the lookup that is under way, or of `lookup`; the cached addresses if that
    /// fails or takes more than half of the time until `deadline`, so that the rest is left to
    /// connect.
    async fn resolve(
        &self,
        host: &str,
        deadline: Instant,
        lookup: impl Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'static,
    ) -> io::Result<Arc<[SocketAddr]>> {
        let now = Instant::now();
        let (last_known, mut pending) = {
            let mut known = self.cache.lock();
            match (&known.addresses, known.trusted_until) {
                (Some(addresses), Some(until)) if now < until => return Ok(Arc::clone(addresses)),
                (addresses, _) => {
                    let addresses = addresses.clone();
                    let under_way = known.lookup_under_way();
                    let pending = under_way.unwrap_or_else(|| self.begin(&mut known, host, lookup));
                    (addresses, pending)
                }
            }
        };
        let answer = async {
            let answer = pending.wait_for(Option::is_some).await.ok();
            answer.and_then(|answer| answer.clone())
        };
        let Some(last_known) = last_known else {
            return match answer.await {
                Some(Ok(found)) => Ok(found),
                Some(Err(error)) => Err(io::Error::new(error.kind(), error)),
                None => Err(io::ErrorKind::Interrupted.into()),
            };
        };
        let patience = LOOKUP_TIMEOUT.min(deadline.saturating_duration_since(now) / 2);
        match timeout(patience, answer).await {
            Ok(Some(Ok(found))) => Ok(found),
            Ok(_) => Ok(last_known),
            Err(_) => {
                let late = io::ErrorKind::TimedOut.into();
                self.cache.lock().trust_last_known(host, &late);
                Ok(last_known)
            }
        }
    }

    /// Begins a lookup in a task of its own, which caches the result even if nobody waits for it
    /// any more.
    fn begin(
        &self,
        known: &mut AddressCache,
        host: &str,
        lookup: impl Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'static,
    ) -> watch::Receiver<Option<LookupResult>> {
        let (sender, receiver) = watch::channel(None);
        known.trusted_until = None;
        known.lookup = Some(receiver.clone());
        let (known, host) = (Arc::clone(&self.cache), host.to_owned());
        tokio::spawn(async move {
            let answer = match lookup.await {
                Ok(found) if found.is_empty() => Err(Arc::new(no_address())),
                Ok(found) => Ok(Arc::from(found)),
                Err(error) => Err(Arc::new(error)),
            };
            known.lock().learn(&host, &answer);
            sender.send_replace(Some(answer));
        });
        receiver
    }
}

impl AddressCache {
    /// None as well if the worker whose lookup it was has ended.
    fn lookup_under_way(&self) -> Option<watch::Receiver<Option<LookupResult>>> {
        let lookup = self.lookup.as_ref();
        lookup
            .filter(|lookup| lookup.has_changed().is_ok())
            .cloned()
    }

    fn learn(&mut self, host: &str, answer: &LookupResult) {
        self.lookup = None;
        match answer {
            Ok(found) => {
                self.addresses = Some(Arc::clone(found));
                // An answer that somebody has not waited for is used, but is not the end of it.
                let is_late = self.trusted_until.is_some();
                if !is_late && mem::take(&mut self.is_failing) {
                    tracing::info!(target: TARGET, host, "a server's name can be resolved again");
                }
            }
            Err(error) => self.trust_last_known(host, error),
        }
    }

    fn trust_last_known(&mut self, host: &str, error: &io::Error) {
        if self.addresses.is_none() {
            return;
        }
        self.trusted_until = Some(Instant::now() + RETRY_LOOKUP_AFTER);
        if !mem::replace(&mut self.is_failing, true) {
            tracing::warn!(
                target: TARGET,
                host,
                %error,
                "a server's name cannot be resolved; its last known addresses are used"
            );
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
    use std::io::BufRead as _;
    use std::os::unix::net::UnixStream;

    use tokio::net::TcpListener;
    use tokio::sync::oneshot;

    use super::*;

    impl CachedAddresses {
        /// The name service says where the server is, and nothing from then on.
        pub(crate) async fn fall_silent(&self, last: SocketAddr) {
            let lookup = async move { Ok(vec![last]) };
            self.resolve("app", later(), lookup).await.unwrap();
            let asked = self.resolve("app", later(), pending());
            assert!(timeout(Duration::ZERO, asked).await.is_err());
        }

        /// Whether connections are made without asking the name service.
        pub(crate) fn are_trusted(&self) -> bool {
            let until = self.cache.lock().trusted_until;
            until.is_some_and(|until| Instant::now() < until)
        }
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    async fn answered(known: &CachedAddresses, texts: &[&str]) -> Vec<SocketAddr> {
        let found = addresses(texts);
        let found = known.resolve("app", later(), async { Ok(found) }).await;
        found.unwrap().to_vec()
    }

    async fn failed(known: &CachedAddresses) -> io::Result<Vec<SocketAddr>> {
        let lookup = async { Err(io::Error::other("no answer")) };
        Ok(known.resolve("app", later(), lookup).await?.to_vec())
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_of_the_name_service_is_not_an_outage_of_the_server() {
        let known = CachedAddresses::default();
        let error = failed(&known).await.expect_err("nothing is known");
        assert_eq!(error.to_string(), "no answer");
        let none = known.resolve("app", later(), async { Ok(Vec::new()) });
        assert!(none.await.is_err());
        let (first, second) = (["10.0.0.1:80"], ["10.0.0.2:80", "10.0.0.3:80"]);
        assert_eq!(answered(&known, &first).await, addresses(&first));
        assert_eq!(answered(&known, &second).await, addresses(&second));
        assert_eq!(failed(&known).await.unwrap(), addresses(&second));
        // The next ones do not wait for it.
        let unasked = known.resolve("app", later(), pending()).await.unwrap();
        assert_eq!(*unasked, *addresses(&second));
        assert!(known.cache.lock().is_failing);
        sleep(RETRY_LOOKUP_AFTER).await;
        assert_eq!(answered(&known, &first).await, addresses(&first));
        assert!(!known.cache.lock().is_failing);
        assert_eq!(answered(&known, &second).await, addresses(&second));
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_service_that_keeps_silent_does_not_use_up_the_time_to_connect() {
        for (within, waited) in [
            (LOOKUP_TIMEOUT * 5, LOOKUP_TIMEOUT),
            (LOOKUP_TIMEOUT, LOOKUP_TIMEOUT / 2),
            (LOOKUP_TIMEOUT / 2, LOOKUP_TIMEOUT / 4),
        ] {
            let known = CachedAddresses::default();
            let first = ["10.0.0.1:80"];
            answered(&known, &first).await;
            let begin = Instant::now();
            let found = known.resolve("app", begin + within, pending());
            let found = timeout(within, found).await.unwrap().unwrap();
            assert_eq!((&*found, begin.elapsed()), (&*addresses(&first), waited));
            assert!(known.are_trusted());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_nobody_has_waited_for_is_not_lost() {
        let known = CachedAddresses::default();
        for texts in [["10.0.0.1:80"], ["10.0.0.2:80"]] {
            let (answer, lookup) = oneshot::channel();
            let lookup = async { Ok(lookup.await.unwrap()) };
            let asked = known.resolve("app", later(), lookup);
            assert!(timeout(LOOKUP_TIMEOUT / 2, asked).await.is_err());
            // Whoever comes meanwhile waits for the same lookup.
            let again = known.resolve("app", later(), async { unreachable!() });
            assert!(timeout(LOOKUP_TIMEOUT / 2, again).await.is_err());
            answer.send(addresses(&texts)).unwrap();
            tokio::task::yield_now().await;
            assert_eq!(failed(&known).await.unwrap(), addresses(&texts));
            sleep(RETRY_LOOKUP_AFTER).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_name_service_is_not_taken_for_one_that_answers_again() {
        let known = CachedAddresses::default();
        answered(&known, &["10.0.0.1:80"]).await;
        let slow = async {
            sleep(LOOKUP_TIMEOUT * 3).await;
            Ok(addresses(&["10.0.0.2:80"]))
        };
        let found = known.resolve("app", later(), slow).await.unwrap();
        assert_eq!(*found, *addresses(&["10.0.0.1:80"]));
        sleep(LOOKUP_TIMEOUT * 3).await;
        assert!(known.cache.lock().is_failing);
        let found = known.resolve("app", later(), pending()).await.unwrap();
        assert_eq!(*found, *addresses(&["10.0.0.2:80"]));
    }

    #[test]
    fn an_outage_of_the_name_service_is_not_logged_twice_and_its_end_is_not_left_out() {
        let (read, write) = UnixStream::pair().unwrap();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(std::sync::Mutex::new(write));
        weir_testing::subscribed(subscriber.finish(), || {
            let mut known = AddressCache::default();
            for is_found in [false, true, false, false, true, true] {
                let answer = match is_found {
                    true => Ok(addresses(&["10.0.0.1:80"]).into()),
                    false => Err(Arc::new(no_address())),
                };
                known.trusted_until = None;
                known.learn("app", &answer);
            }
        });
        let lines: Vec<_> = io::BufReader::new(read)
            .lines()
            .map(Result::unwrap)
            .collect();
        let [begin, end] = &*lines else {
            panic!("{lines:?}");
        };
        assert!(begin.contains("WARN") && begin.contains("its last known addresses are used"));
        assert!(end.contains("INFO") && end.contains("can be resolved again"));
    }

    #[test]
    fn a_worker_that_ends_does_not_leave_others_waiting_for_its_lookup() {
        let known = CachedAddresses::default();
        let worker = || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime.enable_all().start_paused(true).build().unwrap()
        };
        let first = "10.0.0.1:80".parse().unwrap();
        worker().block_on(known.fall_silent(first));
        let second = ["10.0.0.2:80"];
        assert_eq!(
            worker().block_on(answered(&known, &second)),
            addresses(&second)
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
        let known = CachedAddresses::default();
        let stream = known
            .connect("localhost", open.port(), later())
            .await
            .unwrap();
        assert_eq!(stream.peer_addr().unwrap(), open);
    }
}
