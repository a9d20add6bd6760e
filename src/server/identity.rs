//! Who a server is: a chain of certificates and the key of the first, as they are read from files.

use std::sync::Arc;
use std::time::Duration;

use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::{InconsistentKeys, RootCertStore};
use thiserror::Error;

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
pub struct Identity(pub(super) Arc<CertifiedKey>);

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

    /// Whether a client that asks for this name may be shown this certificate.
    pub(super) fn fits(&self, name: &ServerName<'_>) -> bool {
        let own = self.0.cert.first().map(ParsedCertificate::try_from);
        own.is_some_and(|own| own.is_ok_and(|own| verify_server_name(&own, name).is_ok()))
    }
}
