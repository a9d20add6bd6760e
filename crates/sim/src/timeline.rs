//! A simulation as a timeline for people.

use std::fmt::Write as _;
use std::time::Duration;

use crate::laws::{Failure, LAWS};
use crate::scenario::{Scenario, Topology};
use crate::trace::{Event, Trace, What};

/// What was simulated: the parts of a scenario, one a line.
#[must_use]
pub fn setting(scenario: &Scenario) -> String {
    let mut out = String::new();
    let store = &scenario.store;
    let _ = writeln!(
        out,
        "seed {}: {:?} and {:?} of quiet, store {:?}, on_failure {:?}",
        scenario.seed, scenario.duration, scenario.quiet, store.topology, store.on_failure
    );
    if store.topology != Topology::Memory {
        let _ = writeln!(out, "clocks of servers: {:?}", store.clocks);
    }
    for (index, gateway) in scenario.gateways.iter().enumerate() {
        let _ = writeln!(
            out,
            "gateway {index}: starts at {}, configuration {}, {:?}",
            time(gateway.starts),
            gateway.configuration,
            gateway.clock
        );
    }
    for (index, configuration) in scenario.configurations.iter().enumerate() {
        for limit in &configuration.limits {
            let _ = writeln!(
                out,
                "configuration {index}: {} per {}: {:?} {:?}{}{}",
                limit.name,
                limit.per.yaml(),
                limit.algorithm,
                limit.parameters,
                limit
                    .prefetch
                    .map(|it| format!(" {it:?}"))
                    .unwrap_or_default(),
                limit
                    .overrides
                    .iter()
                    .map(|it| format!(" {it:?}"))
                    .collect::<String>(),
            );
        }
        for ban in &configuration.bans {
            let _ = writeln!(out, "configuration {index}: {ban:?}");
        }
        for (number, route) in configuration
            .routes
            .iter()
            .enumerate()
            .filter(|_| index == 0)
        {
            let _ = writeln!(out, "route r{number}: {:?}", route.on_denied);
            for one in &route.limits {
                let _ = writeln!(out, "  {one:?}");
            }
        }
    }
    for client in &scenario.clients {
        let _ = writeln!(
            out,
            "client {}: {} {} on r{}, {} at once each {:?}, {:?}, from {} to {}, app {:?}",
            client.id,
            client.address,
            client.account.as_deref().unwrap_or("without an account"),
            client.route,
            client.at_once,
            client.interval,
            client.behaviour,
            time(client.from),
            time(client.until),
            client.app_takes,
        );
    }
    out
}

/// The events, one a line, those that explain a failure marked.
#[must_use]
pub fn events(scenario: &Scenario, trace: &Trace, failures: &[Failure]) -> String {
    let mut out = String::new();
    let mut failures: Vec<&Failure> = failures.iter().collect();
    failures.sort_by_key(|failure| failure.at);
    let mut failures = failures.into_iter().peekable();
    for event in &trace.events {
        while let Some(failure) = failures.next_if(|failure| failure.at < event.at) {
            let _ = writeln!(
                out,
                "{}  !! {}: {}",
                time(failure.at),
                failure.law,
                failure.what
            );
        }
        let _ = writeln!(out, "{}  {}", time(event.at), line(scenario, event));
    }
    for failure in failures {
        let _ = writeln!(
            out,
            "{}  !! {}: {}",
            time(failure.at),
            failure.law,
            failure.what
        );
    }
    out
}

/// What is wrong, with the promises that were broken.
#[must_use]
pub fn verdict(failures: &[Failure]) -> String {
    let mut out = String::new();
    if failures.is_empty() {
        return "every law was kept\n".into();
    }
    for failure in failures {
        let _ = writeln!(
            out,
            "BROKEN {} at {}: {}",
            failure.law,
            time(failure.at),
            failure.what
        );
    }
    for law in LAWS
        .iter()
        .filter(|law| failures.iter().any(|failure| failure.law == law.name))
    {
        let _ = writeln!(out, "promised by {}", law.promise);
    }
    out
}

fn line(scenario: &Scenario, event: &Event) -> String {
    match &event.what {
        What::Sent(request) => {
            let (client, number) = request.id;
            let headers: String = request
                .headers
                .iter()
                .map(|(name, value)| format!(" {name}={value}"))
                .collect();
            format!(
                "client {client} -> gateway {}: request {client}/{number} for r{}{}{headers}",
                request.gateway,
                request.route,
                if request.obeys {
                    ", as it was told"
                } else {
                    ""
                }
            )
        }
        What::ReachedApp {
            request: (client, number),
            gateway,
        } => {
            format!("gateway {gateway} -> app: request {client}/{number}")
        }
        What::Answered {
            request: (client, number),
            status,
            headers,
        } => {
            let shown = ["ratelimit", "retry-after", "x-decoy"];
            let headers: String = headers
                .iter()
                .filter(|(name, _)| shown.contains(&name.as_str()))
                .map(|(name, value)| format!(" {name}: {value}"))
                .collect();
            format!("client {client} <- {status} for {client}/{number}{headers}")
        }
        What::Finished {
            request: (client, number),
        } => {
            format!("client {client} <- the end of {client}/{number}")
        }
        What::Left {
            request: (client, number),
        } => format!("client {client} leaves {client}/{number}"),
        What::Broken {
            request: (client, number),
        } => {
            format!("client {client} loses the connection of {client}/{number}")
        }
        What::Operated { operation } => {
            let operation = scenario.operations.get(*operation);
            let gateway = operation.map_or(0, |operation| operation.gateway);
            format!(
                "operator -> gateway {gateway}: {:?}",
                operation.map(|operation| &operation.act)
            )
        }
        What::OperationAnswered {
            operation,
            status,
            body,
        } => {
            format!("operator <- {status} for operation {operation}: {body}")
        }
        What::Started {
            gateway,
            configuration,
        } => {
            format!("gateway {gateway} serves with configuration {configuration}")
        }
        What::Ended { gateway } => format!("gateway {gateway} is gone"),
        What::InForce {
            gateway,
            configuration,
        } => {
            format!("gateway {gateway} decides by configuration {configuration}")
        }
        What::FaultBegan { fault } => {
            format!(
                "FAULT {fault}: {:?}",
                scenario.faults.get(*fault).map(|fault| &fault.kind)
            )
        }
        What::FaultEnded { fault } => format!("fault {fault} is over"),
        What::Promoted {
            server,
            lost_writes,
        } => {
            format!("server {server} is the primary, and lacks {lost_writes} writes")
        }
        What::Log {
            gateway,
            level,
            line,
        } => format!("gateway {gateway} logs {level} {line}"),
        What::Quiet => "quiet".into(),
        What::Holds { gateway, counts } => format!("gateway {gateway} holds {counts:?}"),
    }
}

fn time(at: Duration) -> String {
    format!("{:>4}.{:06}", at.as_secs(), at.subsec_micros())
}
