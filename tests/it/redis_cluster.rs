//! A gateway on a Redis Cluster: limits are shared, and operators see which node is out of reach.

use crate::support::*;

/// All nodes are named, so that any of them may be gone.
pub(crate) fn store(cluster: &RedisCluster, on_failure: &str) -> String {
    let nodes: Vec<_> = cluster
        .urls()
        .iter()
        .map(|url| format!("\"{url}\""))
        .collect();
    let nodes = nodes.join(", ");
    format!(
        "store: {{redis: {{cluster: {{nodes: [{nodes}]}}, timeout: 5s, on_failure: {on_failure}}}}}"
    )
}

#[test]
fn gateways_share_limits_on_a_cluster_and_name_the_node_that_is_gone() {
    let cluster = RedisCluster::start(0);
    let upstream = Upstream::start();
    let setup = Setup::before(&upstream)
        .limits(&["L: {per: \"path:id\", burst: 3, count: 1, period: 1000h}"])
        .routes(&["{match: {path: \"/b/{id}\"}, upstream: app, limits: [L]}"])
        .key(&store(&cluster, "deny"));
    let gateways = [setup.start(), setup.start()];
    for bucket in 0..12 {
        let request = get(&format!("/b/{bucket}"));
        let statuses: Vec<_> = gateways
            .iter()
            .cycle()
            .take(4)
            .map(|gateway| gateway.send(&request).status)
            .collect();
        assert_eq!(statuses, [200, 200, 200, 429], "bucket {bucket}");
    }
    let gateway = &gateways[0];
    assert_eq!(gateway.admin(&get("/readyz")).status, 200);
    let of_node = |node| {
        let address = cluster.address(node);
        gateway.metric(&format!("weir_store_reachable{{node=\"{address}\"}}"))
    };
    assert_eq!([0, 1, 2].map(of_node), [Some(1.0); 3]);

    cluster.kill(1);
    eventually("the node is given up", || {
        (of_node(1) == Some(0.0)).then_some(())
    });
    assert_eq!([0, 2].map(of_node), [Some(1.0); 2]);
    assert_eq!(gateway.metric("weir_store_reachable "), Some(1.0));
    let ready = gateway.admin(&get("/readyz"));
    assert_eq!(ready.status, 503);
    let gone = format!(
        "nodes of the store are out of reach: {} (",
        cluster.address(1)
    );
    assert!(ready.text().starts_with(&gone), "{}", ready.text());
    // Buckets of the others are full, and stay so; those of the dead node are out of reach.
    let statuses = |gateway: &Gateway| -> Vec<u16> {
        let buckets = (0..12).map(|bucket| get(&format!("/b/{bucket}")));
        buckets
            .map(|request| gateway.send(&request).status)
            .collect()
    };
    let found = statuses(gateway);
    assert!(found.contains(&429) && found.contains(&503), "{found:?}");
    assert!(!found.contains(&200), "{found:?}");
    gateway.logs("the store is out of reach", 1);
    assert_eq!(gateway.times_logged("the store is out of reach"), 1);
}

#[test]
fn the_log_says_why_a_slot_without_a_node_cannot_be_counted() {
    let cluster = RedisCluster::start(0);
    let upstream = Upstream::start();
    let (first, last) = cluster.slots(1);
    let (first, last) = (first.to_string(), last.to_string());
    for node in 0..3 {
        let removed = cluster.command(node, &["CLUSTER", "DELSLOTSRANGE", &first, &last]);
        assert!(removed.starts_with("+OK"), "{removed}");
    }
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: \"path:id\", burst: 3, count: 1, period: 1000h}"])
        .routes(&["{match: {path: \"/b/{id}\"}, upstream: app, limits: [L]}"])
        .key(&store(&cluster, "deny"))
        .start();
    let statuses = (0..12).map(|bucket| gateway.send(&get(&format!("/b/{bucket}"))).status);
    let statuses: Vec<_> = statuses.collect();
    assert!(
        statuses.contains(&200) && statuses.contains(&503),
        "{statuses:?}"
    );
    gateway.logs("the store failed a call; told once a minute at most", 1);
    let log = gateway.log_text();
    assert!(
        log.contains("no node of the Redis Cluster serves slot"),
        "{log}"
    );
    // They are served as soon as a node has them.
    cluster.command(1, &["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
    eventually("all buckets are served", || {
        let statuses = (12..24).map(|bucket| gateway.send(&get(&format!("/b/{bucket}"))).status);
        (statuses.max() != Some(503)).then_some(())
    });
}

#[test]
fn the_log_says_that_a_node_which_was_replaced_is_no_longer_asked() {
    let cluster = RedisCluster::start(1);
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: \"path:id\", burst: 3, count: 1, period: 1000h}"])
        .routes(&["{match: {path: \"/b/{id}\"}, upstream: app, limits: [L]}"])
        .key(&store(&cluster, "deny"))
        .start();
    cluster.kill(1);
    gateway.logs("the store is out of reach", 1);
    gateway.logs("a node that was out of reach is no longer asked", 1);
    eventually("all buckets are served again", || {
        let statuses = (0..12).map(|bucket| gateway.send(&get(&format!("/b/{bucket}"))).status);
        (statuses.max() != Some(503)).then_some(())
    });
    let address = cluster.address(1);
    let of_node = format!("weir_store_reachable{{node=\"{address}\"}}");
    assert_eq!(gateway.metric(&of_node), None);
    assert_eq!(gateway.admin(&get("/readyz")).status, 200);
    assert_eq!(gateway.times_logged("the store is within reach again"), 0);
}
