//! The certificates by which a listener proves to its clients that it is who they asked for.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::aws_lc_rs::{Ticketer, default_provider};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert};
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::{InconsistentKeys, RootCertStore, ServerConfig};
use thiserror::Error;

/// The protocols that clients may choose from, the best one first (RFC 7301).
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Why a file is of no use. It is said of the file, and after a semicolon what to do about it.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum CertificateError {
    /// There is no certificate in the file.
    #[error(
        "has no certificate in it; it must be PEM, which begins with -----BEGIN CERTIFICATE-----"
    )]
    NoCertificate,
    /// There is no private key in the file.
    #[error(
        "has no private key in it; it must be PEM, which begins with -----BEGIN PRIVATE KEY-----"
    )]
    NoKey,
    /// The private key is encrypted.
    #[error(
        "has an encrypted key in it, for which nobody is there to enter the password; \
         decrypt it with `openssl pkey`, and let nobody else read the file"
    )]
    EncryptedKey,
    /// The file is broken.
    #[error("is broken: {0}")]
    Broken(String),
    /// The key is none that rustls can use.
    #[error(
        "has a key in it that cannot be used: {0}; RSA of 2048 to 8192 bits, ECDSA and Ed25519 can be"
    )]
    UnusableKey(String),
    /// The certificate is none that rustls can use.
    #[error("has a certificate in it that cannot be used: {0}")]
    UnusableCertificate(String),
    /// The key belongs to another certificate.
    #[error(
        "is not the key of the certificate; the first certificate of a chain must be the server's own"
    )]
    Mismatch,
    /// The system has no random numbers.
    #[error("cannot be used: {0}")]
    Refused(String),
}

/// A server's certificate, and those that lead from it to one that clients know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain(Vec<CertificateDer<'static>>);

/// A private key, ready to sign.
#[derive(Clone, Debug)]
pub struct PrivateKey(Arc<dyn SigningKey>);

impl Chain {
    /// Takes all certificates of a file, the server's own first.
    ///
    /// # Errors
    /// When there is none, or the first one is none that a server can show.
    pub fn from_pem(text: &str) -> Result<Self, CertificateError> {
        let certificates: Result<Vec<_>, _> =
            CertificateDer::pem_slice_iter(text.as_bytes()).collect();
        let chain = Self(certificates.map_err(broken)?);
        match chain.own() {
            None => Err(CertificateError::NoCertificate),
            Some(Err(cause)) => Err(CertificateError::UnusableCertificate(inner(cause))),
            Some(Ok(_)) => Ok(chain),
        }
    }

    fn own(&self) -> Option<Result<ParsedCertificate<'_>, rustls::Error>> {
        self.0.first().map(ParsedCertificate::try_from)
    }

    /// When the server's own certificate expires if that is before `time`; both are lengths of
    /// time since the Unix epoch.
    pub fn expires_before(&self, time: Duration) -> Option<Duration> {
        use rustls::CertificateError::ExpiredContext;
        let own = self.own()?.ok()?;
        // That nobody is trusted does not matter: the time is looked at first.
        let verified = verify_server_cert_signed_by_trust_anchor(
            &own,
            &RootCertStore::empty(),
            &[],
            UnixTime::since_unix_epoch(time),
            default_provider().signature_verification_algorithms.all,
        );
        match verified {
            Err(rustls::Error::InvalidCertificate(ExpiredContext { not_after, .. })) => {
                Some(Duration::from_secs(not_after.as_secs()))
            }
            _ => None,
        }
    }
}

impl PrivateKey {
    /// Takes the first private key of a file: PKCS#8, PKCS#1 or SEC1.
    ///
    /// # Errors
    /// When there is none, or it cannot be used.
    pub fn from_pem(text: &str) -> Result<Self, CertificateError> {
        // Its name says so in PKCS#8, and a header in the older forms; no base64 has these characters.
        if text.contains("BEGIN ENCRYPTED") || text.contains(",ENCRYPTED") {
            return Err(CertificateError::EncryptedKey);
        }
        let key = PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|error| match error {
            pem::Error::NoItemsFound => CertificateError::NoKey,
            error => broken(error),
        })?;
        let key = default_provider().key_provider.load_private_key(key);
        key.map(Self)
            .map_err(|cause| CertificateError::UnusableKey(inner(cause)))
    }
}

fn broken(error: pem::Error) -> CertificateError {
    CertificateError::Broken(match error {
        pem::Error::MissingSectionEnd { .. } => "it ends within a section".to_owned(),
        pem::Error::IllegalSectionStart { .. } => "a line has no name between dashes".to_owned(),
        error => error.to_string(),
    })
}

/// What rustls says, without its words for where it usually happens.
fn inner(error: rustls::Error) -> String {
    match error {
        rustls::Error::InvalidCertificate(cause) => cause.to_string(),
        rustls::Error::General(cause) => cause,
        error => error.to_string(),
    }
}

/// A chain and the key of its first certificate.
#[derive(Clone, Debug)]
pub struct Identity(Arc<CertifiedKey>);

impl Identity {
    /// Puts them together.
    ///
    /// # Errors
    /// When the key belongs to another certificate.
    pub fn new(chain: Chain, key: PrivateKey) -> Result<Self, CertificateError> {
        let certified = CertifiedKey::new(chain.0, key.0);
        match certified.keys_match() {
            Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => {
                Ok(Self(Arc::new(certified)))
            }
            Err(_) => Err(CertificateError::Mismatch),
        }
    }

    fn fits(&self, name: &ServerName<'_>) -> bool {
        let own = self.0.cert.first().map(ParsedCertificate::try_from);
        own.is_some_and(|own| own.is_ok_and(|own| verify_server_name(&own, name).is_ok()))
    }
}

/// The certificates of a listener; a client gets the first that has the name it asks for, or else
/// the first.
#[derive(Clone)]
pub struct Certificates {
    choice: Arc<Choice>,
    config: Arc<ServerConfig>,
}

impl Certificates {
    /// Makes them ready for clients.
    ///
    /// # Errors
    /// When the system has no random numbers, which tickets for sessions are sealed with.
    pub fn new(identities: Vec<Identity>) -> Result<Self, CertificateError> {
        let choice = Arc::new(Choice(identities));
        let config = server_config(Arc::clone(&choice));
        let config = config.map_err(|cause| CertificateError::Refused(cause.to_string()))?;
        let config = Arc::new(config);
        Ok(Self { choice, config })
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

    fn of(&self, name: Option<&str>) -> Option<&Identity> {
        let first = self.0.first();
        if self.0.len() == 1 {
            return first;
        }
        let name = name.and_then(|it| ServerName::try_from(it).ok());
        let fitting = name.and_then(|name| self.0.iter().find(|it| it.fits(&name)));
        fitting.or(first)
    }
}

impl ResolvesServerCert for Choice {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.of(hello.server_name()).map(|it| Arc::clone(&it.0))
    }
}
