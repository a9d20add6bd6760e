//! Where the gateway listens, and what it shows there to clients that want TLS.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::{Lowered, Lowering};
use crate::config::schema::{self, Gateway, KeyPair};
use crate::config::settings::Listener;
use crate::config::until::Until;
use crate::config::yaml::{OneOrMany, Spanned, WordOr};
use crate::server::{CertificateError, Certificates, Chain, Identity, PrivateKey};
use crate::time::Timestamp;

/// Where the gateway listens unless it is told.
const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);

/// A certificate that expires so soon should have been renewed by now.
const SOON: Duration = Duration::from_secs(14 * 24 * 3600);

const RENEW: &str = "renew it; a file that changes is loaded without a restart";

impl Lowering<'_> {
    pub(super) fn listen(&mut self, gateway: &Gateway) -> Lowered<Vec<Listener>> {
        self.each_address_once(gateway);
        let Some(listeners) = &gateway.listen else {
            return Ok(vec![Listener {
                address: DEFAULT_LISTEN,
                certificates: None,
            }]);
        };
        let (span, listeners) = (listeners.span, &listeners.value.0);
        if listeners.is_empty() {
            let in_error = self.sources.child_in_error(span);
            return Err(in_error.unwrap_or_else(|| {
                self.error(span, "there is nothing to listen on")
                    .help("add `- address: 127.0.0.1:8080`, or leave `listen` out for that")
            }));
        }
        let listeners = listeners.iter().map(|it| match &it.value {
            WordOr::More(listener) => self.listener(listener),
            WordOr::Word(word) => {
                let message = format!("expected keys and values, found `{word}`");
                let address = full_address(word).unwrap_or(DEFAULT_LISTEN);
                let help = format!("write `listen: [{{address: \"{address}\"}}]`");
                Err(self.error(it.span, message).help(help))
            }
        });
        let listeners: Vec<_> = listeners.collect();
        listeners.into_iter().collect()
    }

    fn listener(&mut self, written: &schema::Listener) -> Lowered<Listener> {
        let address = self.address(&written.address);
        let certificates = written.tls.as_ref().map(|it| self.certificates(it));
        Ok(Listener {
            address: address?,
            certificates: certificates.transpose()?,
        })
    }

    pub(super) fn address(&mut self, address: &Spanned<String>) -> Lowered<SocketAddr> {
        let text = &address.value;
        text.parse().map_err(|_| {
            let message = format!("`{text}` is not an IP address and a port");
            let help = match full_address(text) {
                Some(address) => format!("write `\"{address}\"`"),
                None => "write one such as `0.0.0.0:8080` or `\"[::]:8080\"`".to_owned(),
            };
            self.error(address.span, message).help(help)
        })
    }

    /// An address can be listened on once; the system would blame another process for it.
    fn each_address_once(&mut self, gateway: &Gateway) {
        let listen = gateway.listen.iter().flat_map(|listen| &listen.0);
        let listen = listen.filter_map(|it| match &it.value {
            WordOr::More(listener) => Some(&listener.address),
            WordOr::Word(_) => None,
        });
        let mut taken: Vec<SocketAddr> = Vec::new();
        if gateway.listen.is_none() {
            taken.push(DEFAULT_LISTEN);
        }
        for written in listen.chain(gateway.admin.iter().map(|it| &it.address)) {
            // What is no address is told of already.
            let Ok(address) = written.value.parse::<SocketAddr>() else {
                continue;
            };
            if let Some(other) = taken.iter().find(|other| overlap(**other, address)) {
                let message = format!("{address} is taken already, by {other}");
                self.error(written.span, message)
                    .help("choose another port");
            }
            taken.push(address);
        }
    }

    fn certificates(
        &mut self,
        written: &Spanned<OneOrMany<Spanned<KeyPair>>>,
    ) -> Lowered<Certificates> {
        let pairs = &written.value.0;
        if pairs.is_empty() {
            let in_error = self.sources.child_in_error(written.span);
            return Err(in_error.unwrap_or_else(|| {
                self.error(written.span, "there is no certificate")
                    .help("write {certificate: PATH, key: PATH}")
            }));
        }
        let identities: Vec<_> = pairs.iter().map(|it| self.identity(it)).collect();
        let identities: Vec<_> = identities.into_iter().collect::<Lowered<_>>()?;
        let certificates = Certificates::new(identities);
        self.ok(written.span, certificates)
    }

    fn identity(&mut self, pair: &KeyPair) -> Lowered<Identity> {
        let chain = self.read_bytes(&pair.certificate, pair.certificate.span);
        let chain = chain.and_then(|pem| self.usable(&pair.certificate, Chain::from_pem(&pem)));
        let key = self.read_bytes(&pair.key, pair.key.span);
        let key = key.and_then(|pem| self.usable(&pair.key, PrivateKey::from_pem(&pem)));
        if let Ok(chain) = &chain {
            self.validity(&pair.certificate, chain);
        }
        self.usable(&pair.key, Identity::new(chain?, key?))
    }

    fn usable<T>(
        &mut self,
        file: &Spanned<String>,
        result: Result<T, CertificateError>,
    ) -> Lowered<T> {
        let result = result.map_err(|error| format!("{} {error}", file.value));
        self.ok(file.span, result)
    }

    /// Warns of a certificate that clients refuse, or will soon.
    fn validity(&mut self, file: &Spanned<String>, chain: &Chain) {
        let now = Duration::from_nanos(self.now.as_nanos());
        let (verb, moment, help) = match (chain.begins_after(now), chain.expires_before(now + SOON))
        {
            (Some(begin), _) => ("is not valid before", begin, "look at this machine's clock"),
            (None, Some(end)) if end < now => ("expired at", end, RENEW),
            (None, Some(end)) => ("expires at", end, RENEW),
            (None, None) => return,
        };
        let nanos = u64::try_from(moment.as_nanos()).unwrap_or(u64::MAX);
        let moment = Until(Timestamp::from_nanos(nanos));
        let message = format!("the certificate in {} {verb} {moment}", file.value);
        self.warn(file.span, message).help(help);
    }
}

/// The address that is meant where a part of it is missing: nginx and Go listen on all of the
/// machine's when there is but a port.
fn full_address(text: &str) -> Option<SocketAddr> {
    let text = text.replace("localhost", "127.0.0.1").replace("*:", ":");
    let text = text.strip_prefix("http://").unwrap_or(&text);
    let port = text.strip_prefix(':').unwrap_or(text).parse();
    let everywhere = port.map(|port| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port));
    let ip = text
        .parse()
        .map(|ip| SocketAddr::new(ip, DEFAULT_LISTEN.port()));
    text.parse().or(everywhere).or(ip).ok()
}

/// Whether no two sockets can listen on both. Port 0 is another one each time.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let everywhere = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port()
        && one.port() != 0
        && one.is_ipv4() == other.is_ipv4()
        && (everywhere || one.ip() == other.ip())
}
