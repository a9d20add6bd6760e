//! Gateways of one Redis, seen as one: who is limited on all of them, which of them are there, and
//! how their configurations differ.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::support::gateway::weir;
use crate::support::*;
use crate::{redis, redis_cluster};

const ABUSER: &str = "203.0.113.9";

const LIMIT: &str = "Requests: {per: address, burst: 20, count: 1, period: 1000h}";

fn setup(upstream: &Upstream, store: &str) -> Setup {
    Setup::before(upstream)
        .limits(&[LIMIT])
        .limited_by("Requests")
        .key("client_address: {trusted_proxies: [127.0.0.1]}")
        .key(
            "bans: {abusers: {per: address, strikes: {paths: /trap, count: 9, period: 1h}, for: 1h}}",
        )
        .key(store)
}

fn three(setup: &Setup) -> [Gateway; 3] {
    [setup.start(), setup.start(), setup.start()]
}

fn from(address: &str) -> Request {
    get("/").with("x-forwarded-for", address)
}

fn ask(gateway: &Gateway, path: &str) -> Value {
    let response = gateway.admin(&get(path).with("host", "localhost"));
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()
}

fn gateways(gateway: &Gateway) -> Vec<Value> {
    let answer = ask(gateway, "/v1/gateways");
    answer["gateways"].as_array().unwrap().clone()
}

/// The subjects that the gateway has counted, or the fleet, in the last hour.
fn counted(gateway: &Gateway, scope: &str) -> Value {
    ask(gateway, &format!("/v1/top?scope={scope}&period=hour"))
}

/// The gateways that are listed, by the address of their admin listeners.
fn states(gateway: &Gateway) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let listed = gateways(gateway).into_iter();
    let states = listed.map(|listed| (text(&listed["address"]), text(&listed["state"])));
    states.collect()
}

/// Waits until each of these knows all of them, with their figures.
fn know_each_other(gateways: &[Gateway]) {
    for gateway in gateways {
        eventually("all gateways with their figures", || {
            let listed = self::gateways(gateway);
            let shared = listed.iter().filter(|listed| listed["figures"] == "shared");
            (shared.count() == gateways.len()).then_some(())
        });
    }
}

/// What is said of the fleet.
fn said(gateway: &Gateway) -> Vec<String> {
    let answer = ask(gateway, "/v1/findings?scope=fleet");
    let found = answer["gateway"].as_array().unwrap().iter();
    let of_fleet = found.filter(|found| found["kind"] == "fleet");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    of_fleet
        .map(|found| format!("{}\n{}", text(&found["text"]), text(&found["detail"])))
        .collect()
}

/// Waits until this is said of the fleet.
fn says(gateway: &Gateway, part: &str) {
    eventually(&format!("{part:?} in the findings"), || {
        let said = said(gateway);
        said.iter().any(|text| text.contains(part)).then_some(())
    });
}

fn run(gateway: &Gateway, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = weir();
    let output = command.current_dir(gateway.folder()).args(arguments);
    let output = output.output().unwrap();
    let (out, errors) = (output.stdout, output.stderr);
    let text = [out, errors].map(|text| String::from_utf8(text).unwrap());
    (output.status.code(), text.concat())
}

/// He sends to three gateways, and is seen by none of them as what he is: each is sent a third.
fn an_abuser_of_all_is_named_with_what_all_have_counted(gateways: &[Gateway; 3]) {
    until_left(MINUTE, HOUR);
    for gateway in gateways {
        gateway.statuses(&from(ABUSER), 40);
        gateway.statuses(&from("198.51.100.7"), 1);
    }
    know_each_other(gateways);
    for gateway in gateways {
        let subject = eventually("all of his requests", || {
            let top = counted(gateway, "fleet");
            assert_eq!(top["alone"], Value::Null);
            let first = top["subjects"][0].clone();
            (first["requests"] == 120).then_some(first)
        });
        assert_eq!(subject["subject"], ABUSER);
        assert_eq!(
            (&subject["denied"], &subject["uncounted"]),
            (&json!(100), &json!(0))
        );
        let own = counted(gateway, "gateway");
        assert_eq!(own["subjects"][0]["requests"], 40);
        assert_eq!(
            (&own["scope"], &own["gateways"]),
            (&json!("gateway"), &json!(1))
        );
        let found = ask(gateway, "/v1/findings?scope=fleet");
        let worst = &found["findings"][0];
        assert_eq!(
            (&worst["kind"], &worst["subject"]),
            (&json!("abuse"), &json!(ABUSER))
        );
        // More than any gateway has counted by itself.
        let requests = worst["requests"].as_u64().unwrap();
        assert!((41..=120).contains(&requests), "{worst}");
        assert_eq!(
            worst["remedy"]["command"],
            format!("weir ban add abusers {ABUSER} --for 1h")
        );
        assert_eq!(said(gateway), Vec::<String>::new());
    }
}

#[test]
fn an_abuser_who_spreads_over_all_gateways_is_never_taken_for_three_small_ones() {
    let server = RedisServer::start();
    let upstream = Upstream::start();
    let all = three(&setup(&upstream, &redis::store(&server.url())));
    an_abuser_of_all_is_named_with_what_all_have_counted(&all);

    let address = all[0].admin_address().to_string();
    let (code, text) = run(&all[1], &["top", "--once", "--admin", &address]);
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.starts_with("ABUSE       203.0.113.9 keeps sending"),
        "{text}"
    );
    assert!(text.trim_end().ends_with("3 gateways"), "{text}");
    let alone = ["top", "--alone", "--once", "--period", "hour"];
    let (code, text) = run(&all[1], &[&alone[..], &["--admin", &address]].concat());
    assert_eq!(code, Some(0), "{text}");
    assert!(text.trim_end().ends_with("this gateway of 3"), "{text}");
    assert!(
        text.contains(&format!("{ABUSER}         40      20")),
        "{text}"
    );
    let (code, text) = run(&all[1], &["gateways", "--admin", &address]);
    assert_eq!(code, Some(0), "{text}");
    for gateway in &all {
        let listed = format!(" {} ", gateway.admin_address());
        assert!(text.contains(&listed), "{text}");
    }
    let response = all[0].admin(&get("/v1/top?scope=all").with("host", "localhost"));
    assert_eq!(response.status, 400);
}

#[test]
fn an_abuser_is_found_where_the_nodes_of_a_cluster_share_the_figures_out() {
    let cluster = RedisCluster::start(0);
    let upstream = Upstream::start();
    let all = three(&setup(&upstream, &redis_cluster::store(&cluster, "deny")));
    an_abuser_of_all_is_named_with_what_all_have_counted(&all);
}

#[test]
fn a_gateway_that_is_killed_is_never_shown_as_up_and_one_that_ends_is_not_shown() {
    let server = RedisServer::start();
    let upstream = Upstream::start();
    let [one, mut other, killed] = three(&setup(&upstream, &redis::store(&server.url())));
    eventually("three gateways", || (states(&one).len() == 3).then_some(()));
    let of_killed = (killed.admin_address().to_string(), "silent".to_owned());
    drop(killed);
    eventually("its silence", || {
        states(&one).contains(&of_killed).then_some(())
    });
    says(&one, &format!("({}) has been silent for", of_killed.0));
    assert!(said(&other).iter().any(|text| text.contains(&of_killed.0)));
    other.signal("TERM");
    assert!(other.ended().success());
    eventually("the other has left", || {
        (states(&one).len() == 2).then_some(())
    });
}

#[test]
fn without_redis_each_shows_itself_and_never_as_if_it_were_the_fleet() {
    let mut server = RedisServer::start();
    let upstream = Upstream::start();
    let store = redis::store(&server.url()).replace("deny", "local");
    let all = three(&setup(&upstream, &store));
    know_each_other(&all);
    server.kill();
    until_left(MINUTE, HOUR);
    for gateway in &all {
        let top = eventually("that it is alone", || {
            let top = counted(gateway, "fleet");
            top["alone"].is_string().then_some(top)
        });
        assert_eq!(top["gateways"], 1);
        assert_eq!(states(gateway).len(), 1);
        says(gateway, "this gateway shows its own figures alone");
        gateway.statuses(&from(ABUSER), 2);
        eventually("its own figures", || {
            let top = counted(gateway, "fleet");
            (top["subjects"][0]["requests"] == 2).then_some(())
        });
    }
    let address = all[0].admin_address().to_string();
    let (_, text) = run(&all[0], &["top", "--fleet", "--once", "--admin", &address]);
    assert!(text.contains("this gateway alone: the store"), "{text}");
    server.restart();
    know_each_other(&all);
    eventually("no finding", || said(&all[0]).is_empty().then_some(()));
}

/// Its predecessor was a finding for five minutes more.
#[test]
fn a_gateway_that_was_killed_and_is_back_is_never_told_of_as_silent() {
    let server = RedisServer::start();
    let upstream = Upstream::start();
    let setup = setup(&upstream, &redis::store(&server.url()));
    let one = setup.start();
    let comes_back = setup.on_kept_ports();
    let killed = comes_back.start();
    let address = killed.admin_address().to_string();
    eventually("both", || (states(&one).len() == 2).then_some(()));
    drop(killed);
    says(&one, &format!("({address}) has been silent for"));
    let _back = comes_back.start();
    eventually("the one that is back", || {
        (states(&one).len() == 2 && said(&one).is_empty()).then_some(())
    });
}

/// An upgrade adds commands to those that gateways give, and not everybody reads what is new.
#[test]
fn a_right_that_is_lacking_is_told_once_and_in_the_view_and_takes_no_decision() {
    let server = RedisServer::start();
    let upstream = Upstream::start();
    server.command(&["ACL", "SETUSER", "default", "-set"]);
    let setup = setup(&upstream, &redis::store(&server.url()));
    let all = [setup.start(), setup.start()];
    let message = "other gateways do not know how this one does";
    all[0].logs(message, 1);
    eventually("both, without figures of the other", || {
        let listed = gateways(&all[0]);
        let of_other = listed.iter().find(|listed| listed["is_self"] == false)?;
        (of_other["figures"] == "forbidden" && of_other["state"] == "up").then_some(())
    });
    assert_eq!(all[0].statuses(&from(ABUSER), 21)[19..], [200, 429]);
    let top = eventually("the own figures", || {
        let top = counted(&all[0], "fleet");
        (!top["subjects"].as_array().unwrap().is_empty()).then_some(top)
    });
    assert_eq!((&top["gateways"], &top["known"]), (&json!(1), &json!(2)));
    assert_eq!(top["subjects"][0]["uncounted"], Value::Null);
    assert_eq!(all[0].metric("weir_store_reachable "), Some(1.0));
    assert_eq!(all[0].times_logged(message), 1);

    server.command(&["ACL", "SETUSER", "default", "+set", "-getrange"]);
    let others = [setup.start(), setup.start()];
    eventually("why it knows no figures", || {
        let answer = ask(&others[0], "/v1/gateways");
        let why = answer["alone"].as_str()?;
        (why.contains("'getrange'") && states(&others[0]).len() == 4).then_some(())
    });
}

/// The moment in so many seconds, in milliseconds since the Unix epoch.
fn end(seconds: u64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(now.as_millis()).unwrap() + 1000 * seconds
}

/// Adds an entry to the list of gateways that ends in so many seconds.
fn list(server: &RedisServer, seconds: u64, entry: &Value) {
    let (until, entry) = (end(seconds).to_string(), format!("'{entry}'"));
    server.command(&["ZADD", "weir::list:gateways", &until, &entry]);
}

/// The entry ends by the clock of its gateway, and its figures by that of the store.
#[test]
fn a_gateway_whose_clock_is_wrong_is_never_silent_while_it_publishes_or_listed_for_ever() {
    let server = RedisServer::start();
    let upstream = Upstream::start();
    let gateway = setup(&upstream, &redis::store(&server.url())).start();
    let ids = ["ahead", "behind", "in-time"];
    for (id, seconds) in ids.into_iter().zip([1_000_000_000, 60, 200]) {
        let entry = json!({
            "form": 1, "id": id, "name": id, "address": id, "version": "9.0.0",
            "configuration": "", "since": 1, "figures": "shared",
        });
        list(&server, seconds, &entry);
        if id != "in-time" {
            let figures = "'{\"form\":1,\"in_flight\":0,\"connections\":0,\"requests\":7,\"failed\":0,\
                           \"denied\":0,\"counts_subjects\":true,\"findings\":[],\
                           \"forwarders\":[],\"limits\":{}}'";
            server.command(&["SET", &format!("weir::gateway:{id}"), figures]);
        }
    }
    let state = |id: &str| {
        let states = states(&gateway).into_iter();
        let mut states = states.filter(|(address, _)| address == id);
        states.next().map(|(_, state)| state)
    };
    let shown = || ids.map(&state).map(Option::unwrap_or_default);
    eventually("both that publish", || {
        (shown() == ["up", "up", "silent"]).then_some(())
    });
    for id in ids {
        server.command(&["DEL", &format!("weir::gateway:{id}")]);
    }
    eventually("neither as up", || {
        (shown() == ["", "silent", "silent"]).then_some(())
    });
}

#[test]
fn a_gateway_that_may_not_list_itself_says_so_once_and_does_not_try_without_end() {
    let server = RedisServer::start();
    let upstream = Upstream::start();
    server.command(&["ACL", "SETUSER", "default", "-zadd"]);
    let gateway = setup(&upstream, &redis::store(&server.url())).start();
    let message = "other gateways do not know how this one does";
    gateway.logs(message, 1);
    // Connections ask for the time once a second.
    let begun = server.calls("time");
    eventually("some publications later", || {
        (server.calls("time") > begun + 40).then_some(())
    });
    let stats = server.command(&["INFO", "commandstats"]);
    let line = stats.lines().find(|line| line.starts_with("cmdstat_zadd:"));
    let rejected = line.unwrap().split_once("rejected_calls=").unwrap().1;
    let rejected: u32 = rejected.split_once(',').unwrap().0.parse().unwrap();
    // Each change of the list adds two members.
    assert!(rejected <= 4, "{rejected}");
    assert_eq!(gateway.times_logged(message), 1);
    assert_eq!(states(&gateway).len(), 1);
}

/// Ends what another thread does, whatever becomes of the test: the scope waits for that thread.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Publications of each gateway in ten seconds, and one that may be under way.
const PUBLICATIONS: u64 = 6;

/// Waits until a gateway names the abuser with half of this rate or more, and fails if one that was
/// asked after so many publications of each gateway does not. A slow machine publishes more slowly,
/// and may hold up one gateway alone.
fn is_named_in_time(gateway: &Gateway, mut published: impl FnMut() -> u64, rate: impl Fn() -> f64) {
    eventually("the abuser, with his rate", || {
        let (published, expected) = (published(), rate());
        let subject = counted_now(gateway);
        let shown = subject["rate"].as_f64().unwrap_or_default();
        let is_named = subject["subject"] == ABUSER && shown >= expected / 2.0;
        assert!(
            is_named || published < PUBLICATIONS,
            "{subject} after {published} publications, in place of {expected} a second"
        );
        (is_named && expected > 0.0).then_some(())
    });
}

/// After ten seconds of a flood, a sixth of it was shown: the average of a minute.
#[test]
fn the_rate_of_an_abuser_is_never_that_of_the_time_before_he_began_or_after_he_ended() {
    let server = RedisServer::start();
    let upstream = Upstream::start();
    let all = three(&setup(&upstream, &redis::store(&server.url())));
    know_each_other(&all);
    let (sent, ends) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _end = EndOnDrop(&ends);
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                for gateway in &all {
                    gateway.statuses(&from(ABUSER), 1);
                    sent.lock().unwrap().push(Instant::now());
                }
                // As evenly as a slow machine can.
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let sent_in = |seconds: f64| {
            let sent = sent.lock().unwrap();
            let is_new = |at: &&Instant| at.elapsed().as_secs_f64() < seconds;
            sent.iter().filter(is_new).count() as f64
        };
        eventually("his first requests", || {
            (sent.lock().unwrap().len() >= all.len()).then_some(())
        });
        // Each publication changes the figures of a gateway.
        let listed = server.command(&["KEYS", "weir::gateway:*"]);
        let keys = listed.lines().filter(|line| line.starts_with("weir::"));
        let mut seen: Vec<_> = keys
            .map(|key| (key, server.command(&["GET", key]), 0))
            .collect();
        assert_eq!(seen.len(), all.len());
        let mut published = || {
            for (key, figures, publications) in &mut seen {
                let last = std::mem::replace(figures, server.command(&["GET", key]));
                *publications += u64::from(last != *figures);
            }
            let each = seen.iter().map(|(_, _, publications)| *publications);
            each.min().unwrap()
        };
        // Figures are up to three seconds old, and are those of up to six seconds before that.
        let seconds = 9.0;
        // The least in any third of that: the machine may have stopped him.
        let least = || {
            let until = [0.0, 3.0, 6.0, seconds].map(sent_in);
            let each = until.windows(2).map(|pair| (pair[1] - pair[0]) / 3.0);
            each.fold(f64::INFINITY, f64::min)
        };
        for gateway in &all {
            is_named_in_time(gateway, &mut published, least);
        }
        for gateway in &all {
            eventually("the rate at which he sends", || {
                let rate = counted_now(gateway)["rate"].as_f64()?;
                let is_long = sent.lock().unwrap()[0].elapsed().as_secs_f64() > seconds;
                let expected = sent_in(seconds) / seconds;
                (is_long && (rate / expected - 1.0).abs() < 0.2).then_some(())
            });
        }
    });
    for gateway in &all {
        eventually("that he has ended", || {
            let subject = counted_now(gateway);
            (subject["rate"] == 0.0 && subject["requests"].as_u64()? > 0).then_some(())
        });
    }
}

/// The first subject of the fleet in the last minute.
fn counted_now(gateway: &Gateway) -> Value {
    ask(gateway, "/v1/top?scope=fleet")["subjects"][0].clone()
}

#[test]
fn what_another_version_publishes_is_named_as_that_and_never_counted() {
    let server = RedisServer::start();
    let upstream = Upstream::start();
    let gateway = setup(&upstream, &redis::store(&server.url())).start();
    let other = |id: &str, form: u32| {
        let entry = json!({
            "form": form, "id": id, "name": id, "address": "10.0.0.9:9901", "version": "9.0.0",
            "configuration": "", "since": 1, "figures": "shared",
        });
        list(&server, 300, &entry);
    };
    other("new-entry", 2);
    other("new-figures", 1);
    server.command(&["ZADD", "weir::list:gateways", "4102444800000", "nonsense"]);
    let figures = "'{\"form\":2,\"limits\":7}'";
    server.command(&["SET", "weir::gateway:new-figures", figures]);
    let listed = eventually("both", || {
        let listed = gateways(&gateway);
        (listed.len() == 3).then_some(listed)
    });
    for name in ["new-entry", "new-figures"] {
        let listed = listed.iter().find(|listed| listed["name"] == name).unwrap();
        assert_eq!(listed["figures"], "another_version", "{listed}");
        assert_eq!(listed["version"], "9.0.0");
    }
    gateway.statuses(&from(ABUSER), 2);
    eventually("the own figures", || {
        let top = counted(&gateway, "fleet");
        (top["subjects"][0]["requests"] == 2 && top["gateways"] == 1).then_some(())
    });
}

/// Whoever writes into this Redis can spoil a value, and spoils no more than that.
#[test]
fn a_value_that_nobody_can_read_never_takes_the_view_of_the_others_or_the_connection() {
    let server = RedisServer::start();
    let upstream = Upstream::start();
    let setup = setup(&upstream, &redis::store(&server.url()));
    let all = [setup.start(), setup.start()];
    know_each_other(&all);
    let list = "weir::list:gateways";
    let entry = |id: &str| {
        let entry = json!({
            "form": 1, "id": id, "name": id, "address": "", "version": "9.0.0",
            "configuration": "", "since": 1, "figures": "shared",
        });
        format!("'{entry}'")
    };
    let until = format!("{}.5", end(300));
    server.command(&["ZADD", list, &until, &entry("of-another-type")]);
    server.command(&["ZADD", list, "1e18", &entry("no-text")]);
    server.command(&["ZADD", list, "4102444800000", "\"\\xff\\xfe\""]);
    server.command(&["LPUSH", "weir::gateway:of-another-type", "1"]);
    server.command(&["SET", "weir::gateway:no-text", "\"\\xff\\xfe\""]);
    for gateway in &all {
        let listed = eventually("all four", || {
            let listed = gateways(gateway);
            (listed.len() == 4).then_some(listed)
        });
        for listed in listed {
            let name = listed["name"].as_str().unwrap();
            let expected = match ["of-another-type", "no-text"].contains(&name) {
                true => "another_version",
                false => "shared",
            };
            assert_eq!(listed["figures"], expected, "{listed}");
        }
        assert_eq!(ask(gateway, "/v1/gateways")["alone"], Value::Null);
        assert_eq!(gateway.metric("weir_store_reachable "), Some(1.0));
    }
    let ban = put("/v1/bans/abusers/203.0.113.9", "{\"for\": \"1h\"}");
    let response = all[0].admin(&ban.with("host", "localhost"));
    assert_eq!(response.status, 200, "{}", response.text());
}

#[test]
fn gateways_with_different_limits_are_named_with_what_passes_meanwhile() {
    let server = RedisServer::start();
    let upstream = Upstream::start();
    let setup = setup(&upstream, &redis::store(&server.url()));
    let all = [setup.start(), setup.start()];
    know_each_other(&all);
    assert_eq!(said(&all[0]), Vec::<String>::new());
    let lowered = LIMIT.replace("burst: 20, count: 1", "burst: 5, count: 2");
    all[1].write("limits/defaults.yaml", &lowered);
    all[1].reload();
    for (gateway, here, there) in [(&all[0], 20, 5), (&all[1], 5, 20)] {
        says(gateway, "1 gateway with another configuration");
        let said = said(gateway).concat();
        for part in [
            "different limits: Requests".to_owned(),
            format!("Requests: here {here} at once"),
            format!("; there {there} at once"),
            "Meanwhile: at most 25 at once, then one each".to_owned(),
        ] {
            assert!(said.contains(&part), "{part:?} in {said}");
        }
    }
    let address = all[0].admin_address().to_string();
    let (_, text) = run(&all[0], &["gateways", "--admin", &address]);
    assert!(text.contains(" differs "), "{text}");
    assert!(text.contains("meanwhile: at most 25 at once"), "{text}");
    all[0].write("limits/defaults.yaml", &lowered);
    all[0].reload();
    eventually("one configuration", || {
        said(&all[0]).is_empty().then_some(())
    });
}

#[test]
fn a_lower_limit_is_never_rolled_out_without_a_word_on_who_is_over_it_at_once() {
    let server = RedisServer::start();
    let upstream = Upstream::start();
    let setup = setup(&upstream, &redis::store(&server.url()));
    let all = [setup.start(), setup.start()];
    for gateway in &all {
        gateway.statuses(&from("198.51.100.7"), 6);
        gateway.statuses(&from("198.51.100.8"), 2);
    }
    let against = format!("http://{}/", all[1].admin_address());
    let check = |burst: u32, arguments: &[&str]| {
        let limit = LIMIT.replace("burst: 20", &format!("burst: {burst}"));
        all[0].write("limits/defaults.yaml", &limit);
        run(
            &all[0],
            &[&["check", "--against", &against], arguments].concat(),
        )
    };
    let text = eventually("both gateways' subjects", || {
        let (code, text) = check(5, &[]);
        assert_eq!(code, Some(0), "{text}");
        let (_, sent) = text.split_once("OVER AT ONCE  Requests 198.51.100.7: sent ")?;
        let (sent, _) = sent.split_once(" requests in the last 1m")?;
        // More than either gateway has counted; all 12 unless the minute turns meanwhile.
        let are_added_up = (7..=12).contains(&sent.parse::<u64>().unwrap());
        let all = "against all 2 subjects known to 2 gateways: 1 over at once";
        (are_added_up && text.contains(all)).then_some(text)
    });
    assert!(!text.contains("198.51.100.8"), "{text}");
    assert_eq!(check(5, &["--strict"]).0, Some(1));
    let (code, text) = check(20, &["--strict"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("nobody would be over a limit"), "{text}");
    let (_, report) = check(5, &["--format", "json"]);
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["live"]["effects"][0]["kind"], "over_at_once");
    let (code, text) = run(&all[0], &["check", "--against", "http://127.0.0.1:1"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("no gateway answers at 127.0.0.1:1"), "{text}");
}

#[test]
fn a_gateway_that_shares_nothing_by_its_configuration_publishes_nothing_and_says_why() {
    let server = RedisServer::start();
    let upstream = Upstream::start();
    let url = server.url();
    let off = setup(
        &upstream,
        &format!("store: {{redis: {{url: \"{url}\", fleet: false}}}}"),
    )
    .start();
    let on = setup(&upstream, &redis::store(&url)).start();
    eventually("the figures of one", || {
        let keys = server.command(&["KEYS", "weir::gateway:*"]);
        keys.starts_with("*1").then_some(())
    });
    let alone = |gateway: &Gateway| ask(gateway, "/v1/gateways")["alone"].clone();
    assert_eq!(alone(&off), "store.redis.fleet is false");
    assert_eq!(alone(&on), Value::Null);
    assert_eq!((states(&on).len(), states(&off).len()), (1, 1));
    let memory = setup(&upstream, "").start();
    let why = alone(&memory);
    assert!(why.as_str().unwrap().contains("memory"), "{why}");
    assert_eq!(said(&memory), Vec::<String>::new());
}

/// Whoever may read this Redis can read what gateways publish.
#[test]
fn nothing_that_is_published_names_an_account_or_a_secret() {
    let server = RedisServer::start_with(|_| {
        ["--port", "0", "--requirepass", "planted-password"]
            .map(Into::into)
            .into()
    });
    let url = server.url();
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&["Calls: {per: account, burst: 5, count: 1, period: 1000h}"])
        .limited_by("Calls")
        .key("account: [header: x-api-key]")
        .file("hash.key", "planted-key-that-gateways-share")
        .key("hash_key: {file: hash.key}")
        .file("redis.password", "planted-password")
        .key(&format!(
            "store: {{redis: {{url: \"{url}\", password: {{file: redis.password}}}}}}"
        ))
        .start();
    gateway.statuses(&get("/").with("x-api-key", "planted-secret"), 3);
    let read = |command: &str, arguments: &[&str]| {
        let command = format!("planted-password\r\n{command}");
        let text = server.command(&[&["AUTH", &*command], arguments].concat());
        text.trim_start_matches("+OK").to_owned()
    };
    let published = eventually("the figures with the subject, and the limits", || {
        let keys = read("KEYS", &["weir::*"]);
        let names = keys.lines().filter(|line| line.starts_with("weir::"));
        let values = names.map(|name| match name.contains(":list:") {
            true => read("ZRANGE", &[name, "0", "-1"]),
            false => read("GET", &[name]),
        });
        let text = values.collect::<String>();
        // The limits follow the figures.
        (text.contains("[3,0,") && text.contains("5 at once")).then_some(text)
    });
    assert!(published.contains("Calls:"), "{published}");
    assert!(!published.contains("planted"), "{published}");
}

/// Nothing but the dashboard said so, which nobody looks at all day.
#[test]
fn the_metrics_of_each_gateway_tell_of_others_that_are_silent_or_configured_otherwise() {
    let server = RedisServer::start();
    let upstream = Upstream::start();
    let setup = setup(&upstream, &redis::store(&server.url()));
    let (one, other) = (setup.start(), setup.start());
    let shows = |metric: &str, expected: f64| {
        eventually(&format!("{metric} {expected}"), || {
            (one.metric(metric) == Some(expected)).then_some(())
        });
    };
    shows("weir_gateways{state=\"up\"}", 2.0);
    shows("weir_other_configurations", 0.0);
    let digest = gateways(&one)[0]["configuration"].clone();
    let digest = format!(
        "weir_config_digest{{digest=\"{}\"}}",
        digest.as_str().unwrap()
    );
    shows(&digest, 1.0);
    let lowered = LIMIT.replace("burst: 20", "burst: 5");
    other.write("limits/defaults.yaml", &lowered);
    other.reload();
    shows("weir_other_configurations", 1.0);
    drop(other);
    shows("weir_gateways{state=\"silent\"}", 1.0);
    shows("weir_gateways{state=\"up\"}", 1.0);
    shows("weir_other_configurations", 0.0);
    one.write("limits/defaults.yaml", &lowered);
    one.reload();
    eventually("the digest of the new configuration alone", || {
        let page = one.metrics();
        let digests = page
            .lines()
            .filter(|line| line.starts_with("weir_config_digest{"));
        (digests.count() == 1 && one.metric(&digest).is_none()).then_some(())
    });
}

/// Its state was `up`, and the finding had no reason.
#[test]
fn a_gateway_that_refused_its_configuration_never_looks_well_on_another() {
    let server = RedisServer::start();
    let upstream = Upstream::start();
    let setup = setup(&upstream, &redis::store(&server.url()));
    let pair = [setup.start(), setup.start()];
    know_each_other(&pair);
    let [one, other] = &pair;
    other.write("limits/defaults.yaml", "Broken: {per: address, burst: 0}");
    other.signal("HUP");
    let refused = || {
        gateways(one)
            .iter()
            .any(|it| it["configuration_refused"] == true)
    };
    eventually("the refusal of the other", || refused().then_some(()));
    assert_eq!(gateways(one)[0]["configuration_refused"], false);
    let address = one.admin_address().to_string();
    eventually("the refusal in the table", || {
        let (_, table) = run(one, &["gateways", "--admin", &address]);
        table.contains("up, configuration refused").then_some(())
    });
    eventually("the reason of the refusal", || {
        let (_, top) = run(one, &["top", "--once", "--admin", &address]);
        top.contains("limits/defaults.yaml:1:").then_some(())
    });
}

/// Ten requests of a burst of five passed, and each view said that all was well.
#[test]
fn a_gateway_with_another_hash_key_is_named_and_its_key_shown_to_nobody() {
    let server = RedisServer::start();
    let upstream = Upstream::start();
    let with_key = |key: &str| {
        setup(&upstream, &redis::store(&server.url()))
            .limits(&["Calls: {per: account, burst: 5, count: 1, period: 1000h}"])
            .limited_by("Calls")
            .key("account: [header: x-api-key]")
            .file("hash.key", key)
            .key("hash_key: {file: hash.key}")
            .start()
    };
    let all = ["planted-key-one-16-bytes", "planted-key-two-16-bytes"].map(with_key);
    know_each_other(&all);
    let acme = get("/").with("x-api-key", "acme");
    let passed = all.iter().flat_map(|gateway| gateway.statuses(&acme, 6));
    assert_eq!(passed.filter(|status| *status == 200).count(), 10);
    for (gateway, other) in [(&all[0], &all[1]), (&all[1], &all[0])] {
        says(gateway, "1 gateway with another hash_key");
        let other = other.admin_address().to_string();
        assert!(said(gateway).concat().contains(&other));
        let address = gateway.admin_address().to_string();
        let (_, text) = run(gateway, &["gateways", "--admin", &address]);
        assert!(text.contains("another hash_key, so it counts"), "{text}");
        let shown = ask(gateway, "/v1/gateways").to_string();
        assert!(!shown.contains("planted"), "{shown}");
    }
    all[1].write("hash.key", "planted-key-one-16-bytes");
    all[1].reload();
    eventually("one key", || said(&all[0]).is_empty().then_some(()));
    let keys: Vec<_> = gateways(&all[0])
        .iter()
        .map(|it| it["hash_key"].clone())
        .collect();
    assert!(keys[0].is_string() && keys[0] == keys[1], "{keys:?}");
}

/// It ended the connection by which it was read, and the fleet was this gateway alone.
#[test]
fn a_huge_value_in_the_place_of_figures_hides_those_of_no_other_gateway() {
    let server = RedisServer::start();
    let upstream = Upstream::start();
    let setup = setup(&upstream, &redis::store(&server.url()));
    let gateways = [setup.start(), setup.start()];
    know_each_other(&gateways);
    let entry = json!({
        "form": 1, "id": "huge", "name": "huge", "address": "huge", "version": "9.0.0",
        "configuration": "", "since": 1, "figures": "shared",
    });
    list(&server, 300, &entry);
    let last = (50_u64 << 20).to_string();
    server.command(&["SETRANGE", "weir::gateway:huge", &last, "x"]);
    eventually("all three, and the figures of two", || {
        let listed = self::gateways(&gateways[0]);
        let shared = listed.iter().filter(|listed| listed["figures"] == "shared");
        (listed.len() == 3 && shared.count() == 2).then_some(())
    });
    gateways[0].log_tells("weir::gateway:huge");
    assert_eq!(gateways[0].times_logged("the store is out of reach"), 0);
    assert!(
        said(&gateways[0])
            .iter()
            .all(|text| !text.contains("alone"))
    );
}
