//! How many connections a server of an upstream gets.

use std::collections::HashSet;
use std::time::Duration;

use crate::support::upstream::text;
use crate::support::*;

#[test]
fn a_server_gets_no_more_connections_than_it_may_have_from_all_workers() {
    let upstream = Upstream::answering_after(Duration::from_millis(5), |_| text("real"));
    let address = upstream.address();
    let gateway = Setup::with_upstreams(&format!(
        "{{app: {{servers: [\"http://{address}\"], max_connections: 2, connect_timeout: 60s}}}}"
    ))
    .start();
    let load = Load::start(gateway.address(), 12, |client, count| {
        get(&format!("/{client}/{count}"))
    });
    let sampled = (0..30).map(|_| {
        load.go_on_for(2);
        open_connections(address)
    });
    let most = sampled.max().unwrap();
    let report = load.stop();
    assert_eq!(report.failures, [""; 0]);
    assert_eq!(report.count(200), report.statuses.len());
    assert!(most <= 2, "{most} connections");
    // Those that are left idle are found, so more would have been.
    let idle = open_connections(address);
    assert!((1..=2).contains(&idle), "{idle} idle connections");
}

/// How many connections to a port of this machine are open at one moment, as the kernel says.
///
/// The kernel's table is not a snapshot: while it is read, one connection may close and another
/// open, and both are in it. What is in two readings was open between them.
fn open_connections(to: std::net::SocketAddr) -> usize {
    let before = local_ends_of_connections(to);
    let after = local_ends_of_connections(to);
    before.intersection(&after).count()
}

fn local_ends_of_connections(to: std::net::SocketAddr) -> HashSet<String> {
    const ESTABLISHED: &str = "01";
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let port = format!(":{:04X}", to.port());
    let rows = table.lines().skip(1);
    let open = rows.filter_map(|row| {
        let mut columns = row.split_whitespace().skip(1);
        let local = columns.next().unwrap();
        let (remote, state) = (columns.next().unwrap(), columns.next().unwrap());
        (remote.ends_with(&port) && state == ESTABLISHED).then(|| local.to_owned())
    });
    open.collect()
}
