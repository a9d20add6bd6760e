//! Routes: what may be written of them, and what comes of it.

mod balancing;
mod bounds;
mod responses;
pub(super) mod schema;
mod upstream_tls;
mod upstreams;
mod warnings;

use std::collections::HashMap;
use std::sync::Arc;

use crate::config::diagnostics::{Lowered, all};
use crate::config::gateway::schema::Gateway;
use crate::config::limits::{self, LimitTable, enforcement, limit_use};
use crate::config::lowering::Lowering;
use crate::config::settings::Route;
use crate::config::yaml::{Span, SpanOf, Spanned, WordOr};
use crate::middleware::{Cors, Delay, HeaderForms, OnDenied, RoutePolicy};
use crate::proxy::{RequestBuffering, Timeouts};
use crate::rules::{
    Enforcement, HostPattern, KeySource, Limit, LimitUse, Missing, PathPattern, RouteMatcher,
};
use responses::{
    allows_none, cors, header_fields, header_forms, method, on_denied, require_delayable,
};

use bounds::{WrittenTimeouts, max_body_bytes, request_buffering, timeouts};
use schema::{Match, RouteDefaults};

pub(super) use responses::{Decoys, decoys, error_pages, find_decoy, rejection};
pub(super) use upstreams::{Upstreams, find_upstream, upstreams};
pub(super) use warnings::warn_of_routes;

/// A route as far as it could be lowered.
pub(crate) struct LoweredRoute {
    pub(crate) span: Span,
    pub(crate) name: Arc<str>,
    pub(crate) matcher: Lowered<RouteMatcher>,
    pub(crate) limits: Vec<Lowered<LimitUse>>,
    on_denied: Lowered<OnDenied>,
    delay: Lowered<Option<Arc<Delay>>>,
    upstream: Lowered<usize>,
    timeouts: Timeouts,
    max_body_bytes: Lowered<Option<u64>>,
    request_buffering: Lowered<Option<Arc<RequestBuffering>>>,
    description: String,
    headers: Lowered<HeaderForms>,
    cors: Lowered<Option<Cors>>,
}

/// A limit that a route uses, and whether the route itself says so.
type UsedLimit<'w> = (&'w Spanned<WordOr<limits::schema::LimitUse>>, bool);

pub(crate) fn routes(
    cx: &mut Lowering<'_>,
    gateway: &Spanned<Gateway>,
    table: &LimitTable,
    upstreams: &Upstreams<'_>,
    decoys: &Decoys<'_>,
) -> Vec<LoweredRoute> {
    let _ = cx.filled(
        &gateway.routes,
        "there are no routes",
        "add one, such as `- {match: {path: \"/*\"}, upstream: app}`",
    );
    let enforcement = enforcement(cx, gateway.enforce.as_ref());
    let mut routes: Vec<LoweredRoute> = Vec::new();
    for written in &gateway.routes.value {
        routes.push(route(
            cx,
            written,
            gateway,
            enforcement,
            table,
            upstreams,
            decoys,
        ));
    }
    refuse_same_names(cx, gateway, &routes);
    routes
}

fn route(
    cx: &mut Lowering<'_>,
    route: &Spanned<schema::Route>,
    gateway: &Spanned<Gateway>,
    of_all: Lowered<Enforcement>,
    table: &LimitTable,
    upstreams: &Upstreams<'_>,
    decoys: &Decoys<'_>,
) -> LoweredRoute {
    let defaults = gateway.defaults.as_ref();
    let inherited = defaults.and_then(|defaults| defaults.cors.as_ref());
    // A route that allows no origin has none of it, whatever the others inherit.
    let shared = route.cors.as_ref().or(inherited);
    let shared = shared.filter(|cors| !allows_none(cx, cors));
    let matcher = matcher(cx, &route.matches, shared.is_some());
    let upstream = find_upstream(cx, &route.upstream, upstreams);
    let (on_denied, delay) = on_denied(cx, route, defaults, decoys);
    let shadows = matches!(on_denied, Ok(OnDenied::Shadow(_)));
    let (known, denied) = (matcher.as_ref().ok(), on_denied.as_ref().ok());
    require_decoy_captures(cx, route, denied, known);
    let own = enforcement(cx, route.enforce.as_ref());
    let enforcement = of_all.and_then(|of_all| Ok(of_all.min(own?)));
    let mut limits = Vec::new();
    for (written, own) in used_limits(route, defaults) {
        let usage = limit_use(cx, table, written, enforcement);
        if let Ok(usage) = &usage {
            let span = if own { written.span } else { route.span };
            require_sources(cx, usage, own, known, gateway, span);
        }
        limits.push(usage);
    }
    if let Some(written) = &route.on_denied {
        require_delayable(cx, written.span, &delay, &limits);
    }
    let headers = header_forms(cx, route, defaults, shadows);
    let of_upstream = upstream
        .as_ref()
        .ok()
        .and_then(|&place| upstreams.get(place));
    let times = of_upstream.map_or_else(Timeouts::default, |upstream| upstream.settings.timeouts);
    let max_body_bytes = max_body_bytes(cx, route.max_body_bytes.as_ref());
    let buffering = request_buffering(cx, route.request_buffering.as_ref());
    LoweredRoute {
        timeouts: timeouts(cx, WrittenTimeouts::of_route(route), times),
        max_body_bytes: max_body_bytes.map(|own| own.or_else(|| of_upstream?.max_body_bytes)),
        request_buffering: buffering
            .map(|own| own.unwrap_or_else(|| of_upstream?.request_buffering.clone())),
        span: route.span,
        name: route.display_name().into(),
        description: route.matches.description(),
        cors: cors(cx, shared, &headers),
        headers,
        matcher,
        limits,
        on_denied,
        delay,
        upstream,
    }
}

fn matcher(cx: &mut Lowering<'_>, written: &Match, preflights: bool) -> Lowered<RouteMatcher> {
    let host = written
        .host
        .as_ref()
        .map(|host| cx.ok(host.span, HostPattern::parse(host)));
    let path = match &written.path {
        Some(path) => cx.ok(path.span, PathPattern::parse(path)),
        None => Ok(PathPattern::everything()),
    };
    let path = path.map(|path| match written.case {
        Some(schema::PathCase::Sensitive) => path.case_sensitive(),
        Some(schema::PathCase::Insensitive) | None => path,
    });
    let methods = written.methods.iter().flat_map(|methods| &methods.0);
    let methods = all(methods.map(|name| method(cx, name)));
    let headers = header_fields(cx, written.headers.as_ref());
    Ok(RouteMatcher {
        host: host.transpose()?,
        path: path?,
        methods: methods?,
        headers: headers?,
        preflights,
    })
}

/// Makes sure that a limit's sources can be found on a route at all.
fn require_sources(
    cx: &mut Lowering<'_>,
    usage: &LimitUse,
    own: bool,
    matcher: Option<&RouteMatcher>,
    gateway: &Spanned<Gateway>,
    span: Span,
) {
    let limit = &usage.limit;
    // A default limit that counts per a captured segment is for the routes that capture it.
    let optional = !own && limit.missing() == Missing::Skip;
    for source in limit.per() {
        let lacks = match source {
            KeySource::Account => cx.lacks_accounts(gateway),
            KeySource::Path(name) if !optional => {
                matcher.is_some_and(|matcher| !captures(matcher, name))
            }
            _ => false,
        };
        if lacks {
            let message = format!(
                "\"{}\" is counted per {source}, which is never there",
                limit.name()
            );
            cx.error(span, message).help(match source {
                KeySource::Path(name) => {
                    format!("capture it in the route's path as `{{{name}}}`")
                }
                _ => "say under `account` where requests name their account".to_owned(),
            });
        }
    }
}

fn require_decoy_captures(
    cx: &mut Lowering<'_>,
    route: &Spanned<schema::Route>,
    on_denied: Option<&OnDenied>,
    matcher: Option<&RouteMatcher>,
) {
    let (Some(OnDenied::Shadow(shadow)), Some(matcher)) = (on_denied, matcher) else {
        return;
    };
    let span = route.on_denied.span().unwrap_or(route.span);
    for name in shadow.decoy().captures_used() {
        if !captures(matcher, &name) {
            let decoy = shadow.decoy().name();
            cx.error(
                span,
                format!("decoy \"{decoy}\" uses path.{name}, which this route lacks"),
            )
            .help(format!("capture it in the route's path as `{{{name}}}`"));
        }
    }
}

fn refuse_same_names(cx: &mut Lowering<'_>, gateway: &Spanned<Gateway>, routes: &[LoweredRoute]) {
    let mut first: HashMap<&str, Span> = HashMap::new();
    for (route, written) in routes.iter().zip(&gateway.routes.value) {
        let span = written.name.span().unwrap_or(route.span);
        if let Some(other) = first.insert(&route.name, span) {
            let other = cx.sources.location(other);
            let message = format!("another route is called \"{}\" already", route.name);
            cx.error(span, message).help(format!(
                "give one of them another `name`; the other is at {other} {}",
                other.path
            ));
        }
    }
}

impl LoweredRoute {
    /// Whether the path captures a segment of this name, for all that is known of it.
    pub(super) fn may_capture(&self, segment: &str) -> bool {
        let matcher = self.matcher.as_ref();
        matcher.is_ok_and(|matcher| captures(matcher, segment)) || matcher.is_err()
    }

    /// The limits that could be lowered.
    pub(crate) fn limits(&self) -> impl Iterator<Item = &Arc<Limit>> {
        self.limits.iter().flatten().map(|usage| &usage.limit)
    }

    /// The route, when nothing of it is in error.
    pub(super) fn into_settings(self) -> Lowered<Route> {
        Ok(Route {
            matcher: self.matcher?,
            policy: RoutePolicy {
                name: self.name,
                limits: all(self.limits.into_iter())?,
                on_denied: self.on_denied?,
                delay: self.delay?,
                headers: self.headers?,
                cors: self.cors?.map(Arc::new),
                max_body_bytes: self.max_body_bytes?,
            },
            timeouts: self.timeouts,
            request_buffering: self.request_buffering?,
            upstream: self.upstream?,
            description: self.description,
        })
    }
}

/// All limits as routes use them, to learn from.
pub(crate) fn limits_of_routes(gateway: &Gateway) -> Vec<&WordOr<limits::schema::LimitUse>> {
    let defaults = gateway.defaults.as_ref();
    let routes = gateway.routes.iter();
    let listed = routes.flat_map(|route| used_limits(route, defaults));
    listed.map(|(usage, _)| &usage.value).collect()
}

/// The limits of a route: its own, or else the defaults.
fn used_limits<'w>(
    route: &'w schema::Route,
    defaults: Option<&'w RouteDefaults>,
) -> Vec<UsedLimit<'w>> {
    match &route.limits {
        Some(own) => own.iter().map(|usage| (usage, true)).collect(),
        None => {
            let inherited = defaults.and_then(|defaults| defaults.limits.as_ref());
            inherited
                .into_iter()
                .flatten()
                .map(|usage| (usage, false))
                .collect()
        }
    }
}

fn captures(matcher: &RouteMatcher, name: &str) -> bool {
    matcher
        .path
        .capture_names()
        .any(|captured| captured == name)
}

impl schema::Route {
    /// The route's name, or one that is made of what it matches: `POST app.example.com/login`.
    fn display_name(&self) -> String {
        if let Some(name) = &self.name {
            return name.value.clone();
        }
        let host = self.matches.host.as_ref().map_or("", |host| host.as_str());
        let path = self
            .matches
            .path
            .as_ref()
            .map_or("/*", |path| path.as_str());
        let name = format!("{} {host}{path}", self.matches.methods().join(","));
        name.trim().to_owned()
    }
}

impl Match {
    /// What matches: `host app.example.com, path /login, method POST`.
    fn description(&self) -> String {
        let host = self.host.iter().map(|host| format!("host {}", host.value));
        let path = self.path.iter().map(|path| format!("path {}", path.value));
        let methods = self.methods.iter();
        let methods = methods.map(|_| format!("method {}", self.methods().join(" or ")));
        let headers = self.headers.iter().flat_map(|headers| &headers.0);
        let headers =
            headers.map(|(name, value)| format!("header {}: {}", name.value, value.value));
        let parts: Vec<String> = host.chain(path).chain(methods).chain(headers).collect();
        if parts.is_empty() {
            return "everything".to_owned();
        }
        parts.join(", ")
    }

    fn methods(&self) -> Vec<&str> {
        let methods = self.methods.iter().flat_map(|methods| &methods.0);
        methods.map(|method| method.value.as_str()).collect()
    }
}
