//! Shares of subjects that are enforced on, and that each process draws anew for want of a hash key.

use weir_rules::{Enforcement, KeySource};
use weir_yaml::{Lowering, Span, Spanned};

use super::schema::Gateway;
use super::secrets::MAKE_A_KEY;
use crate::routes::LoweredRoute;

/// Who is enforced on only in part, and where that is said.
pub(crate) struct Share {
    pub(crate) span: Span,
    pub(crate) of: String,
    pub(crate) enforcement: Enforcement,
}

/// Warns of shares of those who are known by a hash. Which of them a share includes goes by that
/// hash, and so by a key that each process makes up where none is configured. `others` are shares of
/// what is no limit.
pub(super) fn warn_of_drawn_shares(
    cx: &mut Lowering<'_>,
    gateway: &Spanned<Gateway>,
    routes: &[LoweredRoute],
    others: impl Iterator<Item = Share>,
) {
    let in_error = cx.sources.key_in_error(gateway.span, &["hash_key"]);
    if gateway.hash_key.is_some() || in_error.is_some() {
        return;
    }
    for share in routes.iter().filter_map(of_route).chain(others) {
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

fn is_hashed(per: &[KeySource]) -> bool {
    per.iter().any(KeySource::is_hashed)
}
