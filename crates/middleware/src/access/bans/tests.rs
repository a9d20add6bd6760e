use std::convert::Infallible;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tower::{ServiceBuilder, ServiceExt, service_fn};
use weir_http::problem::NoResponse;
use weir_limit::time::{Clock, ManualClock, Timestamp};
use weir_limit::{Batch, BucketKeys, Mode, Quota};
use weir_redis::{Redis, RedisSettings};
use weir_rules::{
    AccessList, Ban, BanSchedule, Enforcement, HashKey, KeySource, Limit, LimitUse, Missing,
    PathPattern, PathSet, SpendWhen, StandingBans, StatusSet,
};
use weir_store::{
    DecisionSource, DenialCache, DenialCached, Memory, MemorySettings, Outcome, OwedBatch, Store,
    StoreError, StoreFuture, Unobserved,
};
use weir_telemetry::Disposition;
use weir_testing::RedisServer;

use super::*;
use crate::access::*;
use crate::backend::{Backend, BackgroundTasks};
use crate::decoy::{Decoy, Shadow};
use crate::identify::identity;
use crate::{
    Delay, Metered, OnDenied, RateLimitLayer, Rejection, RequestContext, RoutePolicy, Verdict,
};

const MINUTE: Duration = Duration::from_secs(60);
const ABUSER: &str = "203.0.113.9";
const OTHER: &str = "203.0.113.8";

/// Where the app counts for itself.
const COUNTED: &str = "/counted";

fn per_address() -> Vec<KeySource> {
    vec![KeySource::parse("address", 64).unwrap()]
}

fn key() -> HashKey {
    HashKey::from_bytes(&[7; 16]).unwrap()
}

/// So many strikes a minute ban for ten minutes, then for forty, then for an hour.
fn abusers(count: u64, treatment: Treatment) -> BanPolicy {
    banning("abusers", count, treatment)
}

fn banning(name: &str, count: u64, treatment: Treatment) -> BanPolicy {
    let strikes = Quota::new(count, count, MINUTE).unwrap();
    let four = NonZeroU32::new(4).unwrap();
    let schedule = BanSchedule::new(10 * MINUTE, four, 60 * MINUTE, 24 * 60 * MINUTE).unwrap();
    let ban = Ban::new(name, per_address(), key(), strikes, schedule).unwrap();
    BanPolicy {
        ban: Arc::new(ban),
        limits: vec!["L".into()],
        workers: 0,
        statuses: StatusSet::default(),
        paths: PathSet::default(),
        treatment,
        enforcement: Enforcement::FULL,
    }
}

/// A ban of those who get 404.
fn for_404(ban: BanPolicy) -> BanPolicy {
    BanPolicy {
        statuses: StatusSet::from_iter(["404".parse().unwrap()]),
        limits: Vec::new(),
        ..ban
    }
}

/// A ban of those who ask for `/trap`.
fn for_the_trap(ban: BanPolicy) -> BanPolicy {
    BanPolicy {
        paths: [PathPattern::parse("/trap").unwrap()].into_iter().collect(),
        limits: Vec::new(),
        ..ban
    }
}

fn rejects() -> Treatment {
    Treatment::Reject(Rejection::default())
}

fn shadows() -> Treatment {
    Treatment::Shadow(decoy())
}

fn decoy() -> Arc<Decoy> {
    let decoy = Decoy::new("sent", StatusCode::OK, HeaderMap::new(), "decoy");
    Arc::new(decoy.unwrap())
}

/// What a route's limits answer with.
fn shadow() -> OnDenied {
    OnDenied::Shadow(Arc::new(Shadow::new(decoy())))
}

/// Three requests at once, and hardly any more.
fn quota() -> Quota {
    Quota::new(3, 1, 1000 * 60 * MINUTE).unwrap()
}

fn policy() -> RoutePolicy {
    let limit = Limit::new("L", per_address(), quota(), Missing::Skip, key()).unwrap();
    RoutePolicy {
        name: "all".into(),
        limits: vec![LimitUse::new(Arc::new(limit))],
        on_denied: OnDenied::Reject(Rejection::default()),
        ..RoutePolicy::default()
    }
}

/// What a request came to.
#[derive(Debug)]
struct Answered {
    head: http::response::Parts,
    body: Bytes,
}

impl Answered {
    fn verdict(&self) -> &Verdict {
        self.head.extensions.get().unwrap()
    }

    fn status(&self) -> u16 {
        self.head.status.as_u16()
    }

    fn is_banned(&self) -> bool {
        self.verdict().banned_by.as_deref() == Some("abusers")
    }

    fn field(&self, name: &str) -> Option<&str> {
        self.head.headers.get(name).map(|it| it.to_str().unwrap())
    }
}

/// Two gateways of one configuration before one upstream, with one store.
struct World {
    /// The store as each gateway sees it.
    stores: [Arc<dyn Store>; 2],
    tasks: BackgroundTasks,
    clock: ManualClock,
    metrics: Arc<Metrics>,
    access: AccessControl,
    /// What reached the upstream, and whether it was diverted.
    seen: Arc<Mutex<Vec<Option<Arc<str>>>>>,
}

impl World {
    fn of(settings: AccessSettings) -> Self {
        let max_buckets = NonZeroUsize::new(1000).unwrap();
        let memory = Arc::new(Memory::new(MemorySettings { max_buckets }));
        Self::on([Arc::clone(&memory) as _, memory], settings)
    }

    fn on(stores: [Arc<dyn Store>; 2], settings: AccessSettings) -> Self {
        let metrics = Metrics::new();
        Self {
            stores,
            tasks: BackgroundTasks::default(),
            clock: ManualClock::new(Timestamp::from_nanos(1 << 60)),
            access: AccessControl::new(
                settings,
                &TarpitSlots::new(metrics.bans()),
                &metrics,
                &KnownBans::default(),
            ),
            metrics,
            seen: Arc::default(),
        }
    }

    fn with(ban: BanPolicy) -> Self {
        Self::of(with(ban))
    }

    /// What a gateway asks.
    fn backend(&self, gateway: usize) -> Backend {
        Backend {
            clock: Arc::new(self.clock.clone()),
            tasks: self.tasks.clone(),
            ..Backend::new(Arc::clone(&self.stores[gateway]))
        }
    }

    /// Sends a request through the first gateway.
    async fn send(&self, address: &str, path: &str) -> Answered {
        self.send_through(0, address, path).await
    }

    async fn send_through(&self, gateway: usize, address: &str, path: &str) -> Answered {
        self.send_by(policy(), gateway, address, path).await
    }

    /// Sends a request through a gateway, and waits for what it leaves to be done.
    async fn send_by(
        &self,
        policy: RoutePolicy,
        gateway: usize,
        address: &str,
        path: &str,
    ) -> Answered {
        let answered = self.answer(policy, gateway, address, path).await;
        self.tasks.settled().await;
        answered
    }

    /// Sends a request through a gateway, and waits for its answer alone.
    async fn answer(
        &self,
        policy: RoutePolicy,
        gateway: usize,
        address: &str,
        path: &str,
    ) -> Answered {
        let seen = Arc::clone(&self.seen);
        let upstream = service_fn(move |request: Request<Metered<Full<Bytes>>>| {
            let routed = RequestContext::routed(request.extensions());
            seen.lock()
                .push(routed.and_then(|routed| routed.diverted_to.clone()));
            let status = request.uri().path().trim_start_matches('/').parse();
            let mut response = Response::new(Full::from("real"));
            *response.status_mut() = status.unwrap_or(StatusCode::OK);
            if request.uri().path() == COUNTED {
                let left = HeaderValue::from(95 - seen.lock().len());
                for name in ["x-ratelimit-remaining", "x-quota-left", "ratelimit-reset"] {
                    response.headers_mut().insert(name, left.clone());
                }
            }
            async { Ok::<_, Infallible>(response) }
        });
        let store = Arc::clone(&self.stores[gateway]);
        let layer = RateLimitLayer::new(store, policy, &self.metrics)
            .with_tasks(self.tasks.clone())
            .with_clock(Arc::new(self.clock.clone()))
            .with_access_control(&self.access);
        let service = ServiceBuilder::new().layer(layer).service(upstream);
        let mut request = Request::new(Full::from("request"));
        *request.uri_mut() = path.parse().unwrap();
        request
            .extensions_mut()
            .insert(identity(address.parse().ok(), None));
        let (head, body) = service.oneshot(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answered { head, body }
    }

    /// Sends so many requests, of which none may be banned.
    async fn offend(&self, count: usize, path: &str) {
        for _ in 0..count {
            let answered = self.send(ABUSER, path).await;
            assert!(!answered.is_banned(), "{answered:?}");
        }
    }

    async fn is_banned(&self) -> bool {
        self.send(ABUSER, "/200").await.is_banned()
    }

    fn bans(&self) -> Option<String> {
        let page = self.metrics.encode().unwrap();
        let line = page.lines().find(|it| it.starts_with("weir_bans_total{"))?;
        line.split(' ').nth(1).map(str::to_owned)
    }
}

fn with(ban: BanPolicy) -> AccessSettings {
    with_all([ban])
}

fn with_all(bans: impl IntoIterator<Item = BanPolicy>) -> AccessSettings {
    AccessSettings {
        lists: AccessLists::default(),
        blocked: rejects(),
        bans: bans.into_iter().collect(),
    }
}

#[tokio::test]
async fn who_goes_on_after_ten_denials_is_banned_and_four_times_as_long_the_second_time() {
    let world = World::with(abusers(10, rejects()));
    world.offend(3 + 10, "/200").await;
    let banned = world.send(ABUSER, "/200").await;
    assert!(banned.is_banned());
    assert_eq!(
        (banned.status(), banned.field("retry-after")),
        (429, Some("600"))
    );
    assert!(!world.send(OTHER, "/200").await.is_banned());

    world.clock.advance(10 * MINUTE - Duration::from_nanos(1));
    assert!(world.is_banned().await);
    world.clock.advance(Duration::from_nanos(1));
    world.offend(10, "/200").await;
    let again = world.send(ABUSER, "/200").await;
    assert_eq!(again.field("retry-after"), Some("2400"));
    world.clock.advance(40 * MINUTE - Duration::from_nanos(1));
    assert!(world.is_banned().await);
    world.clock.advance(Duration::from_nanos(1));
    world.offend(10, "/200").await;
    let third = world.send(ABUSER, "/200").await;
    assert_eq!(
        third.field("retry-after"),
        Some("3600"),
        "no longer than the longest"
    );
    assert_eq!(world.bans().as_deref(), Some("3"));
}

/// A gateway's connection to Redis, with what the gateway itself remembers of denials.
async fn connected(server: &RedisServer) -> Arc<dyn Store> {
    let settings = RedisSettings::parse(&server.url(), None, None).unwrap();
    let redis = Redis::spawn(settings, Arc::new(Unobserved)).unwrap();
    redis.connected(Duration::from_secs(20)).await.unwrap();
    Arc::new(DenialCached::new(redis, Arc::new(DenialCache::default())))
}

#[tokio::test]
async fn two_gateways_on_one_redis_count_strikes_together_and_hold_each_others_bans() {
    let server = RedisServer::start();
    let stores = [connected(&server).await, connected(&server).await];
    let world = World::on(stores, with(abusers(10, shadows())));
    let offend = async |count: usize| {
        for turn in 0..count {
            let answered = world.send_through(turn % 2, ABUSER, "/200").await;
            assert!(!answered.is_banned(), "{turn}: {answered:?}");
        }
    };
    let banned_by_both = async || {
        for gateway in [0, 1] {
            let answered = world.send_through(gateway, ABUSER, "/200").await;
            assert!(answered.is_banned(), "{gateway}: {answered:?}");
            assert_eq!((answered.status(), &*answered.body), (200, &b"decoy"[..]));
        }
    };
    let free_again = async || {
        for gateway in [1, 0] {
            // These two are denied by the limit, so they are strikes as well.
            let answered = world.send_through(gateway, ABUSER, "/200").await;
            assert!(!answered.is_banned(), "{gateway}: {answered:?}");
        }
    };
    offend(3 + 10).await;
    // Whoever began the ban knows it at once; the other gateway still remembers that the limit
    // denied, but has forgotten it a second later.
    assert!(world.send_through(0, ABUSER, "/200").await.is_banned());
    world.clock.advance(Duration::from_secs(1));
    banned_by_both().await;
    world
        .clock
        .advance(10 * MINUTE - Duration::from_secs(1) - Duration::from_nanos(1));
    banned_by_both().await;
    world.clock.advance(Duration::from_nanos(1));
    free_again().await;
    offend(8).await;
    world.clock.advance(Duration::from_secs(1));
    banned_by_both().await;
    world
        .clock
        .advance(40 * MINUTE - Duration::from_secs(1) - Duration::from_nanos(1));
    banned_by_both().await;
    world.clock.advance(Duration::from_nanos(1));
    free_again().await;
    assert_eq!(world.bans().as_deref(), Some("2"));
    assert_eq!(world.seen.lock().len(), 3, "what the limit let through");
}

#[tokio::test]
async fn strikes_are_forgotten_as_time_passes() {
    let world = World::with(abusers(10, rejects()));
    world.offend(3 + 9, "/200").await;
    // A tenth of a minute for each strike; the tenth comes too late.
    world.clock.advance(MINUTE / 10);
    world.offend(1, "/200").await;
    world.offend(1, "/200").await;
    assert!(world.is_banned().await);
}

#[tokio::test]
async fn an_offence_that_is_forgotten_makes_no_ban_longer() {
    let world = World::with(abusers(1, rejects()));
    world.offend(3 + 1, "/200").await;
    assert!(world.is_banned().await);
    world.clock.advance(24 * 60 * MINUTE);
    world.offend(1, "/200").await;
    let banned = world.send(ABUSER, "/200").await;
    assert_eq!(banned.field("retry-after"), Some("600"));
}

/// Sixteen gateways see the strikes of one abuser at once.
#[test]
fn of_strikes_that_come_at_once_one_bans_and_only_once() {
    for _ in 0..50 {
        let world = World::with(abusers(4, rejects()));
        let backend = world.backend(0);
        let prepared = &world.access.0.bans.0[0];
        let ban = &prepared.policy.ban;
        let subject = ban.subject_of(ABUSER).unwrap();
        thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    let runtime = tokio::runtime::Builder::new_current_thread().build();
                    let _inside = runtime.as_ref().unwrap().enter();
                    check::count_strike(
                        prepared,
                        subject.clone(),
                        StrikeCause::Status(404),
                        &backend,
                    );
                });
            }
        });
        assert_eq!(world.bans().as_deref(), Some("1"));
        let check = smallvec::smallvec![ban.check(&subject)];
        let asked = world.stores[0].decide(&check, world.clock.now());
        let outcome = asked.now_or_never().unwrap().unwrap();
        let left = outcome.decisions[0].unwrap().retry_in;
        assert_eq!(Duration::from(left), 10 * MINUTE);
    }
}

#[tokio::test]
async fn of_strikes_that_two_gateways_see_at_once_one_bans_and_only_once() {
    let server = RedisServer::start();
    let stores = [connected(&server).await, connected(&server).await];
    let world = World::on(stores, with(abusers(4, rejects())));
    let prepared = &world.access.0.bans.0[0];
    let ban = &prepared.policy.ban;
    for host in 1..=50 {
        let subject = ban.subject_of(&format!("192.0.2.{host}")).unwrap();
        for turn in 0..16 {
            check::count_strike(
                prepared,
                subject.clone(),
                StrikeCause::Status(404),
                &world.backend(turn % 2),
            );
        }
        world.tasks.settled().await;
        let asked =
            world.stores[0].decide(&smallvec::smallvec![ban.check(&subject)], world.clock.now());
        let left = asked.await.unwrap().decisions[0].unwrap().retry_in;
        assert_eq!(Duration::from(left), 10 * MINUTE);
        assert_eq!(world.bans(), Some(host.to_string()));
    }
}

#[tokio::test]
async fn a_status_is_a_strike_and_a_success_is_none() {
    let statuses = StatusSet::from_iter(["404".parse().unwrap(), "5xx".parse().unwrap()]);
    let world = World::with(BanPolicy {
        statuses,
        limits: Vec::new(),
        ..abusers(2, rejects())
    });
    world.offend(1, "/404").await;
    world.offend(1, "/200").await;
    world.offend(1, "/503").await;
    assert!(world.is_banned().await);
}

#[tokio::test]
async fn a_request_is_one_strike_at_the_most_whatever_speaks_against_it() {
    let pattern = PathPattern::parse("/404").unwrap();
    let world = World::with(BanPolicy {
        statuses: StatusSet::from_iter(["404".parse().unwrap()]),
        paths: [pattern].into_iter().collect(),
        ..abusers(2, rejects())
    });
    world.offend(1, "/404").await;
    world.offend(1, "//%34%304/").await;
    assert!(world.is_banned().await);
}

#[tokio::test]
async fn a_shadow_ban_looks_like_the_real_thing_and_nothing_is_forwarded() {
    let world = World::with(abusers(1, shadows()));
    let real = world.send(ABUSER, "/200").await;
    world.offend(3, "/200").await;
    let decoy = world.send(ABUSER, "/200").await;
    assert_eq!(decoy.verdict().disposition, Disposition::Shadowed);
    assert_eq!((decoy.status(), &*decoy.body), (200, &b"decoy"[..]));
    assert_eq!(world.seen.lock().len(), 3);
    let names = |answered: &Answered| -> Vec<String> {
        let names = answered.head.headers.keys().map(ToString::to_string);
        names.filter(|name| name.starts_with("ratelimit")).collect()
    };
    assert_eq!(names(&decoy), names(&real));
    // As if the bucket were full but for this one request, though it is empty.
    assert_eq!(decoy.field("ratelimit"), real.field("ratelimit"));
    assert_eq!(decoy.field("retry-after"), None);
}

/// The app's number fell with each real response, and stood still in decoys. The field is known
/// only to the app, and so it is in no response where a decoy may take the app's place.
#[tokio::test]
async fn a_number_by_which_the_app_counts_is_in_no_response_where_the_banned_get_decoys() {
    const NAMES: [&str; 3] = ["x-ratelimit-remaining", "x-quota-left", "ratelimit-reset"];
    let world = World::with(abusers(1, shadows()));
    let real = [
        world.send(ABUSER, COUNTED).await,
        world.send(OTHER, COUNTED).await,
    ];
    world.offend(3, COUNTED).await;
    let decoy = world.send(ABUSER, COUNTED).await;
    assert_eq!(decoy.verdict().disposition, Disposition::Shadowed);
    for answered in real.iter().chain([&decoy]) {
        for name in NAMES {
            assert_eq!(answered.field(name), None);
        }
        // Weir counts the banned as well as others.
        assert!(answered.field("ratelimit").is_some());
    }
    // Where nobody gets decoys, all get what the app says.
    let world = World::with(abusers(1, rejects()));
    let real = world.send(OTHER, COUNTED).await;
    assert!(NAMES.iter().all(|name| real.field(name).is_some()));
}

/// Limits are not asked about them, and so nothing was told of limits.
#[tokio::test]
async fn who_is_blocked_or_banned_for_good_is_told_of_limits_as_others_are() {
    let block = AccessList::new(["203.0.113.9/32".parse().unwrap()], []);
    let lists = AccessLists {
        block,
        ..AccessLists::default()
    };
    for treatment in [shadows(), Treatment::Divert("trap".into())] {
        let blocking = World::of(AccessSettings {
            lists: lists.clone(),
            blocked: treatment.clone(),
            bans: Vec::new(),
        });
        let banning = World::with(abusers(1, treatment));
        let ban = &banning.access.0.bans.0[0];
        let mut standing = StandingBans::default();
        let banned = ban.policy.ban.banned(ABUSER).unwrap();
        standing.add("abusers", banned, Timestamp::MAX);
        ban.known.set_standing(standing);
        for world in [blocking, banning] {
            let real = world.send(OTHER, "/200").await;
            let kept_out = world.send(ABUSER, "/200").await;
            assert_ne!(kept_out.verdict().disposition, Disposition::Allowed);
            assert!(real.field("ratelimit").is_some());
            for name in ["ratelimit", "ratelimit-policy"] {
                assert_eq!(kept_out.field(name), real.field(name));
            }
        }
    }
    let rejecting = World::of(AccessSettings {
        lists,
        blocked: rejects(),
        bans: Vec::new(),
    });
    let rejected = rejecting.send(ABUSER, "/200").await;
    assert_eq!(rejected.field("ratelimit"), None);
}

/// They were counted among those that hold a place of the limit.
#[tokio::test]
async fn a_place_of_who_is_kept_out_is_never_shown_as_one_of_the_limit() {
    let block = AccessList::new(["203.0.113.9/32".parse().unwrap()], []);
    let world = World::of(AccessSettings {
        lists: AccessLists {
            block,
            ..AccessLists::default()
        },
        blocked: Treatment::Divert("trap".into()),
        bans: Vec::new(),
    });
    let quota = Quota::in_flight(1).unwrap();
    let limit = Limit::new("L", vec![KeySource::Global], quota, Missing::Skip, key());
    let policy = RoutePolicy {
        limits: vec![LimitUse::new(Arc::new(limit.unwrap()))],
        ..policy()
    };
    let metrics = Arc::clone(&world.metrics);
    let held = move || {
        let page = metrics.encode().unwrap();
        let gauge = page.lines().find(|it| it.starts_with("weir_leases_held{"));
        gauge.unwrap().rsplit(' ').next().unwrap().to_owned()
    };
    let shown = async |address: &str| {
        let held = held.clone();
        let upstream = service_fn(move |_: Request<Metered<Full<Bytes>>>| {
            let held = Full::from(held());
            async { Ok::<_, Infallible>(Response::new(held)) }
        });
        let store = Arc::clone(&world.stores[0]);
        let layer = RateLimitLayer::new(store, policy.clone(), &world.metrics)
            .with_access_control(&world.access);
        let service = ServiceBuilder::new().layer(layer).service(upstream);
        let mut request = Request::new(Full::from(""));
        request
            .extensions_mut()
            .insert(identity(address.parse().ok(), None));
        let body = service.oneshot(request).await.unwrap().into_body();
        body.collect().await.unwrap().to_bytes()
    };
    assert_eq!(shown(ABUSER).await, "0");
    assert_eq!(shown(OTHER).await, "1");
}

/// They were shown a full bucket each time.
#[tokio::test]
async fn who_is_kept_out_sees_units_go_and_come_back_as_others_do_and_costs_those_none() {
    let block = AccessList::new(["203.0.113.9/32".parse().unwrap()], []);
    let lists = AccessLists {
        block,
        ..AccessLists::default()
    };
    let ok = StatusSet::from_iter(["200".parse().unwrap()]);
    let shared = Limit::new("L", vec![KeySource::Global], quota(), Missing::Skip, key());
    let shared = LimitUse::new(Arc::new(shared.unwrap()));
    let by_status = LimitUse {
        spend: SpendWhen::On(ok),
        ..shared.clone()
    };
    for (limit, treatment) in [
        (&shared, shadows()),
        (&shared, Treatment::Divert("trap".into())),
        (&by_status, shadows()),
    ] {
        let world = World::of(AccessSettings {
            lists: lists.clone(),
            blocked: treatment,
            bans: vec![abusers(1, shadows())],
        });
        let policy = RoutePolicy {
            limits: vec![limit.clone()],
            ..policy()
        };
        let shown = async |address: &str| {
            let mut shown = Vec::new();
            for wait in [Duration::ZERO, MINUTE, MINUTE, MINUTE, 1000 * 60 * MINUTE] {
                world.clock.advance(wait);
                let answered = world.send_by(policy.clone(), 0, address, "/200").await;
                let field = answered.field("ratelimit").unwrap();
                shown.push((answered.status(), field.to_owned()));
            }
            shown.into_iter().unzip()
        };
        let (kept_out, told): (Vec<u16>, Vec<String>) = shown(ABUSER).await;
        let (real, of_others) = shown(OTHER).await;
        assert_eq!(kept_out, [200; 5]);
        assert_eq!(real, [200, 200, 200, 429, 200]);
        assert_eq!(told, of_others);
        let denied = world.metrics.encode().unwrap();
        let denied = denied
            .lines()
            .find(|line| line.starts_with("weir_decisions_total{") && line.contains("\"denied\""));
        assert!(
            denied.unwrap().ends_with(" 1"),
            "of the other alone: {denied:?}"
        );
        let page = world.metrics.encode().unwrap();
        let is_spent =
            |line: &&str| line.starts_with("weir_settlements_total{") && line.contains("\"spent\"");
        let spent = page.lines().find(is_spent);
        assert!(
            spent.is_none_or(|spent| spent.ends_with(" 4")),
            "of the other alone: {spent:?}"
        );
    }
}

/// They were queued for units that they had not taken. Where nobody more may wait, their limits denied
/// them, and so asked for no place and showed none.
#[tokio::test(start_paused = true)]
async fn who_is_kept_out_needs_no_turn_on_a_route_that_delays() {
    let delay = Delay::new(10 * MINUTE, NonZeroU32::MIN, true);
    let delay = Some(Arc::new(delay));
    let of = |burst, delay| {
        let limits = [
            ("L", Quota::new(burst, 10, Duration::from_secs(1))),
            ("P", Quota::in_flight(1)),
        ];
        let limits = limits.map(|(name, quota)| {
            let (per, quota) = (vec![KeySource::Global], quota.unwrap());
            let limit = Limit::new(name, per, quota, Missing::Skip, key());
            LimitUse::new(Arc::new(limit.unwrap()))
        });
        RoutePolicy {
            limits: limits.into(),
            delay,
            ..policy()
        }
    };
    // A decoy would take its own time.
    let world = World::with(abusers(1, Treatment::Divert("trap".into())));
    world.offend(3 + 1, "/200").await;
    for _ in 0..30 {
        let kept_out = world.send_by(of(30, None), 0, ABUSER, "/200").await;
        assert!(kept_out.is_banned());
    }
    for _ in 0..10 {
        world.answer(of(10, None), 0, OTHER, "/200").await;
    }
    let mut waits = Box::pin(world.answer(of(10, delay.clone()), 0, OTHER, "/200"));
    assert!((&mut waits).now_or_never().is_none());
    let start = Instant::now();
    let kept_out = world.send_by(of(10, delay), 0, ABUSER, "/200").await;
    assert!(kept_out.is_banned());
    assert_eq!(start.elapsed(), Duration::ZERO);
    let shown = kept_out.field("ratelimit").unwrap();
    assert!(shown.contains("\"P\";r=0"), "{shown}");
    assert_eq!(waits.await.status(), 200);
}

#[tokio::test]
async fn the_banned_get_what_is_configured() {
    let world = World::with(abusers(1, Treatment::Drop { in_kernel: false }));
    world.offend(4, "/200").await;
    let dropped = world.send(ABUSER, "/200").await;
    assert!(dropped.head.extensions.get::<NoResponse>().is_some());
    assert_eq!(dropped.verdict().disposition, Disposition::Dropped);

    let world = World::with(abusers(1, Treatment::Divert("trap".into())));
    world.offend(4, "/200").await;
    let diverted = world.send(ABUSER, "/200").await;
    assert_eq!(diverted.verdict().disposition, Disposition::Diverted);
    assert_eq!(world.seen.lock().last(), Some(&Some("trap".into())));
    assert_eq!(world.seen.lock().len(), 4);
}

/// Bans for good said 429 without Retry-After, after which clients come back at once.
#[tokio::test]
async fn the_banned_are_told_of_abnormal_usage_and_the_blocked_of_no_type() {
    const ABNORMAL: &str =
        "https://iana.org/assignments/http-problem-types#abnormal-usage-detected";
    let document = |answered: &Answered| -> (u16, serde_json::Value, bool) {
        let mut document: serde_json::Value = serde_json::from_slice(&answered.body).unwrap();
        assert_eq!(document["status"], answered.status());
        let tells_wait = answered.field("retry-after").is_some();
        (answered.status(), document["type"].take(), tells_wait)
    };
    let banning = World::with(abusers(1, rejects()));
    banning.offend(4, "/200").await;
    let banned = banning.send(ABUSER, "/200").await;
    assert_eq!(document(&banned), (429, ABNORMAL.into(), true));

    let ban = &banning.access.0.bans.0[0];
    let mut standing = StandingBans::default();
    let subject = ban.policy.ban.banned(OTHER).unwrap();
    standing.add("abusers", subject, Timestamp::MAX);
    ban.known.set_standing(standing);
    let for_good = banning.send(OTHER, "/200").await;
    assert_eq!(document(&for_good), (403, ABNORMAL.into(), false));

    let block = AccessList::new(["203.0.113.0/24".parse().unwrap()], []);
    let blocking = World::of(AccessSettings {
        lists: AccessLists {
            block,
            ..AccessLists::default()
        },
        blocked: rejects(),
        bans: Vec::new(),
    });
    // The status is the one that is configured, although no wait helps.
    let blocked = blocking.send(ABUSER, "/200").await;
    assert_eq!(document(&blocked), (429, "about:blank".into(), false));
}

#[tokio::test(start_paused = true)]
async fn a_tarpit_holds_before_it_answers_and_rejects_who_is_one_too_many() {
    let tarpit = Tarpit {
        hold: Duration::from_secs(30),
        most: NonZeroU32::MIN,
        rejection: Rejection::default(),
    };
    let world = World::with(abusers(1, Treatment::Tarpit(tarpit)));
    world.offend(4, "/200").await;
    let start = Instant::now();
    let held = world.send(ABUSER, "/200");
    let one_too_many = async {
        tokio::task::yield_now().await;
        let answered = world.send(ABUSER, "/200").await;
        (answered, start.elapsed())
    };
    let (held, (other, other_took)) = tokio::join!(held, one_too_many);
    assert_eq!(
        (held.status(), start.elapsed()),
        (429, Duration::from_secs(30))
    );
    assert_eq!(held.verdict().disposition, Disposition::Tarpitted);
    assert_eq!((other.status(), other_took), (429, Duration::ZERO));
    assert_eq!(other.verdict().disposition, Disposition::Denied);
}

#[tokio::test]
async fn a_ban_that_is_not_acted_upon_is_told_and_stops_nobody() {
    let world = World::with(BanPolicy {
        enforcement: Enforcement::NONE,
        statuses: StatusSet::from_iter(["404".parse().unwrap()]),
        ..abusers(1, shadows())
    });
    world.offend(1, "/404").await;
    let answered = world.send(ABUSER, "/200").await;
    assert_eq!(answered.status(), 200);
    assert_eq!(answered.verdict().disposition, Disposition::WouldDeny);
    assert!(answered.is_banned());
    assert_eq!(world.seen.lock().len(), 2);
}

/// On the first day everything is a dry run, which used to tell of no ban for denials.
#[tokio::test]
async fn what_a_dry_run_would_deny_is_a_strike_of_bans_in_a_dry_run_alone() {
    let would_ban = async |enforcement: Enforcement| {
        let world = World::with(BanPolicy {
            enforcement,
            ..abusers(2, rejects())
        });
        let mut policy = policy();
        for limit in &mut policy.limits {
            limit.enforcement = Enforcement::NONE;
        }
        for _ in 0..3 + 2 {
            let answered = world.send_by(policy.clone(), 0, ABUSER, "/200").await;
            assert!(!answered.is_banned(), "{answered:?}");
        }
        let answered = world.send_by(policy, 0, ABUSER, "/200").await;
        assert_eq!(answered.status(), 200);
        answered.is_banned()
    };
    assert!(would_ban(Enforcement::NONE).await);
    assert!(!would_ban(Enforcement::FULL).await);
}

#[tokio::test]
async fn the_allowed_are_neither_limited_nor_banned_and_the_blocked_get_nothing() {
    let list = |network: &str| AccessList::new([network.parse().unwrap()], []);
    let world = World::of(AccessSettings {
        lists: AccessLists {
            allow: list("203.0.113.9/32"),
            block: list("203.0.113.0/24"),
        },
        blocked: Treatment::Reject(Rejection {
            status: StatusCode::FORBIDDEN,
            ..Rejection::default()
        }),
        bans: vec![abusers(1, rejects())],
    });
    for _ in 0..10 {
        let answered = world.send(ABUSER, "/200").await;
        assert_eq!(
            (answered.status(), answered.verdict().listed),
            (200, Some("allow"))
        );
    }
    let blocked = world.send(OTHER, "/200").await;
    assert_eq!(
        (blocked.status(), blocked.verdict().listed),
        (403, Some("block"))
    );
    assert_eq!(blocked.field("retry-after"), None);
    assert_eq!(world.seen.lock().len(), 10);
    assert_eq!(world.send("192.0.2.1", "/200").await.verdict().listed, None);
}

#[tokio::test]
async fn a_denial_for_want_of_a_value_is_a_strike_and_the_banned_are_not_told_of_it() {
    let world = World::with(abusers(2, shadows()));
    let account = Limit::new("L", vec![KeySource::Account], quota(), Missing::Deny, key()).unwrap();
    let policy = RoutePolicy {
        limits: vec![LimitUse::new(Arc::new(account))],
        ..policy()
    };
    let send = async || world.send_by(policy.clone(), 0, ABUSER, "/200").await;
    assert_eq!(send().await.status(), 403);
    assert_eq!(send().await.status(), 403);
    let decoy = send().await;
    assert_eq!((decoy.status(), &*decoy.body), (200, &b"decoy"[..]));
}

/// Fails every call.
struct Broken;

impl Store for Broken {
    fn decide(&self, _: &Batch, _: Timestamp) -> StoreFuture<Outcome> {
        StoreFuture::failed(StoreError::OutOfReach)
    }

    fn refund(&self, _: OwedBatch, _: Timestamp) -> StoreFuture<()> {
        StoreFuture::failed(StoreError::OutOfReach)
    }

    fn reset(&self, _: BucketKeys) -> StoreFuture<()> {
        StoreFuture::failed(StoreError::OutOfReach)
    }
}

#[tokio::test]
async fn without_the_store_nobody_passes_a_ban_unless_it_is_a_dry_run() {
    let unlimited = || RoutePolicy {
        limits: Vec::new(),
        ..policy()
    };
    let stores = || -> [Arc<dyn Store>; 2] { [Arc::new(Broken), Arc::new(Broken)] };
    let world = World::on(stores(), with(abusers(1, rejects())));
    let answered = world.send_by(unlimited(), 0, ABUSER, "/200").await;
    assert_eq!(answered.status(), 503);
    let dry = BanPolicy {
        enforcement: Enforcement::NONE,
        ..abusers(1, rejects())
    };
    let world = World::on(stores(), with(dry));
    let answered = world.send_by(unlimited(), 0, ABUSER, "/200").await;
    assert_eq!(answered.status(), 200);
    assert_eq!(answered.verdict().disposition, Disposition::FailedOpen);
}

/// Is there for all but for what begins a ban.
struct Faltering {
    memory: Memory,
    falters: AtomicBool,
}

impl Store for Faltering {
    fn decide(&self, batch: &Batch, now: Timestamp) -> StoreFuture<Outcome> {
        let begins = batch
            .iter()
            .any(|transaction| transaction.mode == Mode::SpendOnly);
        if begins && self.falters.load(Ordering::Relaxed) {
            return StoreFuture::ready(Outcome {
                decisions: smallvec::smallvec![None; batch.len()],
                source: DecisionSource::FailedOpen,
            });
        }
        self.memory.decide(batch, now)
    }

    fn refund(&self, owed: OwedBatch, now: Timestamp) -> StoreFuture<()> {
        self.memory.refund(owed, now)
    }

    fn reset(&self, keys: BucketKeys) -> StoreFuture<()> {
        self.memory.reset(keys)
    }
}

/// The offence used to be counted before, and the ban that came after all was four times as long.
#[tokio::test]
async fn a_ban_that_the_store_did_not_begin_is_no_offence_and_is_not_told() {
    let max_buckets = NonZeroUsize::new(1000).unwrap();
    let store = Arc::new(Faltering {
        memory: Memory::new(MemorySettings { max_buckets }),
        falters: AtomicBool::new(true),
    });
    let stores: [Arc<dyn Store>; 2] = [Arc::clone(&store) as _, Arc::clone(&store) as _];
    let world = World::on(stores, with(abusers(1, rejects())));
    world.offend(3 + 1, "/200").await;
    assert!(!world.is_banned().await);
    assert_eq!(world.bans().as_deref(), Some("0"));
    store.falters.store(false, Ordering::Relaxed);
    // Until the turn has come back.
    world.clock.advance(Duration::from_secs(5));
    world.offend(1, "/200").await;
    let banned = world.send(ABUSER, "/200").await;
    assert_eq!(banned.field("retry-after"), Some("600"));
    assert_eq!(world.bans().as_deref(), Some("1"));
}

/// When a store stands in for one that is slow, a turn is had at each of them; two bans used to be
/// added up then.
#[tokio::test]
async fn of_two_turns_at_once_the_first_one_bans() {
    let world = World::with(abusers(1, rejects()));
    world.offend(3 + 1, "/200").await;
    let prepared = &world.access.0.bans.0[0];
    let ban = &prepared.policy.ban;
    let subject = ban.subject_of(ABUSER).unwrap();
    let late = world.stores[0].decide(&ban.begin_for(&subject, 2), world.clock.now());
    assert!(!ban.has_begun(&late.await.unwrap().decisions));
    let banned = world.send(ABUSER, "/200").await;
    assert_eq!(banned.field("retry-after"), Some("600"));
    world.clock.advance(10 * MINUTE);
    world.offend(1, "/200").await;
    let second = world.send(ABUSER, "/200").await;
    assert_eq!(second.field("retry-after"), Some("2400"), "the second");
}

#[tokio::test]
async fn a_banned_request_takes_nothing_from_limits() {
    let statuses = StatusSet::from_iter(["404".parse().unwrap()]);
    let world = World::with(BanPolicy {
        statuses,
        ..abusers(1, rejects())
    });
    world.offend(1, "/404").await;
    for _ in 0..5 {
        assert!(world.is_banned().await);
    }
    world.clock.advance(10 * MINUTE);
    let after = world.send(ABUSER, "/200").await;
    let status = after.field("ratelimit").unwrap();
    assert!(status.starts_with("\"L\";r=1;"), "{status}");
}

/// Strikes used to be counted off the response's path: of clients that ask one request after the
/// other, half got one more answer in most rounds, even through the same gateway.
#[tokio::test]
async fn with_redis_a_ban_holds_from_the_next_request_on_through_every_gateway() {
    let server = RedisServer::start();
    let stores = [connected(&server).await, connected(&server).await];
    let account = Limit::new("L", vec![KeySource::Account], quota(), Missing::Deny, key()).unwrap();
    let wanting = RoutePolicy {
        limits: vec![LimitUse::new(Arc::new(account))],
        ..policy()
    };
    let shadowing = RoutePolicy {
        on_denied: shadow(),
        ..policy()
    };
    let kinds = [
        ("/404", 2, for_404(abusers(2, rejects())), policy()),
        ("/trap", 1, for_the_trap(abusers(1, rejects())), policy()),
        ("/200", 3 + 2, abusers(2, shadows()), policy()),
        ("/200", 3 + 2, abusers(2, rejects()), shadowing),
        ("/200", 2, abusers(2, rejects()), wanting),
    ];
    for (kind, (path, strikes, ban, policy)) in kinds.into_iter().enumerate() {
        let world = World::on(stores.clone(), with(ban));
        for round in 0..50 {
            let address = format!("10.0.{kind}.{round}");
            let answer = |gateway| world.answer(policy.clone(), gateway, &address, path);
            for turn in 0..strikes {
                let answered = answer(turn % 2).await;
                assert!(!answered.is_banned(), "{kind}, {round}: {answered:?}");
            }
            // The gateway that began it, and then the other.
            let began = (strikes - 1) % 2;
            assert!(answer(began).await.is_banned(), "{kind}, {round}");
            if path != "/200" || strikes == 2 {
                assert!(answer(1 - began).await.is_banned(), "{kind}, {round}");
            }
        }
    }
}

/// Takes its time to count strikes.
struct SlowToStrike {
    memory: Memory,
    may_go_on: Arc<Semaphore>,
}

impl Store for SlowToStrike {
    fn decide(&self, batch: &Batch, now: Timestamp) -> StoreFuture<Outcome> {
        let answer = self.memory.decide(&batch.clone(), now);
        if !batch
            .iter()
            .any(|transaction| transaction.key.as_str().starts_with(":strikes:"))
        {
            return answer;
        }
        let may_go_on = Arc::clone(&self.may_go_on);
        StoreFuture::waiting(async move {
            may_go_on.acquire().await.unwrap().forget();
            answer.await
        })
    }

    fn refund(&self, owed: OwedBatch, now: Timestamp) -> StoreFuture<()> {
        self.memory.refund(owed, now)
    }

    fn reset(&self, keys: BucketKeys) -> StoreFuture<()> {
        self.memory.reset(keys)
    }
}

/// A world whose store counts a strike for each permit.
fn slow_to_strike(ban: BanPolicy) -> (World, Arc<Semaphore>) {
    let may_go_on = Arc::new(Semaphore::new(0));
    let store = Arc::new(SlowToStrike {
        memory: Memory::new(MemorySettings {
            max_buckets: NonZeroUsize::new(1000).unwrap(),
        }),
        may_go_on: Arc::clone(&may_go_on),
    });
    (
        World::on([Arc::clone(&store) as _, store], with(ban)),
        may_go_on,
    )
}

#[tokio::test]
async fn an_answer_waits_for_its_strike_and_no_other_answer_does() {
    let (world, may_go_on) = slow_to_strike(for_404(abusers(1, rejects())));
    let answer = |path| Box::pin(world.answer(policy(), 0, ABUSER, path));
    let mut struck = answer("/404");
    assert!((&mut struck).now_or_never().is_none());
    assert!(answer("/200").now_or_never().is_some());
    may_go_on.add_permits(1);
    assert_eq!(struck.await.status(), 404);
    assert!(answer("/200").await.is_banned());
}

#[tokio::test]
async fn the_strike_of_a_client_that_leaves_is_counted() {
    let (world, may_go_on) = slow_to_strike(for_404(abusers(1, rejects())));
    let mut struck = Box::pin(world.answer(policy(), 0, ABUSER, "/404"));
    assert!((&mut struck).now_or_never().is_none());
    drop(struck);
    may_go_on.add_permits(1);
    world.tasks.settled().await;
    assert!(world.is_banned().await);
}

#[tokio::test]
async fn no_answer_waits_for_the_strike_of_a_ban_that_is_not_acted_upon() {
    let (world, may_go_on) = slow_to_strike(BanPolicy {
        enforcement: Enforcement::NONE,
        ..for_404(abusers(1, rejects()))
    });
    let answered = world.answer(policy(), 0, ABUSER, "/404").now_or_never();
    assert_eq!(answered.map(|it| it.status()), Some(404));
    may_go_on.add_permits(1);
    world.tasks.settled().await;
    assert!(world.is_banned().await);
}

#[tokio::test]
async fn of_several_bans_that_hold_the_first_says_what_the_banned_get() {
    let forbids = Treatment::Reject(Rejection {
        status: StatusCode::FORBIDDEN,
        ..Rejection::default()
    });
    let short = for_404(banning("first", 1, forbids));
    let long = for_404(banning("second", 1, Treatment::Drop { in_kernel: false }));
    for (bans, name, status) in [
        ([short.clone(), long.clone()], "first", 403),
        ([long, short], "second", 444),
    ] {
        let world = World::of(with_all(bans));
        world.offend(1, "/404").await;
        let banned = world.send(ABUSER, "/200").await;
        assert_eq!(banned.verdict().banned_by.as_deref(), Some(name));
        assert_eq!(banned.status(), status);
    }
}

#[tokio::test]
async fn a_dry_run_that_would_hold_hides_no_ban_that_does() {
    let dry = BanPolicy {
        enforcement: Enforcement::NONE,
        ..for_404(banning("dry", 1, Treatment::Drop { in_kernel: false }))
    };
    let world = World::of(with_all([dry, for_404(abusers(1, rejects()))]));
    world.offend(1, "/404").await;
    let banned = world.send(ABUSER, "/200").await;
    assert!(banned.is_banned());
    assert_eq!(banned.status(), 429);
}

/// A scanner that goes on while it is banned would be banned for what nobody answered.
#[tokio::test]
async fn no_path_is_a_strike_while_another_ban_holds() {
    let trap = for_the_trap(banning("trap", 1, Treatment::Drop { in_kernel: false }));
    let world = World::of(with_all([trap, for_404(abusers(1, rejects()))]));
    world.offend(1, "/404").await;
    for _ in 0..3 {
        assert!(world.send(ABUSER, "/trap").await.is_banned());
    }
    world.clock.advance(10 * MINUTE);
    assert_eq!(world.send(ABUSER, "/200").await.status(), 200);
    // Without the other ban it is one.
    world.offend(1, "/trap").await;
    let banned = world.send(ABUSER, "/200").await;
    assert_eq!(banned.verdict().banned_by.as_deref(), Some("trap"));
}

/// A ban in a dry run would otherwise tell of one strike after the other, and of offences that a
/// ban in force would not have counted.
#[tokio::test]
async fn who_would_be_banned_already_earns_no_strike_of_that_ban() {
    let world = World::with(BanPolicy {
        enforcement: Enforcement::NONE,
        ..for_404(abusers(1, rejects()))
    });
    for _ in 0..5 {
        world.send(ABUSER, "/404").await;
    }
    assert_eq!(world.bans().as_deref(), Some("1"));
    world.clock.advance(10 * MINUTE);
    assert!(!world.is_banned().await, "no second offence was counted");
}

/// A hundred a minute, and twenty at once.
fn a_hundred_a_minute() -> RoutePolicy {
    let quota = Quota::new(20, 100, MINUTE).unwrap();
    let limit = Limit::new("L", per_address(), quota, Missing::Skip, key()).unwrap();
    RoutePolicy {
        limits: vec![LimitUse::new(Arc::new(limit))],
        ..policy()
    }
}

/// Ten strikes a minute ban, and twenty workers may share a subject.
fn heeding_waits() -> BanPolicy {
    BanPolicy {
        workers: 20,
        ..abusers(10, rejects())
    }
}

/// Sends for so long from workers of one address, each of which sends again at once, or when the
/// wait that it is told is over. Returns how many requests passed.
async fn obey(world: &World, workers: usize, span: Duration) -> usize {
    let start = world.clock.now();
    let mut turns = vec![start; workers];
    let mut passed = 0;
    loop {
        let turn = turns.iter_mut().min().unwrap();
        if turn.since(start) >= span.into() {
            return passed;
        }
        world.clock.set(*turn);
        let answered = world.send_by(a_hundred_a_minute(), 0, ABUSER, "/200").await;
        assert!(
            !answered.is_banned(),
            "of {workers} workers, after {passed}"
        );
        let wait = answered.field("retry-after").map(|it| it.parse().unwrap());
        passed += usize::from(wait.is_none());
        let wait = wait.map_or(Duration::from_millis(5), Duration::from_secs);
        *turn = *turn + wait.into();
    }
}

/// One thread that waited was banned after ten seconds, and ten threads at once.
#[tokio::test]
async fn workers_that_wait_as_they_are_told_are_never_banned() {
    for workers in [1, 10, 20] {
        let world = World::with(heeding_waits());
        assert!(obey(&world, workers, 5 * MINUTE).await > 100);
        assert_eq!(world.bans().as_deref(), Some("0"));
    }
}

#[tokio::test]
async fn a_client_that_does_not_wait_is_banned_by_its_thirtieth_denial() {
    let world = World::with(heeding_waits());
    let mut denied = 0;
    loop {
        let answered = world.send_by(a_hundred_a_minute(), 0, ABUSER, "/200").await;
        if answered.is_banned() {
            break;
        }
        denied += usize::from(answered.status() == 429);
        assert!(denied <= 30);
        world.clock.advance(Duration::from_millis(20));
    }
    assert_eq!(denied, 30);
}

/// As one that tries another name to log in by each time: no bucket denies it twice.
#[tokio::test]
async fn thirty_denials_by_thirty_buckets_ban_a_client_as_thirty_by_one_do() {
    let world = World::with(heeding_waits());
    let once = Quota::new(1, 1, MINUTE).unwrap();
    let per_name = vec![KeySource::Query("name".into())];
    let limit = Limit::new("L", per_name, once, Missing::Skip, key()).unwrap();
    let by_name = RoutePolicy {
        limits: vec![LimitUse::new(Arc::new(limit))],
        ..policy()
    };
    for name in 0..30 {
        for status in [200, 429] {
            let path = format!("/200?name={name}");
            let answered = world.send_by(by_name.clone(), 0, ABUSER, &path).await;
            assert!(!answered.is_banned(), "{name}");
            assert_eq!(answered.status(), status, "{name}");
        }
    }
    assert!(world.is_banned().await);
}

#[tokio::test]
async fn the_waits_of_a_subject_are_no_strikes_of_another_that_shares_its_bucket() {
    let world = World::with(BanPolicy {
        workers: 1,
        ..abusers(1, rejects())
    });
    let limit = Limit::new("L", vec![KeySource::Global], quota(), Missing::Skip, key());
    let shared = RoutePolicy {
        limits: vec![LimitUse::new(Arc::new(limit.unwrap()))],
        ..policy()
    };
    let send = |address| world.send_by(shared.clone(), 0, address, "/200");
    for _ in 0..3 {
        send(ABUSER).await;
    }
    for address in [ABUSER, OTHER] {
        assert_eq!(send(address).await.status(), 429);
    }
    assert_eq!(world.bans().as_deref(), Some("0"));
    send(ABUSER).await;
    assert!(send(ABUSER).await.is_banned());
    assert!(!send(OTHER).await.is_banned());
}

/// Nobody asked its client to wait.
#[tokio::test]
async fn every_denial_that_tells_no_wait_is_a_strike() {
    let world = World::with(heeding_waits());
    let shadowing = RoutePolicy {
        on_denied: shadow(),
        ..policy()
    };
    for _ in 0..3 + 10 {
        let answered = world.send_by(shadowing.clone(), 0, ABUSER, "/200").await;
        assert!(!answered.is_banned());
    }
    assert!(world.is_banned().await);
}

/// It was told what the route says, and waited for that.
#[tokio::test]
async fn a_client_that_waits_as_the_routes_own_field_tells_is_never_banned() {
    let world = World::with(BanPolicy {
        workers: 1,
        ..abusers(1, rejects())
    });
    let own = Rejection {
        headers: HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static("2"))]),
        ..Rejection::default()
    };
    let telling = RoutePolicy {
        on_denied: OnDenied::Reject(own),
        ..policy()
    };
    for _ in 0..20 {
        let answered = world.send_by(telling.clone(), 0, ABUSER, "/200").await;
        assert!(!answered.is_banned());
        world.clock.advance(Duration::from_secs(2));
    }
    assert_eq!(world.bans().as_deref(), Some("0"));
}
