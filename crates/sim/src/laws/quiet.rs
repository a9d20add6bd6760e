//! When nobody sends anything and nothing is wrong any more, gateways are as they were at first.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::history::{FOREVER, History, Span};
use super::{Failure, Law};
use crate::scenario::{Act, FaultKind, LinkFault, Topology};
use crate::trace::What;

pub(super) const LAW: Law = Law {
    name: "quiet",
    promises: &[RECOVERY, LEASES, CONNECTIONS, LOG, CAUSES],
    check,
};

const RECOVERY: &str = "docs/REDIS.md: the breaker closes with the first probe that succeeds \
    within `timeout`; if Redis fails again within 10 s, the next back-off is longer, up to 5 s";
const LEASES: &str = "docs/ALGORITHMS.md: A drain gives all of them back.";
const CONNECTIONS: &str = "docs/REDIS.md: A gateway has a connection for each worker, one for \
    lists, overrides and the fleet, and one more from the first time that an operator asks for a \
    bucket or a ban.";
const LOG: &str = "docs/LOGS.md: logged once for each outage (of a node), at most once a minute";
const CAUSES: &str = "docs/LOGS.md: each cause is logged once, and at most 32 of an outage";

fn check(history: &History<'_>, failures: &mut Vec<Failure>) {
    failures.extend(unanswered(history));
    failures.extend(held(history));
    failures.extend(noise(history));
}

/// A look at a bucket after the last fault that the store did not answer.
fn unanswered(history: &History<'_>) -> Option<Failure> {
    for operated in &history.operations {
        let (Act::Show { .. } | Act::ShowBan { .. }) = &operated.operation.act else {
            continue;
        };
        let Some(sent) = operated.sent.filter(|sent| *sent >= history.quiet) else {
            continue;
        };
        let mut runs = history
            .runs
            .get(operated.operation.gateway)
            .into_iter()
            .flatten();
        if !runs.any(|run| run.from <= sent && run.until == FOREVER) {
            continue;
        }
        let status = operated.answer.map(|(_, status, _)| status);
        // A limit that only another configuration uses is not found.
        if !matches!(status, Some(200 | 404)) {
            let what = format!(
                "gateway {} answered {} when all was quiet, to: {}",
                operated.operation.gateway,
                status.map_or("nothing".into(), |status| status.to_string()),
                operated.operation.act
            );
            return Some(Failure {
                law: LAW.name,
                promise: RECOVERY,
                at: sent,
                what,
            });
        }
    }
    None
}

/// What a gateway still holds.
fn held(history: &History<'_>) -> Option<Failure> {
    for event in &history.trace.events {
        let What::Holds { gateway, counts } = &event.what else {
            continue;
        };
        // One for requests, one for lists, and one for operators, each with four tasks; two to each
        // Sentinel, with three tasks. One task more keeps the dashboard's points.
        let (connections, tasks) = match history.scenario.store.topology {
            Topology::Memory => (0, 1),
            Topology::Single => (3, 13),
            Topology::Sentinel { sentinels, .. } => {
                let sentinels = sentinels as u64;
                (3 + 2 * sentinels, 13 + 3 * sentinels)
            }
            Topology::Cluster { primaries, .. } => {
                let primaries = primaries as u64;
                (3 * primaries, 12 * primaries + 1)
            }
        };
        // What waits for a reply on a connection whose peer has vanished waits until TCP gives up,
        // which this network never does: the connections of before each such fault, and those that
        // were opened while it lasted.
        let vanished = history.scenario.faults.iter().filter_map(|fault| {
            let FaultKind::Link {
                what: LinkFault::HalfOpen | LinkFault::RepliesLost,
                gateway: whose,
                lasts,
                ..
            } = &fault.kind
            else {
                return None;
            };
            let is_its = whose.is_none_or(|whose| whose == *gateway);
            is_its.then(|| Span::new(fault.at, fault.at + *lasts))
        });
        let vanished: Vec<Span> = vanished.collect();
        let times = 1 + 2 * vanished.len() as u64;
        let most = |name: &str| match name {
            "connections" => times * connections,
            "tasks" => times * tasks + in_vain(history, *gateway, &vanished),
            "memory buckets" => buckets(history),
            _ => 0,
        };
        let broken = |name: &str| match name {
            "connections" | "tasks" => CONNECTIONS,
            "leases" => LEASES,
            _ => RECOVERY,
        };
        if let Some((name, count)) = counts.iter().find(|(name, count)| *count > most(name)) {
            let what = format!("gateway {gateway} still holds {count} {name} when all was quiet");
            return Some(Failure {
                law: LAW.name,
                promise: broken(name),
                at: event.at,
                what,
            });
        }
    }
    None
}

/// How many requests may have asked a store by a connection whose peer had vanished: each has a
/// task that waits for the reply. Once the store is known to be out of reach, none is asked.
fn in_vain(history: &History<'_>, gateway: usize, vanished: &[Span]) -> u64 {
    let asked = history.exchanges.iter().filter(|exchange| {
        let span = exchange.span();
        let has_waited = span.until - span.from >= history.scenario.store.timeout;
        exchange.request.gateway == gateway
            && has_waited
            && vanished.iter().any(|fault| fault.meets(span))
    });
    asked.count() as u64
}

/// How many buckets there are at most: of each limit one a subject, in two windows or four levels,
/// which begin where a clock was set back as well; of each ban also those of strikes, offences, and
/// the answers that are remembered.
fn buckets(history: &History<'_>) -> u64 {
    let clients = history.scenario.clients.len() as u64;
    let configurations = history.scenario.configurations.iter();
    let each = configurations.map(|one| (4 * (one.limits.len() + one.bans.len())) as u64);
    clients * each.max().unwrap_or(0)
}

/// A log that says the same again, where the docs promise that it does not.
fn noise(history: &History<'_>) -> Option<Failure> {
    let mut logs = vec![Logged::default(); history.scenario.gateways.len()];
    for event in &history.trace.events {
        let (gateway, said) = match &event.what {
            What::Log { gateway, line, .. } => {
                (*gateway, logs.get_mut(*gateway)?.repeats(event.at, line))
            }
            What::Ended { gateway } => {
                *logs.get_mut(*gateway)? = Logged::default();
                continue;
            }
            _ => continue,
        };
        if let Some((promise, why)) = said {
            let what = format!("gateway {gateway} logs {why}");
            return Some(Failure {
                law: LAW.name,
                promise,
                at: event.at,
                what,
            });
        }
    }
    None
}

/// What is logged at most once a minute, each by what is given behind it.
const ONCE_A_MINUTE: [&str; 4] = [
    "the store is out of reach",
    "a Sentinel fails",
    OF_EACH_COMMAND,
    OF_EACH_KEY,
];

/// Of each command apart.
const OF_EACH_COMMAND: &str = "the store refuses a command that a limit needs";

/// Of each key apart.
const OF_EACH_KEY: &str = "a key in the store holds something else than a bucket";

const ANOTHER_REASON: &str = "the store remains out of reach, for another reason";

#[derive(Clone, Default)]
struct Logged {
    /// When, by the text and whom it is about.
    last: BTreeMap<(&'static str, String), Duration>,
    /// The causes of an outage, by its node.
    causes: BTreeMap<String, BTreeSet<String>>,
}

impl Logged {
    /// Takes a line, and tells which promise it breaks, and how.
    fn repeats(&mut self, at: Duration, line: &str) -> Option<(&'static str, String)> {
        let node = field(line, "node").unwrap_or_default();
        let outage = [
            "the store is out of reach",
            "the store is within reach",
            "the store went out",
        ];
        if outage.iter().any(|text| line.starts_with(text)) {
            self.causes.remove(&node);
        }
        if line.starts_with(ANOTHER_REASON) {
            let causes = self.causes.entry(node).or_default();
            let is_new = causes.insert(line.to_owned());
            return (!is_new).then(|| (CAUSES, format!("a cause of one outage twice: {line}")));
        }
        let text = ONCE_A_MINUTE.iter().find(|text| line.starts_with(**text))?;
        let whom = match *text {
            OF_EACH_COMMAND | OF_EACH_KEY => node + &field(line, "cause").unwrap_or_default(),
            _ => field(line, "sentinel").unwrap_or(node),
        };
        let last = self.last.insert((*text, whom), at)?;
        let is_early = at - last < MINUTE;
        is_early.then(|| (LOG, format!("twice within {:?}: {line}", at - last)))
    }
}

/// A minute, by a clock that is as fast as any.
const MINUTE: Duration = Duration::from_millis(59_900);

fn field(line: &str, name: &str) -> Option<String> {
    let (_, rest) = line.split_once(&format!(" {name}=\""))?;
    rest.split('"').next().map(str::to_owned)
}
