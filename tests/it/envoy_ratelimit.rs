//! The cases of envoyproxy/ratelimit's own integration tests, with Weir in its place. What differs is
//! in docs/INTEGRATIONS.md.

use std::io;
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};

use crate::support::rate_limit_service::{
    Call, Descriptor, DescriptorStatus, OK, OVER_LIMIT, Reply, ask, client, descriptor,
};
use crate::support::tls::{self, Authority, Certificate};
use crate::support::*;

const SECOND: i32 = 1;
const HOUR: i32 = 3;
const DAY: i32 = 4;

/// The rules of its files `basic.yaml`, `another.yaml`, `share_threshold.yaml` and `example.yaml`.
const DECIDE: &str = "decide:
  address: \"127.0.0.1:0\"
  trusted_proxies: [127.0.0.1]
  envoy:
    - domain: basic
      descriptors:
        - {key: key1, limit: Key1}
    - domain: another
      descriptors:
        - {key: key2, limit: Key2}
        - {key: key3, limit: Key3}
        - {key: key4, limit: Key4}
    - domain: shared
      descriptors:
        - {key: files, value: 'files/*', limit: Files}
        - {key: files_no_share, value: 'files_no_share/*', limit: EachFile}
    - domain: rl
      descriptors:
        - key: foo
          limit: Foo
          descriptors:
            - {key: bar, limit: Bar}
            - {key: bar, value: bkthomps, limit: One}
            - {key: baz, value: not-so-shady, limit: NotSoShady}
            - {key: baz, value: shady, limit: {limit: Shady, enforce: false}}
            - {key: bay}
        - {key: unspec, limit: Unspec}";

/// The windows are longer than theirs, and begin with the first hit, so that none ends during a test.
const LIMITS: [&str; 12] = [
    "Key1: {per: 'path:key1', algorithm: fixed_window, align: first_request, count: 50, period: 1s}",
    "Key2: {per: 'path:key2', algorithm: fixed_window, align: first_request, count: 20, period: 1h}",
    "Key3: {per: 'path:key3', algorithm: fixed_window, align: first_request, count: 10, period: 1d}",
    "Key4: {per: 'path:key4', algorithm: fixed_window, align: first_request, count: 20, period: 1d}",
    "Files: {per: global, algorithm: fixed_window, align: first_request, count: 10, period: 1h}",
    "EachFile: {per: 'path:files_no_share', algorithm: fixed_window, align: first_request, count: 10, period: 1h}",
    "Foo: {per: 'path:foo', algorithm: fixed_window, align: first_request, count: 2, period: 1h}",
    "Bar: {per: ['path:foo', 'path:bar'], algorithm: fixed_window, align: first_request, count: 3, period: 1h}",
    "One: {per: 'path:foo', algorithm: fixed_window, align: first_request, count: 1, period: 1h}",
    "NotSoShady: {per: 'path:foo', algorithm: fixed_window, align: first_request, count: 3, period: 1h}",
    "Shady: {per: 'path:foo', algorithm: fixed_window, align: first_request, count: 3, period: 1h}",
    "Unspec: {per: 'path:unspec', algorithm: fixed_window, align: first_request, count: 2, period: 1h}",
];

fn setup(upstream: &Upstream) -> Setup {
    Setup::before(upstream).key(DECIDE).limits(&LIMITS)
}

/// A call in which each descriptor has one entry.
async fn hit(client: &mut Grpc<Channel>, domain: &str, entries: &[(&str, &str)]) -> Reply {
    let descriptors = entries.iter().map(|entry| descriptor(&[*entry]));
    let call = Call::new(domain, descriptors.collect());
    ask(client, call).await.unwrap()
}

/// A call with one descriptor.
async fn hit_below(client: &mut Grpc<Channel>, entries: &[(&str, &str)]) -> i32 {
    let call = Call::new("rl", vec![descriptor(entries)]);
    ask(client, call).await.unwrap().overall_code
}

/// Code, units, unit and the rest of a status.
fn shown(status: &DescriptorStatus) -> (i32, u32, i32, u32) {
    let limit = status.current_limit.as_ref().expect("a limit");
    let (count, unit) = (limit.requests_per_unit, limit.unit);
    (status.code, count, unit, status.limit_remaining)
}

/// `TestBasicConfig`, which theirs runs for each kind of store.
async fn is_limited_as_by_envoyproxy_ratelimit(gateway: &Gateway) {
    let client = &mut client(gateway.decides_at()).await;
    let unknown = hit(client, "foo", &[("hello", "world")]).await;
    assert_eq!((unknown.overall_code, unknown.codes()), (OK, vec![OK]));
    assert_eq!(unknown.statuses[0].current_limit, None);
    assert_eq!(unknown.statuses[0].limit_remaining, 0);

    let first = hit(client, "basic", &[("key1", "foo")]).await;
    assert_eq!(first.overall_code, OK);
    assert_eq!(shown(&first.statuses[0]), (OK, 50, SECOND, 49));

    for number in 1..=25 {
        let reply = hit(client, "another", &[("key2", "one")]).await;
        let code = if number <= 20 { OK } else { OVER_LIMIT };
        assert_eq!(reply.overall_code, code, "{number}");
        let left = 20_u32.saturating_sub(number);
        assert_eq!(shown(&reply.statuses[0]), (code, 20, HOUR, left));
    }

    for number in 1..=15 {
        let both = [("key2", "other"), ("key3", "other")];
        let reply = hit(client, "another", &both).await;
        let code = if number <= 10 { OK } else { OVER_LIMIT };
        assert_eq!(reply.overall_code, code, "{number}");
        // As theirs with STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT: a denied call takes from no limit.
        let left = 20 - number.min(10);
        let first = &reply.statuses[0];
        assert_eq!(first.code, OK);
        // A remembered denial of the other limit says nothing of this one.
        if number < 12 || first.current_limit.is_some() {
            assert_eq!(shown(first), (OK, 20, HOUR, left), "{number}");
        }
        let left = 10_u32.saturating_sub(number);
        assert_eq!(shown(&reply.statuses[1]), (code, 10, DAY, left));
    }
    // Their `total_hits` and `over_limit`. Four denials of Key3 may be remembered.
    for (limit, decision, count) in [
        ("Key1", "allowed", 1.0..=1.0),
        ("Key2", "allowed", 31.0..=35.0),
        ("Key2", "denied", 5.0..=5.0),
        ("Key3", "allowed", 10.0..=10.0),
        ("Key3", "denied", 5.0..=5.0),
    ] {
        let metric = format!("weir_decisions_total{{limit=\"{limit}\",decision=\"{decision}\"}} ");
        let counted = gateway.metric(&metric).unwrap_or_default();
        assert!(count.contains(&counted), "{metric}{counted}");
    }

    let reset_in = |reply: Reply| {
        let left = reply.statuses[0].duration_until_reset.as_ref();
        left.expect("a time").seconds
    };
    let first = hit(client, "another", &[("key4", "durTest")]).await;
    let first = reset_in(first);
    loop {
        let look = Descriptor {
            hits_addend: Some(0),
            ..descriptor(&[("key4", "durTest")])
        };
        let later = ask(client, Call::new("another", vec![look])).await.unwrap();
        let later = reset_in(later);
        assert!(later <= first, "{later} after {first}");
        if later < first {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

#[test]
fn no_kind_of_store_changes_what_calls_get() {
    let upstream = Upstream::start();
    let redis = RedisServer::start();
    let locked = RedisServer::start_with(|_| {
        let arguments = ["--port", "0", "--requirepass", "password123"];
        arguments.map(str::to_owned).to_vec()
    });
    let password = "password: {file: redis.password}, timeout: 10s";
    let of_locked = crate::redis::store(&locked.url()).replace("timeout: 10s", password);
    let cluster = RedisCluster::start(0);
    let sentinels = Sentinels::start();
    for store in [
        String::new(),
        crate::redis::store(&redis.url()),
        of_locked,
        crate::redis_cluster::store(&cluster, "deny"),
        crate::sentinel::store(&sentinels),
    ] {
        let setup = setup(&upstream).limited_by("").key(&store);
        let gateway = setup.file("redis.password", "password123").start();
        http2::run(is_limited_as_by_envoyproxy_ratelimit(&gateway));
    }
}

/// `TestBasicReloadConfig`.
#[test]
fn a_domain_is_limited_from_the_reload_on_that_adds_it_and_no_longer_than_to_the_next() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).limited_by("").start();
    let before = gateway.read("gateway.yaml");
    let added = "    - {domain: reload, descriptors: [{key: key1, limit: Key1}]}\nroutes:\n";
    let after = before.replace("routes:\n", added);
    http2::run(async {
        let client = &mut client(gateway.decides_at()).await;
        let key = [("key1", "foo")];
        let unknown = hit(client, "reload", &key).await;
        assert_eq!(unknown.codes(), [OK]);
        assert_eq!(unknown.statuses[0].current_limit, None);
        gateway.write("gateway.yaml", &after);
        gateway.reload();
        let limited = hit(client, "reload", &key).await;
        assert_eq!(shown(&limited.statuses[0]), (OK, 50, SECOND, 49));
        gateway.write("gateway.yaml", &before);
        gateway.reload();
        let unknown = hit(client, "reload", &key).await;
        assert_eq!(unknown.statuses[0].current_limit, None);
    });
}

/// `TestShareThreshold`.
#[test]
fn values_share_a_limit_where_it_counts_them_as_one_and_nowhere_else() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).limited_by("").start();
    http2::run(async {
        let client = &mut client(gateway.decides_at()).await;
        for _ in 0..10 {
            let reply = hit(client, "shared", &[("files", "files/a.pdf")]).await;
            assert_eq!(reply.overall_code, OK);
        }
        let other = hit(client, "shared", &[("files", "files/b.csv")]).await;
        assert_eq!(other.overall_code, OVER_LIMIT);
        assert_eq!(shown(&other.statuses[0]), (OVER_LIMIT, 10, HOUR, 0));
        for number in 0..10 {
            let file = format!("files_no_share/{number}");
            let reply = hit(client, "shared", &[("files_no_share", &file)]).await;
            assert_eq!(shown(&reply.statuses[0]), (OK, 10, HOUR, 9));
        }
    });
}

/// `trigger-ratelimit.sh`, `trigger-shadow-mode-key.sh`, `simple-get.sh`, and
/// `value-included-in-stats-key-when-unspecified.sh`, short of the names of their metrics.
#[test]
fn entries_below_others_have_limits_of_their_own_and_a_dry_run_denies_none() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).limited_by("").start();
    http2::run(async {
        let client = &mut client(gateway.decides_at()).await;
        let foo = ("foo", "pelle");
        for (below, codes) in [
            (
                ("baz", "not-so-shady"),
                [OK, OK, OK, OVER_LIMIT, OVER_LIMIT],
            ),
            (("baz", "shady"), [OK; 5]),
            (("bay", "any"), [OK; 5]),
            (("bar", "any"), [OK, OK, OK, OVER_LIMIT, OVER_LIMIT]),
            (
                ("bar", "bkthomps"),
                [OK, OVER_LIMIT, OVER_LIMIT, OVER_LIMIT, OVER_LIMIT],
            ),
        ] {
            for code in codes {
                assert_eq!(hit_below(client, &[foo, below]).await, code, "{below:?}");
            }
        }
        for code in [OK, OK, OVER_LIMIT] {
            assert_eq!(hit_below(client, &[foo]).await, code);
        }
        for code in [OK, OK, OVER_LIMIT] {
            let unspecified = [("unspec", "unspecified_value")];
            assert_eq!(hit_below(client, &unspecified).await, code);
        }
    });
    let denied = "weir_decisions_total{limit=\"Unspec\",decision=\"denied\"} ";
    assert_eq!(gateway.metric(denied), Some(1.0));
}

/// `Test_mTLS` and `TestReloadGRPCServerCerts`.
#[test]
fn calls_come_by_tls_and_a_certificate_that_was_replaced_is_shown_no_more() {
    let upstream = Upstream::start();
    let (first, second) = (Certificate::of("localhost"), Certificate::of("localhost"));
    let clients = Authority::new("clients");
    let tls = "  tls: {certificate: 1.pem, key: 1.key}\n  client_auth: {ca: ca.pem}\n  envoy:";
    let gateway = Setup::before(&upstream)
        .key(&DECIDE.replace("  envoy:", tls))
        .limits(&LIMITS)
        .limited_by("")
        .file("1.pem", &first.certificate)
        .file("1.key", &first.key)
        .file("ca.pem", &clients.pem())
        .start();
    let envoy = clients.sign("envoy", 1);
    http2::run(async {
        let config = envoy.shown_to(&first, &["h2"]);
        let client = &mut secure_client(&gateway, &config).await;
        let reply = hit(client, "basic", &[("key1", "foo")]).await;
        assert_eq!(shown(&reply.statuses[0]), (OK, 50, SECOND, 49));
    });
    let connects = |server: &Certificate| {
        let config = envoy.shown_to(server, &[]);
        tls::connect(gateway.decides_at(), "localhost", &config).is_ok()
    };
    assert!(connects(&first) && !connects(&second));
    gateway.write("1.pem", &second.certificate);
    gateway.write("1.key", &second.key);
    gateway.reload();
    assert!(connects(&second) && !connects(&first));
}

async fn secure_client(gateway: &Gateway, config: &Arc<rustls::ClientConfig>) -> Grpc<Channel> {
    let stream = tls::connect_async(gateway.decides_at(), "localhost", config).await;
    let mut stream = Some(TokioIo::new(stream));
    let connector = tower::service_fn(move |_| {
        let stream = stream.take().ok_or(io::Error::other("connected already"));
        async { stream }
    });
    let endpoint = Endpoint::from_static("http://localhost");
    let channel = endpoint.connect_with_connector(connector).await;
    Grpc::new(channel.unwrap())
}
