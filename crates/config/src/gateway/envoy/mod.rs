//! What Envoy's rate limit service decides: the limits of descriptors, by their domains.

pub(super) mod keys;

use std::sync::Arc;

use weir_envoy::SHOULD_RATE_LIMIT;
use weir_limit::Algorithm;
use weir_middleware::{Domains, HeaderForms, RequestBounds, RoutePolicy};
use weir_rules::{
    Cost, DescriptorRule, DescriptorRules, KeySource, LimitUse, PathPattern, RouteMatcher,
};
use weir_yaml::{Lowered, Lowering, Reported, Span, SpanOf, Spanned, WordOr};

use self::keys::EnvoyDescriptor;
use super::capabilities::limit;
use super::schema::Gateway;
use crate::limits::{self, LimitTable, enforcement, limit_use};
use crate::routes::{LoweredRoute, default_header_forms};
use crate::settings::{EnvoyService, Route, WrittenDescriptor};

/// The name of the route that calls take, in logs and metrics.
const ROUTE: &str = "envoy";

/// The greatest call that is read, in bytes: as much as gRPC reads by default. Envoy copies headers of
/// its clients into descriptors, and lets a request pass whose call is refused.
const MAX_CALL_BYTES: u64 = 4 * 1024 * 1024;

/// The limits that descriptors use, as they are written.
pub(super) fn limits_of_descriptors(gateway: &Gateway) -> Vec<&WordOr<limits::schema::LimitUse>> {
    let mut uses = Vec::new();
    let domains = gateway.decide.iter().flat_map(|decide| &decide.envoy);
    for domain in domains.flat_map(|domains| &domains.value) {
        add_uses(&domain.descriptors, &mut uses);
    }
    uses
}

fn add_uses<'w>(
    descriptors: &'w [Spanned<EnvoyDescriptor>],
    uses: &mut Vec<&'w WordOr<limits::schema::LimitUse>>,
) {
    for descriptor in descriptors {
        uses.extend(descriptor.limit.as_ref().map(|usage| &usage.value));
        add_uses(&descriptor.descriptors, uses);
    }
}

/// The rate limit service; none where no domain is configured.
pub(super) fn envoy(
    cx: &mut Lowering<'_>,
    gateway: &Gateway,
    table: &LimitTable,
    routes: &[LoweredRoute],
) -> Lowered<Option<EnvoyService>> {
    let Some(written) = gateway.decide.as_ref().and_then(|it| it.envoy.as_ref()) else {
        return Ok(None);
    };
    refuse_its_name(cx, gateway, routes);
    let mut lowered = LoweredDescriptors::default();
    let mut domains = Domains::new();
    for domain in &written.value {
        let mut rules = DescriptorRules::default();
        let mut descriptors = DescriptorLowering {
            cx,
            gateway,
            table,
            domain: &domain.domain.value,
            entries: Vec::new(),
        };
        descriptors.add(&domain.descriptors, &mut rules, &mut lowered);
        let name = &domain.domain;
        if domains.insert(name.value.as_str().into(), rules).is_some() {
            let message = format!("the domain \"{}\" is there twice", name.value);
            let help = "list its descriptors in one place";
            lowered.reported = Some(cx.error(name.span, message).help(help));
        }
    }
    if let Some(reported) = lowered.reported {
        return Err(reported);
    }
    let path = cx.ok(written.span, PathPattern::parse(SHOULD_RATE_LIMIT))?;
    let header_forms = default_header_forms(cx, gateway.defaults.as_ref())?;
    Ok(Some(EnvoyService {
        route: route(path, lowered.limits, header_forms),
        domains: Arc::new(domains),
        rules: lowered.rules,
    }))
}

/// Refuses routes of requests that are called like the route of calls.
fn refuse_its_name(cx: &mut Lowering<'_>, gateway: &Gateway, routes: &[LoweredRoute]) {
    for (route, written) in routes.iter().zip(&gateway.routes.value) {
        if *route.name == *ROUTE {
            let span = written.name.span().unwrap_or(route.span);
            let message = format!("\"{ROUTE}\" is the route of calls to `decide.envoy`");
            cx.error(span, message)
                .help("give this route another `name`");
        }
    }
}

/// The route of calls, so that they are logged and counted as requests are.
fn route(path: PathPattern, limits: Vec<LimitUse>, header_forms: HeaderForms) -> Route {
    let matcher = RouteMatcher {
        host: None,
        path,
        path_regex: None,
        methods: Vec::new(),
        headers: Vec::new(),
        query: Vec::new(),
        preflights: false,
    };
    let policy = RoutePolicy {
        name: ROUTE.into(),
        limits,
        header_forms,
        ..RoutePolicy::default()
    };
    Route {
        bounds: RequestBounds {
            max_body_bytes: Some(MAX_CALL_BYTES),
        },
        ..Route::plain(matcher, policy, SHOULD_RATE_LIMIT)
    }
}

/// The limits of all descriptors, whose rules refer to them by their index.
#[derive(Default)]
struct LoweredDescriptors {
    limits: Vec<LimitUse>,
    rules: Vec<WrittenDescriptor>,
    reported: Option<Reported>,
}

/// Lowers the descriptors of a domain.
struct DescriptorLowering<'l, 's, 'w> {
    cx: &'l mut Lowering<'s>,
    gateway: &'w Gateway,
    table: &'l LimitTable,
    domain: &'w str,
    /// The descriptors around the present one, and itself.
    entries: Vec<&'w EnvoyDescriptor>,
}

impl<'w> DescriptorLowering<'_, '_, 'w> {
    fn add(
        &mut self,
        descriptors: &'w [Spanned<EnvoyDescriptor>],
        rules: &mut DescriptorRules,
        lowered: &mut LoweredDescriptors,
    ) {
        for descriptor in descriptors {
            self.entries.push(&descriptor.value);
            let mut rule = DescriptorRule::default();
            if let Some(usage) = &descriptor.limit {
                match self.limit(usage) {
                    Ok(usage) => {
                        rule.limit = Some(lowered.limits.len());
                        lowered.limits.push(usage);
                    }
                    Err(reported) => lowered.reported = Some(reported),
                }
            }
            if rule.limit.is_some() || descriptor.descriptors.is_empty() {
                lowered.rules.push(self.written(rule.limit));
            }
            self.add(&descriptor.descriptors, &mut rule.below, lowered);
            self.entries.pop();
            let written = &descriptor.value;
            let (key, value) = (&written.key.value, written.value.as_ref());
            if !rules.add(key, value.map(|value| value.value.as_str()), rule) {
                let message = format!("the descriptor \"{key}\" is there twice with this value");
                let error = self.cx.error(descriptor.key.span, message);
                lowered.reported = Some(error.help("leave one out"));
            }
        }
    }

    /// The present descriptor with its limit.
    fn written(&self, limit: Option<usize>) -> WrittenDescriptor {
        let entry = |entry: &&EnvoyDescriptor| match &entry.value {
            Some(value) => format!("{}={}", entry.key.value, value.value),
            None => entry.key.value.clone(),
        };
        let entries: Vec<_> = self.entries.iter().map(entry).collect();
        WrittenDescriptor {
            domain: self.domain.to_owned(),
            entries: entries.join(", "),
            limit,
        }
    }

    fn limit(&mut self, written: &Spanned<WordOr<limits::schema::LimitUse>>) -> Lowered<LimitUse> {
        let of_all = enforcement(self.gateway.enforce.as_ref());
        let usage = limit_use(self.cx, self.table, written, of_all)?;
        if let WordOr::More(more) = &written.value
            && let Some(yields_to) = &more.yields_to
        {
            let message = "a descriptor has one limit, which yields to no other";
            return Err(self.cx.error(yields_to.span, message).help("leave it out"));
        }
        let name = usage.limit.name();
        // What a decision reduces is refused here: a call says nothing of requests.
        if !limit(&usage).is_full() || !matches!(usage.cost, Cost::Fixed(_)) {
            let message = format!("Envoy's descriptors cannot use \"{name}\" like this");
            let help = "a call takes its hits at once; leave `spend_on`, `refund_on` and a measured \
                 `cost` out, and limits on requests in flight";
            return Err(self.cx.error(written.span, message).help(help));
        }
        let is_log =
            |quota: weir_limit::Quota| matches!(quota.algorithm(), Algorithm::SlidingLog { .. });
        if usage.limit.quota().is_some_and(is_log) {
            let message = format!("\"{name}\" would remember each of a call's hits");
            let help = "choose `algorithm: sliding_window`";
            return Err(self.cx.error(written.span, message).help(help));
        }
        self.require_values(&usage, written.span)?;
        Ok(usage)
    }

    /// Makes sure that descriptors have what the limit counts per.
    fn require_values(&mut self, usage: &LimitUse, span: Span) -> Lowered<()> {
        for source in usage.limit.per() {
            let keys = self.cx.ok(span, source.descriptor_keys())?;
            let is_here = |key: &&str| {
                let mut here = self.entries.iter().map(|entry| &*entry.key.value);
                // Entries are looked for as they are written, but for headers.
                here.any(|known: &str| match source {
                    KeySource::Header(_) => known.eq_ignore_ascii_case(key),
                    _ => known == *key,
                })
            };
            if keys.is_empty() || keys.iter().any(is_here) {
                continue;
            }
            let name = usage.limit.name();
            let message = format!("\"{name}\" is counted per {source}, which is never there");
            let key = keys.first().copied().unwrap_or_default();
            let help =
                format!("put the descriptor below one with `key: {key}`, or give it that key");
            return Err(self.cx.error(span, message).help(help));
        }
        Ok(())
    }
}
