//! What a gateway says when a configuration comes into force: to the log, and, at its start, to
//! whoever started it by hand.

use std::fmt::{Display, Write as _};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;

use super::reloads::Kept;
use crate::config::{Route, Settings, Span};
use crate::limit::{Algorithm, Alignment, Quota};
use crate::middleware::OnDenied;
use crate::rules::Limit;
use crate::telemetry::{Metrics, Reloaded, Started};

/// Says that the gateway serves.
pub(super) fn started(
    settings: &Settings,
    listening: &[SocketAddr],
    admin: Option<SocketAddr>,
    metrics: &Metrics,
) {
    warn(settings);
    let started = Started {
        listening,
        admin,
        workers: settings.process.workers.get(),
        routes: settings.routes.len(),
        limits: settings.limits().len(),
    };
    started.emit(metrics);
    // Standard output belongs to the log. A closed standard error is no reason not to serve.
    let _ = io::stderr().write_all(summary(settings, listening).as_bytes());
}

/// Says that another configuration is in force.
pub(super) fn reloaded(settings: &Settings, kept: &Kept, metrics: &Metrics) {
    warn(settings);
    tell_what_waits(kept, &Kept::of(settings));
    let (routes, limits) = (settings.routes.len(), settings.limits().len());
    Reloaded { routes, limits }.emit(metrics);
}

/// Says which settings a restart alone can change, where they are not those that the process runs
/// with.
fn tell_what_waits(kept: &Kept, ignored: &Kept) {
    let (old, new) = (&kept.process, &ignored.process);
    let listen = |addresses: &[SocketAddr]| {
        let texts: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        texts.join(",")
    };
    let admin = |address: Option<SocketAddr>| {
        address.map_or_else(|| "none".to_owned(), |address| address.to_string())
    };
    waits("listen", &listen(&old.listen), &listen(&new.listen));
    waits("admin", &admin(old.admin), &admin(new.admin));
    waits("workers", &old.workers, &new.workers);
    waits("grace", &Span(kept.grace), &Span(ignored.grace));
    // Both have many parts, and some of them are secret.
    for (key, is_same) in [
        ("store", old.store == new.store),
        ("log", old.log == new.log),
    ] {
        if !is_same {
            tracing::warn!("{key} keeps its old settings until a restart");
        }
    }
}

fn waits<T: PartialEq + Display>(key: &str, kept: &T, ignored: &T) {
    if kept != ignored {
        tracing::warn!(%kept, %ignored, "{key} keeps its old value until a restart");
    }
}

fn warn(settings: &Settings) {
    for warning in settings.warnings.iter() {
        tracing::warn!("{warning}");
    }
}

fn summary(settings: &Settings, listening: &[SocketAddr]) -> String {
    let mut text = String::new();
    // A `String` takes whatever is written to it.
    let _ = write_summary(&mut text, settings, listening);
    text
}

fn write_summary(
    text: &mut String,
    settings: &Settings,
    listening: &[SocketAddr],
) -> std::fmt::Result {
    for address in listening {
        writeln!(text, "weir listens on http://{address}")?;
    }
    writeln!(text, "routes:")?;
    for route in &settings.routes {
        writeln!(text, "  {}", describe_route(route, settings))?;
    }
    writeln!(text, "limits:")?;
    for limit in settings.limits() {
        writeln!(text, "  {}", describe_limit(limit))?;
    }
    if let Some(address) = listening.first() {
        writeln!(text, "try: curl -i http://{address}/")?;
    }
    Ok(())
}

fn describe_route(route: &Route, settings: &Settings) -> String {
    let limits: Vec<_> = route
        .policy
        .limits
        .iter()
        .map(|used| used.limit.name())
        .collect();
    let limits = if limits.is_empty() {
        "no limit".to_owned()
    } else {
        limits.join(", ")
    };
    let upstream = settings.upstreams.get(route.upstream);
    let upstream = upstream.map_or("?", |upstream| upstream.settings.name.as_str());
    let denied = match &route.policy.on_denied {
        OnDenied::Reject(rejection) => format!("rejects with {}", rejection.status.as_u16()),
        OnDenied::Shadow(shadow) => format!("shadow-bans with {}", shadow.decoy().name()),
    };
    format!(
        "{}: {} -> {upstream}, {limits}, {denied}",
        route.policy.name, route.matcher
    )
}

fn describe_limit(limit: &Arc<Limit>) -> String {
    let per: Vec<_> = limit.per().iter().map(ToString::to_string).collect();
    let (name, per) = (limit.name(), per.join(" and "));
    let Some(quota) = limit.quota() else {
        return format!("{name}: for overrides alone, per {per}");
    };
    format!("{name}: {}, per {per}", amount(&quota))
}

/// How much a limit lets pass, and in what time.
fn amount(quota: &Quota) -> String {
    let burst = quota.burst();
    let (window, interval) = (quota.tolerance(), quota.emission_interval());
    match quota.algorithm() {
        _ if quota.is_in_flight() => format!("{burst} in flight"),
        Algorithm::Gcra => {
            format!("{burst} at once, then one each {}", Span(interval.into()))
        }
        Algorithm::FixedWindow(Alignment::Calendar(calendar)) => format!("{burst} each {calendar}"),
        _ => format!("{burst} in {}", Span(window.into())),
    }
}
