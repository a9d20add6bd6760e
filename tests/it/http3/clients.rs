//! Real clients, as `tests/clients` has them.

use super::*;
use crate::clients::{programs, run};

/// Lets a client come with as many requests as it may have, and with one more.
fn is_served_and_denied(client: &str) -> Option<Upstream> {
    let programs = programs()?;
    let (upstream, secure) = (Upstream::start(), Secure::new());
    let limit = "PerAddress: {per: address, burst: 3, count: 3, period: 24h}";
    let setup = secure.setup(Setup::before(&upstream), "{early_data: true}");
    let gateway = setup.limited_by("PerAddress").limits(&[limit]).start();
    let url = format!("https://{}/", gateway.address());
    let served = run(&programs, client, &url, 3, 0);
    assert!(served.status.success(), "{client}: {served:?}");
    let denied = run(&programs, client, &url, 1, 0);
    let said = String::from_utf8_lossy(&denied.stderr).into_owned();
    assert!(said.contains("429"), "{client}: {denied:?}");
    assert_eq!(upstream.count(), 3);
    let lines = gateway.logged_times("/", 4);
    assert!(lines.iter().all(|line| line["version"] == "3"), "{lines:?}");
    Some(upstream)
}

#[test]
fn curl_is_served_and_denied_over_http3() {
    is_served_and_denied("py-http3-curl");
}

#[test]
fn aioquic_is_served_and_denied_over_http3_and_returns_with_early_data() {
    let Some(upstream) = is_served_and_denied("py-http3-aioquic") else {
        return;
    };
    let marks: Vec<_> = upstream
        .all()
        .iter()
        .map(|it| it.lines("early-data").len())
        .collect();
    assert_eq!(marks, [0, 1, 1]);
}
