//! Several servers, of which some fail, and what a client notices.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::Full;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use weir_telemetry::UpstreamOutcome;

use super::support::*;
use crate::{
    Balance, HealthCheck, Proxy, ShutdownSignal, Upstream, UpstreamSettings, UpstreamState,
    start_health_checks,
};

const FAILED: &str = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\nno";

/// What a server does with a request whose head it has read.
#[derive(Clone, Copy)]
enum Behaviour {
    Answers(&'static str),
    Closes,
    /// Dies with this many requests in flight.
    ClosesAllAt(usize),
    NeverAnswers,
}

/// A server that counts the requests that it gets, until it is dropped.
struct TestServer {
    address: SocketAddr,
    requests: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl TestServer {
    async fn start(behaviour: Behaviour) -> Self {
        let (listener, address) = listen().await;
        Self::on(listener, address, behaviour)
    }

    fn on(listener: TcpListener, address: SocketAddr, behaviour: Behaviour) -> Self {
        let requests = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&requests);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let mut peer = RawConnection::accept(&listener).await;
                let counted = Arc::clone(&counted);
                connections.spawn(async move {
                    while peer.0.readable().await.is_ok()
                        && peer.0.peek(&mut [0]).await.is_ok_and(|read| read > 0)
                    {
                        peer.head().await;
                        counted.fetch_add(1, Ordering::Relaxed);
                        match behaviour {
                            Answers(text) => peer.write(text).await,
                            Closes => return,
                            ClosesAllAt(most) => {
                                while counted.load(Ordering::Relaxed) < most {
                                    tokio::task::yield_now().await;
                                }
                                return;
                            }
                            NeverAnswers => std::future::pending().await,
                        }
                    }
                });
            }
        });
        Self {
            address,
            requests,
            task,
        }
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn servers<const N: usize>(behaviours: [Behaviour; N]) -> Vec<TestServer> {
    let mut servers = Vec::new();
    for behaviour in behaviours {
        servers.push(TestServer::start(behaviour).await);
    }
    servers
}

fn settings_of(servers: &[TestServer]) -> UpstreamSettings {
    let addresses: Vec<_> = servers.iter().map(|server| server.address).collect();
    settings(&addresses)
}

/// The status of a request of this method, whose response is read to its end.
async fn status(proxy: &Proxy, method: Method) -> u16 {
    let mut request = get("/");
    *request.method_mut() = method;
    let response = send(proxy, request).await;
    let status = response.status().as_u16();
    text(response).await;
    status
}

async fn statuses(proxy: &Proxy, method: Method, times: usize) -> Vec<u16> {
    let mut statuses = Vec::new();
    for _ in 0..times {
        statuses.push(status(proxy, method.clone()).await);
    }
    statuses
}

use Behaviour::{Answers, Closes, ClosesAllAt, NeverAnswers};

/// It cost five requests of twelve, and three more.
#[tokio::test]
async fn one_of_three_servers_that_accepts_and_never_answers_costs_one_request() {
    let servers = servers([Answers(OK), NeverAnswers, Answers(OK)]).await;
    let mut settings = settings_of(&servers);
    settings.retries = None;
    settings.timeouts.response = Duration::from_millis(200);
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
    settings.timeouts.response = Duration::from_millis(200);
    let ejection = settings.ejection.as_mut().unwrap();
    (ejection.base_time, ejection.max_ejected) = (Duration::from_secs(60), 100);
    let proxy = proxy(settings);
    assert_eq!(statuses(&proxy, Method::GET, 6).await, [200; 6]);
    // One refuses connections for a moment, and when it is back, the other one goes.
    let address = servers[1].address;
    drop(servers.remove(1));
    while tokio::net::TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
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
        settings.timeouts.response = Duration::from_millis(200);
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
    let restarted = async {
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
        while tokio::net::TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
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
    while tokio::net::TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
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
