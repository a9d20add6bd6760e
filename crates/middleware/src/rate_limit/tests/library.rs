//! The layer on a service of one's own, without the gateway around it.

use std::net::{IpAddr, SocketAddr};

use super::*;
use crate::{Denied, KeyExtractor, Peer, RequestHead};

type Answer = Response<ResponseBody<Full<Bytes>>>;

async fn answer(limits: &RateLimitLayer, request: http::request::Builder) -> Answer {
    let service = service_fn(|_: Request<Metered<Full<Bytes>>>| async {
        Ok::<_, Infallible>(Response::new(Full::from("real")))
    });
    let request = request.body(Full::default()).unwrap();
    limits.layer(service).oneshot(request).await.unwrap()
}

/// One implementation for all forms of a request would have the caller of `ready` name one.
#[tokio::test]
async fn no_caller_has_to_name_the_type_of_a_request() {
    let service = service_fn(|_: Request<Metered<Full<Bytes>>>| async {
        Ok::<_, Infallible>(Response::new(Full::from("real")))
    });
    let limits = RateLimitLayer::per_address(twice_an_hour()).unwrap();
    let mut service = limits
        .layer(service)
        .map_response(|response| response.status());
    let request = from("203.0.113.9").body(Full::default()).unwrap();
    let ready = service.ready().await.unwrap();
    assert_eq!(ready.call(request).await.unwrap(), StatusCode::OK);
}

async fn status(limits: &RateLimitLayer, request: http::request::Builder) -> u16 {
    answer(limits, request).await.status().as_u16()
}

fn from(address: &str) -> http::request::Builder {
    let address: IpAddr = address.parse().unwrap();
    let secure = false;
    Request::builder().extension(Peer { address, secure })
}

fn twice_an_hour() -> weir_limit::Rate {
    Quota::per_hour(2)
}

#[tokio::test]
async fn each_address_has_a_bucket_of_its_own_and_an_ipv6_network_has_one() {
    let limits = RateLimitLayer::per_address(twice_an_hour()).unwrap();
    for (address, expected) in [
        ("203.0.113.9", 200),
        ("::ffff:203.0.113.9", 200),
        ("203.0.113.9", 429),
        ("203.0.113.8", 200),
        ("2001:db8::1", 200),
        ("2001:db8::2", 200),
        ("2001:db8::3", 429),
        ("2001:db8:0:1::1", 200),
    ] {
        assert_eq!(status(&limits, from(address)).await, expected, "{address}");
    }
    let socket: SocketAddr = "203.0.113.9:1234".parse().unwrap();
    let by_socket = Request::builder().extension(socket);
    assert_eq!(status(&limits, by_socket).await, 429);
}

#[derive(Clone)]
struct ConnectInfo(IpAddr);

#[tokio::test]
async fn the_address_may_stand_in_what_the_server_leaves() {
    let limits = RateLimitLayer::per_address(twice_an_hour()).unwrap();
    let limits = limits.with_peer(|info: &ConnectInfo| info.0);
    let info = ConnectInfo("203.0.113.9".parse().unwrap());
    let request = || Request::builder().extension(info.clone());
    for expected in [200, 200, 429] {
        assert_eq!(status(&limits, request()).await, expected);
    }
    // The usual type is no longer looked for.
    assert_eq!(status(&limits, from("203.0.113.8")).await, 500);
}

/// All of them had one bucket, without a word.
#[tokio::test]
async fn requests_of_unknown_addresses_are_refused_unless_they_are_to_share() {
    let limits = RateLimitLayer::per_address(twice_an_hour()).unwrap();
    let refused = answer(&limits, Request::builder()).await;
    assert_eq!(refused.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(
        refused.headers()["content-type"],
        "application/problem+json"
    );
    let body = refused.into_body().collect().await.unwrap().to_bytes();
    assert!(body.starts_with(b"{\"") && !body.starts_with(b"real"));
    let sharing = limits.sharing_unknown();
    for expected in [200, 200, 429] {
        assert_eq!(status(&sharing, Request::builder()).await, expected);
    }
}

struct ByTenant;

impl KeyExtractor for ByTenant {
    type Key = u32;

    fn extract(&self, request: &RequestHead<'_>) -> Option<u32> {
        request.headers.get("x-tenant")?.to_str().ok()?.parse().ok()
    }
}

#[tokio::test]
async fn each_key_has_a_bucket_of_its_own_and_requests_without_one_are_denied() {
    let limits = RateLimitLayer::per_key(twice_an_hour(), ByTenant).unwrap();
    for (tenant, expected) in [("7", 200), ("07", 200), ("7", 429), ("8", 200), ("x", 403)] {
        let request = Request::builder().header("x-tenant", tenant);
        assert_eq!(status(&limits, request).await, expected, "{tenant}");
    }
}

#[tokio::test]
async fn a_denial_may_be_answered_in_words_of_ones_own() {
    let limits = RateLimitLayer::per_address(Quota::per_hour(1)).unwrap();
    let limits = limits.with_response(|denied: &Denied<'_>| {
        let seconds = denied.retry_after.unwrap().as_secs_f64().round();
        let mut response = Response::new(format!("{} {seconds}", denied.limit).into());
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        response
    });
    assert_eq!(status(&limits, from("203.0.113.9")).await, 200);
    let denied = answer(&limits, from("203.0.113.9")).await;
    assert_eq!(denied.status(), StatusCode::SERVICE_UNAVAILABLE);
    let standing = &denied.headers()["ratelimit"];
    assert_eq!(standing, "\"RequestsPerAddress\";r=0;t=3600");
    let body = denied.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, "RequestsPerAddress 3600");
}

fn shared_memory() -> Arc<dyn Store> {
    Arc::new(Memory::new(MemorySettings::default()))
}

async fn admitted(limits: &RateLimitLayer, requests: usize) -> usize {
    let mut passed = 0;
    for _ in 0..requests {
        passed += usize::from(status(limits, from("203.0.113.9")).await == 200);
    }
    passed
}

/// They had one bucket: of twenty an hour one layer let 1,140 pass beside the other.
#[tokio::test]
async fn two_layers_with_other_rates_or_names_share_a_store_and_no_bucket() {
    let store = shared_memory();
    let layer = |rate| RateLimitLayer::per_address(rate).unwrap();
    let (minute, hour) = (Quota::per_minute(5), Quota::per_hour(20));
    let unnamed = [layer(minute), layer(hour)];
    let named = ["One", "Other"].map(|name| layer(minute).named(name).unwrap());
    for (layers, expected) in [(unnamed, [5, 20]), (named, [5, 5])] {
        let layers = layers.map(|layer| layer.with_store(Arc::clone(&store)));
        for (layer, expected) in layers.iter().zip(expected) {
            assert_eq!(admitted(layer, 30).await, expected);
        }
    }
}

#[tokio::test]
async fn layers_of_one_name_share_a_bucket_on_purpose() {
    let store = shared_memory();
    let layer = || RateLimitLayer::per_address(twice_an_hour()).unwrap();
    let layers = [layer(), layer()].map(|layer| layer.named("Pages").unwrap());
    let [one, other] = layers.map(|layer| layer.with_store(Arc::clone(&store)));
    assert_eq!((admitted(&one, 1).await, admitted(&other, 5).await), (1, 1));
    let denied = answer(&other, from("203.0.113.9")).await;
    assert_eq!(denied.headers()["ratelimit"], "\"Pages\";r=0;t=1800");
    assert!(layer().named("not: a name").is_err());
}

/// Each process hashed by a random key of its own, so processes with one Redis shared nothing.
#[tokio::test]
async fn layers_per_key_share_the_buckets_of_keys_that_are_hashed_alike() {
    let store = shared_memory();
    let layer = || RateLimitLayer::per_key(twice_an_hour(), ByTenant).unwrap();
    let layer = || layer().with_store(Arc::clone(&store));
    let key = || HashKey::from_bytes(&[7; 16]).unwrap();
    let ask = async |limits: &RateLimitLayer| {
        status(limits, Request::builder().header("x-tenant", "7")).await
    };
    let given = [layer(), layer()].map(|layer| layer.with_hash_key(key()));
    assert_eq!(ask(&given[0]).await, 200);
    assert_eq!(ask(&given[1]).await, 200);
    assert_eq!(ask(&given[0]).await, 429);
    assert_eq!(ask(&layer()).await, 200, "by a key of its own");
}

#[test]
fn a_rate_of_nothing_is_refused() {
    assert!(RateLimitLayer::per_address(Quota::per_minute(0)).is_err());
    assert!(RateLimitLayer::per_key(Quota::per_minute(5).burst(0), ByTenant).is_err());
    let quota = Quota::new(1, 1, Duration::from_secs(1)).unwrap();
    assert!(RateLimitLayer::per_address(quota).is_ok());
}
