//! What a listener can do that decides about requests which other proxies forward, and Envoy's
//! service there: for each feature all of it, or less. A feature that is not asked here works as on
//! a listener that forwards.

use weir_middleware::{OnDenied, RequestBounds, RouteAction};
use weir_rules::{AccountSource, LimitUse, ResponseUse};

use crate::access;
use crate::capability::Capability;
use crate::settings::{Route, Settings};

/// A limit; nothing is left of one on requests in flight.
pub(super) fn limit(usage: &LimitUse) -> Capability<Option<LimitUse>> {
    let Some(response_use) = usage.response_use() else {
        return Capability::Full;
    };
    let name = usage.limit.name();
    let consequence = match response_use {
        ResponseUse::InFlight => {
            format!("does not apply \"{name}\", as it does not see when requests end")
        }
        ResponseUse::Take => {
            format!("checks \"{name}\" and takes nothing, as it sees neither bodies nor responses")
        }
        ResponseUse::GiveBack => {
            format!("gives nothing back to \"{name}\", as it sees no responses")
        }
    };
    Capability::Reduced(usage.by_head_alone(), format!("`decide` {consequence}"))
}

/// The response to a denial. A decoy would look like an admission to the proxy.
pub(super) fn denial(on_denied: &OnDenied) -> Capability<OnDenied> {
    match on_denied.looks_real() {
        false => Capability::Full,
        true => Capability::Reduced(
            OnDenied::default(),
            "`decide` denies with 429 what this route answers with a decoy".to_owned(),
        ),
    }
}

/// A source of accounts. The certificate of a connection is the proxy's.
pub(super) fn account(source: &AccountSource) -> Capability<Option<AccountSource>> {
    match source {
        AccountSource::Certificate(_) => Capability::Reduced(
            None,
            "`decide` sees no certificates of clients, and so no such account".to_owned(),
        ),
        _ => Capability::Full,
    }
}

impl Settings {
    /// The settings of the listener that decides: what is left of everything that is configured,
    /// without what is about forwarding alone, of which `weir check` says nothing.
    #[must_use]
    pub fn for_decisions(&self) -> Self {
        let mut decided = self.clone();
        decided.account.sources = reduced(&self.account.sources, account);
        access::reduce(&mut decided.access);
        for route in &mut decided.routes {
            let policy = &mut route.policy;
            policy.limits = reduced(&policy.limits, limit);
            denial(&policy.on_denied).replace(&mut policy.on_denied);
            route.leave_forwarding_out();
        }
        decided.response_steps = self.response_steps.of_decisions();
        decided
    }

    /// The settings of calls of Envoy's service, which take this route: those of decisions, without
    /// what is about clients, as its peers are proxies. A limit of a descriptor must be
    /// `Capability::Full`; docs/INTEGRATIONS.md says that lists and bans do not apply.
    #[must_use]
    pub fn for_calls(&self, route: &Route) -> Self {
        let mut calls = self.for_decisions();
        calls.routes = vec![route.clone()];
        calls.access.clear();
        calls.shedding.overload = None;
        calls
    }
}

impl Route {
    fn leave_forwarding_out(&mut self) {
        self.bounds = RequestBounds::default();
        self.upstream = None;
        self.action = RouteAction::default();
        self.response_steps = self.response_steps.of_decisions();
    }
}

/// What is left of all of them.
fn reduced<T: Clone>(all: &[T], of_one: fn(&T) -> Capability<Option<T>>) -> Vec<T> {
    let left = all.iter().map(|one| match of_one(one) {
        Capability::Full => Some(one.clone()),
        Capability::Reduced(left, _) => left,
    });
    left.flatten().collect()
}
