//! Where the gateway listens, what it shows there to clients that want TLS, and what their
//! connections may do.

pub mod acme;
pub(super) mod http3;
pub(super) mod listener;

use std::net::SocketAddr;

use ipnet::IpNet;
use weir_rules::{HostPattern, unmapped};
use weir_server::{Certificates, ClientAuth, ClientAuthorities, Identity, RevocationLists};
use weir_yaml::{Lowered, Lowering, OneOrMany, SpanOf, Spanned, WordOr, all};

use self::acme::{AcmeCertificate, acme, each_domain_alike};
use self::http3::{Beside, http3};
pub use self::listener::Listener;
use self::listener::{
    ClientAuthKeys, ClientAuthMode, ListenerCertificate, ListenerKeys, ProxyProtocol,
};
use super::https::redirect_to_https;
use super::schema::{Admin, Gateway};
use crate::addresses::{DEFAULT_LISTEN, ListenAddress, full_address};
use crate::certificates::{identity, usable};

const NAME_FILES_OR_ACME: &str = "write {certificate: PATH, key: PATH} or {acme: DOMAIN}";

pub(super) fn listen(cx: &mut Lowering<'_>, gateway: &Gateway) -> Lowered<Vec<Listener>> {
    each_address_once(cx, gateway);
    let Some(listeners) = &gateway.listen else {
        let forwards = gateway.decide.is_none();
        return Ok(forwards
            .then(|| plain(DEFAULT_LISTEN))
            .into_iter()
            .collect());
    };
    let listeners = cx.filled(
        listeners,
        "there is nothing to listen on",
        "add `- address: 127.0.0.1:8080`, or leave `listen` out for that",
    )?;
    let has_plain = listeners.iter().any(|item| match &item.value {
        WordOr::More(written) => written.tls.is_none(),
        WordOr::Word(_) => true,
    });
    let lowered: Vec<_> = all(listeners.iter().map(|item| match &item.value {
        WordOr::More(written) => listener(cx, written, has_plain),
        WordOr::Word(word) => {
            let message = format!("expected keys and values, found `{word}`");
            let address = full_address(word).unwrap_or(DEFAULT_LISTEN);
            let help = format!("write `listen: [{{address: \"{address}\"}}]`");
            Err(cx.error(item.span, message).help(help))
        }
    }))?;
    let spans = listeners.iter().map(|written| written.span);
    let certificates = lowered.iter().map(|listener| &*listener.acme);
    each_domain_alike(cx, spans.zip(certificates))?;
    Ok(lowered)
}

/// A listener for plain HTTP.
pub(super) fn plain(address: SocketAddr) -> Listener {
    Listener {
        address,
        certificates: None,
        acme: Vec::new(),
        proxy_protocol: None,
        redirect_to_https: None,
        alt_service: None,
        decides_for: None,
    }
}

/// `has_plain` says whether any listener speaks plain HTTP.
fn listener(cx: &mut Lowering<'_>, written: &ListenerKeys, has_plain: bool) -> Lowered<Listener> {
    let address = cx.required(&written.address);
    let (tls, clients) = (written.tls.as_ref(), written.client_auth.as_ref());
    let certificates = tls_certificates(cx, tls, clients, has_plain);
    let proxies = written.proxy_protocol.as_ref();
    let proxies = proxies.map(|written| proxy_protocol(cx, written));
    let redirect = redirect_to_https(cx, written);
    let beside = Beside {
        tls: written.tls.is_some(),
        proxy_protocol: written.proxy_protocol.is_some(),
        client_auth: written.client_auth.is_some(),
    };
    let alt_service = http3(cx, written.http3.as_ref(), &beside);
    let (certificates, acme) = certificates?;
    Ok(Listener {
        certificates,
        acme,
        proxy_protocol: proxies.transpose()?,
        redirect_to_https: redirect?,
        alt_service: alt_service?,
        ..plain(address?.0)
    })
}

/// What a listener shows if it speaks TLS, from files and by ACME.
pub(super) fn tls_certificates(
    cx: &mut Lowering<'_>,
    tls: Option<&Spanned<OneOrMany<Spanned<ListenerCertificate>>>>,
    clients: Option<&Spanned<ClientAuthKeys>>,
    has_plain: bool,
) -> Lowered<(Option<Certificates>, Vec<AcmeCertificate>)> {
    let client_auth = clients.map(|written| client_auth(cx, written)).transpose();
    if let (Some(clients), None) = (clients, tls) {
        cx.error(clients.span, "clients show certificates by TLS alone")
            .help("add `tls` to this listener, or leave `client_auth` out");
    }
    let certificates = tls.map(|tls| certificates(cx, tls, client_auth, has_plain));
    let (certificates, acme) = certificates.transpose()?.unzip();
    Ok((certificates, acme.unwrap_or_default()))
}

/// Which certificates of clients are accepted.
fn client_auth(cx: &mut Lowering<'_>, written: &ClientAuthKeys) -> Lowered<ClientAuth> {
    let authorities = cx.read_bytes(&written.ca, written.ca.span);
    let authorities =
        authorities.and_then(|pem| usable(cx, &written.ca, ClientAuthorities::from_pem(&pem)));
    let revoked = match &written.crl {
        None => Ok(RevocationLists::default()),
        Some(crl) => {
            let read = cx.read_bytes(crl, crl.span);
            read.and_then(|pem| usable(cx, crl, RevocationLists::from_pem(&pem)))
        }
    };
    let required = written.mode != Some(ClientAuthMode::Optional);
    let file = written.crl.as_ref().unwrap_or(&written.ca);
    usable(cx, file, ClientAuth::new(authorities?, revoked?, required))
}

/// The networks of the peers that send PROXY headers.
fn proxy_protocol(cx: &mut Lowering<'_>, written: &ProxyProtocol) -> Lowered<Vec<IpNet>> {
    let trusted = cx.filled(
        &written.trusted,
        "no peer may send a PROXY header",
        "name the addresses or networks of the load balancers, such as 10.0.0.0/8",
    )?;
    cx.items(&written.trusted)?;
    Ok(trusted.iter().map(|network| unmapped(network.0)).collect())
}

/// An admin listener that other machines reach, and that asks for no token.
pub(super) fn warn_of_open_admin(cx: &mut Lowering<'_>, admin: Option<&Admin>) {
    let Some(admin) = admin.filter(|admin| admin.token.is_none() && admin.tokens.is_none()) else {
        return;
    };
    let Some(ListenAddress(address)) = admin.address.value.0 else {
        return;
    };
    if !address.ip().to_canonical().is_loopback() {
        let message = format!("other machines may reach {address}, and there is no token");
        cx.warn(admin.address.span, message).help(
            "all of them read health and metrics, and a forwarded port of this machine changes \
             bans; configure `token`, or listen on 127.0.0.1",
        );
    }
}

/// Whether there is a dashboard, which somebody must be able to use.
pub(super) fn admin_hosts(
    cx: &mut Lowering<'_>,
    admin: Option<&Admin>,
) -> Lowered<Vec<HostPattern>> {
    let hosts = admin.and_then(|admin| admin.hosts.as_deref());
    let hosts = hosts.unwrap_or_default().iter();
    all(hosts.map(|host| cx.ok(host.span, HostPattern::parse(host))))
}

pub(super) fn admin_dashboard(cx: &mut Lowering<'_>, admin: Option<&Admin>) -> Lowered<bool> {
    let written = admin.and_then(|admin| Some((admin, admin.dashboard.as_ref()?)));
    let Some((admin, dashboard)) = written else {
        return Ok(false);
    };
    let is_local = |address: SocketAddr| {
        let address = address.ip().to_canonical();
        address.is_loopback() || address.is_unspecified()
    };
    let has_token = admin.token.is_some() || admin.tokens.is_some();
    if let Some(ListenAddress(found)) = admin.address.value.0
        && dashboard.value
        && !has_token
        && !is_local(found)
    {
        let message = format!(
            "without a token the dashboard answers this machine only, \
                               which cannot reach {found} by a loopback address"
        );
        let error = cx.error(dashboard.span, message);
        return Err(error.help("configure `token` beside it, or listen on 127.0.0.1"));
    }
    Ok(dashboard.value)
}

/// An address can be listened on once; the system would blame another process for it.
fn each_address_once(cx: &mut Lowering<'_>, gateway: &Gateway) {
    let listen = gateway.listen.iter().flat_map(|listen| &listen.0);
    let listen = listen.filter_map(|written| match &written.value {
        WordOr::More(listener) => Some(&listener.address),
        WordOr::Word(_) => None,
    });
    let mut taken: Vec<SocketAddr> = Vec::new();
    if gateway.listen.is_none() && gateway.decide.is_none() {
        taken.push(DEFAULT_LISTEN);
    }
    let decide = gateway.decide.iter().map(|decide| &decide.address);
    let admin = gateway.admin.iter().map(|admin| &admin.address);
    for written in listen.chain(decide).chain(admin) {
        let Some(ListenAddress(address)) = written.value.0 else {
            continue;
        };
        if let Some(other) = taken.iter().find(|other| overlap(**other, address)) {
            let message = format!("{address} is taken already, by {other}");
            cx.error(written.span, message).help("choose another port");
        }
        taken.push(address);
    }
}

/// The certificates from files, and those by ACME.
fn certificates(
    cx: &mut Lowering<'_>,
    written: &Spanned<OneOrMany<Spanned<ListenerCertificate>>>,
    clients: Lowered<Option<ClientAuth>>,
    has_plain: bool,
) -> Lowered<(Certificates, Vec<AcmeCertificate>)> {
    let items = cx.filled(written, "there is no certificate", NAME_FILES_OR_ACME)?;
    let items = items.iter().map(|item| certificate(cx, item, has_plain));
    let items: Vec<_> = all(items)?;
    let (files, acme): (Vec<_>, Vec<_>) = items.into_iter().unzip();
    let certificates = Certificates::new(files.into_iter().flatten().collect(), clients?);
    let certificates = cx.ok(written.span, certificates)?;
    Ok((certificates, acme.into_iter().flatten().collect()))
}

fn certificate(
    cx: &mut Lowering<'_>,
    item: &Spanned<ListenerCertificate>,
    has_plain: bool,
) -> Lowered<(Option<Identity>, Vec<AcmeCertificate>)> {
    match (&item.certificate, &item.key, &item.acme) {
        (Some(certificate), Some(key), None) => {
            Ok((Some(identity(cx, certificate, key)?), Vec::new()))
        }
        (None, None, Some(written)) => Ok((None, acme(cx, written, has_plain)?)),
        (certificate, key, Some(_)) => {
            let span = certificate.span().or_else(|| key.span());
            let message = "a certificate comes from files or by ACME, not both";
            let error = cx.error(span.unwrap_or(item.span), message);
            Err(error.help("leave out `acme`, or `certificate` and `key`"))
        }
        (None, None, None) => {
            let keys = &["certificate", "key", "acme"];
            let message = "there is no certificate";
            Err(cx.lacking(item.span, keys, message, NAME_FILES_OR_ACME))
        }
        (certificate, _, None) => {
            let missing = certificate.as_ref().map_or("certificate", |_| "key");
            let message = format!("the key \"{missing}\" is missing");
            let help = "name the files of both the certificate and its private key";
            Err(cx.lacking(item.span, &[missing], &message, help))
        }
    }
}

/// Whether two sockets cannot listen on both. Port 0 stands for a different port each time.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let everywhere = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port()
        && one.port() != 0
        && one.is_ipv4() == other.is_ipv4()
        && (everywhere || one.ip() == other.ip())
}
