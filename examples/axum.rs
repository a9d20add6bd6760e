//! Weir's limits on an axum service, without the gateway.
//!
//! `cargo run --example axum`, then a dozen times `curl -i http://127.0.0.1:3000/`: five requests
//! pass at once, then one a second. `curl -i -H 'x-api-key: mine' http://127.0.0.1:3000/search` is
//! counted by the key, whatever the address.

use std::error::Error;
use std::net::SocketAddr;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::get;
use weir::limit::Quota;
use weir::middleware::{KeyExtractor, RateLimitLayer, RequestHead};

/// Counts by API key. A request without one is denied.
struct ByApiKey;

impl KeyExtractor for ByApiKey {
    type Key = String;

    fn extract(&self, request: &RequestHead<'_>) -> Option<String> {
        let key = request.headers.get("x-api-key")?;
        key.to_str().ok().map(str::to_owned)
    }
}

/// The service with limits on it.
pub fn app() -> Result<Router, Box<dyn Error>> {
    // Five at once, then one a second, for each client address.
    let per_address = RateLimitLayer::per_address(Quota::per_minute(60).burst(5))?
        .with_peer(|peer: &ConnectInfo<SocketAddr>| peer.0.ip());
    let per_key = RateLimitLayer::per_key(Quota::per_hour(1000).burst(10), ByApiKey)?;
    Ok(Router::new()
        .route("/search", get(|| async { "found\n" }).layer(per_key))
        .route("/", get(|| async { "hello\n" }).layer(per_address)))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    let service = app()?.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service).await?;
    Ok(())
}
