//! Certificates, made by the `openssl` command and by rcgen, and clients that trust them.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams,
    SanType, SerialNumber, date_time_ymd,
};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, ServerConfig, WantsVerifier};
use tempfile::TempDir;

/// A key of P-256.
const EC: &[&str] = &["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"];

/// For servers alone. Unless it is told so, OpenSSL makes a certificate of an authority as well.
const END_ENTITY: &[&str] = &["-addext", "basicConstraints=critical,CA:FALSE"];

/// A certificate that signs itself, and its key, both as PEM.
#[derive(Clone, Debug)]
pub struct Certificate {
    pub certificate: String,
    pub key: String,
}

/// Runs `openssl` in a folder.
pub fn openssl(folder: impl AsRef<Path>, arguments: &[&str]) {
    let mut command = Command::new("openssl");
    let made = command.current_dir(folder).args(arguments).output();
    let made = made.expect("openssl runs: install it by `apt-get install openssl`");
    assert!(made.status.success(), "{made:?}");
}

/// Writes `cert.pem` and `key.pem` into a folder: a certificate of a subject alternative name, such
/// as `DNS:a.example.com`, that signs itself.
fn write_pair(folder: &Path, name: &str, days: u32, more: &[&str]) {
    let days = days.to_string();
    let (_, common_name) = name.split_once(':').expect("its type and a name");
    let subject = format!("/CN={common_name}");
    let names = format!("subjectAltName={name}");
    let mut arguments = vec!["req", "-x509", "-nodes", "-days", &days, "-subj", &subject];
    arguments.extend(["-keyout", "key.pem", "-out", "cert.pem", "-addext", &names]);
    arguments.extend(more);
    openssl(folder, &arguments);
}

impl Certificate {
    /// A certificate for a name, which expires after a month.
    pub fn of(name: &str) -> Self {
        Self::lasting(name, 30)
    }

    /// The same, expiring after so many days.
    pub fn lasting(name: &str, days: u32) -> Self {
        Self::made(name, days, &[EC, END_ENTITY].concat())
    }

    /// The same with an RSA key.
    pub fn rsa(name: &str) -> Self {
        let key = ["-newkey", "rsa:2048"];
        Self::made(name, 30, &[&key[..], END_ENTITY].concat())
    }

    /// A certificate for a name as OpenSSL makes it unless told otherwise: it says that it is one
    /// of an authority as well.
    pub fn of_authority(name: &str) -> Self {
        Self::made(name, 30, EC)
    }

    /// Writes `cert.pem` and `key.pem` for 127.0.0.1.
    pub fn write_for_loopback(folder: &Path) {
        write_pair(folder, "IP:127.0.0.1", 2, &[EC, END_ENTITY].concat());
    }

    fn made(name: &str, days: u32, more: &[&str]) -> Self {
        let folder = TempDir::new().unwrap();
        write_pair(folder.path(), &format!("DNS:{name}"), days, more);
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        Self {
            certificate: read("cert.pem"),
            key: read("key.pem"),
        }
    }

    pub fn der(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.certificate.as_bytes()).unwrap()
    }

    fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_slice(self.key.as_bytes()).unwrap()
    }

    /// A server that shows this certificate, speaks these protocols, and lets in only clients with
    /// the other certificate, if there is one.
    pub fn server(&self, protocols: &[&str], client: Option<&Self>) -> Arc<ServerConfig> {
        let provider = Arc::new(default_provider());
        let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap();
        let config = match client {
            None => config.with_no_client_auth(),
            Some(client) => {
                let roots = Arc::new(roots(&[client.der()]));
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
                config.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let config = config.with_single_cert(vec![self.der()], self.key());
        let mut config = config.unwrap();
        config.alpn_protocols = alpn(protocols);
        Arc::new(config)
    }

    /// A client that trusts this certificate alone.
    pub fn trusted(&self, protocols: &[&str]) -> Arc<ClientConfig> {
        trusting(&[self], protocols)
    }

    /// The same with the cryptography of this provider.
    pub fn trusted_by(&self, provider: CryptoProvider) -> Arc<ClientConfig> {
        let config = client_config(provider).with_root_certificates(roots(&[self.der()]));
        Arc::new(config.with_no_client_auth())
    }
}

/// A client that trusts these certificates, and speaks these protocols.
pub fn trusting(certificates: &[&Certificate], protocols: &[&str]) -> Arc<ClientConfig> {
    let roots: Vec<_> = certificates.iter().map(|it| it.der()).collect();
    trusting_roots(&roots, protocols)
}

/// The same for certificates that are authorities.
pub fn trusting_roots(
    authorities: &[CertificateDer<'static>],
    protocols: &[&str],
) -> Arc<ClientConfig> {
    let config = client_config(default_provider()).with_root_certificates(roots(authorities));
    let mut config = config.with_no_client_auth();
    config.alpn_protocols = alpn(protocols);
    Arc::new(config)
}

fn client_config(provider: CryptoProvider) -> ConfigBuilder<ClientConfig, WantsVerifier> {
    ClientConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .unwrap()
}

fn roots(authorities: &[CertificateDer<'static>]) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority.clone()).unwrap();
    }
    roots
}

fn alpn(protocols: &[&str]) -> Vec<Vec<u8>> {
    protocols.iter().map(|it| it.as_bytes().to_vec()).collect()
}

/// An authority that signs certificates of clients.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate that it has signed.
pub struct Signed {
    pub certificate: rcgen::Certificate,
    pub key: KeyPair,
    serial: SerialNumber,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// The certificate of a client with this common name, and number.
    pub fn sign(&self, name: &str, serial: u64) -> Signed {
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
    pub fn revoke(&self, revoked: &[&Signed]) -> String {
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
    pub fn shown_to(&self, server: &Certificate, protocols: &[&str]) -> Arc<ClientConfig> {
        self.shown_to_any(&[server.der()], protocols)
    }

    /// The same to servers with certificates of these authorities.
    pub fn shown_to_any(
        &self,
        authorities: &[CertificateDer<'static>],
        protocols: &[&str],
    ) -> Arc<ClientConfig> {
        let key = PrivateKeyDer::from_pem_slice(self.key.serialize_pem().as_bytes());
        let chain = vec![self.certificate.der().clone()];
        let config = client_config(default_provider()).with_root_certificates(roots(authorities));
        let mut config = config.with_client_auth_cert(chain, key.unwrap()).unwrap();
        config.alpn_protocols = alpn(protocols);
        Arc::new(config)
    }
}
