//! What `limit_req` and `limit_conn` do in a location, as keys of a route.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

use super::denials::Denial;
use super::maps::{Case, Counting};
use super::parse::Directive;
use super::returns::CLOSE;
use super::scopes::Scopes;
use super::zones::{Zone, per};
use crate::configuration::{Configuration, Keys, unused_name};
use crate::difference::Effect;

/// How long Weir holds a request at most.
const MAX_DELAY_MICROS: u64 = 2_000_000;

/// The status of a denial, unless the file says another.
const DEFAULT_STATUS: u16 = 503;

const PER: &str = "`per` in docs/config/limits.md lists what limits can count by";

/// The limits that locations use: one for each zone and number of requests at once.
#[derive(Default)]
pub(super) struct Limits {
    zones: HashMap<String, Zone>,
    /// The names of zones that were not translated.
    without_equal: HashSet<String>,
    used: Vec<Used>,
}

/// A limit that some location uses.
struct Used {
    zone: String,
    counting: Counting,
    /// Empty for a zone that counts all servers together.
    server: String,
    at_once: u64,
    name: String,
}

/// Where a limit is used, and how.
struct Use<'u> {
    zone: &'u str,
    at_once: u64,
    is_dry_run: bool,
    directive: &'u Directive,
    server: &'u str,
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
                    for counting in zone.countings() {
                        note(counting, directive, configuration);
                    }
                    limits.zones.insert(name.to_owned(), zone);
                }
                Err(what) => {
                    let what = format!("has no equal: {what}");
                    directive.report(Effect::LeavesOut, &what, PER, configuration);
                    limits.without_equal.insert(name.to_owned());
                }
            }
        }
        limits
    }

    /// The zones of the limits that hold in a location.
    pub(super) fn zones(&self, scopes: &Scopes<'_>) -> Vec<&Zone> {
        let requests = scopes.all(&["limit_req"]).into_iter();
        let requests = requests.filter_map(|it| it.parameter("zone"));
        let connections = scopes.all(&["limit_conn"]).into_iter();
        let names = requests.chain(connections.map(|it| it.argument(0)));
        names.filter_map(|name| self.zones.get(name)).collect()
    }

    /// Remembers that a location was looked at, though nginx counts none of its requests.
    pub(super) fn mark_reached(&self, scopes: &Scopes<'_>) {
        for directive in scopes
            .all(&["limit_req"])
            .iter()
            .chain(&scopes.all(&["limit_conn"]))
        {
            directive.is_reached.set(true);
        }
    }

    /// The keys of a route for the limits that hold in a location, for requests of a case.
    pub(super) fn keys(
        &mut self,
        scopes: &Scopes<'_>,
        case: &Case<'_>,
        configuration: &mut Configuration,
    ) -> Keys {
        let mut delay = None;
        let mut uses = self.requests(scopes, case, &mut delay, configuration);
        let is_denied_by_requests = !uses.is_empty();
        for directive in scopes.all(&["limit_conn"]) {
            directive.is_reached.set(true);
            let used = self.used(
                Use {
                    zone: directive.argument(0),
                    at_once: number(directive.arguments.get(1)),
                    is_dry_run: scopes.value("limit_conn_dry_run") == "on",
                    directive,
                    server: scopes.server_name(),
                },
                case,
                configuration,
            );
            let (ours, theirs) = (status(scopes, "limit_req"), status(scopes, "limit_conn"));
            if used.is_some() && is_denied_by_requests && ours != theirs {
                let what = format!("denies by {ours}, not {theirs}");
                let remedy = "a route has one `on_denied` for all of its limits";
                directive.report(Effect::Differs, &what, remedy, configuration);
            }
            uses.extend(used);
        }
        let kind = match is_denied_by_requests {
            true => "limit_req",
            false => "limit_conn",
        };
        let denial = match uses.is_empty() {
            true => Denial::plain(429),
            false => denial(scopes, kind, configuration),
        };
        let on_denied = on_denied(denial, delay).filter(|_| !uses.is_empty());
        let on_denied = on_denied.map(|on_denied| ("on_denied".to_owned(), on_denied));
        [("limits".to_owned(), json!(uses))]
            .into_iter()
            .chain(on_denied)
            .collect()
    }

    /// The uses of the limits by `limit_req`, and for how long the last request of a burst waits.
    fn requests(
        &mut self,
        scopes: &Scopes<'_>,
        case: &Case<'_>,
        delay: &mut Option<String>,
        configuration: &mut Configuration,
    ) -> Vec<Value> {
        let requests = scopes.all(&["limit_req"]);
        let mut uses = Vec::new();
        for directive in &requests {
            directive.is_reached.set(true);
            let zone = directive.parameter("zone").unwrap_or_default();
            let burst = number(directive.parameter("burst"));
            let wait = self.wait(zone, directive, burst);
            let held = wait.filter(|wait| requests.len() == 1 && *wait <= MAX_DELAY_MICROS);
            let at_once = match held {
                Some(_) => number(directive.parameter("delay")),
                None => burst,
            };
            let one = Use {
                zone,
                at_once: at_once.saturating_add(1),
                is_dry_run: scopes.value("limit_req_dry_run") == "on",
                directive,
                server: scopes.server_name(),
            };
            // Where nothing is counted, nothing is held.
            let Some(used) = self.used(one, case, configuration) else {
                continue;
            };
            uses.push(used);
            if let Some(held) = held {
                *delay = Some(duration(held));
            } else if wait.is_some() {
                let what = "holds no request: as many pass, but at once";
                let remedy = "a smaller `burst` and `on_denied: {delay: 2s}` hold some";
                directive.report(Effect::Differs, what, remedy, configuration);
            }
        }
        uses
    }

    /// For how many microseconds nginx holds the last request of a burst, if it holds any.
    fn wait(&self, zone: &str, directive: &Directive, burst: u64) -> Option<u64> {
        let (count, seconds) = self.zones.get(zone)?.rate?;
        let waiting = burst.checked_sub(number(directive.parameter("delay")))?;
        let wait = waiting.saturating_mul(seconds * 1_000_000).div_ceil(count);
        (wait > 0 && !directive.has("nodelay")).then_some(wait)
    }

    /// A limit of a route; none if requests of the case are not counted, or nobody can.
    fn used(
        &mut self,
        one: Use<'_>,
        case: &Case<'_>,
        configuration: &mut Configuration,
    ) -> Option<Value> {
        let Some(zone) = self.zones.get(one.zone) else {
            let (what, remedy) = match self.without_equal.contains(one.zone) {
                true => (
                    "limits nothing: its zone was not translated",
                    "define a limit by hand, and list it in `limits` of the route",
                ),
                false => (
                    "limits nothing: no zone of this name is defined in the file or what it \
                     includes",
                    "import nginx.conf, which includes the file that defines the zone",
                ),
            };
            one.directive
                .report(Effect::LeavesOut, what, remedy, configuration);
            return None;
        };
        let counting = zone.counting(case)?.clone();
        // An empty key is not counted.
        if counting.is_by_server && counting.sources.is_empty() && one.server.is_empty() {
            return None;
        }
        let is_partial = counting.clients.is_exempt_by_default;
        let per = per(&counting);
        let name = self.name(counting, &one, configuration);
        Some(match (one.is_dry_run, is_partial) {
            (false, false) => json!(name),
            (true, false) => json!({"limit": name, "enforce": false}),
            (false, true) => json!({"limit": name, "per": per}),
            (true, true) => json!({"limit": name, "per": per, "enforce": false}),
        })
    }

    /// The name of a limit, which is defined at its first use.
    fn name(
        &mut self,
        counting: Counting,
        one: &Use<'_>,
        configuration: &mut Configuration,
    ) -> String {
        let server = if counting.is_by_server {
            one.server
        } else {
            ""
        };
        let is_same_bucket = |used: &&Used| {
            used.zone == one.zone && used.counting == counting && used.server == server
        };
        let same: Vec<_> = self.used.iter().filter(is_same_bucket).collect();
        if let Some(known) = same.iter().find(|used| used.at_once == one.at_once) {
            return known.name.clone();
        }
        let parts = [one.zone, server]
            .into_iter()
            .filter(|part| !part.is_empty());
        let mut name = parts.collect::<Vec<_>>().join("-");
        if !same.is_empty() {
            name = format!("{name}-{}", one.at_once);
            let is_of_requests = one.directive.name == "limit_req";
            let remedy = match is_of_requests {
                true => "nginx counts them together; give them one `burst` for that",
                false => "nginx counts them together; give them one number for that",
            };
            let what = "counts apart from other uses of the zone";
            one.directive
                .report(Effect::Opens, what, remedy, configuration);
        }
        let is_other = |letter: char| !(letter.is_ascii_alphanumeric() || "-_".contains(letter));
        let name = self.define(&name.replace(is_other, "-"), &counting, one, configuration);
        self.used.push(Used {
            zone: one.zone.to_owned(),
            server: server.to_owned(),
            counting,
            at_once: one.at_once,
            name: name.clone(),
        });
        name
    }

    /// Adds a limit and its overrides to the configuration, under a name that is free.
    fn define(
        &self,
        wanted: &str,
        counting: &Counting,
        one: &Use<'_>,
        configuration: &mut Configuration,
    ) -> String {
        let Some(zone) = self.zones.get(one.zone) else {
            return wanted.to_owned();
        };
        // Another zone may have the same name but for what limits cannot be called.
        let taken = configuration.limits.iter().chain(&configuration.overrides);
        let taken: Vec<_> = taken.cloned().collect();
        let name = unused_name(wanted, &taken);
        let limit = zone.limit(counting, one.at_once);
        configuration
            .limits
            .extend(limit.map(|limit| (name.clone(), limit)));
        let overrides = zone.overrides(counting, one.at_once).into_iter();
        configuration
            .overrides
            .extend(overrides.map(|keys| (name.clone(), keys)));
        name
    }
}

/// Says how a zone counts otherwise than nginx.
fn note(counting: &Counting, directive: &Directive, configuration: &mut Configuration) {
    if let Some(what) = counting.note {
        directive.report(Effect::Differs, what, PER, configuration);
    }
    if let Some(network) = counting.clients.widened {
        let what = format!("exempts all of the /64 of {network}");
        let remedy =
            "Weir counts an IPv6 client by its /64; `per: address/128` counts each address";
        directive.report(Effect::Opens, &what, remedy, configuration);
    }
    for network in &counting.clients.translated {
        let what = format!("counts the clients of {network} as the IPv4 addresses that they are");
        let remedy = "nginx tells the two apart, and Weir does not: see that both may get the same";
        directive.report(Effect::Opens, &what, remedy, configuration);
    }
}

/// The status by which a kind of limit denies.
fn status(scopes: &Scopes<'_>, kind: &str) -> u16 {
    let status = scopes.value(&format!("{kind}_status"));
    status.parse().unwrap_or(DEFAULT_STATUS)
}

/// What a client gets when a limit of a kind denies its request. What it gets otherwise than from
/// nginx is listed.
fn denial(scopes: &Scopes<'_>, kind: &str, configuration: &mut Configuration) -> Denial {
    let status = status(scopes, kind);
    let directives = scopes.all(&[&format!("{kind}_status")]);
    if let (CLOSE, Some(directive)) = (status, directives.last()) {
        let what = "closes the connection in nginx, and Weir responds";
        let remedy = "a ban with `on_denied: drop` closes the connections of clients that go on";
        directive.report(Effect::Differs, what, remedy, configuration);
    }
    Denial::of_status(scopes, status, configuration).unwrap_or_else(|page| {
        let what = format!("is not translated: a denied client gets {status} and Weir's page");
        let remedy = "write `on_denied: {reject: {status: ..., headers: ..., body: ...}}`";
        page.report(Effect::Differs, &what, remedy, configuration);
        Denial::plain(status)
    })
}

/// What a denied request gets; none for what Weir does without being told.
fn on_denied(denial: Denial, delay: Option<String>) -> Option<Value> {
    match (delay, denial.reject()) {
        (None, reject) => reject,
        (Some(delay), None) => Some(json!({"delay": delay})),
        (Some(delay), reject) => Some(json!({"delay": {"up_to": delay, "otherwise": reject}})),
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
