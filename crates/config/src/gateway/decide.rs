//! Decisions for other proxies: where they ask, and what a decision before the response cannot do.

use std::collections::HashSet;

use ipnet::IpNet;
use weir_rules::AccountRules;
use weir_server::Certificates;
use weir_yaml::{Lowered, Lowering};

use super::capabilities::{account, denial, limit};
use super::listen::listener::Decide;
use super::listen::{Listener, plain, tls_certificates};
use super::schema::Gateway;
use crate::routes::LoweredRoute;

/// The listener for other proxies, if there is one.
pub(super) fn decide(cx: &mut Lowering<'_>, gateway: &Gateway) -> Lowered<Option<Listener>> {
    let Some(written) = &gateway.decide else {
        return Ok(None);
    };
    let address = cx.required(&written.address);
    let trusted = trusted(cx, written);
    let certificates = certificates(cx, written);
    Ok(Some(Listener {
        certificates: certificates?,
        decides_for: Some(trusted?),
        ..plain(address?.0)
    }))
}

/// None by ACME, as its authority would have to reach the listener.
fn certificates(cx: &mut Lowering<'_>, written: &Decide) -> Lowered<Option<Certificates>> {
    let mut items = written.tls.iter().flat_map(|tls| &tls.0);
    if let Some(acme) = items.find_map(|item| item.acme.as_ref()) {
        let error = cx.error(acme.span, "this listener has certificates from files alone");
        return Err(error.help("name `certificate` and `key`"));
    }
    let (tls, clients) = (written.tls.as_ref(), written.client_auth.as_ref());
    let (certificates, _) = tls_certificates(cx, tls, clients, false)?;
    Ok(certificates)
}

fn trusted(cx: &mut Lowering<'_>, written: &Decide) -> Lowered<Vec<IpNet>> {
    let trusted = cx.filled(
        &written.trusted_proxies,
        "no proxy may ask",
        "name the addresses or networks of the proxies that ask, such as 127.0.0.1",
    )?;
    cx.items(&written.trusted_proxies)?;
    Ok(trusted.iter().map(|network| network.0).collect())
}

/// Reports what is configured and works only where Weir forwards the request.
pub(super) fn warn_of_decisions(
    cx: &mut Lowering<'_>,
    gateway: &Gateway,
    rules: &Lowered<AccountRules>,
    routes: &[LoweredRoute],
) {
    if gateway.decide.is_none() {
        return;
    }
    warn_of_routes(cx, routes);
    let written = gateway.account.iter().flat_map(|sources| &sources.value);
    let sources = rules.iter().flat_map(|rules| &rules.sources);
    for (written, source) in written.zip(sources) {
        account(source).warn(cx, written.span);
    }
}

/// Each use of a limit is told once, though it may be on many routes.
fn warn_of_routes(cx: &mut Lowering<'_>, routes: &[LoweredRoute]) {
    let mut told = HashSet::new();
    for route in routes {
        for usage in route.limits.iter().flatten() {
            if told.insert((usage.limit.name(), usage.response_use())) {
                limit(usage).warn(cx, route.span);
            }
        }
        if let Some(on_denied) = route.on_denied() {
            denial(on_denied).warn(cx, route.span);
        }
    }
}
