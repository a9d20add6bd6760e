//! Certificates by ACME: obtained when they are missing, renewed in time, and put into force
//! without a restart. While one cannot be renewed, the old one is shown until its end.

mod cache;
mod metrics;
mod order;

use std::collections::HashSet;
use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use rand::RngExt;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;
use weir_config::gateway::listen::acme::AcmeCertificate;
use weir_config::{Listener, Until};
use weir_limit::time::Timestamp;
use weir_server::{Challenges, Identity};
use weir_telemetry::Metrics;

use self::cache::{Cache, identity};
pub(in crate::app) use self::metrics::AcmeMetrics;
use self::order::{OrderError, Ordering, blocking};
use super::{Socket, renew};

/// The target of its log lines, as filters name it.
const TARGET: &str = "weir::app::acme";

/// The share of its life after which a certificate is renewed. It is a range, so that gateways that
/// were started together do not order together.
const RENEWED_AT: (f64, f64) = (0.64, 2.0 / 3.0);

/// The first and the longest pause after the server refused an order. Let's Encrypt allows five
/// failures an hour for each domain.
const BACK_OFF_REFUSED: (Duration, Duration) =
    (Duration::from_secs(2 * 60), Duration::from_secs(3600));

/// The same if the server cannot be reached, which is no failure to it.
const BACK_OFF: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(600));

/// Interval of attempts to take the lock, while this or another process orders.
const LOCK_INTERVAL: Duration = Duration::from_secs(1);

/// Sleeps are cut to this, as the system's clock may be set.
const MAX_SLEEP: Duration = Duration::from_secs(3600);

/// The certificates by ACME of the configuration in force. Clones share them.
#[derive(Clone)]
pub(super) struct AcmeCertificates(Arc<SharedCertificates>);

struct SharedCertificates {
    challenges: Challenges,
    metrics: Arc<Metrics>,
    state: Mutex<ManagedCertificates>,
}

#[derive(Default)]
struct ManagedCertificates {
    listeners: Vec<Listener>,
    managed: Vec<Managed>,
    /// `None` before the process serves.
    sockets: Option<Vec<Socket>>,
}

/// A certificate, and the task that renews it.
struct Managed {
    certificate: AcmeCertificate,
    identity: Option<Identity>,
    /// When to order; at once if `None`.
    due: Option<SystemTime>,
    task: Option<AbortOnDropHandle<Infallible>>,
}

impl AcmeCertificates {
    pub(super) fn new(metrics: &Arc<Metrics>) -> Self {
        Self(Arc::new(SharedCertificates {
            challenges: Challenges::default(),
            metrics: Arc::clone(metrics),
            state: Mutex::default(),
        }))
    }

    pub(super) fn challenges(&self) -> &Challenges {
        &self.0.challenges
    }

    /// Obtains and renews what these listeners need from now on, and nothing else. Returns them
    /// with the certificates that are there already.
    pub(super) fn configure(&self, listeners: &[Listener]) -> Vec<Listener> {
        let mut state = self.0.state.lock();
        let before = std::mem::take(&mut state.managed);
        let mut seen = HashSet::new();
        let needed = listeners.iter().flat_map(|listener| &listener.acme);
        let needed: Vec<_> = needed
            .filter(|certificate| seen.insert(&certificate.domain))
            .collect();
        self.0.challenges.set_in_use(!needed.is_empty());
        let mut before: Vec<_> = before.into_iter().map(Some).collect();
        let managed = needed.into_iter().map(|certificate| {
            let domain = &certificate.domain;
            let slot = before.iter_mut().find(|known| {
                known
                    .as_ref()
                    .is_some_and(|known| known.certificate.domain == *domain)
            });
            match slot.and_then(Option::take) {
                Some(known) if known.certificate == *certificate => known,
                // A certificate of another authority is better than none.
                known => Managed::load(certificate, known.and_then(|known| known.identity)),
            }
        });
        state.managed = managed.collect();
        state.listeners = listeners.to_vec();
        if state.sockets.is_some() {
            self.spawn(&mut state);
        }
        state.certified()
    }

    /// Begins to order, and puts what is obtained into force on these sockets. Call it when no
    /// other process serves on them: it would get the challenges. Must be called on a runtime.
    pub(super) fn begin(&self, sockets: &[Socket]) {
        let mut state = self.0.state.lock();
        state.sockets = Some(sockets.to_vec());
        self.spawn(&mut state);
    }

    /// Stops ordering.
    pub(super) fn end(&self) {
        let mut state = self.0.state.lock();
        state.sockets = None;
        for managed in &mut state.managed {
            managed.task = None;
        }
    }

    /// A domain that has no valid certificate.
    pub(super) fn missing(&self) -> Option<String> {
        let now = SystemTime::now();
        let state = self.0.state.lock();
        let mut managed = state.managed.iter();
        let missing = managed.find(|managed| !managed.is_valid(now))?;
        Some(missing.certificate.domain.clone())
    }

    fn spawn(&self, state: &mut ManagedCertificates) {
        for managed in &mut state.managed {
            if managed.task.is_none() {
                let renewer = Renewer {
                    cache: Cache::new(&managed.certificate.settings),
                    certificate: managed.certificate.clone(),
                    metrics: AcmeMetrics::new(&self.0.metrics, &managed.certificate.domain),
                    owner: self.clone(),
                };
                let task = tokio::spawn(renewer.run(managed.due, managed.identity.is_some()));
                managed.task = Some(AbortOnDropHandle::new(task));
            }
        }
    }

    fn put_into_force(&self, certificate: &AcmeCertificate, identity: &Identity) {
        let mut state = self.0.state.lock();
        let mut managed = state.managed.iter_mut();
        if let Some(managed) = managed.find(|managed| managed.certificate == *certificate) {
            managed.identity = Some(identity.clone());
        }
        if let Some(sockets) = &state.sockets {
            renew(sockets, &state.certified());
        }
    }
}

impl ManagedCertificates {
    fn certified(&self) -> Vec<Listener> {
        let listeners = self.listeners.iter();
        listeners
            .map(|listener| self.with_certificates(listener))
            .collect()
    }

    fn with_certificates(&self, listener: &Listener) -> Listener {
        let identities = listener.acme.iter().filter_map(|wanted| {
            let mut managed = self.managed.iter();
            let managed = managed.find(|managed| managed.certificate.domain == wanted.domain)?;
            managed.identity.clone()
        });
        let identities: Vec<_> = identities.collect();
        let mut listener = listener.clone();
        if let (Some(certificates), false) = (&listener.certificates, identities.is_empty()) {
            match certificates.with(identities) {
                Ok(certificates) => listener.certificates = Some(certificates),
                Err(error) => {
                    tracing::error!(target: TARGET, %error, "certificates cannot be put into force");
                }
            }
        }
        listener
    }
}

impl Managed {
    /// With the identity that is kept on disk, or else `other`.
    fn load(certificate: &AcmeCertificate, other: Option<Identity>) -> Self {
        let kept = Cache::new(&certificate.settings).certificate(&certificate.domain);
        let kept = kept.unwrap_or_else(|error| {
            let domain = &certificate.domain;
            tracing::warn!(target: TARGET, domain, %error, "the certificate that is kept cannot be used");
            None
        });
        Self {
            certificate: certificate.clone(),
            due: kept.as_ref().and_then(renewal),
            identity: kept.or(other),
            task: None,
        }
    }

    fn is_valid(&self, now: SystemTime) -> bool {
        let expires = self.identity.as_ref().and_then(Identity::expires);
        expires.is_some_and(|expires| UNIX_EPOCH + expires > now)
    }
}

struct Renewer {
    certificate: AcmeCertificate,
    cache: Cache,
    metrics: AcmeMetrics,
    owner: AcmeCertificates,
}

impl Renewer {
    async fn run(self, mut due: Option<SystemTime>, mut has_certificate: bool) -> Infallible {
        let domain = &self.certificate.domain;
        if !has_certificate {
            tracing::info!(
                target: TARGET,
                domain,
                "no certificate yet; TLS handshakes fail until it is obtained"
            );
        }
        let mut failures = 0;
        loop {
            sleep_until(due).await;
            match self.renew(failures).await {
                Ok(identity) => {
                    failures = 0;
                    has_certificate = true;
                    due = renewal(&identity);
                }
                Err(error) => {
                    let pause = jittered(back_off(failures, error.is_refusal()));
                    failures += 1;
                    due = Some(SystemTime::now() + pause);
                    let (metrics, has_one) = (&self.metrics, has_certificate);
                    metrics::certificate_unavailable(metrics, domain, &error, pause, has_one);
                }
            }
        }
    }

    /// Puts into force a certificate that another process has renewed, or orders one.
    async fn renew(&self, failures: u32) -> Result<Identity, OrderError> {
        let _lock = self.lock().await?;
        let domain = &self.certificate.domain;
        let (cache, name_of_file) = (self.cache.clone(), domain.clone());
        // `Managed::load` has warned of a certificate that cannot be used.
        let kept = blocking(move || Ok(cache.certificate(&name_of_file).ok().flatten())).await?;
        if let Some(identity) = kept.filter(|kept| !is_due(kept, SystemTime::now())) {
            self.owner.put_into_force(&self.certificate, &identity);
            tracing::info!(
                target: TARGET,
                domain,
                "certificate taken that another process has obtained"
            );
            return Ok(identity);
        }
        let settings = &self.certificate.settings;
        let index = usize::try_from(failures).unwrap_or_default();
        let mut challenges = settings.challenges.iter().cycle();
        let challenge = *challenges
            .nth(index % settings.challenges.len().max(1))
            .ok_or(OrderError::Cache(io::Error::other("there is no challenge")))?;
        let ordering = Ordering {
            domain,
            settings,
            cache: &self.cache,
            challenges: self.owner.challenges(),
            challenge,
        };
        let pem = ordering.obtain().await?;
        let obtained = identity(pem.as_bytes()).map_err(OrderError::Certificate)?;
        let (cache, name_of_file) = (self.cache.clone(), domain.clone());
        blocking(move || cache.keep_certificate(&name_of_file, &pem)).await?;
        let expires = obtained.expires().unwrap_or_default();
        let expires = u64::try_from(expires.as_nanos()).unwrap_or(u64::MAX);
        let expires = Until(Timestamp::from_nanos(expires));
        // Before the log says so: a script may wait for that line, and connect.
        self.owner.put_into_force(&self.certificate, &obtained);
        metrics::certificate_obtained(&self.metrics, domain, &challenge, &expires);
        Ok(obtained)
    }

    /// Waits until no other order at this server is under way.
    async fn lock(&self) -> io::Result<File> {
        loop {
            let cache = self.cache.clone();
            if let Some(lock) = blocking(move || cache.try_lock()).await? {
                return Ok(lock);
            }
            sleep(jittered(LOCK_INTERVAL)).await;
        }
    }
}

/// When to renew a certificate, if it says how long it is valid.
fn renewal(identity: &Identity) -> Option<SystemTime> {
    let (earliest, latest) = RENEWED_AT;
    at_share_of_life(identity, rand::rng().random_range(earliest..=latest))
}

fn is_due(identity: &Identity, now: SystemTime) -> bool {
    at_share_of_life(identity, RENEWED_AT.0).is_none_or(|earliest| earliest <= now)
}

fn at_share_of_life(identity: &Identity, share: f64) -> Option<SystemTime> {
    let (begins, expires) = identity.validity()?;
    let life = expires.checked_sub(begins)?;
    UNIX_EPOCH.checked_add(begins + life.mul_f64(share))
}

fn back_off(failures: u32, is_refusal: bool) -> Duration {
    let (first, longest) = match is_refusal {
        true => BACK_OFF_REFUSED,
        false => BACK_OFF,
    };
    first
        .saturating_mul(2_u32.saturating_pow(failures))
        .min(longest)
}

/// Adds up to a tenth.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(rand::rng().random_range(1.0..=1.1))
}

/// Returns at once without a time.
async fn sleep_until(due: Option<SystemTime>) {
    let left = || due?.duration_since(SystemTime::now()).ok();
    while let Some(left) = left().filter(|left| !left.is_zero()) {
        sleep(left.min(MAX_SLEEP)).await;
    }
}

#[cfg(test)]
mod tests {
    use weir_testing::certificates::Certificate;

    use super::*;

    #[test]
    fn a_certificate_is_renewed_after_two_thirds_of_its_life_at_the_latest() {
        let day = Duration::from_secs(24 * 3600);
        let pair = Certificate::lasting("a.example.com", 90);
        let pem = format!("{}{}", pair.key, pair.certificate);
        let identity = identity(pem.as_bytes()).unwrap();
        let now = SystemTime::now();
        let after: Vec<_> = (0..50)
            .map(|_| renewal(&identity).unwrap().duration_since(now).unwrap())
            .collect();
        assert!(
            after
                .iter()
                .all(|after| *after > 57 * day && *after <= 60 * day)
        );
        assert!(after.iter().any(|other| *other != after[0]));
        assert!(!is_due(&identity, now + 57 * day));
        assert!(is_due(&identity, now + 58 * day));
    }

    #[test]
    fn five_refusals_an_hour_are_not_exceeded() {
        let pauses = (0..100).map(|failures| back_off(failures, true));
        let mut at = Duration::ZERO;
        let mut attempts = vec![at];
        for pause in pauses {
            at += pause;
            attempts.push(at);
        }
        let hour = Duration::from_secs(3600);
        for start in &attempts {
            let within = |other: &&Duration| *other >= start && **other < *start + hour;
            assert!(attempts.iter().filter(within).count() <= 5);
        }
    }

    #[test]
    fn a_server_that_cannot_be_reached_is_tried_again_soon_and_then_less_often() {
        assert_eq!(back_off(0, false), Duration::from_secs(5));
        assert_eq!(back_off(1, false), Duration::from_secs(10));
        assert_eq!(back_off(1000, false), Duration::from_secs(600));
    }
}
