//! Routes: what may be written of them, and what comes of it.

mod actions;
pub(super) mod balancing;
pub(super) mod concurrency;
mod machine_clients;
mod matching;
mod request_buffering;
mod responses;
pub(super) mod schema;
mod upstream_tls;
mod upstreams;
mod warnings;

use std::collections::HashMap;
use std::sync::Arc;

use crate::gateway::lacks_accounts;
use crate::gateway::schema::Gateway;
use crate::limits::{self, enforcement, limit_use, yield_denials};
use crate::named::Named;
use crate::settings::Route;
use actions::action;
use concurrency::priority;
use matching::matcher;
use request_buffering::request_buffering;
use responses::header_forms;

use schema::steps::written;
use schema::{Match, RouteDefaults, ValueMatch};
use weir_middleware::{CorsKeys, Delay, LimitHook, OnDenied, RouteAction, RoutePolicy};
use weir_rules::{Cost, Enforcement, KeySource, Limit, LimitUse, Missing, RouteMatcher};
use weir_yaml::{Lowered, Lowering, Span, SpanOf, Spanned, WordOr, all};

pub(super) use concurrency::shares::drawn_shares;
pub(super) use concurrency::shedding;
pub(super) use responses::default_header_forms;
pub(super) use upstreams::{Upstreams, find_upstream, upstreams};
pub(super) use warnings::warn_of_routes;

pub(crate) struct LoweredRoute {
    pub(crate) span: Span,
    pub(crate) name: Arc<str>,
    pub(crate) matcher: Lowered<RouteMatcher>,
    pub(crate) limits: Vec<Lowered<LimitUse>>,
    /// The whole route, when nothing of it is in error.
    pub(super) settings: Lowered<Route>,
}

/// A limit that a route uses, and whether the route itself says so.
type UsedLimit<'w> = (&'w Spanned<WordOr<limits::schema::LimitUse>>, bool);

pub(crate) fn routes(
    cx: &mut Lowering<'_>,
    gateway: &Spanned<Gateway>,
    named: &Named<'_>,
) -> Vec<LoweredRoute> {
    let _ = cx.filled(
        &gateway.routes,
        "there are no routes",
        "add one, such as `- {match: {path: \"/*\"}, upstream: app}`",
    );
    let enforcement = enforcement(gateway.enforce.as_ref());
    let mut routes: Vec<LoweredRoute> = Vec::new();
    for written in &gateway.routes.value {
        routes.push(route(cx, written, gateway, enforcement, named));
    }
    refuse_same_names(cx, gateway, &routes);
    routes
}

fn route(
    cx: &mut Lowering<'_>,
    route: &Spanned<schema::Route>,
    gateway: &Spanned<Gateway>,
    of_all: Enforcement,
    named: &Named<'_>,
) -> LoweredRoute {
    let defaults = gateway.defaults.as_ref();
    // A route that allows no origin has none of it, whatever the others inherit.
    let shared = written!(route, defaults, cors).filter(|cors| !CorsKeys::allow_none(cors, cx));
    let matcher = matcher(cx, &route.matches, shared.is_some());
    let upstream = route.upstream.as_ref();
    let upstream = upstream
        .map(|name| find_upstream(cx, name, &named.upstreams))
        .transpose()
        .map(Option::flatten);
    let (on_denied, delay) = named.on_denied(cx, written!(route, defaults, on_denied));
    let known_matcher = matcher.as_ref().ok();
    let looks_real = on_denied.as_ref().is_ok_and(OnDenied::looks_real);
    if let Ok(on_denied) = &on_denied {
        let span = route.on_denied.span().unwrap_or(route.span);
        on_denied.require_captures(cx, known_matcher, span);
    }
    let enforcement = of_all.min(enforcement(route.enforce.as_ref()));
    let (mut limits, mut log) = (Vec::new(), None);
    for (written, own) in used_limits(route, defaults) {
        let usage = limit_use(cx, &named.table, written, enforcement);
        if let Ok(usage) = &usage {
            let span = if own { written.span } else { route.span };
            require_sources(cx, usage, own, known_matcher, gateway, span);
            log = log.or((usage.max_log_entries() > 0).then_some(span));
            if route.upstream.is_none() && !cost_is_known_without_app(usage) {
                cx.error(span, "no app responds on this route, to say the cost")
                    .help("leave `response_json`, `response_trailer` and `response_header` out");
            }
        }
        limits.push(usage);
    }
    let written: Vec<_> = used_limits(route, defaults)
        .into_iter()
        .map(|(it, _)| it)
        .collect();
    yield_denials(cx, &written, &mut limits);
    if let Some(log) = log
        && let Some(message) = limits::too_many_log_entries(limits.iter().flatten(), None)
    {
        cx.error(log, message).help(limits::FEWER_LOG_ENTRIES);
    }
    if let Some(written) = &route.on_denied {
        Delay::require_delayable(&delay, cx, written.span, &limits);
    }
    let headers = header_forms(cx, route, defaults, looks_real);
    let of_upstream = upstream.as_ref().ok().and_then(|it| it.as_deref());
    let timeouts = of_upstream.map(|upstream| upstream.settings.timeouts);
    let bounds = of_upstream.map(|upstream| upstream.bounds);
    let buffering = request_buffering(cx, route.request_buffering.as_ref());
    let cors = shared.map(|keys| CorsKeys::lower(keys, cx, &headers));
    let cors = cors.transpose();
    let answers_cors = matches!(&cors, Ok(Some(cors)) if cors.answers_preflights());
    let leads = require_target(cx, route, gateway);
    let action = action(cx, route, defaults, known_matcher, answers_cors);
    let steps = route.response_steps(cx, defaults);
    let name: Arc<str> = route.display_name().into();
    let settings = || {
        let cors = cors?.map(Arc::new);
        let answering = cors.as_ref().filter(|cors| cors.answers_preflights());
        let action = RouteAction {
            preflights: answering.cloned(),
            ..leads.and(action)?
        };
        Ok(Route {
            response_steps: steps?
                .with(action.response_headers.clone())
                .with(cors.clone()),
            policy: RoutePolicy {
                name: Arc::clone(&name),
                limits: all(limits.iter().cloned())?,
                on_denied: on_denied?,
                delay: delay?,
                header_forms: headers?,
                hook: cors.map(|cors| cors as Arc<dyn LimitHook>),
            },
            bounds: route.bounds(bounds.unwrap_or_default()),
            matcher: matcher.clone()?,
            priority: priority(route, defaults),
            timeouts: route.timeouts(timeouts.unwrap_or_default()),
            request_buffering: buffering?.unwrap_or_else(|| of_upstream?.request_buffering.clone()),
            upstream: upstream.clone()?,
            action,
            description: route.matches.description(),
        })
    };
    LoweredRoute {
        settings: settings(),
        span: route.span,
        name,
        matcher,
        limits,
    }
}

/// Makes sure that something becomes of a request: it is forwarded, answered, or left to the proxy
/// that asks for a decision.
fn require_target(
    cx: &mut Lowering<'_>,
    route: &Spanned<schema::Route>,
    gateway: &Spanned<Gateway>,
) -> Lowered<()> {
    if route.has_target() {
        return Ok(());
    }
    let decides = gateway.decide.is_some();
    if decides || cx.sources.key_in_error(gateway.span, &["decide"]).is_some() {
        return Ok(());
    }
    Err(cx.lacking(
        route.span,
        &["upstream", "redirect", "response"],
        "the route leads nowhere",
        "name its `upstream`, or say `redirect` or `response`",
    ))
}

/// Whether no response of an app has to say what a request costs.
fn cost_is_known_without_app(usage: &LimitUse) -> bool {
    match &usage.cost {
        Cost::Fixed(_) => true,
        Cost::Measured(cost) => {
            let by_head = cost.response_header.is_some() || cost.response_trailer.is_some();
            !by_head && cost.response_json.is_empty()
        }
    }
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
            KeySource::Account => lacks_accounts(cx, gateway),
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

    /// What its limits' denials lead to, when nothing of the route is in error.
    pub(crate) fn on_denied(&self) -> Option<&OnDenied> {
        Some(&self.settings.as_ref().ok()?.policy.on_denied)
    }

    pub(crate) fn limits(&self) -> impl Iterator<Item = &Arc<Limit>> {
        self.limits.iter().flatten().map(|usage| &usage.limit)
    }
}

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
    matcher.capture_names().any(|captured| captured == name)
}

impl schema::Route {
    /// Whether it is said where its requests go, or what answers them.
    fn has_target(&self) -> bool {
        self.upstream.is_some() || self.redirect.is_some() || self.response.is_some()
    }

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

/// What a value must be like, as it follows the name of what has the value.
fn written_match(written: &WordOr<ValueMatch>) -> String {
    match written {
        WordOr::Word(text) => format!(": {text}"),
        WordOr::More(ValueMatch { regex, present }) => match (regex, present) {
            (Some(regex), _) => format!(" matching {}", regex.value),
            (None, Some(false)) => " absent".to_owned(),
            (None, _) => " present".to_owned(),
        },
    }
}

impl Match {
    /// What matches: `host app.example.com, path /login, method POST`.
    fn description(&self) -> String {
        let host = self.host.iter().map(|host| format!("host {}", host.value));
        let path = self.path.iter().map(|path| format!("path {}", path.value));
        let methods = self.methods.iter();
        let methods = methods.map(|_| format!("method {}", self.methods().join(" or ")));
        let regex = self.path_regex.iter();
        let regex = regex.map(|regex| format!("path matching {}", regex.value));
        let headers = self.headers.iter().flat_map(|headers| &headers.value.0);
        let headers =
            headers.map(|(name, value)| format!("header {}{}", name.0, written_match(value)));
        let query = self.query.iter().flat_map(|query| &query.0);
        let query =
            query.map(|(name, value)| format!("query {}{}", name.value, written_match(value)));
        let parts = host.chain(path).chain(regex).chain(methods);
        let parts: Vec<String> = parts.chain(headers).chain(query).collect();
        if parts.is_empty() {
            return "everything".to_owned();
        }
        parts.join(", ")
    }

    fn methods(&self) -> Vec<&str> {
        let methods = self.methods.iter().flat_map(|methods| &methods.value.0);
        methods.map(|method| method.0.as_str()).collect()
    }
}
