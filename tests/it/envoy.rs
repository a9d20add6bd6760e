//! Envoy's rate limit service, called by tonic.

use tonic::Code;
use tonic::client::Grpc;
use tonic::transport::Channel;

use crate::support::rate_limit_service::{
    Call, Descriptor, Limit, OK, OVER_LIMIT, SHOULD_RATE_LIMIT, ask, client, descriptor,
};
use crate::support::*;

fn call(descriptors: Vec<Descriptor>) -> Call {
    Call::new("edge", descriptors)
}

const ENVOY: &str = "decide:
  address: \"127.0.0.1:0\"
  trusted_proxies: [127.0.0.1]
  envoy:
    - domain: edge
      descriptors:
        - {key: remote_address, limit: L}
        - {key: x-api-key, limit: Keys}
        - key: tenant
          limit: Tenants
          descriptors: [{key: path, value: /costly, limit: {limit: Costly, cost: 2}}]
        - {key: shadow, limit: {limit: Shadow, enforce: false}}";

/// Nothing comes back while a test runs.
const LIMITS: [&str; 5] = [
    "L: {per: address, burst: 3, count: 1, period: 1000h}",
    "Keys: {per: \"header:x-api-key\", burst: 2, count: 1, period: 1000h}",
    "Tenants: {per: \"path:tenant\", burst: 2, count: 1, period: 1000h}",
    "Costly: {per: [\"path:tenant\", \"path:path\"], burst: 4, count: 1, period: 1000h}",
    "Shadow: {per: global, burst: 1, count: 1, period: 1000h}",
];

fn setup(upstream: &Upstream) -> Setup {
    Setup::before(upstream)
        .key(ENVOY)
        .limits(&LIMITS)
        .overrides("- Tenants: {burst: 5, count: 1, period: 1000h, ids: [gold]}\n")
        .limited_by("L")
}

#[test]
fn a_call_takes_from_the_bucket_that_a_forwarded_request_takes_from() {
    http2::run(async {
        let upstream = Upstream::start();
        let gateway = setup(&upstream).start();
        let mut client = client(gateway.decides_at()).await;
        let asked = || call(vec![descriptor(&[("remote_address", "127.0.0.1")])]);
        let first = ask(&mut client, asked()).await.unwrap();
        assert_eq!((first.overall_code, first.codes()), (OK, vec![OK]));
        let status = &first.statuses[0];
        assert_eq!(status.limit_remaining, 2);
        assert_eq!(status.current_limit.as_ref().unwrap().name, "L");
        let seconds = status.duration_until_reset.as_ref().unwrap().seconds;
        assert!((3_599_000..=3_600_000).contains(&seconds), "{seconds}");
        assert_eq!(
            first.field("ratelimit-policy"),
            Some("\"L\";q=3;w=10800000")
        );
        assert_eq!(first.field("retry-after"), None);
        assert_eq!(gateway.statuses(&get("/"), 2), [200, 200]);
        let denied = ask(&mut client, asked()).await.unwrap();
        assert_eq!(
            (denied.overall_code, denied.codes()),
            (OVER_LIMIT, vec![OVER_LIMIT])
        );
        assert!(denied.field("ratelimit").unwrap().starts_with("\"L\";r=0;"));
        assert!(denied.field("retry-after").is_some());
        assert_eq!(gateway.statuses(&get("/"), 1), [429]);
        let line = eventually("the line of the second call", || {
            gateway.access(SHOULD_RATE_LIMIT).into_iter().nth(1)
        });
        assert_eq!(line["route"], "envoy");
        assert_eq!(line["listener"], "decide");
        assert_eq!(line["decision"], "denied");
        assert_eq!(line["limit"], "L");
    });
}

#[test]
fn a_descriptor_that_is_over_its_limit_takes_nothing_from_the_others() {
    http2::run(async {
        let upstream = Upstream::start();
        let gateway = setup(&upstream).start();
        let mut client = client(gateway.decides_at()).await;
        let tenant = |name| descriptor(&[("tenant", name)]);
        let address = || descriptor(&[("remote_address", "203.0.113.9")]);
        let both = || call(vec![tenant("red"), address()]);
        for _ in 0..2 {
            assert_eq!(ask(&mut client, both()).await.unwrap().codes(), [OK, OK]);
        }
        for _ in 0..3 {
            let denied = ask(&mut client, both()).await.unwrap();
            assert_eq!(denied.overall_code, OVER_LIMIT);
            assert_eq!(denied.codes(), [OVER_LIMIT, OK]);
            assert_eq!(denied.statuses[1].limit_remaining, 1);
        }
        let alone = ask(&mut client, call(vec![address()])).await.unwrap();
        assert_eq!(alone.statuses[0].limit_remaining, 0);
        // An override, as for requests.
        let gold = ask(&mut client, call(vec![tenant("gold")])).await.unwrap();
        assert_eq!(gold.statuses[0].limit_remaining, 4);
    });
}

#[test]
fn hits_are_the_cost_and_none_take_nothing() {
    http2::run(async {
        let upstream = Upstream::start();
        let gateway = setup(&upstream).start();
        let mut client = client(gateway.decides_at()).await;
        let costly = |hits_addend| Descriptor {
            hits_addend,
            ..descriptor(&[("tenant", "red"), ("path", "/costly")])
        };
        let ask_costly = async |client: &mut Grpc<Channel>, own, of_call| {
            let call = Call {
                hits_addend: of_call,
                ..call(vec![costly(own)])
            };
            let reply = ask(client, call).await.unwrap();
            (reply.overall_code, reply.statuses[0].limit_remaining)
        };
        // Two units for each hit, of four.
        assert_eq!(ask_costly(&mut client, Some(0), 9).await, (OK, 4));
        assert_eq!(ask_costly(&mut client, None, 3).await.0, OVER_LIMIT);
        assert_eq!(ask_costly(&mut client, Some(2), 9).await.0, OK);
        assert_eq!(ask_costly(&mut client, None, 0).await.0, OVER_LIMIT);
        let reply = ask(&mut client, call(vec![costly(Some(0))])).await.unwrap();
        let limit = reply.statuses[0].current_limit.clone().unwrap();
        // Eight a year.
        assert_eq!((limit.requests_per_unit, limit.unit), (8, 6));
    });
}

#[test]
fn what_no_rule_is_for_is_not_limited_and_a_dry_run_denies_nothing() {
    http2::run(async {
        let upstream = Upstream::start();
        let gateway = setup(&upstream).start();
        let mut client = client(gateway.decides_at()).await;
        let address = ("remote_address", "203.0.113.9");
        for unlimited in [
            descriptor(&[("unknown", "a")]),
            descriptor(&[address, ("tenant", "red")]),
            descriptor(&[("shadow", "a")]),
        ] {
            for _ in 0..5 {
                let reply = ask(&mut client, call(vec![unlimited.clone()]))
                    .await
                    .unwrap();
                assert_eq!((reply.overall_code, reply.codes()), (OK, vec![OK]));
                assert_eq!(reply.response_headers_to_add, []);
            }
        }
        let elsewhere = Call {
            domain: "elsewhere".to_owned(),
            ..call(vec![descriptor(&[address])])
        };
        for _ in 0..5 {
            let reply = ask(&mut client, elsewhere.clone()).await.unwrap();
            assert_eq!(reply.codes(), [OK]);
        }
        let counted = "weir_decisions_total{limit=\"Shadow\",decision=\"would_deny\"} ";
        assert_eq!(gateway.metric(counted), Some(4.0), "{}", gateway.metrics());
    });
}

#[test]
fn what_cannot_be_decided_is_an_error_and_no_admission() {
    http2::run(async {
        let upstream = Upstream::start();
        let gateway = setup(&upstream).start();
        let mut client = client(gateway.decides_at()).await;
        let own = Descriptor {
            limit: Some(Limit::default()),
            ..descriptor(&[("tenant", "red")])
        };
        let error = ask(&mut client, call(vec![own])).await.unwrap_err();
        assert_eq!(error.code(), Code::Unimplemented);
        let reason = "limits and negative hits of descriptors";
        gateway.log_tells(reason);
        // By HTTP/1.1 there is no gRPC.
        let asked = Client::connect(gateway.decides_at()).send(&post(SHOULD_RATE_LIMIT, ""));
        assert_eq!(asked.status, 415);
    });
}

/// Each was decided beside the cost of those before it, which a call that is denied does not take.
#[test]
fn descriptors_of_one_bucket_are_never_denied_by_what_the_call_does_not_take() {
    http2::run(async {
        let (upstream, redis) = (Upstream::start(), RedisServer::start());
        let with_redis = setup(&upstream)
            .key("hash_key: {file: hash.key}")
            .file("hash.key", "0123456789abcdef0123456789abcdef")
            .key(&crate::redis::store(&redis.url()));
        for setup in [setup(&upstream), with_redis] {
            let gateway = setup.start();
            let mut client = client(gateway.decides_at()).await;
            let asked = |hits| Descriptor {
                hits_addend: Some(hits),
                ..descriptor(&[("remote_address", "203.0.113.9")])
            };
            let denied = ask(&mut client, call(vec![asked(2), asked(2)]))
                .await
                .unwrap();
            assert_eq!(denied.codes(), [OVER_LIMIT, OVER_LIMIT]);
            assert!(
                denied
                    .statuses
                    .iter()
                    .all(|status| status.limit_remaining == 3)
            );
            assert_eq!(denied.field("retry-after"), None, "it never fits");
            let allowed = ask(&mut client, call(vec![asked(1), asked(1)]))
                .await
                .unwrap();
            assert_eq!(allowed.codes(), [OK, OK]);
            assert!(
                allowed
                    .statuses
                    .iter()
                    .all(|status| status.limit_remaining == 1)
            );
            let field = allowed.field("ratelimit").unwrap();
            assert!(
                field.starts_with("\"L\";r=1;t=") && !field.contains(','),
                "{field}"
            );
        }
    });
}

/// Envoy sends one where a client's header is empty. It was not counted.
#[test]
fn an_empty_value_is_counted_as_any_other() {
    http2::run(async {
        let upstream = Upstream::start();
        let gateway = setup(&upstream).start();
        let mut client = client(gateway.decides_at()).await;
        for empty in [("tenant", ""), ("x-api-key", " ")] {
            for expected in [OK, OK, OVER_LIMIT] {
                let asked = call(vec![descriptor(&[empty])]);
                let reply = ask(&mut client, asked).await.unwrap();
                assert_eq!(reply.overall_code, expected, "{empty:?}");
            }
        }
    });
}

/// The whole call failed, so that Envoy admitted the request and no descriptor was counted.
#[test]
fn no_text_in_the_place_of_an_address_is_admitted_and_its_denial_names_the_limit() {
    http2::run(async {
        let upstream = Upstream::start();
        let gateway = setup(&upstream).start();
        let mut client = client(gateway.decides_at()).await;
        let address = descriptor(&[("remote_address", "192.0.2.1, 192.0.2.2")]);
        let asked = call(vec![descriptor(&[("tenant", "red")]), address]);
        let denied = ask(&mut client, asked).await.unwrap();
        assert_eq!(denied.overall_code, OVER_LIMIT);
        assert_eq!(denied.codes(), [OK, OVER_LIMIT]);
        let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
        let line = gateway.logged(path);
        assert_eq!(
            (&line["decision"], &line["limit"]),
            (&"denied".into(), &"L".into())
        );
        let counted = "weir_decisions_total{limit=\"L\",decision=\"denied\"} ";
        assert_eq!(gateway.metric(counted), Some(1.0), "{}", gateway.metrics());
        // What was not decided is in no list of subjects.
        let top =
            gateway.admin(&get("/v1/top?limit=Tenants&period=hour").with("host", "localhost"));
        let top = String::from_utf8_lossy(&top.body);
        assert!(!top.contains("red"), "{top}");
        let tenants = call(vec![descriptor(&[("tenant", "red")])]);
        let reply = ask(&mut client, tenants).await.unwrap();
        assert_eq!(reply.statuses[0].limit_remaining, 1);
        let top =
            gateway.admin(&get("/v1/top?limit=Tenants&period=hour").with("host", "localhost"));
        let top = String::from_utf8_lossy(&top.body);
        assert!(top.contains("red"), "{top}");
    });
}

#[test]
fn no_limit_is_twice_in_the_header_fields_of_a_response() {
    http2::run(async {
        let upstream = Upstream::start();
        let gateway = setup(&upstream).start();
        let mut client = client(gateway.decides_at()).await;
        let tenant = |name| descriptor(&[("tenant", name)]);
        ask(&mut client, call(vec![tenant("red")])).await.unwrap();
        let asked = call(vec![tenant("blue"), tenant("red")]);
        let reply = ask(&mut client, asked).await.unwrap();
        let remaining: Vec<u32> = reply.statuses.iter().map(|it| it.limit_remaining).collect();
        assert_eq!(remaining, [1, 0]);
        let field = reply.field("ratelimit").unwrap();
        assert!(
            field.starts_with("\"Tenants\";r=0;t=") && !field.contains(','),
            "{field}"
        );
    });
}

#[test]
fn a_peer_that_is_not_trusted_learns_and_takes_nothing() {
    http2::run(async {
        let upstream = Upstream::start();
        let untrusted = ENVOY.replace("[127.0.0.1]", "[203.0.113.1]");
        let gateway = Setup::before(&upstream)
            .key(&untrusted)
            .limits(&LIMITS)
            .limited_by("L")
            .start();
        let mut client = client(gateway.decides_at()).await;
        let asked = call(vec![descriptor(&[("remote_address", "127.0.0.1")])]);
        let error = ask(&mut client, asked).await.unwrap_err();
        assert_eq!(error.code(), Code::PermissionDenied);
        assert_eq!(gateway.statuses(&get("/"), 4), [200, 200, 200, 429]);
    });
}

#[test]
fn two_gateways_admit_a_bucket_once_between_calls_and_forwarded_requests() {
    let (upstream, redis) = (Upstream::start(), RedisServer::start());
    let envoy = "decide: {address: \"127.0.0.1:0\", trusted_proxies: [127.0.0.1], envoy: \
         [{domain: edge, descriptors: [{key: remote_address, limit: L}]}]}";
    let setup = Setup::before(&upstream)
        .key(envoy)
        .limits(&["L: {per: address, burst: 100, count: 1, period: 1000h}"])
        .limited_by("L")
        .key(&crate::redis::store(&redis.url()));
    let gateways = [setup.start(), setup.start()];
    let admitted: usize = std::thread::scope(|scope| {
        let calling = gateways.iter().map(|gateway| {
            scope.spawn(move || {
                http2::run(async {
                    let mut client = client(gateway.decides_at()).await;
                    let mut admitted = 0;
                    for _ in 0..60 {
                        let asked = call(vec![descriptor(&[("remote_address", "127.0.0.1")])]);
                        let reply = ask(&mut client, asked).await.unwrap();
                        admitted += usize::from(reply.overall_code == OK);
                    }
                    admitted
                })
            })
        });
        let sending = gateways.iter().map(|gateway| {
            scope.spawn(move || {
                let statuses = gateway.statuses(&get("/"), 60);
                statuses.iter().filter(|status| **status == 200).count()
            })
        });
        let threads: Vec<_> = calling.chain(sending).collect();
        let admitted = threads.into_iter().map(|thread| thread.join().unwrap());
        admitted.sum()
    });
    assert_eq!(admitted, 100);
}
