//! Where messages end: what request smuggling is made of.

use http::Request;
use http_body_util::{BodyExt, Full};

use super::support::*;

/// The head, and what follows up to `end`, that the upstream gets when a client sends `request`.
async fn received(request: &str, end: &str) -> (String, String) {
    let (gateway, listener) = gateway_and_upstream().await;
    let mut client = RawConnection::connect(gateway).await;
    client.write(request).await;
    let mut upstream = RawConnection::accept(&listener).await;
    (upstream.head().await, upstream.read_to(end).await)
}

/// What a client that sends `request` gets when the upstream answers with `response`.
async fn answered(request: &str, response: &str) -> String {
    let (gateway, listener) = gateway_and_upstream().await;
    let mut client = RawConnection::connect(gateway).await;
    client.write(request).await;
    let mut upstream = RawConnection::accept(&listener).await;
    upstream.head().await;
    upstream.write(response).await;
    drop(upstream);
    client.rest().await
}

const GET: &str = "GET / HTTP/1.1\r\nhost: app\r\nconnection: close\r\n\r\n";

#[tokio::test]
async fn a_chunked_body_stays_chunked_with_get_too() {
    for method in ["GET", "POST"] {
        let request = format!(
            "{method} / HTTP/1.1\r\nhost: app\r\ntransfer-encoding: chunked\r\n\r\n\
             4\r\nbody\r\n0\r\n\r\n"
        );
        let (head, body) = received(&request, "0\r\n\r\n").await;
        assert!(has(&head, "transfer-encoding: chunked"));
        assert!(!head.contains("content-length"));
        assert_eq!(body, "4\r\nbody\r\n0\r\n\r\n");
    }
}

#[tokio::test]
async fn a_request_with_both_framings_is_passed_on_with_one() {
    for framing in [
        "content-length: 2\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: chunked\r\ncontent-length: 2\r\n",
        "content-length: 2\r\ntransfer-encoding: chunked\r\nconnection: transfer-encoding\r\n",
    ] {
        let request =
            format!("POST / HTTP/1.1\r\nhost: app\r\n{framing}\r\n4\r\nbody\r\n0\r\n\r\n");
        let (head, _) = received(&request, "4\r\nbody\r\n0\r\n\r\n").await;
        assert!(has(&head, "transfer-encoding: chunked"));
        assert!(!head.contains("content-length"));
    }
}

#[tokio::test]
async fn connection_cannot_take_the_length_away() {
    let request = "POST / HTTP/1.1\r\nhost: app\r\ncontent-length: 4\r\n\
                   connection: content-length, host\r\n\r\nbody";
    let (head, _) = received(request, "body").await;
    assert!(has(&head, "content-length: 4"));
    assert!(has(&head, "host: app"));
}

#[tokio::test]
async fn no_body_has_length_zero_where_one_is_usual() {
    let (head, _) = received("POST / HTTP/1.1\r\nhost: app\r\n\r\n", "").await;
    assert!(has(&head, "content-length: 0"));
    let (head, _) = received("GET / HTTP/1.1\r\nhost: app\r\n\r\n", "").await;
    assert!(!head.contains("content-length"));
}

#[tokio::test]
async fn a_response_with_both_framings_is_passed_on_with_one() {
    let response = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n\
                    4\r\nbody\r\n0\r\n\r\n";
    let got = answered(GET, response).await;
    assert!(!got.contains("content-length"), "{got}");
    assert!(got.ends_with("\r\n\r\n4\r\nbody\r\n0\r\n\r\n"), "{got}");
}

#[tokio::test]
async fn a_response_that_ends_with_its_connection_arrives() {
    let got = answered(GET, "HTTP/1.0 200 OK\r\n\r\nbody").await;
    assert!(got.starts_with("HTTP/1.1 200 OK\r\n"), "{got}");
    assert!(has(&got, "via: 1.0 weir"));
    assert!(got.ends_with("4\r\nbody\r\n0\r\n\r\n"), "{got}");
}

#[tokio::test]
async fn responses_without_a_body_keep_what_they_say_of_it() {
    let head = "HEAD / HTTP/1.1\r\nhost: app\r\nconnection: close\r\n\r\n";
    let got = answered(head, "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n").await;
    assert!(has(&got, "content-length: 9"), "{got}");
    assert!(got.ends_with("\r\n\r\n"));
    for status in ["204 No Content", "304 Not Modified"] {
        let got = answered(GET, &format!("HTTP/1.1 {status}\r\netag: x\r\n\r\n")).await;
        assert!(got.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{got}");
        assert!(has(&got, "etag: x") && got.ends_with("\r\n\r\n"), "{got}");
    }
}

#[tokio::test]
async fn interim_responses_are_not_taken_for_the_final_one() {
    let response = "HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n";
    let got = answered(GET, &format!("{response}{OK}")).await;
    assert!(got.starts_with("HTTP/1.1 200 OK\r\n"), "{got}");
}

#[tokio::test]
async fn declared_trailers_pass_to_clients_and_not_to_servers_of_http_1_1() {
    let (gateway, listener) = gateway_and_upstream().await;
    let mut client = RawConnection::connect(gateway).await;
    client
        .write(
            "POST / HTTP/1.1\r\nhost: app\r\nte: trailers\r\nconnection: te, close\r\n\
             trailer: x-sum\r\ntransfer-encoding: chunked\r\n\r\n\
             4\r\nbody\r\n0\r\nx-sum: 1\r\n\r\n",
        )
        .await;
    let mut upstream = RawConnection::accept(&listener).await;
    let head = upstream.head().await;
    assert!(
        has(&head, "te: trailers") && has(&head, "connection: te"),
        "{head}"
    );
    assert!(has(&head, "trailer: x-sum"));
    assert_eq!(upstream.read_to("\r\n\r\n").await, "4\r\nbody\r\n0\r\n\r\n");
    upstream
        .write(
            "HTTP/1.1 200 OK\r\ntrailer: x-end\r\ntransfer-encoding: chunked\r\n\r\n\
             2\r\nok\r\n0\r\nx-end: 2\r\nconnection: x\r\n\r\n",
        )
        .await;
    let got = client.rest().await;
    assert!(got.ends_with("2\r\nok\r\n0\r\nx-end: 2\r\n\r\n"), "{got}");
}

#[tokio::test]
async fn trailers_of_an_answer_tell_a_client_nothing_that_is_meant_for_heads() {
    let (listener, server) = listen().await;
    let proxy = proxy(settings(&[server]));
    let upstream = async {
        let mut peer = RawConnection::accept(&listener).await;
        peer.head().await;
        let trailers = "x-end: 2\r\nconnection: x\r\ncontent-length: 1\r\nset-cookie: a=b\r\n";
        let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        peer.write(&format!("{head}2\r\nok\r\n0\r\n{trailers}\r\n"))
            .await;
        peer
    };
    let (response, _wire) = tokio::join!(send(&proxy, get("/")), upstream);
    let body = response.into_body().collect().await.unwrap();
    let names: Vec<_> = body.trailers().unwrap().keys().collect();
    assert_eq!(names, ["x-end"]);
}

#[tokio::test]
async fn an_answer_is_whole_without_trailers_that_were_not_announced_or_asked_for() {
    let announced = "trailer: x-end\r\n";
    for (te, trailer) in [("", announced), ("connection: te\r\nte: trailers\r\n", "")] {
        let (gateway, listener) = gateway_and_upstream().await;
        let mut client = RawConnection::connect(gateway).await;
        let mut upstream = None;
        // The connections go on as well.
        for _ in 0..2 {
            let ask = format!("GET / HTTP/1.1\r\nhost: app\r\n{te}\r\n");
            client.write(&ask).await;
            if upstream.is_none() {
                upstream = Some(RawConnection::accept(&listener).await);
            }
            let upstream = upstream.as_mut().unwrap();
            upstream.head().await;
            let head = format!("HTTP/1.1 200 OK\r\n{trailer}transfer-encoding: chunked\r\n\r\n");
            upstream
                .write(&(head + "2\r\nok\r\n0\r\nx-end: 2\r\n\r\n"))
                .await;
            let head = client.head().await;
            assert!(has(&head, "transfer-encoding: chunked"), "{head}");
            assert_eq!(client.read_to("0\r\n\r\n").await, "2\r\nok\r\n0\r\n\r\n");
        }
    }
}

#[tokio::test]
async fn a_client_that_expects_it_is_told_to_continue_when_the_upstream_is_reached() {
    let (gateway, listener) = gateway_and_upstream().await;
    let mut client = RawConnection::connect(gateway).await;
    let request = "POST / HTTP/1.1\r\nhost: app\r\nexpect: 100-continue\r\n\
                   content-length: 4\r\n\r\n";
    client.write(request).await;
    assert_eq!(client.head().await, "HTTP/1.1 100 Continue\r\n\r\n");
    let mut upstream = RawConnection::accept(&listener).await;
    assert!(!upstream.head().await.contains("expect"));
    client.write("body").await;
    assert_eq!(upstream.read_to("body").await, "body");

    let unreachable = self::gateway(settings(&[refusing_address()])).await;
    let mut client = RawConnection::connect(unreachable).await;
    client.write(request).await;
    assert!(
        client
            .head()
            .await
            .starts_with("HTTP/1.1 502 Bad Gateway\r\n")
    );
}

/// HTTP/2 lets them through, and HTTP/1.1 does not say which of them counts.
#[tokio::test]
async fn a_length_that_is_told_twice_or_with_a_sign_is_told_once_and_plainly() {
    for lengths in [&["4", "4"][..], &["4", "5"], &["+4"], &["4, 4"]] {
        let (listener, server) = listen().await;
        let proxy = proxy(settings(&[server]));
        let mut request = Request::post("/").header("host", "app");
        for length in lengths {
            request = request.header("content-length", *length);
        }
        let request = request.body(Full::from("body")).unwrap();
        let upstream = async {
            let mut peer = RawConnection::accept(&listener).await;
            let head = peer.head().await;
            peer.read_to("body").await;
            peer.write(OK).await;
            head
        };
        let (_, head) = tokio::join!(send(&proxy, request), upstream);
        let told = head
            .split("\r\n")
            .filter(|line| line.starts_with("content-length"));
        assert_eq!(
            told.collect::<Vec<_>>(),
            ["content-length: 4"],
            "{lengths:?}"
        );
    }
}
