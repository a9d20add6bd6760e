//! The keys of a listener, and what comes of them.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU16;

use ipnet::IpNet;
use serde::Deserialize;
use weir_middleware::Redirect;
use weir_server::{AltService, Certificates};
use weir_yaml::{OneOrMany, Required, Spanned, WordOr};

use super::acme::{Acme, AcmeCertificate};
use super::http3::Http3;
use crate::addresses::{ListenAddress, Network};
use crate::gateway::envoy::keys::EnvoyDomain;

/// A socket to listen on.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename = "Listener"))]
#[serde(deny_unknown_fields)]
pub(crate) struct ListenerKeys {
    /// `0.0.0.0:8080`, or `[::]:8080` for IPv6. Takes a restart.
    pub(crate) address: Spanned<Required<ListenAddress>>,
    /// The certificates of a TLS listener; switching TLS on or off takes a restart. Type: keys, or
    /// a list of them.
    pub(crate) tls: Option<Spanned<OneOrMany<Spanned<ListenerCertificate>>>>,
    /// The [certificates that clients show](#certificates-of-clients). Default: none.
    pub(crate) client_auth: Option<Spanned<ClientAuthKeys>>,
    /// The load balancers that say by the PROXY protocol from whom a connection is; switching it on
    /// or off takes a restart. Default: none.
    pub(crate) proxy_protocol: Option<ProxyProtocol>,
    /// Whether requests that did not come by [HTTPS](#https) are redirected there. Type: `true`,
    /// `false`, or `{port}`. Default: `false`. Takes a restart.
    pub(crate) redirect_to_https: Option<Spanned<WordOr<HttpsRedirect>>>,
    /// Whether clients may speak [HTTP/3](#http3) as well, at the same port by UDP; only with
    /// `tls`. `false`, written out, makes them forget that they could. Type: `true`, `false`, or
    /// keys. Default: none. Takes a restart.
    pub(crate) http3: Option<Spanned<WordOr<Http3>>>,
}

/// The listener for other proxies.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Decide {
    /// Where it listens; not where clients can send requests. Type: address and port. Takes a
    /// restart.
    pub(crate) address: Spanned<Required<ListenAddress>>,
    /// The proxies that may ask, and are believed what they say of a request. Type: list of
    /// addresses and networks.
    pub(crate) trusted_proxies: Spanned<Vec<Spanned<Network>>>,
    /// The certificates of a TLS listener, from files; switching TLS on or off takes a restart.
    /// Type: `{certificate, key}` or list of them. Default: none.
    pub(crate) tls: Option<Spanned<OneOrMany<Spanned<ListenerCertificate>>>>,
    /// The [certificates that the proxies show](#certificates-of-clients). Default: none.
    pub(crate) client_auth: Option<Spanned<ClientAuthKeys>>,
    /// [Limits for Envoy](#decideenvoy), which asks by its rate limit service. Type: list of
    /// `{domain, descriptors}`. Default: none.
    pub(crate) envoy: Option<Spanned<Vec<Spanned<EnvoyDomain>>>>,
}

/// Where HTTPS is, if it is not at its usual port.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct HttpsRedirect {
    /// The port of HTTPS; `true` stands for 443.
    pub(crate) port: NonZeroU16,
}

/// Whose certificates clients show.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename = "ClientAuth"))]
#[serde(deny_unknown_fields)]
pub(crate) struct ClientAuthKeys {
    /// The authorities (PEM) that sign certificates of clients. Type: path.
    pub(crate) ca: Spanned<String>,
    /// Whether a client without a certificate is refused; one with a certificate that is not
    /// accepted always is. Default: `required`.
    pub(crate) mode: Option<ClientAuthMode>,
    /// Revocation lists (PEM), one of each authority; a certificate on them is refused, and so is
    /// one whose authority has no list. Type: path.
    pub(crate) crl: Option<Spanned<String>>,
}

/// Whether clients have to show one.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum ClientAuthMode {
    Required,
    Optional,
}

/// Who says by the PROXY protocol from whom a connection is.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ProxyProtocol {
    /// The load balancers, which must then send a header, before TLS. Type: list of addresses and
    /// networks.
    pub(crate) trusted: Spanned<Vec<Spanned<Network>>>,
}

/// A certificate and its key, or how both are obtained.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ListenerCertificate {
    /// A PEM file: the leaf certificate, then the intermediates (`fullchain.pem`). Type: path.
    pub(crate) certificate: Option<Spanned<String>>,
    /// A PEM file with its unencrypted private key: PKCS#8, PKCS#1 or SEC1. Type: path.
    pub(crate) key: Option<Spanned<String>>,
    /// In place of both: the domains whose [certificates Weir obtains](#certificates-by-acme).
    /// Type: domain, keys, or a list of them.
    pub(crate) acme: Option<Spanned<OneOrMany<Spanned<WordOr<Acme>>>>>,
}

/// Where requests are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// The address.
    pub address: SocketAddr,
    /// What it shows to its clients if it speaks TLS, from files.
    pub certificates: Option<Certificates>,
    /// What it shows as well, once it is obtained; only if it speaks TLS.
    pub acme: Vec<AcmeCertificate>,
    /// The networks of peers that must say by the PROXY protocol from whom a connection is.
    pub proxy_protocol: Option<Vec<IpNet>>,
    /// Where requests are sent that did not come by HTTPS; none if they are served.
    pub redirect_to_https: Option<Redirect>,
    /// What clients are told of HTTP/3; none where they have never heard of it.
    pub alt_service: Option<AltService>,
    /// The networks of the proxies for whose requests it decides; none if it forwards requests.
    pub decides_for: Option<Vec<IpNet>>,
}

impl Listener {
    /// Whether it has sockets for UDP beside those for TCP.
    pub fn listens_by_udp(&self) -> bool {
        matches!(self.alt_service, Some(AltService::Announced { .. }))
    }

    /// Whether clients connect to it themselves.
    pub fn takes_clients(&self) -> bool {
        self.proxy_protocol.is_none() && self.decides_for.is_none()
    }
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tls = self.certificates.as_ref().map_or("", |_| " with TLS");
        let proxied = self.proxy_protocol.as_ref();
        let proxied = proxied.map_or("", |_| " with the PROXY protocol");
        let redirect = self.redirect_to_https.as_ref();
        let redirect = redirect.map_or("", |_| " redirecting to HTTPS");
        let decides = self.decides_for.as_ref().map_or("", |_| " for decisions");
        let by_udp = match self.alt_service {
            Some(AltService::Announced { .. }) => " with HTTP/3",
            Some(AltService::Withdrawn) => " without HTTP/3",
            None => "",
        };
        let address = self.address;
        write!(f, "{address}{tls}{proxied}{redirect}{by_udp}{decides}")
    }
}
