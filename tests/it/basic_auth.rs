//! Accounts named by the user of a verified password.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::support::*;

/// The password `secret`, as `htpasswd -nbB -C 4 red secret` writes it; hashed by crypt(3).
const USERS: &str = "red:$2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW\n";

fn by(credentials: &str) -> Request {
    let credentials = STANDARD.encode(credentials);
    get("/").with("authorization", &format!("Basic {credentials}"))
}

/// Two requests per account; requests without one are refused.
fn gateway(upstream: &Upstream, users: &str) -> Gateway {
    Setup::before(upstream)
        .key("account: [{basic: {file: users}}]")
        .file("users", users)
        .limits(&["L: {per: account, missing: deny, burst: 2, count: 1, period: 1000h}"])
        .limited_by("L")
        .start()
}

#[test]
fn a_verified_user_is_an_account_over_http1_and_http2() {
    let upstream = Upstream::start();
    let gateway = gateway(&upstream, USERS);
    for (credentials, status) in [
        ("red:wrong", 403),
        ("green:secret", 403),
        ("red:secret", 200),
        ("red:wrong", 403),
    ] {
        assert_eq!(
            gateway.send(&by(credentials)).status,
            status,
            "{credentials}"
        );
    }
    assert_eq!(gateway.send(&get("/")).status, 403);
    // The app sees what the client sent.
    let sent = format!("Basic {}", STANDARD.encode("red:secret"));
    assert_eq!(upstream.last().lines("authorization"), [sent.as_str()]);
    http2::run(async {
        let mut sender = http2::connect(gateway.address()).await;
        for expected in [200, 429] {
            let mut request = http2::get("/");
            let value = sent.parse().unwrap();
            request.headers_mut().insert("authorization", value);
            let answer = sender.send_request(request).await.unwrap();
            assert_eq!(answer.status(), expected);
        }
    });
}

#[test]
fn a_password_that_changes_holds_from_the_reload_on() {
    let upstream = Upstream::start();
    let gateway = gateway(&upstream, USERS);
    assert_eq!(gateway.send(&by("red:secret")).status, 200);
    gateway.write("users", &USERS.replace("red:", "blue:"));
    gateway.reload();
    assert_eq!(gateway.send(&by("red:secret")).status, 403);
    assert_eq!(gateway.send(&by("blue:secret")).status, 200);
}

/// If all users had to be verified again, most would have no account for as long as that takes.
#[test]
fn a_reload_does_not_forget_who_was_verified() {
    let upstream = Upstream::start();
    let gateway = gateway(&upstream, USERS);
    assert_eq!(gateway.send(&by("red:secret")).status, 200);
    // Another user, whose password nobody has the time to verify.
    let endless = "$argon2id$v=19$m=8,t=4000000000,p=1$c2FsdHNhbHQ$c2FsdHNhbHRzYWx0c2FsdA";
    gateway.write("users", &format!("green:{endless}\n{USERS}"));
    gateway.reload();
    let places = processors();
    let mut waiting: Vec<_> = (0..places).map(|_| gateway.client()).collect();
    for (place, client) in waiting.iter_mut().enumerate() {
        let wrong = by(&format!("green:{place}"));
        client.write(&wrong.bytes()).unwrap();
    }
    assert_eq!(gateway.send(&by("red:secret")).status, 200);
}

/// At least as many as Weir verifies passwords at a time.
fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Each of them takes the processor for a moment, and other clients do not wait for that.
#[test]
fn a_flood_of_wrong_passwords_holds_up_no_one_else() {
    let upstream = Upstream::start();
    let gateway = gateway(&upstream, USERS);
    assert_eq!(gateway.send(&by("red:secret")).status, 200);
    let load = Load::start(gateway.address(), 8, |client, count| {
        by(&format!("red:{client}-{count}"))
    });
    load.go_on_for(20);
    assert_eq!(gateway.send(&by("red:secret")).status, 200);
    let report = load.stop();
    assert_eq!(report.failures, [""; 0]);
    assert_eq!(report.count(403), report.statuses.len());
}

/// A user whose password nobody has the time to verify: whoever waits for that gets 503 after 10 s.
const ENDLESS: &str =
    "green:$argon2id$v=19$m=8,t=4000000000,p=1$c2FsdHNhbHQ$c2FsdHNhbHRzYWx0c2FsdA\n";

fn unverified(request: Request) -> Request {
    let credentials = STANDARD.encode("green:guess");
    request.with("authorization", &format!("Basic {credentials}"))
}

/// A wrong password took 65 ms of a processor for each 400, 404, 403 and 429 as well.
#[test]
fn no_password_is_verified_for_a_request_that_is_refused_whatever_its_account() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .key("account: [{basic: {file: users}}]")
        .key("block: {addresses: [127.0.0.3]}")
        .key(
            "bans: {trapped: {per: address, strikes: {paths: /trap, count: 1, period: 1h}, \
             for: 1h}}",
        )
        .file("users", ENDLESS)
        .limits(&[
            "PerAddress: {per: address, burst: 1, count: 1, period: 1000h}",
            "PerUser: {per: account, burst: 1, count: 1, period: 1000h}",
            "PerKey: {per: 'header:x-key', missing: deny, burst: 1, count: 1, period: 1000h}",
        ])
        .routes(&[
            "{match: {path: /app}, upstream: app, limits: [PerUser, PerAddress]}",
            "{match: {path: /key}, upstream: app, limits: [PerUser, PerKey]}",
            "{match: {path: /trap}, upstream: app, limits: []}",
            "{match: {path: /fixed}, response: {body: hi}, limits: [PerAddress]}",
        ])
        .start();
    let from = |host: u8, request: &Request| {
        let source = std::net::Ipv4Addr::new(127, 0, 0, host);
        Client::connect_from(source, gateway.address())
            .send(request)
            .status
    };
    assert_eq!(from(1, &get("/app")), 200);
    assert_eq!(from(2, &get("/trap")), 200);
    gateway.logs("ban begun", 1);
    for (host, path, status) in [
        (1, "/app", 429),
        (1, "/key", 403),
        (1, "/nothing", 404),
        (1, "/app/%zz", 400),
        (2, "/app", 429),
        (2, "/trap", 429),
        (3, "/app", 403),
        (4, "/fixed", 200),
    ] {
        assert_eq!(from(host, &unverified(get(path))), status, "{host} {path}");
    }
}

/// A client that goes on while it is denied would have its denials forgotten by a new password each
/// time.
#[test]
fn what_is_refused_without_its_account_is_counted_like_all_else() {
    until_left(MINUTE, HOUR);
    let upstream = Upstream::start();
    for (count_denied, remaining) in [(true, 0), (false, 1)] {
        let limit = format!(
            "L: {{per: address, algorithm: sliding_window, count_denied: {count_denied}, count: 2, \
             period: 1000h}}"
        );
        let gateway = Setup::before(&upstream)
            .key("account: [{basic: {file: users}}]")
            .file("users", ENDLESS)
            .limits(&[&limit])
            .limited_by("L")
            .start();
        assert_eq!(gateway.statuses(&get("/"), 2), [200, 200]);
        assert_eq!(gateway.send(&unverified(get("/"))).status, 429);
        let admin = |request: Request| {
            let response = gateway.admin(&request.with("host", "127.0.0.1"));
            assert_eq!(response.status, 200, "{}", response.text());
            response.json()
        };
        let subject = &admin(get("/v1/top?period=hour"))["subjects"][0];
        assert_eq!(
            (&subject["requests"], &subject["denied"]),
            (&3.into(), &1.into())
        );
        // One unit is given back, of two or of three.
        let bucket = admin(post("/v1/buckets/L/127.0.0.1/refund", "{\"cost\": 1}"));
        assert_eq!(bucket["remaining"], remaining);
    }
}

/// A ban keeps a request out before any limit does, so a limit that counts what it denies must not have
/// the others taken from.
#[test]
fn a_banned_client_takes_nothing_from_limits_with_passwords_that_nobody_verified() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .key("account: [{basic: {file: users}}]")
        .key(
            "bans: {trapped: {per: address, strikes: {paths: /trap, count: 1, period: 1h}, \
             for: 1h}}",
        )
        .file("users", ENDLESS)
        .limits(&[
            "Own: {per: address, algorithm: sliding_window, count_denied: true, count: 9, \
             period: 1000h}",
            "All: {per: route, burst: 9, count: 1, period: 1000h}",
        ])
        .limited_by("Own, All")
        .start();
    assert_eq!(gateway.send(&get("/trap")).status, 200);
    gateway.logs("ban begun", 1);
    for _ in 0..3 {
        assert_eq!(gateway.send(&unverified(get("/"))).status, 429);
    }
    let all = gateway.admin(&get("/v1/buckets/All/all").with("host", "127.0.0.1"));
    assert_eq!(all.json()["remaining"], 8, "{}", all.text());
}

/// Each password is a new one, so that each request is looked at before its account is known.
#[test]
fn a_request_is_counted_once_also_if_its_password_is_verified_in_between() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .key("account: [{basic: {file: users}}]")
        .key(
            "bans: {trapped: {per: address, strikes: {paths: /trap, count: 2, period: 1h}, \
             for: 1h}}",
        )
        .file("users", USERS)
        .limits(&["L: {per: address, burst: 3, count: 1, period: 1000h}"])
        .limited_by("L")
        .start();
    let wrong = |path, password: &str| {
        let credentials = STANDARD.encode(format!("red:{password}"));
        let request: Request = get(path);
        gateway.send(&request.with("authorization", &format!("Basic {credentials}")))
    };
    for (password, remaining) in [("a", "r=2"), ("b", "r=1")] {
        let response = wrong("/", password);
        assert_eq!(response.status, 200);
        assert!(response.field("ratelimit").unwrap().contains(remaining));
    }
    assert_eq!(wrong("/trap", "c").status, 200);
    assert_eq!(gateway.times_logged("ban begun"), 0);
    assert_eq!(wrong("/trap", "d").status, 429);
    gateway.logs("ban begun", 1);
}

#[test]
fn the_log_and_the_headers_of_both_directions_show_the_account_of_a_first_request() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .key("account: [{basic: {file: users}}]")
        .key("log: {account: plain}")
        .file("users", USERS)
        .routes(&[
            "{match: {}, upstream: app, limits: [], \
             request_headers: {set: {x-user: '{{ account }}'}}, \
             response_headers: {set: {x-user: '{{ account }}'}}}",
            "{match: {path: /fixed}, response: {body: hi}, limits: [], \
             response_headers: {set: {x-user: '{{ account }}'}}}",
        ])
        .start();
    let response = gateway.send(&by("red:secret"));
    assert_eq!(response.field("x-user"), Some("red"));
    assert_eq!(upstream.last().lines("x-user"), ["red"]);
    let line = gateway.logged("/");
    assert_eq!(line["account"], "red");
    let wrong = gateway.send(&by("red:wrong"));
    assert_eq!((wrong.status, wrong.field("x-user")), (200, None));
    gateway.write("users", &USERS.replace("red:", "blue:"));
    gateway.reload();
    let credentials = format!("Basic {}", STANDARD.encode("blue:secret"));
    let fixed = gateway.send(&get("/fixed").with("authorization", &credentials));
    assert_eq!(fixed.field("x-user"), Some("blue"));
}

/// Who is on the allow list is let in from a blocked address, and so is asked for a password there.
#[test]
fn an_account_that_is_allowed_is_let_in_whatever_holds_for_its_address() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .key("account: [{basic: {file: users}}]")
        .key("block: {addresses: [127.0.0.1]}")
        .key("allow: {accounts: [red]}")
        .file("users", USERS)
        .start();
    assert_eq!(gateway.send(&by("red:wrong")).status, 403);
    assert_eq!(gateway.send(&by("red:secret")).status, 200);
}
