//! What a gateway says when a configuration comes into force: to the log, and, at its start, to
//! whoever started it by hand.

use std::fmt::{Display, Write as _};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;

use super::pace::Pace;
use super::reloads::Kept;
use crate::config::{HumanDuration, Route, Settings, counted};
use crate::middleware::OnDenied;
use crate::rules::{AccessList, Ban, KeySource, Limit};
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
    let admin = |address: Option<SocketAddr>| {
        address.map_or_else(|| "none".to_owned(), |address| address.to_string())
    };
    waits("listen", &kept.listen, &ignored.listen);
    waits("admin", &admin(old.admin), &admin(new.admin));
    waits("workers", &old.workers, &new.workers);
    waits(
        "grace",
        &HumanDuration(kept.grace),
        &HumanDuration(ignored.grace),
    );
    // They have many parts, and some of them are secret.
    for (key, is_same) in [
        ("connections", old.connections == new.connections),
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
    for warning in settings.warnings.lines() {
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
    let schemes = settings.listen.iter().map(|it| match it.certificates {
        Some(_) => "https",
        None => "http",
    });
    let urls = listening.iter().zip(schemes);
    let urls = urls.map(|(address, scheme)| format!("{scheme}://{address}"));
    let urls: Vec<_> = urls.collect();
    for url in &urls {
        writeln!(text, "weir listens on {url}")?;
    }
    let routes = settings.routes.iter();
    write_list(
        text,
        "routes",
        routes.map(|it| describe_route(it, settings)),
    )?;
    let limits = settings.limits().into_iter();
    write_list(text, "limits", limits.map(describe_limit))?;
    let access = &settings.gate.access;
    for (name, list) in [("allow", &access.allow), ("block", &access.block)] {
        if !list.is_empty() {
            writeln!(text, "{name}: {}", describe_list(list))?;
        }
    }
    let bans = settings.gate.bans.iter();
    write_list(text, "bans", bans.map(|it| describe_ban(&it.ban)))?;
    if let Some(url) = urls.first() {
        writeln!(text, "try: curl -i {url}/")?;
    }
    Ok(())
}

/// Writes a heading and what stands under it, or nothing at all.
fn write_list(
    text: &mut String,
    heading: &str,
    lines: impl Iterator<Item = String>,
) -> std::fmt::Result {
    for (number, line) in lines.enumerate() {
        if number == 0 {
            writeln!(text, "{heading}:")?;
        }
        writeln!(text, "  {line}")?;
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

fn describe_list(list: &AccessList) -> String {
    let (networks, accounts) = list.len();
    let networks = counted(networks, "network");
    format!("{networks}, {}", counted(accounts, "account"))
}

fn describe_ban(ban: &Ban) -> String {
    let (name, per) = (ban.name(), joined(ban.per()));
    let (terms, period) = (ban.terms(), HumanDuration(ban.period()));
    let strikes = usize::try_from(ban.strikes().burst().get());
    let strikes = counted(strikes.unwrap_or(usize::MAX), "strike");
    let (first, longest) = (HumanDuration(terms.first()), HumanDuration(terms.longest()));
    let length = match first == longest {
        true => first.to_string(),
        false => format!("{first} to {longest}"),
    };
    format!("{name}: {length} for {strikes} in {period}, per {per}")
}

fn joined(per: &[KeySource]) -> String {
    let per: Vec<_> = per.iter().map(ToString::to_string).collect();
    per.join(" and ")
}

fn describe_limit(limit: &Arc<Limit>) -> String {
    let (name, per) = (limit.name(), joined(limit.per()));
    let Some(quota) = limit.quota() else {
        return format!("{name}: for overrides alone, per {per}");
    };
    format!("{name}: {}, per {per}", Pace(quota))
}
