use std::collections::BTreeSet;
use std::mem::discriminant;
use std::time::Duration;

use crate::laws;
use crate::scenario::{Fault, FaultKind, Keeps, Scenario, Topology};
use crate::trace::{Trace, What};

fn trace(scenario: &Scenario) -> Trace {
    super::run(scenario).unwrap()
}

/// It would replay as something else: hash seeds, the order of tasks, pointers, files and the runs
/// before it in this process must not show.
#[test]
fn a_seed_gives_the_same_trace_each_time() {
    let mut topologies = BTreeSet::new();
    for seed in 0..64 {
        let scenario = Scenario::generate(seed);
        if !topologies.insert(format!("{:?}", discriminant(&scenario.store.topology))) {
            continue;
        }
        let (first, second) = (trace(&scenario), trace(&scenario));
        let both = first.events.iter().zip(&second.events);
        let differs = both.enumerate().find(|(_, (one, other))| one != other);
        assert_eq!(differs, None, "seed {seed}");
        assert_eq!(first.events.len(), second.events.len(), "seed {seed}");
    }
    assert_eq!(topologies.len(), 4);
}

/// The events of a scenario with one fault of a kind, from the first seed that has one.
fn with_fault(is_it: impl Fn(&Scenario, &FaultKind) -> bool) -> Trace {
    let scenarios = (0..5000).map(Scenario::generate);
    let found = scenarios.filter_map(|mut scenario| {
        let faults = std::mem::take(&mut scenario.faults);
        let fault = faults
            .into_iter()
            .find(|fault| is_it(&scenario, &fault.kind))?;
        scenario.faults = vec![fault];
        Some(scenario)
    });
    trace(&found.take(1).next().unwrap())
}

fn position(trace: &Trace, is_it: impl Fn(&What) -> bool) -> Option<usize> {
    trace.events.iter().position(|event| is_it(&event.what))
}

#[test]
fn a_gateway_that_is_killed_ends_and_starts_again() {
    let trace = with_fault(|_, fault| {
        matches!(
            fault,
            FaultKind::KillGateway {
                restarts_after: Some(_),
                ..
            }
        )
    });
    let ended = position(&trace, |what| matches!(what, What::Ended { .. })).unwrap();
    let (before, after) = trace.events.split_at(ended);
    let What::Ended { gateway } = after[0].what else {
        unreachable!()
    };
    for part in [before, after] {
        assert!(part.iter().any(|event| {
            matches!(event.what, What::Started { gateway: started, .. } if started == gateway)
        }));
    }
}

#[test]
fn a_failover_that_is_asked_for_makes_a_replica_the_primary() {
    let is_sentinel =
        |scenario: &Scenario| matches!(scenario.store.topology, Topology::Sentinel { .. });
    let is_cluster =
        |scenario: &Scenario| matches!(scenario.store.topology, Topology::Cluster { .. });
    for of in [is_sentinel, is_cluster] {
        let trace = with_fault(|scenario, fault| {
            of(scenario) && matches!(fault, FaultKind::Failover { .. })
        });
        assert!(position(&trace, |what| matches!(what, What::Promoted { .. })).is_some());
    }
}

#[test]
fn no_request_reaches_the_app_while_its_gateway_is_frozen() {
    let is_long = |fault: &FaultKind| match fault {
        FaultKind::FreezeGateway { lasts, .. } => lasts.as_millis() > 200,
        _ => false,
    };
    let trace = with_fault(|_, fault| is_long(fault));
    let began = position(&trace, |what| matches!(what, What::FaultBegan { .. })).unwrap();
    let ended = position(&trace, |what| matches!(what, What::FaultEnded { .. })).unwrap();
    let during = &trace.events[began..ended];
    let scenario = (0..5000).map(Scenario::generate).find_map(|scenario| {
        scenario
            .faults
            .iter()
            .find(|fault| is_long(&fault.kind))
            .cloned()
    });
    let FaultKind::FreezeGateway {
        gateway: frozen, ..
    } = scenario.unwrap().kind
    else {
        unreachable!()
    };
    let reached = during.iter().filter(
        |event| matches!(event.what, What::ReachedApp { gateway, .. } if gateway == frozen),
    );
    assert_eq!(reached.count(), 0);
}

/// The end of either restarted it, a server that was up as well: its connections were open at one
/// end.
#[test]
fn a_server_that_two_faults_keep_down_is_up_when_both_are_over_and_forgets_nothing() {
    let scenarios = (0..5000).map(Scenario::generate);
    let mut single = scenarios.filter(|one| one.store.topology == Topology::Single);
    let mut scenario = single.next().unwrap();
    let at = |millis, down| Fault {
        at: Duration::from_millis(millis),
        kind: FaultKind::RestartServer {
            server: 0,
            down: Duration::from_millis(down),
            keeps: Keeps::Everything,
        },
    };
    scenario.faults = vec![at(2000, 3000), at(3000, 500)];
    let trace = trace(&scenario);
    assert_eq!(laws::check(&scenario, &trace), []);
    let back = "the store is within reach again";
    let is_back = |what: &What| matches!(what, What::Log { line, .. } if line.starts_with(back));
    let back = trace.events.iter().find(|event| is_back(&event.what));
    assert!(back.unwrap().at > Duration::from_millis(5000));
}
