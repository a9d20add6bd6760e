//! For each law a trace that keeps it, and one that breaks it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::{Failure, LAWS, check};
use crate::scenario::client::Request;
use crate::scenario::{
    Act, Algorithm, Ban, Behaviour, Client, Clock, Configuration, Cost, Fault, FaultKind, Gateway,
    Keeps, Limit, LimitKind, LimitUse, LinkFault, OnDenied, OnFailure, Operation, Parameters, Per,
    Route, Scenario, Store, Strikes, Topology,
};
use crate::trace::{Event, Trace, What};

/// A scenario with one limit, one route and a client, and the trace that a test writes.
struct Story {
    scenario: Scenario,
    trace: Trace,
    sent: u32,
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

impl Story {
    fn new(algorithm: Algorithm, burst: u64, count: u64, period: Duration) -> Self {
        let limit = Limit {
            name: "L0".into(),
            per: Per::Address,
            algorithm,
            parameters: Parameters {
                burst,
                count,
                period,
            },
            prefetch: None,
            overrides: Vec::new(),
        };
        let one = LimitUse {
            limit: "L0".into(),
            kind: LimitKind::CheckAndSpend,
            cost: Cost::Fixed(1),
            spend_on_errors: false,
            refund_on_5xx: false,
            enforce: true,
        };
        let route = Route {
            limits: vec![one],
            on_denied: OnDenied::Reject,
        };
        let gateway = Gateway {
            clock: Clock::default(),
            starts: Duration::ZERO,
            configuration: 0,
        };
        let client = Client {
            id: 0,
            address: "10.1.0.1".parse().unwrap(),
            account: None,
            route: 0,
            gateway: None,
            from: Duration::ZERO,
            until: ms(60_000),
            interval: ms(100),
            at_once: 1,
            behaviour: Behaviour::Obeys,
            app_takes: (Duration::ZERO, Duration::ZERO),
            app_fails: 0,
            cost: 1,
        };
        let scenario = Scenario {
            seed: 0,
            epoch: 1_800_000_000_000_000_000,
            duration: ms(60_000),
            quiet: ms(10_000),
            store: Store {
                topology: Topology::Single,
                on_failure: OnFailure::Deny,
                timeout: ms(20),
                lease: ms(3000),
                local_clock: false,
                latency: (Duration::from_micros(50), Duration::from_micros(200)),
                clocks: vec![Clock::default()],
            },
            configurations: vec![Configuration {
                limits: vec![limit],
                routes: vec![route],
                bans: Vec::new(),
            }],
            gateways: vec![gateway.clone(), gateway],
            clients: vec![client],
            operations: Vec::new(),
            faults: Vec::new(),
        };
        let mut story = Self {
            scenario,
            trace: Trace::default(),
            sent: 0,
        };
        for gateway in 0..2 {
            story.event(
                ms(0),
                What::Started {
                    gateway,
                    configuration: 0,
                },
            );
        }
        story
    }

    fn event(&mut self, at: Duration, what: What) {
        self.trace.events.push(Event { at, what });
        self.trace.events.sort_by_key(|event| event.at);
    }

    fn sent(&mut self, at: Duration, gateway: usize) -> (u64, u32) {
        let id = (0, self.sent);
        self.sent += 1;
        let request = Request {
            id,
            gateway,
            route: 0,
            headers: Vec::new(),
            app_takes: Duration::ZERO,
            body_lasts: Duration::ZERO,
            status: 200,
            response_cost: None,
            leaves_after: None,
            obeys: false,
        };
        self.event(at, What::Sent(request));
        id
    }

    /// A request that is let through, with the fields that its response has.
    fn passes(&mut self, at: u64, gateway: usize, fields: &str) {
        self.lasts(at, at + 2, gateway, fields);
    }

    fn lasts(&mut self, at: u64, until: u64, gateway: usize, fields: &str) {
        let request = self.sent(ms(at), gateway);
        self.event(ms(at + 1), What::ReachedApp { request, gateway });
        self.response(until, request, 200, &[("ratelimit", fields)]);
    }

    fn response(&mut self, at: u64, request: (u64, u32), status: u16, fields: &[(&str, &str)]) {
        // What passes is told of the limit, if only by its name.
        let named = [("ratelimit-policy", "\"L0\""), ("ratelimit", "\"L0\"")];
        let fields = fields.iter().filter(|(_, value)| !value.is_empty());
        let lacks = |(name, _): &&(&str, &str)| fields.clone().all(|(other, _)| other != name);
        let named = named.iter().filter(lacks);
        let headers = fields
            .clone()
            .chain(named)
            .map(|(name, value)| ((*name).into(), (*value).into()))
            .collect();
        self.event(
            ms(at),
            What::Answered {
                request,
                status,
                headers,
            },
        );
        self.event(ms(at), What::Finished { request });
    }

    fn is_denied(&mut self, at: u64, gateway: usize, retry_after: &str) {
        let request = self.sent(ms(at), gateway);
        self.response(at + 2, request, 429, &[("retry-after", retry_after)]);
    }

    fn fault(&mut self, at: u64, kind: FaultKind) {
        self.scenario.faults.push(Fault { at: ms(at), kind });
    }

    fn operation(&mut self, at: u64, gateway: usize, act: Act, status: u16, body: &str) {
        let operation = self.scenario.operations.len();
        self.scenario.operations.push(Operation {
            at: ms(at),
            gateway,
            act,
        });
        self.event(ms(at), What::Operated { operation });
        let body = body.into();
        self.event(
            ms(at + 2),
            What::OperationAnswered {
                operation,
                status,
                body,
            },
        );
    }

    fn failures(&self) -> Vec<Failure> {
        check(&self.scenario, &self.trace)
    }

    #[track_caller]
    fn is_kept(&self) {
        assert_eq!(self.failures(), []);
    }

    #[track_caller]
    fn breaks(&self, law: &str) {
        let failures = self.failures();
        assert!(
            failures.iter().any(|failure| failure.law == law),
            "{law} is kept: {failures:?}"
        );
    }
}

fn gcra(burst: u64, count: u64, seconds: u64) -> Story {
    Story::new(Algorithm::Gcra, burst, count, Duration::from_secs(seconds))
}

#[test]
fn a_burst_and_what_comes_back_may_pass_through_two_gateways_and_no_more() {
    let mut story = gcra(3, 1, 1);
    for at in [0, 5, 10, 1000, 2000] {
        story.passes(at, usize::from(at == 5), "");
    }
    story.is_kept();
    story.passes(2030, 1, "");
    story.breaks("bound");
}

#[test]
fn a_flushed_store_hands_out_one_burst_more_and_not_two() {
    let mut story = gcra(3, 1, 600);
    story.fault(500, FaultKind::Flush { server: 0 });
    for at in [0, 5, 10, 1000, 1010, 1020] {
        story.passes(at, 0, "");
    }
    story.is_kept();
    story.passes(1030, 0, "");
    story.breaks("bound");
}

#[test]
fn a_flushed_store_hands_out_the_bursts_of_both_definitions_that_are_in_force() {
    let mut story = gcra(6, 1, 600);
    let mut lower = story.scenario.configurations[0].clone();
    lower.limits[0].parameters.burst = 2;
    story.scenario.configurations.push(lower);
    let (gateway, configuration) = (1, 1);
    let in_force = What::InForce {
        gateway,
        configuration,
    };
    story.event(ms(100), in_force);
    story.fault(500, FaultKind::Flush { server: 0 });
    for begin in [200, 1000] {
        (0..6).for_each(|unit| story.passes(begin + unit * 5, 0, ""));
        (0..2).for_each(|unit| story.passes(begin + 50 + unit * 5, 1, ""));
    }
    story.is_kept();
    story.passes(1100, 1, "");
    story.breaks("bound");
}

#[test]
fn a_log_may_keep_older_units_for_those_that_came_back_and_no_more() {
    for given_back in [1, 0] {
        let log = Algorithm::SlidingLog {
            count_denied: false,
        };
        let mut story = Story::new(log, 3, 3, Duration::from_secs(10));
        let lasts = ms(100);
        story.fault(1000, FaultKind::FreezeServer { server: 0, lasts });
        if given_back == 1 {
            let request = story.sent(ms(1010), 0);
            story.response(1030, request, 503, &[("retry-after", "1")]);
        }
        for at in [1090, 2000, 2010, 11_050] {
            story.passes(at, 0, "");
        }
        match given_back {
            1 => story.is_kept(),
            _ => story.breaks("bound"),
        }
        story.passes(11_060, 0, "");
        story.breaks("bound");
    }
}

#[test]
fn a_failover_hands_out_no_more_than_a_burst() {
    let mut story = gcra(3, 1, 600);
    story.scenario.store.topology = Topology::Sentinel {
        replicas: 1,
        sentinels: 3,
        lag: ms(5),
    };
    story.scenario.store.clocks.push(Clock::default());
    let keeps = Keeps::Everything;
    story.fault(
        500,
        FaultKind::RestartServer {
            server: 0,
            down: ms(3000),
            keeps,
        },
    );
    story.event(
        ms(2000),
        What::Promoted {
            server: 1,
            replaced: 0,
            lost_writes: 3,
        },
    );
    for at in [0, 5, 10, 2500, 2510, 2520] {
        story.passes(at, 0, "");
    }
    story.is_kept();
    story.passes(2530, 0, "");
    story.breaks("bound");
}

#[test]
fn a_lowered_limit_holds_and_two_definitions_admit_both_bursts_at_most() {
    let mut story = gcra(6, 1, 600);
    let mut lower = story.scenario.configurations[0].clone();
    lower.limits[0].parameters.burst = 2;
    story.scenario.configurations.push(lower);
    story.event(
        ms(100),
        What::InForce {
            gateway: 1,
            configuration: 1,
        },
    );
    for at in [110, 120, 130, 140, 150, 160] {
        story.passes(at, 0, "");
    }
    story.passes(170, 1, "");
    story.passes(180, 1, "");
    story.is_kept();
    story.passes(190, 1, "");
    story.breaks("bound");
}

#[test]
fn a_window_that_another_period_has_begun_lasts_and_no_other_does() {
    let mut story = Story::new(Algorithm::FixedWindow, 5, 5, Duration::from_secs(5));
    let mut shorter = story.scenario.configurations[0].clone();
    shorter.limits[0].parameters = Parameters {
        burst: 4,
        count: 4,
        period: Duration::from_secs(4),
    };
    story.scenario.configurations.push(shorter);
    for gateway in 0..2 {
        let configuration = 1;
        story.event(
            ms(4200),
            What::InForce {
                gateway,
                configuration,
            },
        );
    }
    // Until 5 s, from there until 8 s, and from there on.
    for begin in [4500, 5100, 8050] {
        for at in 0..4 {
            story.passes(begin + 10 * at, 0, "");
        }
    }
    story.is_kept();
    story.passes(8100, 1, "");
    story.breaks("bound");
}

/// The gateway with the shorter period forgets what the other one counts.
#[test]
fn the_greater_count_may_pass_once_in_the_shorter_of_two_periods_and_no_more() {
    let log = Algorithm::SlidingLog {
        count_denied: false,
    };
    let mut story = Story::new(log, 2, 2, Duration::from_secs(2));
    let mut longer = story.scenario.configurations[0].clone();
    longer.limits[0].parameters = Parameters {
        burst: 4,
        count: 4,
        period: Duration::from_secs(10),
    };
    story.scenario.configurations.push(longer);
    let what = What::InForce {
        gateway: 1,
        configuration: 1,
    };
    story.event(ms(0), what);
    for at in [100, 110, 120, 130, 2200, 2210, 2220, 2230] {
        story.passes(at, 1, "");
    }
    story.is_kept();
    story.passes(2240, 1, "");
    story.breaks("bound");
}

#[test]
fn all_of_a_window_may_pass_around_its_end_and_not_within_it() {
    let mut story = Story::new(Algorithm::FixedWindow, 3, 3, Duration::from_secs(10));
    for at in [9700, 9750, 9800, 10_100, 10_150, 10_200] {
        story.passes(at, 0, "");
    }
    story.is_kept();
    story.passes(10_300, 0, "");
    story.breaks("bound");
}

#[test]
fn a_log_lets_its_count_pass_in_any_period() {
    for algorithm in [
        Algorithm::SlidingLog {
            count_denied: false,
        },
        Algorithm::SlidingWindow { count_denied: true },
    ] {
        let mut story = Story::new(algorithm, 2, 2, Duration::from_secs(10));
        for at in [0, 9000, 10_400, 19_400] {
            story.passes(at, 0, "");
        }
        story.is_kept();
        story.passes(19_900, 0, "");
        story.breaks("bound");
    }
}

#[test]
fn a_gateway_without_redis_admits_what_its_own_memory_has() {
    let mut story = gcra(3, 1, 600);
    story.scenario.store.on_failure = OnFailure::Local;
    let what = LinkFault::Refused;
    let (gateway, server) = (Some(0), None);
    story.fault(
        1000,
        FaultKind::Link {
            gateway,
            server,
            lasts: ms(5000),
            what,
        },
    );
    for at in [0, 5, 10, 2000, 2010, 2020] {
        story.passes(at, 0, "\"L0\";r=0");
    }
    story.is_kept();
    story.passes(2030, 0, "\"L0\";r=0");
    story.breaks("bound");
}

#[test]
fn what_another_limit_shows_is_not_decided_by_a_gateways_own_memory() {
    for shown in ["L0", "L1"] {
        let mut story = gcra(3, 1, 600);
        story.scenario.store.on_failure = OnFailure::Allow;
        let (server, lasts) = (0, ms(5000));
        story.fault(1000, FaultKind::OutOfMemory { server, lasts });
        for at in 0..7 {
            story.passes(2000 + 10 * at, 0, &format!("\"{shown}\";r=0"));
        }
        match shown {
            "L0" => story.breaks("bound"),
            _ => story.is_kept(),
        }
    }
}

#[test]
fn an_override_lasts_longer_by_as_much_as_the_stores_clock_was_set_back() {
    for back in [20, 0] {
        let mut story = Story::new(Algorithm::InFlight, 1, 1, Duration::from_secs(1));
        let act = Act::SetOverride {
            limit: "L0".into(),
            subject: "10.1.0.1".into(),
            parameters: Parameters {
                burst: 2,
                count: 2,
                period: Duration::from_secs(1),
            },
            length: Some(ms(1000)),
        };
        story.operation(1000, 0, act, 200, "");
        if back > 0 {
            let (server, by) = (None, -back * 1_000_000_000);
            story.fault(1500, FaultKind::StepServerClock { server, by });
        }
        story.lasts(15_000, 15_500, 0, "");
        story.lasts(15_010, 15_500, 1, "");
        let of_law = |failure: &Failure| failure.law == "in flight";
        assert_eq!(!story.failures().iter().any(of_law), back > 0);
        story.lasts(40_000, 40_500, 0, "");
        story.lasts(40_010, 40_500, 1, "");
        story.breaks("in flight");
    }
}

#[test]
fn no_more_are_in_flight_than_there_are_places() {
    let mut story = Story::new(Algorithm::InFlight, 2, 2, Duration::from_secs(1));
    story.lasts(0, 1000, 0, "");
    story.lasts(10, 500, 1, "");
    story.lasts(510, 900, 1, "");
    story.is_kept();
    story.lasts(600, 700, 0, "");
    story.breaks("in flight");
}

#[test]
fn nobody_is_denied_a_place_while_one_is_free() {
    let mut story = Story::new(Algorithm::InFlight, 2, 2, Duration::from_secs(1));
    story.lasts(0, 1000, 0, "");
    story.lasts(10, 500, 1, "");
    story.is_denied(520, 0, "1");
    story.is_kept();
    story.is_denied(700, 0, "1");
    story.breaks("in flight");
}

#[test]
fn a_limit_that_a_reload_drops_counts_and_shows_nothing_until_it_is_back() {
    let dropped = || {
        let mut story = gcra(2, 1, 10);
        let mut without = story.scenario.configurations[0].clone();
        without.limits.clear();
        without.routes[0].limits.clear();
        story.scenario.configurations.push(without);
        for (at, configuration) in [(1000, 1), (5000, 0)] {
            let gateway = 0;
            let what = What::InForce {
                gateway,
                configuration,
            };
            story.event(ms(at), what);
        }
        for at in [0, 100, 2000, 2100, 2200] {
            story.passes(at, 0, "");
        }
        story
    };
    let mut story = dropped();
    story.is_kept();
    story.passes(5200, 0, "");
    story.breaks("bound");
    let mut story = dropped();
    story.is_told(3000, 0, "\"L0\";q=2;w=20");
    story.breaks("policy");
    let mut story = dropped();
    show(&mut story, 6000, 0);
    story.is_kept();
    show(&mut story, 6100, 2);
    story.breaks("reference");
}

#[test]
fn a_denial_that_counts_is_charged() {
    for (remaining, is_kept) in [(1, true), (2, false)] {
        let log = Algorithm::SlidingLog { count_denied: true };
        let mut story = Story::new(log, 2, 2, Duration::from_secs(10));
        story.passes(0, 0, "");
        story.passes(60, 0, "");
        story.is_denied(300, 0, "10");
        show(&mut story, 10_200, remaining);
        if is_kept {
            story.is_kept();
        } else {
            story.breaks("reference");
        }
    }
}

#[test]
fn who_waits_has_its_unit_and_no_more() {
    for (remaining, is_kept) in [(1, true), (0, false)] {
        let mut story = delay();
        waits(&mut story, 0, 1);
        waits(&mut story, 10, 501);
        show(&mut story, 1100, remaining);
        if is_kept {
            story.is_kept();
        } else {
            story.breaks("reference");
        }
    }
}

fn delay() -> Story {
    let mut story = gcra(1, 2, 1);
    story.scenario.configurations[0].routes[0].on_denied = OnDenied::Delay {
        up_to: ms(2000),
        max_requests: 10,
    };
    story
}

fn waits(story: &mut Story, from: u64, until: u64) {
    let request = story.sent(ms(from), 0);
    story.event(
        ms(until),
        What::ReachedApp {
            request,
            gateway: 0,
        },
    );
    story.response(until + 1, request, 200, &[]);
}

#[test]
fn requests_that_wait_keep_their_order() {
    let mut story = delay();
    waits(&mut story, 0, 1);
    waits(&mut story, 10, 501);
    waits(&mut story, 30, 1001);
    story.is_kept();
    let mut story = delay();
    waits(&mut story, 0, 1);
    waits(&mut story, 10, 1001);
    waits(&mut story, 30, 501);
    story.breaks("delay");
}

#[test]
fn no_response_shows_more_left_than_a_full_bucket_holds() {
    let mut story = delay();
    let shows = |story: &mut Story, at: u64, r: u64| {
        let request = story.sent(ms(at), 0);
        let reached = What::ReachedApp {
            request,
            gateway: 0,
        };
        story.event(ms(at + 1), reached);
        let left = format!("\"L0\";r={r};t=1");
        let fields = [
            ("ratelimit", &*left),
            ("ratelimit-policy", "\"L0\";q=1;w=1"),
        ];
        story.response(at + 2, request, 200, &fields);
    };
    shows(&mut story, 0, 0);
    story.is_kept();
    shows(&mut story, 2000, 2);
    story.breaks("delay");
}

/// Units of all limits are taken when a request arrives, whichever it waits for.
#[test]
fn a_request_that_waits_for_one_limit_has_its_units_of_another() {
    for waits_for_another in [true, false] {
        let mut story = gcra(2, 1, 1);
        let configuration = &mut story.scenario.configurations[0];
        configuration.routes[0].on_denied = OnDenied::Delay {
            up_to: ms(900),
            max_requests: 10,
        };
        if waits_for_another {
            let mut other = configuration.limits[0].clone();
            other.name = "L1".into();
            configuration.limits.push(other);
            let mut one = configuration.routes[0].limits[0].clone();
            one.limit = "L1".into();
            configuration.routes[0].limits.push(one);
        }
        waits(&mut story, 0, 800);
        for at in [810, 1010, 2010] {
            waits(&mut story, at, at + 1);
        }
        let of_bound = |failure: &Failure| failure.law == "bound";
        assert_eq!(!story.failures().iter().any(of_bound), waits_for_another);
    }
}

#[test]
fn a_turn_that_comes_back_late_is_given_to_a_newcomer_and_no_other_is() {
    for given_back in [true, false] {
        let mut story = delay();
        let lasts = ms(100);
        story.fault(500, FaultKind::FreezeServer { server: 0, lasts });
        if given_back {
            let request = story.sent(ms(550), 0);
            story.response(570, request, 503, &[("retry-after", "1")]);
        }
        for (from, until) in [(500, 1001), (510, 1501), (610, 2001), (620, 2003)] {
            waits(&mut story, from, until);
        }
        let broken = |story: &Story| {
            let mut failures = story.failures().into_iter();
            failures.any(|failure| failure.law == "bound")
        };
        assert_eq!(broken(&story), !given_back);
        waits(&mut story, 630, 2005);
        assert!(broken(&story));
    }
}

#[test]
fn those_that_wait_pass_beside_a_bucket_that_lost_its_data() {
    let mut story = delay();
    let full = |story: &mut Story| {
        for turn in 0..4 {
            waits(story, 1000 + turn, 1003 + turn * 500);
        }
        // By a bucket that is new.
        for turn in 0..3 {
            waits(story, 1400 + turn * 3, 1403 + turn * 500);
        }
    };
    story.fault(1350, FaultKind::Flush { server: 0 });
    full(&mut story);
    let broken = |story: &Story| {
        let failures = check(&story.scenario, &story.trace);
        failures.iter().any(|failure| failure.law == "bound")
    };
    assert!(!broken(&story));
    let mut story = delay();
    full(&mut story);
    assert!(broken(&story));
}

#[test]
fn no_request_waits_for_longer_than_it_may() {
    let mut story = delay();
    waits(&mut story, 0, 2001);
    story.is_kept();
    waits(&mut story, 10, 2600);
    story.breaks("delay");
}

#[test]
fn fields_say_what_is_left_and_when_there_is_more() {
    let told = |last: &str| {
        let mut story = gcra(5, 1, 10);
        story.passes(0, 0, "\"L0\";r=4;t=10");
        story.passes(5000, 0, "\"L0\";r=3;t=5");
        story.passes(7000, 0, &format!("\"L0\";{last}"));
        story
    };
    told("r=2;t=3").is_kept();
    // When all is back, and too early.
    for wrong in ["r=3;t=3", "r=2;t=23", "r=2;t=1"] {
        told(wrong).breaks("reference");
    }
}

#[test]
fn fields_say_when_a_window_ends_and_when_a_log_is_empty() {
    let log = Algorithm::SlidingLog {
        count_denied: false,
    };
    let sliding = Algorithm::SlidingWindow {
        count_denied: false,
    };
    let told = |algorithm, after: [u64; 2]| {
        let mut story = Story::new(algorithm, 5, 5, Duration::from_secs(10));
        for (at, r, t) in [(1500, 4, after[0]), (6500, 3, after[1])] {
            story.passes(at, 0, &format!("\"L0\";r={r};t={t}"));
        }
        story
    };
    told(Algorithm::FixedWindow, [9, 4]).is_kept();
    told(Algorithm::FixedWindow, [9, 9]).breaks("reference");
    told(Algorithm::FixedWindow, [8, 4]).breaks("reference");
    for algorithm in [log, sliding] {
        told(algorithm, [10, 10]).is_kept();
        told(algorithm, [10, 5]).breaks("reference");
        told(algorithm, [12, 10]).breaks("reference");
    }
}

fn show(story: &mut Story, at: u64, remaining: u64) {
    let act = Act::Show {
        limit: "L0".into(),
        subject: "10.1.0.1".into(),
    };
    story.operation(at, 0, act, 200, &format!("{{\"remaining\": {remaining}}}"));
}

#[test]
fn a_request_that_was_refused_while_redis_stood_still_is_not_charged_in_the_end() {
    for (remaining, kept) in [(4, true), (3, false), (5, false)] {
        let mut story = gcra(5, 1, 600);
        story.passes(0, 0, "");
        story.fault(
            1000,
            FaultKind::FreezeServer {
                server: 0,
                lasts: ms(100),
            },
        );
        let request = story.sent(ms(1010), 0);
        story.response(1030, request, 503, &[("retry-after", "1")]);
        show(&mut story, 20_000, remaining);
        if kept {
            story.is_kept();
        } else {
            story.breaks("reference");
        }
    }
}

/// The ban was asked about in the same call, which took a unit for a moment.
#[test]
fn a_denial_beside_a_request_that_a_ban_keeps_out_is_none_while_there_is_room() {
    for (kept_out, keeps) in [(true, true), (false, false)] {
        let mut story = gcra(1, 1, 60);
        if kept_out {
            let request = story.sent(ms(1000), 0);
            story.response(1002, request, 410, &[("retry-after", "1")]);
        }
        story.is_denied(1001, 0, "60");
        let of_reference = |failure: &Failure| failure.law == "reference";
        assert_eq!(!story.failures().iter().any(of_reference), keeps);
    }
}

#[test]
fn a_denied_client_waits_for_those_who_were_told_before_and_for_nobody_else() {
    for (retry_after, keeps) in [("3", true), ("9", false)] {
        let mut story = gcra(2, 1, 1);
        for at in [0, 10] {
            story.passes(at, 0, "");
        }
        story.is_denied(20, 0, "1");
        story.is_denied(30, 0, retry_after);
        match keeps {
            true => story.is_kept(),
            false => story.breaks("reference"),
        }
    }
}

/// Units of a tenth of a second are lost, where clients that wait for whole seconds come one after
/// the other and the bucket keeps fewer than come back in one.
#[test]
fn no_client_waits_for_others_where_the_bucket_keeps_less_than_a_second() {
    for (burst, keeps) in [(5, false), (12, true)] {
        let mut story = gcra(burst, 10, 1);
        for at in 0..burst {
            story.passes(at, 0, "");
        }
        for at in 30..42 {
            story.is_denied(at, 0, "1");
        }
        story.is_kept();
        story.is_denied(50, 0, "2");
        match keeps {
            true => story.is_kept(),
            false => story.breaks("reference"),
        }
    }
}

#[test]
fn what_a_broken_connection_was_asked_for_may_be_charged() {
    let mut story = gcra(5, 1, 600);
    story.passes(0, 0, "");
    let what = LinkFault::Reset;
    let (gateway, server) = (None, None);
    story.fault(
        1000,
        FaultKind::Link {
            gateway,
            server,
            lasts: ms(100),
            what,
        },
    );
    let request = story.sent(ms(1010), 0);
    story.response(1030, request, 503, &[("retry-after", "1")]);
    show(&mut story, 20_000, 3);
    story.is_kept();
    show(&mut story, 21_000, 2);
    story.breaks("reference");
}

#[test]
fn nobody_is_denied_while_there_is_room() {
    let mut story = gcra(2, 1, 10);
    story.passes(0, 0, "");
    story.passes(100, 0, "");
    story.is_denied(200, 1, "10");
    story.is_kept();
    story.is_denied(10_500, 1, "1");
    story.breaks("reference");
}

#[test]
fn nobody_is_told_to_come_back_long_after_there_is_room() {
    for (told, is_kept) in [("10", true), ("12", false)] {
        let mut story = gcra(2, 1, 10);
        story.passes(0, 0, "");
        story.passes(5, 0, "");
        story.is_denied(100, 0, told);
        if is_kept {
            story.is_kept();
        } else {
            story.breaks("reference");
        }
    }
}

#[test]
fn nobody_is_told_to_come_back_while_one_of_the_limits_has_no_room() {
    let mut story = gcra(2, 1, 10);
    story.passes(0, 0, "");
    story.passes(100, 0, "");
    story.is_denied(2000, 1, "8");
    story.is_kept();
    story.is_denied(2010, 1, "3");
    story.breaks("reference");
    let mut story = Story::new(Algorithm::FixedWindow, 1, 1, Duration::from_secs(3600));
    story.passes(500, 0, "");
    story.is_denied(2000, 1, "3598");
    story.is_denied(2010, 1, "3598");
    story.is_kept();
    story.is_denied(2020, 1, "1");
    story.breaks("reference");
}

#[test]
fn nothing_that_a_failover_kept_is_given_back() {
    for (remaining, kept) in [(2, true), (3, true), (4, false), (1, false)] {
        let mut story = gcra(5, 1, 600);
        story.scenario.store.topology = Topology::Sentinel {
            replicas: 1,
            sentinels: 3,
            lag: ms(5),
        };
        story.scenario.store.clocks.push(Clock::default());
        for at in [0, 10, 990] {
            story.passes(at, 0, "");
        }
        story.fault(
            1000,
            FaultKind::FreezeServer {
                server: 0,
                lasts: ms(2000),
            },
        );
        story.event(
            ms(2500),
            What::Promoted {
                server: 1,
                replaced: 0,
                lost_writes: 0,
            },
        );
        show(&mut story, 25_000, remaining);
        if kept {
            story.is_kept();
        } else {
            story.breaks("reference");
        }
    }
}

#[test]
fn who_waits_as_told_and_is_alone_is_admitted() {
    let mut story = Story::new(Algorithm::WindowFromFirst, 1, 1, Duration::from_secs(10));
    story.passes(0, 0, "");
    story.is_denied(1000, 0, "9");
    story.passes(10_100, 0, "");
    story.is_kept();
    let mut story = Story::new(Algorithm::WindowFromFirst, 1, 1, Duration::from_secs(10));
    story.passes(0, 0, "");
    story.is_denied(1000, 0, "5");
    story.is_denied(6100, 0, "4");
    if let Some(What::Sent(request)) = story
        .trace
        .events
        .iter_mut()
        .map(|event| &mut event.what)
        .rfind(|what| matches!(what, What::Sent(_)))
    {
        request.obeys = true;
    }
    story.breaks("retry after");
}

fn banned() -> Story {
    let mut story = gcra(5, 5, 1);
    story.scenario.configurations[0].bans.push(Ban {
        name: "ban".into(),
        per: Per::Address,
        strikes: Strikes {
            limits: vec!["L0".into()],
            on_5xx: false,
            count: 2,
            period: ms(1000),
        },
        length: ms(10_000),
        factor: 1,
        max: ms(10_000),
    });
    let act = Act::Ban {
        ban: "ban".into(),
        subject: "10.1.0.1".into(),
        length: Some(ms(5000)),
    };
    story.operation(1000, 0, act, 200, "{}");
    story
}

#[test]
fn a_ban_holds_on_every_gateway_until_its_end() {
    let mut story = banned();
    story.passes(500, 1, "");
    story.passes(6100, 1, "");
    story.is_kept();
    story.passes(2000, 1, "");
    story.breaks("bans");
}

#[test]
fn an_outage_that_is_over_and_a_reload_excuse_no_pass_of_a_banned_client() {
    let at_the_end = |longest: u64| {
        let mut story = banned();
        if let Act::Ban { length, .. } = &mut story.scenario.operations[0].act {
            *length = Some(ms(10_000));
        }
        let kind = FaultKind::FreezeServer {
            server: 0,
            lasts: ms(500),
        };
        story.fault(1100, kind);
        let mut other = story.scenario.configurations[0].clone();
        other.bans[0].length = ms(longest);
        story.scenario.configurations.push(other);
        let in_force = What::InForce {
            gateway: 1,
            configuration: 1,
        };
        story.event(ms(3000), in_force);
        story.passes(10_500, 1, "");
        story
    };
    at_the_end(7000).is_kept();
    at_the_end(9000).breaks("bans");
    // Until the clock that was set ahead.
    let mut story = at_the_end(9000);
    let by = 1_000_000_000;
    story.fault(4000, FaultKind::StepServerClock { server: None, by });
    story.is_kept();
}

#[test]
fn strikes_that_are_forgotten_cause_no_ban() {
    for (denials, is_kept) in [([3900, 3950], true), ([2000, 3900], false)] {
        let mut story = gcra(1, 1, 600);
        story.scenario.configurations[0].bans = banned().scenario.configurations.remove(0).bans;
        story.passes(0, 0, "");
        for at in denials {
            story.is_denied(at, 0, &(600 - at / 1000).to_string());
        }
        let request = story.sent(ms(4000), 1);
        story.response(4002, request, 410, &[("retry-after", "10")]);
        if is_kept {
            story.is_kept();
        } else {
            story.breaks("bans");
        }
    }
}

#[test]
fn a_ban_ends_and_nobody_is_banned_without_a_reason() {
    let mut story = banned();
    let request = story.sent(ms(4000), 1);
    story.response(4002, request, 410, &[("retry-after", "2")]);
    story.is_kept();
    let request = story.sent(ms(9000), 1);
    story.response(9002, request, 410, &[("retry-after", "2")]);
    story.breaks("bans");
    let mut story = banned();
    story.scenario.operations.clear();
    story.trace.events.retain(|event| {
        !matches!(
            event.what,
            What::Operated { .. } | What::OperationAnswered { .. }
        )
    });
    let request = story.sent(ms(4000), 1);
    story.response(4002, request, 410, &[("retry-after", "2")]);
    story.breaks("bans");
}

#[test]
fn a_ban_is_no_longer_than_the_longest_that_its_gateway_has_after_a_reload() {
    let mut story = banned();
    story.scenario.operations.clear();
    story
        .trace
        .events
        .retain(|event| matches!(event.what, What::Started { .. }));
    story.scenario.configurations[0].limits[0].parameters = Parameters {
        burst: 1,
        count: 1,
        period: ms(600_000),
    };
    story.passes(6000, 1, "");
    let mut shorter = story.scenario.configurations[0].clone();
    shorter.bans[0].length = ms(2000);
    story.scenario.configurations.push(shorter);
    for (at, told) in [(6900, "600"), (7000, "599"), (7100, "599")] {
        let request = story.sent(ms(at), 1);
        story.response(at + 2, request, 429, &[("retry-after", told)]);
    }
    let banned = |story: &mut Story, at, seconds| {
        let request = story.sent(ms(at), 1);
        story.response(at + 2, request, 410, &[("retry-after", seconds)]);
    };
    banned(&mut story, 8000, "10");
    let in_force = What::InForce {
        gateway: 1,
        configuration: 1,
    };
    story.event(ms(8500), in_force);
    // What was known before the reload may be told for a moment.
    banned(&mut story, 8600, "10");
    banned(&mut story, 11_000, "5");
    story.is_kept();
    banned(&mut story, 11_100, "7");
    story.breaks("bans");
}

#[test]
fn a_gateway_that_is_gone_and_ends_again_before_it_serves_owes_no_response() {
    let mut story = gcra(5, 5, 1);
    story.event(ms(1000), What::Ended { gateway: 0 });
    let request = story.sent(ms(2000), 0);
    story.event(ms(2000), What::Broken { request });
    story.event(ms(3000), What::Ended { gateway: 0 });
    story.is_kept();
    let request = story.sent(ms(2000), 1);
    story.event(ms(2000), What::Broken { request });
    story.breaks("availability");
}

#[test]
fn every_request_gets_a_response_that_something_explains() {
    let mut story = gcra(5, 5, 1);
    let request = story.sent(ms(0), 0);
    story.response(2, request, 503, &[("retry-after", "1")]);
    story.breaks("availability");
    // One that comes while the gateway begins to serve may be too early.
    for (at, is_early) in [(0, true), (1, false)] {
        let mut story = gcra(5, 5, 1);
        story.sent(ms(at), 0);
        story.event(ms(30_000), What::Quiet);
        assert_eq!(story.failures().is_empty(), is_early);
    }
    // Nobody is served by a gateway that died, nor by one that dies again before it serves.
    let mut story = gcra(5, 5, 1);
    for at in [100, 500] {
        story.event(ms(at), What::Ended { gateway: 0 });
    }
    let request = story.sent(ms(200), 0);
    story.event(ms(200), What::Broken { request });
    story.is_kept();
}

#[test]
fn the_store_is_in_use_again_when_all_is_quiet_and_nothing_is_held() {
    let mut story = gcra(5, 5, 1);
    story.event(ms(1000), What::Quiet);
    show(&mut story, 2000, 5);
    story.event(
        ms(3000),
        What::Holds {
            gateway: 0,
            counts: vec![("leases".into(), 0)],
        },
    );
    story.is_kept();
    story.event(
        ms(3000),
        What::Holds {
            gateway: 0,
            counts: vec![("leases".into(), 1)],
        },
    );
    story.breaks("quiet");
    let mut story = gcra(5, 5, 1);
    story.event(ms(1000), What::Quiet);
    let act = Act::Show {
        limit: "L0".into(),
        subject: "10.1.0.1".into(),
    };
    story.operation(2000, 0, act, 503, "");
    story.breaks("quiet");
}

#[test]
fn a_gateway_that_is_left_alone_has_the_tasks_connections_and_buckets_that_it_needs() {
    // One limit, and one subject.
    for (name, most) in [("tasks", 13), ("connections", 3), ("memory buckets", 4)] {
        for (count, kept) in [(most, true), (most + 1, false)] {
            let mut story = gcra(5, 5, 1);
            let counts = vec![(name.into(), count)];
            story.event(ms(1000), What::Quiet);
            story.event(ms(3000), What::Holds { gateway: 0, counts });
            match kept {
                true => story.is_kept(),
                false => story.breaks("quiet"),
            }
        }
    }
}

#[test]
fn an_outage_is_logged_once_a_minute_and_each_of_its_causes_once() {
    let logged = |lines: &[(u64, &str)]| {
        let mut story = gcra(5, 5, 1);
        for (at, line) in lines {
            let (level, line) = ("WARN".into(), (*line).into());
            let gateway = 0;
            story.event(
                ms(*at),
                What::Log {
                    gateway,
                    level,
                    line,
                },
            );
        }
        story
    };
    let outage = "the store is out of reach node=\"10.0.0.1:6379\" cause=late";
    let other = "the store is out of reach node=\"10.0.0.2:6379\" cause=late";
    let late =
        "the store remains out of reach, for another reason node=\"10.0.0.1:6379\" cause=late";
    let refused = late.replace("=late", "=refused");
    let kept = [
        (100, outage),
        (110, other),
        (200, late),
        (300, &refused),
        (61_000, outage),
        (61_100, late),
    ];
    logged(&kept).is_kept();
    logged(&[(100, outage), (40_000, outage)]).breaks("quiet");
    logged(&[(100, outage), (200, late), (300, &refused), (400, late)]).breaks("quiet");
}

const OVERRIDE: Parameters = Parameters {
    burst: 5,
    count: 2,
    period: Duration::from_secs(1),
};

fn set_override(length: Option<Duration>) -> Act {
    Act::SetOverride {
        limit: "L0".into(),
        subject: "10.1.0.1".into(),
        parameters: OVERRIDE,
        length,
    }
}

impl Story {
    /// A request that is let through, and told this policy.
    fn is_told(&mut self, at: u64, gateway: usize, policy: &str) {
        let request = self.sent(ms(at), gateway);
        self.event(ms(at + 1), What::ReachedApp { request, gateway });
        self.response(at + 2, request, 200, &[("ratelimit-policy", policy)]);
    }
}

#[test]
fn an_override_is_in_force_at_once_where_it_is_set_and_within_two_seconds_elsewhere() {
    let own = "\"L0\";q=5;w=3";
    let mut story = gcra(3, 1, 1);
    story.operation(1000, 0, set_override(Some(ms(9000))), 200, "");
    story.is_told(900, 0, "\"L0\";q=3;w=3");
    story.is_told(1100, 0, own);
    story.is_told(2900, 1, "\"L0\";q=3;w=3");
    story.is_told(3900, 1, own);
    story.is_told(12_900, 0, "\"L0\";q=3;w=3");
    story.is_kept();
    for (at, gateway) in [(1500, 0), (4500, 1)] {
        let mut story = gcra(3, 1, 1);
        story.operation(1000, 0, set_override(Some(ms(9000))), 200, "");
        story.is_told(at, gateway, "\"L0\";q=3;w=3");
        story.breaks("policy");
    }
}

#[test]
fn an_outage_that_is_over_excuses_no_gateway_that_does_not_know_an_override() {
    for (at, is_kept) in [(10_000, true), (11_000, false)] {
        let mut story = gcra(5, 5, 1);
        story.operation(1000, 0, set_override(None), 200, "{}");
        let kind = FaultKind::FreezeServer {
            server: 0,
            lasts: ms(500),
        };
        story.fault(1100, kind);
        story.is_told(at, 1, "\"L0\";q=5;w=1");
        if is_kept {
            story.is_kept();
        } else {
            story.breaks("policy");
        }
    }
}

#[test]
fn an_override_that_was_deleted_is_in_force_nowhere_after_two_seconds() {
    let mut story = gcra(3, 1, 1);
    story.operation(1000, 0, set_override(None), 200, "");
    let (limit, subject) = ("L0".into(), "10.1.0.1".into());
    story.operation(5000, 1, Act::DeleteOverride { limit, subject }, 200, "");
    story.is_told(6000, 0, "\"L0\";q=5;w=3");
    story.is_told(6100, 1, "\"L0\";q=3;w=3");
    story.is_kept();
    story.is_told(7500, 0, "\"L0\";q=5;w=3");
    story.breaks("policy");
}

#[test]
fn an_override_stays_in_force_that_a_gateway_which_did_not_answer_was_to_delete() {
    for (status, stays) in [(0, true), (503, true), (200, false)] {
        let mut story = gcra(3, 1, 1);
        story.operation(1000, 0, set_override(None), 200, "");
        let (limit, subject) = ("L0".into(), "10.1.0.1".into());
        story.operation(5000, 1, Act::DeleteOverride { limit, subject }, status, "");
        story.is_told(8000, 0, "\"L0\";q=5;w=3");
        assert_eq!(story.failures().is_empty(), stays, "{status}");
    }
}

#[test]
fn no_response_from_the_app_is_silent_about_its_limit() {
    for lacking in ["ratelimit", "ratelimit-policy"] {
        let mut story = gcra(3, 1, 1);
        let request = story.sent(ms(0), 0);
        story.event(
            ms(1),
            What::ReachedApp {
                request,
                gateway: 0,
            },
        );
        let all = [("ratelimit", "\"L1\""), ("ratelimit-policy", "\"L1\"")];
        let fields = all.map(|(name, value)| match name == lacking {
            true => (name, value),
            false => (name, "\"L0\""),
        });
        story.response(2, request, 200, &fields);
        story.breaks("policy");
    }
}

#[test]
fn a_policy_is_that_of_the_configuration_in_force() {
    let mut story = Story::new(Algorithm::FixedWindow, 3, 3, Duration::from_secs(10));
    story.is_told(100, 0, "\"L0\";q=3;w=10");
    story.is_kept();
    story.is_told(200, 0, "\"L0\";q=4;w=10");
    story.breaks("policy");
}

/// A limit's denials of before 300 ms, two of which cause a ban of five seconds.
fn offender(denials: u64) -> Story {
    let mut story = gcra(3, 1, 1);
    story.scenario.configurations[0].bans = vec![Ban {
        name: "ban".into(),
        per: Per::Address,
        strikes: Strikes {
            limits: vec!["L0".into()],
            on_5xx: false,
            count: 2,
            period: Duration::from_secs(10),
        },
        length: Duration::from_secs(5),
        factor: 1,
        max: Duration::from_secs(5),
    }];
    for at in [0, 5, 10] {
        story.passes(at, 0, "");
    }
    for denial in 0..denials {
        story.is_denied(100 + 10 * denial, 0, "1");
    }
    story
}

#[test]
fn who_has_earned_a_ban_is_kept_out_by_every_gateway_until_it_is_over() {
    let mut story = offender(3);
    story.passes(6000, 1, "");
    story.is_kept();
    let mut story = offender(1);
    story.passes(3000, 1, "");
    story.is_kept();
    let mut story = offender(3);
    story.passes(3000, 1, "");
    story.breaks("bans");
    // What another configuration says is not in force.
    let mut shorter = story.scenario.configurations[0].clone();
    shorter.bans[0].length = Duration::from_secs(2);
    story.scenario.configurations.push(shorter);
    for event in &mut story.trace.events {
        if let What::Started { configuration, .. } = &mut event.what {
            *configuration = 1;
        }
    }
    story.is_kept();
}

/// Laws quote the docs, and a page that is changed may promise something else.
#[test]
fn every_promise_is_in_the_docs_word_by_word() {
    let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for promise in LAWS.iter().flat_map(|law| law.promises) {
        let (page, words) = promise.split_once(": ").unwrap();
        let page = one_line(&fs::read_to_string(root.join(page)).unwrap());
        for part in words.split(" ... ") {
            assert!(page.contains(part), "{promise}");
        }
    }
}

#[test]
fn an_evicted_bucket_is_full_by_each_definition_in_force_and_no_more() {
    let mut story = gcra(4, 1, 600);
    let mut other = story.scenario.configurations[0].clone();
    other.limits[0].parameters.burst = 2;
    story.scenario.configurations.push(other);
    story.event(
        ms(100),
        What::InForce {
            gateway: 1,
            configuration: 1,
        },
    );
    story.fault(
        500,
        FaultKind::Evict {
            server: 0,
            left: 10,
        },
    );
    for begin in [110, 610] {
        for at in 0..6 {
            story.passes(begin + at * 10, 0, "");
        }
    }
    story.is_kept();
    story.passes(700, 0, "");
    story.breaks("bound");
}

#[test]
fn gateways_with_clocks_of_their_own_may_differ_by_their_clocks_and_no_more() {
    for (local_clock, keeps) in [(true, true), (false, false)] {
        let mut story = gcra(2, 1, 1);
        story.scenario.store.local_clock = local_clock;
        story.scenario.gateways[1].clock.ahead = 400_000_000;
        story.passes(0, 0, "");
        story.passes(10, 0, "");
        story.passes(700, 1, "");
        if keeps {
            story.is_kept();
            story.passes(720, 1, "");
        }
        story.breaks("bound");
    }
}

#[test]
fn a_look_takes_nothing_and_denies_only_where_there_is_no_room() {
    let mut story = gcra(5, 1, 600);
    let mut looks = story.scenario.configurations[0].routes[0].clone();
    looks.limits[0].kind = LimitKind::CheckOnly;
    story.scenario.configurations[0].routes[0] = looks;
    for at in 0..7 {
        story.passes(at * 10, 0, "");
    }
    show(&mut story, 20_000, 5);
    story.is_kept();
    story.is_denied(30_000, 0, "60");
    story.breaks("reference");
    show(&mut story, 40_000, 4);
    let failures = story.failures();
    assert!(
        failures
            .iter()
            .any(|one| one.what.contains("the admin API"))
    );
}

#[test]
fn clocks_that_differ_begin_a_ban_early_by_the_strikes_that_are_forgotten_meanwhile() {
    for (local_clock, keeps) in [(true, true), (false, false)] {
        let mut story = gcra(1, 1, 600);
        let mut with_ban = banned().scenario.configurations.remove(0);
        with_ban.limits = story.scenario.configurations[0].limits.clone();
        story.scenario.configurations = vec![with_ban];
        story.scenario.store.local_clock = local_clock;
        story.scenario.gateways[1].clock.ahead = 400_000_000;
        story.passes(0, 0, "");
        story.is_denied(100, 1, "600");
        let request = story.sent(ms(200), 0);
        story.response(210, request, 410, &[("retry-after", "10")]);
        if keeps {
            story.is_kept();
        } else {
            story.breaks("bans");
        }
    }
}

#[test]
fn a_slot_that_moves_sets_the_clock_once_and_when_it_does() {
    let moved = |moves: bool, after: u64| {
        let mut story = gcra(3, 1, 600);
        story.scenario.store.topology = Topology::Cluster {
            primaries: 2,
            replicas: 0,
            lag: ms(1),
        };
        let ahead = 5_000_000_000;
        story.scenario.store.clocks = vec![Clock::default(), Clock { ahead, drift: 0 }];
        let fault = FaultKind::MoveSlots {
            slots: 1,
            from: 0,
            to: 1,
            lasts: ms(100),
        };
        story.fault(500, fault);
        if moves {
            story.event(ms(2000), What::SlotZeroMoved { from: 0, to: 1 });
        }
        for number in 0..3 + after {
            story.passes(3000 + 10 * number, 0, "");
        }
        story
    };
    moved(false, 0).is_kept();
    moved(false, 1).breaks("bound");
    moved(true, 6).is_kept();
    moved(true, 7).breaks("bound");
}
