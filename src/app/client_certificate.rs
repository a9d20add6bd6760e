//! Reads what a client's certificate says of its owner.

use std::fmt::Write as _;

use hmac_sha256::Hash;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use weir_rules::ClientCertificate;

/// The names in a certificate that the handshake has verified. A certificate that cannot be read,
/// which rustls would not accept, has its fingerprint alone.
pub(super) fn client_certificate(der: &[u8]) -> ClientCertificate {
    let certificate = ClientCertificate {
        fingerprint: fingerprint(der),
        ..ClientCertificate::default()
    };
    match X509Certificate::from_der(der) {
        Ok((_, parsed)) => with_names(certificate, &parsed),
        Err(_) => certificate,
    }
}

fn fingerprint(der: &[u8]) -> String {
    let mut hex = String::with_capacity(64);
    for byte in Hash::hash(der) {
        // Writing to a `String` never fails.
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

fn with_names(
    mut certificate: ClientCertificate,
    parsed: &X509Certificate<'_>,
) -> ClientCertificate {
    let common_name = parsed.subject().iter_common_name().next();
    certificate.subject_cn = common_name.and_then(|name| Some(name.as_str().ok()?.to_owned()));
    let alternative = parsed.subject_alternative_name().ok().flatten();
    for name in alternative
        .iter()
        .flat_map(|names| &names.value.general_names)
    {
        let (place, name) = match name {
            GeneralName::DNSName(name) => (&mut certificate.san_dns, name),
            GeneralName::RFC822Name(name) => (&mut certificate.san_email, name),
            GeneralName::URI(name) => (&mut certificate.san_uri, name),
            _ => continue,
        };
        place.get_or_insert_with(|| (*name).to_owned());
    }
    certificate
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, DnValue, KeyPair, SanType};

    use super::*;

    fn der(names: &[&str], alternative: Vec<SanType>) -> Vec<u8> {
        let mut params = CertificateParams::default();
        for name in names {
            let name = DnValue::Utf8String((*name).to_owned());
            params.distinguished_name.push(DnType::CommonName, name);
        }
        params.subject_alt_names = alternative;
        let certificate = params.self_signed(&KeyPair::generate().unwrap());
        certificate.unwrap().der().to_vec()
    }

    #[test]
    fn the_first_name_of_each_kind_is_read() {
        let text = |text: &str| text.try_into().unwrap();
        let der = der(
            &["zo\u{eb}"],
            vec![
                SanType::IpAddress([192, 0, 2, 1].into()),
                SanType::URI(text("spiffe://example.org/zoe")),
                SanType::DnsName(text("a.example.org")),
                SanType::DnsName(text("b.example.org")),
                SanType::Rfc822Name(text("zoe@example.org")),
            ],
        );
        let certificate = client_certificate(&der);
        assert_eq!(certificate.subject_cn.as_deref(), Some("zo\u{eb}"));
        assert_eq!(certificate.san_dns.as_deref(), Some("a.example.org"));
        assert_eq!(certificate.san_email.as_deref(), Some("zoe@example.org"));
        assert_eq!(
            certificate.san_uri.as_deref(),
            Some("spiffe://example.org/zoe")
        );
        assert_eq!(certificate.fingerprint.len(), 64);
    }

    #[test]
    fn a_certificate_without_names_still_has_a_fingerprint() {
        let (one, other) = (der(&[], Vec::new()), der(&[], Vec::new()));
        let certificate = client_certificate(&one);
        let without = ClientCertificate {
            fingerprint: certificate.fingerprint.clone(),
            ..ClientCertificate::default()
        };
        assert_eq!(certificate.san_dns, without.san_dns);
        assert_ne!(
            certificate.fingerprint,
            client_certificate(&other).fingerprint
        );
        assert_eq!(client_certificate(b"x").fingerprint.len(), 64);
    }
}
