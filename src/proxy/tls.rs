//! TLS to the servers of an upstream: whom the gateway trusts there, and how it says who it is.

use std::fmt;
use std::io;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// What HTTP/2 and HTTP/1.1 are called in a handshake (RFC 7301).
pub(super) const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// How connections to the servers of an upstream are secured. Clones share the sessions that can be
/// resumed.
#[derive(Clone)]
pub struct UpstreamTls {
    config: Arc<ClientConfig>,
    /// For what HTTP/2 cannot carry.
    http1: Arc<ClientConfig>,
    settings: Arc<TlsSettings>,
}

/// What is spoken to the servers of an upstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1.
    #[default]
    Http1,
    /// HTTP/2, without asking over plain TCP ("prior knowledge").
    Http2,
    /// What the server prefers in the handshake of TLS.
    Auto,
}

/// What the operator says of it.
#[derive(Clone, Debug, Default)]
pub struct TlsSettings {
    /// The authorities to trust in place of the public ones.
    pub authorities: Option<Authorities>,
    /// The name that certificates must be valid for, and that servers are asked for, in place of
    /// each server's own host.
    pub server_name: Option<ServerName<'static>>,
    /// What is spoken to the servers.
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
    let roots = match &settings.authorities {
        Some(authorities) => authorities.roots()?,
        None => webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect(),
    };
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Refused)?
        .with_root_certificates(roots);
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
