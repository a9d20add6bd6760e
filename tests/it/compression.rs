//! Responses that the gateway compresses.

use std::io::Read;
use std::sync::Arc;

use compression_codecs::core::util::PartialBuffer;
use compression_codecs::{Decode, GzipDecoder};
use flate2::read::GzDecoder;
use http::Response as HttpResponse;
use http_body_util::{BodyExt, StreamBody};
use tokio::sync::Mutex;
use tokio::sync::mpsc::unbounded_channel;

use crate::support::upstream::{Body, full};
use crate::support::*;

/// Text that is worth it.
fn page() -> String {
    (0..500)
        .map(|line| format!("<p>line {line}</p>\n"))
        .collect()
}

fn answer(received: &upstream::Received) -> HttpResponse<Body> {
    let html = HttpResponse::builder()
        .header("content-type", "text/html; charset=utf-8")
        .header("etag", "\"v1\"")
        .header("accept-ranges", "bytes");
    let response = match received.target.as_str() {
        "/coded" => html.header("content-encoding", "br").body(full("coded")),
        "/fixed" => html
            .header("cache-control", "private, No-Transform")
            .body(full(&page())),
        "/part" => html
            .status(206)
            .header("content-range", "bytes 0-9/10")
            .body(full(&page())),
        "/short" => html.body(full("short")),
        "/same" => html.status(304).body(full("")),
        "/image" => HttpResponse::builder()
            .header("content-type", "image/png")
            .body(full(&page())),
        _ => html.header("vary", "cookie").body(full(&page())),
    };
    response.unwrap()
}

fn gateway(upstream: &Upstream) -> Gateway {
    Setup::before(upstream)
        .key("defaults: {compression: {}}")
        .limits(&["L: {per: address, burst: 1, count: 1, period: 1000h}"])
        .routes(&[
            "{name: all, match: {}, upstream: app}",
            "{name: off, match: {path: /off}, upstream: app, compression: off}",
            "{name: gzip, match: {path: /gzip}, upstream: app, compression: {algorithms: gzip}}",
        ])
        .start()
}

fn gunzip(bytes: &[u8]) -> String {
    let mut text = String::new();
    GzDecoder::new(bytes).read_to_string(&mut text).unwrap();
    text
}

fn accepting(path: &str, codings: &str) -> Request {
    get(path).with("accept-encoding", codings)
}

#[test]
fn a_response_is_compressed_as_its_client_accepts() {
    let upstream = Upstream::answering(answer);
    let gateway = gateway(&upstream);
    let coded = gateway.send(&accepting("/", "gzip"));
    assert_eq!(coded.field("content-encoding"), Some("gzip"));
    assert_eq!(gunzip(&coded.body), page());
    assert!(coded.body.len() < page().len() / 4);
    assert_eq!(coded.lines("vary"), ["cookie", "accept-encoding"]);
    assert_eq!(coded.field("etag"), Some("W/\"v1\""));
    assert_eq!(coded.field("accept-ranges"), None);
    assert_eq!(coded.field("content-length"), None);
    for (codings, expected) in [
        ("gzip, deflate, br, zstd", Some("zstd")),
        ("gzip, br", Some("br")),
        ("gzip;q=0.5, zstd;q=0.1", Some("gzip")),
        ("gzip;q=0, identity", None),
    ] {
        let answer = gateway.send(&accepting("/", codings));
        assert_eq!(answer.field("content-encoding"), expected, "{codings}");
    }
    let plain = gateway.send(&get("/"));
    assert_eq!(plain.text(), page());
    assert_eq!(plain.lines("vary"), ["cookie", "accept-encoding"]);
    assert_eq!(plain.field("etag"), Some("\"v1\""));
    let own = gateway.send(&accepting("/gzip", "br, gzip;q=0.5"));
    assert_eq!(own.field("content-encoding"), Some("gzip"));
    let off = gateway.send(&accepting("/off", "gzip"));
    assert_eq!(
        (off.field("content-encoding"), off.text()),
        (None, &*page())
    );
}

#[test]
fn the_log_has_how_a_response_was_compressed_and_nothing_where_it_was_not() {
    let upstream = Upstream::answering(answer);
    let gateway = Setup::before(&upstream)
        .key("defaults: {compression: {}}")
        .key("log: {access_format: \"{path} {compression} {bytes}\"}")
        .routes(&["{name: all, match: {}, upstream: app}"])
        .start();
    let coded = gateway.send(&accepting("/coded-here", "gzip, br;q=0.5"));
    gateway.send(&get("/plain"));
    gateway.send(&accepting("/image", "gzip"));
    gateway.log_tells(&format!("/coded-here gzip {}", coded.body.len()));
    gateway.log_tells(&format!("/plain - {}", page().len()));
    gateway.log_tells(&format!("/image - {}", page().len()));
}

#[test]
fn what_must_not_be_compressed_or_is_not_worth_it_passes_as_it_is() {
    let upstream = Upstream::answering(answer);
    let gateway = gateway(&upstream);
    for path in ["/fixed", "/part", "/short", "/image"] {
        let answer = gateway.send(&accepting(path, "gzip"));
        assert_eq!(answer.field("content-encoding"), None, "{path}");
        assert!(answer.field("content-length").is_some(), "{path}");
        assert_ne!(answer.field("etag"), Some("W/\"v1\""), "{path}");
    }
    let unchanged = accepting("/", "gzip").with("cache-control", "no-transform");
    assert_eq!(gateway.send(&unchanged).field("content-encoding"), None);
    let coded = gateway.send(&accepting("/coded", "gzip"));
    assert_eq!(coded.lines("content-encoding"), ["br"]);
    assert_eq!(coded.text(), "coded");
    let same = gateway.send(&accepting("/same", "gzip"));
    assert_eq!((same.status, same.field("etag")), (304, Some("W/\"v1\"")));
}

#[test]
fn the_response_to_head_has_the_headers_of_the_one_to_get() {
    let upstream = Upstream::answering(answer);
    let gateway = gateway(&upstream);
    let mut client = gateway.client();
    let head = request("HEAD", "/").with("accept-encoding", "gzip");
    client.write(&head.bytes()).unwrap();
    let head = client.read("HEAD").unwrap();
    assert_eq!(head.field("content-encoding"), Some("gzip"));
    assert_eq!(head.field("content-length"), None);
    assert_eq!(head.field("etag"), Some("W/\"v1\""));
    assert_eq!(
        client.send(&get("/")).text(),
        page(),
        "the connection goes on"
    );
}

#[test]
fn fixed_responses_are_compressed_like_those_of_the_app() {
    let upstream = Upstream::answering(answer);
    let long = "x".repeat(2000);
    let gateway = Setup::before(&upstream)
        .key("defaults: {compression: {}, response_headers: {set: {x-edited: yes}}}")
        .limits(&["L: {per: address, burst: 1, count: 1, period: 1000h}"])
        .routes(&[
            &format!("{{name: long, match: {{path: /long}}, response: {{body: {long}}}}}"),
            "{name: short, match: {path: /short}, response: {body: short}}",
            "{name: plain, match: {path: /plain}, upstream: app, \
             response_headers: {set: {cache-control: no-transform}}}",
        ])
        .start();
    let mut client = gateway.client();
    let got = client.send(&accepting("/long", "gzip"));
    assert_eq!(got.field("content-encoding"), Some("gzip"));
    assert_eq!(got.field("x-edited"), Some("yes"));
    assert_eq!(gunzip(&got.body), long);
    for (path, coding, length) in [("/long", Some("gzip"), None), ("/short", None, Some("5"))] {
        let head = request("HEAD", path).with("accept-encoding", "gzip");
        let head = client.send(&head);
        assert_eq!(head.field("content-encoding"), coding, "{path}");
        assert_eq!(head.field("content-length"), length, "{path}");
    }
    // What a route says of the app's response holds for its compression.
    let plain = client.send(&accepting("/plain", "gzip"));
    assert_eq!(
        (plain.field("content-encoding"), plain.text()),
        (None, &*page())
    );
}

#[test]
fn http2_and_what_no_body_of_is_known_beforehand() {
    let upstream = Upstream::answering(answer);
    let gateway = gateway(&upstream);
    http2::run(async {
        let mut sender = http2::connect(gateway.address()).await;
        let mut request = http2::get("/");
        let gzip = "gzip".parse().unwrap();
        request.headers_mut().insert("accept-encoding", gzip);
        let answer = http2::read(sender.send_request(request).await.unwrap()).await;
        assert_eq!(answer.head.headers["content-encoding"], "gzip");
        assert_eq!(gunzip(&answer.body), page());
    });
}

/// The app sends the second event when the client has read the first.
#[test]
fn an_event_is_not_held_back() {
    let (next, events) = unbounded_channel::<&'static str>();
    let events = Arc::new(Mutex::new(events));
    let upstream = Upstream::serving(move |_| {
        let events = Arc::clone(&events);
        async move {
            let stream = futures_util::stream::unfold(events, |events| async move {
                let event = events.lock().await.recv().await?;
                let frame = http_body::Frame::data(bytes::Bytes::from_static(event.as_bytes()));
                Some((Ok(frame), events))
            });
            let response = HttpResponse::builder().header("content-type", "text/event-stream");
            response.body(StreamBody::new(stream).boxed()).unwrap()
        }
    });
    let gateway = gateway(&upstream);
    let mut client = gateway.client();
    next.send("data: first\n\n").unwrap();
    client.write(&accepting("/events", "gzip").bytes()).unwrap();
    let head = client.read_head().unwrap();
    assert_eq!(head.field("content-encoding"), Some("gzip"));
    let (mut decoder, mut events) = (GzipDecoder::new(), Vec::new());
    let mut read_to = |end: &str| {
        while !events.ends_with(end.as_bytes()) {
            let chunk = client.read_chunk().unwrap().expect("more events");
            let mut input = PartialBuffer::new(chunk);
            let mut output = PartialBuffer::new([0; 1024]);
            while !input.unwritten().is_empty() {
                decoder.decode(&mut input, &mut output).unwrap();
            }
            decoder.flush(&mut output).unwrap();
            events.extend_from_slice(output.written());
        }
    };
    read_to("data: first\n\n");
    next.send("data: second\n\n").unwrap();
    read_to("data: second\n\n");
}
