//! SIGHUP: a new configuration as a whole, or the old one as a whole.

use std::sync::{Mutex, mpsc};
use std::time::Instant;

use crate::redis;
use crate::support::*;

const REFUSED: &str = "configuration not reloaded";

fn limit(burst: u32) -> String {
    format!("L: {{per: address, burst: {burst}, count: 1, period: 1000h}}")
}

fn start(upstream: &Upstream, limit: &str) -> Gateway {
    Setup::before(upstream)
        .limits(&[limit])
        .limited_by("L")
        // The log of a gateway under load drops lines before it holds up requests.
        .key("log: {access: false}")
        .start()
}

#[test]
fn a_new_limit_holds_and_the_bucket_is_kept() {
    let upstream = Upstream::start();
    let gateway = start(&upstream, &limit(5));
    let mut client = gateway.client();
    let statuses = [(); 6].map(|()| client.send(&get("/")).status);
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429]);
    gateway.write("limits/defaults.yaml", &limit(8));
    gateway.reload();
    let first = client.send(&get("/"));
    assert_eq!(
        (first.status, first.field("ratelimit-policy")),
        (200, Some("\"L\";q=8;w=28800000"))
    );
    // Five of the eight are spent already.
    let statuses = [(); 3].map(|()| client.send(&get("/")).status);
    assert_eq!(statuses, [200, 200, 429]);
}

/// The demo upstream and health checks run on the thread that waits for signals. It read the files,
/// so that all of them waited for a long list, and as long as a disk hung.
#[test]
fn the_demo_upstream_responds_while_a_long_list_is_read() {
    let gateway = Setup::with_upstreams("{app: {builtin: echo}}")
        .key("block: {addresses: [{file: blocked.txt}]}")
        .key("log: {access: false}")
        .file("blocked.txt", "192.0.2.1\n")
        .start();
    let mut client = gateway.client();
    assert_eq!(client.send(&get("/")).status, 200);
    let list: String = (0..400_000_u32)
        .map(|host| format!("10.{}.{}.{}\n", host >> 16, host >> 8 & 0xff, host & 0xff))
        .collect();
    gateway.write("blocked.txt", &list);
    gateway.signal("HUP");
    let mut responses = 0;
    let until = Instant::now() + PATIENCE;
    while gateway.times_logged("configuration reloaded") == 0 {
        assert!(Instant::now() < until, "{}", gateway.log_text());
        assert_eq!(client.send(&get("/")).status, 200);
        responses += 1;
    }
    assert!(responses > 20, "{responses} responses during the reload");
}

#[test]
fn an_open_connection_gets_the_new_configuration_with_its_next_request() {
    let upstream = Upstream::start();
    let gateway = start(&upstream, &limit(5));
    let mut client = gateway.client();
    assert_eq!(client.send(&get("/")).status, 200);
    gateway.write("limits/defaults.yaml", &limit(2));
    gateway.reload();
    let second = client.send(&get("/"));
    let policy = second.field("ratelimit-policy").unwrap();
    assert!(policy.starts_with("\"L\";q=2;"), "{policy}");
    assert_eq!(client.send(&get("/")).status, 429);
}

#[test]
fn a_request_in_flight_is_finished_under_the_configuration_that_it_began_with() {
    let (arrived, arrivals) = mpsc::channel();
    let (release, released) = mpsc::channel();
    let (arrived, released) = (Mutex::new(arrived), Mutex::new(released));
    let old = Upstream::answering(move |request| {
        if request.target == "/slow" {
            arrived.lock().unwrap().send(()).unwrap();
            let _ = released.lock().unwrap().recv();
        }
        upstream::text("old")
    });
    // Dropped before the upstream is, which would otherwise wait for it when the test fails.
    let release = release;
    let new = Upstream::answering(|_| upstream::text("new"));
    let gateway = start(&old, &limit(5));
    let mut waiting = gateway.client();
    waiting.write(&get("/slow").bytes()).unwrap();
    arrivals.recv_timeout(PATIENCE).unwrap();

    let address = |upstream: &Upstream| upstream.address().to_string();
    let text = gateway.read("gateway.yaml");
    gateway.write(
        "gateway.yaml",
        &text.replace(&address(&old), &address(&new)),
    );
    gateway.write("limits/defaults.yaml", &limit(8));
    gateway.reload();
    assert_eq!(gateway.send(&get("/")).text(), "new");
    release.send(()).unwrap();
    let finished = waiting.read("GET").unwrap();
    let policy = finished.field("ratelimit-policy").unwrap();
    assert!(policy.starts_with("\"L\";q=5;"), "{policy}");
    assert_eq!((finished.status, finished.text()), (200, "old"));
}

#[test]
fn routes_and_upstreams_are_replaced_and_connections_of_the_others_kept() {
    let (upstream, other) = (Upstream::start(), Upstream::start());
    let setup = Setup::before(&upstream);
    let gateway = setup.start();
    let mut client = gateway.client();
    client.send(&get("/"));
    let (a, b) = (upstream.address(), other.address());
    let both = Setup::with_upstreams(&format!(
        "{{app: {{servers: [\"http://{a}\"]}}, new: {{servers: [\"http://{b}\"]}}}}"
    ))
    .routes(&[
        "{match: {}, upstream: app}",
        "{match: {path: /new}, upstream: new}",
    ]);
    gateway.write("gateway.yaml", &both.gateway_yaml());
    gateway.reload();
    client.send(&get("/new"));
    assert_eq!(other.count(), 1);
    client.send(&get("/"));
    assert_eq!(upstream.connections(), 1);
}

#[test]
fn a_broken_file_keeps_the_old_configuration_and_every_error_is_logged_and_it_is_counted() {
    let upstream = Upstream::start();
    let gateway = start(&upstream, &limit(5));
    gateway.write(
        "limits/defaults.yaml",
        "L: {per: adress, burst: 0, count: 1, period: 1h}\nM: {per: address, bursts: 3}\n",
    );
    gateway.signal("HUP");
    gateway.logs(REFUSED, 1);
    let failures = "weir_config_loads_total{outcome=\"failure\"}";
    let successes = "weir_config_loads_total{outcome=\"success\"}";
    eventually("the count of failures", || {
        (gateway.metric(failures) == Some(1.0)).then_some(())
    });
    assert_eq!(gateway.metric(successes), Some(1.0));
    for part in ["adress", "burst", "bursts"] {
        eventually(part, || {
            let lines = gateway.log();
            let tells = |line: &&serde_json::Value| {
                line["level"] == "ERROR" && line["message"].as_str().unwrap().contains(part)
            };
            lines.iter().find(tells).map(drop)
        });
    }
    // The log names the file and the line of both.
    gateway.log_tells("limits/defaults.yaml:1");
    gateway.log_tells("limits/defaults.yaml:2");
    let statuses = gateway.statuses(&get("/"), 6);
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429]);
    assert_eq!(gateway.admin(&get("/readyz")).status, 200);

    gateway.write("limits/defaults.yaml", &limit(6));
    gateway.reload();
    assert_eq!(gateway.metric(successes), Some(2.0));
}

#[test]
fn what_only_a_restart_can_change_is_said() {
    let upstream = Upstream::start();
    let gateway = start(&upstream, &limit(5));
    let text = gateway
        .read("gateway.yaml")
        .replace("workers: 2", "workers: 1");
    gateway.write("gateway.yaml", &text);
    gateway.reload();
    gateway.logs("workers keeps its old value until a restart", 1);
    let lines = gateway.log();
    let told = |line: &&serde_json::Value| line["kept"] == "2" && line["ignored"] == "1";
    assert!(lines.iter().any(|line| told(&line)), "{lines:#?}");
}

#[test]
fn reloads_under_load_fail_no_request() {
    let upstream = Upstream::start();
    let wide = |burst| format!("L: {{per: address, burst: {burst}, count: 1000, period: 1s}}");
    let gateway = start(&upstream, &wide(1_000_000));
    let load = Load::start(gateway.address(), 4, |_, _| get("/"));
    for round in 1..=10 {
        gateway.write("limits/defaults.yaml", &wide(1_000_000 - round));
        gateway.reload();
        load.go_on_for(30);
    }
    let report = load.stop();
    assert_eq!(report.failures, [""; 0]);
    assert_eq!(report.count(200), report.statuses.len());
    let response = gateway.send(&get("/"));
    let policy = response.field("ratelimit-policy").unwrap();
    assert!(policy.starts_with("\"L\";q=999990;"), "{policy}");
}

/// A limit whose answers are told apart by its burst. Its tolerance is far longer than clients may
/// be held up: a bucket that got full meanwhile would admit less.
#[derive(Clone, Copy)]
struct Rate {
    burst: u32,
    a_second: u32,
}

impl Rate {
    fn yaml(self) -> String {
        let Self { burst, a_second } = self;
        format!("L: {{per: address, burst: {burst}, count: {a_second}, period: 1s}}")
    }

    fn interval(self) -> f64 {
        1.0 / f64::from(self.a_second)
    }

    /// How long an empty bucket takes to fill.
    fn tolerance(self) -> f64 {
        f64::from(self.burst) * self.interval()
    }

    fn decided(self, answer: &Answered) -> bool {
        let policy = answer.policy.as_deref().unwrap_or_default();
        policy.starts_with(&format!("\"L\";q={};", self.burst))
    }
}

fn seconds(from: Instant, to: Instant) -> f64 {
    to.saturating_duration_since(from).as_secs_f64()
}

/// Whether so many were admitted between the denials `first` and `last` as GCRA admits at this
/// rate.
///
/// A bucket that denies holds less than a unit, so between two denials one comes back each
/// emission interval, and one more or less. When an answer was decided is known to within its
/// request's own time; what may or may not have been between the two is counted in its favour.
fn assert_exact(answers: &[Answered], rate: Rate, first: &Answered, last: &Answered) {
    let admitted = |between: fn(&Answered, &Answered, &Answered) -> bool| {
        let admitted = answers.iter().filter(|it| it.status == 200);
        admitted.filter(|it| between(first, it, last)).count() as f64
    };
    let surely = admitted(|first, it, last| it.sent > first.received && it.received < last.sent);
    let perhaps = admitted(|first, it, last| it.received > first.sent && it.sent < last.received);
    let most = seconds(first.sent, last.received) / rate.interval() + 1.0;
    let least = seconds(first.received, last.sent) / rate.interval() - 1.0;
    assert!(surely <= most, "{surely} admitted, at most {most}");
    assert!(perhaps >= least, "{perhaps} admitted, at least {least}");
}

/// Whether the change to a new rate gave away no more than the time that passed, and what a bucket
/// that is empty by the old tolerance holds by the new one.
fn assert_not_refilled(
    answers: &[Answered],
    old: Rate,
    new: Rate,
    last: &Answered,
    first: &Answered,
) {
    let surely = |it: &&Answered| it.sent > last.received && it.received < first.sent;
    let admitted = answers.iter().filter(|it| it.status == 200).filter(surely);
    let grown = (new.tolerance() - old.tolerance()).max(0.0);
    let owed = seconds(last.sent, first.received) + grown + old.interval();
    let most = owed / new.interval().min(old.interval()) + 1.0;
    let admitted = admitted.count() as f64;
    assert!(
        admitted <= most,
        "{admitted} admitted by the change, at most {most}"
    );
}

/// How many clients there are at the same time.
const CLIENTS: usize = 3;

/// The denials under the rate of this index and no other, in the order of their answers.
///
/// What is decided between the last answer under an earlier configuration and the first under a
/// later one is decided by this one.
fn denials<'a>(answers: &'a [Answered], rates: &[Rate], index: usize) -> Vec<&'a Answered> {
    let under = |rates: &[Rate]| {
        let rates = rates.to_vec();
        let any = move |it: &&Answered| rates.iter().any(|rate| rate.decided(it));
        answers.iter().filter(any)
    };
    let from = under(&rates[..index]).map(|it| it.received).max();
    let until = under(&rates[index + 1..]).map(|it| it.sent).min();
    under(&rates[index..=index])
        .filter(|it| it.status == 429)
        .filter(|it| from.is_none_or(|from| it.sent > from))
        .filter(|it| until.is_none_or(|until| it.received < until))
        .collect()
}

/// Whether the last of these rates has been tried: units were admitted between two denials, and
/// no client still waits for an answer under an earlier one.
fn is_tried(answers: &[Answered], rates: &[Rate]) -> bool {
    let denials = denials(answers, rates, rates.len() - 1);
    let (Some(first), Some(last)) = (denials.first(), denials.last()) else {
        return false;
    };
    let between = |it: &&Answered| it.sent > first.received && it.received < last.sent;
    let admitted = answers.iter().filter(|it| it.status == 200).filter(between);
    let follows = |client| {
        let by_the_last = |it: &Answered| rates[rates.len() - 1].decided(it);
        answers
            .iter()
            .any(|it| it.client == client && by_the_last(it))
    };
    admitted.count() >= 12 && (0..CLIENTS).all(follows)
}

/// Brings one rate after the other into force under load, and holds every one to its law.
fn changed_rates_are_exact(setup: &Setup) {
    let rate = |burst, a_second| Rate { burst, a_second };
    let rates = [
        rate(200, 20),
        // Raised and lowered with the burst: an empty bucket is as empty as before.
        rate(400, 40),
        rate(201, 20),
        // The burst comes back sooner: more time is owed than that takes, and does not count.
        rate(202, 50),
        // It comes back later: the time that is owed, up to 10.05 s by the third of these and a unit
        // of the fourth, is less than an empty bucket takes. If it were more, the first denial could
        // find less than an empty bucket, and the law below would not hold.
        rate(102, 10),
    ];
    let gateway = setup.clone().limits(&[&rates[0].yaml()]).start();
    let load = Load::start(gateway.address(), CLIENTS, |_, _| get("/"));
    for (index, rate) in rates.iter().enumerate() {
        if index > 0 {
            gateway.write("limits/defaults.yaml", &rate.yaml());
            gateway.reload();
        }
        eventually("requests admitted between denials at the new rate", || {
            is_tried(&load.answers(), &rates[..=index]).then_some(())
        });
    }
    // What was decided before the last denial may be answered after it.
    let report = load.stop();
    let answers = &report.answers;
    assert_eq!(report.failures, [""; 0]);
    assert_eq!(report.count(200) + report.count(429), report.statuses.len());

    let mut before: Option<(Rate, &Answered)> = None;
    for (index, rate) in rates.iter().copied().enumerate() {
        let denials = denials(answers, &rates, index);
        let (first, last) = (denials[0], denials[denials.len() - 1]);
        assert_exact(answers, rate, first, last);
        if let Some((old, before)) = before {
            assert_not_refilled(answers, old, rate, before, first);
        }
        before = Some((rate, last));
    }
}

/// A gateway whose log keeps up with the load.
fn under_load(upstream: &Upstream) -> Setup {
    Setup::before(upstream)
        .limited_by("L")
        .key("log: {access: false}")
}

#[test]
fn a_changed_rate_is_exact_and_refills_no_bucket_in_memory() {
    let upstream = Upstream::start();
    changed_rates_are_exact(&under_load(&upstream));
}

#[test]
fn a_changed_rate_is_exact_and_refills_no_bucket_in_redis() {
    let redis = RedisServer::start();
    let upstream = Upstream::start();
    let setup = under_load(&upstream).key(&redis::store(&redis.url()));
    changed_rates_are_exact(&setup);
}
