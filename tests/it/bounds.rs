//! Bounds of requests in size and time, as a route or its upstream has them.

use std::collections::HashSet;
use std::time::Duration;

use http_body_util::{BodyExt, StreamBody};

use crate::support::upstream::text;
use crate::support::*;

/// A gateway whose routes take bodies of 8 bytes, or of 4 on `/small`.
fn of_eight_bytes(upstream: &Upstream) -> Gateway {
    let address = upstream.address();
    Setup::with_upstreams(&format!(
        "{{app: {{servers: [\"http://{address}\"], max_body_bytes: 8}}}}"
    ))
    .key("decoys: {fine: {body: fine}}")
    .limits(&["L: {per: address, burst: 2, count: 2, period: 1000h}"])
    .routes(&[
        "{name: all, match: {}, upstream: app}",
        "{name: small, match: {path: /small}, upstream: app, max_body_bytes: 4}",
        "{name: large, match: {path: /large}, upstream: app, max_body_bytes: 1KiB}",
        "{name: limited, match: {path: /limited}, upstream: app, limits: [L], \
         on_denied: {shadow: fine}}",
    ])
    .start()
}

fn chunked(target: &str, chunks: &[&str]) -> Vec<u8> {
    let mut text =
        format!("POST {target} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n");
    for chunk in chunks {
        text.push_str(&format!("{:x}\r\n{chunk}\r\n", chunk.len()));
    }
    text.push_str("0\r\n\r\n");
    text.into_bytes()
}

fn assert_too_large(response: &Response) {
    assert_eq!(response.status, 413);
    let media_type = response.field("content-type");
    assert_eq!(media_type, Some("application/problem+json"));
    assert_eq!(response.json()["status"], 413);
}

#[test]
fn a_body_that_is_too_large_is_refused_before_anything_is_forwarded() {
    let upstream = Upstream::start();
    let gateway = of_eight_bytes(&upstream);
    assert_eq!(gateway.send(&post("/", "12345678")).status, 200);
    assert_eq!(gateway.send(&post("/small", "1234")).status, 200);
    assert_eq!(gateway.send(&post("/large", &"x".repeat(1024))).status, 200);
    assert_eq!(upstream.count(), 3);
    assert_too_large(&gateway.send(&post("/", "123456789")));
    assert_too_large(&gateway.send(&post("/small", "12345")));
    assert_too_large(&gateway.send(&post("/large", &"x".repeat(1025))));
    // The body that is left over does not become the next request.
    assert_eq!(gateway.statuses(&post("/", "123456789"), 3), [413; 3]);
    assert_eq!(upstream.count(), 3);
}

#[test]
fn a_client_that_expects_100_continue_is_told_413_in_its_place() {
    let upstream = Upstream::start();
    let gateway = of_eight_bytes(&upstream);
    let mut client = gateway.client();
    let head = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\nexpect: 100-continue\r\n\r\n";
    client.write(head.as_bytes()).unwrap();
    let answer = String::from_utf8(client.rest()).unwrap();
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert_eq!(upstream.count(), 0);
}

#[test]
fn a_body_of_unknown_length_is_cut_when_it_turns_out_to_be_too_large() {
    let upstream = Upstream::start();
    let gateway = of_eight_bytes(&upstream);
    let answer = |bytes: &[u8]| {
        let mut client = gateway.client();
        client.write(bytes).unwrap();
        client.read("POST").unwrap()
    };
    assert_eq!(answer(&chunked("/", &["1234", "5678"])).status, 200);
    assert_eq!(upstream.last().body, "12345678");
    assert_too_large(&answer(&chunked("/", &["1234", "56789"])));
    assert_too_large(&answer(&chunked("/small", &["12345"])));
    assert!(upstream.last().body.len() <= 8, "{:?}", upstream.last());

    let by_http2 = |texts: &'static [&str]| {
        http2::run(async {
            let mut sender = http2::connect(gateway.address()).await;
            let frames = texts
                .iter()
                .map(|text| Ok(http_body::Frame::data(bytes::Bytes::from(*text))));
            let body = StreamBody::new(futures_util::stream::iter(frames)).boxed();
            let request = http::Request::post("http://a/").body(body).unwrap();
            sender
                .send_request(request)
                .await
                .unwrap()
                .status()
                .as_u16()
        })
    };
    assert_eq!(by_http2(&["1234", "5678"]), 200);
    assert_eq!(by_http2(&["1234", "56789"]), 413);
    assert!(upstream.last().body.len() <= 8, "{:?}", upstream.last());
}

/// Otherwise a client that is shadow-banned would find out by a large body.
#[test]
fn the_bound_of_a_body_does_not_tell_of_a_shadow_ban_and_costs_no_units() {
    let upstream = Upstream::start();
    let gateway = of_eight_bytes(&upstream);
    let answers = || {
        let known = gateway.send(&post("/limited", "123456789"));
        let mut client = gateway.client();
        client.write(&chunked("/limited", &["123456789"])).unwrap();
        let unknown = client.read("POST").unwrap();
        [known, unknown].map(|response| (response.status, response.text().to_owned()))
    };
    assert_eq!(answers()[0].0, 413);
    let allowed = answers();
    let fine = |target| gateway.send(&post(target, "x")).text().to_owned();
    assert_eq!(
        fine("/limited"),
        "fine",
        "the two chunked bodies have taken their units"
    );
    assert_eq!(answers(), allowed);
}

#[test]
fn a_route_bounds_how_long_all_of_a_request_may_take() {
    let upstream = Upstream::serving(|request| async move {
        match request.uri().path() {
            "/fast" => text("fast"),
            "/endless" => {
                let pieces = futures_util::stream::unfold((), |()| async {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    let piece = bytes::Bytes::from_static(b"x");
                    Some((Ok(http_body::Frame::data(piece)), ()))
                });
                http::Response::new(StreamBody::new(pieces).boxed())
            }
            _ => std::future::pending().await,
        }
    });
    let gateway = Setup::before(&upstream)
        .routes(&["{name: all, match: {}, upstream: app, total_timeout: 300ms}"])
        .start();
    assert_eq!(gateway.send(&get("/fast")).status, 200);
    let late = gateway.send(&get("/silent"));
    assert_eq!((late.status, &late.json()["status"]), (504, &504.into()));
    let mut client = gateway.client();
    client.write(&get("/endless").bytes()).unwrap();
    assert_eq!(client.read_head().unwrap().status, 200);
    let rest = client.rest();
    assert!(!rest.ends_with(b"0\r\n\r\n"), "the connection is cut");
    let by_http2 = http2::run(async {
        let mut sender = http2::connect(gateway.address()).await;
        let response = sender.send_request(http2::get("/endless")).await.unwrap();
        response.into_body().collect().await.is_err()
    });
    assert!(by_http2);
    let logged = eventually("a line of the access log", || {
        gateway.access("/silent").into_iter().next()
    });
    assert_eq!(logged["upstream_error"], "total_timeout");
}

#[test]
fn a_request_is_forwarded_with_its_length_once_its_body_is_there() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .routes(&[
            "{name: all, match: {}, upstream: app, request_buffering: {max: 8, total: 1KiB}}",
        ])
        .start();
    let mut client = gateway.client();
    let whole = chunked("/", &["1234", "5678"]);
    let (first, last) = whole.split_at(whole.len() - 5);
    client.write(first).unwrap();
    client.write(last).unwrap();
    assert_eq!(client.read("POST").unwrap().status, 200);
    assert_eq!(upstream.last().lines("content-length"), ["8"]);
    assert_eq!(upstream.last().body, "12345678");
    client
        .write(&chunked("/", &["1234", "56789", "and more"]))
        .unwrap();
    assert_eq!(client.read("POST").unwrap().status, 200);
    assert_eq!(upstream.last().lines("transfer-encoding"), ["chunked"]);
    assert_eq!(upstream.last().body, "123456789and more");
    assert_eq!(gateway.send(&get("/")).status, 200);
}

#[test]
fn a_server_gets_no_more_connections_than_it_may_have_from_all_workers() {
    let upstream = Upstream::answering_after(Duration::from_millis(5), |_| text("real"));
    let address = upstream.address();
    let gateway = Setup::with_upstreams(&format!(
        "{{app: {{servers: [\"http://{address}\"], max_connections: 2, connect_timeout: 60s}}}}"
    ))
    .start();
    let load = Load::start(gateway.address(), 12, |client, count| {
        get(&format!("/{client}/{count}"))
    });
    let sampled = (0..30).map(|_| {
        load.go_on_for(2);
        open_connections(address)
    });
    let most = sampled.max().unwrap();
    let report = load.stop();
    assert_eq!(report.failures, [""; 0]);
    assert_eq!(report.count(200), report.statuses.len());
    assert!(most <= 2, "{most} connections");
    // Those that are left idle are found, so more would have been.
    let idle = open_connections(address);
    assert!((1..=2).contains(&idle), "{idle} idle connections");
}

/// How many connections to a port of this machine are open at one moment, as the kernel says.
///
/// The kernel's table is not a snapshot: while it is read, one connection may close and another
/// open, and both are in it. What is in two readings was open between them.
fn open_connections(to: std::net::SocketAddr) -> usize {
    let before = local_ends_of_connections(to);
    let after = local_ends_of_connections(to);
    before.intersection(&after).count()
}

fn local_ends_of_connections(to: std::net::SocketAddr) -> HashSet<String> {
    const ESTABLISHED: &str = "01";
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let port = format!(":{:04X}", to.port());
    let rows = table.lines().skip(1);
    let open = rows.filter_map(|row| {
        let mut columns = row.split_whitespace().skip(1);
        let local = columns.next().unwrap();
        let (remote, state) = (columns.next().unwrap(), columns.next().unwrap());
        (remote.ends_with(&port) && state == ESTABLISHED).then(|| local.to_owned())
    });
    open.collect()
}
