//! What clients and the log are told of requests that a late worker sheds.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::num::NonZeroU32;

use weir_limit::{ConcurrencyBounds, OverloadControl, Priority, ShedLevel};
use weir_passwords::BasicAuth;
use weir_rules::{
    AccessList, AccessLists, AccountRules, AccountWildcards, AddressHeader, ClientRules,
    Enforcement,
};
use weir_telemetry::{Counter, PageFormat};

use super::*;
use crate::concurrency::RouteConcurrency;
use crate::{
    AccessControl, AccessSettings, ClientPriorities, ConcurrencyLimiter, ConcurrencySettings,
    IdentifyLayer, KnownBans, OverloadSettings, Peer, Shedding, SheddingSettings, TarpitSlots,
    Treatment, set_shed_level,
};

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
    let settings = SheddingSettings {
        overload: Some(OverloadSettings {
            max_delay: Duration::from_secs(1),
            enforcement,
        }),
        clients: Arc::new(priorities),
    };
    layer.with_shedding(&Shedding::new(&settings, metrics))
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

/// The mark was set on the response alone, and there on top of that of the upstream.
#[tokio::test]
async fn no_client_of_a_dry_run_leaves_without_a_mark_or_with_another_than_the_first() {
    let clock = ManualClock::new(Timestamp::from_nanos(1_000_000_000_000));
    let slots = NonZeroU32::MIN;
    let settings = ConcurrencySettings {
        bounds: ConcurrencyBounds {
            min: slots,
            max: slots,
        },
        max_wait: None,
        enforcement: Enforcement::NONE,
    };
    let concurrency = RouteConcurrency {
        limiter: ConcurrencyLimiter::new("app", settings),
        priority: Priority::Normal,
        clients: Arc::default(),
        reads_bodies_first: false,
        shed: Counter::default(),
    };
    let layer = layer(&clock, Enforcement::NONE).with(|settings| {
        let route = settings.route.take();
        settings.route = route.map(|mut route| {
            Arc::make_mut(&mut route).shedding.by_upstream = Some(concurrency);
            route
        });
    });
    let mut service = layer.layer(service_fn(app));
    let responses = [1, 2].map(|client| service.call(by([203, 0, 113, client].into())));
    let marks = responses
        .each_ref()
        .map(|it| it.verdict()?.shed.map(|shed| shed.by));
    assert_eq!(marks, [Some("gateway"), Some("upstream")]);
}

/// `secret`, of bcrypt's least cost.
const USERS: &str = "red:$2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW\n";

/// The draw of the account came on top of that of its address.
#[tokio::test]
async fn no_late_worker_decides_twice_about_a_request_or_never_as_its_password_is_verified() {
    let key = HashKey::random();
    let blue = || AccessList::new([], [key.hash(b"blue")]);
    let none = AccessList::default;
    for (high, allow) in [(none(), none()), (blue(), none()), (none(), blue())] {
        let metrics = Metrics::new();
        let limits = vec![limit("PerAccount", KeySource::Account, Missing::Deny)];
        let policy = policy(OnDenied::Reject(Rejection::default()), limits);
        let store = Arc::new(Memory::new(MemorySettings::default()));
        let access = AccessSettings {
            lists: AccessLists {
                allow,
                ..AccessLists::default()
            },
            blocked: Treatment::Drop { in_kernel: false },
            bans: Vec::new(),
        };
        let tarpits = TarpitSlots::new(metrics.bans());
        let access = AccessControl::new(access, &tarpits, &metrics, &KnownBans::default());
        let layer = RateLimitLayer::new(store, policy, &metrics).with_access_control(&access);
        let priorities = ClientPriorities::new([(Priority::High, high)]);
        let layer = shedding(layer, Enforcement::NONE, priorities, &metrics);
        let account = AccountRules {
            sources: vec![BasicAuth::from_htpasswd(USERS).unwrap().into()],
            key: key.clone(),
            wildcards: AccountWildcards::default(),
            keeps_names: false,
        };
        let client = ClientRules::new([], AddressHeader::XForwardedFor);
        let service = IdentifyLayer::new(client, account).layer(layer.layer(service_fn(app)));
        let mut request = by([203, 0, 113, 9].into());
        let credentials = HeaderValue::from_static("Basic cmVkOnNlY3JldA==");
        request.headers_mut().insert("authorization", credentials);
        let response = service.oneshot(request).await.unwrap();
        let verdict: &Verdict = response.extensions().get().unwrap();
        assert_eq!(verdict.disposition, Disposition::Allowed);
        assert_eq!(verdict.shed.unwrap().by, "gateway");
        let page = metrics.page(PageFormat::Text).unwrap();
        let counted = "{priority=\"normal\",decision=\"would_deny\"} 1\n";
        assert!(page.contains(counted), "{page}");
    }
}
