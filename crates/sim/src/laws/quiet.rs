//! When nobody sends anything and nothing is wrong any more, gateways are as they were at first.

use super::history::{FOREVER, History};
use super::{Failure, Law};
use crate::scenario::{Act, FaultKind, LinkFault, Topology};
use crate::trace::What;

pub(super) const LAW: Law = Law {
    name: "quiet",
    promise: "docs/OPERATIONS.md: \"Redis is back: the breaker closes with the first probe that \
        succeeds within `timeout`; if Redis fails again within 10 s, the next back-off is longer, up to \
        5 s\", \"It renews them\", \"a drain gives all of them back\", \"A gateway \
        has as many [connections] as `workers`, one for the lists of overrides and bans, and one more from \
        the first time that an operator asks\"; a store that is out of reach is \
        logged once, and once when it is back",
    check,
};

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
        let runs = history.runs.get(operated.operation.gateway)?;
        if !runs
            .iter()
            .any(|run| run.from <= sent && run.until == FOREVER)
        {
            continue;
        }
        let status = operated.answer.map(|(_, status, _)| status);
        // A limit that only another configuration uses is not found.
        if !matches!(status, Some(200 | 404)) {
            let what = format!(
                "gateway {} answered {:?} to {:?} when all was quiet",
                operated.operation.gateway, operated.answer, operated.operation.act
            );
            return Some(Failure {
                law: LAW.name,
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
        // One for requests, one for lists, and one for operators; two to each Sentinel.
        let connections = match history.scenario.store.topology {
            Topology::Memory => 0,
            Topology::Single => 3,
            Topology::Sentinel { sentinels, .. } => 3 + 2 * sentinels as u64,
            Topology::Cluster { primaries, .. } => 3 * primaries as u64,
        };
        // What waits for a reply on a connection whose peer has vanished waits until TCP gives up,
        // which this network never does.
        let vanished = history.scenario.faults.iter().any(|fault| {
            matches!(
                &fault.kind,
                FaultKind::Link {
                    what: LinkFault::HalfOpen,
                    ..
                }
            )
        });
        let connections = if vanished { u64::MAX } else { connections };
        let most = |name: &str| {
            if name == "connections" {
                connections
            } else {
                0
            }
        };
        if let Some((name, count)) = counts.iter().find(|(name, count)| *count > most(name)) {
            let what = format!("gateway {gateway} still holds {count} {name} when all was quiet");
            return Some(Failure {
                law: LAW.name,
                at: event.at,
                what,
            });
        }
    }
    None
}

/// A log that says the same again and again: more lines than there were events to log.
fn noise(history: &History<'_>) -> Option<Failure> {
    let scenario = history.scenario;
    let causes = 4 + scenario.faults.len() * 4 + scenario.operations.len();
    let mut said: std::collections::BTreeMap<(usize, &str), usize> = Default::default();
    for event in &history.trace.events {
        let What::Log {
            gateway,
            level,
            line,
        } = &event.what
        else {
            continue;
        };
        if level != "WARN" && level != "ERROR" {
            continue;
        }
        // The text before its fields is the same for all lines of a kind.
        let kind = line
            .split_once(" cause=")
            .map_or(line.as_str(), |(text, _)| text);
        let count = said.entry((*gateway, kind)).or_default();
        *count += 1;
        if *count > causes {
            let what = format!("gateway {gateway} logged {count} times: {line}");
            return Some(Failure {
                law: LAW.name,
                at: event.at,
                what,
            });
        }
    }
    None
}
