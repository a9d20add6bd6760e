//! Decisions for other proxies: where they ask, and what a decision before the response cannot do.

use std::collections::HashSet;

use ipnet::IpNet;
use weir_middleware::OnDenied;
use weir_rules::ResponseUse;
use weir_server::Certificates;

use super::listen::{plain, tls_certificates};
use super::schema::{AccountSource, Decide, Gateway};
use crate::bans::schema::Treatment;
use crate::diagnostics::Lowered;
use crate::lowering::Lowering;
use crate::routes::LoweredRoute;
use crate::settings::Listener;
use crate::yaml::{SpanOf, Spanned};

const FORWARD_INSTEAD: &str = "let Weir forward such requests, if that matters";

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
pub(super) fn warn_of_decisions(cx: &mut Lowering<'_>, gateway: &Gateway, routes: &[LoweredRoute]) {
    if gateway.decide.is_none() {
        return;
    }
    warn_of_limits(cx, routes);
    for route in routes {
        if let Some(OnDenied::Shadow(_)) = route.on_denied() {
            let message = "`decide` denies with 429 what this route answers with a decoy";
            cx.warn(route.span, message).help(FORWARD_INSTEAD);
        }
    }
    warn_of_treatments(cx, gateway);
    for source in gateway.account.iter().flat_map(|sources| &sources.value) {
        if let AccountSource::Certificate(_) = source.value {
            let message = "`decide` sees no certificates of clients, and so no such account";
            cx.warn(source.span, message).help(FORWARD_INSTEAD);
        }
    }
}

/// Limits that a decision cannot apply as they are, each once.
fn warn_of_limits(cx: &mut Lowering<'_>, routes: &[LoweredRoute]) {
    let mut told = HashSet::new();
    for route in routes {
        for usage in route.limits.iter().flatten() {
            let Some(response_use) = usage.response_use() else {
                continue;
            };
            let name = usage.limit.name();
            if !told.insert((name, response_use)) {
                continue;
            }
            let consequence = match response_use {
                ResponseUse::InFlight => {
                    format!("does not apply \"{name}\", as it does not see when requests end")
                }
                ResponseUse::Take => {
                    format!(
                        "checks \"{name}\" and takes nothing, as it sees neither bodies nor responses"
                    )
                }
                ResponseUse::GiveBack => {
                    format!("gives nothing back to \"{name}\", as it sees no responses")
                }
            };
            cx.warn(route.span, format!("`decide` {consequence}"))
                .help(FORWARD_INSTEAD);
        }
    }
}

/// Bans that a decision cannot apply as they are.
fn warn_of_treatments(cx: &mut Lowering<'_>, gateway: &Gateway) {
    for (_, ban) in gateway.bans.iter().flat_map(|bans| &bans.value.0) {
        warn_of_treatment(cx, ban.on_denied.as_ref(), 429);
        if let Some(span) = ban.strikes.status.span() {
            let message = "`decide` counts no strikes by status, as it sees no responses";
            cx.warn(span, message).help(FORWARD_INSTEAD);
        }
    }
    let block = gateway.block.as_ref();
    warn_of_treatment(cx, block.and_then(|block| block.on_denied.as_ref()), 403);
}

fn warn_of_treatment(cx: &mut Lowering<'_>, written: Option<&Spanned<Treatment>>, status: u16) {
    let Some(written) = written else { return };
    let what = match written.value {
        Treatment::Shadow(_) => "send decoys",
        Treatment::Divert(_) => "divert",
        Treatment::Drop => "close connections of clients",
        Treatment::Reject(_) | Treatment::Tarpit(_) => return,
    };
    let message = format!("`decide` cannot {what}, and denies with {status}");
    cx.warn(written.span, message).help(FORWARD_INSTEAD);
}
