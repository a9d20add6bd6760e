//! What matters when there are more requests than an upstream or the gateway can handle.

pub(crate) mod keys;

use std::sync::Arc;

use weir_limit::Priority;
use weir_middleware::{ClientPriorities, OverloadSettings};
use weir_rules::Enforcement;
use weir_yaml::{Lowered, Lowering, Spanned, WordOr};

use self::keys::Priorities;
use super::schema::{self, RouteDefaults};
use crate::access::access_list;
use crate::gateway::Share;
use crate::gateway::schema::Gateway;
use crate::limits::{LimitTable, enforcement};

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

/// When the gateway itself is overloaded, if that is watched.
pub(crate) fn overload(
    cx: &mut Lowering<'_>,
    gateway: &Gateway,
) -> Lowered<Option<OverloadSettings>> {
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

/// The gateway itself and its upstreams shed requests of clients, which have accounts if there are
/// any.
pub(crate) fn drawn_shares(gateway: &Spanned<Gateway>) -> impl Iterator<Item = Share> {
    let of_all = enforcement(gateway.enforce.as_ref());
    let has_accounts = gateway
        .account
        .as_ref()
        .is_some_and(|sources| !sources.is_empty());
    let share = move |span, of: String, own| Share {
        span,
        of,
        enforcement: of_all.min(own),
    };
    let overload = gateway.overload.as_ref().map(move |overload| {
        let written = overload.enforce.as_ref().or(gateway.enforce.as_ref());
        let span = written.map_or(gateway.span, |written| written.span);
        let own = enforcement(overload.enforce.as_ref());
        share(span, "`overload`".to_owned(), own)
    });
    let upstreams = gateway.upstreams().iter();
    let upstreams = upstreams.filter_map(move |(name, upstream)| {
        let written = upstream.concurrency.as_ref()?;
        let own = match &written.value {
            WordOr::More(keys) => enforcement(keys.enforce.as_ref()),
            WordOr::Word(_) => Enforcement::FULL,
        };
        let of = format!("`concurrency` of upstream \"{}\"", name.value);
        Some(share(written.span, of, own))
    });
    overload
        .into_iter()
        .chain(upstreams)
        .filter(move |_| has_accounts)
}
