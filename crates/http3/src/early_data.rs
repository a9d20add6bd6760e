//! Requests that are sent before the handshake ends (0-RTT; RFC 9001, section 4.6, and RFC 8470).
//!
//! Whoever has seen such packets can send them again, and from another address. So they are served
//! before the end of the handshake only if
//! - their session has not been resumed before: a ticket is good for one handshake, and for this
//!   process alone (RFC 8446, section 8.1), so that a repeated packet is not read;
//! - their address is validated, by a token that an earlier connection got there (RFC 9000, section
//!   8.1.3): limits and bans go by addresses;
//! - their method is safe, and the app is told (`Early-Data: 1`).
//!
//! All others wait for the end of the handshake, which a repeated packet never reaches.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::{HeaderName, HeaderValue, Request};
use parking_lot::Mutex;
use quinn::crypto::ServerConfig as Crypto;
use quinn::{BloomTokenLog, ServerConfig, ValidationTokenConfig};
use rustls::server::{ProducesTickets, ServerSessionMemoryCache};
use tokio::sync::watch;

/// How many sessions can be resumed at a time. A connection gets tickets for two.
const MAX_SESSIONS: usize = 16 * 1024;

/// For how long an address is taken to be its client's, how many tokens a connection gets for that,
/// and what is remembered of those that were used: at most so many bytes, for so many in that time.
const TOKEN_LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);
const TOKENS: u32 = 2;
const USED_TOKENS: (usize, u64) = (1024 * 1024, 100_000);

const EARLY_DATA: HeaderName = HeaderName::from_static("early-data");

/// Lets clients of a listener send early data. Clones share what they know of clients, who may come
/// to any worker.
#[derive(Clone, Debug, Default)]
pub struct EarlyData(Arc<State>);

#[derive(Default)]
struct State {
    /// Has the key of tokens, and which were used.
    template: OnceLock<ServerConfig>,
    /// The sessions that may be resumed, and the TLS that they were begun by.
    sessions: Mutex<Option<(Arc<rustls::ServerConfig>, Arc<ServerSessionMemoryCache>)>>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").finish_non_exhaustive()
    }
}

impl EarlyData {
    /// Changes the TLS of connections of QUIC, which is `of` a listener.
    pub(crate) fn allow(&self, tls: &mut rustls::ServerConfig, of: &Arc<rustls::ServerConfig>) {
        // The only value but 0 (RFC 9001, section 4.6.1).
        tls.max_early_data_size = u32::MAX;
        // A ticket without a session that is kept here could be used any number of times.
        tls.ticketer = Arc::new(NoTicketer);
        tls.session_storage = self.sessions(of);
    }

    /// The sessions of those certificates: with new ones, all begin anew, as over TCP.
    fn sessions(&self, tls: &Arc<rustls::ServerConfig>) -> Arc<ServerSessionMemoryCache> {
        let mut kept = self.0.sessions.lock();
        match &*kept {
            Some((of, sessions)) if Arc::ptr_eq(of, tls) => Arc::clone(sessions),
            _ => {
                let sessions = ServerSessionMemoryCache::new(MAX_SESSIONS);
                *kept = Some((Arc::clone(tls), Arc::clone(&sessions)));
                sessions
            }
        }
    }

    /// What connections go by, with tokens that all workers know.
    pub(crate) fn server(&self, crypto: Arc<dyn Crypto>) -> ServerConfig {
        let template = self.0.template.get_or_init(|| {
            let (bytes, tokens) = USED_TOKENS;
            let mut config = ValidationTokenConfig::default();
            config
                .lifetime(TOKEN_LIFETIME)
                .sent(TOKENS)
                .log(Arc::new(BloomTokenLog::new_expected_items(bytes, tokens)));
            let mut template = ServerConfig::with_crypto(Arc::clone(&crypto));
            template.validation_token_config(config);
            template
        });
        let mut server = template.clone();
        server.crypto = crypto;
        server
    }
}

/// Leaves it to the kept sessions to be resumed.
#[derive(Debug)]
struct NoTicketer;

impl ProducesTickets for NoTicketer {
    fn enabled(&self) -> bool {
        false
    }

    fn lifetime(&self) -> u32 {
        0
    }

    fn encrypt(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }

    fn decrypt(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }
}

/// Whether the handshake of a connection is over.
#[derive(Clone)]
pub(crate) struct HandshakeEnd(Option<watch::Receiver<bool>>);

impl HandshakeEnd {
    /// It is over.
    pub(crate) const REACHED: Self = Self(None);

    /// It will be over when that is true.
    pub(crate) fn when(done: watch::Receiver<bool>) -> Self {
        Self(Some(done))
    }

    /// Whether it is not over yet, or never will be.
    pub(crate) fn is_ahead(&self) -> bool {
        self.0.as_ref().is_some_and(|done| !*done.borrow())
    }

    /// Lets a request of early data pass, now or at the end of the handshake; never if that fails.
    pub(crate) async fn admit(mut self, request: &mut Request<()>) -> bool {
        if request.method().is_safe() {
            // A field of the client's own says the same (RFC 8470, section 5.1).
            let headers = request.headers_mut();
            headers.insert(EARLY_DATA, HeaderValue::from_static("1"));
            return true;
        }
        match &mut self.0 {
            Some(done) => done.wait_for(|done| *done).await.is_ok(),
            None => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use rustls::server::ResolvesServerCertUsingSni;

    use super::*;

    fn tls() -> Arc<rustls::ServerConfig> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(ResolvesServerCertUsingSni::new()));
        Arc::new(tls)
    }

    #[test]
    fn workers_share_the_sessions_of_certificates_and_new_ones_begin_anew() {
        let (early_data, of) = (EarlyData::default(), tls());
        let (mut one, mut other, mut renewed) = ((*of).clone(), (*of).clone(), (*of).clone());
        early_data.allow(&mut one, &of);
        early_data.clone().allow(&mut other, &of);
        one.session_storage.put(b"id".to_vec(), b"session".to_vec());
        // A session is used up by whoever resumes it.
        assert!(other.session_storage.take(b"id").is_some());
        assert!(one.session_storage.take(b"id").is_none());
        one.session_storage.put(b"id".to_vec(), b"session".to_vec());
        early_data.allow(&mut renewed, &tls());
        assert!(renewed.session_storage.take(b"id").is_none());
        assert!(!one.ticketer.enabled());
    }
}
