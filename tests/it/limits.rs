//! Limits: exact, each per what it is counted by, overridden, with costs, all or none.

use crate::support::*;

/// Clients behind the trusted proxy that the test is.
fn behind_proxy(setup: Setup) -> Setup {
    setup.key("client_address: {trusted_proxies: [127.0.0.0/8]}")
}

fn from(address: &str) -> Request {
    get("/").with("x-forwarded-for", address)
}

#[test]
fn a_bucket_admits_its_burst_and_then_what_comes_back() {
    let upstream = Upstream::start();
    let setup = Setup::before(&upstream)
        .limits(&["L: {per: address, burst: 3, count: 1, period: 1h}"])
        .limited_by("L");
    let gateway = setup.start();
    assert_eq!(gateway.statuses(&get("/"), 5), [200, 200, 200, 429, 429]);
    assert_eq!(upstream.count(), 3);
}
