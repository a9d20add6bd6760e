//! Weir's limits on an axum service, without the gateway.
//!
//! `cargo run --example axum`, then a dozen times `curl -i http://127.0.0.1:3000/`: five requests
//! pass at once, then one a second.

use std::error::Error;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::get;
use http::Request;
use tower::ServiceBuilder;
use weir::limit::Quota;
use weir::middleware::{
    HeaderForms, IdentifyLayer, OnDenied, Peer, RateLimitLayer, Rejection, RoutePolicy,
};
use weir::rules::{
    AccountRules, AccountWildcards, AddressHeader, ClientRules, HashKey, KeySource, Limit,
    LimitUse, Missing,
};
use weir::store::{Memory, MemorySettings};
use weir::telemetry::Metrics;

/// The service with limits on it.
pub fn app() -> Result<Router, Box<dyn Error>> {
    let key = HashKey::random();

    // Five at once, then one a second, for each client address.
    let quota = Quota::new(5, 60, Duration::from_secs(60))?;
    let per = vec![KeySource::parse("address", 64)?];
    let limit = Limit::new("RequestsPerAddress", per, quota, Missing::Skip, key.clone())?;
    let policy = RoutePolicy {
        name: "all".into(),
        limits: vec![LimitUse::of(Arc::new(limit))],
        on_denied: OnDenied::Reject(Rejection::default()),
        headers: HeaderForms::default(),
        cors: None,
    };

    let max_buckets = NonZeroUsize::new(100_000).unwrap_or(NonZeroUsize::MIN);
    let store = Arc::new(Memory::new(MemorySettings { max_buckets }));

    // Nobody's forwarding fields are believed; put your proxy's address here if you have one.
    let client = ClientRules {
        trusted_proxies: vec![],
        header: AddressHeader::XForwardedFor,
    };
    let account = AccountRules {
        sources: vec![],
        key,
        wildcards: AccountWildcards::default(),
        keeps_names: false,
    };

    let limits = ServiceBuilder::new()
        .map_request(with_peer)
        .layer(IdentifyLayer::new(client, account))
        .layer(RateLimitLayer::new(store, policy, &Metrics::new()));
    Ok(Router::new()
        .route("/", get(|| async { "hello\n" }))
        .layer(limits))
}

/// Tells Weir's layers who is at the other end, in their own words.
fn with_peer<B>(mut request: Request<B>) -> Request<B> {
    if let Some(ConnectInfo(peer)) = request.extensions().get::<ConnectInfo<SocketAddr>>() {
        let peer = Peer {
            address: peer.ip(),
            secure: false,
        };
        request.extensions_mut().insert(peer);
    }
    request
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    let service = app()?.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service).await?;
    Ok(())
}
