//! How clients are identified: by address and by account.

use std::time::Duration;

use http::HeaderName;
use http::header::AUTHORIZATION;

use super::schema::{self, ClientAddress, Gateway, LogAccount};
use super::secrets::secret;
use crate::config::diagnostics::{Lowered, all};
use crate::config::lowering::Lowering;
use crate::config::values::network;
use crate::config::yaml::{Spanned, WordOr};
use crate::rules::{
    AccountRules, AccountSource, AccountWildcards, AddressHeader, CertificateField, ClientRules,
    HashKey, Jwt, JwtAlgorithm, JwtKeys,
};

/// By default an IPv6 client is identified by its /64, the least that one subscriber has.
const DEFAULT_IPV6_PREFIX: u8 = 64;

/// The default for how far clocks of issuers may be off.
const DEFAULT_LEEWAY: Duration = Duration::from_secs(60);

pub(super) fn client_rules(
    cx: &mut Lowering<'_>,
    written: Option<&ClientAddress>,
) -> Lowered<ClientRules> {
    let proxies = written.and_then(|written| written.trusted_proxies.as_ref());
    let proxies = proxies.into_iter().flatten();
    let networks = all(proxies.map(|text| cx.ok(text.span, network(text))));
    let header = match written.and_then(|written| written.header.as_ref()) {
        Some(header) => address_header(cx, header),
        None => Ok(AddressHeader::XForwardedFor),
    };
    Ok(ClientRules {
        trusted_proxies: networks?,
        header: header?,
    })
}

fn address_header(cx: &mut Lowering<'_>, header: &Spanned<String>) -> Lowered<AddressHeader> {
    match header.value.to_ascii_lowercase().as_str() {
        "x-forwarded-for" => Ok(AddressHeader::XForwardedFor),
        "forwarded" => Ok(AddressHeader::Forwarded),
        _ => cx
            .parse::<HeaderName>(header, "the name of a header")
            .map(AddressHeader::Single),
    }
}

/// The prefix to which IPv6 clients are cut where a limit does not say.
pub(super) fn ipv6_prefix(cx: &mut Lowering<'_>, written: Option<&ClientAddress>) -> u8 {
    let Some(prefix) = written.and_then(|written| written.ipv6_prefix) else {
        return DEFAULT_IPV6_PREFIX;
    };
    if (32..=128).contains(&prefix.value) {
        return prefix.value;
    }
    cx.error(
        prefix.span,
        format!("{} is not a prefix of 32 to 128 bits", prefix.value),
    )
    .help("64 is one subscriber's network; 48 or 56 one site's");
    DEFAULT_IPV6_PREFIX
}

pub(super) fn account_rules(
    cx: &mut Lowering<'_>,
    written: Option<&[Spanned<schema::AccountSource>]>,
    key: &Lowered<HashKey>,
    keeps_names: bool,
) -> Lowered<AccountRules> {
    let sources = written.unwrap_or_default().iter();
    let sources = all(sources.map(|source| account_source(cx, source)));
    Ok(AccountRules {
        sources: sources?,
        key: key.clone()?,
        wildcards: AccountWildcards::default(),
        keeps_names,
    })
}

fn account_source(
    cx: &mut Lowering<'_>,
    source: &Spanned<schema::AccountSource>,
) -> Lowered<AccountSource> {
    match &source.value {
        schema::AccountSource::Header(name) => cx.header_name(name).map(AccountSource::Header),
        schema::AccountSource::Bearer(_) => Ok(AccountSource::Bearer),
        schema::AccountSource::Cookie(name) => Ok(AccountSource::Cookie(name.clone())),
        schema::AccountSource::Certificate(field) => {
            Ok(AccountSource::Certificate(certificate_field(*field)))
        }
        schema::AccountSource::Jwt(written) => jwt(cx, written).map(AccountSource::Jwt),
    }
}

fn certificate_field(written: schema::CertificateField) -> CertificateField {
    match written {
        schema::CertificateField::SubjectCn => CertificateField::SubjectCn,
        schema::CertificateField::SanDns => CertificateField::SanDns,
        schema::CertificateField::SanEmail => CertificateField::SanEmail,
        schema::CertificateField::SanUri => CertificateField::SanUri,
        schema::CertificateField::Fingerprint => CertificateField::Fingerprint,
    }
}

/// Refuses accounts that certificates name where no client is asked for one.
pub(super) fn refuse_unasked_certificates(cx: &mut Lowering<'_>, gateway: &Spanned<Gateway>) {
    let in_error = cx.sources.key_in_error(gateway.span, &["listen"]);
    let listeners = gateway.listen.iter().flat_map(|listen| &listen.0);
    let mut asks = listeners.map(|listener| match &listener.value {
        WordOr::More(written) => {
            let in_error = cx.sources.key_in_error(listener.span, &["client_auth"]);
            written.client_auth.is_some() || in_error.is_some()
        }
        WordOr::Word(_) => false,
    });
    if in_error.is_some() || asks.any(|asks| asks) {
        return;
    }
    for source in gateway.account.iter().flat_map(|sources| &sources.value) {
        if let schema::AccountSource::Certificate(_) = source.value {
            cx.error(source.span, "no listener asks clients for certificates")
                .help("add `client_auth: {ca: PATH}` to a listener with `tls`");
        }
    }
}

fn jwt(cx: &mut Lowering<'_>, jwt: &Spanned<schema::Jwt>) -> Lowered<Jwt> {
    let keys = jwt_keys(cx, jwt);
    let algorithms = jwt_algorithms(cx, jwt);
    let header = match &jwt.header {
        Some(name) => cx.header_name(name),
        None => Ok(AUTHORIZATION),
    };
    Ok(Jwt::new(
        jwt.claim.clone().unwrap_or_else(|| "sub".to_owned()),
        keys?,
        algorithms?,
        jwt.issuer.clone(),
        jwt.audience.clone(),
        header?,
        jwt.leeway.map_or(DEFAULT_LEEWAY, |leeway| leeway.0),
    ))
}

fn jwt_keys(cx: &mut Lowering<'_>, jwt: &Spanned<schema::Jwt>) -> Lowered<JwtKeys> {
    match (&jwt.secret, &jwt.jwks) {
        (Some(written), None) => {
            let text = secret(cx, written, written.span)?;
            cx.ok(written.span, JwtKeys::secret(text.as_bytes()))
        }
        (None, Some(path)) => {
            let json = cx.read_file(path, path.span)?;
            cx.ok(path.span, JwtKeys::jwks(&json))
        }
        _ => Err(cx.lacking(
            jwt.span,
            &["secret", "jwks"],
            "a token is verified by exactly one of `secret` and `jwks`",
            "say `secret: {file: jwt.key}` for HS256, or `jwks: keys.json`",
        )),
    }
}

/// The allowed algorithms; those that fit the kind of key when none are named.
fn jwt_algorithms(cx: &mut Lowering<'_>, jwt: &schema::Jwt) -> Lowered<Vec<JwtAlgorithm>> {
    let Some(written) = &jwt.algorithms else {
        return Ok(default_algorithms(jwt.secret.is_some()));
    };
    let written = cx.filled(
        written,
        "no algorithm is allowed, so no token is",
        "name some of HS256, RS256, ES256 and EdDSA, or leave `algorithms` out",
    )?;
    Ok(written.iter().map(|name| algorithm(*name)).collect())
}

fn default_algorithms(secret: bool) -> Vec<JwtAlgorithm> {
    if secret {
        vec![JwtAlgorithm::Hs256]
    } else {
        vec![
            JwtAlgorithm::Rs256,
            JwtAlgorithm::Es256,
            JwtAlgorithm::EdDsa,
        ]
    }
}

fn algorithm(written: schema::JwtAlgorithm) -> JwtAlgorithm {
    match written {
        schema::JwtAlgorithm::Hs256 => JwtAlgorithm::Hs256,
        schema::JwtAlgorithm::Rs256 => JwtAlgorithm::Rs256,
        schema::JwtAlgorithm::Es256 => JwtAlgorithm::Es256,
        schema::JwtAlgorithm::EdDsa => JwtAlgorithm::EdDsa,
    }
}

/// Reports what is doubtful about how clients are told apart.
pub(super) fn warn_of_clients(cx: &mut Lowering<'_>, gateway: &Gateway) {
    trusted_by_all(cx, gateway);
    logged_secrets(cx, gateway);
}

fn trusted_by_all(cx: &mut Lowering<'_>, gateway: &Gateway) {
    let proxies = gateway
        .client_address
        .iter()
        .filter_map(|client_address| client_address.trusted_proxies.as_ref());
    let listeners = gateway.listen.iter().flat_map(|listen| &listen.0);
    let balancers = listeners.filter_map(|listener| match &listener.value {
        WordOr::More(listener) => Some(&*listener.proxy_protocol.as_ref()?.trusted),
        WordOr::Word(_) => None,
    });
    for proxy in proxies
        .chain(balancers)
        .flatten()
        .filter(|proxy| proxy.value.ends_with("/0"))
    {
        cx.warn(proxy.span, "every client may claim any address")
            .help("name only the networks of your own proxies");
    }
}

/// Secrets that are written into the log.
fn logged_secrets(cx: &mut Lowering<'_>, gateway: &Gateway) {
    let account = gateway.log.as_ref().and_then(|log| log.account);
    if account != Some(LogAccount::Plain) {
        return;
    }
    for source in gateway.account.iter().flat_map(|sources| &sources.value) {
        if matches!(
            source.value,
            schema::AccountSource::Bearer(_) | schema::AccountSource::Cookie(_)
        ) {
            cx.warn(source.span, "the log shows this secret to all who read it")
                .help("leave out `log.account: plain`, or name accounts by something else");
        }
    }
}
