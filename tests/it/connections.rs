//! Clients that hold connections, and a gateway that has few file descriptors.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use tokio::sync::watch;

use crate::support::upstream::text;
use crate::support::*;

/// `ulimit -n`, which some systems still come with.
const FEW: usize = 256;

fn start(setup: &Setup) -> Gateway {
    Gateway::start_with_descriptors(setup.written(), FEW)
}

#[test]
fn silent_connections_take_no_descriptor_that_requests_or_health_checks_need() {
    let upstream = Upstream::start();
    let gateway = start(&Setup::before(&upstream).key("log: {access: false}"));
    let _silent: Vec<_> = (0..300).map(|_| gateway.client()).collect();
    let _nosy: Vec<_> = (0..100).map(|_| gateway.admin_client()).collect();
    // Nor does any of these close its connection.
    let mut clients = Vec::new();
    for _ in 0..40 {
        let mut client = gateway.client();
        assert_eq!(client.send(&get("/")).status, 200);
        clients.push(client);
    }
    assert_eq!(gateway.admin(&get("/livez")).status, 200);
    assert_eq!(gateway.metric("weir_accept_errors_total"), Some(0.0));
    assert!(gateway.metric("weir_connections_evicted_total") > Some(100.0));
    gateway.signal("HUP");
    gateway.logs("configuration unchanged", 1);
}

/// Each of them used to keep its place for `header_timeout`.
#[test]
fn connections_that_have_sent_a_part_of_a_head_keep_no_other_client_out() {
    let upstream = Upstream::start();
    let patience = "connections: {header_timeout: 1h, idle_timeout: 1h}";
    let gateway = start(
        &Setup::before(&upstream)
            .key("log: {access: false}")
            .key(patience),
    );
    let mut dripping = Vec::new();
    for _ in 0..300 {
        let mut client = gateway.client();
        client.write(b"G").unwrap();
        dripping.push(client);
    }
    for _ in 0..40 {
        assert_eq!(gateway.client().send(&get("/")).status, 200);
    }
    assert!(gateway.metric("weir_connections_evicted_total") > Some(100.0));
}

#[test]
fn many_requests_on_one_connection_take_no_more_upstream_connections_than_there_may_be() {
    let open = Arc::<AtomicUsize>::default();
    let (most, seen) = watch::channel(0);
    let most = Arc::new(most);
    let upstream = Upstream::serving(move |_| {
        let (open, most, mut seen) = (Arc::clone(&open), Arc::clone(&most), most.subscribe());
        async move {
            let now = open.fetch_add(1, SeqCst) + 1;
            most.send_modify(|most| *most = now.max(*most));
            // None is answered before so many are open at once, and more may come after that.
            seen.wait_for(|most| *most >= 20).await.expect("the others");
            tokio::time::sleep(Duration::from_millis(100)).await;
            open.fetch_sub(1, SeqCst);
            text("real")
        }
    });
    let gateway = start(&Setup::before(&upstream).key("log: {access: false}"));
    let statuses = http2::run(async {
        let mut connection = http2::connect(gateway.address()).await;
        let sent = (0..200).map(|_| connection.send_request(http2::get("/")));
        let sent: Vec<_> = sent.map(tokio::spawn).collect();
        let mut statuses = Vec::new();
        for answer in sent {
            let answer = answer.await.unwrap().expect("an answer");
            statuses.push(http2::read(answer).await.head.status.as_u16());
        }
        statuses
    });
    // They wait for each other instead of failing.
    assert_eq!(statuses, [200; 200]);
    let most = *seen.borrow();
    assert!((20..FEW / 2).contains(&most), "{most}");
    assert_eq!(gateway.admin(&get("/livez")).status, 200);
}

#[test]
fn a_bound_that_is_beyond_the_descriptors_is_lowered_and_the_log_says_so() {
    let upstream = Upstream::start();
    let setup = Setup::before(&upstream).key("connections: {max_connections: 5000}");
    let gateway = start(&setup);
    gateway.logs("max_connections is lowered", 1);
    assert_eq!(gateway.send(&get("/")).status, 200);
}

#[test]
fn the_configured_bounds_hold_and_change_with_a_restart_only() {
    let upstream = Upstream::start();
    let bounds = "connections: {max_headers: 10, max_header_bytes: 8KiB, header_timeout: 100ms}";
    let gateway = Setup::before(&upstream).key(bounds).start();
    let many = (0..11).fold(get("/"), |request, _| request.with("x-y", "z"));
    assert_eq!(gateway.send(&many).status, 431);
    let large = get("/").with("x-y", &"z".repeat(9000));
    assert_eq!(gateway.send(&large).status, 431);
    let mut slow = gateway.client();
    slow.write(b"GET / HTTP/1.1\r\n").unwrap();
    assert!(slow.is_closed());

    let other = gateway
        .read("gateway.yaml")
        .replace("max_headers: 10", "max_headers: 20");
    gateway.write("gateway.yaml", &other);
    gateway.reload();
    gateway.logs("connections keeps its old settings", 1);
    assert_eq!(gateway.send(&many).status, 431);
}
