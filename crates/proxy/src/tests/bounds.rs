//! What bounds a request in time and size, and how many connections a server has.

use std::sync::Arc;
use std::time::Duration;

use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};

use super::failures::{is_soon, reason};
use super::support::*;
use crate::{
    ConnectionBudget, Proxy, RequestBuffering, ShutdownSignal, Timeouts, Upstream,
    UpstreamSettings, UpstreamState,
};

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_request_and_its_retries_take_no_longer_than_all_of_it_may_take() {
    let ((one, first), (other, second)) = (listen().await, listen().await);
    let mut settings = settings(&[first, second]);
    settings.timeouts.response = MINUTE * 2 / 3;
    settings.timeouts.total = Some(MINUTE);
    let proxy: Proxy = proxy(settings);
    let upstream = async {
        let mut peer = RawConnection::accept(&one).await;
        peer.head().await;
        tokio::time::pause();
        let start = Instant::now();
        assert_eq!(peer.rest().await, "");
        assert!(start.elapsed() > MINUTE / 2);
        let mut peer = RawConnection::accept(&other).await;
        peer.head().await;
        assert_eq!(peer.rest().await, "", "the connection is closed");
    };
    let (response, ()) = tokio::join!(send(&proxy, get("/")), upstream);
    assert_eq!(response.status(), StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(reason(&response), "total_timeout");
}

#[tokio::test]
async fn a_response_that_keeps_coming_is_cut_when_all_of_it_took_too_long() {
    let (listener, server) = listen().await;
    let mut settings = settings(&[server]);
    settings.timeouts.total = Some(MINUTE);
    let proxy: Proxy = proxy(settings);
    let upstream = async {
        let mut peer = RawConnection::accept(&listener).await;
        peer.head().await;
        tokio::time::pause();
        peer.write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            .await;
        peer
    };
    let (response, mut peer) = tokio::join!(send(&proxy, get("/")), upstream);
    let mut body = response.into_body();
    let write = async {
        loop {
            peer.write("1\r\nx\r\n").await;
            sleep(Duration::from_secs(1)).await;
        }
    };
    let read = async {
        let mut frames = 0;
        loop {
            match body.frame().await.unwrap() {
                Ok(_) => frames += 1,
                Err(error) => return (frames, error.to_string()),
            }
        }
    };
    let (frames, error) = tokio::select! {
        read = read => read,
        () = write => unreachable!("it writes for ever"),
    };
    assert!(frames > 0);
    assert!(error.contains("longer than it may take"), "{error}");
    assert!(body.frame().await.is_none());
    assert_eq!(peer.rest().await, "", "the connection is closed");
}

#[tokio::test]
async fn the_time_outs_of_a_route_take_the_place_of_the_upstreams_on_its_connections() {
    let (listener, server) = listen().await;
    let proxy: Proxy = proxy(settings(&[server]));
    let timeouts = Timeouts {
        response: Duration::from_millis(50),
        ..Timeouts::default()
    };
    let of_route = proxy.clone().with_timeouts(timeouts);
    let upstream = async {
        let mut peer = RawConnection::accept(&listener).await;
        peer.head().await;
        peer.write(OK).await;
        peer.head().await;
        peer.rest().await
    };
    let client = async {
        let response = send(&proxy, get("/")).await;
        assert_eq!(text(response).await, "ok");
        send(&of_route, get("/slow")).await
    };
    let (response, rest) = tokio::join!(client, upstream);
    assert_eq!((reason(&response), &*rest), ("response_timeout", ""));
}

fn bounded(servers: &[std::net::SocketAddr], max_connections: usize) -> UpstreamSettings {
    let mut settings = settings(servers);
    settings.max_connections = Some(max_connections);
    settings
}

#[tokio::test]
async fn a_request_waits_for_the_only_connection_that_a_server_may_have() {
    let (listener, server) = listen().await;
    let proxy: Proxy = proxy(bounded(&[server], 1));
    let first = tokio::spawn({
        let proxy = proxy.clone();
        async move { send(&proxy, get("/1")).await }
    });
    let mut peer = RawConnection::accept(&listener).await;
    assert!(peer.head().await.starts_with("GET /1 "));
    let second = tokio::spawn({
        let proxy = proxy.clone();
        async move { text(send(&proxy, get("/2")).await).await }
    });
    peer.write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\no")
        .await;
    let response = first.await.unwrap();
    // As long as the response is on its way, the connection is in use.
    let mut head = Box::pin(peer.head());
    assert!(futures_util::poll!(&mut head).is_pending());
    drop(head);
    peer.write("k").await;
    assert_eq!(text(response).await, "ok");
    assert!(peer.head().await.starts_with("GET /2 "));
    peer.write(OK).await;
    assert_eq!(second.await.unwrap(), "ok");
}

#[tokio::test]
async fn a_request_waits_no_longer_than_connecting_may_take() {
    let (listener, server) = listen().await;
    let mut settings = bounded(&[server], 1);
    settings.timeouts.connect = Duration::from_millis(50);
    let proxy: Proxy = proxy(settings);
    let first = tokio::spawn({
        let proxy = proxy.clone();
        async move { send(&proxy, get("/1")).await }
    });
    let mut peer = RawConnection::accept(&listener).await;
    peer.head().await;
    let response = send(&proxy, get("/2")).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(reason(&response), "server_busy");
    assert!(is_soon(&response));
    // The server is not to blame, and a client that leaves makes room.
    first.abort();
    assert!(first.await.is_err());
    let serve = async {
        let mut peer = RawConnection::accept(&listener).await;
        peer.head().await;
        peer.write(OK).await;
    };
    let (response, ()) = tokio::join!(send(&proxy, get("/3")), serve);
    assert_eq!(text(response).await, "ok");
}

#[tokio::test]
async fn a_server_with_as_many_connections_as_it_may_have_is_passed_over() {
    let ((one, first), (other, second)) = (listen().await, listen().await);
    let proxy: Proxy = proxy(bounded(&[first, second], 1));
    let held = [one, other].map(|listener: TcpListener| {
        tokio::spawn(async move {
            let mut peer = RawConnection::accept(&listener).await;
            let head = peer.head().await;
            (peer, head)
        })
    });
    // Three turns of a round robin, the third of which is the first server's.
    let calls = [1, 2].map(|place| {
        let proxy = proxy.clone();
        tokio::spawn(async move { send(&proxy, get(&format!("/{place}"))).await })
    });
    let mut peers = Vec::new();
    for held in held {
        peers.push(held.await.unwrap().0);
    }
    let third = tokio::spawn({
        let proxy = proxy.clone();
        async move { text(send(&proxy, get("/3")).await).await }
    });
    for peer in &mut peers {
        peer.write(OK).await;
    }
    for call in calls {
        assert_eq!(text(call.await.unwrap()).await, "ok");
    }
    let [one, other] = &mut peers[..] else {
        panic!("two servers")
    };
    tokio::select! {
        head = one.head() => { assert!(head.starts_with("GET /3 ")); one.write(OK).await; }
        head = other.head() => { assert!(head.starts_with("GET /3 ")); other.write(OK).await; }
    }
    assert_eq!(third.await.unwrap(), "ok");
}

/// Each worker has connections of its own.
#[tokio::test]
async fn an_idle_connection_of_one_worker_gives_way_to_that_of_another() {
    let (listener, server) = listen().await;
    let settings = bounded(&[server], 1);
    let state = UpstreamState::new(&settings);
    let worker = || {
        let upstream = Upstream::with_state(
            ConnectionBudget::default(),
            ShutdownSignal::never(),
            Arc::clone(&state),
            settings.clone(),
        );
        Proxy::new(upstream)
    };
    let (here, there) = (worker(), worker());
    let serve = async {
        let mut first = RawConnection::accept(&listener).await;
        first.head().await;
        first.write(OK).await;
        let mut second = RawConnection::accept(&listener).await;
        assert_eq!(first.rest().await, "", "it was closed");
        second.head().await;
        second.write(OK).await;
    };
    let call = async {
        assert_eq!(text(send(&here, get("/1")).await).await, "ok");
        assert_eq!(text(send(&there, get("/2")).await).await, "ok");
    };
    tokio::join!(serve, call);
}

#[tokio::test]
async fn a_body_that_was_read_beforehand_is_sent_again_where_that_is_safe() {
    for (method, is_repeated) in [("PUT", true), ("POST", false)] {
        let ((one, first), (other, second)) = (listen().await, listen().await);
        let buffering = Arc::new(RequestBuffering::new(1024, 1024));
        let proxy: Proxy = proxy(settings(&[first, second]));
        let proxy = proxy.with_request_buffering(Some(buffering));
        let (sender, body) = chunks();
        sender.send(data("bo")).unwrap();
        sender.send(data("dy")).unwrap();
        drop(sender);
        let request = Request::builder().method(method).uri("/");
        let request = request.header("host", "a").body(body).unwrap();
        let serve = async {
            for (listener, answer) in [(one, ""), (other, OK)] {
                let mut peer = RawConnection::accept(&listener).await;
                let head = peer.head().await;
                assert!(has(&head, "content-length: 4"), "{head}");
                assert_eq!(peer.read_to("body").await, "body");
                peer.write(answer).await;
            }
        };
        let response = async {
            tokio::select! {
                response = send(&proxy, request) => Some(response),
                () = serve => None,
            }
        };
        let status = response.await.map(|response| response.status().as_u16());
        assert!(matches!(
            (is_repeated, status),
            (true, None | Some(200)) | (false, Some(502))
        ));
    }
}

#[tokio::test]
async fn no_server_is_contacted_before_a_body_is_there() {
    let (listener, server) = listen().await;
    let proxy: Proxy = proxy(settings(&[server]));
    let proxy = proxy.with_request_buffering(Some(Arc::new(RequestBuffering::new(8, 1024))));
    let (sender, body) = chunks();
    let request = Request::post("/").header("host", "a").body(body).unwrap();
    let mut sent = Box::pin(send(&proxy, request));
    let mut accepted = Box::pin(listener.accept());
    for piece in ["some", "more"] {
        sender.send(data(piece)).unwrap();
        assert!(futures_util::poll!(&mut sent).is_pending());
        assert!(futures_util::poll!(&mut accepted).is_pending());
    }
    // More than is kept.
    sender.send(data("rest")).unwrap();
    let (_, accepted) = tokio::join!(async { futures_util::poll!(&mut sent) }, accepted);
    let mut peer = RawConnection(accepted.unwrap().0);
    let serve = async {
        let head = peer.head().await;
        assert!(has(&head, "transfer-encoding: chunked"), "{head}");
        peer.read_to("rest\r\n").await;
        drop(sender);
        peer.read_to("0\r\n\r\n").await;
        peer.write(OK).await;
    };
    let (response, ()) = tokio::join!(sent, serve);
    assert_eq!(text(response).await, "ok");
}

#[tokio::test]
async fn a_body_that_breaks_off_while_it_is_read_is_the_clients_fault() {
    let proxy: Proxy = proxy(settings(&[refusing_address()]));
    let proxy = proxy.with_request_buffering(Some(Arc::new(RequestBuffering::new(8, 1024))));
    let (sender, body) = chunks();
    sender
        .send(Err(std::io::ErrorKind::ConnectionReset.into()))
        .unwrap();
    let request = Request::post("/").header("host", "a").body(body).unwrap();
    let response = send(&proxy, request).await;
    assert_eq!(
        (response.status().as_u16(), reason(&response)),
        (400, "request_body")
    );
    let whole = Request::get("/")
        .header("host", "a")
        .body(Full::default())
        .unwrap();
    assert_eq!(reason(&send(&proxy, whole).await), "connect");
}
