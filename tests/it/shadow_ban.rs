//! Shadow bans: a decoy cannot be told from a real answer, and nothing is forwarded.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::{HeaderValue, Response as Answer, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};

use crate::support::upstream::full;
use crate::support::*;

const TEXT: &str = "{\"id\":\"6f1f2ab0-5c3e-4b60-9d6e-0c1f7f1c9a11\",\"status\":\"sent\"}";

/// An app that answers invitations in a particular way.
fn invitations(latency: Duration) -> Upstream {
    Upstream::answering_after(latency, |received| {
        let mut answer = Answer::new(full(TEXT));
        let headers = answer.headers_mut();
        let id = received.headers.get("x-id").cloned();
        headers.insert("x-powered-by", HeaderValue::from_static("invitations/1"));
        headers.insert("content-type", HeaderValue::from_static("application/json"));
        headers.insert(
            "x-request-id",
            id.unwrap_or(HeaderValue::from_static("a1b2")),
        );
        headers.insert("set-cookie", HeaderValue::from_static("session=theirs"));
        headers.insert("cache-control", HeaderValue::from_static("no-store"));
        answer
    })
}

/// A route that admits two invitations, and shadow-bans afterwards.
fn setup(upstream: &Upstream, more: &str) -> Setup {
    let route = format!(
        "{{name: invite, match: {{path: \"/teams/{{team}}/invites\"}}, upstream: app, \
         limits: [L], on_denied: {{shadow: sent}}{more}}}"
    );
    Setup::before(upstream)
        .limits(&["L: {per: address, burst: 2, count: 1, period: 1000h}"])
        .key(
            "decoys: {sent: {headers: {content-type: application/json}, body: \
             '{\"id\":\"{{ uuid() }}\",\"team\":\"{{ path.team }}\",\"to\":\"{{ body.email }}\",\
             \"at\":\"{{ now() }}\",\"place\":{{ random(3, 5) }}}'}}",
        )
        .routes(&[&route])
}

fn invite() -> Request {
    post("/teams/red/invites", "{\"email\":\"a@example.com\"}")
        .with("content-type", "application/json")
}

/// Two real answers, and the decoy after them.
fn answers(gateway: &Gateway) -> (Response, Response) {
    let mut client = gateway.client();
    client.send(&invite());
    let real = client.send(&invite());
    (real, client.send(&invite()))
}

#[test]
fn a_decoy_has_the_status_and_the_fields_of_a_real_answer_in_their_order() {
    let upstream = invitations(Duration::ZERO);
    let gateway = setup(&upstream, "").start();
    let (real, decoy) = answers(&gateway);
    assert_eq!(upstream.count(), 2, "nothing is forwarded");
    assert_eq!(real.text(), TEXT);
    assert_ne!(decoy.text(), TEXT);
    assert_eq!(decoy.status, real.status);
    // A cookie would hand out an identity.
    let mut expected = real.names();
    expected.retain(|name| *name != "set-cookie");
    assert_eq!(decoy.names(), expected);
    for name in ["x-powered-by", "cache-control", "content-type", "via"] {
        assert_eq!(decoy.field(name), real.field(name), "{name}");
    }
    let length = decoy.body.len().to_string();
    assert_eq!(decoy.field("content-length"), Some(&*length));
}

#[test]
fn neither_real_answers_nor_decoys_tell_of_limits() {
    let upstream = invitations(Duration::ZERO);
    let gateway = setup(&upstream, "")
        .key("defaults: {ratelimit_headers: [draft, draft-03, x-ratelimit]}")
        .start();
    let (real, decoy) = answers(&gateway);
    for answer in [real, decoy] {
        let names = answer.names().join(" ");
        assert!(
            !names.contains("ratelimit") && !names.contains("retry-after"),
            "{names}"
        );
    }
}

#[test]
fn a_decoy_tells_of_limits_where_the_route_asks_for_it_as_a_real_answer_would() {
    let upstream = invitations(Duration::ZERO);
    let gateway = setup(&upstream, ", ratelimit_headers: draft").start();
    let (real, decoy) = answers(&gateway);
    let names = |answer: &Response| {
        let mut names: Vec<_> = answer.names().into_iter().map(str::to_owned).collect();
        names.retain(|name| name != "set-cookie");
        names
    };
    assert_eq!(names(&decoy), names(&real));
    assert_eq!(
        decoy.field("ratelimit-policy"),
        real.field("ratelimit-policy")
    );
    assert!(
        decoy
            .field("ratelimit")
            .unwrap()
            .starts_with("\"L\";r=0;t=")
    );
    assert_eq!(decoy.field("retry-after"), None);
}

/// The app's number fell by one with each real answer, and in decoys stood still or jumped.
#[test]
fn the_apps_own_count_is_in_no_answer_of_a_route_with_a_decoy_and_weirs_goes_on() {
    let left = AtomicU64::new(95);
    let upstream = Upstream::answering(move |_| {
        let mut answer = Answer::new(full(TEXT));
        let left = left.fetch_sub(1, Ordering::Relaxed);
        let headers = answer.headers_mut();
        headers.insert("x-ratelimit-limit", HeaderValue::from_static("95"));
        headers.insert("x-ratelimit-remaining", HeaderValue::from(left));
        headers.insert("x-rate-limit-remaining", HeaderValue::from(left));
        headers.insert("x-powered-by", HeaderValue::from_static("invitations/1"));
        answer
    });
    let gateway = setup(&upstream, ", ratelimit_headers: x-ratelimit").start();
    let mut client = gateway.client();
    let remaining = [2, 1, 0].map(|_| {
        let answer = client.send(&invite());
        assert_eq!(answer.field("x-rate-limit-remaining"), None);
        assert_eq!(answer.field("x-ratelimit-limit"), Some("2"));
        assert_eq!(answer.field("x-powered-by"), Some("invitations/1"));
        answer.field("x-ratelimit-remaining").unwrap().to_owned()
    });
    assert_eq!(remaining, ["1", "0", "0"]);
    gateway.log_tells("the app counts for each client");
}

/// The head of the app's gzip told the time and another system than that of decoys.
#[test]
fn a_packed_decoy_begins_as_the_apps_packed_answers_do() {
    const SECONDS: std::ops::Range<usize> = 4..8;
    let now = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_secs()
    };
    let time = |answer: &Response| {
        let bytes = answer.body[SECONDS].try_into().unwrap();
        u64::from(u32::from_le_bytes(bytes))
    };
    let upstream = Upstream::answering(move |_| {
        // As Python's gzip module packs at its best level.
        let mut body = vec![0x1f, 0x8b, 8, 0];
        body.extend(u32::try_from(now()).unwrap().to_le_bytes());
        body.extend([2, 0xff, 1, 2, 0, 0xfd, 0xff, b'o', b'k']);
        body.extend([0x47, 0xdd, 0xdc, 0x79, 2, 0, 0, 0]);
        let body = Full::new(Bytes::from(body));
        let mut answer = Answer::new(body.map_err(|never: Infallible| match never {}).boxed());
        let headers = answer.headers_mut();
        headers.insert("content-encoding", HeaderValue::from_static("gzip"));
        answer
    });
    let gateway = setup(&upstream, "").start();
    let mut client = gateway.client();
    let invite = invite().with("accept-encoding", "gzip");
    let [real, _, decoy] = [1, 2, 3].map(|_| client.send(&invite));
    assert_eq!(decoy.field("content-encoding"), Some("gzip"));
    assert_eq!(decoy.body[..4], real.body[..4]);
    assert_eq!(decoy.body[8..10], real.body[8..10]);
    assert!(
        (time(&real)..=now() + 1).contains(&time(&decoy)),
        "{:?}",
        decoy.body
    );
}

#[test]
fn a_decoys_body_is_made_up_from_the_template_and_the_request() {
    let upstream = invitations(Duration::ZERO);
    let gateway = setup(&upstream, "").start();
    let (_, decoy) = answers(&gateway);
    let body = decoy.json();
    let id = body["id"].as_str().unwrap();
    assert!(uuid::Uuid::try_parse(id).is_ok(), "{id}");
    assert_eq!(body["team"], "red");
    assert_eq!(body["to"], "a@example.com");
    assert!((3..=5).contains(&body["place"].as_u64().unwrap()));
    let at = body["at"].as_str().unwrap();
    assert!(
        at.len() >= 20 && at.ends_with('Z') && at.contains('T'),
        "{at}"
    );

    let form = post("/teams/r%22ed/invites", "email=a%22b%40example.com")
        .with("content-type", "application/x-www-form-urlencoded");
    let body = gateway.send(&form).json();
    assert_eq!(body["team"], "r\"ed", "escaped as JSON");
    assert_eq!(body["to"], "a\"b@example.com");
    assert_ne!(body["id"], id, "made up anew");
}

#[test]
fn a_decoy_takes_as_long_as_real_answers_took() {
    let latency = Duration::from_millis(300);
    let upstream = invitations(latency);
    let gateway = setup(&upstream, "").start();
    let mut client = gateway.client();
    for _ in 0..2 {
        client.send(&invite());
    }
    for _ in 0..3 {
        let sent = Instant::now();
        client.send(&invite());
        let took = sent.elapsed();
        assert!(took >= Duration::from_millis(250), "{took:?}");
    }
    assert_eq!(upstream.count(), 2);
}

#[test]
fn what_was_meant_for_one_client_is_not_shown_to_another() {
    let upstream = invitations(Duration::ZERO);
    let gateway = setup(&upstream, "")
        .key("client_address: {trusted_proxies: [127.0.0.1]}")
        .start();
    let victim = invite()
        .with("x-forwarded-for", "192.0.2.1")
        .with("x-id", "5ec2e700-0000-4000-8000-000000000001");
    let banned = invite().with("x-forwarded-for", "192.0.2.2");
    gateway.statuses(&banned, 2);
    gateway.send(&victim);
    let decoy = gateway.send(&banned);
    assert_eq!(upstream.count(), 3, "the last one is a decoy");
    let id = decoy.field("x-request-id").expect("an id like real ones");
    assert!(uuid::Uuid::try_parse(id).is_ok(), "{id}");
    assert!(!id.starts_with("5ec2e700"), "{id}");
    assert_eq!(decoy.field("set-cookie"), None);
}

#[test]
fn the_body_of_a_banned_upload_is_read_to_its_end_and_the_connection_goes_on() {
    let upstream = invitations(Duration::ZERO);
    let gateway = setup(&upstream, "").start();
    let mut client = gateway.client();
    let upload = post("/teams/red/invites", &"x".repeat(300_000));
    let statuses = [(); 5].map(|()| client.send(&upload).status);
    assert_eq!(statuses, [200; 5]);
    assert_eq!(upstream.count(), 2);
}

#[test]
fn the_log_and_the_metrics_do_tell_a_decoy() {
    let upstream = invitations(Duration::ZERO);
    let gateway = setup(&upstream, "").start();
    answers(&gateway);
    let lines = eventually("three lines of the access log", || {
        Some(gateway.access("/teams/red/invites")).filter(|lines| lines.len() == 3)
    });
    assert_eq!(lines[2]["decision"], "shadowed");
    assert_eq!(lines[2]["limit"], "L");
    assert_eq!(lines[2]["status"], 200);
    assert!(lines[2].get("upstream").is_none());
    let metric = "weir_requests_total{route=\"invite\",status=\"2xx\",decision=\"shadowed\"}";
    assert_eq!(gateway.metric(metric), Some(1.0));
}

#[test]
fn a_request_that_lacks_what_it_must_have_gets_the_decoy_too() {
    let upstream = invitations(Duration::ZERO);
    let gateway = setup(&upstream, "")
        .limits(&["L: {per: account, missing: deny, burst: 2, count: 1, period: 1h}"])
        .key("account: [header: x-api-key]")
        .start();
    let decoy = gateway.send(&invite());
    assert_eq!((decoy.status, upstream.count()), (200, 0));
    assert_eq!(decoy.json()["team"], "red");
}

#[test]
fn a_decoy_comes_in_chunks_where_real_answers_do() {
    let upstream = Upstream::serving(|_| async {
        let frames =
            ["in ", "parts"].map(|part| Ok(Frame::data(Bytes::from_static(part.as_bytes()))));
        let stream = futures_util::stream::iter(frames);
        Answer::new(BodyExt::boxed(StreamBody::new(stream)))
    });
    let gateway = setup(&upstream, "").start();
    let (real, decoy) = answers(&gateway);
    assert_eq!(real.text(), "in parts");
    assert_eq!(real.field("transfer-encoding"), Some("chunked"));
    assert_eq!(decoy.field("transfer-encoding"), Some("chunked"));
    assert_eq!(decoy.field("content-length"), None);
    assert_eq!(decoy.json()["team"], "red");
}

#[test]
fn only_real_answers_of_the_decoys_own_status_teach_it() {
    let failing = AtomicBool::new(false);
    let upstream = Upstream::answering(move |_| {
        let mut answer = Answer::new(full(TEXT));
        let headers = answer.headers_mut();
        headers.insert("server", HeaderValue::from_static("invitations"));
        if failing.fetch_or(true, Ordering::SeqCst) {
            headers.insert("x-error", HeaderValue::from_static("1"));
            *answer.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        }
        answer
    });
    let gateway = setup(&upstream, "").start();
    let (failed, decoy) = answers(&gateway);
    assert_eq!((failed.status, failed.field("x-error")), (500, Some("1")));
    assert_eq!((decoy.status, decoy.field("x-error")), (200, None));
    assert_eq!(decoy.field("server"), Some("invitations"));
}

/// Real answers closed the connection, and decoys kept it open.
#[test]
fn the_connection_of_a_request_with_trailers_stays_open_whether_the_answer_is_real_or_not() {
    let upstream = invitations(Duration::ZERO);
    let gateway = setup(&upstream, "").start();
    let mut client = gateway.client();
    let request = b"POST /teams/red/invites HTTP/1.1\r\nhost: app.example.com\r\n\
        transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx-sum: 1\r\n\r\n";
    for _ in 0..4 {
        client.write(request).unwrap();
        let answer = client.read("POST").unwrap();
        assert_eq!((answer.status, answer.field("connection")), (200, None));
    }
    assert_eq!(upstream.count(), 2);
    // An HTTP/1.1 server never asked for trailers.
    assert_eq!(upstream.last().trailers, None);
}

/// An app in front of which every client keeps what it got, and asks for parts.
fn files() -> Upstream {
    Upstream::answering(|received| {
        let has = received.headers.get("if-none-match");
        let mut answer = Answer::new(full("real"));
        if has.is_some_and(|tag| tag == "\"4-5f3b2c\"") {
            answer = Answer::new(full(""));
            *answer.status_mut() = StatusCode::NOT_MODIFIED;
        } else if received
            .headers
            .get("range")
            .is_some_and(|it| it == "bytes=1-2")
        {
            answer = Answer::new(full("ea"));
            *answer.status_mut() = StatusCode::PARTIAL_CONTENT;
            let range = HeaderValue::from_static("bytes 1-2/4");
            answer.headers_mut().insert("content-range", range);
        }
        let headers = answer.headers_mut();
        for (name, value) in [
            ("server", "files"),
            ("etag", "\"4-5f3b2c\""),
            ("last-modified", "Fri, 20 Nov 2026 10:00:00 GMT"),
            ("accept-ranges", "bytes"),
            ("expires", "0"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        answer
    })
}

/// What was shown could be asked with, and was not known.
#[test]
fn decoys_answer_to_validators_and_ranges_as_real_answers_do() {
    let upstream = files();
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: address, burst: 3, count: 1, period: 1000h}"])
        .key("client_address: {trusted_proxies: [127.0.0.1]}")
        .key("decoys: {none: {body: nothing}}")
        .routes(&["{match: {}, upstream: app, limits: [L], on_denied: {shadow: none}}"])
        .start();
    let from = |client| get("/file").with("x-forwarded-for", client);
    let ask = |client, tag: &str| {
        [
            gateway.send(&from(client)),
            gateway.send(&from(client).with("if-none-match", tag)),
            gateway.send(&from(client).with("range", "bytes=1-2")),
        ]
    };
    for client in ["192.0.2.1", "192.0.2.2"] {
        let statuses = ask(client, "\"4-5f3b2c\"").map(|it| it.status);
        assert_eq!(statuses, [200, 304, 206]);
    }
    assert_eq!(upstream.count(), 6);
    let real = ask("192.0.2.3", "\"4-5f3b2c\"");
    // That of the app, as two clients have got it for this path; on another it is invented.
    let tag = "\"4-5f3b2c\"";
    let elsewhere = gateway.send(&get("/other").with("x-forwarded-for", "192.0.2.1"));
    let invented = elsewhere.field("etag").unwrap();
    assert!(
        invented.starts_with("\"7-") && invented.len() == 10,
        "{invented}"
    );
    for (real, decoy) in real.iter().zip(ask("192.0.2.1", tag)) {
        assert_eq!(decoy.status, real.status);
        assert_eq!(decoy.names(), real.names());
        assert_eq!(decoy.field("last-modified"), real.field("last-modified"));
        assert_eq!(decoy.field("etag"), Some(tag));
        let text = match decoy.status {
            200 => "nothing",
            206 => "ot",
            _ => "",
        };
        assert_eq!(decoy.text(), text);
    }
    assert_eq!(upstream.count(), 9);
}

/// The stream of HTTP/2 was reset, and the client saw no head.
#[test]
fn a_websocket_by_http_2_that_is_shadowed_is_answered_as_an_app_without_one_is() {
    let upstream = invitations(Duration::ZERO);
    let gateway = setup(&upstream, "").start();
    http2::run(async {
        let mut sender = http2::connect(gateway.address()).await;
        // With its first bytes the gateway says that it takes such requests.
        let mut refused = http2::get("/");
        *refused.method_mut() = http::Method::TRACE;
        assert_eq!(sender.send_request(refused).await.unwrap().status(), 501);
        let mut answers = Vec::new();
        for _ in 0..3 {
            let mut request = http2::get("/teams/red/invites");
            *request.method_mut() = http::Method::CONNECT;
            let protocol = hyper::ext::Protocol::from_static("websocket");
            request.extensions_mut().insert(protocol);
            let version = HeaderValue::from_static("13");
            request
                .headers_mut()
                .insert("sec-websocket-version", version);
            let answer = sender.send_request(request).await.unwrap();
            let names = answer.headers().keys().map(ToString::to_string);
            let names: Vec<_> = names.collect();
            let status = answer.status();
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            answers.push((status.as_u16(), names, body.len()));
        }
        assert_eq!(answers[0].0, 502);
        assert_eq!(answers[2], answers[1], "the third is shadowed");
    });
    assert_eq!(upstream.count(), 2);
}
