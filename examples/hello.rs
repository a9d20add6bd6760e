//! An axum service with a limit: twenty requests of each client pass at once, then a hundred a
//! minute. `curl -i http://127.0.0.1:3000/` shows what is left.

use std::error::Error;
use std::net::SocketAddr;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::get;
use weir::limit::Quota;
use weir::middleware::RateLimitLayer;

/// The service.
pub fn app() -> Result<Router, Box<dyn Error>> {
    let limit = RateLimitLayer::per_address(Quota::per_minute(100).burst(20))?
        .with_peer(|peer: &ConnectInfo<SocketAddr>| peer.0.ip());
    Ok(Router::new().route("/", get(|| async { "hello\n" }).layer(limit)))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    let service = app()?.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}
