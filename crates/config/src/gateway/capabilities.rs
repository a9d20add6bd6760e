//! The one table of what a listener can do that decides about requests which other proxies forward,
//! and Envoy's service there: for each feature all of it, or less, with the sentence that
//! `weir check` says. A feature that is not here works as on a listener that forwards.

use http::StatusCode;
use weir_middleware::{OnDenied, Rejection, RequestBounds, RouteAction, Treatment};
use weir_rules::{AccessLists, AccountSource, LimitUse, ResponseUse, StatusSet};
use weir_yaml::{Lowering, Span};

use crate::settings::{Route, Settings};

const FORWARD_INSTEAD: &str = "let Weir forward such requests, if that matters";

/// What a listener that decides does with something that is configured. Its settings and the
/// warnings of `weir check` are both made of this, so that neither has what the other one lacks.
pub(crate) enum Capability<T> {
    /// What a listener that forwards does.
    Full,
    /// Less: what is left, and what `weir check` says.
    Reduced(T, String),
}

impl<T> Capability<T> {
    /// Puts what is left in the place of the whole.
    fn replace(self, whole: &mut T) {
        if let Self::Reduced(left, _) = self {
            *whole = left;
        }
    }

    pub(super) const fn is_full(&self) -> bool {
        matches!(self, Self::Full)
    }

    /// Says at this place what is not done.
    pub(crate) fn warn(self, cx: &mut Lowering<'_>, span: Span) {
        if let Self::Reduced(_, warning) = self {
            cx.warn(span, warning).help(FORWARD_INSTEAD);
        }
    }
}

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

pub(crate) fn of_ban(treatment: &Treatment) -> Capability<Treatment> {
    honest(treatment, StatusCode::TOO_MANY_REQUESTS)
}

pub(crate) fn of_blocked(treatment: &Treatment) -> Capability<Treatment> {
    honest(treatment, StatusCode::FORBIDDEN)
}

/// The treatment as a response that the proxy can send on.
fn honest(treatment: &Treatment, status: StatusCode) -> Capability<Treatment> {
    let Some(what) = treatment.beyond_decisions() else {
        return Capability::Full;
    };
    let honest = Treatment::Reject(Rejection {
        status,
        ..Rejection::default()
    });
    let number = status.as_u16();
    Capability::Reduced(
        honest,
        format!("`decide` cannot {what}, and denies with {number}"),
    )
}

/// The statuses that are strikes of a ban.
pub(crate) fn strikes(statuses: &StatusSet) -> Capability<StatusSet> {
    match statuses.is_empty() {
        true => Capability::Full,
        false => Capability::Reduced(
            StatusSet::default(),
            "`decide` counts no strikes by status, as it sees no responses".to_owned(),
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
        for ban in &mut decided.access.bans {
            strikes(&ban.statuses).replace(&mut ban.statuses);
            of_ban(&ban.treatment).replace(&mut ban.treatment);
        }
        let blocked = &mut decided.access.blocked;
        of_blocked(blocked).replace(blocked);
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
        calls.access.lists = AccessLists::default();
        calls.access.bans.clear();
        calls.overload = None;
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
