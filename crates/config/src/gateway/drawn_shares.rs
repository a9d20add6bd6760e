//! Shares of subjects that are enforced on, and that each process draws anew for want of a hash key.

use weir_middleware::BanPolicy;
use weir_rules::{Enforcement, KeySource};
use weir_yaml::{Lowered, Lowering, Span, Spanned, WordOr};

use super::schema::Gateway;
use super::secrets::MAKE_A_KEY;
use crate::limits::enforcement;
use crate::routes::LoweredRoute;

/// Who is enforced on only in part, and where that is said.
struct Share {
    span: Span,
    of: String,
    enforcement: Enforcement,
}

/// Warns of shares of those who are known by a hash. Which of them a share includes goes by that
/// hash, and so by a key that each process makes up where none is configured.
pub(super) fn warn_of_drawn_shares(
    cx: &mut Lowering<'_>,
    gateway: &Spanned<Gateway>,
    routes: &[LoweredRoute],
    bans: &[Lowered<BanPolicy>],
) {
    let in_error = cx.sources.key_in_error(gateway.span, &["hash_key"]);
    if gateway.hash_key.is_some() || in_error.is_some() {
        return;
    }
    let bans = bans.iter().flatten().filter_map(|ban| of_ban(gateway, ban));
    let routes = routes.iter().filter_map(of_route);
    for share in routes.chain(bans).chain(of_shedding(gateway)) {
        if share.enforcement.is_share() {
            let (which, of) = (share.enforcement, share.of);
            let message = format!(
                "each restart and each gateway draws other clients for the {which} that {of} is \
                 enforced on"
            );
            cx.warn(share.span, message).help(MAKE_A_KEY);
        }
    }
}

/// The first limit of a route that is enforced on a share of those it knows by their hash.
fn of_route(route: &LoweredRoute) -> Option<Share> {
    let mut used = route.limits.iter().flatten();
    let used = used.find(|used| used.enforcement.is_share() && is_hashed(used.limit.per()))?;
    Some(Share {
        span: route.span,
        of: format!("limit \"{}\"", used.limit.name()),
        enforcement: used.enforcement,
    })
}

fn of_ban(gateway: &Spanned<Gateway>, policy: &BanPolicy) -> Option<Share> {
    let name = policy.ban.name();
    let mut written = gateway.bans.iter().flat_map(|bans| &bans.value.0);
    let (written, _) = written.find(|(written, _)| *written.value == **name)?;
    is_hashed(policy.ban.per()).then(|| Share {
        span: written.span,
        of: format!("ban \"{name}\""),
        enforcement: policy.enforcement,
    })
}

/// The gateway itself and its upstreams shed requests of clients, which have accounts if there are
/// any.
fn of_shedding(gateway: &Spanned<Gateway>) -> impl Iterator<Item = Share> {
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

fn is_hashed(per: &[KeySource]) -> bool {
    per.iter().any(KeySource::is_hashed)
}
