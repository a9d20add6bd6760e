use std::time::Duration;

use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty, Full};
use weir_telemetry::UpstreamOutcome;

use super::support::*;
use crate::{Proxy, UpstreamSettings};

type Sized = Proxy;

#[tokio::test]
async fn a_connection_serves_one_request_after_the_other() {
    let (listener, server) = listen().await;
    let proxy: Sized = proxy(settings(&[server]));
    let upstream = async {
        let mut peer = RawConnection::accept(&listener).await;
        for path in ["/1", "/2"] {
            assert!(
                peer.head()
                    .await
                    .starts_with(&format!("GET {path} HTTP/1.1\r\n"))
            );
            peer.write(OK).await;
        }
    };
    let client = async {
        let first = send(&proxy, get("/1")).await;
        let seen = first.extensions().get::<UpstreamOutcome>().unwrap();
        assert!(seen.connect.is_some());
        assert_eq!(text(first).await, "ok");
        let second = send(&proxy, get("/2")).await;
        let seen = second.extensions().get::<UpstreamOutcome>().unwrap();
        assert_eq!(seen.connect, None);
        assert_eq!(&*seen.server, server.to_string());
        assert_eq!(seen.status, StatusCode::OK);
        assert_eq!(text(second).await, "ok");
    };
    tokio::join!(upstream, client);
}

/// The server's time-out is below the gateway's: a POST that met its end got 502.
#[tokio::test]
async fn a_connection_is_not_used_again_when_its_server_may_be_about_to_close_it() {
    for (fields, idle, is_reused) in [
        ("keep-alive: timeout=5\r\n", 3900, true),
        ("keep-alive: timeout=5\r\n", 4000, false),
        (
            "connection: keep-alive\r\nkeep-alive: timeout=72\r\n",
            59_900,
            true,
        ),
        ("keep-alive: timeout=72\r\n", 60_000, false),
        ("keep-alive: timeout=5, max=0\r\n", 0, false),
        ("", 59_900, true),
    ] {
        let (listener, server) = listen().await;
        let proxy: Sized = proxy(settings(&[server]));
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n{fields}\r\nok");
        let upstream = async {
            let mut first = RawConnection::accept(&listener).await;
            first.head().await;
            first.write(&answer).await;
            tokio::select! {
                _ = first.head(), if is_reused => first.write(OK).await,
                mut second = RawConnection::accept(&listener), if !is_reused => {
                    second.head().await;
                    second.write(OK).await;
                }
            }
        };
        let client = async {
            assert_eq!(text(send(&proxy, get("/")).await).await, "ok");
            tokio::time::pause();
            tokio::time::advance(Duration::from_millis(idle)).await;
            tokio::time::resume();
            let second = send(&proxy, get("/")).await;
            let seen = second.extensions().get::<UpstreamOutcome>().unwrap();
            assert_eq!(seen.connect.is_none(), is_reused, "{fields:?} {idle}");
            assert_eq!(text(second).await, "ok");
        };
        tokio::join!(upstream, client);
    }
}

#[tokio::test]
async fn a_connection_is_free_when_the_response_has_ended_however_that_is_told() {
    let (listener, server) = listen().await;
    let proxy: Sized = proxy(settings(&[server]));
    let upstream = async {
        let mut peer = RawConnection::accept(&listener).await;
        peer.head().await;
        peer.write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n")
            .await;
        for _ in 0..2 {
            peer.head().await;
            peer.write(OK).await;
        }
    };
    let client = async {
        assert_eq!(text(send(&proxy, get("/")).await).await, "ok");
        // All that its length tells was read, and the end not asked for.
        let mut second = send(&proxy, get("/")).await;
        second.body_mut().frame().await.unwrap().unwrap();
        assert_eq!(text(send(&proxy, get("/")).await).await, "ok");
    };
    tokio::join!(upstream, client);
}

#[tokio::test]
async fn a_connection_whose_response_is_not_read_to_the_end_is_not_used_again() {
    let (listener, server) = listen().await;
    let proxy: Sized = proxy(settings(&[server]));
    let upstream = async {
        let mut first = RawConnection::accept(&listener).await;
        first.head().await;
        first
            .write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\no")
            .await;
        let mut second = RawConnection::accept(&listener).await;
        second.head().await;
        second.write(OK).await;
        first
    };
    let client = async {
        let unread = send(&proxy, get("/")).await;
        assert_eq!(text(send(&proxy, get("/")).await).await, "ok");
        unread
    };
    let (_first, _unread) = tokio::join!(upstream, client);
}

#[tokio::test]
async fn a_response_that_is_not_read_any_more_closes_its_connection() {
    let (listener, server) = listen().await;
    let proxy: Sized = proxy(settings(&[server]));
    let upstream = async {
        let mut peer = RawConnection::accept(&listener).await;
        peer.head().await;
        peer.write("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nno")
            .await;
        peer.rest().await
    };
    let client = async {
        let mut response = send(&proxy, get("/")).await;
        response.body_mut().frame().await.unwrap().unwrap();
    };
    let (rest, ()) = tokio::join!(upstream, client);
    assert_eq!(rest, "");
}

#[tokio::test]
async fn a_request_that_is_not_awaited_any_more_closes_its_connection() {
    let (listener, server) = listen().await;
    let proxy: Sized = proxy(settings(&[server]));
    let call = tokio::spawn(async move { send(&proxy, get("/")).await });
    let mut peer = RawConnection::accept(&listener).await;
    peer.head().await;
    call.abort();
    assert_eq!(peer.rest().await, "");
}

#[tokio::test]
async fn a_request_that_a_closed_connection_did_not_take_goes_out_on_a_fresh_one() {
    let (listener, server) = listen().await;
    let proxy: Sized = proxy(settings(&[server]));
    let upstream = async {
        let mut peer = RawConnection::accept(&listener).await;
        peer.head().await;
        peer.write(OK).await;
        peer
    };
    let client = async { text(send(&proxy, get("/")).await).await };
    let (peer, _) = tokio::join!(upstream, client);

    // The runtime learns that the connection is closed, but before the connection's task does, this
    // one is polled again.
    drop(peer);
    tokio::task::yield_now().await;
    let again = Request::post("/").header("host", "app.example.com");
    let again = send(&proxy, again.body(Full::from("body")).unwrap());
    let upstream = async {
        let mut peer = RawConnection::accept(&listener).await;
        peer.head().await;
        assert_eq!(peer.read_to("body").await, "body");
        peer.write(OK).await;
    };
    let (response, ()) = tokio::join!(again, upstream);
    assert_eq!(text(response).await, "ok");
}

#[tokio::test]
async fn a_connection_that_the_upstream_says_it_closes_is_not_used_again() {
    let (listener, server) = listen().await;
    let proxy: Sized = proxy(settings(&[server]));
    let upstream = async {
        for _ in 0..2 {
            let mut peer = RawConnection::accept(&listener).await;
            peer.head().await;
            peer.write("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok")
                .await;
        }
    };
    let client = async {
        for _ in 0..2 {
            assert_eq!(text(send(&proxy, get("/")).await).await, "ok");
        }
    };
    tokio::join!(upstream, client);
}

/// What follows the end of an answer belongs to no request, so that it must neither be given to the
/// next one nor be skipped: who knows how much of it is still to come?
#[tokio::test]
async fn a_connection_on_which_something_follows_the_answer_is_not_used_again() {
    let short = "ok".to_owned();
    let long = "x".repeat(50_000);
    for body in [short, long] {
        let (listener, server) = listen().await;
        let proxy: Sized = proxy(settings(&[server]));
        let length = body.len();
        let answer =
            format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}HTTP/1.1 200 St");
        let upstream = async {
            let mut first = RawConnection::accept(&listener).await;
            first.head().await;
            first.write(&answer).await;
            let mut second = RawConnection::accept(&listener).await;
            second.head().await;
            second.write(OK).await;
        };
        let client = async {
            assert_eq!(text(send(&proxy, get("/")).await).await, body);
            assert_eq!(text(send(&proxy, get("/")).await).await, "ok");
        };
        tokio::join!(upstream, client);
    }
}

#[tokio::test]
async fn a_connection_that_is_idle_for_too_long_is_closed() {
    let (listener, server) = listen().await;
    let mut settings = settings(&[server]);
    settings.idle_timeout = Duration::from_secs(60);
    let proxy: Sized = proxy(settings);
    let upstream = async {
        let mut peer = RawConnection::accept(&listener).await;
        peer.head().await;
        peer.write(OK).await;
        peer
    };
    let client = async { text(send(&proxy, get("/")).await).await };
    let (mut peer, _) = tokio::join!(upstream, client);
    tokio::time::pause();
    let start = tokio::time::Instant::now();
    assert_eq!(peer.rest().await, "");
    assert!(start.elapsed() >= Duration::from_secs(59));
}

#[tokio::test]
async fn a_busy_connection_to_a_server_with_a_name_is_not_used_for_ever() {
    let (listener, server) = listen().await;
    let named = format!("http://localhost:{}", server.port());
    for (uri, connections) in [(named, 2), (format!("http://{server}"), 1)] {
        let mut settings = UpstreamSettings::new("app", vec![uri.parse().unwrap()]);
        settings.resolve_interval = Duration::from_millis(1);
        let proxy: Sized = proxy(settings);
        let upstream = async {
            let mut accepted = 0;
            let mut requests = 0;
            while requests < 2 {
                let mut peer = RawConnection::accept(&listener).await;
                accepted += 1;
                while requests < 2 && peer.0.peek(&mut [0]).await.is_ok_and(|read| read > 0) {
                    peer.head().await;
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    peer.write(OK).await;
                    requests += 1;
                }
            }
            accepted
        };
        let client = async {
            for _ in 0..2 {
                assert_eq!(text(send(&proxy, get("/")).await).await, "ok");
            }
        };
        let (accepted, ()) = tokio::join!(upstream, client);
        assert_eq!(accepted, connections);
    }
}

#[tokio::test]
async fn an_idle_connection_that_the_upstream_closes_is_closed_here_too() {
    let (listener, server) = listen().await;
    let mut settings = settings(&[server]);
    settings.idle_timeout = Duration::from_secs(3600);
    let proxy: Sized = proxy(settings);
    let upstream = async {
        let mut peer = RawConnection::accept(&listener).await;
        peer.head().await;
        peer.write(OK).await;
        peer
    };
    let client = async { text(send(&proxy, get("/")).await).await };
    let (mut peer, _) = tokio::join!(upstream, client);
    tokio::io::AsyncWriteExt::shutdown(&mut peer.0)
        .await
        .unwrap();
    tokio::time::pause();
    let start = tokio::time::Instant::now();
    assert_eq!(peer.rest().await, "");
    assert!(
        start.elapsed() < Duration::from_secs(60),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test]
async fn a_connection_is_used_again_only_when_the_request_was_sent_to_its_end_too() {
    let (listener, server) = listen().await;
    let (body, chunks) = chunks();
    let without_body = || get("/").map(|_| Empty::new().map_err(|never| match never {}).boxed());
    let proxy = proxy(settings(&[server]));
    let upload = Request::post("/up").header("host", "app.example.com");
    let upload = upload.body(chunks).unwrap();
    let upstream = async {
        let mut first = RawConnection::accept(&listener).await;
        first.head().await;
        first.write(OK).await;
        let mut second = RawConnection::accept(&listener).await;
        second.head().await;
        second.write(OK).await;
        (first, second)
    };
    let client = async {
        assert_eq!(text(send(&proxy, upload).await).await, "ok");
        assert_eq!(text(send(&proxy, without_body()).await).await, "ok");
    };
    let ((mut first, _second), ()) = tokio::join!(upstream, client);
    body.send(data("late")).unwrap();
    drop(body);
    assert_eq!(first.read_to("0\r\n\r\n").await, "4\r\nlate\r\n0\r\n\r\n");

    // Now it was, and it is the one that waited the shortest.
    let upstream = async {
        first.head().await;
        first.write(OK).await;
    };
    let ((), response) = tokio::join!(upstream, send(&proxy, without_body()));
    assert_eq!(text(response).await, "ok");
}
