//! What listeners show, and clients that trust it.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore, SignatureScheme};

#[path = "../../../../tests/support/certificates.rs"]
mod files;

pub(super) use self::files::Pair;
use super::super::{Certificates, Chain, Identity, PrivateKey};

/// What a listener shows with these.
pub(super) fn certificates(pairs: &[&Pair]) -> Certificates {
    let identity = |pair: &&Pair| {
        let chain = Chain::from_pem(pair.certificate.as_bytes()).unwrap();
        Identity::new(chain, PrivateKey::from_pem(pair.key.as_bytes()).unwrap()).unwrap()
    };
    Certificates::new(pairs.iter().map(identity).collect(), None).unwrap()
}

/// A client that trusts this certificate alone.
pub(super) fn trusting(pair: &Pair) -> Arc<ClientConfig> {
    client(pair, default_provider())
}

/// A client that knows no signatures but those of RSA, and trusts this certificate alone.
pub(super) fn knowing_rsa(pair: &Pair) -> Arc<ClientConfig> {
    let mut provider = default_provider();
    let algorithms = &mut provider.signature_verification_algorithms;
    let known = algorithms.mapping.iter().copied();
    let rsa = known.filter(|(scheme, _)| *scheme == SignatureScheme::RSA_PSS_SHA256);
    // They are wanted for as long as the process lives.
    algorithms.mapping = Vec::leak(rsa.collect());
    client(pair, provider)
}

fn client(pair: &Pair, provider: CryptoProvider) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_slice(pair.certificate.as_bytes());
    roots.add(certificate.unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .unwrap();
    Arc::new(config.with_root_certificates(roots).with_no_client_auth())
}
