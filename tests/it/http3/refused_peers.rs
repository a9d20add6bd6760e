//! Connections of the banned, whose packets the kernel drops, or the gateway where it cannot.

use std::fs;
use std::net::Ipv4Addr;

use super::*;
use crate::refused_peers::{
    AT_ACCEPT, BANNED, BANS, BY_KERNEL, OTHER, PEERS, is_within, lift, wait_for,
};
use crate::support::http3::endpoint_at;

fn setup(upstream: &Upstream, secure: &Secure) -> Setup {
    let before = Setup::before(upstream);
    secure.setup_at("0.0.0.0", before, "true").key(BANS)
}

/// Where a gateway is reached in the namespace.
fn address(gateway: &Gateway) -> SocketAddr {
    (Ipv4Addr::new(198, 18, 0, 1), gateway.address().port()).into()
}

async fn connect_from(source: Ipv4Addr, gateway: &Gateway, secure: &Secure) -> Http3 {
    let endpoint = endpoint_at(source, &secure.config);
    let connection = quic(&endpoint, address(gateway), NAME).await;
    Http3::over(endpoint, connection.expect("a connection")).await
}

/// Has the banned address earn its ban, and come once more. The connection is left open.
async fn ban(gateway: &Gateway, secure: &Secure) -> Http3 {
    let mut client = connect_from(BANNED, gateway, secure).await;
    assert_eq!(client.get("/trap").await.unwrap().status(), 200);
    assert!(client.get("/").await.is_err(), "it gets no response");
    wait_for(gateway, PEERS, 1.0);
    client
}

/// A banned peer gets no answer to its handshake while it is counted there, and finishes it as soon
/// as the ban is lifted.
async fn is_refused_until_the_lift(gateway: &Gateway, secure: &Secure, counter: &str) {
    let before = gateway.metric(counter).unwrap();
    let endpoint = endpoint_at(BANNED, &secure.config);
    let connecting = endpoint.connect(address(gateway), NAME).unwrap();
    let connecting = tokio::spawn(connecting);
    while gateway.metric(counter).unwrap() <= before {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut other = connect_from(OTHER, gateway, secure).await;
    assert_eq!(other.get("/").await.unwrap().status(), 200);
    assert!(!connecting.is_finished());
    lift(gateway);
    let connection = connecting
        .await
        .unwrap()
        .expect("a handshake after the lift");
    let mut client = Http3::over(endpoint, connection).await;
    assert_eq!(client.get("/").await.unwrap().status(), 200);
}

#[test]
fn the_kernel_drops_handshakes_of_the_banned_until_the_ban_is_lifted() {
    if !is_within("http3::refused_peers::the_kernel_drops_handshakes") {
        return;
    }
    let (upstream, secure) = (Upstream::start(), Secure::new());
    let gateway = setup(&upstream, &secure).start();
    http2::run(async {
        let banned = ban(&gateway, &secure).await;
        is_refused_until_the_lift(&gateway, &secure, BY_KERNEL).await;
        // Connections go on: the ban is one of requests.
        assert_eq!(banned.connection.close_reason(), None);
    });
}

/// The kernel may use no memory for the filter, but as much as each packet that is sent takes.
#[test]
fn without_a_filter_the_gateway_ignores_handshakes_of_the_banned() {
    if !is_within("http3::refused_peers::without_a_filter_the_gateway") {
        return;
    }
    // Older kernels have one value for all.
    if fs::write("/proc/sys/net/core/optmem_max", "128").is_err() {
        return;
    }
    let (upstream, secure) = (Upstream::start(), Secure::new());
    let gateway = setup(&upstream, &secure).start();
    http2::run(async {
        let _banned = ban(&gateway, &secure).await;
        is_refused_until_the_lift(&gateway, &secure, AT_ACCEPT).await;
        assert_eq!(gateway.metric(BY_KERNEL), Some(0.0));
    });
}
