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
