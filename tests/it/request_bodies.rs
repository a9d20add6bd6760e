//! How large bodies of requests may be, and bodies that are read before they are forwarded.

use http_body_util::{BodyExt, StreamBody};

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
