//! What is shown of shedding: when a request is shed because its upstream, or the gateway itself, has more
//! to do than it can handle, and whether it would be shed now, where a gateway runs; and the routes
//! whose requests are shed.

mod load;

use std::fmt::{self, Write};
use std::time::Duration;

use weir_config::Settings;
use weir_console::findings::GatewayFinding;
use weir_limit::{ConcurrencyBounds, Priority, ShedLevel};
use weir_middleware::ConcurrencySettings;
use weir_rules::Access;
use weir_telemetry::{ConcurrencySample, Failures};
use weir_yaml::HumanDuration;

pub(in crate::app) use self::load::Load;
use super::overload;
use super::room::{ArrivedRequest, Room};

/// What operators see of requests that are shed.
pub(super) struct SheddingRoom;

impl Room for SheddingRoom {
    fn explain_arrival(
        &self,
        out: &mut String,
        settings: &Settings,
        request: &ArrivedRequest<'_>,
    ) -> fmt::Result {
        write_shedding(out, settings, request)
    }

    fn gateway_findings(&self, failures: &Failures) -> Vec<GatewayFinding> {
        overload::findings(failures).collect()
    }
}

/// Writes by which priority the request is shed, if it ever is. Workers shed no critical requests,
/// and no preflights that limits exempt.
fn write_shedding(
    out: &mut String,
    settings: &Settings,
    request: &ArrivedRequest<'_>,
) -> fmt::Result {
    let ArrivedRequest {
        route,
        identity,
        is_exempt,
        load,
    } = *request;
    let limited = route.upstream.as_ref();
    let limited = limited.and_then(|upstream| upstream.concurrency.as_ref());
    let priority = settings.shedding.clients.of(Some(identity));
    let priority = route.priority.of_client(priority);
    let overload = settings.shedding.overload;
    let overload = overload.filter(|_| !is_exempt && priority != Priority::Critical);
    let account = identity.account.as_ref().map(|account| account.id);
    let lists = &settings.access.lists;
    match lists.access(identity.client.address, account) {
        Access::Unlisted => {}
        Access::Allowed(_) if limited.is_some() || overload.is_some() => {
            return writeln!(out, "  is never shed, as its client is on the allow list");
        }
        _ => return Ok(()),
    }
    if let Some(overload) = overload {
        let late = HumanDuration(overload.max_delay);
        let when = format!("while its worker is more than {late} late");
        write_when(out, priority, &when, overload.sheds())?;
        if let Some(load) = load {
            write_workers(out, priority, &load.workers)?;
        }
    }
    if let Some(limited) = limited {
        let ConcurrencyBounds { min, max } = limited.bounds;
        let most = match min == max {
            true => format!("{max}"),
            false => "as many as it can handle".to_owned(),
        };
        let when = format!("while {most} requests are in flight to its upstream");
        write_when(out, priority, &when, limited.sheds())?;
        let sample = load.and_then(|load| load.upstreams.get(route.upstream_name()?));
        if let Some(sample) = sample {
            write_upstream(out, limited, sample)?;
        }
    }
    Ok(())
}

fn write_when(out: &mut String, priority: Priority, when: &str, sheds: bool) -> fmt::Result {
    let priority = priority.as_str();
    let dry = if sheds { "" } else { ", in a dry run" };
    writeln!(out, "  is shed with priority {priority} {when}{dry}")
}

fn write_workers(out: &mut String, priority: Priority, workers: &[ShedLevel]) -> fmt::Result {
    let shares = workers.iter().map(|level| level.percent_of(priority));
    let most = shares.clone().max().unwrap_or(0);
    if most == 0 {
        return writeln!(out, "    now no worker sheds that");
    }
    let (shedding, all) = (shares.filter(|share| *share > 0).count(), workers.len());
    writeln!(
        out,
        "    now {shedding} of {all} workers shed that, for up to {most}% of the clients"
    )
}

fn write_upstream(
    out: &mut String,
    limited: &ConcurrencySettings,
    sample: &ConcurrencySample,
) -> fmt::Result {
    let ConcurrencySample {
        limit,
        taken,
        waiting,
        ..
    } = sample;
    let outcome = match limited.max_wait {
        _ if taken < limit => "would not be shed",
        _ if !limited.sheds() => "would be let through all the same",
        Some(Duration::ZERO) => "would be shed",
        _ => "would wait for a slot, or be shed",
    };
    writeln!(
        out,
        "    now {taken} of {limit} are in flight and {waiting} wait, so it {outcome}"
    )
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, Method};
    use weir_config::testing::Folder;
    use weir_limit::OverloadControl;
    use weir_limit::time::{Nanos, Timestamp};

    use super::*;
    use crate::app::explain::{explain_in_force, request_head};

    fn explained(path: &str, more: &str, load: &Load) -> String {
        let gateway = format!(
            "overload: {{max_delay: 20ms}}\n{more}\n\
             priorities: {{high: {{addresses: [198.51.100.0/24]}}}}\n\
             upstreams:\n  app: {{servers: ['http://127.0.0.1:3000'], concurrency: 8}}\n\
             \x20 dry: {{servers: ['http://127.0.0.1:1'], concurrency: {{limit: 8, enforce: false}}}}\n\
             \x20 hasty: {{servers: ['http://127.0.0.1:2'], concurrency: {{limit: 8, max_wait: 0s}}}}\n\
             routes:\n  - {{match: {{}}, upstream: app, limits: []}}\n\
             \x20 - {{match: {{path: /low}}, upstream: app, limits: [], priority: low}}\n\
             \x20 - {{match: {{path: /dry}}, upstream: dry, limits: []}}\n\
             \x20 - {{match: {{path: /hasty}}, upstream: hasty, limits: []}}\n\
             \x20 - {{match: {{path: /critical}}, upstream: app, limits: [], priority: critical}}\n"
        );
        let folder = Folder::with(&[("gateway.yaml", gateway.as_str())]);
        let uri = path.parse().unwrap();
        let peer = "203.0.113.9".parse().unwrap();
        let request = request_head(Method::GET, uri, HeaderMap::new());
        explain_in_force(&folder.settings(), (&request, peer), load)
    }

    fn load(taken: u32, workers: Vec<ShedLevel>) -> Load {
        let sample = ConcurrencySample {
            limit: 8,
            taken,
            ..ConcurrencySample::default()
        };
        let upstreams = ["app", "dry", "hasty"].map(|name| (name.into(), sample.clone()));
        Load {
            upstreams: upstreams.into(),
            workers,
        }
    }

    /// The level of a worker that was 21 ms late for four intervals.
    fn late() -> ShedLevel {
        let at = |millis: u64| Timestamp::from_nanos(Nanos::new(millis * 1_000_000).get());
        let mut control = OverloadControl::new(Nanos::new(20_000_000), at(0));
        for tick in 1..=40 {
            control.observe(Nanos::new(21_000_000), at(tick * 10));
        }
        control.level()
    }

    #[test]
    fn no_request_that_may_be_shed_is_explained_without_its_priority_and_the_load_of_now() {
        let calm = explained("/low", "", &load(3, vec![ShedLevel::NONE; 2]));
        for part in [
            "is shed with priority low while its worker is more than 20ms late\n    now no worker",
            "is shed with priority low while 8 requests are in flight to its upstream",
            "now 3 of 8 are in flight and 0 wait, so it would not be shed",
        ] {
            assert!(calm.contains(part), "{part:?} in {calm}");
        }
        let busy = load(8, vec![ShedLevel::NONE, late()]);
        let low = explained("/low", "", &busy);
        for part in [
            "now 1 of 2 workers shed that, for up to 40% of the clients",
            "now 8 of 8 are in flight and 0 wait, so it would wait for a slot, or be shed",
        ] {
            assert!(low.contains(part), "{part:?} in {low}");
        }
        let normal = explained("/", "", &busy);
        assert!(normal.contains("priority normal"), "{normal}");
        assert!(normal.contains("now no worker sheds that"), "{normal}");
    }

    #[test]
    fn a_request_is_never_said_to_wait_where_none_does() {
        let full = load(8, vec![ShedLevel::NONE]);
        for (path, outcome) in [
            ("/dry", "so it would be let through all the same\n"),
            ("/hasty", "so it would be shed\n"),
        ] {
            let explained = explained(path, "", &full);
            assert!(explained.contains(outcome), "{path}: {explained}");
        }
    }

    #[test]
    fn a_client_on_the_allow_list_and_what_is_critical_are_never_said_to_be_shed_by_a_worker() {
        let busy = load(8, vec![late()]);
        let allowed = "allow: {addresses: [203.0.113.9]}";
        let listed = explained("/low", allowed, &busy);
        assert!(listed.contains("is never shed"), "{listed}");
        assert!(!listed.contains("is shed"), "{listed}");
        let critical = explained("/critical", "", &busy);
        assert!(!critical.contains("worker"), "{critical}");
        assert!(critical.contains("priority critical while 8"), "{critical}");
    }
}
