//! Why a file of certificates, keys or revocation lists cannot be used.

use rustls::pki_types::pem;
use thiserror::Error;

/// Why a file cannot be used. The text follows the name of the file, and says after a semicolon
/// what to do.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum CertificateError {
    /// There is no certificate in the file.
    #[error(
        "contains no certificate; it must be PEM, which begins with -----BEGIN CERTIFICATE-----"
    )]
    NoCertificate,
    /// The certificate is not PEM but DER, PKCS#7 or PKCS#12.
    #[error(
        "is not PEM but binary; `openssl x509 -inform DER` makes PEM of it, and `openssl pkcs12 -nokeys` of PKCS#12"
    )]
    BinaryCertificate,
    /// There is no private key in the file.
    #[error(
        "contains no private key; it must be PEM, which begins with -----BEGIN PRIVATE KEY-----"
    )]
    NoKey,
    /// The private key is not PEM but DER or PKCS#12.
    #[error(
        "is not PEM but binary; `openssl pkey -inform DER` makes PEM of it, and `openssl pkcs12 -nocerts -noenc` of PKCS#12"
    )]
    BinaryKey,
    /// The private key is encrypted.
    #[error(
        "contains an encrypted key, which the gateway has no password for; \
         decrypt it with `openssl pkey`, and let only the gateway read the file"
    )]
    EncryptedKey,
    /// The file is broken.
    #[error("is broken: {0}")]
    Broken(String),
    /// rustls cannot use the key.
    #[error(
        "contains a key that cannot be used: {0}; RSA of 2048 to 8192 bits, ECDSA and Ed25519 can be"
    )]
    UnusableKey(String),
    /// rustls cannot use the certificate.
    #[error(
        "contains a certificate that cannot be used: {0}; \
         `openssl x509 -text` shows what it is, which must be X.509 of version 3"
    )]
    UnusableCertificate(String),
    /// The key belongs to another certificate.
    #[error(
        "is not the key of the certificate; the first certificate of a chain must be the server's own"
    )]
    Mismatch,
    /// There is no revocation list in the file.
    #[error(
        "contains no revocation list; it must be PEM, which begins with -----BEGIN X509 CRL-----"
    )]
    NoRevocationList,
    /// rustls cannot use the revocation list.
    #[error("contains a revocation list that cannot be used: {0}")]
    UnusableList(String),
    /// The system has no random numbers.
    #[error("cannot be used: {0}")]
    Refused(String),
}

impl CertificateError {
    pub(super) fn broken(error: pem::Error) -> Self {
        Self::Broken(match error {
            pem::Error::MissingSectionEnd { .. } => "it ends within a section".to_owned(),
            pem::Error::IllegalSectionStart { .. } => {
                "a line has no name between dashes".to_owned()
            }
            error => error.to_string(),
        })
    }

    pub(super) fn unusable_certificate(error: rustls::Error) -> Self {
        Self::UnusableCertificate(inner(error))
    }

    pub(super) fn unusable_key(error: rustls::Error) -> Self {
        Self::UnusableKey(inner(error))
    }
}

/// The message of rustls without its prefix.
fn inner(error: rustls::Error) -> String {
    match error {
        rustls::Error::InvalidCertificate(rustls::CertificateError::Other(cause)) => {
            cause.to_string()
        }
        rustls::Error::InvalidCertificate(cause) => cause.to_string(),
        rustls::Error::General(cause) => cause,
        error => error.to_string(),
    }
}
