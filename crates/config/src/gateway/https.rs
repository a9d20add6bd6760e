//! What leads clients to HTTPS and keeps them there.

use weir_middleware::{Hsts, Redirect, RequestTemplate};
use weir_yaml::{Lowered, Lowering, SpanOf, WordOr};

use super::listen::Listener;
use super::listen::listener::ListenerKeys;
use super::schema::Gateway;

/// The method and the body of a request stay as they are, and browsers remember it.
const PERMANENT: u16 = 308;

/// Where a listener redirects requests that did not come by HTTPS, if it does.
pub(super) fn redirect_to_https(
    cx: &mut Lowering<'_>,
    listener: &ListenerKeys,
) -> Lowered<Option<Redirect>> {
    let Some(written) = &listener.redirect_to_https else {
        return Ok(None);
    };
    let port = match &written.value {
        WordOr::Word(word) if word == "false" => return Ok(None),
        WordOr::Word(word) if word == "true" => None,
        WordOr::Word(word) => {
            let message = format!("expected true, false or a port, found `{word}`");
            let help = "write `redirect_to_https: true`, or `{port: 8443}`";
            return Err(cx.error(written.span, message).help(help));
        }
        WordOr::More(more) => Some(more.port.get()).filter(|port| *port != 443),
    };
    if listener.tls.is_some() {
        let message = "all requests of a listener with `tls` come by HTTPS";
        let help = "say it on the listener for plain HTTP, or leave it out";
        return Err(cx.error(written.span, message).help(help));
    }
    let port = port.map_or_else(String::new, |port| format!(":{port}"));
    let text = format!("https://{{{{ host }}}}{port}{{{{ uri }}}}");
    let template = cx.ok(written.span, RequestTemplate::parse(&text))?;
    let redirect = Redirect::new(PERMANENT, template, &text);
    cx.ok(written.span, redirect).map(Some)
}

/// What browsers are told, if anything comes by HTTPS.
pub(super) fn hsts(
    cx: &mut Lowering<'_>,
    gateway: &Gateway,
    listen: &[Listener],
) -> Lowered<Option<Hsts>> {
    let Some(written) = &gateway.hsts else {
        return Ok(None);
    };
    if !listen.is_empty() && !has_https(cx, gateway, listen) {
        let message = "nothing comes by HTTPS: no listener has `tls`, and no proxy is trusted";
        let help = "give a listener `tls`, or list the proxy that has it under \
                    `client_address.trusted_proxies`";
        return Err(cx.error(written.span, message).help(help));
    }
    written.lower(cx)
}

fn has_https(cx: &Lowering<'_>, gateway: &Gateway, listen: &[Listener]) -> bool {
    let trusted = gateway.client_address.as_ref();
    let trusted = trusted.and_then(|client| client.trusted_proxies.as_ref());
    listen
        .iter()
        .any(|listener| listener.certificates.is_some())
        || trusted.is_some_and(|trusted| !cx.is_empty(trusted))
}

/// Warns of listeners that redirect what a proxy may have been sent by HTTPS already.
pub(super) fn warn_of_redirects(cx: &mut Lowering<'_>, gateway: &Gateway, listen: &[Listener]) {
    if has_https(cx, gateway, listen) {
        return;
    }
    let written = gateway.listen.iter().flat_map(|listen| &listen.0);
    let spans = written.map(|listener| match &listener.value {
        WordOr::More(listener) => listener.redirect_to_https.span(),
        WordOr::Word(_) => None,
    });
    let mut redirecting = spans
        .zip(listen)
        .filter(|(_, listener)| listener.redirect_to_https.is_some());
    let Some((Some(span), _)) = redirecting.next() else {
        return;
    };
    let message = "no listener has `tls`, and no proxy is trusted to say that it was sent by HTTPS";
    cx.warn(span, message).help(
        "behind a proxy with TLS, requests would be redirected for ever: list it under \
         `client_address.trusted_proxies`",
    );
}
