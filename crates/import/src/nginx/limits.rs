//! What `limit_req` and `limit_conn` do in a location, as keys of a route.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::parse::Directive;
use super::scopes::Scopes;
use super::zones::Zone;
use crate::configuration::{Configuration, Keys, unused_name};

/// How long Weir holds a request at most.
const MAX_DELAY_MICROS: u64 = 2_000_000;

/// The limits that locations use: one for each zone and number of requests at once.
#[derive(Default)]
pub(super) struct Limits {
    zones: HashMap<String, Zone>,
    names: HashMap<(String, u64), String>,
}

impl Limits {
    /// Reads the zones; one that has no equal is reported, and missing.
    pub(super) fn new(http: &[Directive], configuration: &mut Configuration) -> Self {
        let mut limits = Self::default();
        let is_zone =
            |it: &&Directive| ["limit_req_zone", "limit_conn_zone"].contains(&it.name.as_str());
        for directive in http.iter().filter(is_zone) {
            let name = directive.parameter("zone").unwrap_or_default();
            let name = name.split(':').next().unwrap_or_default();
            match Zone::new(http, directive) {
                Ok(zone) => {
                    if let Some(note) = zone.note {
                        let remedy = "`per` in docs/CONFIG.md lists what limits can count by";
                        directive.report(note, remedy, configuration);
                    }
                    limits.zones.insert(name.to_owned(), zone);
                }
                Err(what) => {
                    let what = format!("has no equal: {what}");
                    let remedy = "`per` in docs/CONFIG.md lists what limits can count by";
                    directive.report(&what, remedy, configuration);
                }
            }
        }
        limits
    }

    /// The keys of a route for the limits that hold in a location.
    pub(super) fn keys(&mut self, scopes: &Scopes<'_>, configuration: &mut Configuration) -> Keys {
        let (requests, connections) = (scopes.all(&["limit_req"]), scopes.all(&["limit_conn"]));
        for directive in requests.iter().chain(&connections) {
            directive.is_reached.set(true);
        }
        let (mut uses, mut delay) = (Vec::new(), None);
        for directive in &requests {
            let zone = directive.parameter("zone").unwrap_or_default();
            let burst = number(directive.parameter("burst"));
            let mut at_once = burst.saturating_add(1);
            if let Some(wait) = self.wait(zone, directive, burst) {
                if requests.len() == 1 && wait <= MAX_DELAY_MICROS {
                    at_once = number(directive.parameter("delay")).saturating_add(1);
                    delay = Some(duration(wait));
                } else {
                    let what = "holds no request: as many pass, but at once";
                    let remedy = "a smaller `burst` and `on_denied: {delay: 2s}` hold some";
                    directive.report(what, remedy, configuration);
                }
            }
            let is_dry_run = scopes.value("limit_req_dry_run") == "on";
            uses.extend(self.used(zone, at_once, is_dry_run, directive, configuration));
        }
        for directive in connections {
            let status_of = |name| scopes.value(name).parse().unwrap_or(503);
            let (ours, theirs): (u16, u16) = (
                status_of("limit_req_status"),
                status_of("limit_conn_status"),
            );
            if !requests.is_empty() && ours != theirs {
                let what = format!("denies by {ours}, not {theirs}");
                let remedy = "a route has one `on_denied` for all of its limits";
                directive.report(&what, remedy, configuration);
            }
            let (zone, at_once) = (directive.argument(0), number(directive.arguments.get(1)));
            let is_dry_run = scopes.value("limit_conn_dry_run") == "on";
            uses.extend(self.used(zone, at_once, is_dry_run, directive, configuration));
        }
        let status = match requests.is_empty() {
            true => scopes.value("limit_conn_status"),
            false => scopes.value("limit_req_status"),
        };
        let status: u16 = status.parse().unwrap_or(503);
        let reject = (status != 429).then(|| json!({"reject": {"status": status}}));
        let on_denied = match (delay, reject) {
            (None, reject) => reject,
            (Some(delay), None) => Some(json!({"delay": delay})),
            (Some(delay), reject) => Some(json!({"delay": {"up_to": delay, "otherwise": reject}})),
        };
        let on_denied = on_denied.filter(|_| !uses.is_empty());
        let on_denied = on_denied.map(|on_denied| ("on_denied".to_owned(), on_denied));
        [("limits".to_owned(), json!(uses))]
            .into_iter()
            .chain(on_denied)
            .collect()
    }

    /// For how many microseconds nginx holds the last request of a burst, if it holds any.
    fn wait(&self, zone: &str, directive: &Directive, burst: u64) -> Option<u64> {
        let (count, seconds) = self.zones.get(zone)?.rate?;
        let waiting = burst.checked_sub(number(directive.parameter("delay")))?;
        let wait = waiting.saturating_mul(seconds * 1_000_000).div_ceil(count);
        (wait > 0 && !directive.has("nodelay")).then_some(wait)
    }

    /// A limit of a route, which is defined at its first use.
    fn used(
        &mut self,
        zone: &str,
        at_once: u64,
        is_dry_run: bool,
        directive: &Directive,
        configuration: &mut Configuration,
    ) -> Option<Value> {
        let Some(known) = self.zones.get(zone) else {
            let what = "limits nothing: its zone was not translated";
            let remedy = "define a limit by hand, and list it in `limits` of the route";
            directive.report(what, remedy, configuration);
            return None;
        };
        let is_first = self.names.keys().all(|(other, _)| other != zone);
        let name = self
            .names
            .entry((zone.to_owned(), at_once))
            .or_insert_with(|| {
                let is_other =
                    |letter: char| !(letter.is_ascii_alphanumeric() || "-_".contains(letter));
                let mut name = zone.replace(is_other, "-");
                if !is_first {
                    name = format!("{name}-{at_once}");
                    let what = "counts apart from other uses of the zone";
                    let remedy = "nginx counts them together; give them one `burst` for that";
                    directive.report(what, remedy, configuration);
                }
                // Another zone may have the same name but for what limits cannot be called.
                let name = unused_name(&name, &configuration.limits);
                configuration
                    .limits
                    .push((name.clone(), known.limit(at_once)));
                let exemption = known.exemption().map(|exemption| (name.clone(), exemption));
                configuration.overrides.extend(exemption);
                name
            });
        Some(match is_dry_run {
            true => json!({"limit": name, "enforce": false}),
            false => json!(name),
        })
    }
}

fn number(text: Option<impl AsRef<str>>) -> u64 {
    text.and_then(|text| text.as_ref().parse().ok())
        .unwrap_or(0)
}

/// A duration as Weir's files have it.
fn duration(micros: u64) -> String {
    match micros % 1000 {
        0 => format!("{}ms", micros / 1000),
        _ => format!("{micros}us"),
    }
}
