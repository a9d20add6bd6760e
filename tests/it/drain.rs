//! The end of a gateway: what was accepted is answered, and then it is over.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tokio::sync::watch;

use crate::support::upstream::text;
use crate::support::*;

/// Under load, the log would drop lines before it held up requests.
const QUIET: &str = "log: {access: false}";

/// An upstream that answers nothing before it is told to.
fn held_back() -> (watch::Sender<bool>, Upstream) {
    let (release, released) = watch::channel(false);
    let upstream = Upstream::serving(move |_| {
        let mut released = released.clone();
        async move {
            let _ = released.wait_for(|released| *released).await;
            text("late but whole")
        }
    });
    (release, upstream)
}

/// Sends a request on another thread, and waits until the upstream has it.
fn under_way(
    gateway: &Gateway,
    upstream: &Upstream,
) -> thread::JoinHandle<std::io::Result<Response>> {
    let (mut client, before) = (gateway.client(), upstream.count());
    let sent = thread::spawn(move || client.try_send(&get("/")));
    eventually("the request at the upstream", || {
        (upstream.count() > before).then_some(())
    });
    sent
}

#[test]
fn sigterm_under_load_fails_no_request_on_any_connection() {
    let upstream = Upstream::answering_after(Duration::from_millis(2), |_| text("real"));
    let mut gateway = Setup::before(&upstream).key(QUIET).start();
    let load = Load::start(gateway.address(), 16, |_, _| get("/"));
    load.go_on_for(200);
    gateway.signal("TERM");
    // Every client is told by `Connection: close` to go, and stops then.
    let report = load.finished();
    assert_eq!(report.failures, [""; 0]);
    assert_eq!(report.count(200), report.statuses.len());
    assert_eq!(gateway.ended().code(), Some(0));
    gateway.logs("drained", 1);
}

#[test]
fn sigterm_fails_no_request_of_clients_that_connect_for_each() {
    let upstream = Upstream::start();
    // Another test's server would let the clients in as soon as the gateway does not.
    let setup = Setup::before(&upstream).key(QUIET).on_kept_ports();
    let mut gateway = setup.start();
    let failed = Arc::<AtomicBool>::default();
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (address, failed) = (gateway.address(), Arc::clone(&failed));
            thread::spawn(move || {
                // Who is not let in any more was not accepted.
                while let Ok(mut client) = Client::try_connect(address) {
                    let answer = client.try_send(&get("/"));
                    if !answer.is_ok_and(|answer| answer.status == 200) {
                        failed.store(true, Ordering::SeqCst);
                    }
                }
            })
        })
        .collect();
    eventually("some requests", || (upstream.count() > 100).then_some(()));
    gateway.signal("TERM");
    for client in clients {
        client.join().unwrap();
    }
    assert!(!failed.load(Ordering::SeqCst), "an accepted request failed");
    assert_eq!(gateway.ended().code(), Some(0));
}

#[test]
fn what_was_sent_before_the_signal_is_answered_even_if_nobody_looked_at_it_yet() {
    const CLIENTS: usize = 64;
    let upstream = Upstream::start();
    let mut gateway = Setup::before(&upstream).start();
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| gateway.client()).collect();
    for client in &mut clients {
        client.send(&get("/"));
    }
    // A stopped process sees all of this at the same moment: requests on connections that were
    // quiet, connections that were never accepted, and the signal.
    gateway.signal("STOP");
    clients.extend((0..CLIENTS).map(|_| gateway.client()));
    for client in &mut clients {
        client.write(&get("/").bytes()).unwrap();
    }
    gateway.signal("TERM");
    gateway.signal("CONT");
    let answers = clients.iter_mut().map(|client| client.read("GET"));
    let answered = answers.filter(|it| it.as_ref().is_ok_and(|it| it.status == 200));
    assert_eq!(answered.count(), 2 * CLIENTS);
    assert_eq!(gateway.ended().code(), Some(0));
}

#[test]
fn a_request_in_flight_is_answered_after_sigterm_and_no_new_one_is_accepted() {
    let (release, upstream) = held_back();
    let mut gateway = Setup::before(&upstream).start();
    let sent = under_way(&gateway, &upstream);
    gateway.signal("TERM");
    eventually("a refused connection", || {
        let refused = Client::try_connect(gateway.address()).err()?;
        (refused.kind() == ErrorKind::ConnectionRefused).then_some(())
    });
    let readiness = gateway.admin(&get("/readyz"));
    assert_eq!((readiness.status, readiness.text()), (503, "draining\n"));
    assert_eq!(gateway.admin(&get("/livez")).status, 200);

    release.send_replace(true);
    let response = sent.join().unwrap().expect("an answer");
    assert_eq!((response.status, response.text()), (200, "late but whole"));
    assert!(response.closes());
    assert_eq!(gateway.ended().code(), Some(0));
}

#[test]
fn a_stream_of_http2_in_flight_is_answered_after_sigterm() {
    let (release, upstream) = held_back();
    let mut gateway = Setup::before(&upstream).start();
    let answer = http2::run(async {
        let mut connection = http2::connect(gateway.address()).await;
        let answer = tokio::spawn(connection.send_request(http2::get("/")));
        while upstream.count() == 0 {
            tokio::task::yield_now().await;
        }
        gateway.signal("TERM");
        gateway.logs("draining", 1);
        release.send_replace(true);
        http2::read(answer.await.unwrap().expect("an answer")).await
    });
    assert_eq!(answer.body, "late but whole");
    assert_eq!(gateway.ended().code(), Some(0));
}

#[test]
fn a_client_without_a_request_holds_up_no_drain() {
    let upstream = Upstream::start();
    let mut gateway = Setup::before(&upstream).start();
    let (mut used, mut unused) = (gateway.client(), gateway.client());
    used.send(&get("/"));
    gateway.signal("TERM");
    assert!(used.is_closed() && unused.is_closed());
    assert_eq!(gateway.ended().code(), Some(0));
    gateway.logs("drained", 1);
}

#[test]
fn sigint_drains_too() {
    let upstream = Upstream::start();
    let mut gateway = Setup::before(&upstream).start();
    gateway.signal("INT");
    assert_eq!(gateway.ended().code(), Some(0));
    gateway.logs("drained", 1);
}

#[test]
fn what_takes_longer_than_the_grace_period_is_cut_off() {
    let (_release, upstream) = held_back();
    let mut gateway = Setup::before(&upstream).key("grace: 300ms").start();
    let sent = under_way(&gateway, &upstream);
    gateway.signal("TERM");
    assert_eq!(gateway.ended().code(), Some(0));
    assert!(sent.join().unwrap().is_err());
    gateway.logs("the grace period is over", 1);
    let lines = gateway.log();
    let cut_off = lines.iter().find_map(|line| line.get("cut_off"));
    assert_eq!(cut_off, Some(&1.into()));
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let (_release, upstream) = held_back();
    let mut gateway = Setup::before(&upstream).start();
    let _sent = under_way(&gateway, &upstream);
    gateway.signal("TERM");
    gateway.logs("draining", 1);
    gateway.signal("TERM");
    assert_eq!(gateway.ended().code(), Some(1));
    gateway.tells("a second signal ended the drain");
}

/// A WebSocket through a gateway, to an app that sends back what it gets.
fn websocket(key: &str) -> (Gateway, WebSocket, Client) {
    let upstream = WebSocket::start();
    let servers = format!("{{app: {{servers: [\"http://{}\"]}}}}", upstream.address());
    let gateway = Setup::with_upstreams(&servers).key(key).start();
    let mut client = gateway.client();
    let ask = get("/socket")
        .with("connection", "Upgrade")
        .with("upgrade", "websocket");
    client.write(&ask.bytes()).unwrap();
    assert_eq!(client.read_head().unwrap().status, 101);
    (gateway, upstream, client)
}

fn echoed(client: &mut Client, bytes: &[u8]) {
    client.write(bytes).unwrap();
    let mut echo = vec![0; bytes.len()];
    client.read_exact(&mut echo).unwrap();
    assert_eq!(echo, bytes);
}

#[test]
fn a_websocket_is_closed_in_order_at_the_beginning_of_a_drain_and_logged_as_a_session() {
    const GOING_AWAY: [u8; 4] = [0x88, 2, 0x03, 0xe9];
    let (mut gateway, upstream, mut client) = websocket("grace: 30s");
    let frame = b"\x82\x0ahalf and..";
    let (half, other_half) = frame.split_at(6);
    echoed(&mut client, half);
    gateway.signal("TERM");
    gateway.logs("draining", 1);
    // A frame that has begun is not broken off.
    echoed(&mut client, other_half);
    let mut close = [0; 4];
    client.read_exact(&mut close).unwrap();
    assert_eq!(close, GOING_AWAY);
    // A client's answer is masked, and goes on to the app.
    let answer = [0x88, 0x82, 0, 0, 0, 0, 0x03, 0xe9];
    client.write(&answer).unwrap();
    drop(client);
    upstream.ended();
    assert_eq!(gateway.ended().code(), Some(0));
    gateway.logs("drained", 1);
    assert_eq!(gateway.times_logged("the grace period is over"), 0);
    gateway.logged("/socket");
    let lines = gateway.access("/socket");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(lines[0]["bytes"], frame.len() + close.len());
    assert_eq!(lines[0]["received"], frame.len() + answer.len());
}

#[test]
fn a_websocket_is_counted_when_it_begins_and_logged_when_it_ends() {
    let (gateway, upstream, mut client) = websocket("grace: 30s");
    echoed(&mut client, b"\x82\x03abc");
    let counted = "weir_requests_total{route=\"all\",status=\"1xx\",decision=\"unlimited\"}";
    assert_eq!(gateway.metric(counted), Some(1.0), "{}", gateway.metrics());
    drop(client);
    upstream.ended();
    let line = gateway.logged("/socket");
    assert_eq!(
        (&line["status"], &line["decision"]),
        (&101.into(), &"unlimited".into())
    );
    assert_eq!((&line["bytes"], &line["received"]), (&5.into(), &5.into()));
    assert_eq!(line.get("aborted"), None);
    assert_eq!(gateway.metric(counted), Some(1.0), "and not once more");
    assert_eq!(gateway.access("/socket").len(), 1);
}

#[test]
fn a_websocket_in_the_middle_of_a_frame_is_cut_off_at_the_end_of_the_grace_period_and_logged() {
    let (mut gateway, _upstream, mut client) = websocket("grace: 300ms");
    echoed(&mut client, b"\x82\x0ahalf");
    gateway.signal("TERM");
    assert_eq!(gateway.ended().code(), Some(0));
    gateway.logs("the grace period is over", 1);
    assert_eq!(
        client.rest(),
        b"",
        "nothing that a client could take for a frame"
    );
    gateway.logged("/socket");
    let lines = gateway.access("/socket");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(
        (&lines[0]["bytes"], &lines[0]["aborted"]),
        (&6.into(), &true.into())
    );
}
