//! Requests on their way to the upstream and back.

use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::sync::Mutex;
use std::thread;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response as Answer, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::support::upstream::{Body, full, text};
use crate::support::*;

/// A body of these frames.
fn frames(frames: Vec<Frame<Bytes>>) -> Body {
    let frames = frames.into_iter().map(Ok);
    BodyExt::boxed(StreamBody::new(futures_util::stream::iter(frames)))
}

fn checksum() -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert("x-checksum", HeaderValue::from_static("abc"));
    trailers
}

/// An upstream with one answer, whose body is written bit by bit, and what writes it.
fn bit_by_bit() -> (UnboundedSender<io::Result<&'static str>>, Upstream) {
    let (write, written) = unbounded_channel::<io::Result<&'static str>>();
    let written = Mutex::new(Some(written));
    let upstream = Upstream::serving(move |_| {
        let mut written = written.lock().unwrap().take().expect("one request");
        let frame = |text: &'static str| Frame::data(Bytes::from_static(text.as_bytes()));
        let stream = futures_util::stream::poll_fn(move |cx| {
            written
                .poll_recv(cx)
                .map(|next| next.map(|text| text.map(frame)))
        });
        async move { Answer::new(BodyExt::boxed(StreamBody::new(stream))) }
    });
    (write, upstream)
}

#[test]
fn a_request_arrives_as_it_was_sent_and_so_does_the_answer() {
    let upstream = Upstream::answering(|received| {
        let mut answer = Answer::new(full(&format!("got {} bytes", received.body.len())));
        *answer.status_mut() = StatusCode::CREATED;
        answer
            .headers_mut()
            .insert("location", HeaderValue::from_static("/things/1"));
        answer
    });
    let gateway = Setup::before(&upstream).start();
    let sent = request("PATCH", "/things?a=b%20c&d")
        .with("x-one", "1")
        .with("x-one", "2")
        .with("cookie", "a=b; c=d")
        .with("content-length", "5");
    let mut client = gateway.client();
    client.write(&sent.bytes()).unwrap();
    client.write(b"hello").unwrap();
    let response = client.read("PATCH").unwrap();
    assert_eq!((response.status, response.text()), (201, "got 5 bytes"));
    assert_eq!(response.field("location"), Some("/things/1"));
    assert_eq!(response.lines("via"), ["1.1 weir"]);

    let received = upstream.last();
    assert_eq!(received.method, "PATCH");
    assert_eq!(received.target, "/things?a=b%20c&d");
    assert_eq!(received.lines("host"), ["app.example.com"]);
    assert_eq!(received.lines("x-one"), ["1", "2"]);
    assert_eq!(received.lines("cookie"), ["a=b; c=d"]);
    assert_eq!(received.lines("via"), ["1.1 weir"]);
    assert_eq!(received.body, "hello");
}

#[test]
fn a_path_is_forwarded_as_it_was_spelled() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).start();
    for target in ["/a%2Fb/%6cogin?x=%20", "//a/./b", "/?", "/a;b=c"] {
        gateway.send(&get(target));
        assert_eq!(upstream.last().target, target);
    }
}

#[test]
fn fields_that_concern_one_connection_only_are_removed_both_ways() {
    let upstream = Upstream::answering(|_| {
        let mut answer = text("real");
        let headers = answer.headers_mut();
        headers.append("connection", HeaderValue::from_static("x-theirs"));
        headers.append("connection", HeaderValue::from_static("keep-alive, x-more"));
        headers.append("x-theirs", HeaderValue::from_static("1"));
        headers.append("x-more", HeaderValue::from_static("1"));
        headers.append("x-more", HeaderValue::from_static("2"));
        headers.append("keep-alive", HeaderValue::from_static("timeout=5"));
        headers.append("x-kept", HeaderValue::from_static("1"));
        answer
    });
    let gateway = Setup::before(&upstream).start();
    let sent = get("/")
        .with("connection", "x-mine, keep-alive")
        .with("connection", "x-more")
        .with("x-mine", "1")
        .with("x-more", "1")
        .with("x-more", "2")
        .with("keep-alive", "timeout=5")
        .with("proxy-connection", "keep-alive")
        .with("proxy-authorization", "Basic abc")
        .with("te", "gzip")
        .with("x-kept", "1");
    let response = gateway.send(&sent);
    let received = upstream.last();
    for name in ["x-theirs", "x-more", "keep-alive", "connection"] {
        assert_eq!(response.lines(name), [""; 0], "{name}");
    }
    let names = [
        "x-mine",
        "x-more",
        "keep-alive",
        "proxy-connection",
        "proxy-authorization",
        "te",
    ];
    for name in names {
        assert_eq!(received.lines(name), [""; 0], "{name}");
    }
    assert_eq!(response.lines("x-kept"), ["1"]);
    assert_eq!(received.lines("x-kept"), ["1"]);
}

#[test]
fn connections_are_kept_alive_on_both_sides() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).start();
    let mut client = gateway.client();
    for _ in 0..50 {
        let response = client.send(&post("/", "hello"));
        assert!(!response.closes());
    }
    assert_eq!((upstream.count(), upstream.connections()), (50, 1));
    // Each of the two workers has a connection of its own.
    for _ in 0..20 {
        gateway.send(&get("/"));
    }
    assert!(upstream.connections() <= 2, "{}", upstream.connections());
}

#[test]
fn a_connection_that_the_upstream_closed_meanwhile_fails_no_request() {
    let upstream = Upstream::answering(|_| {
        let mut answer = text("real");
        answer
            .headers_mut()
            .insert("connection", HeaderValue::from_static("close"));
        answer
    });
    let gateway = Setup::before(&upstream).start();
    assert_eq!(gateway.statuses(&get("/"), 20), [200; 20]);
    assert_eq!(upstream.connections(), 20);
}

#[test]
fn an_answer_is_streamed_while_the_upstream_still_writes_it() {
    let (write, upstream) = bit_by_bit();
    let gateway = Setup::before(&upstream).start();
    let mut client = gateway.client();
    client.write(&get("/").bytes()).unwrap();
    // Each part is there before the next is written.
    let head = client.read_head().unwrap();
    assert_eq!(head.field("transfer-encoding"), Some("chunked"));
    for part in ["one", "two", "three"] {
        write.send(Ok(part)).unwrap();
        assert_eq!(
            client.read_chunk().unwrap().as_deref(),
            Some(part.as_bytes())
        );
    }
    drop(write);
    assert_eq!(client.read_chunk().unwrap(), None);
}

#[test]
fn a_body_is_streamed_while_the_client_still_sends_it() {
    let (tell, mut told) = unbounded_channel();
    let upstream = Upstream::serving(move |request| {
        let tell = tell.clone();
        async move {
            let mut body = request.into_body();
            while let Some(Ok(frame)) = body.frame().await {
                tell.send(frame.into_data().unwrap()).unwrap();
            }
            text("all of it")
        }
    });
    let gateway = Setup::before(&upstream).start();
    let mut client = gateway.client();
    let start = request("POST", "/").with("transfer-encoding", "chunked");
    client.write(&start.bytes()).unwrap();
    for part in ["one", "two"] {
        let chunk = format!("{:x}\r\n{part}\r\n", part.len());
        client.write(chunk.as_bytes()).unwrap();
        let arrived = eventually("a part of the body", || told.try_recv().ok());
        assert_eq!(arrived, part);
    }
    client.write(b"0\r\n\r\n").unwrap();
    assert_eq!(client.read("POST").unwrap().text(), "all of it");
}

#[test]
fn large_bodies_go_through_whole_both_ways() {
    let upstream = Upstream::answering(|received| {
        Answer::new(full(std::str::from_utf8(&received.body).unwrap()))
    });
    let gateway = Setup::before(&upstream).start();
    let large: String = (0..400_000)
        .map(|number| format!("{number:07}\n"))
        .collect();
    let response = gateway.send(&post("/", &large));
    assert!(response.text() == large, "{} bytes", response.body.len());
}

#[test]
fn trailers_go_through_to_clients_and_not_to_a_server_that_never_asked() {
    let upstream = Upstream::answering(|_| {
        let mut answer = Answer::new(frames(vec![
            Frame::data(Bytes::from_static(b"real")),
            Frame::trailers(checksum()),
        ]));
        answer
            .headers_mut()
            .insert("trailer", HeaderValue::from_static("x-checksum"));
        answer
    });
    let gateway = Setup::before(&upstream).start();
    let mut client = gateway.client();
    let start = request("POST", "/")
        .with("transfer-encoding", "chunked")
        .with("te", "trailers")
        .with("trailer", "x-sum");
    client.write(&start.bytes()).unwrap();
    client
        .write(b"5\r\nhello\r\n0\r\nx-sum: 123\r\n\r\n")
        .unwrap();
    let response = client.read("POST").unwrap();
    assert_eq!(response.text(), "real");
    assert_eq!(
        response.trailers,
        [("x-checksum".to_owned(), "abc".to_owned())]
    );
    let received = upstream.last();
    assert_eq!(received.body, "hello");
    assert!(received.trailers.is_none());
    assert_eq!(received.headers["te"], "trailers");
}

#[test]
fn http2_with_prior_knowledge_is_forwarded_as_http_1_1() {
    let upstream = Upstream::answering(|_| {
        let mut answer = Answer::new(frames(vec![
            Frame::data(Bytes::from_static(b"real")),
            Frame::trailers(checksum()),
        ]));
        answer
            .headers_mut()
            .insert("trailer", HeaderValue::from_static("x-checksum"));
        answer
    });
    let gateway = Setup::before(&upstream).start();
    let answer = http2::run(async {
        let mut connection = http2::connect(gateway.address()).await;
        let mut request = http2::get("/path?a=b");
        *request.method_mut() = http::Method::POST;
        *request.body_mut() = http2::with_trailers("hello", checksum());
        let headers = request.headers_mut();
        headers.insert("te", HeaderValue::from_static("trailers"));
        // HTTP/1.1 has no trailers that were not announced.
        headers.insert("trailer", HeaderValue::from_static("x-checksum"));
        headers.append("cookie", HeaderValue::from_static("a=b"));
        headers.append("cookie", HeaderValue::from_static("c=d"));
        http2::read(connection.send_request(request).await.unwrap()).await
    });
    assert_eq!(answer.head.version, http::Version::HTTP_2);
    assert_eq!(answer.body, "real");
    assert_eq!(answer.trailers.unwrap()["x-checksum"], "abc");
    let received = upstream.last();
    assert_eq!(received.target, "/path?a=b");
    assert_eq!(received.lines("host"), ["app.example.com"]);
    assert_eq!(received.lines("via"), ["2 weir"]);
    assert_eq!(received.lines("cookie"), ["a=b; c=d"]);
    assert_eq!(received.body, "hello");
    assert!(received.trailers.is_none());
}

#[test]
fn http2_names_no_user_and_no_port_that_is_none_in_its_authority() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).start();
    http2::run(async {
        let mut connection = http2::connect(gateway.address()).await;
        for (authority, status) in [
            ("app.example.com:8080", 200),
            ("[::1]:8080", 200),
            ("my_app.", 200),
            ("user@app.example.com", 400),
            ("user:password@app.example.com:80", 400),
            ("app.example.com:x", 400),
            ("app.example.com:65536", 400),
            (":80", 400),
        ] {
            let mut request = http2::get("/");
            *request.uri_mut() = format!("http://{authority}/").parse().unwrap();
            let answer = connection.send_request(request).await.unwrap();
            assert_eq!(answer.status().as_u16(), status, "{authority}");
            let upstream_host = || upstream.last().lines("host").join("|");
            assert!(status != 200 || upstream_host() == authority, "{authority}");
        }
    });
    assert_eq!(upstream.count(), 3);
}

/// The beginning of the body had been passed on, and hyper took the next request for trailers: what a
/// proxy in front takes for two requests was one here.
#[test]
fn no_line_of_chunks_may_end_with_a_line_feed_alone_however_they_arrive() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).start();
    let head = "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
    for end in ["x: y\n\r\n", "\n"] {
        let mut client = gateway.client();
        client.write(head.as_bytes()).unwrap();
        eventually("a request that has begun", || {
            (gateway.metric("weir_requests_in_flight") == Some(1.0)).then_some(())
        });
        let rest = format!("5\r\nhello\r\n0\r\n{end}GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        client.write(rest.as_bytes()).unwrap();
        let response = client.read("POST").unwrap();
        assert_eq!(response.status, 400, "{end:?}");
        assert!(client.is_closed(), "{end:?}");
    }
}

/// docs/FAQ.md says what of gRPC works: a call of gRPC-Web, which has its status in the body.
#[test]
fn a_call_of_grpc_web_passes_over_http_1_1_as_it_is_and_its_failure_is_a_200() {
    const FAILED: &[u8] = b"\x80\0\0\0\x0fgrpc-status: 5\r\n";
    const GRPC_WEB: HeaderValue = HeaderValue::from_static("application/grpc-web+proto");
    let upstream = Upstream::answering(|_| {
        let mut answer = Answer::new(frames(vec![Frame::data(Bytes::from_static(FAILED))]));
        answer.headers_mut().insert("content-type", GRPC_WEB);
        answer
    });
    let gateway = Setup::before(&upstream).start();
    let answer = http2::run(async {
        let mut connection = http2::connect(gateway.address()).await;
        let mut request = http2::get("/shop.Carts/Get");
        *request.method_mut() = http::Method::POST;
        request.headers_mut().insert("content-type", GRPC_WEB);
        http2::read(connection.send_request(request).await.unwrap()).await
    });
    assert_eq!((answer.head.status.as_u16(), &*answer.body), (200, FAILED));
    assert_eq!(upstream.last().headers["content-type"], GRPC_WEB);
}

#[test]
fn streams_of_one_http2_connection_are_limited_like_any_requests() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: address, burst: 3, count: 1, period: 1h}"])
        .limited_by("L")
        .start();
    let answers = http2::run(async {
        let mut connection = http2::connect(gateway.address()).await;
        let sent = (0..8).map(|_| connection.send_request(http2::get("/")));
        futures_util::future::join_all(sent).await
    });
    let statuses = answers.into_iter().map(|answer| answer.unwrap().status());
    assert_eq!(statuses.filter(StatusCode::is_success).count(), 3);
}

/// A gateway that answers for itself in many ways: `/limited`, `/decoy`, `/chunked`, `/dead`,
/// `/held`, `/up/../x` and what has no route.
fn answering_itself(upstream: &Upstream) -> Gateway {
    let dead = refusing_address();
    let app = upstream.address();
    Setup::with_upstreams(&format!(
        "{{app: {{servers: [\"http://{app}\"]}}, dead: {{servers: [\"http://{dead}\"]}}}}"
    ))
    .limits(&[
        "L: {per: [address, route], burst: 1, count: 1, period: 1000h}",
        "None: {per: \"header:x-none\", missing: deny, burst: 1, count: 1, period: 1h}",
    ])
    .key("decoys: {sent: {body: invented}}")
    .key(
        "bans: {trapped: {per: address, strikes: {paths: /trap, count: 1, period: 1h}, for: 1h, \
         on_denied: {tarpit: {hold: 1ms, most: 9}}}}",
    )
    .key("client_address: {trusted_proxies: [127.0.0.1]}")
    .routes(&[
        "{match: {path: /limited}, upstream: app, limits: [L]}",
        "{match: {path: /lacking}, upstream: app, limits: [None]}",
        "{match: {path: /decoy}, upstream: app, limits: [L], on_denied: {shadow: sent}}",
        "{match: {path: /chunked}, upstream: app, limits: [L], on_denied: {shadow: sent}}",
        "{match: {path: /dead}, upstream: dead}",
        "{match: {path: /trap}, upstream: app}",
    ])
    .start()
}

/// What the gateway says to `method` for a path over HTTP/2.
async fn over_http2(gateway: &Gateway, method: &str, path: &str, client: &str) -> http2::Answer {
    let mut connection = http2::connect(gateway.address()).await;
    let mut request = http2::get(path);
    *request.method_mut() = method.parse().unwrap();
    let client = client.parse().unwrap();
    request.headers_mut().insert("x-forwarded-for", client);
    http2::read(connection.send_request(request).await.unwrap()).await
}

/// Over HTTP/2 there was a body, which curl and httpx took for a broken connection.
#[test]
fn no_answer_of_the_gateways_own_to_head_has_a_body_and_all_say_how_long_it_would_be() {
    let upstream = Upstream::answering(|received| {
        let mut answer = Answer::new(match &*received.target {
            "/chunked" => frames(vec![Frame::data(Bytes::from_static(b"real"))]),
            _ => full("real"),
        });
        let headers = answer.headers_mut();
        headers.insert("server", HeaderValue::from_static("app"));
        answer
    });
    let gateway = answering_itself(&upstream);
    let own = [
        ("/limited", 429, true),
        ("/lacking", 403, true),
        ("/decoy", 200, true),
        ("/chunked", 200, false),
        ("/dead", 502, true),
        ("/none", 404, true),
        ("/up/../x", 400, true),
    ];
    for path in ["/limited", "/decoy", "/chunked", "/trap"] {
        gateway.send(&get(path).with("x-forwarded-for", "192.0.2.1"));
    }
    gateway.logs("ban begun", 1);
    let held = [("/held", 429, true)].map(|it| (it, "192.0.2.1"));
    // The ban would hold for everything; another client steps out of its way.
    let own = own.map(|it| (it, "192.0.2.2"));
    for path in ["/limited", "/decoy", "/chunked"] {
        gateway.send(&get(path).with("x-forwarded-for", "192.0.2.2"));
    }
    for ((path, status, has_length), client) in own.into_iter().chain(held) {
        let (got, head) = http2::run(async {
            let got = over_http2(&gateway, "GET", path, client).await;
            (got, over_http2(&gateway, "HEAD", path, client).await)
        });
        assert_eq!(
            (got.head.status.as_u16(), head.head.status.as_u16()),
            (status, status),
            "{path}"
        );
        assert!(!got.body.is_empty() && head.body.is_empty(), "{path}");
        let names = |answer: &http2::Answer| {
            let names = answer.head.headers.keys().map(ToString::to_string);
            names.collect::<std::collections::BTreeSet<_>>()
        };
        assert_eq!(names(&head), names(&got), "{path}");
        let length = got.body.len().to_string();
        let told = |answer: &http2::Answer| {
            let told = answer.head.headers.get("content-length").cloned();
            told.map(|it| it.to_str().unwrap().to_owned())
        };
        assert_eq!(told(&head), has_length.then_some(length.clone()), "{path}");
        assert_eq!(told(&got), told(&head), "{path}");
        let over_http1 = gateway.send(&request("HEAD", path).with("x-forwarded-for", client));
        let told = over_http1.field("content-length").map(str::to_owned);
        assert_eq!(told, has_length.then_some(length), "{path}");
        assert_eq!(over_http1.field("transfer-encoding"), None, "{path}");
    }
    let real = http2::run(over_http2(&gateway, "HEAD", "/decoy", "192.0.2.3"));
    assert_eq!((real.head.status.as_u16(), &*real.body), (200, &b""[..]));
}

/// An answer that the gateway made up because the upstream failed.
pub(crate) fn assert_problem(response: &Response, status: u16) {
    assert_eq!(response.status, status);
    assert_eq!(
        response.field("content-type"),
        Some("application/problem+json")
    );
    assert_eq!(response.json()["status"], status);
}

#[test]
fn an_upstream_that_is_not_there_is_502_and_the_rest_goes_on() {
    let upstream = Upstream::start();
    let (there, missing) = (upstream.address(), refusing_address());
    let gateway = Setup::with_upstreams(&format!(
        "{{app: {{servers: [\"http://{there}\"]}}, gone: {{servers: [\"http://{missing}\"]}}}}"
    ))
    .routes(&[
        "{match: {}, upstream: app}",
        "{match: {path: /gone}, upstream: gone}",
    ])
    .start();
    let mut client = gateway.client();
    assert_problem(&client.send(&get("/gone")), 502);
    assert_eq!(client.send(&get("/")).status, 200);
}

#[test]
fn an_upstream_that_closes_or_talks_nonsense_is_502() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            if number % 2 == 1 {
                let _ = stream.write_all(b"what do you want?\r\n\r\n");
            }
        }
    });
    let gateway =
        Setup::with_upstreams(&format!("{{app: {{servers: [\"http://{address}\"]}}}}")).start();
    // What may have been carried out is not sent again.
    for _ in 0..4 {
        assert_problem(&gateway.send(&post("/", "once")), 502);
    }
}

#[test]
fn a_request_that_no_route_matches_is_404_and_says_so() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .routes(&["{match: {path: /only}, upstream: app}"])
        .start();
    assert_problem(&gateway.send(&get("/other")), 404);
    assert_eq!(upstream.count(), 0);
}

#[test]
fn servers_of_an_upstream_take_turns() {
    let (one, other) = (Upstream::start(), Upstream::answering(|_| text("other")));
    let (a, b) = (one.address(), other.address());
    let gateway = Setup::with_upstreams(&format!(
        "{{app: {{servers: [\"http://{a}\", \"http://{b}\"]}}}}"
    ))
    .start();
    let mut client = gateway.client();
    let answers: Vec<_> = (0..10)
        .map(|_| client.send(&get("/")).text().to_owned())
        .collect();
    assert_ne!(answers[0], answers[1]);
    assert!(
        answers.chunks(2).all(|pair| pair == &answers[..2]),
        "{answers:?}"
    );
    assert_eq!((one.count(), other.count()), (5, 5));
}

#[test]
fn the_host_is_the_one_that_is_configured() {
    let upstream = Upstream::start();
    let address = upstream.address();
    for (host, expected) in [
        ("preserve", "app.example.com".to_owned()),
        ("upstream", address.to_string()),
        ("inside.example", "inside.example".to_owned()),
    ] {
        let gateway = Setup::with_upstreams(&format!(
            "{{app: {{servers: [\"http://{address}\"], host: {host}}}}}"
        ))
        .start();
        gateway.send(&get("/"));
        assert_eq!(upstream.last().lines("host"), [expected]);
        assert_eq!(
            upstream.last().lines("x-forwarded-host"),
            ["app.example.com"]
        );
    }
}

#[test]
fn the_most_specific_route_is_taken() {
    let upstream = Upstream::answering(|_| text("other"));
    let echo = Upstream::answering(|_| text("login"));
    let (a, b) = (upstream.address(), echo.address());
    let gateway = Setup::with_upstreams(&format!(
        "{{other: {{servers: [\"http://{a}\"]}}, login: {{servers: [\"http://{b}\"]}}}}"
    ))
    .routes(&[
        "{match: {}, upstream: other}",
        "{match: {path: /login}, upstream: other}",
        "{match: {host: app.example.com, path: /login, methods: [POST]}, upstream: login}",
    ])
    .start();
    assert_eq!(gateway.send(&post("/login", "x")).text(), "login");
    assert_eq!(gateway.send(&get("/login")).text(), "other");
    let elsewhere = post("/login", "x").with("host", "other.example.com");
    assert_eq!(gateway.send(&elsewhere).text(), "other");
}

#[test]
fn a_client_that_expects_to_be_told_to_go_on_is_told() {
    let upstream = Upstream::answering(|received| {
        Answer::new(full(std::str::from_utf8(&received.body).unwrap()))
    });
    let gateway = Setup::before(&upstream).start();
    let mut client = gateway.client();
    let start = request("POST", "/")
        .with("expect", "100-continue")
        .with("content-length", "5");
    client.write(&start.bytes()).unwrap();
    let mut interim = [0; 25];
    client.read_exact(&mut interim).unwrap();
    assert_eq!(interim, *b"HTTP/1.1 100 Continue\r\n\r\n");
    client.write(b"hello").unwrap();
    assert_eq!(client.read("POST").unwrap().text(), "hello");
}

#[test]
fn a_request_that_could_be_read_in_two_ways_is_refused() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).start();
    let twice = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\ncontent-length: 5\r\n\r\nhello";
    let both = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\
                transfer-encoding: gzip\r\n\r\n0\r\n\r\n";
    let hosts = "GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n";
    let absolute = "GET http://a/ HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n";
    let host_alone = "GET evil.internal HTTP/1.1\r\nhost: a\r\n\r\n";
    for text in [twice, both, hosts, absolute, host_alone] {
        let mut client = gateway.client();
        client.write(text.as_bytes()).unwrap();
        assert_eq!(client.read("POST").unwrap().status, 400, "{text}");
    }
    assert_eq!(upstream.count(), 0);
}

#[test]
fn a_length_beside_a_transfer_coding_is_refused_and_the_connection_closed() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).start();
    let (length, coding) = ("content-length: 5", "transfer-encoding: chunked");
    let body = "0\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n";
    for fields in [[length, coding], [coding, length]] {
        let [first, second] = fields;
        let head = format!("POST / HTTP/1.1\r\nhost: a\r\n{first}\r\n{second}\r\n\r\n");
        // On a connection that is new, and on one that has served a request.
        for served in [0, 1] {
            let mut client = gateway.client();
            for _ in 0..served {
                assert_eq!(client.send(&get("/")).status, 200);
            }
            client.write(format!("{head}{body}").as_bytes()).unwrap();
            let answer = client.read("POST").unwrap();
            assert_eq!(answer.status, 400, "{fields:?} after {served}");
            assert!(answer.closes() && client.is_closed());
        }
    }
    assert_eq!(upstream.count(), 2, "the honest ones");
}

/// Of these, hyper goes by the transfer coding, and used to be left to do so.
#[test]
fn a_length_beside_a_transfer_coding_is_refused_behind_other_requests_as_well() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).start();
    let both = b"POST /both HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\
        transfer-encoding: chunked\r\n\r\n0\r\n\r\n";
    let chunked = request("POST", "/").with("transfer-encoding", "chunked");
    let chunked = [chunked.bytes(), b"2\r\nhi\r\n0\r\n\r\n".to_vec()].concat();
    for before in [
        get("/").bytes(),
        post("/", "hello").bytes(),
        post("/", "").bytes(),
        chunked.clone(),
    ] {
        let mut client = gateway.client();
        client
            .write(&[before.repeat(3), both.to_vec()].concat())
            .unwrap();
        // Another with a transfer coding on the same connection may be refused in its place.
        let may_pass = if before == chunked { 0..=3 } else { 3..=3 };
        let mut passed = 0;
        let answer = loop {
            let answer = client.read("POST").unwrap();
            match answer.status {
                200 => passed += 1,
                _ => break answer,
            }
        };
        assert!(may_pass.contains(&passed), "{passed}");
        assert_eq!(answer.status, 400);
        assert!(answer.closes() && client.is_closed());
    }
    assert!((9..=12).contains(&upstream.count()), "the honest ones");
}

#[test]
fn what_one_request_says_of_its_length_is_not_held_against_the_next() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).start();
    let mut client = gateway.client();
    let chunked = request("POST", "/").with("transfer-encoding", "chunked");
    let chunked = [chunked.bytes(), b"2\r\nhi\r\n0\r\n\r\n".to_vec()].concat();
    let counted = post("/", "content-length: 2\r\ntransfer-encoding: chunked\r\n").bytes();
    // One after the other, then all at once.
    for requests in [&counted, &chunked, &counted, &chunked] {
        client.write(requests).unwrap();
        assert_eq!(client.read("POST").unwrap().status, 200);
    }
    client
        .write(&[counted.clone(), chunked.clone(), counted, chunked].concat())
        .unwrap();
    for _ in 0..4 {
        assert_eq!(client.read("POST").unwrap().status, 200);
    }
    assert_eq!(upstream.count(), 8);
}

#[test]
fn a_client_of_http_1_0_is_not_told_that_a_connection_stays_whose_end_ends_the_body() {
    let (write, upstream) = bit_by_bit();
    let gateway = Setup::before(&upstream).start();
    write.send(Ok("one")).unwrap();
    drop(write);
    let mut client = gateway.client();
    let ask = "GET / HTTP/1.0\r\nhost: a\r\nconnection: keep-alive\r\n\r\n";
    client.write(ask.as_bytes()).unwrap();
    let answer = client.read("GET").unwrap();
    assert_eq!(answer.lines("connection"), ["close"]);
    assert_eq!(answer.text(), "one");
    // With a length the connection stays, as it is said to.
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).start();
    let mut client = gateway.client();
    for _ in 0..2 {
        client.write(ask.as_bytes()).unwrap();
        let answer = client.read("GET").unwrap();
        assert_eq!(answer.lines("connection"), ["keep-alive"]);
        assert_eq!(answer.text(), "real");
    }
}

#[test]
fn http2_has_no_more_fields_than_http_1_1_and_the_other_streams_go_on() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).start();
    let answer = |mut connection: hyper::client::conn::http2::SendRequest<http2::Body>, fields| {
        let mut request = http2::get("/");
        for number in 0..fields {
            let name = http::HeaderName::try_from(format!("x-{number}")).unwrap();
            let value = HeaderValue::from_static("1");
            request.headers_mut().insert(name, value);
        }
        async move { connection.send_request(request).await.unwrap() }
    };
    http2::run(async {
        let connection = http2::connect(gateway.address()).await;
        // The upstream counts no further than 100 either, some of which are the gateway's.
        let most = answer(connection.clone(), 100).await;
        assert!(most.headers().contains_key("via"), "{most:?}");
        for fields in [101, 1000] {
            let refused = answer(connection.clone(), fields).await;
            assert_eq!(refused.status(), 431);
            assert!(!refused.headers().contains_key("via"), "{refused:?}");
        }
        assert_eq!(answer(connection, 0).await.status(), 200);
    });
}

#[test]
fn malformed_requests_of_http2_are_reset_and_reach_no_upstream() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).start();
    let with = |name: &'static str, value: &'static [u8]| {
        let mut request = http2::get("/");
        let value = HeaderValue::from_bytes(value).unwrap();
        request.headers_mut().insert(name, value);
        request
    };
    http2::run(async {
        let mut connection = http2::connect(gateway.address()).await;
        for malformed in [
            with("host", b"other.example.com"),
            with("host", b"two, hosts"),
            with("x-a", b"trailing\t"),
            with("x-a", b" leading"),
        ] {
            let shown = format!("{:?}", malformed.headers());
            let refused = connection.send_request(malformed).await.unwrap_err();
            let source = std::error::Error::source(&refused);
            let reset = source.and_then(|source| source.downcast_ref::<h2::Error>());
            let reason = reset.and_then(h2::Error::reason);
            assert_eq!(reason, Some(h2::Reason::PROTOCOL_ERROR), "{shown}");
        }
        // The other streams go on.
        let same = with("host", b"APP.example.com");
        assert_eq!(connection.send_request(same).await.unwrap().status(), 200);
    });
    assert_eq!(upstream.count(), 1);
}

/// h2 says PROTOCOL_ERROR to each of these.
#[test]
fn a_client_of_http2_is_told_which_error_it_made() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).start();
    let settings: &[u8] = b"\0\0\0\x04\0\0\0\0\0";
    for (frame, code) in [
        (&b"\0\0\x01\x06\0\0\0\0\0x"[..], 6),
        (b"\0\0\x06\x04\0\0\0\0\0\0\x04\x80\0\0\0", 3),
    ] {
        let mut client = gateway.client();
        client.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        client.write(settings).unwrap();
        client.write(frame).unwrap();
        let sent = client.rest();
        let last = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, code];
        assert!(sent.ends_with(&last), "{}", sent.escape_ascii());
    }
}

#[test]
fn an_upstream_that_breaks_off_in_the_middle_breaks_off_the_answer() {
    let (write, upstream) = bit_by_bit();
    let gateway = Setup::before(&upstream).start();
    let mut client = gateway.client();
    client.write(&get("/half").bytes()).unwrap();
    client.read_head().unwrap();
    write.send(Ok("half")).unwrap();
    assert_eq!(client.read_chunk().unwrap().as_deref(), Some(&b"half"[..]));
    write.send(Err(io::Error::other("broken"))).unwrap();
    assert!(
        client.read_chunk().is_err(),
        "half an answer is not a whole one"
    );
    let line = gateway.logged("/half");
    assert_eq!(line["aborted"], true);
}

#[test]
fn a_slow_upstream_holds_up_no_other_request() {
    let upstream = Upstream::serving(|request| async move {
        if request.uri().path() == "/slow" {
            std::future::pending::<()>().await;
        }
        text("real")
    });
    let gateway = Setup::before(&upstream).start();
    let mut slow: Vec<_> = (0..8).map(|_| gateway.client()).collect();
    for client in &mut slow {
        client.write(&get("/slow").bytes()).unwrap();
    }
    eventually("the slow requests", || {
        (upstream.count() == 8).then_some(())
    });
    assert_eq!(gateway.statuses(&get("/"), 10), [200; 10]);
}

#[test]
fn a_websocket_becomes_a_tunnel() {
    let upstream = WebSocket::start();
    let gateway = Setup::with_upstreams(&format!(
        "{{app: {{servers: [\"http://{}\"]}}}}",
        upstream.address()
    ))
    .start();
    let mut client = gateway.client();
    let ask = get("/socket")
        .with("connection", "keep-alive, Upgrade")
        .with("upgrade", "websocket")
        .with("sec-websocket-version", "13")
        .with("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
    client.write(&ask.bytes()).unwrap();
    let head = client.read_head().unwrap();
    assert_eq!(head.status, 101);
    assert_eq!(head.field("upgrade"), Some("websocket"));
    assert_eq!(
        head.field("sec-websocket-accept"),
        Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")
    );
    client.write(b"frame").unwrap();
    let mut echo = [0; 5];
    client.read_exact(&mut echo).unwrap();
    assert_eq!(&echo, b"frame");
    drop(client);
    assert!(upstream.ended().contains("upgrade: websocket\r\n"));
}
