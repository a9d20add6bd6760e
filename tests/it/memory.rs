//! The memory store's bound, and who is forgotten to keep it; what clients that do not read cost.

use std::net::Ipv4Addr;

use crate::support::*;

const MAX_BUCKETS: u32 = 1000;

fn start(upstream: &Upstream) -> Gateway {
    Setup::before(upstream)
        .limits(&["L: {per: address, burst: 3, count: 1, period: 1000h}"])
        .limited_by("L")
        .key(&format!(
            "store: {{memory: {{max_buckets: {MAX_BUCKETS}}}}}"
        ))
        .key("client_address: {trusted_proxies: [127.0.0.0/8]}")
        .key("log: {access: false}")
        .start()
}

fn from(address: Ipv4Addr) -> Request {
    get("/").with("x-forwarded-for", &address.to_string())
}

/// A request from each of so many addresses.
fn flood(gateway: &Gateway, network: u32, addresses: u32) {
    let mut client = gateway.client();
    let numbers: Vec<_> = (0..addresses).collect();
    for some in numbers.chunks(100) {
        let address = |number| Ipv4Addr::from_bits((network << 24) + number);
        let requests: Vec<_> = some.iter().map(|number| from(address(*number))).collect();
        for response in client.send_all(&requests) {
            assert_eq!(response.status, 200);
        }
    }
}

#[test]
fn many_addresses_take_no_more_memory_than_the_bound_allows() {
    let upstream = Upstream::start();
    let gateway = start(&upstream);
    flood(&gateway, 10, 2000);
    let before = gateway.resident();
    flood(&gateway, 11, 8000);

    let grown = gateway.resident().saturating_sub(before);
    assert!(grown < 16 << 20, "grown by {grown} bytes");
    let buckets = gateway.metric("weir_memory_store_buckets").unwrap();
    let evicted = gateway.metric("weir_memory_store_evicted_total").unwrap();
    assert!(buckets <= f64::from(MAX_BUCKETS), "{buckets}");
    assert!(buckets >= f64::from(MAX_BUCKETS / 2), "{buckets}");
    assert_eq!(buckets + evicted, 10_000.0);
}

/// A unit of a long limit took longer to come back than a ban lasted, so it outranked the ban.
#[test]
fn rotated_addresses_neither_lift_a_ban_nor_fill_a_drained_bucket() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&[
            "Long: {per: address, burst: 2, count: 1, period: 1000h}",
            "Short: {per: address, burst: 3, count: 1, period: 1h}",
        ])
        .routes(&[
            "{match: {}, upstream: app, limits: [Long]}",
            "{match: {path: /short}, upstream: app, limits: [Short]}",
        ])
        .key("bans: {trapped: {per: address, strikes: {paths: /trap, count: 1, period: 1h}, for: 1h}}")
        .key(&format!("store: {{memory: {{max_buckets: {MAX_BUCKETS}}}}}"))
        .key("client_address: {trusted_proxies: [127.0.0.0/8]}")
        .key("log: {access: false}")
        .start();
    let at = |path: &str, last| {
        let address = Ipv4Addr::new(192, 0, 2, last).to_string();
        get(path).with("x-forwarded-for", &address)
    };
    assert_eq!(gateway.send(&at("/trap", 1)).status, 200);
    eventually("a ban", || {
        (gateway.send(&at("/", 1)).status == 429).then_some(())
    });
    assert_eq!(gateway.statuses(&at("/short", 2), 4), [200, 200, 200, 429]);
    flood(&gateway, 10, 3000);
    assert_eq!(gateway.statuses(&at("/", 1), 1), [429]);
    assert_eq!(gateway.statuses(&at("/short", 2), 1), [429]);
}

#[test]
fn who_has_spent_the_most_is_not_forgotten_for_others() {
    let upstream = Upstream::start();
    let gateway = start(&upstream);
    let spender = from(Ipv4Addr::new(192, 0, 2, 1));
    assert_eq!(gateway.statuses(&spender, 4), [200, 200, 200, 429]);
    flood(&gateway, 10, 3000);
    assert_eq!(gateway.statuses(&spender, 1), [429]);
}

/// Other allocators keep it.
#[cfg(feature = "jemalloc")]
#[test]
fn clients_that_did_not_read_leave_no_memory_behind() {
    const CLIENTS: usize = 300;
    let upstream = Upstream::serving(|_| async {
        let piece = || Ok(Frame::data(Bytes::from_static(&[b'x'; 64 * 1024])));
        let endless = futures_util::stream::repeat_with(piece);
        Answer::new(BodyExt::boxed(StreamBody::new(endless)))
    });
    let gateway = Setup::before(&upstream).key("log: {access: false}").start();
    gateway.client().send(&request("HEAD", "/"));
    let before = gateway.resident();
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| gateway.client()).collect();
    for client in &mut clients {
        client.write(&get("/").bytes()).unwrap();
    }
    for client in &mut clients {
        assert_eq!(client.read_head().unwrap().status, 200);
    }
    let grown = || gateway.resident().saturating_sub(before);
    let peak = eventually("memory in use", || {
        Some(grown()).filter(|it| *it > 12 << 20)
    });
    assert!(peak < 60 << 20, "grown by {peak} bytes");
    drop(clients);
    // The allocator's own threads give it back, whether there is traffic or not: most of it within
    // ten seconds.
    eventually("memory that comes back", || {
        (grown() < peak / 2).then_some(())
    });
}
