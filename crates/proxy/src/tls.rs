//! TLS to the servers of an upstream: trusted authorities, and the gateway's own certificate.

use std::fmt;
use std::io;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use x509_parser::prelude::{FromDer, X509Certificate};

/// What HTTP/2 and HTTP/1.1 are called in a handshake (RFC 7301).
pub(super) const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// How connections to the servers of an upstream are secured. Clones share the sessions that can be
/// resumed.
#[derive(Clone)]
pub struct UpstreamTls {
    config: Arc<ClientConfig>,
    /// For upgrades, which HTTP/2 cannot carry.
    http1: Arc<ClientConfig>,
    settings: Arc<TlsSettings>,
}

/// The protocol for the servers of an upstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1.
    #[default]
    Http1,
    /// HTTP/2, without asking over plain TCP ("prior knowledge").
    Http2,
    /// The server chooses in the handshake of TLS.
    Auto,
}

/// The configuration of TLS to an upstream.
#[derive(Clone, Debug, Default)]
pub struct TlsSettings {
    /// The authorities to trust in place of the public ones.
    pub authorities: Option<Authorities>,
    /// The name that certificates must be valid for, and that servers are asked for, in place of
    /// each server's own host.
    pub server_name: Option<ServerName<'static>>,
    /// The protocol for the servers.
    pub protocol: Protocol,
    /// The certificate that the gateway shows to servers that ask for one, and its key.
    pub identity: Option<Arc<CertifiedKey>>,
}

impl UpstreamTls {
    /// Prepares connections.
    ///
    /// # Errors
    /// When rustls does not take the settings.
    pub fn new(settings: TlsSettings) -> Result<Self, TlsError> {
        let protocols: &[&[u8]] = match settings.protocol {
            Protocol::Http1 => &[HTTP1],
            Protocol::Http2 => &[HTTP2],
            Protocol::Auto => &[HTTP2, HTTP1],
        };
        let mut config = client_config(&settings)?;
        let mut http1 = config.clone();
        let names = |protocols: &[&[u8]]| protocols.iter().map(|name| name.to_vec()).collect();
        config.alpn_protocols = names(protocols);
        http1.alpn_protocols = names(&[HTTP1]);
        Ok(Self {
            config: Arc::new(config),
            http1: Arc::new(http1),
            settings: Arc::new(settings),
        })
    }

    /// Shakes hands with a server over `stream`.
    pub(super) async fn handshake(
        &self,
        host: &str,
        stream: TcpStream,
        http1_only: bool,
    ) -> io::Result<TlsStream<TcpStream>> {
        let name = match &self.settings.server_name {
            Some(name) => name.clone(),
            None => ServerName::try_from(host.to_owned()).map_err(io::Error::other)?,
        };
        let config = if http1_only {
            &self.http1
        } else {
            &self.config
        };
        let connector = TlsConnector::from(Arc::clone(config));
        connector.connect(name, stream).await
    }
}

/// Compares the settings. Equal certificates have equal keys.
impl PartialEq for UpstreamTls {
    fn eq(&self, other: &Self) -> bool {
        let (own, other) = (&self.settings, &other.settings);
        let shown = |settings: &TlsSettings| Some(settings.identity.as_ref()?.cert.clone());
        own.authorities == other.authorities
            && own.server_name == other.server_name
            && own.protocol == other.protocol
            && shown(own) == shown(other)
    }
}

impl Eq for UpstreamTls {}

impl fmt::Debug for UpstreamTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpstreamTls").finish_non_exhaustive()
    }
}

fn client_config(settings: &TlsSettings) -> Result<ClientConfig, TlsError> {
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Refused)?;
    let config = match &settings.authorities {
        Some(authorities) => config
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Verifier::new(authorities)?)),
        None => {
            let public = webpki_roots::TLS_SERVER_ROOTS.iter().cloned();
            config.with_root_certificates(public.collect::<RootCertStore>())
        }
    };
    Ok(match &settings.identity {
        Some(identity) => {
            let identity = SingleCertAndKey::from(CertifiedKey::clone(identity));
            config.with_client_cert_resolver(Arc::new(identity))
        }
        None => config.with_no_client_auth(),
    })
}

/// Certificates of authorities, or of servers themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authorities(Vec<CertificateDer<'static>>);

impl Authorities {
    /// Takes all certificates of a PEM file.
    ///
    /// # Errors
    /// When there is none, or one cannot be used.
    pub fn from_pem(file: &[u8]) -> Result<Self, TlsError> {
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(file).collect();
        let authorities = Self(certificates.map_err(|error| TlsError::Pem(error.to_string()))?);
        if authorities.0.is_empty() {
            return Err(TlsError::NoCertificate);
        }
        authorities.roots().map(|_| authorities)
    }

    fn roots(&self) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in &self.0 {
            roots
                .add(certificate.clone())
                .map_err(TlsError::Certificate)?;
        }
        Ok(roots)
    }
}

/// Verifies servers by authorities; or by themselves, where a server's own certificate is among the
/// trusted ones. For rustls, a certificate of an authority is none of a server, but what `openssl
/// req -x509` makes says that it is both.
#[derive(Debug)]
struct Verifier {
    by_authority: Arc<WebPkiServerVerifier>,
    trusted: Authorities,
}

impl Verifier {
    fn new(authorities: &Authorities) -> Result<Self, TlsError> {
        let (roots, provider) = (authorities.roots()?, default_provider());
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::new(provider));
        let refused = |error: rustls::client::VerifierBuilderError| {
            TlsError::Refused(rustls::Error::General(error.to_string()))
        };
        Ok(Self {
            by_authority: verifier.build().map_err(refused)?,
            trusted: authorities.clone(),
        })
    }
}

/// Whether a certificate that is trusted itself is for this server, and for this time.
fn verify_by_itself(
    certificate: &CertificateDer<'_>,
    name: &ServerName<'_>,
    now: UnixTime,
) -> Result<ServerCertVerified, rustls::Error> {
    verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
    let parsed = X509Certificate::from_der(certificate);
    let (_, parsed) = parsed.map_err(|_| CertificateError::BadEncoding)?;
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let validity = parsed.validity();
    if now < validity.not_before.timestamp() {
        Err(CertificateError::NotValidYet.into())
    } else if validity.not_after.timestamp() < now {
        Err(CertificateError::Expired.into())
    } else {
        Ok(ServerCertVerified::assertion())
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if self.trusted.0.contains(certificate) {
            return verify_by_itself(certificate, name, now);
        }
        let verifier = &self.by_authority;
        verifier.verify_server_cert(certificate, intermediates, name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let verifier = &self.by_authority;
        verifier.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let verifier = &self.by_authority;
        verifier.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.by_authority.supported_verify_schemes()
    }
}

/// Why TLS to an upstream cannot be prepared. The text follows what is meant, and says after a
/// semicolon what to do.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TlsError {
    /// There is no certificate in the file.
    #[error(
        "contains no certificate; it must be PEM, which begins with -----BEGIN CERTIFICATE-----"
    )]
    NoCertificate,
    /// The file is broken.
    #[error("is broken: {0}")]
    Pem(String),
    /// rustls cannot use a certificate.
    #[error(
        "contains a certificate that cannot be used: {0}; `openssl x509 -text` shows what it is"
    )]
    Certificate(#[source] rustls::Error),
    /// rustls refuses the settings.
    #[error("cannot be used: {0}")]
    Refused(#[source] rustls::Error),
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, date_time_ymd};

    use super::*;

    /// A certificate of an authority for a server, as `openssl req -x509` makes it.
    fn of_both(name: &str) -> CertificateDer<'static> {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.not_before = date_time_ymd(2026, 1, 1);
        params.not_after = date_time_ymd(2026, 2, 1);
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().clone()
    }

    #[test]
    fn a_certificate_that_is_trusted_itself_is_for_its_name_and_its_time_alone() {
        const YEAR_2026: u64 = 1_767_225_600;
        let (own, other) = (of_both("app.internal"), of_both("app.internal"));
        let verifier = Verifier::new(&Authorities(vec![own.clone()])).unwrap();
        let verify = |certificate, name: &'static str, day: u64| {
            let now = Duration::from_secs(YEAR_2026 + day * 86_400 - 3600);
            let (name, now) = (name.try_into().unwrap(), UnixTime::since_unix_epoch(now));
            let verified = verifier.verify_server_cert(certificate, &[], &name, &[], now);
            verified.map(drop).map_err(|error| error.to_string())
        };
        assert_eq!(verify(&own, "app.internal", 1), Ok(()));
        for (certificate, name, day, told) in [
            (&own, "app.internal", 0, "NotValidYet"),
            (&own, "app.internal", 40, "Expired"),
            (&own, "another.internal", 1, "not valid for name"),
            (&other, "app.internal", 1, "invalid peer certificate"),
        ] {
            let error = verify(certificate, name, day).unwrap_err();
            assert!(error.contains(told), "{told}: {error}");
        }
    }
}
