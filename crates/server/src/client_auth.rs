//! Which certificates of clients a listener accepts.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;

use super::certificate_error::CertificateError;

/// Authorities that sign certificates of clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientAuthorities(Vec<CertificateDer<'static>>);

impl ClientAuthorities {
    /// Takes all certificates of a PEM file.
    ///
    /// # Errors
    /// When there is none, or one cannot be used.
    pub fn from_pem(file: &[u8]) -> Result<Self, CertificateError> {
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(file).collect();
        let authorities = Self(certificates.map_err(CertificateError::broken)?);
        if authorities.0.is_empty() {
            return Err(CertificateError::NoCertificate);
        }
        authorities.roots().map(|_| authorities)
    }

    fn roots(&self) -> Result<RootCertStore, CertificateError> {
        let mut roots = RootCertStore::empty();
        for certificate in &self.0 {
            let added = roots.add(certificate.clone());
            added.map_err(CertificateError::unusable_certificate)?;
        }
        Ok(roots)
    }
}

/// Lists of revoked certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RevocationLists(Vec<CertificateRevocationListDer<'static>>);

impl RevocationLists {
    /// Takes all lists of a PEM file.
    ///
    /// # Errors
    /// When there is none.
    pub fn from_pem(file: &[u8]) -> Result<Self, CertificateError> {
        let lists: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(file).collect();
        let lists = lists.map_err(CertificateError::broken)?;
        if lists.is_empty() {
            return Err(CertificateError::NoRevocationList);
        }
        Ok(Self(lists))
    }
}

/// Whose certificates clients show.
#[derive(Clone, Debug)]
pub struct ClientAuth {
    verifier: Arc<dyn ClientCertVerifier>,
    authorities: ClientAuthorities,
    revoked: RevocationLists,
    required: bool,
}

/// Compares the settings.
impl PartialEq for ClientAuth {
    fn eq(&self, other: &Self) -> bool {
        let settings = |auth: &Self| {
            (
                auth.authorities.clone(),
                auth.revoked.clone(),
                auth.required,
            )
        };
        settings(self) == settings(other)
    }
}

impl ClientAuth {
    /// Accepts certificates of these authorities, except revoked ones. With lists, there must be
    /// one of each authority. Unless a certificate is `required`, clients without one are
    /// accepted as well.
    ///
    /// # Errors
    /// When a list cannot be used.
    pub fn new(
        authorities: ClientAuthorities,
        revoked: RevocationLists,
        required: bool,
    ) -> Result<Self, CertificateError> {
        let roots = Arc::new(authorities.roots()?);
        let provider = Arc::new(default_provider());
        let mut builder = WebPkiClientVerifier::builder_with_provider(roots, provider)
            .with_crls(revoked.0.iter().cloned())
            .only_check_end_entity_revocation();
        if !required {
            builder = builder.allow_unauthenticated();
        }
        let verifier = builder.build();
        Ok(Self {
            verifier: verifier
                .map_err(|cause| CertificateError::UnusableList(cause.to_string()))?,
            authorities,
            revoked,
            required,
        })
    }

    pub(super) fn verifier(&self) -> Arc<dyn ClientCertVerifier> {
        Arc::clone(&self.verifier)
    }
}
