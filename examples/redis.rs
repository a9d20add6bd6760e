//! Limits that several processes share through Redis.
//!
//! `redis-server --port 6380`, then `cargo run --example redis` in two terminals, with the port to
//! listen on: `-- 3000` and `-- 3001`. Both take from the same buckets.
//!
//! Calls have a deadline, denials are remembered for a moment, and while Redis is out of reach, the
//! memory of each process decides.

use std::env;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::get;
use weir::limit::Quota;
use weir::middleware::RateLimitLayer;
use weir::store::{
    DenialCache, DenialCached, GuardSettings, Guarded, Memory, MemorySettings, Reachability, Redis,
    RedisSettings, Unobserved,
};

/// The service, with limits that all processes with the same Redis share.
pub async fn app(redis: &str) -> Result<Router, Box<dyn Error>> {
    let settings = RedisSettings::parse(redis, None, None)?;
    let redis = Redis::spawn(settings.with_prefix("example"), Arc::new(Unobserved))?;
    redis.connected(Duration::from_secs(1)).await?;
    let reachability = Arc::new(Reachability::new(Arc::new(Unobserved)));
    let local = Arc::new(Memory::new(MemorySettings::default()));
    let guarded = Guarded::spawn(redis, GuardSettings::default(), reachability, local);
    let store = DenialCached::new(guarded, Arc::new(DenialCache::default()));

    // Five at once, then one a second, for each client address.
    let limits = RateLimitLayer::per_address(Quota::per_minute(60).burst(5))?
        .named("RequestsPerAddress")?
        .with_peer(|peer: &ConnectInfo<SocketAddr>| peer.0.ip())
        .with_store(Arc::new(store));
    Ok(Router::new().route("/", get(|| async { "hello\n" }).layer(limits)))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let port = env::args().nth(1).unwrap_or_else(|| "3000".to_owned());
    let app = app("redis://127.0.0.1:6380/0").await?;
    let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{port}")).await?;
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service).await?;
    Ok(())
}
