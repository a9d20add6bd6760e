//! The certificates by which a listener proves to its clients that it is who they asked for.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::aws_lc_rs::{Ticketer, default_provider};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, SignatureScheme};

use super::certificate_error::CertificateError;
use super::identity::Identity;

/// The protocols that clients may choose from, the best one first (RFC 7301).
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The certificates of a listener; of those whose signatures it knows, a client gets the first that has
/// the name it asks for, or else the first.
#[derive(Clone)]
pub struct Certificates {
    choice: Arc<Choice>,
    config: Arc<ServerConfig>,
    expires: Option<Duration>,
}

impl Certificates {
    /// Makes them ready for clients.
    ///
    /// # Errors
    /// When the system has no random numbers, which tickets for sessions are sealed with.
    pub fn new(identities: Vec<Identity>) -> Result<Self, CertificateError> {
        let expires = identities.iter().filter_map(Identity::expires).min();
        let choice = Arc::new(Choice(identities));
        let config = server_config(Arc::clone(&choice));
        let config = config.map_err(|cause| CertificateError::Refused(cause.to_string()))?;
        let config = Arc::new(config);
        Ok(Self {
            choice,
            config,
            expires,
        })
    }

    /// When the first of them expires, after the Unix epoch.
    pub fn expires(&self) -> Option<Duration> {
        self.expires
    }

    pub(super) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }
}

/// The same certificates; their keys are the same as well, since each certificate has only one.
impl PartialEq for Certificates {
    fn eq(&self, other: &Self) -> bool {
        self.choice.chains().eq(other.choice.chains())
    }
}

impl Eq for Certificates {}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.choice.0.len();
        f.debug_tuple("Certificates").field(&count).finish()
    }
}

fn server_config(choice: Arc<Choice>) -> Result<ServerConfig, rustls::Error> {
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth();
    let mut config = config.with_cert_resolver(choice);
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
    config.ticketer = Ticketer::new()?;
    Ok(config)
}

#[derive(Debug)]
struct Choice(Vec<Identity>);

impl Choice {
    fn chains(&self) -> impl Iterator<Item = &[CertificateDer<'static>]> {
        self.0.iter().map(|it| it.0.cert.as_slice())
    }

    /// With these signatures a client can be convinced.
    fn of(&self, name: Option<&str>, signatures: &[SignatureScheme]) -> Option<&Identity> {
        let first = self.0.first();
        if self.0.len() == 1 {
            return first;
        }
        let mut convincing = self.0.iter().filter(|it| it.signs(signatures));
        let name = name.and_then(|it| ServerName::try_from(it).ok());
        let fitting = name.and_then(|name| convincing.clone().find(|it| it.fits(&name)));
        fitting.or_else(|| convincing.next()).or(first)
    }
}

impl ResolvesServerCert for Choice {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let found = self.of(hello.server_name(), hello.signature_schemes());
        found.map(|it| Arc::clone(&it.0))
    }
}
