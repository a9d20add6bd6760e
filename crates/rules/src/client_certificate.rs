//! The certificate of a client, as far as it can name an account.

use std::fmt;

/// The names of a verified certificate's owner; the first of several values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The common name of the subject.
    pub subject_cn: Option<String>,
    /// A DNS name among the alternative names.
    pub san_dns: Option<String>,
    /// An e-mail address among the alternative names.
    pub san_email: Option<String>,
    /// A URI among the alternative names, such as a SPIFFE id.
    pub san_uri: Option<String>,
    /// The SHA-256 hash of the certificate, in lower-case hex digits.
    pub fingerprint: String,
}

/// The field of a certificate that names the account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateField {
    /// The common name of the subject.
    SubjectCn,
    /// The first DNS name among the alternative names.
    SanDns,
    /// The first e-mail address among the alternative names.
    SanEmail,
    /// The first URI among the alternative names.
    SanUri,
    /// The SHA-256 hash of the certificate.
    Fingerprint,
}

impl ClientCertificate {
    /// The value of a field, unless it is missing or empty.
    pub(super) fn value(&self, field: CertificateField) -> Option<&str> {
        let value = match field {
            CertificateField::SubjectCn => self.subject_cn.as_deref(),
            CertificateField::SanDns => self.san_dns.as_deref(),
            CertificateField::SanEmail => self.san_email.as_deref(),
            CertificateField::SanUri => self.san_uri.as_deref(),
            CertificateField::Fingerprint => Some(&*self.fingerprint),
        };
        value.filter(|value| !value.is_empty())
    }
}

/// As it is written in a configuration.
impl fmt::Display for CertificateField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SubjectCn => "subject_cn",
            Self::SanDns => "san_dns",
            Self::SanEmail => "san_email",
            Self::SanUri => "san_uri",
            Self::Fingerprint => "fingerprint",
        })
    }
}
