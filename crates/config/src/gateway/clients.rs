//! How clients are identified.

use http::HeaderName;
use http::header::FORWARDED;
use weir_rules::{AddressHeader, ClientRules, Nat64Prefixes};
use weir_yaml::{Lowered, Lowering, Spanned, WordOr, all};

use super::account::AccountSourceKeys;
use super::process::LogAccount;
use super::schema::{ClientAddress, Gateway};
use crate::addresses::Network;

/// The header of ids where no other is named.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// By default an IPv6 client is identified by its /64, the least that one subscriber has.
const DEFAULT_IPV6_PREFIX: u8 = 64;

pub(super) fn client_rules(
    cx: &Lowering<'_>,
    written: Option<&ClientAddress>,
) -> Lowered<ClientRules> {
    let proxies = written.and_then(|written| written.trusted_proxies.as_ref());
    let networks = match proxies {
        Some(proxies) => cx.items(proxies)?.iter().map(|network| network.0).collect(),
        None => Vec::new(),
    };
    let header = written.and_then(|written| written.header.as_ref());
    let header = match header.map(|header| &header.0) {
        None => AddressHeader::XForwardedFor,
        Some(name) if name == "x-forwarded-for" => AddressHeader::XForwardedFor,
        Some(name) if name == FORWARDED => AddressHeader::Forwarded,
        Some(name) => AddressHeader::Single(name.clone()),
    };
    if let Some(prefixes) = written.and_then(|written| written.nat64_prefixes.as_ref()) {
        cx.items(prefixes)?;
    }
    Ok(ClientRules::new(networks, header).with_nat64_prefixes(nat64_prefixes(written)))
}

/// The prefixes of translators, beside the one that everybody knows.
pub(super) fn nat64_prefixes(written: Option<&ClientAddress>) -> Nat64Prefixes {
    let prefixes = written.and_then(|written| written.nat64_prefixes.as_ref());
    Nat64Prefixes::new(
        prefixes
            .into_iter()
            .flat_map(|list| &**list)
            .map(|prefix| prefix.0),
    )
}

/// The header that requests get ids in, if they do.
pub(super) fn request_id(cx: &mut Lowering<'_>, gateway: &Gateway) -> Lowered<Option<HeaderName>> {
    let Some(written) = &gateway.request_id else {
        return Ok(None);
    };
    let (header, span) = match &written.value {
        WordOr::Word(word) if word == "false" => return Ok(None),
        WordOr::Word(word) if word == "true" => (REQUEST_ID, written.span),
        WordOr::Word(word) => {
            let message = format!("expected true, false or a header, found `{word}`");
            let help = "write `request_id: true`, or `{header: X-Correlation-Id}`";
            return Err(cx.error(written.span, message).help(help));
        }
        WordOr::More(more) => (more.header.0.clone(), more.header.span),
    };
    let address = gateway.client_address.as_ref();
    let address = address.and_then(|client| client.header.as_ref());
    let is_of_address = address.is_some_and(|name| name.0 == header);
    if has_meaning(&header) || is_of_address {
        let message = format!("`{header}` has a meaning of its own");
        let help = "choose a header for ids alone, such as X-Request-Id";
        return Err(cx.error(span, message).help(help));
    }
    refuse_edits(cx, gateway, &header)?;
    Ok(Some(header))
}

/// Whether a header is one of HTTP, or one that the gateway writes or reads for another purpose.
fn has_meaning(header: &HeaderName) -> bool {
    const PREFIXES: [&str; 14] = [
        "accept",
        "access-control-",
        "allow",
        "cache-",
        "content-",
        "grpc-",
        "if-",
        "proxy-",
        "ratelimit",
        "sec-",
        "www-",
        "x-forwarded-",
        "x-ratelimit-",
        "trace",
    ];
    let name = header.as_str();
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || matches!(
            name,
            "age"
                | "authorization"
                | "client-cert"
                | "client-cert-chain"
                | "connection"
                | "cookie"
                | "date"
                | "etag"
                | "expect"
                | "expires"
                | "forwarded"
                | "from"
                | "host"
                | "http2-settings"
                | "keep-alive"
                | "last-modified"
                | "link"
                | "location"
                | "max-forwards"
                | "origin"
                | "range"
                | "referer"
                | "retry-after"
                | "server"
                | "set-cookie"
                | "strict-transport-security"
                | "te"
                | "trailer"
                | "transfer-encoding"
                | "upgrade"
                | "user-agent"
                | "vary"
                | "via"
                | "x-client-ip"
                | "x-real-ip"
        )
}

/// Refuses edits that the id would undo.
fn refuse_edits(cx: &mut Lowering<'_>, gateway: &Gateway, header: &HeaderName) -> Lowered<()> {
    let routes = gateway.routes.iter();
    let of_routes = routes.filter_map(|route| route.request_headers.as_ref());
    let defaults = gateway.defaults.iter();
    let of_defaults = defaults.filter_map(|defaults| defaults.request_headers.as_ref());
    let edited = of_routes.chain(of_defaults).flat_map(|edits| edits.names());
    all(edited.map(|name| {
        if name.0 != *header {
            return Ok(());
        }
        let message = format!("`{header}` is set by `request_id`");
        let help = "leave it out here, or name another header there";
        Err(cx.error(name.span, message).help(help))
    }))
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

/// Whether nothing says where requests name their account; not even something in error.
pub(crate) fn lacks_accounts(cx: &Lowering<'_>, gateway: &Spanned<Gateway>) -> bool {
    match &gateway.account {
        Some(account) => cx.is_empty(account),
        None => cx
            .sources
            .key_in_error(gateway.span, &["account"])
            .is_none(),
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
        if let AccountSourceKeys::Certificate(_) = source.value {
            cx.error(source.span, "no listener asks clients for certificates")
                .help("add `client_auth: {ca: PATH}` to a listener with `tls`");
        }
    }
}

/// Reports what is doubtful about how clients are told apart.
pub(super) fn warn_of_clients(cx: &mut Lowering<'_>, gateway: &Gateway) {
    trusted_by_all(cx, gateway);
    header_of_nobody(cx, gateway);
    logged_secrets(cx, gateway);
}

fn trusted_by_all(cx: &mut Lowering<'_>, gateway: &Gateway) {
    let proxies = gateway
        .client_address
        .iter()
        .filter_map(|client_address| Some(&**client_address.trusted_proxies.as_ref()?));
    let listeners = gateway.listen.iter().flat_map(|listen| &listen.0);
    let balancers = listeners.filter_map(|listener| match &listener.value {
        WordOr::More(listener) => Some(&*listener.proxy_protocol.as_ref()?.trusted),
        WordOr::Word(_) => None,
    });
    let asking = gateway.decide.iter();
    let asking = asking.map(|decide| &*decide.trusted_proxies);
    let proxies = proxies.chain(balancers).chain(asking).flatten();
    let everything = |proxy: &&Spanned<Network>| proxy.0.prefix_len() == 0;
    for proxy in proxies.filter(everything) {
        cx.warn(proxy.span, "every client may claim any address")
            .help("name only the networks of your own proxies");
    }
}

/// A header with the client's address that no proxy is trusted to write.
fn header_of_nobody(cx: &mut Lowering<'_>, gateway: &Gateway) {
    let Some(written) = &gateway.client_address else {
        return;
    };
    let proxies = written.trusted_proxies.as_ref();
    if let Some(header) = &written.header
        && proxies.is_none_or(|proxies| cx.is_empty(proxies))
    {
        cx.warn(
            header.span,
            "this header is never read: no proxy is trusted",
        )
        .help("list the networks of your proxies in `trusted_proxies`");
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
            AccountSourceKeys::Bearer(_) | AccountSourceKeys::Cookie(_)
        ) {
            cx.warn(source.span, "the log shows this secret to all who read it")
                .help("leave out `log.account: plain`, or name accounts by something else");
        }
    }
}
