//! The certificates that a listener shows its clients: read from PEM files, checked, and chosen by
//! the name that a client asks for.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rustls::CertificateError::{ExpiredContext, NotValidYetContext};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::aws_lc_rs::{Ticketer, default_provider};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert};
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::{InconsistentKeys, RootCertStore, ServerConfig, SignatureScheme};
use smallvec::SmallVec;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::certificate_error::CertificateError;
use super::client_auth::ClientAuth;

/// A certificate is about to end when this part of its life is left: later than it is renewed, by
/// ACME and other tools, after two thirds.
const LAST_PART: u32 = 6;

/// How long before its end that is at most.
const ENDS_SOON: Duration = Duration::from_secs(14 * 24 * 3600);

/// The ALPN protocols, the preferred one first (RFC 7301).
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The certificates of a listener. Of those whose signatures a client supports, it gets the first
/// that matches the name it asks for, or else the first.
#[derive(Clone)]
pub struct Certificates {
    choice: Arc<Choice>,
    clients: Option<ClientAuth>,
    config: Arc<ServerConfig>,
    /// From when and until when the one that expires first is valid, since the Unix epoch.
    validity: Option<(Duration, Duration)>,
}

impl Certificates {
    /// Prepares them for handshakes, in which clients may have to show certificates as well.
    ///
    /// # Errors
    /// When the system has no random numbers, which tickets for sessions are sealed with.
    pub fn new(
        identities: Vec<Identity>,
        clients: Option<ClientAuth>,
    ) -> Result<Self, CertificateError> {
        let validities = identities.iter().filter_map(Identity::validity);
        let validity = validities.min_by_key(|(_, expires)| *expires);
        let choice = Arc::new(Choice::new(identities));
        let config = server_config(Arc::clone(&choice), clients.as_ref());
        let config = config.map_err(|cause| CertificateError::Refused(cause.to_string()))?;
        let config = Arc::new(config);
        Ok(Self {
            choice,
            clients,
            config,
            validity,
        })
    }

    /// These, and others behind them.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with(&self, others: Vec<Identity>) -> Result<Self, CertificateError> {
        let identities = self.choice.identities.iter().cloned().chain(others);
        Self::new(identities.collect(), self.clients.clone())
    }

    /// When the first of them expires, since the Unix epoch.
    pub fn expires(&self) -> Option<Duration> {
        self.validity.map(|(_, expires)| expires)
    }

    /// How long the first of them is still valid at a time, if it is about to end; zero if it has
    /// ended.
    pub(super) fn ends_soon(&self, now: Duration) -> Option<Duration> {
        let (begins, expires) = self.validity?;
        let left = expires.saturating_sub(now);
        let soon = (expires.saturating_sub(begins) / LAST_PART).min(ENDS_SOON);
        (left <= soon).then_some(left)
    }

    pub(super) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }
}

/// Compares the certificates, and which ones of clients are accepted. Equal certificates have equal
/// keys.
impl PartialEq for Certificates {
    fn eq(&self, other: &Self) -> bool {
        self.choice.chains().eq(other.choice.chains()) && self.clients == other.clients
    }
}

impl Eq for Certificates {}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.choice.identities.len();
        f.debug_tuple("Certificates").field(&count).finish()
    }
}

fn server_config(
    choice: Arc<Choice>,
    clients: Option<&ClientAuth>,
) -> Result<ServerConfig, rustls::Error> {
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()?;
    let config = match clients {
        Some(clients) => config.with_client_cert_verifier(clients.verifier()),
        None => config.with_no_client_auth(),
    };
    let mut config = config.with_cert_resolver(choice);
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
    config.ticketer = Ticketer::new()?;
    Ok(config)
}

#[derive(Debug)]
struct Choice {
    identities: Vec<Identity>,
    /// Which of them are valid for a name, in order. A wildcard stands under its whole name.
    by_name: HashMap<String, Vec<usize>>,
}

impl Choice {
    fn new(identities: Vec<Identity>) -> Self {
        let mut by_name = HashMap::<_, Vec<_>>::new();
        for (index, identity) in identities.iter().enumerate() {
            for name in identity.names() {
                by_name.entry(name).or_default().push(index);
            }
        }
        Self {
            identities,
            by_name,
        }
    }

    fn chains(&self) -> impl Iterator<Item = &[CertificateDer<'static>]> {
        self.identities
            .iter()
            .map(|identity| identity.0.cert.as_slice())
    }

    /// Chooses one whose signature the client supports.
    fn of(&self, name: Option<&str>, signatures: &[SignatureScheme]) -> Option<&Identity> {
        let first = self.identities.first();
        if self.identities.len() == 1 {
            return first;
        }
        let signs = |identity: &&Identity| identity.signs(signatures);
        let fitting = name.and_then(|name| self.valid_for(name).find(signs));
        fitting
            .or_else(|| self.identities.iter().find(signs))
            .or(first)
    }

    /// The identities that are valid for a name, in order.
    fn valid_for(&self, name: &str) -> impl Iterator<Item = &Identity> {
        let name = name.to_ascii_lowercase();
        let wildcard = name
            .split_once('.')
            .map(|(_, parent)| format!("*.{parent}"));
        let of = |name: &str| self.by_name.get(name).map_or(&[][..], Vec::as_slice);
        let exact = of(&name);
        let wild = wildcard.as_deref().map_or(&[][..], of);
        let mut places: SmallVec<[usize; 8]> = exact.iter().chain(wild).copied().collect();
        places.sort_unstable();
        let identity = |place| self.identities.get(place);
        places.into_iter().filter_map(identity)
    }
}

impl ResolvesServerCert for Choice {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let found = self.of(hello.server_name(), hello.signature_schemes());
        found.map(|identity| Arc::clone(&identity.0))
    }
}

/// The leaf certificate, then the intermediates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain(Vec<CertificateDer<'static>>);

/// A private key, ready to sign.
#[derive(Clone, Debug)]
pub struct PrivateKey(Arc<dyn SigningKey>);

impl Chain {
    /// Takes all certificates of a file, the leaf certificate first.
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

    /// When the leaf certificate becomes valid, if that is after `time`; both are since the Unix
    /// epoch.
    pub fn begins_after(&self, time: Duration) -> Option<Duration> {
        begins_after(self.0.first()?, time)
    }

    /// When the leaf certificate expires, if that is before `time`, likewise.
    pub fn expires_before(&self, time: Duration) -> Option<Duration> {
        expires_before(self.0.first()?, time)
    }
}

fn begins_after(own: &CertificateDer<'_>, time: Duration) -> Option<Duration> {
    match invalid_at(own, time)? {
        NotValidYetContext { not_before, .. } => Some(since_epoch(not_before)),
        _ => None,
    }
}

fn expires_before(own: &CertificateDer<'_>, time: Duration) -> Option<Duration> {
    match invalid_at(own, time)? {
        ExpiredContext { not_after, .. } => Some(since_epoch(not_after)),
        _ => None,
    }
}

/// Why clients refuse a certificate at a time. The verification checks the times first, and only
/// then fails because there are no trust anchors.
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
        // PKCS#8 says so in its label, and the older forms in a header. Base64 does not contain
        // these characters.
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

/// Whether a file is DER: binary, and beginning with a sequence.
fn is_der(file: &[u8]) -> bool {
    let binary = |byte: &u8| byte.is_ascii_control() && !byte.is_ascii_whitespace();
    file.first() == Some(&0x30) && file.iter().any(binary)
}

/// A chain and the key of its leaf certificate.
#[derive(Clone, Debug)]
pub struct Identity(pub(super) Arc<CertifiedKey>);

impl Identity {
    /// Combines them.
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

    /// The certificate and key for rustls.
    pub fn certified_key(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.0)
    }

    /// From when and until when its certificate is valid, since the Unix epoch.
    pub fn validity(&self) -> Option<(Duration, Duration)> {
        let own = self.0.cert.first()?;
        let begins = begins_after(own, Duration::ZERO)?;
        Some((begins, self.expires()?))
    }

    /// When its certificate expires, since the Unix epoch.
    pub fn expires(&self) -> Option<Duration> {
        expires_before(self.0.cert.first()?, Duration::from_secs(u64::MAX))
    }

    /// Whether its key can make one of these signatures.
    pub(super) fn signs(&self, signatures: &[SignatureScheme]) -> bool {
        self.0.key.choose_scheme(signatures).is_some()
    }

    /// The names that this certificate is valid for, in lower case.
    fn names(&self) -> Vec<String> {
        let own = self
            .0
            .cert
            .first()
            .map(|own| X509Certificate::from_der(own));
        let Some(Ok((_, own))) = own else {
            return Vec::new();
        };
        let names = own.subject_alternative_name().ok().flatten();
        let names = names.iter().flat_map(|names| &names.value.general_names);
        let names = names.filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
            _ => None,
        });
        names.filter(|name| self.fits(name)).collect()
    }

    /// Whether clients take it for valid for a name, or a wildcard for what it stands for.
    fn fits(&self, name: &str) -> bool {
        let name = match name.strip_prefix('*') {
            Some(parent) => format!("any{parent}"),
            None => name.to_owned(),
        };
        let Ok(name) = ServerName::try_from(name) else {
            return false;
        };
        let own = self.0.cert.first().map(ParsedCertificate::try_from);
        own.is_some_and(|own| own.is_ok_and(|own| verify_server_name(&own, &name).is_ok()))
    }
}
