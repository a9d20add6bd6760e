//! What matters when there are more requests than an upstream or the gateway can handle.

pub(crate) mod keys;
pub(super) mod shares;

use std::sync::Arc;

use weir_limit::Priority;
use weir_middleware::{
    ClientPriorities, ConcurrencyKeys, ConcurrencySettings, OverloadSettings, SheddingSettings,
};
use weir_yaml::{Lowered, Lowering, Spanned};

use self::keys::Priorities;
use super::schema::{self, RouteDefaults};
use crate::access::access_list;
use crate::gateway::schema::Gateway;
use crate::limits::{LimitTable, enforcement};

/// The priority of a route's requests.
pub(super) fn priority(route: &schema::Route, defaults: Option<&RouteDefaults>) -> Priority {
    let inherited = defaults.and_then(|defaults| defaults.priority.as_ref());
    let written = route.priority.as_ref().or(inherited);
    written.map_or(Priority::default(), |written| written.value.0)
}

/// What is there once for all routes and upstreams.
pub(crate) fn shedding(
    cx: &mut Lowering<'_>,
    gateway: &Spanned<Gateway>,
    table: &LimitTable,
) -> Lowered<SheddingSettings> {
    let clients = client_priorities(cx, gateway, table);
    let overload = overload(cx, gateway);
    Ok(SheddingSettings {
        clients: clients?,
        overload: overload?,
    })
}

/// The priorities of clients. One that is low is so whatever other list it is on.
fn client_priorities(
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

/// How the requests in flight to an upstream are limited, if they are.
pub(super) fn concurrency(
    cx: &mut Lowering<'_>,
    gateway: &Gateway,
    upstream: &schema::Upstream,
) -> Lowered<Option<ConcurrencySettings>> {
    let of_all = enforcement(gateway.enforce.as_ref());
    let written = upstream.concurrency.as_ref();
    written
        .map(|keys| ConcurrencyKeys::lower(keys, cx, of_all))
        .transpose()
}

/// When the gateway itself is overloaded, if that is watched.
fn overload(cx: &mut Lowering<'_>, gateway: &Gateway) -> Lowered<Option<OverloadSettings>> {
    let of_all = enforcement(gateway.enforce.as_ref());
    let written = gateway.overload.as_ref();
    written.map(|keys| keys.lower(cx, of_all)).transpose()
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
