//! What clients and the log are told of requests that a late worker sheds.

use std::collections::BTreeSet;
use std::net::IpAddr;

use weir_limit::{OverloadControl, ShedLevel};
use weir_rules::Enforcement;

use super::*;
use crate::{OverloadSettings, OverloadShedding, Peer, set_shed_level};

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

/// A layer that allows each client one request, on a thread that sheds all.
fn layer(clock: &ManualClock, enforcement: Enforcement) -> RateLimitLayer {
    set_shed_level(all());
    let settings = OverloadSettings {
        max_delay: Duration::from_secs(1),
        enforcement,
    };
    let metrics = Metrics::new();
    let shedding = OverloadShedding::new(settings, Arc::default(), metrics.overload());
    let layer = RateLimitLayer::per_address(Quota::per_minute(1).burst(1)).unwrap();
    layer
        .with_clock(Arc::new(clock.clone()))
        .with_overload_shedding(Some(Arc::new(shedding)))
}

async fn response(layer: &RateLimitLayer, client: IpAddr) -> http::response::Parts {
    let app = service_fn(|_: Request<Metered<Full<Bytes>>>| async {
        Ok::<_, Infallible>(Response::new(Full::from("real")))
    });
    let mut request = Request::new(Full::default());
    request.extensions_mut().insert(Peer {
        address: client,
        secure: false,
    });
    let response = layer.layer(app).oneshot(request).await.unwrap();
    response.into_parts().0
}

#[tokio::test]
async fn no_client_that_is_shed_is_told_to_come_back_before_its_luck_has_ended() {
    let clock = ManualClock::new(Timestamp::from_nanos(1_000_000_000_123));
    let layer = layer(&clock, Enforcement::FULL);
    let mut told = BTreeSet::new();
    for client in 0..200_u8 {
        let client = IpAddr::from([203, 0, 113, client]);
        let retry_after = async || -> u64 {
            let response = response(&layer, client).await;
            assert_eq!(response.status, StatusCode::SERVICE_UNAVAILABLE);
            let field = &response.headers["retry-after"];
            field.to_str().unwrap().parse().unwrap()
        };
        let begun = clock.now();
        let first = retry_after().await;
        assert_eq!(retry_after().await, first, "another part of the page");
        told.insert(first);
        // The next luck has just begun.
        clock.advance(Duration::from_secs(first));
        assert_eq!(retry_after().await, 10);
        clock.set(begun);
    }
    assert!(told.into_iter().eq(1..=10));
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
