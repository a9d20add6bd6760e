use std::convert::Infallible;

use futures_util::FutureExt;
use http::Request;
use http_body_util::{Full, StreamBody};
use tokio::time::advance;
use weir_runtime::loop_time::PollClock;

use super::*;

fn shadow(content_type: &'static str, body: &str) -> Arc<Shadow> {
    let headers = [(CONTENT_TYPE, HeaderValue::from_static(content_type))]
        .into_iter()
        .collect();
    let decoy = Decoy::new("sent", StatusCode::OK, headers, body).unwrap();
    Arc::new(Shadow::new(Arc::new(decoy)))
}

fn real(fields: &[(&'static str, &'static str)]) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from("real"));
    for &(name, value) in fields {
        response
            .headers_mut()
            .append(name, HeaderValue::from_static(value));
    }
    response
}

/// A response to `client` after so many milliseconds, to a request that wanted nothing in
/// particular.
fn to(client: u64, millis: u64) -> ResponseSample {
    ResponseSample {
        negotiation: Negotiation::default(),
        client,
        target: 0,
        latency: Some(Duration::from_millis(millis)),
    }
}

async fn answer(shadow: &Arc<Shadow>, body: &'static str) -> Response<ResponseBody<Full<Bytes>>> {
    let request = Request::builder()
        .header(CONTENT_TYPE, "application/json")
        .body(())
        .unwrap();
    let (head, ()) = request.into_parts();
    Arc::clone(shadow)
        .respond(Request::from_parts(head, Full::<Bytes>::from(body)))
        .await
}

/// The turn's reading of the clock is older than the decoy, so one that was due already waited for
/// the runtime's next millisecond.
#[tokio::test(start_paused = true)]
async fn a_decoy_that_is_due_when_it_is_built_does_not_wait() {
    let _clock = PollClock::begin();
    let start = loop_time::now();
    // Polled once, the clock moves on, and the runtime's timers have not seen it.
    let _ = advance(Duration::from_millis(1)).now_or_never();
    let waited = wait(start, Duration::from_micros(900)).now_or_never();
    assert!(waited.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_decoy_takes_as_long_as_one_of_the_recent_real_answers() {
    let shadow = shadow("text/plain", "sent");
    shadow.learn(&real(&[]), &to(1, 700));
    let since = Instant::now();
    answer(&shadow, "").await;
    assert!(
        since.elapsed() >= Duration::from_millis(697),
        "{:?}",
        since.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn an_answer_of_another_status_teaches_nothing() {
    let shadow = shadow("text/plain", "sent");
    let mut failed = real(&[("x-failed", "1")]);
    *failed.status_mut() = StatusCode::BAD_GATEWAY;
    shadow.learn(&failed, &to(1, 60_000));
    let since = Instant::now();
    let decoy = answer(&shadow, "").await;
    assert!(since.elapsed() < Duration::from_secs(1));
    assert!(!decoy.headers().contains_key("x-failed"));
}

#[tokio::test(start_paused = true)]
async fn a_decoy_has_the_fields_of_real_answers_and_the_body_of_its_own() {
    let shadow = shadow("application/json", r#"{"to":"{{ body.to }}"}"#);
    for client in [1, 2] {
        let fields = [
            ("server", "app"),
            ("content-type", "x/y"),
            ("content-length", "4"),
        ];
        shadow.learn(&real(&fields), &to(client, 0));
    }
    let decoy = answer(&shadow, r#"{"to":"ann"}"#).await;
    let names: Vec<_> = decoy.headers().keys().map(HeaderName::as_str).collect();
    assert_eq!(names, ["server", "content-type", "content-length"]);
    assert_eq!(decoy.headers()["content-type"], "application/json");
    assert_eq!(decoy.headers()["content-length"], "12");
    let body = decoy.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, r#"{"to":"ann"}"#);
}

#[tokio::test(start_paused = true)]
async fn a_decoy_is_sent_in_chunks_where_real_answers_are() {
    let shadow = shadow("text/plain", "sent");
    assert_eq!(
        answer(&shadow, "").await.body().size_hint().exact(),
        Some(4)
    );
    shadow.learn(&real(&[("server", "app")]), &to(1, 0));
    let decoy = answer(&shadow, "").await;
    assert_eq!(decoy.body().size_hint().exact(), None);
    assert!(!decoy.headers().contains_key("content-length"));
}

#[tokio::test(start_paused = true)]
async fn a_requests_body_is_read_to_its_end_before_the_decoy_answers() {
    let (mut sender, receiver) = tokio::sync::mpsc::channel::<Bytes>(1);
    let frames = futures_util::stream::unfold(receiver, |mut receiver| async {
        let data = receiver.recv().await?;
        Some((Ok::<_, Infallible>(http_body::Frame::data(data)), receiver))
    });
    let (head, ()) = Request::new(()).into_parts();
    let shadow = shadow("text/plain", "sent");
    let decoy = tokio::spawn(
        shadow.respond::<Full<Bytes>>(Request::from_parts(head, StreamBody::new(frames))),
    );
    for _ in 0..100 {
        sender.send(Bytes::from_static(&[0; 4096])).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(!decoy.is_finished());
    // The body ends with its sender.
    sender = tokio::sync::mpsc::channel(1).0;
    assert_eq!(decoy.await.unwrap().status(), StatusCode::OK);
    drop(sender);
}

#[tokio::test]
async fn of_a_body_no_more_than_the_start_is_kept() {
    let body = Full::new(Bytes::from(vec![b'x'; 2 * MAX_KEPT_BODY]));
    let kept = read_to_end(body, MAX_KEPT_BODY).await.unwrap();
    assert_eq!(kept.len(), MAX_KEPT_BODY);
}

#[test]
fn a_decoy_knows_which_captured_segments_it_needs() {
    let decoy = Decoy::new("sent", StatusCode::OK, HeaderMap::new(), "{{ path.team }}").unwrap();
    assert_eq!(decoy.captures_used(), ["team"]);
}

/// The proxy answers such a body with 400; a decoy told a client that it was banned.
#[tokio::test(start_paused = true)]
async fn a_body_that_breaks_off_gets_the_answer_that_the_proxy_gives() {
    let broken = futures_util::stream::iter([Err::<http_body::Frame<Bytes>, _>("no chunk")]);
    let (head, ()) = Request::new(()).into_parts();
    let shadow = shadow("text/plain", "sent");
    let answer = shadow.respond::<Full<Bytes>>(Request::from_parts(head, StreamBody::new(broken)));
    assert_eq!(answer.await.status(), StatusCode::BAD_REQUEST);
}

/// After a reload decoys were as bare and as slow as before the first real response.
#[tokio::test(start_paused = true)]
async fn what_was_learnt_is_inherited() {
    let (earlier, later) = (shadow("text/plain", "sent"), shadow("text/plain", "sent!"));
    earlier.learn(&real(&[("server", "app")]), &to(1, 700));
    later.inherit(&earlier);
    let since = Instant::now();
    let decoy = answer(&later, "").await;
    assert_eq!(decoy.headers()["server"], "app");
    assert!(since.elapsed() >= Duration::from_millis(697));
}

/// A request by GET that wants this.
fn wanting(fields: &[(&'static str, &str)]) -> Negotiation {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        headers.append(*name, HeaderValue::from_str(value).unwrap());
    }
    Negotiation::new(&http::Method::GET, &headers)
}

/// A real response of this status to a request that wanted this.
fn teach(shadow: &Shadow, wants: &[(&'static str, &str)], status: u16, fields: &Fields) {
    let mut answer = real(fields);
    *answer.status_mut() = StatusCode::from_u16(status).unwrap();
    let sample = ResponseSample {
        negotiation: wanting(wants),
        client: 1,
        target: 0,
        latency: Some(Duration::ZERO),
    };
    shadow.learn(&answer, &sample);
}

type Fields = [(&'static str, &'static str)];

/// The decoy for a request by this method that wants this.
async fn decoy(
    shadow: &Arc<Shadow>,
    method: &str,
    wants: &[(&'static str, &str)],
) -> (http::response::Parts, Bytes) {
    let mut request = Request::builder().method(method);
    for (name, value) in wants {
        request = request.header(*name, *value);
    }
    let (head, ()) = request.body(()).unwrap().into_parts();
    let answer = Arc::clone(shadow)
        .respond::<Full<Bytes>>(Request::from_parts(head, Full::<Bytes>::default()));
    let (head, body) = answer.await.into_parts();
    (head, body.collect().await.unwrap().to_bytes())
}

fn names(head: &http::response::Parts) -> Vec<&str> {
    head.headers.keys().map(HeaderName::as_str).collect()
}

const TAGGED: &Fields = &[
    ("server", "app"),
    ("content-type", "text/plain"),
    ("etag", "W/\"4-98af6514f084433c9bc65a77\""),
    ("content-length", "4"),
];

/// Decoys showed a tag, and answered 200 to who came back with it.
#[tokio::test(start_paused = true)]
async fn who_comes_back_with_a_decoys_tag_is_told_that_nothing_has_changed() {
    let shadow = shadow("text/plain", "sent");
    teach(&shadow, &[], 200, TAGGED);
    let (head, body) = decoy(&shadow, "GET", &[]).await;
    let tag = head.headers["etag"].to_str().unwrap().to_owned();
    assert!(
        tag.starts_with("W/\"4-") && !tag.contains("98af6514"),
        "{tag}"
    );
    assert_eq!(
        (names(&head), &*body),
        (
            vec!["server", "content-type", "etag", "content-length"],
            &b"sent"[..]
        )
    );
    for method in ["GET", "HEAD"] {
        let (head, body) = decoy(&shadow, method, &[("if-none-match", &tag)]).await;
        assert_eq!((head.status.as_u16(), &*body), (304, &b""[..]));
        assert_eq!(names(&head), ["server", "etag"]);
        assert_eq!(head.headers["etag"], tag);
    }
    for (method, tag) in [("GET", "\"other\""), ("POST", &*tag)] {
        let (head, body) = decoy(&shadow, method, &[("if-none-match", tag)]).await;
        assert_eq!(
            (head.status.as_u16(), &*body),
            (200, &b"sent"[..]),
            "{method}"
        );
    }
    // With the headers of a real 304, once there was one, and the tag of the decoy's own.
    let real = [("x-cache", "HIT"), ("etag", "\"real\""), ("server", "app")];
    teach(&shadow, &[("if-none-match", "\"real\"")], 304, &real);
    let (head, _) = decoy(&shadow, "GET", &[("if-none-match", &tag)]).await;
    assert_eq!(names(&head), ["x-cache", "etag", "server"]);
    assert_eq!(head.headers["etag"], tag);
}

/// The tag of what was asked for was the same before and after the ban of a client, and 304 became
/// 200.
#[tokio::test(start_paused = true)]
async fn who_comes_back_with_the_tag_of_a_real_answer_is_told_that_nothing_has_changed() {
    let shadow = shadow("text/plain", "sent");
    let tag = TAGGED[2].1;
    let learn = |path: &'static str, client| {
        let sample = ResponseSample {
            negotiation: wanting(&[]),
            target: target(&Uri::from_static(path)),
            ..to(client, 0)
        };
        shadow.learn(&real(TAGGED), &sample);
    };
    let wants = [("if-none-match", tag)];
    learn("/", 1);
    let (head, _) = decoy(&shadow, "GET", &wants).await;
    assert_eq!(head.status, StatusCode::OK, "it may be made for the client");
    learn("/", 2);
    let (head, body) = decoy(&shadow, "GET", &[]).await;
    assert_eq!(head.headers["etag"], tag);
    assert_eq!(&*body, b"sent");
    let (head, body) = decoy(&shadow, "GET", &wants).await;
    assert_eq!((head.status.as_u16(), &*body), (304, &b""[..]));
    assert_eq!(head.headers["etag"], tag);
    let other = [("if-none-match", "\"other\"")];
    let (head, _) = decoy(&shadow, "GET", &other).await;
    assert_eq!(head.status, StatusCode::OK);
    assert_eq!(head.headers["etag"], tag);
}

/// It said when the resource had changed, which no response to OPTIONS does.
#[tokio::test(start_paused = true)]
async fn before_the_first_answer_to_options_a_decoy_says_nothing_of_a_body() {
    let shadow = shadow("text/plain", "sent");
    let fields = [
        ("server", "app"),
        ("last-modified", "Fri, 20 Nov 2026 10:00:00 GMT"),
        ("etag", "\"a\""),
        ("expires", "0"),
        ("content-length", "4"),
    ];
    teach(&shadow, &[], 200, &fields);
    let (head, _) = decoy(&shadow, "OPTIONS", &[]).await;
    assert_eq!(names(&head), ["server"]);
}

/// hyper resets a stream whose WebSocket would begin with a body.
#[tokio::test(start_paused = true)]
async fn who_asks_for_a_websocket_by_http_2_gets_what_the_proxy_makes_of_another_answer() {
    let shadow = shadow("text/plain", "sent");
    let request = || {
        let request = Request::builder().version(Version::HTTP_2);
        let (head, ()) = request
            .extension(WebSocketStream)
            .body(())
            .unwrap()
            .into_parts();
        head
    };
    let none = Full::<Bytes>::default;
    let answer: Response<ResponseBody<Full<Bytes>>> = Arc::clone(&shadow)
        .respond(Request::from_parts(request(), none()))
        .await;
    assert_eq!(answer.status(), StatusCode::BAD_GATEWAY);
    assert_eq!(answer.headers()["content-type"], "application/problem+json");
    let plain = decoy(&shadow, "GET", &[]).await;
    assert_eq!((plain.0.status.as_u16(), &*plain.1), (200, &b"sent"[..]));
}

#[tokio::test(start_paused = true)]
async fn an_app_that_does_not_care_for_tags_has_decoys_that_do_not() {
    let shadow = shadow("text/plain", "sent");
    teach(&shadow, &[("if-none-match", TAGGED[2].1)], 200, TAGGED);
    let (head, _) = decoy(&shadow, "GET", &[]).await;
    let tag = head.headers["etag"].to_str().unwrap();
    let (head, body) = decoy(&shadow, "GET", &[("if-none-match", tag)]).await;
    assert_eq!((head.status.as_u16(), &*body), (200, &b"sent"[..]));
}

#[tokio::test(start_paused = true)]
async fn a_decoy_of_another_status_than_200_is_never_cut_short() {
    let headers = HeaderMap::new();
    let created = Decoy::new("made", StatusCode::CREATED, headers, "made").unwrap();
    let shadow = Arc::new(Shadow::new(Arc::new(created)));
    teach(&shadow, &[], 201, &[TAGGED[2], ("accept-ranges", "bytes")]);
    let wants = [("if-none-match", "*"), ("range", "bytes=0-1")];
    let (head, body) = decoy(&shadow, "GET", &wants).await;
    assert_eq!((head.status.as_u16(), &*body), (201, &b"made"[..]));
}

#[tokio::test(start_paused = true)]
async fn a_decoy_gives_parts_where_real_answers_do() {
    let shadow = shadow("text/plain", "invented");
    let range = [("range", "bytes=2-4")];
    teach(
        &shadow,
        &[],
        200,
        &[("content-length", "4"), ("server", "app")],
    );
    let (head, _) = decoy(&shadow, "GET", &range).await;
    assert_eq!(head.status, StatusCode::OK);
    let promised = [("accept-ranges", "bytes"), ("content-length", "4")];
    teach(&shadow, &[], 200, &promised);
    let (head, body) = decoy(&shadow, "GET", &range).await;
    assert_eq!((head.status.as_u16(), &*body), (206, &b"ven"[..]));
    assert_eq!(head.headers["content-range"], "bytes 2-4/8");
    assert_eq!(head.headers["content-length"], "3");
    let fields = [
        ("content-range", "bytes 0-1/4"),
        ("content-length", "2"),
        ("x-part", "1"),
    ];
    teach(&shadow, &range, 206, &fields);
    let (head, body) = decoy(&shadow, "GET", &[("range", "bytes=-2")]).await;
    assert_eq!((head.status.as_u16(), &*body), (206, &b"ed"[..]));
    assert_eq!(
        names(&head),
        ["content-range", "content-length", "x-part", "content-type"]
    );
    assert_eq!(head.headers["content-range"], "bytes 6-7/8");
    let (head, body) = decoy(&shadow, "GET", &[("range", "bytes=8-")]).await;
    assert_eq!((head.status.as_u16(), &*body), (416, &b""[..]));
    assert_eq!(head.headers["content-range"], "bytes */8");
    teach(&shadow, &range, 200, &promised);
    let (head, _) = decoy(&shadow, "GET", &range).await;
    assert_eq!(head.status, StatusCode::OK);
}

fn unpacked(body: &[u8]) -> String {
    let mut text = String::new();
    let mut decoder = flate2::read::GzDecoder::new(body);
    std::io::Read::read_to_string(&mut decoder, &mut text).unwrap();
    text
}

#[tokio::test(start_paused = true)]
async fn a_decoy_is_compressed_for_those_for_whom_real_answers_are() {
    let shadow = shadow("text/plain", "sent");
    let gzip = [("accept-encoding", "gzip, br")];
    let plain = [("content-length", "4"), ("server", "app")];
    teach(&shadow, &[], 200, &plain);
    let (head, body) = decoy(&shadow, "GET", &gzip).await;
    assert_eq!(
        (names(&head), &*body),
        (
            vec!["content-length", "server", "content-type"],
            &b"sent"[..]
        )
    );
    // Who says that it depends has to do it; how it looks is not known yet.
    teach(
        &shadow,
        &[],
        200,
        &[("vary", "origin, Accept-Encoding"), plain[0]],
    );
    let (head, body) = decoy(&shadow, "GET", &gzip).await;
    assert_eq!(names(&head), ["vary", "content-encoding", "content-type"]);
    assert_eq!(unpacked(&body), "sent");
    let compressed = [
        ("content-encoding", "gzip"),
        ("content-length", "30"),
        ("x-coded", "1"),
    ];
    teach(&shadow, &gzip, 200, &compressed);
    let (head, body) = decoy(&shadow, "GET", &gzip).await;
    assert_eq!(
        names(&head),
        [
            "content-encoding",
            "content-length",
            "x-coded",
            "content-type"
        ]
    );
    assert_eq!(head.headers["content-length"], body.len().to_string());
    assert_eq!(unpacked(&body), "sent");
    let (head, body) = decoy(&shadow, "GET", &[]).await;
    assert_eq!(
        (names(&head), &*body),
        (vec!["vary", "content-length", "content-type"], &b"sent"[..])
    );
    // It depends on more, such as the length: small responses are not compressed.
    teach(
        &shadow,
        &gzip,
        200,
        &[("vary", "accept-encoding"), plain[0]],
    );
    let (head, body) = decoy(&shadow, "GET", &gzip).await;
    assert_eq!(
        (names(&head), &*body),
        (vec!["vary", "content-length", "content-type"], &b"sent"[..])
    );
}

#[tokio::test(start_paused = true)]
async fn who_knows_no_gzip_gets_a_plain_decoy_though_all_real_answers_were_compressed() {
    let shadow = shadow("text/plain", "sent");
    let gzip = [("accept-encoding", "gzip")];
    teach(
        &shadow,
        &gzip,
        200,
        &[("content-encoding", "gzip"), ("server", "app")],
    );
    let (head, body) = decoy(&shadow, "GET", &[]).await;
    assert_eq!(
        (names(&head), &*body),
        (
            vec!["content-length", "server", "content-type"],
            &b"sent"[..]
        )
    );
}

#[tokio::test(start_paused = true)]
async fn nothing_is_inherited_from_a_decoy_of_another_status() {
    let earlier = shadow("text/plain", "sent");
    teach(&earlier, &[], 200, &[("server", "app")]);
    earlier.learn(&real(&[]), &to(1, 60_000));
    let failed = Decoy::new("sent", StatusCode::NOT_FOUND, HeaderMap::new(), "no").unwrap();
    let later = Arc::new(Shadow::new(Arc::new(failed)));
    later.inherit(&earlier);
    let since = Instant::now();
    let (head, _) = decoy(&later, "GET", &[]).await;
    assert!(
        since.elapsed() < Duration::from_secs(1),
        "{:?}",
        since.elapsed()
    );
    assert!(!head.headers.contains_key("server"));
}

#[tokio::test(start_paused = true)]
async fn all_that_was_learnt_is_inherited_tags_and_refusals_too() {
    let (earlier, later) = (shadow("text/plain", "sent"), shadow("text/plain", "sent"));
    teach(&earlier, &[("if-none-match", TAGGED[2].1)], 200, TAGGED);
    teach(&earlier, &[("range", "bytes=0-1")], 206, &[("x-part", "1")]);
    later.inherit(&earlier);
    let (head, _) = decoy(&later, "GET", &[]).await;
    let tag = head.headers["etag"].to_str().unwrap();
    let wants = [("if-none-match", tag), ("range", "bytes=0-1")];
    let (head, body) = decoy(&later, "GET", &wants).await;
    assert_eq!((head.status.as_u16(), &*body), (206, &b"se"[..]));
    assert!(head.headers.contains_key("x-part"));
}

/// Some apps tell no length in answer to HEAD, which told the next decoy to be sent in chunks.
#[tokio::test(start_paused = true)]
async fn answers_to_head_teach_no_fields() {
    let shadow = shadow("text/plain", "sent");
    teach(&shadow, &[], 200, &[("content-length", "4")]);
    let negotiation = Negotiation::new(&http::Method::HEAD, &HeaderMap::new());
    shadow.learn(
        &real(&[("server", "app")]),
        &ResponseSample {
            negotiation,
            ..to(1, 0)
        },
    );
    let (head, _) = decoy(&shadow, "HEAD", &[]).await;
    assert_eq!(names(&head), ["content-length", "content-type"]);
}

#[tokio::test(start_paused = true)]
async fn a_decoy_without_content_tells_no_length() {
    let gone = Decoy::new("gone", StatusCode::NO_CONTENT, HeaderMap::new(), "").unwrap();
    let shadow = Arc::new(Shadow::new(Arc::new(gone)));
    let (head, _) = decoy(&shadow, "DELETE", &[]).await;
    assert!(!head.headers.contains_key("content-length"));
}

/// A runtime of seven seconds told that a response after ten milliseconds was none.
#[tokio::test(start_paused = true)]
async fn the_time_that_a_decoy_says_that_it_took_is_no_more_than_it_takes() {
    let shadow = shadow("text/plain", "sent");
    for millis in [20, 200, 2000] {
        let runtime = format!("{}.{:03}", millis / 1000, millis % 1000 * 9 / 10);
        let mut answer = real(&[]);
        let runtime = HeaderValue::from_str(&runtime).unwrap();
        answer.headers_mut().insert("x-runtime", runtime);
        shadow.learn(&answer, &to(millis, millis));
    }
    for _ in 0..50 {
        let since = Instant::now();
        let (head, _) = decoy(&shadow, "GET", &[]).await;
        let took = since.elapsed().as_secs_f64();
        let told: f64 = head.headers["x-runtime"].to_str().unwrap().parse().unwrap();
        assert!(told <= took && told >= took / 3.0, "{told} of {took}");
    }
}

/// `accept-ranges` stood in responses to POST, where only responses to GET have it.
#[tokio::test(start_paused = true)]
async fn answers_to_get_teach_others_only_where_nothing_else_is_known() {
    let shadow = shadow("text/plain", "sent");
    let post = |fields: &Fields| {
        let negotiation = Negotiation::new(&http::Method::POST, &HeaderMap::new());
        let sample = ResponseSample {
            negotiation,
            ..to(1, 0)
        };
        shadow.learn(&real(fields), &sample);
    };
    teach(&shadow, &[], 200, &[("server", "read")]);
    let (head, _) = decoy(&shadow, "POST", &[]).await;
    assert_eq!(head.headers["server"], "read");
    post(&[("server", "written")]);
    for (method, server) in [("GET", "read"), ("HEAD", "read"), ("POST", "written")] {
        let (head, _) = decoy(&shadow, method, &[("accept-encoding", "gzip")]).await;
        assert_eq!(head.headers["server"], server, "{method}");
    }
}

/// Each form had a moment of its own for what was made once.
#[tokio::test(start_paused = true)]
async fn what_was_made_once_was_made_at_the_same_time_in_all_forms() {
    let shadow = shadow("text/plain", "sent");
    let made = [("last-modified", "Fri, 20 Nov 1998 10:00:00 GMT")];
    let gzip = [("accept-encoding", "gzip")];
    teach(&shadow, &[], 200, &made);
    teach(&shadow, &gzip, 200, &made);
    let (plain, _) = decoy(&shadow, "GET", &[]).await;
    let (compressed, _) = decoy(&shadow, "GET", &gzip).await;
    assert_eq!(
        plain.headers["last-modified"],
        compressed.headers["last-modified"]
    );
    assert_ne!(plain.headers["last-modified"], made[0].1);
}

/// Removing a header put the last one in its place.
#[tokio::test(start_paused = true)]
async fn the_fields_of_a_304_that_was_never_seen_keep_their_order() {
    let shadow = shadow("text/plain", "sent");
    let real = [
        ("content-type", "a/b"),
        ("etag", "\"a\""),
        ("x-a", "1"),
        ("server", "app"),
        ("via", "x"),
    ];
    teach(&shadow, &[], 200, &real);
    let (head, _) = decoy(&shadow, "GET", &[("if-none-match", "*")]).await;
    assert_eq!(names(&head), ["etag", "x-a", "server", "via"]);
}

#[tokio::test(start_paused = true)]
async fn a_decoy_is_dated_when_it_is_sent() {
    let shadow = shadow("text/plain", "sent");
    shadow.learn(&real(&[("date", "x")]), &to(1, 3_600_000));
    let before = std::time::SystemTime::now();
    let (head, _) = decoy(&shadow, "GET", &[]).await;
    let date = httpdate::parse_http_date(head.headers["date"].to_str().unwrap()).unwrap();
    assert!(date >= before + Duration::from_secs(3599), "{date:?}");
}

#[tokio::test(start_paused = true)]
async fn the_host_that_was_asked_for_may_be_named_and_no_other() {
    let shadow = shadow("text/plain", "sent");
    let shop = [("location", "https://mallory.example.com/alexandra")];
    teach(&shadow, &[], 200, &shop);
    for (uri, host, named) in [
        ("/", "mallory.example.com:80", true),
        ("/", "trent.example.com", false),
        ("http://mallory.example.com/", "trent.example.com", true),
        ("http://trent.example.com/", "mallory.example.com", false),
    ] {
        let request = Request::get(uri).header(HOST, host).body(()).unwrap();
        let (head, ()) = request.into_parts();
        let answer = Arc::clone(&shadow)
            .respond::<Full<Bytes>>(Request::from_parts(head, Full::<Bytes>::default()));
        let answer = answer.await;
        let shown = answer.headers()["location"].to_str().unwrap();
        assert_eq!(
            shown.starts_with("https://mallory.example.com/"),
            named,
            "{shown}"
        );
        assert!(!shown.contains("alexandra"), "{shown}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_decoy_of_no_content_and_of_another_status_learns_from_its_own_alone() {
    let gone = Decoy::new("gone", StatusCode::NOT_FOUND, HeaderMap::new(), "none").unwrap();
    let shadow = Arc::new(Shadow::new(Arc::new(gone)));
    teach(&shadow, &[], 200, &[("x-ok", "1")]);
    teach(&shadow, &[], 304, &[("x-ok", "1")]);
    teach(&shadow, &[], 206, &[("x-ok", "1")]);
    teach(&shadow, &[], 404, &[("x-none", "1")]);
    let (head, body) = decoy(&shadow, "GET", &[("range", "bytes=0-1")]).await;
    assert_eq!((head.status.as_u16(), &*body), (404, &b"none"[..]));
    assert_eq!(names(&head), ["x-none"]);
}

#[tokio::test(start_paused = true)]
async fn a_decoy_allows_the_origin_that_it_is_asked_from() {
    let shadow = shadow("text/plain", "sent");
    let with_origin = |origin| {
        let request = Request::post("/").header("origin", origin);
        request.body(()).unwrap().into_parts().0
    };
    for (client, origin) in [(1, "https://a.app"), (2, "https://b.app")] {
        let head = with_origin(origin);
        let sample = ResponseSample {
            negotiation: Negotiation::new(&head.method, &head.headers),
            ..to(client, 0)
        };
        shadow.learn(&real(&[("access-control-allow-origin", origin)]), &sample);
    }
    let head = with_origin("https://mine.example");
    let decoy: Response<ResponseBody<Full<Bytes>>> = Arc::clone(&shadow)
        .respond(Request::from_parts(head, Full::<Bytes>::from("")))
        .await;
    let allowed = &decoy.headers()["access-control-allow-origin"];
    assert_eq!(allowed, "https://mine.example");
    let decoy = answer(&shadow, "").await;
    assert!(!decoy.headers().contains_key("access-control-allow-origin"));
}

/// A preflight got the decoy's status and body, where the app says 204 and what it allows. And POST
/// got what was learnt from preflights.
#[tokio::test(start_paused = true)]
async fn options_is_answered_as_real_ones_were_and_teaches_nothing_else() {
    let shadow = shadow("text/plain", "sent");
    let preflight = [
        ("origin", "https://a.app"),
        ("access-control-request-method", "POST"),
    ];
    let learn = |wants: &Fields, status: u16, fields: &Fields| {
        let mut answer = real(fields);
        *answer.status_mut() = StatusCode::from_u16(status).unwrap();
        let headers = wants.iter().copied();
        let headers = headers.map(|(name, value)| {
            let value = HeaderValue::from_static(value);
            (HeaderName::from_static(name), value)
        });
        let sample = ResponseSample {
            negotiation: Negotiation::new(&http::Method::OPTIONS, &headers.collect()),
            ..to(1, 0)
        };
        shadow.learn(&answer, &sample);
    };
    // Before the first real response there is nothing to be like.
    let (head, body) = decoy(&shadow, "OPTIONS", &preflight).await;
    assert_eq!((head.status.as_u16(), &*body), (204, &b""[..]));
    assert_eq!(names(&head), ["date", "via"]);
    let allowed = [
        ("access-control-allow-origin", "https://a.app"),
        ("access-control-allow-methods", "GET, POST"),
        ("server", "app"),
    ];
    learn(&preflight, 204, &allowed);
    learn(&[], 200, &[("allow", "GET, POST"), ("content-length", "0")]);
    for (wants, status, shown) in [
        (&preflight[..], 204, &allowed[..]),
        (&[], 200, &[("allow", "GET, POST"), ("content-length", "0")]),
    ] {
        let (head, body) = decoy(&shadow, "OPTIONS", wants).await;
        assert_eq!((head.status.as_u16(), &*body), (status, &b""[..]));
        let told = head.headers.iter();
        let told: Vec<_> = told
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
            .collect();
        assert_eq!(told, shown);
    }
    // What anybody can make fail is not what others get.
    learn(&preflight, 403, &[("x-failed", "1")]);
    let (head, _) = decoy(&shadow, "OPTIONS", &preflight).await;
    assert_eq!(head.status, StatusCode::NO_CONTENT);
    let (head, body) = decoy(&shadow, "POST", &[]).await;
    assert_eq!((head.status.as_u16(), &*body), (200, &b"sent"[..]));
    assert!(!head.headers.contains_key("allow") && !head.headers.contains_key("server"));
}

#[tokio::test(start_paused = true)]
async fn who_wants_another_body_than_the_decoys_is_told_as_the_app_tells_it() {
    let shadow = shadow("text/plain", "sent");
    let strong = [
        ("server", "app"),
        ("content-type", "text/plain"),
        ("etag", "\"4-98af6514f084433c9bc65a77\""),
    ];
    teach(&shadow, &[], 200, &strong);
    let (head, _) = decoy(&shadow, "GET", &[]).await;
    let tag = head.headers["etag"].to_str().unwrap().to_owned();
    let (head, body) = decoy(&shadow, "GET", &[("if-match", &tag)]).await;
    assert_eq!((head.status.as_u16(), &*body), (200, &b"sent"[..]));
    let stale = [("if-match", "\"other\"")];
    let (head, body) = decoy(&shadow, "GET", &stale).await;
    assert_eq!((head.status.as_u16(), &*body), (412, &b""[..]));
    assert!(!head.headers.contains_key("content-type"));
    let failed = [("x-failed", "1"), ("content-length", "9")];
    teach(&shadow, &stale, 412, &failed);
    let (head, _) = decoy(&shadow, "GET", &stale).await;
    assert_eq!(names(&head), ["x-failed", "content-length"]);
    assert_eq!(head.headers["content-length"], "0");
    teach(&shadow, &stale, 200, &strong);
    let (head, _) = decoy(&shadow, "GET", &stale).await;
    assert_eq!(head.status, StatusCode::OK);
}

/// A precise timer needs the runtime's I/O, which not every runtime has.
#[test]
fn a_decoy_is_not_kept_from_a_client_by_a_runtime_without_io() {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_time().build().unwrap();
    let shadow = shadow("text/plain", "sent");
    shadow.learn(&real(&[]), &to(1, 5));
    let since = Instant::now();
    let decoy = runtime.block_on(answer(&shadow, ""));
    assert_eq!(decoy.status(), StatusCode::OK);
    assert!(since.elapsed() >= Duration::from_millis(5));
}
