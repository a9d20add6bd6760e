//! A simulation as a timeline for people.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use crate::laws::Failure;
use crate::scenario::client::Request;
use crate::scenario::{Algorithm, Cost, LimitUse, Per, Scenario};
use crate::trace::{Event, Trace, What, moment};

/// What was simulated: the parts of a scenario, one a line.
#[must_use]
pub fn setting(scenario: &Scenario) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "seed {}: {}", scenario.seed, scenario.summary());
    let _ = writeln!(
        out,
        "lasts {:?}, and is left alone for {:?} then",
        scenario.duration, scenario.quiet
    );
    let _ = writeln!(out, "store: {}", scenario.store);
    for (index, clock) in scenario.store.clocks.iter().enumerate() {
        let _ = writeln!(out, "server {index}: its clock is {clock}");
    }
    for (index, gateway) in scenario.gateways.iter().enumerate() {
        let _ = writeln!(
            out,
            "gateway {index}: starts at {:?} with configuration {}; its clock is {}",
            gateway.starts, gateway.configuration, gateway.clock
        );
    }
    let mut known = BTreeSet::new();
    for (index, configuration) in scenario.configurations.iter().enumerate() {
        let rules = configuration.rules();
        let new: Vec<&str> = rules
            .lines()
            .filter(|line| !known.contains(*line))
            .collect();
        let but = match (index, new.is_empty()) {
            (0, _) => "",
            (_, true) => " is the same",
            (_, false) => ", where it differs",
        };
        let _ = writeln!(out, "configuration {index}{but}");
        for line in &new {
            let _ = writeln!(out, "  {line}");
        }
        known.extend(rules.lines().map(str::to_owned));
    }
    for configuration in scenario.configurations.iter().take(1) {
        for (index, route) in configuration.routes.iter().enumerate() {
            let _ = writeln!(
                out,
                "a request for r{index} asks in {}",
                configuration.batch(route)
            );
        }
    }
    for client in &scenario.clients {
        let _ = writeln!(out, "{client}");
    }
    out
}

/// The events, one a line, and the moments at which laws can prove that they are broken.
#[must_use]
pub fn events(scenario: &Scenario, trace: &Trace, failures: &[Failure]) -> String {
    let mut out = String::new();
    let mut failures = failures.iter().peekable();
    let mut fail = |out: &mut String, until: Duration| {
        while let Some(Failure { law, at, what, .. }) =
            failures.next_if(|failure| failure.at < until)
        {
            let _ = writeln!(out, "{}  !! {law}: {what}", time(*at));
        }
    };
    for event in &trace.events {
        fail(&mut out, event.at);
        if let Some(line) = line(scenario, event) {
            let _ = writeln!(out, "{}  {line}", time(event.at));
        }
    }
    fail(&mut out, Duration::MAX);
    out
}

/// What is wrong, each with the sentence that is broken.
#[must_use]
pub fn verdict(failures: &[Failure]) -> String {
    let mut out = String::new();
    if failures.is_empty() {
        return "every law was kept\n".into();
    }
    for failure in failures {
        let Failure {
            law,
            promise,
            at,
            what,
        } = failure;
        let _ = writeln!(out, "BROKEN {law} at {}: {what}", moment(*at));
        let _ = writeln!(out, "       promised by {promise}");
    }
    out
}

/// The line of an event, if it has one.
fn line(scenario: &Scenario, event: &Event) -> Option<String> {
    Some(match &event.what {
        What::Sent(request) => sent(scenario, request),
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
            // The end of a response matters to who waits for a place alone.
            if !counts_in_flight(scenario) {
                return None;
            }
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
        What::Operated { operation: number } => {
            let operation = scenario.operations.get(*number)?;
            let (gateway, act) = (operation.gateway, &operation.act);
            format!("operator -> gateway {gateway}: operation {number}: {act}")
        }
        What::OperationAnswered {
            operation,
            status,
            body,
        } => {
            let body = body.trim_end();
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
        What::FaultBegan { fault } => format!("FAULT {fault}: {}", scenario.faults.get(*fault)?),
        What::FaultEnded { fault } => {
            let is_long = scenario.faults.get(*fault)?.at < event.at;
            return is_long.then(|| format!("fault {fault}, and what follows from it, is over"));
        }
        What::Promoted {
            server,
            replaced,
            lost_writes,
        } => {
            format!(
                "server {server} is the primary in place of {replaced}, and lacks {lost_writes} \
                 writes"
            )
        }
        What::SlotZeroMoved { from, to } => {
            format!("slot 0 moved from server {from} to {to}, whose clock is followed from now on")
        }
        What::Log {
            gateway,
            level,
            line,
        } => format!("gateway {gateway} logs {level} {line}"),
        What::Quiet => "quiet".into(),
        What::Holds { gateway, counts } => {
            let counts = counts.iter().map(|(what, count)| format!("{count} {what}"));
            let counts: Vec<String> = counts.collect();
            format!("gateway {gateway} holds {}", counts.join(", "))
        }
    })
}

/// A request, with the header fields that something goes by.
fn sent(scenario: &Scenario, request: &Request) -> String {
    let (name, gateway, client) = (request.name(), request.gateway, request.id.0);
    let uses = || uses(scenario, request.route);
    let said = uses().any(|one| matches!(one.cost, Cost::RequestHeader { .. }));
    let answered = uses().any(|one| matches!(one.cost, Cost::ResponseHeader { .. }));
    let limits = scenario.configurations.iter().flat_map(|one| &one.limits);
    let bans = scenario.configurations.iter().flat_map(|one| &one.bans);
    let mut pers = limits.map(|one| one.per).chain(bans.map(|one| one.per));
    let by_account = pers.any(|per| per == Per::Account);
    let mut text = format!(
        "client {client} -> gateway {gateway}: {name} for r{}",
        request.route
    );
    if request.obeys {
        text += ", as it was told";
    }
    for (name, value) in &request.headers {
        let is_used = match name.as_str() {
            "x-cost" => said,
            "x-api-key" => by_account,
            _ => true,
        };
        if is_used {
            let _ = write!(text, " {name}={value}");
        }
    }
    if let Some(cost) = request.response_cost.filter(|_| answered) {
        let _ = write!(text, ", and the app will say x-cost={cost}");
    }
    text
}

fn uses(scenario: &Scenario, route: usize) -> impl Iterator<Item = &LimitUse> {
    let routes = scenario.configurations.first().map(|one| &one.routes);
    let route = routes.and_then(|routes| routes.get(route));
    route.into_iter().flat_map(|route| &route.limits)
}

fn counts_in_flight(scenario: &Scenario) -> bool {
    let mut limits = scenario.configurations.iter().flat_map(|one| &one.limits);
    limits.any(|limit| limit.algorithm == Algorithm::InFlight)
}

fn time(at: Duration) -> String {
    format!("{:>11}", moment(at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::laws::LAWS;

    #[test]
    fn what_was_simulated_is_said_in_words() {
        for scenario in (0..500).map(Scenario::generate) {
            let mut text = setting(&scenario);
            for fault in &scenario.faults {
                let _ = writeln!(text, "{fault}");
            }
            for operation in &scenario.operations {
                let _ = writeln!(text, "{}", operation.act);
            }
            for debug in ["Some(", "None", "::", "{ "] {
                let is_name = |line: &str| line.starts_with("seed ");
                let mut lines = text.lines().filter(|line| !is_name(line));
                assert_eq!(lines.find(|line| line.contains(debug)), None);
            }
        }
    }

    #[test]
    fn a_breach_is_marked_where_it_is_proved_and_the_sentence_follows_at_the_end() {
        let scenario = Scenario::generate(7);
        let at = Duration::from_millis;
        let event = |millis, gateway| Event {
            at: at(millis),
            what: What::Ended { gateway },
        };
        let trace = Trace {
            events: vec![event(100, 0), event(300, 1)],
        };
        let failures = [Failure {
            law: LAWS[0].name,
            promise: LAWS[0].promises[0],
            at: at(200),
            what: "too much".into(),
        }];
        assert_eq!(
            events(&scenario, &trace, &failures),
            "   0.100000  gateway 0 is gone\n   0.200000  !! bound: too much\n   \
             0.300000  gateway 1 is gone\n"
        );
        assert_eq!(
            verdict(&failures),
            "BROKEN bound at 0.200000: too much\n       promised by docs/ALGORITHMS.md: passes in any \
             period, at most\n"
        );
    }
}
