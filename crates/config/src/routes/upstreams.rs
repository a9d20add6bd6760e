//! The apps behind the gateway.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use weir_proxy::{HostHeader, Protocol, RequestBuffering, Server, UpstreamSettings};
use weir_yaml::{Lowered, Lowering, Span, SpanOf, Spanned, WordOr, all};

use super::balancing::{balancing, require_accounts, weight};
use super::concurrency::concurrency;
use super::request_buffering::request_buffering;
use super::schema;
use super::upstream_tls::tls;
use crate::gateway::listen::Listener;
use crate::gateway::schema::Gateway;
use crate::settings::Upstream;

/// All upstreams, in the order in which they are written.
pub(crate) struct Upstreams<'w> {
    /// Where they are written, within the gateway.
    span: Option<Span>,
    gateway: Span,
    lowered: Vec<Lowered<Arc<Upstream>>>,
    /// The same; none for one in error.
    by_name: HashMap<&'w str, Option<Arc<Upstream>>>,
    /// The names that others said.
    named: RefCell<HashSet<String>>,
}

impl Upstreams<'_> {
    pub(crate) fn into_settings(self) -> Lowered<Vec<Arc<Upstream>>> {
        self.lowered.into_iter().collect()
    }
}

pub(crate) fn upstreams<'w>(
    cx: &mut Lowering<'_>,
    gateway: &'w Spanned<Gateway>,
    ipv6_prefix: u8,
) -> Upstreams<'w> {
    let upstreams = gateway.upstreams();
    let names = upstreams.iter().map(|(name, _)| name.as_str());
    let lowered = upstreams.iter().map(|(name, written)| {
        require_accounts(cx, gateway, written);
        upstream(cx, gateway, name, written, ipv6_prefix).map(Arc::new)
    });
    let lowered: Vec<_> = lowered.collect();
    let known = lowered
        .iter()
        .map(|upstream| upstream.as_ref().ok().cloned());
    require_distinct_cookies(cx, upstreams);
    Upstreams {
        span: gateway.upstreams.as_ref().map(|written| written.span),
        gateway: gateway.span,
        by_name: names.zip(known).collect(),
        lowered,
        named: RefCell::default(),
    }
}

impl Upstreams<'_> {
    /// Reports those that nothing has named.
    pub(crate) fn warn_of_unused(
        &self,
        cx: &mut Lowering<'_>,
        written: &[(Spanned<String>, Spanned<schema::Upstream>)],
    ) {
        let named = self.named.borrow();
        for (name, _) in written {
            if !named.contains(name.as_str()) {
                cx.warn(name.span, "nothing uses this upstream");
            }
        }
    }
}

/// An upstream, by its name; none if it is in error, which says nothing of who names it.
pub(crate) fn find_upstream(
    cx: &mut Lowering<'_>,
    name: &Spanned<String>,
    upstreams: &Upstreams<'_>,
) -> Lowered<Option<Arc<Upstream>>> {
    upstreams.named.borrow_mut().insert(name.value.clone());
    let found = upstreams.by_name.get(name.as_str()).cloned();
    found.ok_or_else(|| match upstreams.span {
        Some(span) => cx.unknown("upstream", name, Some(span), ""),
        None => match cx.sources.key_in_error(upstreams.gateway, &["upstreams"]) {
            Some(reported) => reported,
            None => {
                let server = "{servers: [\"http://127.0.0.1:3000\"]}";
                let help = format!("add it: `upstreams: {{{}: {server}}}`", name.value);
                cx.unknown("upstream", name, None, &help)
            }
        },
    })
}

fn upstream(
    cx: &mut Lowering<'_>,
    gateway: &Gateway,
    name: &Spanned<String>,
    upstream: &Spanned<schema::Upstream>,
    ipv6_prefix: u8,
) -> Lowered<Upstream> {
    if let Some(reported) = upstream.servers_file_error {
        return Err(reported);
    }
    // What the file says stands in `servers`.
    let lists = upstream.servers.span().zip(upstream.servers_file.span());
    let has_both = lists.is_some_and(|(servers, file)| servers.file() == file.file());
    let servers = match (&upstream.servers, upstream.builtin) {
        (Some(written), None) if !has_both => Some(servers(cx, written)?),
        (None, Some(schema::Builtin::Echo)) => None,
        _ => {
            return Err(cx.lacking(
                upstream.span,
                &["servers", "servers_file", "builtin"],
                "an upstream has one of `servers`, `servers_file` and `builtin`",
                "say `servers: [\"http://127.0.0.1:3000\"]`, or `builtin: echo`",
            ));
        }
    };
    let is_demo = servers.is_none();
    let servers = tls(cx, servers.unwrap_or_default(), upstream)?;
    let mut settings = UpstreamSettings::new(name.value.as_str(), servers);
    settings.timeouts = upstream.timeouts(settings.timeouts);
    if let Some(interval) = upstream.resolve_interval {
        settings.resolve_interval = interval.0;
    }
    if let Some(resolvers) = &upstream.resolvers {
        let resolvers = cx.items(resolvers)?.iter();
        settings.resolvers = resolvers.map(|resolver| resolver.value.0).collect();
    }
    if let Some(timeout) = upstream.idle_timeout {
        settings.idle_timeout = timeout.0;
    }
    if let Some(written) = &upstream.host {
        settings.host = host(cx, written)?;
    }
    settings.max_connections = max_connections(cx, &settings, upstream)?;
    let buffering = request_buffering(cx, upstream.request_buffering.as_ref());
    let concurrency = concurrency(cx, gateway, upstream);
    let hash = balancing(cx, &mut settings, upstream, ipv6_prefix)?;
    let concurrency = concurrency?;
    // A body that is late would keep a slot from others.
    let read_ahead = concurrency.map(|_| Arc::new(RequestBuffering::read_ahead()));
    Ok(Upstream {
        settings,
        is_demo,
        concurrency,
        hash,
        bounds: upstream.bounds(),
        request_buffering: buffering?.unwrap_or(read_ahead),
    })
}

/// A client of two upstreams that set the same cookie would change servers with each request.
fn require_distinct_cookies(
    cx: &mut Lowering<'_>,
    upstreams: &[(Spanned<String>, Spanned<schema::Upstream>)],
) {
    let mut names = HashMap::new();
    for (upstream, written) in upstreams {
        let Some(sticky) = &written.sticky else {
            continue;
        };
        let cookie = &sticky.cookie;
        if let Some(other) = names.insert(cookie.as_str(), upstream.as_str()) {
            let message = format!(
                "upstream \"{other}\" sets the cookie `{}` too",
                cookie.value
            );
            let error = cx.error(cookie.span, message);
            error.help("give each upstream a cookie of its own");
        }
    }
}

/// How many connections each server may have. One of HTTP/2 carries many requests, and each worker
/// needs one of its own.
fn max_connections(
    cx: &mut Lowering<'_>,
    settings: &UpstreamSettings,
    upstream: &schema::Upstream,
) -> Lowered<Option<usize>> {
    let Some(written) = upstream.max_connections else {
        return Ok(None);
    };
    if written.value == 0 {
        let error = cx.error(written.span, "a server needs at least one connection");
        return Err(error.help("leave it out for no bound"));
    }
    if settings.servers.is_empty() {
        let error = cx.error(written.span, "the built-in upstream needs no bound");
        return Err(error.help("leave `max_connections` out"));
    }
    if settings
        .servers
        .iter()
        .any(|server| server.protocol() != Protocol::Http1)
    {
        let message = "it bounds connections of HTTP/1.1, which carry one request at a time";
        let error = cx.error(written.span, message);
        return Err(error.help(
            "leave it out, or write `protocol: http1`; a limit with `in_flight` bounds requests",
        ));
    }
    Ok(Some(written.value))
}

fn servers(
    cx: &mut Lowering<'_>,
    written: &Spanned<Vec<Spanned<schema::ServerEntry>>>,
) -> Lowered<Vec<Server>> {
    let servers = cx.filled(
        written,
        "an upstream needs at least one server",
        "say `servers: [\"http://127.0.0.1:3000\"]`",
    )?;
    let lowered = all(servers.iter().map(|written| match &written.value {
        WordOr::Word(url) => Ok(url.0.clone()),
        WordOr::More(keys) => {
            if let Some(weight) = keys.weight.filter(|_| keys.url.0.srv_name().is_some()) {
                let error = cx.error(weight.span, "SRV records have weights of their own");
                return Err(error.help("leave `weight` out"));
            }
            let weight = keys.weight.map(|written| weight(cx, written)).transpose()?;
            Ok(keys.url.0.clone().with_weight(weight.unwrap_or(1)))
        }
    }));
    cx.items(written)?;
    lowered
}

fn host(cx: &mut Lowering<'_>, host: &Spanned<String>) -> Lowered<HostHeader> {
    match host.value.as_str() {
        "preserve" => Ok(HostHeader::Preserve),
        "upstream" => Ok(HostHeader::Upstream),
        _ => {
            // It is what would name a server.
            let is_host = !host.value.contains('/')
                && format!("http://{}", host.value).parse::<Server>().is_ok();
            if !is_host {
                let message = format!("`{}` is not preserve, upstream, or a host name", host.value);
                let error = cx.error(host.span, message);
                return Err(error.help("write it like app.internal, or app.internal:8080"));
            }
            cx.header_value(host).map(HostHeader::Fixed)
        }
    }
}

/// Servers that are the gateway itself: each request would come back until connections run out.
pub(super) fn warn_of_loops(cx: &mut Lowering<'_>, gateway: &Gateway, listen: &[Listener]) {
    let upstreams = gateway.upstreams().iter();
    let servers = upstreams.filter_map(|(_, upstream)| upstream.servers.as_ref());
    for written in servers.flat_map(|servers| &servers.value) {
        let (url, span) = match &written.value {
            WordOr::Word(url) => (url, written.span),
            WordOr::More(keys) => (&keys.url.value, keys.url.span),
        };
        if let Some(own) = listen
            .iter()
            .find(|listener| is_reached_by(listener.address, &url.0))
        {
            let message = format!("the gateway itself listens there, on {}", own.address);
            cx.warn(span, message)
                .help("requests would go round and round; name the app's own address");
        }
    }
}

/// Whether a server is certainly what listens on an address.
fn is_reached_by(address: SocketAddr, server: &Server) -> bool {
    let Some((host, port)) = server.endpoint() else {
        return false;
    };
    let host: Option<IpAddr> = match host {
        "localhost" => Some(Ipv4Addr::LOCALHOST.into()),
        host => host.parse().ok(),
    };
    let meets = |host: IpAddr| {
        let here = host.is_loopback() || host.is_unspecified();
        host == address.ip()
            || (here && address.ip().is_unspecified())
            || (host.is_unspecified() && address.ip().is_loopback())
    };
    port == address.port() && host.is_some_and(meets)
}
