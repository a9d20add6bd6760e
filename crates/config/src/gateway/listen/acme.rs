//! Certificates that are obtained by ACME: for which domains, from whom, and how.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::{URL_SAFE, URL_SAFE_NO_PAD};
use http::Uri;
use http::uri::Scheme;
use rustix::fs::{Access, access};
use rustls::pki_types::DnsName;
use serde::Deserialize;
use weir_proxy::{Server, TlsSettings, UpstreamTls};
use weir_yaml::{Lowered, Lowering, OneOrMany, Secret, Span, Spanned, WordOr, all, words};

use crate::certificates::authorities;
use crate::foreign::{Config, Word};
use crate::secret::secret;

const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org/directory";

/// The folder in which certificates are kept unless it is told, beside `gateway.yaml`.
const DEFAULT_CACHE: &str = "acme";

/// Certificates by ACME, with what is said of them beside their domains.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Acme {
    /// The domains; no wildcards, which take a challenge by DNS, and no addresses. Type: name or
    /// list of names.
    pub(crate) domains: Spanned<OneOrMany<Spanned<String>>>,
    /// Whom the authority may write to. Type: address.
    pub(crate) email: Option<Spanned<String>>,
    /// The directory of the ACME server, with `https://`; for tries,
    /// `https://acme-staging-v02.api.letsencrypt.org/directory`. Type: URL. Default:
    /// `https://acme-v02.api.letsencrypt.org/directory`.
    pub(crate) directory: Option<Spanned<String>>,
    /// The authorities (PEM) that the ACME server's own certificate is checked by. Type: path.
    /// Default: public authorities.
    pub(crate) ca: Option<Spanned<String>>,
    /// The folder in which accounts, certificates and their keys are kept; made when it is needed,
    /// and readable for Weir's user alone. Type: path. Default: `acme`.
    pub(crate) cache: Option<Spanned<String>>,
    /// How the authority sees that the domain is yours. Default: both.
    pub(crate) challenge: Option<Spanned<Word<AcmeChallenge>>>,
    /// An account at the authority that the ACME account is bound to, if the authority asks for
    /// that. Default: none.
    pub(crate) eab: Option<ExternalAccountKeys>,
}

/// An account that there is already, which the ACME account is bound to.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename = "ExternalAccount"))]
#[serde(deny_unknown_fields)]
pub(crate) struct ExternalAccountKeys {
    /// The account's name.
    pub(crate) key_id: String,
    /// Its key, in base64url as the authority shows it.
    pub(crate) hmac_key: Spanned<Secret>,
}

words!(AcmeChallenge, by Config: "tls-alpn-01" => Self::TlsAlpn01, "http-01" => Self::Http01);

/// A certificate that is obtained by ACME.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcmeCertificate {
    /// The name that it is for.
    pub domain: String,
    /// From whom, and how.
    pub settings: Arc<AcmeSettings>,
}

/// How certificates are obtained by ACME.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcmeSettings {
    /// The URL of the server's directory.
    pub directory: Uri,
    /// How the server shows that it is the right one.
    pub tls: UpstreamTls,
    /// Whom the server may write to.
    pub email: Option<String>,
    /// The account that there is already, which the ACME account is bound to.
    pub external_account: Option<ExternalAccount>,
    /// The folder in which accounts and certificates are kept.
    pub cache: PathBuf,
    /// The challenges that can be answered, of which each attempt takes the next.
    pub challenges: Vec<AcmeChallenge>,
}

/// How an ACME server sees that the gateway serves a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcmeChallenge {
    /// By a handshake on port 443.
    TlsAlpn01,
    /// By a request on port 80.
    Http01,
}

/// Its name, as it is configured.
impl fmt::Display for AcmeChallenge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TlsAlpn01 => "tls-alpn-01",
            Self::Http01 => "http-01",
        })
    }
}

/// An account at a certificate authority (RFC 8555, section 7.3.4).
#[derive(Clone, PartialEq, Eq)]
pub struct ExternalAccount {
    /// Its name.
    pub key_id: String,
    /// The key that it is shown to be one's own with.
    pub hmac_key: Vec<u8>,
}

/// The key is secret.
impl fmt::Debug for ExternalAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ExternalAccount")
            .field(&self.key_id)
            .finish()
    }
}

/// The certificates of one item. `has_plain` says whether any listener speaks plain HTTP.
pub(super) fn acme(
    cx: &mut Lowering<'_>,
    written: &Spanned<OneOrMany<Spanned<WordOr<Acme>>>>,
    has_plain: bool,
) -> Lowered<Vec<AcmeCertificate>> {
    let items = cx.filled(written, "there is no domain", "write `acme: DOMAIN`")?;
    let items: Vec<Vec<_>> = all(items.iter().map(|item| match &item.value {
        WordOr::Word(domain) => {
            let domain = Spanned {
                value: domain.clone(),
                span: item.span,
            };
            let settings = default_settings(cx, &domain, has_plain);
            Ok(vec![certificate(cx, &domain, settings?)?])
        }
        WordOr::More(acme) => {
            let settings = settings(cx, acme, has_plain);
            let domains = cx.filled(&acme.domains, "there is no domain", "name one at least")?;
            let settings = settings?;
            all(domains
                .iter()
                .map(|domain| certificate(cx, domain, Arc::clone(&settings))))
        }
    }))?;
    Ok(items.into_iter().flatten().collect())
}

fn certificate(
    cx: &mut Lowering<'_>,
    written: &Spanned<String>,
    settings: Arc<AcmeSettings>,
) -> Lowered<AcmeCertificate> {
    let text = &written.value;
    let (message, help) = if text.starts_with("*.") {
        (
            format!("a certificate for `{text}` takes a challenge by DNS, which is not supported"),
            "name each domain, or obtain it by another tool, and name its files",
        )
    } else if text.parse::<IpAddr>().is_ok() {
        (
            format!("a certificate for the address {text} cannot be obtained"),
            "name a domain",
        )
    } else if DnsName::try_from(text.as_str()).is_err() || text.ends_with('.') {
        (
            format!("`{text}` is not a domain"),
            "write a host name such as www.example.com, without a scheme, a port or a path",
        )
    } else if !text.contains('.') && settings.directory == LETS_ENCRYPT {
        (
            format!("no public authority signs a certificate for `{text}`"),
            "write the whole name, or name the `directory` of an authority of your own",
        )
    } else {
        return Ok(AcmeCertificate {
            domain: text.to_ascii_lowercase(),
            settings,
        });
    };
    Err(cx.error(written.span, message).help(help))
}

/// What holds where only a domain is written.
fn default_settings(
    cx: &mut Lowering<'_>,
    domain: &Spanned<String>,
    has_plain: bool,
) -> Lowered<Arc<AcmeSettings>> {
    let at = |text: &str| Spanned {
        value: text.to_owned(),
        span: domain.span,
    };
    let cache = cache(cx, &at(DEFAULT_CACHE));
    let tls = cx.ok(domain.span, UpstreamTls::new(TlsSettings::default()));
    Ok(Arc::new(AcmeSettings {
        directory: directory(cx, &at(LETS_ENCRYPT))?,
        tls: tls?,
        email: None,
        external_account: None,
        cache: cache?,
        challenges: possible_challenges(has_plain),
    }))
}

fn settings(cx: &mut Lowering<'_>, written: &Acme, has_plain: bool) -> Lowered<Arc<AcmeSettings>> {
    let span = written.domains.span;
    let or_default = |written: &Option<Spanned<String>>, default: &str| {
        let default = || Spanned {
            value: default.to_owned(),
            span,
        };
        written.clone().unwrap_or_else(default)
    };
    let directory = directory(cx, &or_default(&written.directory, LETS_ENCRYPT));
    let cache = cache(cx, &or_default(&written.cache, DEFAULT_CACHE));
    let email = written.email.as_ref().map(|email| self::email(cx, email));
    let external_account = written.eab.as_ref().map(|eab| external_account(cx, eab));
    let authorities = written.ca.as_ref().map(|file| authorities(cx, file));
    let challenges = challenges(cx, written.challenge, has_plain);
    let tls = TlsSettings {
        authorities: authorities.transpose()?,
        ..TlsSettings::default()
    };
    let tls = UpstreamTls::new(tls).map_err(|error| format!("TLS to the directory {error}"));
    let tls = cx.ok(written.ca.as_ref().map_or(span, |ca| ca.span), tls);
    Ok(Arc::new(AcmeSettings {
        directory: directory?,
        tls: tls?,
        email: email.transpose()?,
        external_account: external_account.transpose()?,
        cache: cache?,
        challenges: challenges?,
    }))
}

fn directory(cx: &mut Lowering<'_>, written: &Spanned<String>) -> Lowered<Uri> {
    let uri = written.value.parse::<Uri>().ok();
    let uri = uri.filter(|uri| uri.scheme() == Some(&Scheme::HTTPS));
    let is_server = |uri: &Uri| {
        let authority = uri
            .authority()
            .map(|authority| format!("https://{authority}"));
        authority.is_some_and(|server| server.parse::<Server>().is_ok())
    };
    uri.filter(is_server).ok_or_else(|| {
        let message = format!("`{}` is not the URL of a directory", written.value);
        let error = cx.error(written.span, message);
        error.help("it begins with https://; the authority's documentation names it")
    })
}

/// An address that the authority may write to.
fn email(cx: &mut Lowering<'_>, written: &Spanned<String>) -> Lowered<String> {
    let text = written
        .value
        .strip_prefix("mailto:")
        .unwrap_or(&written.value);
    let is_address = text
        .split_once('@')
        .is_some_and(|(user, host)| !user.is_empty() && DnsName::try_from(host).is_ok());
    if is_address && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(text.to_owned());
    }
    let message = format!("`{text}` is not an address for email");
    let error = cx.error(written.span, message);
    Err(error.help("write one such as admin@example.com, or leave it out"))
}

fn external_account(
    cx: &mut Lowering<'_>,
    written: &ExternalAccountKeys,
) -> Lowered<ExternalAccount> {
    let key = secret(cx, &written.hmac_key, written.hmac_key.span)?;
    let decoded = URL_SAFE_NO_PAD
        .decode(&key)
        .or_else(|_| URL_SAFE.decode(&key));
    let hmac_key = decoded.map_err(|_| {
        let error = cx.error(written.hmac_key.span, "the key is not base64url");
        error.help("write it as the authority shows it")
    })?;
    Ok(ExternalAccount {
        key_id: written.key_id.clone(),
        hmac_key,
    })
}

/// By both, if a plain listener can answer `http-01`.
fn possible_challenges(has_plain: bool) -> Vec<AcmeChallenge> {
    let http = has_plain.then_some(AcmeChallenge::Http01);
    [AcmeChallenge::TlsAlpn01].into_iter().chain(http).collect()
}

fn challenges(
    cx: &mut Lowering<'_>,
    written: Option<Spanned<Word<AcmeChallenge>>>,
    has_plain: bool,
) -> Lowered<Vec<AcmeChallenge>> {
    let Some(written) = written else {
        return Ok(possible_challenges(has_plain));
    };
    if written.value.0 == AcmeChallenge::Http01 && !has_plain {
        let error = cx.error(
            written.span,
            "no listener speaks plain HTTP, which http-01 takes",
        );
        return Err(error.help("add `- address: 0.0.0.0:80` to `listen`, or leave `challenge` out"));
    }
    Ok(vec![written.value.0])
}

/// The folder for certificates, which is made when it is needed first.
fn cache(cx: &mut Lowering<'_>, written: &Spanned<String>) -> Lowered<PathBuf> {
    let path = cx.folder.join(&written.value);
    let cause = match nearest(&path) {
        Some(there) if !there.is_dir() => Some(format!("{} is not a folder", there.display())),
        Some(there) => access(there, Access::WRITE_OK | Access::EXEC_OK)
            .err()
            .map(|error| format!("{} cannot be written to: {error}", there.display())),
        None => None,
    };
    let Some(cause) = cause else {
        return Ok(path);
    };
    let message = format!("certificates cannot be kept in {}: {cause}", path.display());
    let error = cx.error(written.span, message);
    Err(error.help(
        "name a folder by `acme: {domains: DOMAIN, cache: PATH}` that the gateway's user may write to",
    ))
}

/// The path itself, or the first folder above it that is there.
fn nearest(path: &Path) -> Option<&Path> {
    let above = path
        .ancestors()
        .map(|folder| match folder.as_os_str().is_empty() {
            true => Path::new("."),
            false => folder,
        });
    above
        .into_iter()
        .find(|folder| folder.symlink_metadata().is_ok())
}

/// A domain has one certificate, so there is one way to obtain it. The listeners have these, by where
/// they are written.
pub(super) fn each_domain_alike<'l>(
    cx: &mut Lowering<'_>,
    listeners: impl Iterator<Item = (Span, &'l [AcmeCertificate])>,
) -> Lowered<()> {
    let mut known: Vec<&AcmeCertificate> = Vec::new();
    for (span, certificates) in listeners {
        for certificate in certificates {
            let domain = &certificate.domain;
            let other = known.iter().find(|other| other.domain == *domain);
            if other.is_some_and(|other| other.settings != certificate.settings) {
                let message = format!("the certificate for `{domain}` is obtained in two ways");
                let error = cx.error(span, message);
                return Err(error.help("write the same for it wherever it is used"));
            }
            known.push(certificate);
        }
    }
    Ok(())
}
