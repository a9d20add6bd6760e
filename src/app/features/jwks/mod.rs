//! Fetches the key sets that tokens are verified with, and keeps them fresh. No request waits for
//! that: tokens are verified with the keys that are there.

mod metrics;

use std::convert::Infallible;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AGE, CACHE_CONTROL, HOST};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use parking_lot::Mutex;
use rand::RngExt;
use thiserror::Error;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::task::AbortOnDropHandle;
use tower::Service;
use weir_config::Settings;
use weir_config::gateway::account::jwt::{Jwks, JwksSettings};
use weir_http::list;
use weir_proxy::{Proxy, Upstream, UpstreamSettings};
use weir_rules::{JwtError, JwtKeys, RemoteKeys};
use weir_telemetry::events::LastWarning;
use weir_telemetry::{Metrics, UpstreamFailed};

pub(in crate::app) use self::metrics::JwksMetrics;
use super::Feature;

/// From connecting to the last byte.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

/// Bounds a key set; real ones have a few kilobytes.
const MAX_BYTES: usize = 1 << 20;

/// Lower bound on the interval of fetches, whatever responses say and whatever keys tokens name.
const MIN_INTERVAL: Duration = Duration::from_secs(30);

/// The first and the longest pause after a failure.
const BACK_OFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// The key sets of the configuration in force. Clones share them.
#[derive(Clone)]
pub(in crate::app) struct KeySets(Arc<SharedKeySets>);

struct SharedKeySets {
    metrics: Arc<Metrics>,
    sets: Mutex<Vec<KeySet>>,
}

/// A key set, and the task that keeps it fresh.
struct KeySet {
    settings: JwksSettings,
    keys: RemoteKeys,
    progress: Arc<Mutex<Progress>>,
    _task: AbortOnDropHandle<Infallible>,
}

/// The times of fetches; a reload hands them on.
#[derive(Clone, Copy, Default)]
struct Progress {
    fetched: Option<Instant>,
    /// The last fetch, successful or not.
    tried: Option<Instant>,
    /// The next fetch.
    due: Option<Instant>,
}

impl KeySets {
    pub(in crate::app) fn new(metrics: &Arc<Metrics>) -> Self {
        Self(Arc::new(SharedKeySets {
            metrics: Arc::clone(metrics),
            sets: Mutex::default(),
        }))
    }

    /// Keeps these key sets fresh from now on, and no others. Known ones keep their keys. Must be
    /// called on a runtime.
    fn replace(&self, configured: &[Jwks]) {
        let mut sets = self.0.sets.lock();
        let before = std::mem::take(&mut *sets);
        *sets = configured
            .iter()
            .map(|jwks| {
                let known = before.iter().find(|set| set.settings == jwks.settings);
                let progress = known.map(|set| {
                    jwks.keys.set(set.keys.get());
                    *set.progress.lock()
                });
                self.start(jwks, progress.unwrap_or_default())
            })
            .collect();
    }

    /// The URL of a key set that has not been fetched yet.
    fn missing(&self) -> Option<String> {
        let sets = self.0.sets.lock();
        let missing = sets
            .iter()
            .find(|set| set.progress.lock().fetched.is_none());
        missing.map(|set| set.settings.url.to_string())
    }

    fn start(&self, jwks: &Jwks, progress: Progress) -> KeySet {
        let wanted = Arc::new(Notify::new());
        let notify = Arc::clone(&wanted);
        jwks.keys.on_unknown_key(move || notify.notify_one());
        let progress = Arc::new(Mutex::new(progress));
        let refresher = Refresher {
            settings: jwks.settings.clone(),
            keys: jwks.keys.clone(),
            progress: Arc::clone(&progress),
            wanted,
            metrics: JwksMetrics::new(&self.0.metrics, &jwks.settings.url.to_string()),
            warned: LastWarning::default(),
        };
        let task = tokio::spawn(refresher.run());
        KeySet {
            settings: jwks.settings.clone(),
            keys: jwks.keys.clone(),
            progress,
            _task: AbortOnDropHandle::new(task),
        }
    }
}

impl Feature for KeySets {
    fn apply(&self, settings: &Settings) {
        self.replace(&settings.jwks);
    }

    fn lacking(&self) -> Option<String> {
        self.missing().map(|url| format!("no keys from {url} yet"))
    }
}

#[derive(Debug, Error)]
enum FetchError {
    #[error("no response within {} s", FETCH_TIMEOUT.as_secs())]
    TooSlow,
    #[error("the request failed: {0}")]
    Failed(&'static str),
    #[error("the response has the status {0}")]
    Status(StatusCode),
    #[error("the response has more than 1 MiB, or broke off")]
    Body(#[source] Box<dyn Error + Send + Sync>),
    #[error("the response is not text in UTF-8")]
    NotText,
    #[error(transparent)]
    Keys(#[from] JwtError),
    #[error("the request cannot be made")]
    Request(#[from] http::Error),
}

struct Refresher {
    settings: JwksSettings,
    keys: RemoteKeys,
    progress: Arc<Mutex<Progress>>,
    wanted: Arc<Notify>,
    metrics: JwksMetrics,
    warned: LastWarning,
}

impl Refresher {
    async fn run(self) -> Infallible {
        let mut upstream = UpstreamSettings::new("jwks", vec![self.settings.server.clone()]);
        upstream.timeouts.connect = FETCH_TIMEOUT;
        upstream.timeouts.response = FETCH_TIMEOUT;
        // The next fetch is much later.
        upstream.max_idle = 0;
        let mut proxy = Proxy::new(Upstream::new(upstream));
        let mut back_off = BACK_OFF.0;
        loop {
            self.wait().await;
            self.progress.lock().tried = Some(Instant::now());
            let fetched = timeout(FETCH_TIMEOUT, self.fetch(&mut proxy)).await;
            let pause = match fetched.unwrap_or(Err(FetchError::TooSlow)) {
                Ok((keys, fresh_for)) => {
                    back_off = BACK_OFF.0;
                    self.succeeded(keys);
                    fresh_for.unwrap_or(self.settings.refresh)
                }
                Err(error) => {
                    self.failed(&error);
                    let pause = back_off;
                    back_off = BACK_OFF.1.min(back_off * 2);
                    pause
                }
            };
            self.progress.lock().due = Some(Instant::now() + jittered(pause));
        }
    }

    /// Waits until a fetch is due, or a token names an unknown key and the last fetch is long
    /// enough ago.
    async fn wait(&self) {
        let Progress {
            fetched,
            tried,
            due,
        } = *self.progress.lock();
        let (Some(tried), Some(due)) = (tried, due) else {
            return;
        };
        // Keys that are too old are fetched again, or removed if that fails.
        let expires = fetched.filter(|_| self.keys.get().is_some());
        let expires = expires.map_or(due, |fetched| fetched + self.settings.max_stale);
        let wanted = async {
            self.wanted.notified().await;
            sleep_until(tried + MIN_INTERVAL).await;
        };
        tokio::select! {
            () = sleep_until(due.min(expires)) => {}
            () = wanted => {}
        }
    }

    async fn fetch(&self, proxy: &mut Proxy) -> Result<(JwtKeys, Option<Duration>), FetchError> {
        let uri = &self.settings.url;
        let target = uri.path_and_query().map_or("/", |target| target.as_str());
        let host = uri.authority().map_or("", |authority| authority.as_str());
        let request = Request::get(target)
            .header(HOST, host)
            .header(ACCEPT, "application/jwk-set+json, application/json")
            .body(Full::<Bytes>::default())?;
        let Ok(response) = proxy.call(request).await;
        let (head, body) = response.into_parts();
        if let Some(failed) = head.extensions.get::<UpstreamFailed>() {
            return Err(FetchError::Failed(failed.reason));
        }
        if head.status != StatusCode::OK {
            return Err(FetchError::Status(head.status));
        }
        let body = Limited::new(body, MAX_BYTES).collect().await;
        let body = body.map_err(FetchError::Body)?.to_bytes();
        let text = str::from_utf8(&body).map_err(|_| FetchError::NotText)?;
        Ok((JwtKeys::jwks(text)?, fresh_for(&head.headers)))
    }

    fn succeeded(&self, keys: JwtKeys) {
        let is_first = self.keys.get().is_none();
        self.keys.set(Some(keys));
        self.progress.lock().fetched = Some(Instant::now());
        metrics::fetched(&self.metrics, &self.settings.url.to_string(), is_first);
    }

    fn failed(&self, cause: &FetchError) {
        let url = &self.settings.url.to_string();
        metrics::unavailable(&self.metrics, url, cause, self.warned.is_due());
        let fetched = self.progress.lock().fetched;
        let is_old = fetched.is_some_and(|at| at.elapsed() >= self.settings.max_stale);
        if is_old && self.keys.get().is_some() {
            self.keys.set(None);
            metrics::expired(url);
        }
    }
}

/// Takes off up to a tenth, so that gateways that were started together do not fetch together.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(rand::rng().random_range(0.9..=1.0))
}

/// The freshness of a response (RFC 9111, section 4.2.1), within bounds.
fn fresh_for(headers: &HeaderMap) -> Option<Duration> {
    /// Keys that an issuer has withdrawn must not be believed for long.
    const MAX_FRESHNESS: Duration = Duration::from_secs(24 * 60 * 60);
    let seconds = list::texts(headers, &CACHE_CONTROL).find_map(|directive| {
        let (name, value) = directive.split_once('=')?;
        let is_max_age = name.eq_ignore_ascii_case("max-age");
        is_max_age.then(|| value.trim_matches('"').parse::<u64>().ok())?
    })?;
    let age = headers
        .get(AGE)
        .and_then(|age| age.to_str().ok()?.parse().ok());
    let seconds = seconds.saturating_sub(age.unwrap_or(0));
    Some(Duration::from_secs(seconds).clamp(MIN_INTERVAL, MAX_FRESHNESS))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh(lines: &[(&'static str, &str)]) -> Option<u64> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, value.parse().unwrap());
        }
        fresh_for(&headers).map(|fresh| fresh.as_secs())
    }

    #[test]
    fn a_response_says_how_long_it_is_fresh() {
        let control = "cache-control";
        assert_eq!(fresh(&[(control, "public, max-age=600")]), Some(600));
        assert_eq!(
            fresh(&[(control, "public"), (control, "Max-Age=\"600\"")]),
            Some(600)
        );
        assert_eq!(
            fresh(&[(control, "max-age=600"), ("age", "200")]),
            Some(400)
        );
        assert_eq!(fresh(&[(control, "max-age=0, no-store")]), Some(30));
        assert_eq!(fresh(&[(control, "max-age=31536000")]), Some(86_400));
        assert_eq!(fresh(&[(control, "no-cache")]), None);
        assert_eq!(fresh(&[(control, "max-age=soon")]), None);
        assert_eq!(fresh(&[]), None);
    }

    fn refresher(progress: Progress) -> Refresher {
        let text = "https://id.example.com/keys";
        Refresher {
            settings: JwksSettings {
                url: text.parse().unwrap(),
                server: "https://id.example.com".parse().unwrap(),
                refresh: Duration::from_secs(600),
                max_stale: Duration::from_secs(3600),
            },
            keys: RemoteKeys::new(),
            progress: Arc::new(Mutex::new(progress)),
            wanted: Arc::default(),
            metrics: JwksMetrics::new(&Metrics::new(), text),
            warned: LastWarning::default(),
        }
    }

    /// After how many seconds it fetches again, having fetched this long ago, with the next fetch
    /// due this much later.
    async fn waits(ago: u64, due: u64, unknown_key: bool) -> u64 {
        let start = Instant::now();
        tokio::time::advance(Duration::from_secs(ago)).await;
        let refresher = refresher(Progress {
            fetched: Some(start),
            tried: Some(start),
            due: Some(start + Duration::from_secs(due)),
        });
        let keys = JwtKeys::secret(&[7; 32]).unwrap();
        refresher.keys.set(Some(keys));
        if unknown_key {
            refresher.wanted.notify_one();
        }
        let now = Instant::now();
        refresher.wait().await;
        // The timers of the runtime have milliseconds.
        (now.elapsed() + Duration::from_millis(500)).as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn a_fetch_waits_until_it_is_due_or_a_token_names_an_unknown_key() {
        assert_eq!(waits(0, 600, false).await, 600);
        assert_eq!(waits(100, 600, true).await, 0);
        assert_eq!(waits(10, 600, true).await, 20, "however often that happens");
        assert_eq!(waits(0, 7200, false).await, 3600, "keys grow too old");
        let first = refresher(Progress::default());
        first.wait().await;
    }

    #[tokio::test(start_paused = true)]
    async fn keys_outlive_failures_until_they_are_too_old() {
        let refresher = refresher(Progress::default());
        refresher.succeeded(JwtKeys::secret(&[7; 32]).unwrap());
        tokio::time::advance(Duration::from_secs(3599)).await;
        refresher.failed(&FetchError::TooSlow);
        assert!(refresher.keys.get().is_some());
        tokio::time::advance(Duration::from_secs(1)).await;
        refresher.failed(&FetchError::TooSlow);
        assert!(refresher.keys.get().is_none());
    }

    #[test]
    fn gateways_that_were_started_together_do_not_fetch_together() {
        let pauses: Vec<_> = (0..50)
            .map(|_| jittered(Duration::from_secs(100)))
            .collect();
        assert!(
            pauses
                .iter()
                .all(|pause| (90..=100).contains(&pause.as_secs()))
        );
        assert!(pauses.iter().any(|pause| *pause != pauses[0]));
    }
}
