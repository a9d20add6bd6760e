//! How many requests an upstream may have in flight, and what matters when there are more.

use std::num::NonZeroU32;
use std::sync::Arc;

use weir_limit::{ConcurrencyBounds, Priority};
use weir_middleware::{ClientPriorities, ConcurrencySettings};
use weir_rules::Enforcement;
use weir_yaml::{Lowered, Lowering, Span, Spanned, WordOr};

use super::schema::{self, RouteDefaults, Upstream};
use crate::bans::access_list;
use crate::gateway::schema::{Gateway, Priorities};
use crate::limits::{LimitTable, enforcement};

const ADAPTIVE: &str = "adaptive";

/// The greatest limit that is found by itself, unless told otherwise.
const DEFAULT_MAX: u32 = 1000;

/// The limit of an upstream, if it has one.
pub(super) fn concurrency(
    cx: &mut Lowering<'_>,
    upstream: &Upstream,
    of_all: Enforcement,
) -> Lowered<Option<ConcurrencySettings>> {
    let Some(written) = &upstream.concurrency else {
        return Ok(None);
    };
    let none = schema::Concurrency::default();
    let (limit, keys) = match &written.value {
        WordOr::Word(limit) => (Some((limit, written.span)), &none),
        WordOr::More(keys) => {
            let limit = keys.limit.as_ref();
            (limit.map(|limit| (&limit.value, limit.span)), keys)
        }
    };
    let bounds = match limit {
        Some((limit, span)) if limit != ADAPTIVE => fixed(cx, limit, span, keys)?,
        _ => adaptive(cx, written.span, keys)?,
    };
    Ok(Some(ConcurrencySettings {
        bounds,
        max_wait: keys.max_wait.map(|wait| wait.value.0),
        enforcement: of_all.min(enforcement(keys.enforce.as_ref())),
    }))
}

fn fixed(
    cx: &mut Lowering<'_>,
    limit: &str,
    span: Span,
    keys: &schema::Concurrency,
) -> Lowered<ConcurrencyBounds> {
    let Ok(number) = limit.parse::<NonZeroU32>() else {
        let message = format!("`{limit}` is neither `{ADAPTIVE}` nor a number of requests");
        let error = cx.error(span, message);
        return Err(error.help("say `concurrency: adaptive`, or leave it out for no limit"));
    };
    if let Some(bound) = keys.min.as_ref().or(keys.max.as_ref()) {
        let error = cx.error(bound.span, "a limit that is a number does not adapt");
        return Err(error.help(format!("leave this out, or say `limit: {ADAPTIVE}`")));
    }
    Ok(ConcurrencyBounds {
        min: number,
        max: number,
    })
}

fn adaptive(
    cx: &mut Lowering<'_>,
    span: Span,
    keys: &schema::Concurrency,
) -> Lowered<ConcurrencyBounds> {
    let min = keys.min.as_ref().map_or(NonZeroU32::MIN, |min| min.value);
    let default = NonZeroU32::new(DEFAULT_MAX)
        .unwrap_or(NonZeroU32::MIN)
        .max(min);
    let max = keys.max.as_ref().map_or(default, |max| max.value);
    if max <= min {
        let span = keys.max.as_ref().map_or(span, |max| max.span);
        let error = cx.error(span, "the limit has no room to adapt");
        return Err(error.help("raise `max` above `min`, or say a number as the `limit`"));
    }
    Ok(ConcurrencyBounds { min, max })
}

/// The priority of a route's requests.
pub(super) fn priority(route: &schema::Route, defaults: Option<&RouteDefaults>) -> Priority {
    let inherited = defaults.and_then(|defaults| defaults.priority.as_ref());
    let written = route.priority.as_ref().or(inherited);
    written.map_or(Priority::default(), |written| written.value.0)
}

/// The priorities of clients. One that is low is so whatever other list it is on.
pub(crate) fn client_priorities(
    cx: &mut Lowering<'_>,
    gateway: &Spanned<Gateway>,
    table: &LimitTable,
) -> Lowered<Arc<ClientPriorities>> {
    let none = Priorities::default();
    let written = gateway.priorities.as_ref();
    let Priorities {
        low,
        high,
        critical,
    } = written.map_or(&none, |written| &written.value);
    let lists = [
        (Priority::Low, low),
        (Priority::Critical, critical),
        (Priority::High, high),
    ];
    let mut lowered = Ok(Vec::new());
    for (priority, list) in lists {
        let Some(list) = list else {
            continue;
        };
        let list = access_list(cx, &list.addresses, &list.accounts, gateway, table);
        lowered = lowered.and_then(|mut all| {
            all.push((priority, list?));
            Ok(all)
        });
    }
    warn_of_idle_priorities(cx, gateway);
    lowered.map(|lists| Arc::new(ClientPriorities::new(lists)))
}

/// Warns of priorities where nothing is ever shed.
fn warn_of_idle_priorities(cx: &mut Lowering<'_>, gateway: &Spanned<Gateway>) {
    let mut upstreams = gateway.upstreams().iter();
    if gateway.overload.is_some() || upstreams.any(|(_, upstream)| upstream.concurrency.is_some()) {
        return;
    }
    let defaults = gateway.defaults.as_ref();
    let of_routes = gateway
        .routes
        .iter()
        .filter_map(|route| route.priority.as_ref());
    let of_routes = of_routes.chain(defaults.and_then(|defaults| defaults.priority.as_ref()));
    let written = gateway.priorities.as_ref().map(|written| written.span);
    if let Some(span) = written.or_else(|| of_routes.map(|priority| priority.span).next()) {
        cx.warn(
            span,
            "nothing is ever shed, so priorities make no difference",
        )
        .help(
            "limit the requests in flight to an upstream: `concurrency: adaptive`, or watch the \
             gateway itself: `overload: {}`",
        );
    }
}
