//! Request ids: the same one in the log, in what the upstream gets and in what the client gets.

use http::Method;
use serde_json::Value;

use crate::support::*;

const TRUST: &str = "client_address: {trusted_proxies: [127.0.0.1]}";

fn logged(gateway: &Gateway, path: &str) -> String {
    let line = gateway.logged(path);
    line["request_id"].as_str().unwrap_or_default().to_owned()
}

/// The id that the client is told, which has to be one that the gateway made.
fn made(response: &Response) -> String {
    let lines = response.lines("x-request-id");
    let [id] = lines[..] else {
        panic!("one id, not {lines:?}");
    };
    assert!(uuid::Uuid::try_parse(id).is_ok(), "{id}");
    id.to_owned()
}

#[test]
fn the_client_the_upstream_and_the_log_get_the_same_id() {
    let upstream = Upstream::answering(|_| {
        let mut answer = upstream::text("real");
        let own = "of-the-app".parse().unwrap();
        answer.headers_mut().insert("x-request-id", own);
        answer
    });
    let gateway = Setup::before(&upstream).key("request_id: true").start();
    let mut ids = Vec::new();
    for (path, sent) in [
        ("/made", get("/made")),
        ("/forged", get("/forged").with("x-request-id", "forged")),
    ] {
        let answer = gateway.send(&sent.with("x_request_id", "forged"));
        let id = made(&answer);
        let received = upstream.last();
        assert_eq!(received.lines("x-request-id"), [&*id], "{path}");
        assert!(!received.headers.contains_key("x_request_id"), "{path}");
        assert_eq!(logged(&gateway, path), id);
        ids.push(id);
    }
    assert_ne!(ids[0], ids[1]);
}

#[test]
fn a_trusted_proxy_is_believed_its_id_and_no_option_of_its_connection_removes_it() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .key("request_id: {header: X-Correlation-Id}")
        .key(TRUST)
        .start();
    let sent = get("/kept")
        .with("x-correlation-id", "abc:1")
        .with("x-request-id", "of-the-client")
        .with("connection", "x-correlation-id");
    let answer = gateway.send(&sent);
    assert_eq!(answer.lines("x-correlation-id"), ["abc:1"]);
    assert_eq!(upstream.last().lines("x-correlation-id"), ["abc:1"]);
    assert_eq!(upstream.last().lines("x-request-id"), ["of-the-client"]);
    assert_eq!(answer.field("x-request-id"), None);
    assert_eq!(logged(&gateway, "/kept"), "abc:1");

    let answer = gateway.send(&get("/broken").with("x-correlation-id", "a \"b"));
    let id = answer.field("x-correlation-id").unwrap();
    assert!(uuid::Uuid::try_parse(id).is_ok(), "{id}");
    assert_eq!(logged(&gateway, "/broken"), id);
}

#[test]
fn what_weir_answers_itself_says_the_id_in_the_problem_document() {
    let upstream = Upstream::start();
    let upstreams = format!(
        "{{app: {{servers: [\"http://{}\"]}}, gone: {{servers: [\"http://{}\"]}}}}",
        upstream.address(),
        refusing_address()
    );
    let gateway = Setup::with_upstreams(&upstreams)
        .key("request_id: true")
        .limits(&["L: {per: address, burst: 1, count: 1, period: 1000h}"])
        .routes(&[
            "{name: limited, match: {path: /limited}, upstream: app, limits: [L]}",
            "{name: gone, match: {path: /gone}, upstream: gone, limits: []}",
            "{name: buffered, match: {path: /buffered}, upstream: gone, limits: [], \
             request_buffering: {max: 64KiB}}",
        ])
        .start();
    assert_eq!(gateway.send(&get("/limited")).status, 200);
    for (path, status) in [
        ("/limited", 429),
        ("/gone", 502),
        ("/buffered", 502),
        ("/unrouted", 404),
        ("/a%00b", 400),
    ] {
        let answer = gateway.send(&get(path));
        assert_eq!(answer.status, status, "{path}");
        let id = made(&answer);
        let document: Value = answer.json();
        assert_eq!(document["request_id"], *id, "{path}");
        assert_eq!(document["status"], status, "{path}");
        eventually("the id in the log", || {
            let mut lines = gateway.access(path).into_iter();
            lines.find(|line| line["request_id"] == *id)
        });
        if status == 502 {
            let failed = eventually("the failure in the log", || {
                let mut lines = gateway.log().into_iter();
                lines.find(|line| {
                    line["message"] == "upstream request failed" && line["request_id"] == *id
                })
            });
            assert_eq!(failed["upstream"], "gone");
        }
    }
    let page = gateway.send(&get("/unrouted").with("accept", "text/html"));
    let id = made(&page);
    assert!(page.text().contains(&id), "{}", page.text());
}

#[test]
fn a_decoy_shows_an_id_where_a_real_response_does() {
    let upstream = Upstream::answering(|_| {
        let mut answer = upstream::text("real");
        let own = "of-the-app".parse().unwrap();
        answer.headers_mut().insert("x-request-id", own);
        answer
    });
    let gateway = Setup::before(&upstream)
        .key("request_id: true")
        .key("decoys: {sent: {body: real}}")
        .limits(&["L: {per: address, burst: 2, count: 1, period: 1000h}"])
        .routes(&["{name: all, match: {}, upstream: app, limits: [L], on_denied: {shadow: sent}}"])
        .start();
    let real: Vec<_> = (0..2).map(|_| gateway.send(&get("/"))).collect();
    let decoy = gateway.send(&get("/"));
    assert_eq!(upstream.count(), 2, "the last one is a decoy");
    assert_eq!(decoy.names(), real[1].names());
    let ids: Vec<_> = real.iter().chain([&decoy]).map(made).collect();
    assert!(ids[0] != ids[1] && ids[1] != ids[2], "{ids:?}");
}

#[test]
fn an_upgrade_and_a_stream_have_ids_too() {
    let upstream = WebSocket::start();
    let servers = format!("{{app: {{servers: [\"http://{}\"]}}}}", upstream.address());
    let gateway = Setup::with_upstreams(&servers)
        .key("request_id: true")
        .start();
    let mut client = gateway.client();
    let ask = get("/socket")
        .with("connection", "Upgrade")
        .with("upgrade", "websocket")
        .with("sec-websocket-version", "13")
        .with("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
    client.write(&ask.bytes()).unwrap();
    let head = client.read_head().unwrap();
    assert_eq!(head.status, 101);
    let id = made(&head);
    drop(client);
    let sent = upstream.ended();
    assert!(sent.contains(&format!("x-request-id: {id}\r\n")), "{sent}");
    assert_eq!(logged(&gateway, "/socket"), id);
}

#[test]
fn a_denied_call_of_grpc_has_its_id_in_the_metadata() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .key("request_id: true")
        .limits(&["L: {per: address, burst: 1, count: 1, period: 1000h}"])
        .limited_by("L")
        .start();
    assert_eq!(gateway.send(&get("/")).status, 200);
    let answer = http2::run(async {
        let mut sender = http2::connect(gateway.address()).await;
        let mut call = http2::get("/a.B/C");
        *call.method_mut() = Method::POST;
        let kind = "application/grpc".parse().unwrap();
        call.headers_mut().insert("content-type", kind);
        http2::read(sender.send_request(call).await.unwrap()).await
    });
    assert_eq!(answer.head.headers["grpc-status"], "8");
    let id = answer.head.headers["x-request-id"].to_str().unwrap();
    assert_eq!(logged(&gateway, "/a.B/C"), id);
}

#[test]
fn a_reload_turns_ids_on_and_off() {
    let upstream = Upstream::start();
    let setup = Setup::before(&upstream);
    let gateway = setup.start();
    assert_eq!(gateway.send(&get("/")).field("x-request-id"), None);
    let on = setup.key("request_id: true").gateway_yaml();
    gateway.write("gateway.yaml", &on);
    gateway.reload();
    made(&gateway.send(&get("/")));
    gateway.write(
        "gateway.yaml",
        &on.replace("request_id: true", "request_id: false"),
    );
    gateway.reload();
    assert_eq!(gateway.send(&get("/")).field("x-request-id"), None);
}
