//! Several servers, of which some fail, and what a client notices.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use tokio::net::TcpListener;
use weir_telemetry::UpstreamOutcome;
use weir_testing::refuse;

use super::servers::*;
use super::support::*;
use crate::{
    Balance, HealthCheck, Proxy, ShutdownSignal, Upstream, UpstreamState, start_health_checks,
};

#[tokio::test]
async fn a_server_that_answers_with_failures_is_ejected_and_one_for_all_workers() {
    let servers = servers([Answers(FAILED), Answers(OK)]).await;
    let mut settings = settings_of(&servers);
    settings.ejection.as_mut().unwrap().base_time = Duration::from_secs(60);
    let state = UpstreamState::new(&settings);
    let worker = || {
        let (state, settings) = (Arc::clone(&state), settings.clone());
        Proxy::new(Upstream::with_state(
            Default::default(),
            ShutdownSignal::never(),
            state,
            settings,
        ))
    };
    let (one, other) = (worker(), worker());
    let failed = statuses(&one, Method::GET, 10).await;
    assert_eq!(failed.iter().filter(|status| **status == 503).count(), 5);
    assert_eq!(statuses(&other, Method::GET, 6).await, [200; 6]);
    assert_eq!(servers[0].requests(), 5);
}

#[tokio::test]
async fn a_request_waits_for_its_only_server_to_restart() {
    let server = TestServer::start(Answers(OK)).await;
    let address = server.address;
    let mut settings = settings(&[address]);
    settings.timeouts.connect = Duration::from_secs(60);
    let proxy = proxy(settings);
    for method in [Method::GET, Method::POST] {
        assert_eq!(status(&proxy, method).await, 200);
    }
    drop(server);
    let (refused, was_refused) = tokio::sync::oneshot::channel();
    let restarted = async {
        was_refused.await.unwrap();
        // It is out of reach until a request has been refused.
        tokio::time::sleep(Duration::from_millis(100)).await;
        loop {
            match TcpListener::bind(address).await {
                Ok(listener) => break TestServer::on(listener, address, Answers(OK)),
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    };
    let client = async {
        // The kept connection is closed by now, or turns out to be.
        until_refused(address).await;
        refused.send(()).unwrap();
        statuses(&proxy, Method::GET, 1).await
    };
    let (statuses, server) = tokio::join!(client, restarted);
    assert_eq!(statuses, [200]);
    assert_eq!(server.requests(), 1);
}

#[tokio::test]
async fn an_outage_that_lasts_is_told_at_once() {
    let server = TestServer::start(Answers(OK)).await;
    let address = server.address;
    let mut settings = settings(&[address]);
    settings.timeouts.connect = Duration::from_millis(300);
    let proxy = proxy(settings);
    assert_eq!(status(&proxy, Method::GET).await, 200);
    drop(server);
    until_refused(address).await;
    refuse(address);
    assert_eq!(status(&proxy, Method::GET).await, 502);
    tokio::time::sleep(Duration::from_millis(300)).await;
    tokio::time::pause();
    let start = tokio::time::Instant::now();
    assert_eq!(status(&proxy, Method::GET).await, 502);
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test]
async fn one_subject_stays_on_its_server_and_leaves_it_only_while_it_is_out() {
    let servers = servers([Answers(OK), Answers(OK), Answers(OK)]).await;
    let mut settings = settings_of(&servers);
    settings.balance = Balance::Hash;
    let proxy = proxy(settings);
    let keyed = |key: u64| proxy.clone().with_key(Arc::new(move |_| Some(key)));
    let server_of = async |key: u64| {
        let response = send(&keyed(key), get("/")).await;
        let server = response.extensions().get::<UpstreamOutcome>().unwrap();
        let server = server.server.to_string();
        text(response).await;
        server
    };
    let (mut before, mut gone) = (Vec::new(), None);
    for key in 0..20 {
        let server = server_of(key).await;
        assert_eq!(server_of(key).await, server);
        before.push(server);
    }
    let mut left = Vec::new();
    for server in servers {
        match gone {
            None => gone = Some(server.address.to_string()),
            Some(_) => left.push(server),
        }
    }
    let gone = gone.unwrap();
    assert!(before.contains(&gone));
    for (key, before) in (0..).zip(&before) {
        let now = server_of(key).await;
        assert!(
            now != gone && (now == *before || *before == gone),
            "{before} -> {now}"
        );
    }
}

/// Waits until a server is, or is not, available.
async fn until_available(state: &UpstreamState, place: usize, available: bool) {
    while state.sample().servers[place].available != available {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_server_whose_checks_fail_gets_no_requests_until_they_pass() {
    let servers = servers([Answers(FAILED), Answers(OK), NeverAnswers]).await;
    let mut settings = settings_of(&servers);
    let mut check = HealthCheck::new("/health".into());
    check.interval = Duration::from_millis(10);
    check.timeout = Duration::from_secs(2);
    settings.health_check = Some(check);
    let state = UpstreamState::new(&settings);
    start_health_checks(&settings, &state);
    for place in [0, 2] {
        until_available(&state, place, false).await;
    }
    let upstream = Upstream::with_state(
        Default::default(),
        ShutdownSignal::never(),
        Arc::clone(&state),
        settings,
    );
    let proxy = Proxy::new(upstream);
    assert_eq!(statuses(&proxy, Method::POST, 6).await, [200; 6]);
    // The first server gets well.
    let mut servers = servers.into_iter();
    let address = servers.next().map(|ill| ill.address).unwrap();
    let listener = loop {
        match TcpListener::bind(address).await {
            Ok(listener) => break listener,
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    };
    let well = TestServer::on(listener, address, Answers(OK));
    until_available(&state, 0, true).await;
    let before = well.requests();
    assert_eq!(statuses(&proxy, Method::POST, 4).await, [200; 4]);
    assert!(well.requests() >= before + 2);
}

/// A head beyond the bound of those that are passed on.
fn too_large(status: &'static str) -> Behaviour {
    let lines = "x: y\r\n".repeat(1001);
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n{lines}\r\n");
    Answers(head.leak())
}

/// One page took its server out.
#[tokio::test]
async fn a_head_that_is_too_large_ejects_no_server_and_fails_no_check_unless_its_status_does() {
    for (status, is_available) in [("200 OK", true), ("500 X", false)] {
        let servers = servers([too_large(status), Answers(OK)]).await;
        let settings = settings_of(&servers);
        let state = UpstreamState::new(&settings);
        let upstream = Upstream::with_state(
            Default::default(),
            ShutdownSignal::never(),
            Arc::clone(&state),
            settings.clone(),
        );
        let of_requests = statuses(&Proxy::new(upstream), Method::GET, 20).await;
        assert!(of_requests.contains(&502));
        assert_eq!(state.sample().servers[0].available, is_available);
        let mut checked = settings;
        let mut check = HealthCheck::new("/health".into());
        check.interval = Duration::from_millis(1);
        checked.health_check = Some(check);
        let state = UpstreamState::new(&checked);
        let before = servers[0].requests();
        start_health_checks(&checked, &state);
        // The second one begins when the result of the first is known.
        while servers[0].requests() < before + 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(state.sample().servers[0].available, is_available);
    }
}

#[tokio::test]
async fn metrics_show_requests_in_flight_until_their_responses_have_ended() {
    let server = TestServer::start(Answers("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok")).await;
    let settings = settings(&[server.address]);
    let state = UpstreamState::new(&settings);
    let upstream = Upstream::with_state(
        Default::default(),
        ShutdownSignal::never(),
        Arc::clone(&state),
        settings,
    );
    let proxy = Proxy::new(upstream);
    let in_flight = || state.sample().servers[0].in_flight;
    let response = send(&proxy, get("/")).await;
    assert_eq!(in_flight(), 1);
    drop(response);
    assert_eq!(in_flight(), 0);
}
