//! Certificates, and clients that speak TLS.

use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams,
    SanType, SerialNumber, date_time_ymd,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, StreamOwned};
use tempfile::TempDir;
use tokio_rustls::TlsConnector;

use super::{Client, PATIENCE};

/// A certificate that signs itself, and its key, both as PEM.
#[derive(Clone, Debug)]
pub(crate) struct Certificate {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// What a client sends and gets encrypted.
pub(crate) type Secure = StreamOwned<ClientConnection, TcpStream>;

impl Certificate {
    /// A certificate for a name.
    pub(crate) fn of(name: &str) -> Self {
        Self::lasting(name, 30)
    }

    /// A certificate for a name, which expires after so many days.
    pub(crate) fn lasting(name: &str, days: u32) -> Self {
        Self::made(
            name,
            days,
            &["-addext", "basicConstraints=critical,CA:FALSE"],
        )
    }

    /// A certificate for a name as OpenSSL makes it unless told otherwise: it says that it is one
    /// of an authority as well.
    pub(crate) fn of_authority(name: &str) -> Self {
        Self::made(name, 30, &[])
    }

    fn made(name: &str, days: u32, more: &[&str]) -> Self {
        let folder = TempDir::new().expect("a temporary folder");
        let made = Command::new("openssl")
            .current_dir(&folder)
            .args(["req", "-x509", "-nodes", "-newkey", "ec"])
            .args(["-days", &days.to_string()])
            .args(["-pkeyopt", "ec_paramgen_curve:P-256"])
            .args(["-keyout", "key.pem", "-out", "cert.pem"])
            .args(["-subj", &format!("/CN={name}")])
            .args(["-addext", &format!("subjectAltName=DNS:{name}")])
            .args(more)
            .output()
            .expect("openssl runs: install it by `apt-get install openssl`");
        assert!(made.status.success(), "{made:?}");
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).expect("a file");
        Self {
            certificate: read("cert.pem"),
            key: read("key.pem"),
        }
    }

    pub(crate) fn der(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.certificate.as_bytes()).expect("a certificate")
    }

    fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_slice(self.key.as_bytes()).expect("a key")
    }

    /// A server that shows this certificate, speaks these protocols, and lets in only clients with
    /// the other certificate, if there is one.
    pub(crate) fn server(&self, protocols: &[&str], client: Option<&Self>) -> Arc<ServerConfig> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .expect("TLS 1.2 and 1.3");
        let config = match client {
            None => config.with_no_client_auth(),
            Some(client) => {
                let mut roots = RootCertStore::empty();
                roots.add(client.der()).expect("a certificate");
                let roots = Arc::new(roots);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
                config.with_client_cert_verifier(verifier.build().expect("an authority"))
            }
        };
        let mut config = config
            .with_single_cert(vec![self.der()], self.key())
            .expect("a certificate with its key");
        config.alpn_protocols = protocols.iter().map(|it| it.as_bytes().to_vec()).collect();
        Arc::new(config)
    }

    /// A client that trusts this certificate alone.
    pub(crate) fn trusted(&self, protocols: &[&str]) -> Arc<ClientConfig> {
        trusting(&[self], protocols)
    }
}

/// A client that trusts these certificates, and speaks these protocols.
pub(crate) fn trusting(certificates: &[&Certificate], protocols: &[&str]) -> Arc<ClientConfig> {
    let roots: Vec<_> = certificates.iter().map(|it| it.der()).collect();
    trusting_roots(&roots, protocols)
}

/// The same for certificates that are authorities.
pub(crate) fn trusting_roots(
    authorities: &[CertificateDer<'static>],
    protocols: &[&str],
) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority.clone()).expect("a certificate");
    }
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .expect("TLS 1.2 and 1.3");
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|it| it.as_bytes().to_vec()).collect();
    Arc::new(config)
}

/// Connects by TLS, and shakes hands.
pub(crate) fn connect(
    to: SocketAddr,
    name: &str,
    config: &Arc<ClientConfig>,
) -> std::io::Result<Client<Secure>> {
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let mut session = ClientConnection::new(Arc::clone(config), name).expect("a session");
    let mut stream = TcpStream::connect(to)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    while session.is_handshaking() {
        session.complete_io(&mut stream)?;
    }
    Ok(Client::over(StreamOwned::new(session, stream)))
}

/// The certificate that a client was shown.
pub(crate) fn shown(client: &Client<Secure>) -> CertificateDer<'static> {
    let chain = client.stream().conn.peer_certificates();
    chain.expect("a certificate")[0].clone().into_owned()
}

/// The same for clients that do not block.
pub(crate) async fn connect_async(
    to: SocketAddr,
    name: &str,
    config: &Arc<ClientConfig>,
) -> tokio_rustls::client::TlsStream<tokio::net::TcpStream> {
    let stream = tokio::net::TcpStream::connect(to)
        .await
        .expect("a connection");
    over_async(stream, name, config).await
}

/// Shakes hands over a connection that is there.
pub(crate) async fn over_async(
    stream: tokio::net::TcpStream,
    name: &str,
    config: &Arc<ClientConfig>,
) -> tokio_rustls::client::TlsStream<tokio::net::TcpStream> {
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let connector = TlsConnector::from(Arc::clone(config));
    connector.connect(name, stream).await.expect("a handshake")
}

/// An authority that signs certificates of clients.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate that it has signed.
pub(crate) struct Signed {
    pub(crate) certificate: rcgen::Certificate,
    pub(crate) key: KeyPair,
    serial: SerialNumber,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// The certificate of a client with this common name, and number.
    pub(crate) fn sign(&self, name: &str, serial: u64) -> Signed {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        let serial = SerialNumber::from(serial);
        params.serial_number = Some(serial.clone());
        let uri = format!("spiffe://example.org/{name}");
        params.subject_alt_names = vec![SanType::URI(uri.try_into().unwrap())];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Signed {
            certificate,
            key,
            serial,
        }
    }

    /// The list of these certificates as revoked, as PEM.
    pub(crate) fn revoke(&self, revoked: &[&Signed]) -> String {
        let revoked = revoked.iter().map(|signed| RevokedCertParams {
            serial_number: signed.serial.clone(),
            revocation_time: date_time_ymd(2026, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2026, 1, 1),
            next_update: date_time_ymd(4000, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.0).unwrap().pem().unwrap()
    }
}

impl Signed {
    /// A client that shows this certificate to a server, whose certificate it trusts.
    pub(crate) fn shown_to(&self, server: &Certificate, protocols: &[&str]) -> Arc<ClientConfig> {
        self.shown_to_any(&[server.der()], protocols)
    }

    /// The same to servers with certificates of these authorities.
    pub(crate) fn shown_to_any(
        &self,
        authorities: &[CertificateDer<'static>],
        protocols: &[&str],
    ) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        for authority in authorities {
            roots.add(authority.clone()).expect("a certificate");
        }
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let config = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()
            .expect("TLS 1.2 and 1.3");
        let key = PrivateKeyDer::from_pem_slice(self.key.serialize_pem().as_bytes());
        let chain = vec![self.certificate.der().clone()];
        let mut config = config
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key.expect("a key"))
            .expect("a certificate and its key");
        config.alpn_protocols = protocols.iter().map(|it| it.as_bytes().to_vec()).collect();
        Arc::new(config)
    }
}
