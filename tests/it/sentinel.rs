//! Gateways whose Redis is behind Sentinels.

use crate::redis::by_path;
use crate::support::*;

/// A deadline that no machine misses; what is without an answer must not pass.
pub(crate) fn store(sentinels: &Sentinels) -> String {
    let nodes = sentinels.urls().join("\", \"");
    format!(
        "store: {{redis: {{sentinel: {{nodes: [\"{nodes}\"], primary: {PRIMARY}}}, \
         timeout: 10s, on_failure: deny}}}}"
    )
}

/// How many of so many requests that are decided are let through, by two gateways in turn.
fn admitted(gateways: &[Gateway; 2], requests: usize) -> usize {
    let mut clients = gateways.each_ref().map(Gateway::client);
    let mut turn = 0;
    let statuses = std::iter::repeat_with(|| {
        turn += 1;
        clients[turn % 2].send(&get("/b/a")).status
    });
    // A worker may not have noticed yet that it reaches the store again.
    let decided = statuses.filter(|status| *status != 503).take(requests);
    decided.filter(|status| *status == 200).count()
}

/// What becomes of the old primary.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OldPrimary {
    IsLeft,
    IsFrozen,
}

/// Waits until each worker has a connection to the new primary, as has what asks for the overrides
/// that operators set, and none has one to the old one. But one that missed its deadline at a frozen
/// primary, before the failover, waits there for late answers.
fn moved(gateways: &[Gateway; 2], sentinels: &Sentinels, old: usize, becomes: OldPrimary) {
    for gateway in gateways {
        let connections = |server: usize| connections(gateway.pid(), sentinels.ports[server]);
        let is_left = || becomes == OldPrimary::IsFrozen || connections(old) == 0;
        let others = || (0..3).filter(|server| *server != old);
        eventually("each worker is at the new primary", || {
            (is_left() && others().any(|other| connections(other) == 3)).then_some(())
        });
    }
}

/// How many established connections to this port a process has.
fn connections(pid: u32, port: u16) -> usize {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("the files of the gateway");
    let links = files
        .flatten()
        .filter_map(|file| std::fs::read_link(file.path()).ok());
    let sockets: Vec<_> = links.map(|link| link.display().to_string()).collect();
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).expect("the sockets");
    let peer = format!("0100007F:{port:04X}");
    let established = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let established = established.filter(|fields| fields[2] == peer && fields[3] == "01");
    let is_of_process = |inode: &str| sockets.contains(&format!("socket:[{inode}]"));
    established
        .filter(|fields| is_of_process(fields[9]))
        .count()
}

/// Through two gateways with two workers each.
fn exactly_what_was_left_is_given_after(
    becomes: OldPrimary,
    event: impl FnOnce(&mut Sentinels, usize),
) {
    let mut sentinels = Sentinels::start();
    let upstream = Upstream::start();
    let setup = by_path(
        &upstream,
        "L: {per: \"path:id\", burst: 100, count: 1, period: 1000h}",
    );
    let setup = setup.key(&store(&sentinels));
    let gateways = [setup.start(), setup.start()];
    assert_eq!(admitted(&gateways, 60), 60);
    let primary = sentinels.primary_by(0);
    sentinels.await_replicated(primary);
    event(&mut sentinels, primary);
    moved(&gateways, &sentinels, primary, becomes);
    assert_eq!(admitted(&gateways, 100), 40);
    assert_eq!(upstream.count(), 100);
}

#[test]
fn gateways_admit_no_more_than_the_burst_across_a_planned_failover() {
    exactly_what_was_left_is_given_after(OldPrimary::IsLeft, |sentinels, _| sentinels.fail_over(0));
}

#[test]
fn gateways_admit_no_more_than_the_burst_when_the_primary_is_killed() {
    exactly_what_was_left_is_given_after(OldPrimary::IsLeft, |sentinels, primary| {
        sentinels.servers[primary].kill();
        sentinels.fail_over_from(primary);
    });
}

#[test]
fn gateways_admit_no_more_than_the_burst_when_the_primary_is_frozen() {
    exactly_what_was_left_is_given_after(OldPrimary::IsFrozen, |sentinels, primary| {
        sentinels.servers[primary].stop();
        sentinels.fail_over_from(primary);
    });
}

#[test]
fn a_gateway_that_starts_without_a_sentinel_says_so_and_uses_the_store_when_there_is_one() {
    let mut sentinels = Sentinels::start();
    for sentinel in &mut sentinels.sentinels {
        sentinel.kill();
    }
    let upstream = Upstream::start();
    let gateway = by_path(
        &upstream,
        "L: {per: \"path:id\", burst: 5, count: 1, period: 1000h}",
    )
    .key(&store(&sentinels))
    .start();
    gateway.logs("a Sentinel fails", 3);
    gateway.logs("the store is out of reach", 1);
    let log = gateway.log_text();
    assert!(log.contains("the Sentinel at 127.0.0.1:"), "{log}");
    assert_eq!(gateway.statuses(&get("/b/a"), 2), [503, 503]);
    sentinels.sentinels[1].restart();
    gateway.logs("the store is within reach again", 1);
    gateway.logs("a Sentinel answers again", 1);
    assert_eq!(
        gateway.statuses(&get("/b/a"), 6),
        [200, 200, 200, 200, 200, 429]
    );
}
