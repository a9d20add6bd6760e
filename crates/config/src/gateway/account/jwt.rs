//! Accounts that JSON Web Tokens name: how tokens are verified, and where key sets are fetched.

use std::time::Duration;

use http::Uri;
use http::header::AUTHORIZATION;
use http::uri::Scheme;
use serde::Deserialize;
use weir_proxy::{Server, TlsSettings, UpstreamTls};
use weir_rules::{Jwt, JwtAlgorithm, JwtKeys as SigningKeys, RemoteKeys, TokenKeys};
use weir_yaml::{
    FieldName, HumanDuration, Lowered, Lowering, PositiveDuration, Secret, Span, Spanned, WordOr,
    words,
};

use crate::certificates::authorities;
use crate::foreign::{Config, Word};
use crate::secret::secret;

/// The default for how far clocks of issuers may be off.
const DEFAULT_LEEWAY: Duration = Duration::from_secs(60);

/// How often keys are fetched if the response does not say how long it is fresh.
const DEFAULT_REFRESH: Duration = Duration::from_secs(10 * 60);

/// How old keys may become while they cannot be fetched.
const DEFAULT_MAX_STALE: Duration = Duration::from_secs(24 * 60 * 60);

/// A JSON web token, which is verified.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename = "Jwt"))]
#[serde(deny_unknown_fields)]
pub(crate) struct JwtKeys {
    /// The claim that names the account. Default: `sub`.
    pub(crate) claim: Option<String>,
    /// Where the token is; `Bearer` is dropped. Default: `authorization`.
    pub(crate) header: Option<FieldName>,
    /// The shared secret of HS256, at least 32 bytes long.
    pub(crate) secret: Option<Spanned<Secret>>,
    /// A JSON Web Key Set; exactly one of `jwks` and `secret` is required. Type: path, `https://`
    /// URL, or keys.
    pub(crate) jwks: Option<Spanned<WordOr<JwksKeys>>>,
    /// The signature algorithms that are accepted. Type: list of `HS256`, `RS256`, `ES256`,
    /// `EdDSA`. Default: those that fit the keys.
    pub(crate) algorithms: Option<Spanned<Vec<Word<JwtAlgorithm>>>>,
    /// The `iss` that a token must have. Default: any.
    pub(crate) issuer: Option<String>,
    /// The `aud` that a token must have. Default: any.
    pub(crate) audience: Option<String>,
    /// The clock skew that is tolerated. Default: `60s`.
    pub(crate) leeway: Option<HumanDuration>,
}

/// A key set that is fetched.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename = "Jwks"))]
#[serde(deny_unknown_fields)]
pub(crate) struct JwksKeys {
    /// Where the key set is; redirects are not followed. Type: `https://` URL.
    pub(crate) url: Spanned<String>,
    /// The certificate authorities (PEM) that may sign the server's certificate. Type: path.
    /// Default: public authorities.
    pub(crate) ca: Option<Spanned<String>>,
    /// How long to wait before the next fetch if the response does not say. Default: `10m`.
    pub(crate) refresh: Option<PositiveDuration>,
    /// How old keys may become while they cannot be fetched; older ones verify nothing. Default:
    /// `24h`.
    pub(crate) max_stale: Option<PositiveDuration>,
}

words!(JwtAlgorithm, by Config:
    "HS256" => Self::Hs256,
    "RS256" => Self::Rs256,
    "ES256" => Self::Es256,
    "EdDSA" => Self::EdDsa,
);

/// A key set that is fetched, and the place for its keys.
#[derive(Clone, Debug)]
pub struct Jwks {
    /// How it is fetched.
    pub settings: JwksSettings,
    /// Where its keys are looked for.
    pub keys: RemoteKeys,
}

/// How a key set is fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwksSettings {
    /// Where it is.
    pub url: Uri,
    /// The server of the URL.
    pub server: Server,
    /// How long to wait before the next fetch if the response does not say.
    pub refresh: Duration,
    /// How old keys may become if they cannot be fetched again.
    pub max_stale: Duration,
}

pub(super) fn jwt(
    cx: &mut Lowering<'_>,
    jwks: &mut Vec<Jwks>,
    jwt: &Spanned<JwtKeys>,
) -> Lowered<Jwt> {
    let keys = jwt_keys(cx, jwks, jwt);
    let algorithms = jwt_algorithms(cx, jwt);
    let header = jwt.header.as_ref().map(|name| name.0.clone());
    Ok(Jwt::new(
        jwt.claim.clone().unwrap_or_else(|| "sub".to_owned()),
        keys?,
        algorithms?,
        jwt.issuer.clone(),
        jwt.audience.clone(),
        header.unwrap_or(AUTHORIZATION),
        jwt.leeway.map_or(DEFAULT_LEEWAY, |leeway| leeway.0),
    ))
}

fn jwt_keys(
    cx: &mut Lowering<'_>,
    jwks: &mut Vec<Jwks>,
    jwt: &Spanned<JwtKeys>,
) -> Lowered<TokenKeys> {
    match (&jwt.secret, &jwt.jwks) {
        (Some(written), None) => {
            let text = secret(cx, written, written.span)?;
            let keys = cx.ok(written.span, SigningKeys::secret(text.as_bytes()))?;
            Ok(keys.into())
        }
        (None, Some(written)) => match &written.value {
            WordOr::Word(path) if !path.contains("://") => {
                let json = cx.read_file(path, written.span)?;
                let keys = cx.ok(written.span, SigningKeys::jwks(&json))?;
                Ok(keys.into())
            }
            WordOr::Word(url) => {
                let settings = fetched(cx, url, written.span, TlsSettings::default())?;
                Ok(add(jwks, settings))
            }
            WordOr::More(more) => {
                let settings = fetched_with(cx, more)?;
                Ok(add(jwks, settings))
            }
        },
        _ => Err(cx.lacking(
            jwt.span,
            &["secret", "jwks"],
            "a token is verified by exactly one of `secret` and `jwks`",
            "say `secret: {file: jwt.key}` for HS256, or `jwks: keys.json`",
        )),
    }
}

fn add(jwks: &mut Vec<Jwks>, settings: JwksSettings) -> TokenKeys {
    let keys = RemoteKeys::new();
    jwks.push(Jwks {
        settings,
        keys: keys.clone(),
    });
    keys.into()
}

/// A key set that is fetched, with what is said of it beside its URL.
fn fetched_with(cx: &mut Lowering<'_>, written: &JwksKeys) -> Lowered<JwksSettings> {
    let authorities = written.ca.as_ref().map(|file| authorities(cx, file));
    let tls = TlsSettings {
        authorities: authorities.transpose()?,
        ..TlsSettings::default()
    };
    let settings = fetched(cx, &written.url, written.url.span, tls)?;
    Ok(JwksSettings {
        refresh: written.refresh.map_or(settings.refresh, |time| time.0),
        max_stale: written.max_stale.map_or(settings.max_stale, |time| time.0),
        ..settings
    })
}

/// A key set at this URL.
fn fetched(
    cx: &mut Lowering<'_>,
    url: &str,
    span: Span,
    tls: TlsSettings,
) -> Lowered<JwksSettings> {
    let uri = url
        .parse::<Uri>()
        .ok()
        .filter(|uri| uri.scheme() == Some(&Scheme::HTTPS));
    let authority = uri.as_ref().and_then(Uri::authority);
    let server = authority.map(|authority| format!("https://{authority}").parse::<Server>());
    let (Some(uri), Some(server)) = (uri, server) else {
        let message = format!("`{url}` is not a URL of keys: it begins with https://");
        let error = cx.error(span, message);
        return Err(error.help("keys that come unencrypted can be forged on their way"));
    };
    let server = cx.ok(span, server)?;
    let tls = UpstreamTls::new(tls).map_err(|error| format!("TLS to {url} {error}"));
    Ok(JwksSettings {
        server: server.with_tls(&cx.ok(span, tls)?),
        url: uri,
        refresh: DEFAULT_REFRESH,
        max_stale: DEFAULT_MAX_STALE,
    })
}

/// The allowed algorithms; those that fit the kind of key when none are named.
fn jwt_algorithms(cx: &mut Lowering<'_>, jwt: &JwtKeys) -> Lowered<Vec<JwtAlgorithm>> {
    let Some(written) = &jwt.algorithms else {
        return Ok(default_algorithms(jwt.secret.is_some()));
    };
    let written = cx.filled(
        written,
        "no algorithm is allowed, so no token is",
        "name some of HS256, RS256, ES256 and EdDSA, or leave `algorithms` out",
    )?;
    Ok(written.iter().map(|name| name.0).collect())
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
