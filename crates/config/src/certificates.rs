//! Certificates and keys that the configuration names by their files.

use std::time::Duration;

use weir_proxy::{Authorities, TlsError};

use weir_limit::time::Timestamp;
use weir_server::{CertificateError, Chain, Identity, PrivateKey};
use weir_yaml::{Lowered, Lowering, Spanned};

use crate::until::Until;

/// A certificate that expires within this time should have been renewed by now.
const SOON: Duration = Duration::from_secs(14 * 24 * 3600);

const RENEW: &str = "renew it; a file that changes is loaded without a restart";

/// A certificate with its key, from PEM files.
pub(super) fn identity(
    cx: &mut Lowering<'_>,
    certificate: &Spanned<String>,
    key: &Spanned<String>,
) -> Lowered<Identity> {
    let chain = cx.read_bytes(certificate, certificate.span);
    let chain = chain.and_then(|pem| usable(cx, certificate, Chain::from_pem(&pem)));
    let private = cx.read_bytes(key, key.span);
    let private = private.and_then(|pem| usable(cx, key, PrivateKey::from_pem(&pem)));
    if let Ok(chain) = &chain {
        validity(cx, certificate, chain);
    }
    usable(cx, key, Identity::new(chain?, private?))
}

pub(super) fn authorities(cx: &mut Lowering<'_>, file: &Spanned<String>) -> Lowered<Authorities> {
    let pem = cx.read_bytes(file, file.span)?;
    let authorities = Authorities::from_pem(&pem);
    let authorities = authorities.map_err(|error: TlsError| format!("{} {error}", file.value));
    cx.ok(file.span, authorities)
}

/// What came of a file of certificates, or the report of what is wrong with it.
pub(super) fn usable<T>(
    cx: &mut Lowering<'_>,
    file: &Spanned<String>,
    result: Result<T, CertificateError>,
) -> Lowered<T> {
    let result = result.map_err(|error| format!("{} {error}", file.value));
    cx.ok(file.span, result)
}

/// Warns of a certificate that the other side refuses, or will soon.
fn validity(cx: &mut Lowering<'_>, file: &Spanned<String>, chain: &Chain) {
    let now = cx.now;
    let (verb, moment, help) = match (chain.begins_after(now), chain.expires_before(now + SOON)) {
        (Some(begin), _) => ("is not valid before", begin, "look at this machine's clock"),
        (None, Some(end)) if end < now => ("expired at", end, RENEW),
        (None, Some(end)) => ("expires at", end, RENEW),
        (None, None) => return,
    };
    let nanos = u64::try_from(moment.as_nanos()).unwrap_or(u64::MAX);
    let moment = Until(Timestamp::from_nanos(nanos));
    let message = format!("the certificate in {} {verb} {moment}", file.value);
    cx.warn(file.span, message).help(help);
}
