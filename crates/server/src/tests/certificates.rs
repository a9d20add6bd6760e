//! What listeners show, and a client that knows RSA alone.

use std::sync::Arc;

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::{ClientConfig, SignatureScheme};
use weir_testing::certificates::Certificate;

use super::super::{Certificates, Chain, Identity, PrivateKey};

/// What a listener shows with these.
pub(super) fn certificates(pairs: &[&Certificate]) -> Certificates {
    let identity = |pair: &&Certificate| {
        let chain = Chain::from_pem(pair.certificate.as_bytes()).unwrap();
        Identity::new(chain, PrivateKey::from_pem(pair.key.as_bytes()).unwrap()).unwrap()
    };
    Certificates::new(pairs.iter().map(identity).collect(), None).unwrap()
}

/// A client that knows no signatures but those of RSA, and trusts this certificate alone.
pub(super) fn knowing_rsa(pair: &Certificate) -> Arc<ClientConfig> {
    let mut provider = default_provider();
    let algorithms = &mut provider.signature_verification_algorithms;
    let known = algorithms.mapping.iter().copied();
    let rsa = known.filter(|(scheme, _)| *scheme == SignatureScheme::RSA_PSS_SHA256);
    // They are wanted for as long as the process lives.
    algorithms.mapping = Vec::leak(rsa.collect());
    pair.trusted_by(provider)
}
