//! What clients and the log are told of requests that a late worker sheds.

use std::collections::BTreeSet;
use std::net::IpAddr;

use weir_limit::{OverloadControl, ShedLevel};
use weir_rules::Enforcement;

use super::*;
use crate::{ClientPriorities, OverloadSettings, OverloadShedding, Peer, set_shed_level};

/// The level at which all is shed that ever is.
fn all() -> ShedLevel {
    let at = |tick: u64| Timestamp::from_nanos(tick * 100_000_000);
    let mut control = OverloadControl::new(Nanos::new(100), at(0));
    // Twice the bound is two steps of thirty for each interval, which takes two delays.
    for tick in 1..=32 {
        control.observe(Nanos::new(200), at(tick));
    }
    control.level()
}

/// The same layer on a thread that sheds all.
fn shedding(
    layer: RateLimitLayer,
    enforcement: Enforcement,
    priorities: ClientPriorities,
    metrics: &Metrics,
) -> RateLimitLayer {
    set_shed_level(all());
    let settings = OverloadSettings {
        max_delay: Duration::from_secs(1),
        enforcement,
    };
    let shedding = OverloadShedding::new(settings, Arc::new(priorities), metrics.overload());
    layer.with_overload_shedding(Some(Arc::new(shedding)))
}

/// A layer that allows each client one request, on a thread that sheds all.
fn layer(clock: &ManualClock, enforcement: Enforcement) -> RateLimitLayer {
    let layer = RateLimitLayer::per_address(Quota::per_minute(1).burst(1)).unwrap();
    let layer = layer.with_clock(Arc::new(clock.clone()));
    shedding(
        layer,
        enforcement,
        ClientPriorities::default(),
        &Metrics::new(),
    )
}

async fn app(_: Request<Metered<Full<Bytes>>>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("real")))
}

fn by(client: IpAddr) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::default());
    request.extensions_mut().insert(Peer {
        address: client,
        secure: false,
    });
    request
}

async fn response(layer: &RateLimitLayer, client: IpAddr) -> http::response::Parts {
    let response = layer.layer(service_fn(app)).oneshot(by(client)).await;
    response.unwrap().into_parts().0
}

/// What a client that is shed is told.
async fn retry_after(layer: &RateLimitLayer, client: IpAddr) -> u64 {
    let response = response(layer, client).await;
    assert_eq!(response.status, StatusCode::SERVICE_UNAVAILABLE);
    let field = &response.headers["retry-after"];
    field.to_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn no_client_that_is_shed_is_told_to_come_back_before_it_draws_again() {
    let clock = ManualClock::new(Timestamp::from_nanos(1_000_000_000_123));
    let layer = layer(&clock, Enforcement::FULL);
    let mut told = BTreeSet::new();
    for client in 0..200_u8 {
        let client = IpAddr::from([203, 0, 113, client]);
        let begun = clock.now();
        let first = retry_after(&layer, client).await;
        assert_eq!(
            retry_after(&layer, client).await,
            first,
            "another part of the page"
        );
        told.insert(first);
        // The next period has just begun.
        clock.advance(Duration::from_secs(first));
        assert_eq!(retry_after(&layer, client).await, 10);
        clock.set(begun);
    }
    assert!(told.into_iter().eq(1..=10));
}

/// Each configuration had a secret of its own.
#[tokio::test]
async fn a_reload_never_draws_again_which_clients_are_shed() {
    let clock = ManualClock::new(Timestamp::from_nanos(1_000_000_000_123));
    let [before, after] = [(); 2].map(|()| layer(&clock, Enforcement::FULL));
    for client in 0..20_u8 {
        let client = IpAddr::from([203, 0, 113, client]);
        let told = retry_after(&before, client).await;
        assert_eq!(retry_after(&after, client).await, told);
    }
}

#[tokio::test]
async fn no_request_of_a_dry_run_goes_without_a_mark_whatever_its_limits_say() {
    let clock = ManualClock::new(Timestamp::from_nanos(1_000_000_000_000));
    let layer = layer(&clock, Enforcement::NONE);
    let client = IpAddr::from([203, 0, 113, 9]);
    for disposition in [Disposition::Allowed, Disposition::Denied] {
        let response = response(&layer, client).await;
        let verdict: &Verdict = response.extensions.get().unwrap();
        assert_eq!(verdict.disposition, disposition);
        assert_eq!(verdict.shed.unwrap().by, "gateway");
    }
    set_shed_level(ShedLevel::NONE);
    let response = response(&layer, client).await;
    assert_eq!(response.extensions.get::<Verdict>().unwrap().shed, None);
}
