//! Where Redis is.

use super::*;

const CA: &str = include_str!("testdata/ca.pem");

fn folder(redis: &str) -> Folder {
    Folder::with(&[
        (
            "gateway.yaml",
            &format!("store: {{redis: {redis}}}{SMALLEST}"),
        ),
        ("limits/defaults.yaml", DEFAULTS),
        ("ca.pem", CA),
        ("user", "ann\n"),
        ("password", "hunter2\n"),
    ])
}

/// The settings of the store, shown for people and for debugging.
fn described(redis: &str) -> (String, String) {
    let StoreSettings::Redis(store) = folder(redis).settings().process.store else {
        panic!("{redis}");
    };
    (store.redis.to_string(), format!("{:?}", store.redis))
}

#[test]
fn a_cluster_is_named_by_nodes_and_a_primary_by_sentinels() {
    let (cluster, _) = described(r#"{cluster: {nodes: ["redis://a:1", "redis://b:2"]}}"#);
    assert_eq!(cluster, "the Redis Cluster at a:1, b:2");
    let (sentinel, details) = described(
        r#"{sentinel: {nodes: ["rediss://10.0.0.1:1"], primary: main, database: 3, username: bob,
            password: {file: password}}, username: {file: user}, ca: ca.pem, tls_name: a.example}"#,
    );
    assert_eq!(sentinel, "Redis \"main\" by Sentinels at 10.0.0.1:1");
    assert!(details.contains("tls: true") && details.contains("database: 3"));
    assert!(details.contains("\"bob\"") && !details.contains("hunter2"));
}

#[test]
fn a_redis_that_is_found_in_another_way_is_another() {
    let settings = |redis: &str| folder(redis).settings().process.store;
    let written = [
        r#"{url: "redis://a:1"}"#,
        r#"{cluster: {nodes: ["redis://a:1"]}}"#,
        r#"{cluster: {nodes: ["redis://a:2"]}}"#,
        r#"{cluster: {nodes: ["redis://a:2"], database: 3}}"#,
        r#"{cluster: {nodes: ["rediss://a:2"]}}"#,
        r#"{cluster: {nodes: ["rediss://a:2"]}, tls_name: a.example}"#,
        r#"{sentinel: {nodes: ["redis://a:1"], primary: main}}"#,
        r#"{sentinel: {nodes: ["redis://a:1"], primary: other}}"#,
        r#"{sentinel: {nodes: ["redis://a:1"], primary: main, database: 1}}"#,
        r#"{sentinel: {nodes: ["redis://a:1"], primary: main, username: ann}}"#,
        r#"{sentinel: {nodes: ["redis://a:1"], primary: main}, username: ann}"#,
    ];
    for (place, one) in written.iter().enumerate() {
        assert_eq!(settings(one), settings(one), "{one}");
        for other in &written[..place] {
            assert_ne!(settings(one), settings(other), "{one} {other}");
        }
    }
}

#[test]
fn what_cannot_be_is_told_with_its_place_and_a_remedy() {
    let written = [
        "{on_failure: deny}",
        r#"{url: "redis://a", cluster: {nodes: ["redis://a:1"]}}"#,
        "{cluster: {nodes: []}}",
        r#"{cluster: {nodes: ["redis://a:1/2", "unix:///a", "redis://a",
        "redis://ann:b@a:3", "redis://a:4", "redis://A:4", "rediss://a:5", "a:6"]}}"#,
        r#"{sentinel: {nodes: ["redis://a:1"], primary: "", database: 1}}"#,
        r#"{sentinel: {nodes: ["redis://a:1/4"], primary: main}}"#,
        r#"{sentinel: {nodes: ["redis://a:1"], primary: main, database: 5000000000}}"#,
        r#"{cluster: {nodes: ["redis://a:1"], database: 5000000000}}"#,
        r#"{sentinel: {nodes: ["redis://a:1"]}}"#,
        r#"{sentinel: {nodes: ["redis://a:1"], primary: main, password: hunter2}}"#,
        r#"{cluster: {nodes: ["redis://a:1"]}, ca: ca.pem}"#,
        r#"{cluster: {nodes: ["redis://a:1"]}, tls_name: a.example}"#,
        r#"{cluster: {nodes: ["rediss://a:1"]}, tls_name: "a b"}"#,
    ];
    let found = written.map(|redis| {
        let found = folder(redis).findings();
        let (findings, _count) = found.rsplit_once('\n').unwrap();
        findings.to_owned()
    });
    insta::assert_snapshot!(found.join("\n"), @r#"
    gateway.yaml:1:9: store.redis: nothing says where Redis is
      write `url: redis://HOST:PORT`, `cluster: {nodes: [...]}`, or `sentinel: {nodes: [...], primary: NAME}`
    gateway.yaml:1:35: store.redis.cluster: `url` and `cluster` both say where Redis is
      leave one of them out
    gateway.yaml:1:27: store.redis.cluster.nodes: there must be at least one node
      list the URLs of some: redis://HOST:PORT
    gateway.yaml:1:35: store.redis.cluster.nodes[0]: the URL of a node must not name a database: all nodes of a Cluster have the same, and a Sentinel has none
      leave it out, and write `cluster.database` or `sentinel.database`
    gateway.yaml:1:52: store.redis.cluster.nodes[1]: a node cannot be named by a socket
      write redis://HOST:PORT
    gateway.yaml:1:65: store.redis.cluster.nodes[2]: the URL of a node must name its port
      write redis://HOST:PORT
    gateway.yaml:2:9: store.redis.cluster.nodes[3]: the URL of a node must not contain a user or a password
      write `username` and `password` once for all nodes
    gateway.yaml:2:45: store.redis.cluster.nodes[5]: the same node is named twice
      leave one of them out
    gateway.yaml:2:60: store.redis.cluster.nodes[6]: some nodes are named with TLS and some without
      write rediss:// for all or for none
    gateway.yaml:2:76: store.redis.cluster.nodes[7]: not the URL of a Redis: write redis://HOST:PORT/DATABASE, rediss://HOST:PORT/DATABASE for TLS, or unix:///PATH/OF/THE.SOCK?db=DATABASE
    gateway.yaml:1:61: store.redis.sentinel.primary: not the name of a primary
      write the name that stands behind `sentinel monitor` in the configuration of the Sentinels
    gateway.yaml:1:36: store.redis.sentinel.nodes[0]: the URL of a node must not name a database: all nodes of a Cluster have the same, and a Sentinel has none
      leave it out, and write `cluster.database` or `sentinel.database`
    gateway.yaml:1:77: store.redis.sentinel.database: the database must be a number from 0 to 2147483646, such as 0 in redis://HOST:PORT/0
    gateway.yaml:1:61: store.redis.cluster.database: the database must be a number from 0 to 2147483646, such as 0 in redis://HOST:PORT/0
    gateway.yaml:1:17: store.redis.sentinel: the key "primary" is missing
    gateway.yaml:1:77: store.redis.sentinel.password: a secret is not written into the configuration
      write {file: PATH} or {env: NAME}
    gateway.yaml:1:56: store.redis.ca: the CA certificates cannot be used: they are of use with a rediss:// URL only
    gateway.yaml:1:62: store.redis.tls_name: the name in certificates cannot be used: it is of use with a rediss:// URL only
    gateway.yaml:1:63: store.redis.tls_name: the name in certificates cannot be used: invalid dns name
    "#);
}

/// A request to a gateway with the prefix `weir:` and a limit `ban` banned a client of one with
/// `weir`.
#[test]
fn only_a_prefix_that_would_share_keys_with_the_bans_of_another_is_refused() {
    let told = |prefix: &str| {
        let redis = format!(r#"{{url: "redis://a", prefix: "{prefix}"}}"#);
        folder(&redis).findings()
    };
    insta::assert_snapshot!(told("weir:"), @r#"
    gateway.yaml:1:43: store.redis.prefix: keys with the prefix `weir:` may be those of bans of another gateway: a colon follows each prefix by itself
      write `weir`: buckets, bans and overrides of operators begin anew under another prefix, and gateways that still have the old one count apart
    1 error, 0 warnings
    "#);
    for (prefix, instead) in [
        ("weir::", "write `weir`"),
        (":", "write a word, such as `weir`"),
        (":weir", "write `weir`"),
        ("shop::weir", "write `shop:weir`"),
    ] {
        let found = told(prefix);
        assert!(
            found.contains("may be those of bans of another gateway"),
            "{found}"
        );
        assert!(
            found.contains(instead) && found.contains("1 error"),
            "{found}"
        );
    }
    for fit in [
        "weir",
        "weir-2",
        "",
        "{weir}",
        "prod:weir",
        "team:shop:weir",
    ] {
        assert!(!told(fit).contains("prefix"), "{fit}");
    }
}

/// Redis hashes what is between braces in place of the whole key.
#[test]
fn a_prefix_that_picks_a_node_of_a_cluster_is_refused() {
    let found = folder(r#"{cluster: {nodes: ["redis://a:1"]}, prefix: "{weir}"}"#).findings();
    assert!(
        found.contains("gateway.yaml:1:60: store.redis.prefix: a `{` in the prefix"),
        "{found}"
    );
    let single = r#"{url: "redis://a", prefix: "{weir}"}"#;
    assert_eq!(described(single).0, "Redis at a:6379");
}
