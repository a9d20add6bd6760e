//! Routes.

use std::collections::HashMap;
use std::sync::Arc;

use super::decoys::Decoys;
use super::upstreams::Upstreams;
use super::{LimitTable, Lowered, Lowering};
use crate::config::schema::{self, Gateway, RouteDefaults};
use crate::config::settings::Route;
use crate::config::yaml::{Span, Spanned, WordOr};
use crate::middleware::{OnDenied, RoutePolicy};
use crate::rules::{
    Enforcement, HostPattern, KeySource, Limit, LimitUse, Missing, PathPattern, RouteMatcher,
};

/// A route as far as it could be lowered.
pub(in crate::config) struct LoweredRoute {
    pub(in crate::config) span: Span,
    pub(in crate::config) name: Arc<str>,
    pub(in crate::config) matcher: Lowered<RouteMatcher>,
    pub(in crate::config) limits: Vec<Lowered<LimitUse>>,
    on_denied: Lowered<OnDenied>,
    upstream: Lowered<usize>,
    description: String,
    headers: Lowered<crate::middleware::HeaderForms>,
    cors: Lowered<Option<crate::middleware::Cors>>,
}

/// A limit that a route uses, and whether the route itself says so.
type Listed<'w> = (&'w Spanned<WordOr<schema::LimitUse>>, bool);

impl Lowering<'_> {
    pub(super) fn routes(
        &mut self,
        gateway: &Spanned<Gateway>,
        table: &mut LimitTable,
        upstreams: &Upstreams<'_>,
        decoys: &Decoys<'_>,
    ) -> Vec<LoweredRoute> {
        let _ = self.filled(
            &gateway.routes,
            "there are no routes",
            "add one, such as `- {match: {path: \"/*\"}, upstream: app}`",
        );
        let enforcement = self.enforcement(gateway.enforce.as_ref());
        let defaults = gateway.defaults.as_ref();
        for route in &gateway.routes.value {
            for (usage, _) in listed(route, defaults) {
                self.admit(table, usage);
                table.learn_per(usage);
            }
        }
        let mut routes: Vec<LoweredRoute> = Vec::new();
        for route in &gateway.routes.value {
            routes.push(self.route(route, gateway, enforcement, table, upstreams, decoys));
        }
        self.refuse_same_names(gateway, &routes);
        self.check_unused(table);
        routes
    }

    fn route(
        &mut self,
        route: &Spanned<schema::Route>,
        gateway: &Spanned<Gateway>,
        of_all: Lowered<Enforcement>,
        table: &mut LimitTable,
        upstreams: &Upstreams<'_>,
        decoys: &Decoys<'_>,
    ) -> LoweredRoute {
        let defaults = gateway.defaults.as_ref();
        let inherited = defaults.and_then(|defaults| defaults.cors.as_ref());
        // A route that allows no origin has none of it, whatever the others inherit.
        let cors = route
            .cors
            .as_ref()
            .or(inherited)
            .filter(|cors| !self.allows_none(cors));
        let matcher = self.matcher(&route.matches, cors.is_some());
        let upstream = self.find_upstream(&route.upstream, upstreams);
        let on_denied = self.on_denied(route, defaults, decoys);
        let shadows = matches!(on_denied, Ok(OnDenied::Shadow(_)));
        let (known, denied) = (matcher.as_ref().ok(), on_denied.as_ref().ok());
        self.require_decoy_captures(route, denied, known);
        let own = self.enforcement(route.enforce.as_ref());
        let enforcement = of_all.and_then(|of_all| Ok(of_all.min(own?)));
        let mut limits = Vec::new();
        for (written, own) in listed(route, defaults) {
            let usage = self.limit_use(table, written, enforcement);
            if let Ok(usage) = &usage {
                let span = if own { written.span } else { route.span };
                self.require_sources(usage, own, known, gateway, span);
            }
            limits.push(usage);
        }
        let headers = self.header_forms(route, defaults, shadows);
        LoweredRoute {
            span: route.span,
            name: route.spelt_name().into(),
            description: route.matches.description(),
            cors: self.cors(cors, &headers),
            headers,
            matcher,
            limits,
            on_denied,
            upstream,
        }
    }

    fn matcher(&mut self, written: &schema::Match, preflights: bool) -> Lowered<RouteMatcher> {
        let host = written
            .host
            .as_ref()
            .map(|host| self.ok(host.span, HostPattern::parse(host)));
        let path = match &written.path {
            Some(path) => self.ok(path.span, PathPattern::parse(path)),
            None => Ok(PathPattern::everything()),
        };
        let path = path.map(|path| match written.case {
            Some(schema::PathCase::Sensitive) => path.case_sensitive(),
            Some(schema::PathCase::Insensitive) | None => path,
        });
        let methods = written.methods.iter().flat_map(|it| &it.0);
        let methods: Vec<_> = methods.map(|it| self.method(it)).collect();
        let headers = self.fields(written.headers.as_ref());
        Ok(RouteMatcher {
            host: host.transpose()?,
            path: path?,
            methods: methods.into_iter().collect::<Lowered<_>>()?,
            headers: headers?,
            preflights,
        })
    }

    /// Makes sure that a limit's sources can be found on a route at all.
    fn require_sources(
        &mut self,
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
                KeySource::Account => self.lacks_accounts(gateway),
                KeySource::Path(name) if !optional => matcher.is_some_and(|it| !captures(it, name)),
                _ => false,
            };
            if lacks {
                let message = format!(
                    "\"{}\" is counted per {source}, which is never there",
                    limit.name()
                );
                self.error(span, message).help(match source {
                    KeySource::Path(name) => {
                        format!("capture it in the route's path as `{{{name}}}`")
                    }
                    _ => "say under `account` where requests name their account".to_owned(),
                });
            }
        }
    }

    /// Whether nothing says where requests name their account; not even something in error.
    pub(super) fn lacks_accounts(&self, gateway: &Spanned<Gateway>) -> bool {
        match &gateway.account {
            Some(account) => {
                account.is_empty() && self.sources.child_in_error(account.span).is_none()
            }
            None => self
                .sources
                .key_in_error(gateway.span, &["account"])
                .is_none(),
        }
    }

    fn require_decoy_captures(
        &mut self,
        route: &Spanned<schema::Route>,
        on_denied: Option<&OnDenied>,
        matcher: Option<&RouteMatcher>,
    ) {
        let (Some(OnDenied::Shadow(shadow)), Some(matcher)) = (on_denied, matcher) else {
            return;
        };
        let span = route.on_denied.as_ref().map_or(route.span, |it| it.span);
        for name in shadow.decoy().captures_used() {
            if !captures(matcher, &name) {
                let decoy = shadow.decoy().name();
                self.error(
                    span,
                    format!("decoy \"{decoy}\" uses path.{name}, which this route lacks"),
                )
                .help(format!("capture it in the route's path as `{{{name}}}`"));
            }
        }
    }

    fn refuse_same_names(&mut self, gateway: &Spanned<Gateway>, routes: &[LoweredRoute]) {
        let mut first: HashMap<&str, Span> = HashMap::new();
        for (route, written) in routes.iter().zip(&gateway.routes.value) {
            let span = written.name.as_ref().map_or(route.span, |it| it.span);
            if let Some(other) = first.insert(&route.name, span) {
                let other = self.sources.location(other);
                let message = format!("another route is called \"{}\" already", route.name);
                self.error(span, message).help(format!(
                    "give one of them another `name`; the other is at {other} {}",
                    other.path
                ));
            }
        }
    }
}

impl LoweredRoute {
    /// Whether the path captures a segment of this name, for all that is known of it.
    pub(super) fn may_capture(&self, segment: &str) -> bool {
        let matcher = self.matcher.as_ref();
        matcher.is_ok_and(|it| captures(it, segment)) || matcher.is_err()
    }

    /// The limits that could be lowered.
    pub(in crate::config) fn limits(&self) -> impl Iterator<Item = &Arc<Limit>> {
        self.limits.iter().flatten().map(|it| &it.limit)
    }

    /// The route, when nothing of it is in error.
    pub(super) fn into_settings(self) -> Lowered<Route> {
        Ok(Route {
            matcher: self.matcher?,
            policy: RoutePolicy {
                name: self.name,
                limits: self.limits.into_iter().collect::<Lowered<_>>()?,
                on_denied: self.on_denied?,
                headers: self.headers?,
                cors: self.cors?.map(Arc::new),
            },
            upstream: self.upstream?,
            description: self.description,
        })
    }
}

/// The limits of a route: its own, or else the defaults.
fn listed<'w>(route: &'w schema::Route, defaults: Option<&'w RouteDefaults>) -> Vec<Listed<'w>> {
    match &route.limits {
        Some(own) => own.iter().map(|it| (it, true)).collect(),
        None => {
            let inherited = defaults.and_then(|it| it.limits.as_ref());
            inherited
                .into_iter()
                .flatten()
                .map(|it| (it, false))
                .collect()
        }
    }
}

fn captures(matcher: &RouteMatcher, name: &str) -> bool {
    matcher.path.capture_names().any(|it| it == name)
}
