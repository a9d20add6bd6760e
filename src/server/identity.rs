//! Who a server is: a chain of certificates and the key of the first, as they are read from files.

use std::sync::Arc;
use std::time::Duration;

use rustls::CertificateError::{ExpiredContext, NotValidYetContext};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::{InconsistentKeys, RootCertStore, SignatureScheme};

use super::certificate_error::CertificateError;

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
    pub fn from_pem(file: &[u8]) -> Result<Self, CertificateError> {
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(file).collect();
        let chain = Self(certificates.map_err(CertificateError::broken)?);
        match chain.own() {
            None if is_der(file) => Err(CertificateError::BinaryCertificate),
            None => Err(CertificateError::NoCertificate),
            Some(Err(cause)) => Err(CertificateError::unusable_certificate(cause)),
            Some(Ok(_)) => Ok(chain),
        }
    }

    fn own(&self) -> Option<Result<ParsedCertificate<'_>, rustls::Error>> {
        self.0.first().map(ParsedCertificate::try_from)
    }

    /// When the server's own certificate begins to be valid if that is after `time`; both are
    /// lengths of time since the Unix epoch.
    pub fn begins_after(&self, time: Duration) -> Option<Duration> {
        match invalid_at(self.0.first()?, time)? {
            NotValidYetContext { not_before, .. } => Some(since_epoch(not_before)),
            _ => None,
        }
    }

    /// When the server's own certificate expires if that is before `time`, likewise.
    pub fn expires_before(&self, time: Duration) -> Option<Duration> {
        expires_before(self.0.first()?, time)
    }
}

fn expires_before(own: &CertificateDer<'_>, time: Duration) -> Option<Duration> {
    match invalid_at(own, time)? {
        ExpiredContext { not_after, .. } => Some(since_epoch(not_after)),
        _ => None,
    }
}

/// Why clients refuse a certificate at a time. That nobody is trusted is found out last.
fn invalid_at(own: &CertificateDer<'_>, time: Duration) -> Option<rustls::CertificateError> {
    let verified = verify_server_cert_signed_by_trust_anchor(
        &ParsedCertificate::try_from(own).ok()?,
        &RootCertStore::empty(),
        &[],
        UnixTime::since_unix_epoch(time),
        default_provider().signature_verification_algorithms.all,
    );
    match verified {
        Err(rustls::Error::InvalidCertificate(cause)) => Some(cause),
        _ => None,
    }
}

fn since_epoch(time: UnixTime) -> Duration {
    Duration::from_secs(time.as_secs())
}

impl PrivateKey {
    /// Takes the first private key of a file: PKCS#8, PKCS#1 or SEC1.
    ///
    /// # Errors
    /// When there is none, or it cannot be used.
    pub fn from_pem(file: &[u8]) -> Result<Self, CertificateError> {
        // Its name says so in PKCS#8, and a header in the older forms; no base64 has these characters.
        let text = String::from_utf8_lossy(file);
        if text.contains("BEGIN ENCRYPTED") || text.contains(",ENCRYPTED") {
            return Err(CertificateError::EncryptedKey);
        }
        let key = PrivateKeyDer::from_pem_slice(file).map_err(|error| match error {
            pem::Error::NoItemsFound if is_der(file) => CertificateError::BinaryKey,
            pem::Error::NoItemsFound => CertificateError::NoKey,
            error => CertificateError::broken(error),
        })?;
        let key = default_provider().key_provider.load_private_key(key);
        key.map(Self).map_err(CertificateError::unusable_key)
    }
}

/// Whether a file is in DER: it is no text, and begins with a sequence.
fn is_der(file: &[u8]) -> bool {
    let binary = |it: &u8| it.is_ascii_control() && !it.is_ascii_whitespace();
    file.first() == Some(&0x30) && file.iter().any(binary)
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

    /// When its certificate expires, after the Unix epoch.
    pub(super) fn expires(&self) -> Option<Duration> {
        expires_before(self.0.cert.first()?, Duration::from_secs(u64::MAX))
    }

    /// Whether its key makes one of these signatures.
    pub(super) fn signs(&self, signatures: &[SignatureScheme]) -> bool {
        self.0.key.choose_scheme(signatures).is_some()
    }

    /// Whether a client that asks for this name may be shown this certificate.
    pub(super) fn fits(&self, name: &ServerName<'_>) -> bool {
        let own = self.0.cert.first().map(ParsedCertificate::try_from);
        own.is_some_and(|own| own.is_ok_and(|own| verify_server_name(&own, name).is_ok()))
    }
}
