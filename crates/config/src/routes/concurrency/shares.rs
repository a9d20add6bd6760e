//! Shares of the clients whose requests are shed, as each process may draw them.

use weir_rules::Enforcement;
use weir_yaml::{Spanned, WordOr};

use crate::gateway::Share;
use crate::gateway::schema::Gateway;
use crate::limits::enforcement;

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
