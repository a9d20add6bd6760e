//! The examples: the limits on axum services, without the gateway.

use std::net::SocketAddr;
use std::thread;

use axum::Router;

use crate::support::*;

#[path = "../../examples/axum.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "the example is a program of its own, whose main is not called here"
)]
mod axum_example;

#[path = "../../examples/hello.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "the example is a program of its own, whose main is not called here"
)]
mod hello_example;

#[path = "../../examples/redis.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "the example is a program of its own, whose main is not called here"
)]
mod redis_example;

#[path = "../../examples/store.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "the example is a program of its own, whose main is not called here"
)]
mod store_example;

/// Serves an example on a free port until the tests are over.
fn serve(app: impl AsyncFnOnce() -> Router + Send + 'static) -> SocketAddr {
    let (sender, receiver) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().unwrap().block_on(async {
            let service = app()
                .await
                .into_make_service_with_connect_info::<SocketAddr>();
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            sender.send(listener.local_addr().unwrap()).unwrap();
            axum::serve(listener, service).await.unwrap();
        });
    });
    receiver.recv().expect("a listening service")
}

fn serve_axum_example() -> SocketAddr {
    serve(async || axum_example::app().unwrap())
}

/// Pasted into a program, the documented example answered 500 to every request.
#[test]
fn the_documented_example_works_as_it_is_pasted() {
    let example = include_str!("../../examples/hello.rs");
    let page = include_str!("../../docs/LIBRARY.md");
    assert!(page.contains(&format!("```rust\n{example}```\n")));
    let mut client = Client::connect(serve(async || hello_example::app().unwrap()));
    for _ in 0..20 {
        assert_eq!(client.send(&get("/")).status, 200);
    }
    eventually("a denied request", || {
        (client.send(&get("/")).status == 429).then_some(())
    });
}

#[test]
fn the_layer_limits_an_axum_service_by_the_peers_address() {
    let address = serve_axum_example();
    let mut client = Client::connect(address);
    let first = client.send(&get("/"));
    assert_eq!((first.status, first.text()), (200, "hello\n"));
    assert_eq!(
        first.lines("ratelimit-policy"),
        ["\"RequestsPerAddress\";q=5;w=5"]
    );
    let denied = eventually("a denied request", || {
        let claim = get("/").with("x-forwarded-for", "192.0.2.1");
        Some(client.send(&claim)).filter(|it| it.status == 429)
    });
    assert_eq!(denied.field("retry-after"), Some("1"));
    assert_eq!(
        denied.json()["violated-policies"],
        serde_json::json!(["RequestsPerAddress"])
    );
    // Another peer has a bucket of its own.
    let mut other = Client::connect_from([127, 0, 0, 2].into(), address);
    assert_eq!(other.send(&get("/")).status, 200);
}

#[test]
fn the_layer_limits_an_axum_route_by_a_key_of_ones_own() {
    let mut client = Client::connect(serve_axum_example());
    assert_eq!(client.send(&get("/search")).status, 403);
    let by = |key: &str| get("/search").with("x-api-key", key);
    let found = client.send(&by("mine"));
    assert_eq!((found.status, found.text()), (200, "found\n"));
    eventually("a denied request", || {
        Some(client.send(&by("mine"))).filter(|answer| answer.status == 429)
    });
    assert_eq!(client.send(&by("yours")).status, 200);
}

#[test]
fn services_with_one_redis_share_a_bucket() {
    let redis = RedisServer::start();
    for _ in 0..2 {
        let url = redis.url();
        let address = serve(async move || redis_example::app(&url).await.unwrap());
        let mut client = Client::connect(address);
        eventually("a bucket in Redis", || {
            assert_ne!(client.send(&get("/")).status, 500);
            let keys = redis.command(&["KEYS", "*"]);
            keys.contains("\nexample:RequestsPerAddress:127.0.0.1")
                .then_some(())
        });
        redis.command(&["FLUSHALL"]);
    }
}

#[test]
fn the_layer_limits_by_a_store_of_ones_own() {
    let address = serve(async || store_example::app().unwrap());
    let mut client = Client::connect(address);
    let first = client.send(&get("/"));
    assert_eq!((first.status, first.text()), (200, "hello\n"));
    let denied = eventually("a denied request", || {
        Some(client.send(&get("/"))).filter(|answer| answer.status == 429)
    });
    assert_eq!(denied.field("retry-after"), Some("1"));
    let mut other = Client::connect_from([127, 0, 0, 2].into(), address);
    assert_eq!(other.send(&get("/")).status, 200);
}
