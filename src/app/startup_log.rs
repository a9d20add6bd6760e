//! Messages of a gateway that applies a configuration: in the log, and at its start on the
//! terminal.

use std::fmt::{self, Display, Write as _};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use weir_config::{EnvoyService, Listener, ProcessSettings, Route, Settings, WrittenDescriptor};
use weir_middleware::LocalResponse;
use weir_rules::Limit;
use weir_telemetry::Metrics;
use weir_telemetry::events::{self, Loaded};
use weir_yaml::HumanDuration;

use super::features::ROOMS;
use super::wording::{describe_quota, in_words, write_list};

#[derive(Debug, PartialEq, Eq)]
pub(super) struct RestartOnlySettings {
    pub(super) process: ProcessSettings,
    pub(super) listen: String,
    pub(super) grace: Duration,
}

impl RestartOnlySettings {
    pub(super) fn new(settings: &Settings) -> Self {
        let listen: Vec<_> = settings.listen.iter().map(ToString::to_string).collect();
        Self {
            process: settings.process.clone(),
            listen: listen.join(","),
            grace: settings.grace,
        }
    }
}

pub(super) fn started(
    settings: &Settings,
    listening: &[SocketAddr],
    admin: Option<SocketAddr>,
    metrics: &Metrics,
) {
    warn(settings);
    let workers = settings.process.workers.get();
    events::started(metrics, listening, admin, workers, loaded(settings));
    // Standard output belongs to the log. The gateway serves even if standard error is closed.
    let _ = io::stderr().write_all(summary(settings, listening, admin).as_bytes());
}

pub(super) fn reloaded(settings: &Settings, kept: &RestartOnlySettings, metrics: &Metrics) {
    warn(settings);
    warn_of_restart_only(kept, &RestartOnlySettings::new(settings));
    events::reloaded(metrics, loaded(settings));
}

fn loaded(settings: &Settings) -> Loaded {
    Loaded {
        routes: settings.routes.len(),
        limits: settings.limits().len(),
    }
}

/// Warns of changed settings that need a restart.
fn warn_of_restart_only(kept: &RestartOnlySettings, ignored: &RestartOnlySettings) {
    let (old, new) = (&kept.process, &ignored.process);
    let admin = |address: Option<SocketAddr>| {
        address.map_or_else(|| "none".to_owned(), |address| address.to_string())
    };
    warn_if_changed("listen", &kept.listen, &ignored.listen);
    warn_if_changed("admin", &admin(old.admin), &admin(new.admin));
    warn_if_changed("workers", &old.workers, &new.workers);
    warn_if_changed(
        "grace",
        &HumanDuration(kept.grace),
        &HumanDuration(ignored.grace),
    );
    // These have many parts, some of which are secret.
    let file = |settings: &ProcessSettings| {
        let file = settings.overrides_file.as_deref();
        file.map_or_else(|| "none".to_owned(), |file| file.display().to_string())
    };
    warn_if_changed("admin.overrides_file", &file(old), &file(new));
    for (key, is_same) in [
        ("connections", old.connections == new.connections),
        ("store", old.store == new.store),
        ("log", old.log == new.log),
        ("telemetry", old.otlp == new.otlp),
    ] {
        if !is_same {
            tracing::warn!("{key} keeps its old settings until a restart");
        }
    }
}

fn warn_if_changed<T: PartialEq + Display>(key: &str, kept: &T, ignored: &T) {
    if kept != ignored {
        tracing::warn!(%kept, %ignored, "{key} keeps its old value until a restart");
    }
}

fn warn(settings: &Settings) {
    for warning in settings.warnings.lines() {
        tracing::warn!("{warning}");
    }
}

fn summary(settings: &Settings, listening: &[SocketAddr], admin: Option<SocketAddr>) -> String {
    let mut text = String::new();
    // Writing to a `String` never fails.
    let _ = write_summary(&mut text, settings, listening, admin);
    text
}

fn write_summary(
    text: &mut String,
    settings: &Settings,
    listening: &[SocketAddr],
    admin: Option<SocketAddr>,
) -> fmt::Result {
    let url = |address, listener: &Listener| match listener.certificates {
        Some(_) => format!("https://{address}"),
        None => format!("http://{address}"),
    };
    let sockets = || listening.iter().zip(&settings.listen);
    for (address, listener) in sockets() {
        let url = url(address, listener);
        match listener.decides_for {
            Some(_) => writeln!(text, "weir decides for other proxies on {url}")?,
            None => writeln!(text, "weir listens on {url}")?,
        }
    }
    if let Some(admin) = admin.filter(|_| settings.admin_dashboard) {
        writeln!(text, "dashboard: http://{admin}/")?;
    }
    let routes = settings.routes.iter();
    write_list(text, "routes", routes.map(describe_route))?;
    let services = settings.envoy.iter();
    let descriptors = services.flat_map(|envoy| {
        let rules = envoy.rules.iter();
        rules.map(|rule| describe_descriptor(rule, envoy))
    });
    write_list(text, "descriptors", descriptors)?;
    let limits = settings.limits().into_iter();
    write_list(text, "limits", limits.map(describe_limit))?;
    for room in ROOMS {
        room.summarize(text, settings)?;
    }
    let mut forwarding = sockets().filter(|(_, listener)| listener.decides_for.is_none());
    if let Some((address, listener)) = forwarding.next() {
        writeln!(text, "try: curl -i {}/", url(address, listener))?;
    }
    Ok(())
}

fn describe_route(route: &Route) -> String {
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
    let target = match (&route.action.response, route.upstream_name()) {
        (Some(LocalResponse::Redirect(redirect)), _) => {
            format!("{} to {}", redirect.status().as_u16(), redirect.to())
        }
        (Some(LocalResponse::Fixed(fixed)), _) => format!("a fixed {}", fixed.status.as_u16()),
        (None, upstream) => upstream.unwrap_or("decisions alone").to_owned(),
    };
    let denied = route.policy.denial_in_brief();
    format!(
        "{}: {} -> {target}, {limits}, {denied}",
        route.policy.name, route.matcher
    )
}

fn describe_descriptor(rule: &WrittenDescriptor, envoy: &EnvoyService) -> String {
    let limit = envoy.limit_of(rule);
    let limit = limit.map_or("no limit", |usage| usage.limit.name());
    format!("{}: {} -> {limit}", rule.domain, rule.entries)
}

fn describe_limit(limit: &Arc<Limit>) -> String {
    let (name, per) = (limit.name(), in_words(limit.per()));
    let Some(quota) = limit.quota() else {
        return format!("{name}: for overrides alone, per {per}");
    };
    format!("{name}: {}, per {per}", describe_quota(quota))
}
