//! All that bans and the lists of clients register: what is shown and explained of them, their endpoints,
//! findings, remedies and counters.

use std::fmt::{self, Write};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde_json::{Map, Value, json};
use weir_config::Settings;
use weir_console::findings::{GatewayFinding, Remedy};
use weir_middleware::BanPolicy;
use weir_rules::RequestAttributes;
use weir_telemetry::{Failures, Metrics};
use weir_yaml::{HumanDuration, pluralized};

use super::admin::BanStores;
use super::{admin, explain, findings};
use crate::app::admin_api::endpoint::Endpoint;
use crate::app::admin_api::findings::{Finding, LookUp};
use crate::app::features::{DecisionCounters, Room};
use crate::app::wording::{in_words, source_names, write_list};

/// Bans, and the lists of who is allowed and who is blocked.
pub(in crate::app::features) struct BansRoom;

impl Room for BansRoom {
    fn summarize(&self, out: &mut String, settings: &Settings) -> fmt::Result {
        let access = &settings.access;
        for (name, list) in [
            ("allow", &access.lists.allow),
            ("block", &access.lists.block),
        ] {
            if !list.is_empty() {
                writeln!(out, "{name}: {}", list_in_words(list.len()))?;
            }
        }
        write_list(out, "bans", access.bans.iter().map(ban_in_words))
    }

    fn describe(&self, members: &mut Map<String, Value>, settings: &Settings) {
        let bans = settings.access.bans.iter().map(described);
        members.insert("bans".to_owned(), bans.collect());
    }

    fn acts_without_route(&self, settings: &Settings) -> bool {
        !settings.access.lists.is_empty() || !settings.access.bans.is_empty()
    }

    fn explain_listed(
        &self,
        out: &mut String,
        settings: &Settings,
        facts: &RequestAttributes<'_>,
    ) -> fmt::Result {
        explain::write_list(out, settings, facts)
    }

    fn explain(
        &self,
        out: &mut String,
        settings: &Settings,
        facts: &RequestAttributes<'_>,
    ) -> fmt::Result {
        explain::write_bans(out, settings, facts)
    }

    fn endpoints(&self) -> &'static [Endpoint] {
        admin::ENDPOINTS
    }

    fn look_up<'f>(&'f self, by: LookUp<'f>, found: &'f mut [Finding<'_>]) -> BoxFuture<'f, ()> {
        Box::pin(async move {
            let stores = BanStores::of_look_up(by);
            // Without the store, nothing is known of bans; what is denied is known all the same.
            let _ = findings::look_up(by.settings, found, stores).await;
        })
    }

    fn remedy(&self, settings: &Settings, of: &Finding<'_>) -> Option<Remedy> {
        Some(findings::remedy(settings, of))
    }

    fn gateway_findings(&self, failures: &Failures) -> Vec<GatewayFinding> {
        findings::refused(failures.refusals).into_iter().collect()
    }

    fn decisions(&self, settings: &Settings, metrics: &Metrics) -> Option<DecisionCounters> {
        let bans = settings.access.bans.iter();
        let by_name = bans.map(|policy| {
            let name = Arc::clone(policy.ban.name());
            let counters = metrics.bans().ban(&name);
            (name, Box::new(move || counters.sample()) as Box<_>)
        });
        Some(DecisionCounters {
            member: "bans",
            denied_member: "banned",
            by_name: by_name.collect(),
        })
    }
}

fn list_in_words((networks, accounts): (usize, usize)) -> String {
    let networks = pluralized(networks, "network");
    format!("{networks}, {}", pluralized(accounts, "account"))
}

fn ban_in_words(policy: &BanPolicy) -> String {
    let ban = &policy.ban;
    let (name, per) = (ban.name(), in_words(ban.per()));
    if !policy.has_strikes() {
        let command = format!("weir ban add {name} ...");
        return format!("{name}: by hand (`{command}`), per {per}");
    }
    let (schedule, period) = (ban.schedule(), HumanDuration(ban.period()));
    let strikes = usize::try_from(ban.strikes().burst().get());
    let strikes = pluralized(strikes.unwrap_or(usize::MAX), "strike");
    let (first, longest) = (
        HumanDuration(schedule.first()),
        HumanDuration(schedule.longest()),
    );
    let length = match first == longest {
        true => first.to_string(),
        false => format!("{first} to {longest}"),
    };
    let spared = match policy.workers {
        workers @ 1.. if !policy.limits.is_empty() => format!(
            " (no strikes: the first {} of a client that does not wait)",
            pluralized(workers, "denial"),
        ),
        _ => String::new(),
    };
    format!("{name}: {length} for {strikes} in {period}{spared}, per {per}")
}

fn described(policy: &BanPolicy) -> Value {
    let ban = &policy.ban;
    let lengths = ban.schedule().lengths().iter();
    let lengths = lengths.map(|length| HumanDuration(*length).to_string());
    let strikes = policy.has_strikes().then(|| ban.strikes().burst());
    json!({
        "name": &**ban.name(),
        "per": source_names(ban.per()),
        "strikes": strikes,
        "within": strikes.map(|_| HumanDuration(ban.period()).to_string()),
        "lengths": lengths.collect::<Vec<_>>(),
        "enforce": policy.enforcement.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_config::testing::{DEFAULTS, Folder, SMALLEST};

    /// With `count: 10` a ban seemed not to work, as it took 30 denials.
    #[test]
    fn denials_that_are_no_strikes_are_told_of() {
        let described = |workers: &str| {
            let strikes = format!("{{limits: RequestsPerAddress, count: 10, period: 1m{workers}}}");
            let bans =
                format!("bans: {{abusers: {{per: address, for: 10m, strikes: {strikes}}}}}\n");
            let folder = Folder::with(&[
                ("gateway.yaml", &format!("{SMALLEST}{bans}")),
                ("limits/defaults.yaml", DEFAULTS),
            ]);
            ban_in_words(&folder.load().unwrap().access.bans[0])
        };
        assert_eq!(
            described(""),
            "abusers: 10m for 10 strikes in 1m (no strikes: the first 20 denials of a client that does \
             not wait), per address/64"
        );
        assert_eq!(
            described(", workers: 0"),
            "abusers: 10m for 10 strikes in 1m, per address/64"
        );
    }
}
