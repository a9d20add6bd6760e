//! Which requests are sent again, where, and how often.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::Full;
use tokio::net::TcpListener;
use weir_telemetry::UpstreamOutcome;

use super::failures::reason;
use super::servers::*;
use super::support::*;
use crate::Proxy;

#[tokio::test]
async fn the_next_server_is_tried_and_the_unreachable_one_passed_over() {
    let (listener, server) = listen().await;
    let proxy: Proxy = proxy(settings(&[refusing_address(), server]));
    let upstream = async {
        let mut peer = RawConnection::accept(&listener).await;
        for _ in 0..4 {
            peer.head().await;
            peer.write(OK).await;
        }
    };
    let client = async {
        for _ in 0..4 {
            let response = send(&proxy, get("/")).await;
            let seen = response.extensions().get::<UpstreamOutcome>().unwrap();
            assert_eq!(&*seen.server, server.to_string());
            text(response).await;
        }
    };
    tokio::join!(upstream, client);
}

#[tokio::test]
async fn when_no_server_is_available_all_are_tried_again() {
    let proxy: Proxy = proxy(settings(&[refusing_address(), refusing_address()]));
    for _ in 0..5 {
        let response = send(&proxy, get("/")).await;
        assert_eq!(response.status(), StatusCode::BAD_GATEWAY);
        assert_eq!(reason(&response), "connect");
    }
}

#[tokio::test]
async fn the_only_server_is_tried_each_time() {
    let proxy: Proxy = proxy(settings(&[refusing_address()]));
    for _ in 0..3 {
        assert_eq!(
            send(&proxy, get("/")).await.status(),
            StatusCode::BAD_GATEWAY
        );
    }
}

/// An upstream that answers once, and closes when the next request has arrived on the same
/// connection; answers the first request of the next connection, if there is one.
async fn closes_when_asked_again(listener: TcpListener) -> usize {
    let mut first = RawConnection::accept(&listener).await;
    first.head().await;
    first.write(OK).await;
    first.head().await;
    drop(first);
    let mut second = RawConnection::accept(&listener).await;
    second.head().await;
    second.write(OK).await;
    2
}

#[tokio::test]
async fn a_request_that_may_be_repeated_is_when_a_kept_connection_closes_without_an_answer() {
    let (listener, server) = listen().await;
    let proxy: Proxy = proxy(settings(&[server]));
    let upstream = tokio::spawn(closes_when_asked_again(listener));
    assert_eq!(text(send(&proxy, get("/")).await).await, "ok");
    assert_eq!(text(send(&proxy, get("/")).await).await, "ok");
    assert_eq!(upstream.await.unwrap(), 2);
}

#[tokio::test]
async fn a_request_that_may_not_be_repeated_fails_with_its_connection() {
    let (listener, server) = listen().await;
    let proxy: Proxy = proxy(settings(&[server]));
    let upstream = tokio::spawn(closes_when_asked_again(listener));
    assert_eq!(text(send(&proxy, get("/")).await).await, "ok");
    let post = Request::post("/")
        .header("host", "app")
        .body(Full::default())
        .unwrap();
    assert_eq!(send(&proxy, post).await.status(), StatusCode::BAD_GATEWAY);
    upstream.abort();
}

#[tokio::test]
async fn a_request_whose_answer_has_begun_is_not_sent_again() {
    let (listener, server) = listen().await;
    let proxy: Proxy = proxy(settings(&[server]));
    let upstream = async {
        let mut peer = RawConnection::accept(&listener).await;
        peer.head().await;
        peer.write(OK).await;
        peer.head().await;
        peer.write("HTTP/1.1 200 O").await;
    };
    let client = async {
        assert_eq!(text(send(&proxy, get("/")).await).await, "ok");
        send(&proxy, get("/")).await.status()
    };
    let ((), status) = tokio::join!(upstream, client);
    assert_eq!(status, StatusCode::BAD_GATEWAY);
    let nobody = futures_util::poll!(std::pin::pin!(listener.accept()));
    assert!(nobody.is_pending());
}

#[tokio::test]
async fn without_retries_a_request_on_a_new_connection_is_sent_once() {
    let (listener, server) = listen().await;
    let mut settings = settings(&[server]);
    settings.retries = None;
    let proxy: Proxy = proxy(settings);
    let upstream = async {
        RawConnection::accept(&listener).await.head().await;
    };
    let (response, ()) = tokio::join!(send(&proxy, get("/")), upstream);
    assert_eq!(response.status(), StatusCode::BAD_GATEWAY);
    let nobody = futures_util::poll!(std::pin::pin!(listener.accept()));
    assert!(nobody.is_pending());
}

/// It cost five requests of twelve, and three more.
#[tokio::test]
async fn one_of_three_servers_that_accepts_and_never_answers_costs_one_request() {
    let servers = servers([Answers(OK), NeverAnswers, Answers(OK)]).await;
    let mut settings = settings_of(&servers);
    settings.retries = None;
    settings.timeouts.response = Duration::from_secs(2);
    let ejection = settings.ejection.as_mut().unwrap();
    ejection.base_time = Duration::from_secs(60);
    let proxy = proxy(settings);
    let statuses = statuses(&proxy, Method::POST, 12).await;
    assert_eq!(
        statuses.iter().filter(|status| **status == 504).count(),
        1,
        "{statuses:?}"
    );
    assert_eq!(
        statuses.iter().filter(|status| **status == 200).count(),
        11,
        "{statuses:?}"
    );
}

#[tokio::test]
async fn a_request_is_sent_to_a_server_that_refused_before_rather_than_to_one_that_does_not_answer()
{
    let mut servers = servers([NeverAnswers, Answers(OK), Answers(OK)]).await;
    let mut settings = settings_of(&servers);
    settings.timeouts.response = Duration::from_secs(2);
    let ejection = settings.ejection.as_mut().unwrap();
    (ejection.base_time, ejection.max_ejected) = (Duration::from_secs(60), 100);
    let proxy = proxy(settings);
    assert_eq!(statuses(&proxy, Method::GET, 6).await, [200; 6]);
    // One refuses connections for a moment, and when it is back, the other one goes.
    let address = servers[1].address;
    drop(servers.remove(1));
    until_refused(address).await;
    assert_eq!(statuses(&proxy, Method::GET, 4).await, [200; 4]);
    let listener = TcpListener::bind(address).await.unwrap();
    let back = TestServer::on(listener, address, Answers(OK));
    drop(servers.remove(1));
    let asked = servers[0].requests();
    assert_eq!(statuses(&proxy, Method::GET, 6).await, [200; 6]);
    assert_eq!((back.requests(), servers[0].requests()), (6, asked));
}

#[tokio::test]
async fn a_request_that_may_be_repeated_does_not_fail_where_another_server_can_answer_it() {
    for behaviour in [NeverAnswers, Closes] {
        let servers = servers([behaviour, Answers(OK)]).await;
        let mut settings = settings_of(&servers);
        settings.timeouts.response = Duration::from_secs(2);
        let proxy = proxy(settings);
        assert_eq!(statuses(&proxy, Method::GET, 6).await, [200; 6]);
        assert!(servers[0].requests() > 0);
    }
}

/// Only as many were saved as there could be retries at the same time.
#[tokio::test]
async fn no_request_fails_when_a_server_dies_with_many_in_flight() {
    let servers = servers([ClosesAllAt(30), Answers(OK)]).await;
    let proxy = proxy(settings_of(&servers));
    let sent = (0..60).map(|_| status(&proxy, Method::GET));
    let statuses = futures_util::future::join_all(sent).await;
    assert_eq!(statuses, [200; 60]);
    assert_eq!(servers[0].requests(), 30);
}

#[tokio::test]
async fn a_request_that_is_not_idempotent_or_has_a_body_is_never_sent_twice() {
    let servers = servers([Closes, Closes]).await;
    let mut settings = settings_of(&servers);
    settings.ejection = None;
    let proxy = proxy(settings);
    for method in [Method::POST, Method::PATCH] {
        assert_eq!(statuses(&proxy, method, 2).await, [502; 2]);
    }
    let body = Full::new(Bytes::from_static(b"body"));
    let put = Request::put("/").header("host", "app").body(body).unwrap();
    assert_eq!(send(&proxy, put).await.status(), StatusCode::BAD_GATEWAY);
    let sent = servers[0].requests() + servers[1].requests();
    assert_eq!(sent, 5);
}

#[tokio::test]
async fn a_request_that_may_be_repeated_is_sent_once_to_each_server_at_most() {
    let servers = servers([Closes, Closes, Closes]).await;
    let mut settings = settings_of(&servers);
    settings.ejection = None;
    let proxy = proxy(settings);
    assert_eq!(status(&proxy, Method::GET).await, 502);
    let sent: Vec<_> = servers.iter().map(TestServer::requests).collect();
    assert_eq!(sent, [1, 1, 1]);
}

#[tokio::test]
async fn without_a_budget_nothing_is_sent_again() {
    let servers = servers([Closes, Closes]).await;
    let mut settings = settings_of(&servers);
    settings.ejection = None;
    settings.retries.as_mut().unwrap().budget = 0;
    let proxy = proxy(settings);
    assert_eq!(statuses(&proxy, Method::GET, 2).await, [502; 2]);
    assert_eq!(servers[0].requests() + servers[1].requests(), 2);
}

#[tokio::test]
async fn a_status_is_retried_only_if_it_is_listed_and_the_last_one_is_the_answer() {
    for (listed, expected) in [(false, [503, 200]), (true, [200, 200])] {
        let servers = servers([Answers(FAILED), Answers(OK)]).await;
        let mut settings = settings_of(&servers);
        if listed {
            let retries = settings.retries.as_mut().unwrap();
            retries.on_status = ["503".parse().unwrap()].into_iter().collect();
        }
        let proxy = proxy(settings);
        assert_eq!(statuses(&proxy, Method::GET, 2).await, expected);
        assert_eq!(
            status(&proxy, Method::POST).await,
            503,
            "it is not repeated"
        );
    }
    let servers = servers([Answers(FAILED), Answers(FAILED)]).await;
    let mut settings = settings_of(&servers);
    settings.retries.as_mut().unwrap().on_status = ["503".parse().unwrap()].into_iter().collect();
    let response = send(&proxy(settings), get("/")).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(text(response).await, "no");
}
