//! Which decisions a configuration can lead to, so that metrics show them before the first is made.

use crate::config::{Settings, StoreSettings};
use crate::middleware::{OnDenied, RoutePolicy, Treatment};
use crate::rules::Enforcement;
use crate::store::OnFailure;
use crate::telemetry::Disposition;

/// The decisions that requests of a route can get, or those without a route.
pub(super) fn decisions(settings: &Settings, route: Option<&RoutePolicy>) -> Vec<Disposition> {
    let limited = route.filter(|route| !route.limits.is_empty());
    // What is refused before it is counted is unlimited on every route.
    let mut all = vec![Disposition::Unlimited];
    all.extend(route.is_none().then_some(Disposition::Unrouted));
    all.extend(limited.map(of_denied));
    all.extend(of_gate(settings).flatten());
    if limited.is_some() || !settings.gate.bans.is_empty() {
        all.push(Disposition::Allowed);
        all.extend(without_store(settings));
    }
    if partly_enforced(settings, route) {
        all.push(Disposition::WouldDeny);
        // A dry run stops no request, whatever the store does.
        all.extend(without_store(settings).map(|_| Disposition::FailedOpen));
    }
    all
}

fn of_denied(policy: &RoutePolicy) -> Disposition {
    match policy.on_denied {
        OnDenied::Reject(_) => Disposition::Denied,
        OnDenied::Shadow(_) => Disposition::Shadowed,
    }
}

/// What the banned and the blocked get.
fn of_gate(settings: &Settings) -> impl Iterator<Item = impl Iterator<Item = Disposition>> {
    let bans = settings.gate.bans.iter().map(|ban| &ban.treatment);
    let blocks = !settings.gate.access.block.is_empty();
    let treatments = bans.chain(blocks.then_some(&settings.gate.blocked));
    treatments.map(|treatment| {
        let (usual, too_many) = match treatment {
            Treatment::Reject(_) => (Disposition::Denied, None),
            Treatment::Shadow(_) => (Disposition::Shadowed, None),
            Treatment::Divert(_) => (Disposition::Diverted, None),
            Treatment::Tarpit(_) => (Disposition::Tarpitted, Some(Disposition::Denied)),
            Treatment::Drop => (Disposition::Dropped, None),
        };
        [usual].into_iter().chain(too_many)
    })
}

/// What requests can get while the store cannot be reached.
fn without_store(settings: &Settings) -> Option<Disposition> {
    let StoreSettings::Redis(redis) = &settings.process.store else {
        return None;
    };
    match redis.guard.on_failure {
        OnFailure::Allow => Some(Disposition::FailedOpen),
        OnFailure::Deny => Some(Disposition::Unavailable),
        OnFailure::Local => None,
    }
}

fn partly_enforced(settings: &Settings, route: Option<&RoutePolicy>) -> bool {
    let limits = route.iter().flat_map(|route| &route.limits);
    let bans = settings.gate.bans.iter();
    limits
        .map(|limit| limit.enforcement)
        .chain(bans.map(|limit| limit.enforcement))
        .any(Enforcement::is_partial)
}
