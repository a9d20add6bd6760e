//! Certificates for tests, made by the `openssl` command and by rcgen.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "a test may panic, and what is here serves tests alone"
)]
#![allow(
    dead_code,
    reason = "not every package that includes this needs all of it"
)]

use std::fs;
use std::process::Command;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, IsCa,
    KeyIdMethod, KeyPair, KeyUsagePurpose, SerialNumber, date_time_ymd,
};
use tempfile::TempDir;

/// A certificate that signs itself, and its key, both as PEM.
pub(crate) struct Pair {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// Runs `openssl` in a folder.
pub(crate) fn openssl(folder: &TempDir, arguments: &[&str]) {
    let mut command = Command::new("openssl");
    let made = command.current_dir(folder).args(arguments).output();
    let made = made.expect("openssl runs: install it by `apt-get install openssl`");
    assert!(made.status.success(), "{made:?}");
}

impl Pair {
    /// A certificate for these names, with a key of P-256 in PKCS#8.
    pub(crate) fn of(names: &[&str], days: u32) -> Self {
        let key = ["ec", "-pkeyopt", "ec_paramgen_curve:P-256"];
        Self::with(&key, names, days)
    }

    /// The same with an RSA key.
    pub(crate) fn rsa(names: &[&str], days: u32) -> Self {
        Self::with(&["rsa:2048"], names, days)
    }

    fn with(key: &[&str], names: &[&str], days: u32) -> Self {
        let folder = TempDir::new().unwrap();
        let names: Vec<_> = names.iter().map(|name| format!("DNS:{name}")).collect();
        let (names, days) = (names.join(","), days.to_string());
        let mut arguments = vec!["req", "-x509", "-nodes", "-days", &days, "-newkey"];
        arguments.extend(key);
        arguments.extend(["-subj", "/CN=test"]);
        arguments.extend(["-keyout", "key.pem", "-out", "cert.pem"]);
        let names = format!("subjectAltName={names}");
        arguments.extend(["-addext", &names]);
        arguments.extend(["-addext", "basicConstraints=critical,CA:FALSE"]);
        openssl(&folder, &arguments);
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        Self {
            certificate: read("cert.pem"),
            key: read("key.pem"),
        }
    }
}

/// An authority that signs certificates of clients.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// A list of revoked certificates, which is empty.
    pub(crate) fn revoke(&self) -> String {
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2026, 1, 1),
            next_update: date_time_ymd(4000, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: Vec::new(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.0).unwrap().pem().unwrap()
    }
}
