//! What the gateway says of itself when something fails that it depends on: to programs, on a
//! terminal and in its events.

use std::net::SocketAddr;

use http::StatusCode;
use serde_json::Value;

use crate::redis;
use crate::support::gateway::weir;
use crate::support::tls::Certificate;
use crate::support::*;

/// A gateway before these servers.
fn before(servers: &[SocketAddr]) -> Setup {
    let servers: Vec<_> = servers
        .iter()
        .map(|at| format!("\"http://{at}\""))
        .collect();
    Setup::with_upstreams(&format!("{{app: {{servers: [{}]}}}}", servers.join(", ")))
}

fn ask(gateway: &Gateway) -> Value {
    let response = gateway.admin(&get("/v1/findings").with("host", "localhost"));
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()
}

/// What is said of the gateway: kinds and texts.
fn said(gateway: &Gateway) -> Vec<(String, String)> {
    let answer = ask(gateway);
    let found = answer["gateway"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    found
        .map(|found| (text(&found["kind"]), text(&found["text"])))
        .collect()
}

/// The text about this kind, once there is one.
fn text_of(gateway: &Gateway, kind: &str) -> String {
    eventually(&format!("a finding about {kind}"), || {
        let mut said = said(gateway).into_iter();
        said.find(|(of, _)| of == kind).map(|(_, text)| text)
    })
}

fn top(gateway: &Gateway) -> String {
    let mut command = weir();
    let address = gateway.admin_address().to_string();
    command.args(["top", "--once", "--admin", &address]);
    let output = command.current_dir(gateway.folder()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// 200 of 200 requests got a 502, and nothing said so.
#[test]
fn a_single_server_that_is_dead_never_looks_well() {
    let server = refusing_address();
    let gateway = before(&[server]).start();
    assert_eq!(said(&gateway), []);
    let statuses = gateway.statuses(&get("/"), 20);
    assert!(statuses.iter().all(|status| *status >= 500), "{statuses:?}");
    let of_upstream = format!(
        "of the servers of upstream app, 1 of 1 fail: {server} (it cannot be connected to)"
    );
    let of_route = "20 of 20 requests of route all in the last minute ended with a server error \
                    (5xx), those that limits denied left aside";
    let expected = [("upstream", &*of_upstream), ("errors", of_route)];
    let expected = expected.map(|(kind, text)| (kind.to_owned(), text.to_owned()));
    // Requests are counted once their responses are sent.
    eventually("both findings", || {
        (said(&gateway) == expected).then_some(())
    });
    let printed = top(&gateway);
    assert!(
        printed.starts_with(&format!("UPSTREAM    {of_upstream}\n")),
        "{printed}"
    );
    assert!(
        printed.contains(&format!("ERRORS      {of_route}\n")),
        "{printed}"
    );
}

#[test]
fn a_single_server_that_answers_with_errors_is_named_until_it_answers_well() {
    let upstream = Upstream::answering(|request| {
        let mut answer = upstream::text("real");
        if request.target != "/good" {
            *answer.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        }
        answer
    });
    for ejection in ["on", "off"] {
        let address = upstream.address();
        let off = if ejection == "off" {
            ", ejection: off"
        } else {
            ""
        };
        let upstreams = format!("{{app: {{servers: [\"http://{address}\"]{off}}}}}");
        let gateway = Setup::with_upstreams(&upstreams).start();
        // A few errors are no reason to call a server dead.
        assert_eq!(gateway.statuses(&get("/"), 4), [500; 4]);
        assert_eq!(said(&gateway), [], "{ejection}");
        assert_eq!(gateway.statuses(&get("/"), 1), [500]);
        let text = text_of(&gateway, "upstream");
        assert!(
            text.contains("it responds with statuses that are failures"),
            "{text}"
        );
        assert_eq!(gateway.statuses(&get("/good"), 5), [200; 5]);
        // What failed within the minute is still told.
        eventually("no finding but that of errors", || {
            let said = said(&gateway);
            let is_told = |text: &str| text.starts_with("5 of 10 requests");
            matches!(&*said, [(kind, text)] if kind == "errors" && is_told(text)).then_some(())
        });
    }
}

#[test]
fn a_server_that_is_ejected_is_named_with_the_cause() {
    let upstream = Upstream::start();
    let server = refusing_address();
    let gateway = before(&[upstream.address(), server]).start();
    assert_eq!(gateway.statuses(&get("/"), 8), [200; 8]);
    let expected = format!("1 of 2 get no requests: {server} (it cannot be connected to)");
    let text = text_of(&gateway, "upstream");
    assert!(text.ends_with(&expected), "{text}");
    assert_eq!(said(&gateway).len(), 1, "no request has failed");
}

/// A page for maintenance is the will of the operator, and a denial that of a limit.
#[test]
fn what_operators_answer_with_a_server_error_is_no_failure_of_the_app() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: address, burst: 1, count: 1, period: 1000h}"])
        .routes(&[
            "{name: down, match: {path: /down}, response: {status: 503, body: later}}",
            "{name: all, match: {}, upstream: app, limits: [L], on_denied: {reject: {status: 503}}}",
        ])
        .start();
    assert_eq!(gateway.statuses(&get("/down"), 9), [503; 9]);
    assert_eq!(gateway.statuses(&get("/"), 9)[..2], [200, 503]);
    assert_eq!(said(&gateway), []);
}

#[test]
fn a_reload_that_was_refused_is_told_with_its_errors_until_it_is_corrected() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).start();
    let good = gateway.read("gateway.yaml");
    gateway.write("gateway.yaml", &good.replace("workers: 2", "workers: many"));
    gateway.signal("HUP");
    let text = text_of(&gateway, "configuration");
    assert!(text.contains("was refused"), "{text}");
    let detail = ask(&gateway)["gateway"][0]["detail"].to_string();
    assert!(detail.contains("gateway.yaml:3"), "{detail}");
    let printed = top(&gateway);
    assert!(printed.starts_with("CONFIG      "), "{printed}");
    assert!(printed.contains("many"), "{printed}");
    gateway.write("gateway.yaml", &good);
    gateway.signal("HUP");
    eventually("no findings", || said(&gateway).is_empty().then_some(()));
}

#[test]
fn a_store_that_is_out_of_reach_is_told() {
    let mut server = RedisServer::start();
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: address, burst: 100, count: 1, period: 1000h}"])
        .limited_by("L")
        .key(&redis::store(&server.url()))
        .start();
    gateway.statuses(&get("/"), 1);
    assert_eq!(said(&gateway), []);
    server.kill();
    let text = eventually("a finding about the store", || {
        gateway.statuses(&get("/"), 1);
        let mut said = said(&gateway).into_iter();
        said.find(|(kind, text)| kind == "store" && text.contains("out of reach"))
    });
    assert!(text.1.contains("on_failure"), "{text:?}");
}

#[test]
fn a_certificate_is_told_of_before_it_ends_and_after_that() {
    let upstream = Upstream::start();
    let certificate = Certificate::lasting("a.example.com", 30);
    let setup = Setup::before(&upstream)
        .listening("[{address: \"127.0.0.1:0\", tls: {certificate: 1.pem, key: 1.key}}]")
        .file("1.pem", &certificate.certificate)
        .file("1.key", &certificate.key);
    for (days, expected) in [
        (20, None),
        (26, Some(" expires in 3d")),
        (31, Some(" has expired")),
    ] {
        let gateway = Gateway::start_with_clock_off_by(setup.written(), days * 24 * 3600);
        let said = said(&gateway);
        let texts: Vec<_> = said.iter().map(|(_, text)| &**text).collect();
        match expected {
            None => assert!(texts.is_empty(), "{days}: {texts:?}"),
            Some(expected) => {
                let is_told = matches!(*texts, [text] if text.contains(expected));
                assert!(is_told, "{days}: {texts:?}");
            }
        }
    }
}

/// A rate was a fraction of what a client sent right after the start.
#[test]
fn rates_of_the_first_hour_are_never_divided_by_a_whole_one() {
    let upstream = Upstream::start();
    let begun = std::time::Instant::now();
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: address, burst: 5000, count: 5000, period: 1h}"])
        .limited_by("L")
        .start();
    gateway.statuses(&get("/"), 120);
    let top = gateway.admin(&get("/v1/top?period=hour").with("host", "localhost"));
    let elapsed = begun.elapsed().as_secs_f64();
    let subject = top.json()["subjects"][0].clone();
    let rate = subject["rate"].as_f64().unwrap();
    // To a hundredth, and over a second that has begun.
    let least = 120.0 / (elapsed + 1.0) - 0.01;
    assert!(rate >= least, "{subject} after {elapsed} s");
}

#[test]
fn a_server_that_speaks_no_tls_never_looks_as_if_nothing_listened_there() {
    let upstream = Upstream::start();
    let server = upstream.address();
    let upstreams = format!("{{app: {{servers: [\"https://{server}\"]}}}}");
    let gateway = Setup::with_upstreams(&upstreams).start();
    assert_eq!(gateway.send(&get("/")).status, StatusCode::BAD_GATEWAY);
    let expected = format!("{server} (it and the gateway cannot agree on TLS)");
    let told = text_of(&gateway, "upstream");
    assert!(told.contains(&expected), "{told}");
}
