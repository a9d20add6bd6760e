//! A real Redis Cluster: the contracts of all stores, moving slots, and nodes that stop and die.

use std::num::NonZeroUsize;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

use weir_limit::{BucketKey, Claim, Claims};
use weir_store::tests::lease_contract;
use weir_store::{GuardSettings, Guarded, Leases, Memory, MemorySettings, OnFailure};
use weir_testing::RedisCluster;

use super::super::cluster::slot_of;
use super::*;

/// Three primaries that all tests share which leave them as they are.
static SHARED: LazyLock<RedisCluster> = LazyLock::new(|| RedisCluster::start(0));

fn settings(cluster: &RedisCluster) -> RedisSettings {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let mut nodes = RedisNodes::default();
    nodes.add(&cluster.urls()[0]).unwrap();
    let settings = RedisSettings::cluster(nodes).unwrap();
    settings.with_prefix(&format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed)))
}

/// A handle with keys of its own.
struct OnCluster(Redis);

impl OnCluster {
    async fn new() -> Self {
        Self(connect(settings(&SHARED)).await)
    }
}

impl Subject for OnCluster {
    fn store(&self) -> &dyn Store {
        &self.0
    }

    fn settled(&self) -> StoreFuture<()> {
        let client = Arc::clone(&self.0.client);
        StoreFuture::waiting(async move {
            let settled = || client.background_calls() == 0;
            eventually("background calls end", settled).await;
            Ok(())
        })
    }
}

mod contract {
    use super::*;

    store_contract!(OnCluster::new().await);
}

impl lease_contract::Subject for OnCluster {
    fn leases(&self) -> &dyn Leases {
        &self.0
    }

    fn settled(&self) -> StoreFuture<()> {
        let leases = self.0.renewer.leases();
        StoreFuture::waiting(async move {
            eventually("releases end", || leases.unreleased() == 0).await;
            Ok(())
        })
    }
}

mod leases {
    use super::*;
    use weir_store::tests::lease_contract::lease_contract;

    lease_contract!(OnCluster::new().await);
}

/// A key of this prefix in a slot of this primary.
fn key_on(cluster: &RedisCluster, prefix: &str, primary: usize, name: &str) -> String {
    marked_key_on(cluster, prefix, primary, name, "")
}

/// A key of this prefix, of which what is kept under this mark is in a slot of this primary.
fn marked_key_on(
    cluster: &RedisCluster,
    prefix: &str,
    primary: usize,
    name: &str,
    mark: &str,
) -> String {
    let mut keys = (0..).map(|number| format!("{name}:{number}"));
    let is_there = |key: &String| {
        let slot = slot_of(format!("{prefix}:{key}{mark}").as_bytes());
        cluster.primary_of(slot) == primary
    };
    keys.find(is_there).unwrap()
}

fn of_hundred(key: &str) -> Transaction {
    Transaction {
        quota: hundred(5),
        ..spend(key, 1)
    }
}

fn of_thousand(key: &str) -> Transaction {
    let quota = Quota::new(1000, 1, Duration::from_secs(3600)).unwrap();
    Transaction {
        quota,
        ..spend(key, 1)
    }
}

/// What is left of a bucket of a thousand, after a time in which less than a unit comes back: what
/// is given back late leaves the rest of that time owed.
async fn left(store: &impl Store, key: &str) -> u64 {
    let look = Transaction {
        mode: Mode::Peek,
        ..of_thousand(key)
    };
    let later = NOW + Nanos::from_secs(60);
    let outcome = store.decide(&batch([look]), later).await.unwrap();
    outcome.decisions[0].unwrap().remaining
}

async fn at_rest(gateways: [&Redis; 2]) {
    let calls = || gateways.iter().map(|redis| redis.background_calls());
    eventually("background calls end", || calls().sum::<usize>() == 0).await;
}

#[tokio::test]
async fn batches_over_three_nodes_are_exact_and_a_denial_leaves_nothing_taken() {
    let settings = settings(&SHARED);
    let gateways = [
        connect(settings.clone()).await,
        connect(settings.clone()).await,
    ];
    let on = |primary, name: &str| key_on(&SHARED, &settings.prefix, primary, name);
    for round in 0..100 {
        let narrow = on(round % 3, &format!("N{round}"));
        let wide = [1, 2].map(|next| on((round + next) % 3, &format!("W{round}")));
        let requests = (0..160).map(|number| {
            let all = [
                of_thousand(&wide[0]),
                of_hundred(&narrow),
                of_thousand(&wide[1]),
            ];
            gateways[number % 2].decide(&batch(all), NOW)
        });
        let outcomes = join_all(requests).await;
        let allowed = outcomes.iter().flatten().filter(|o| o.is_allowed());
        assert_eq!(allowed.count(), 100, "round {round}");
        assert!(outcomes.iter().all(Result::is_ok), "round {round}");
        at_rest([&gateways[0], &gateways[1]]).await;
        for key in &wide {
            assert_eq!(left(&gateways[0], key).await, 900, "round {round}");
        }
    }
}

#[tokio::test]
async fn slots_that_move_make_no_bucket_inexact() {
    let cluster = Arc::new(RedisCluster::start(0));
    let settings = settings(&cluster);
    let gateways = [
        connect(settings.clone()).await,
        connect(settings.clone()).await,
    ];
    let whole = |key: &str| format!("{}:{key}", settings.prefix);
    for round in 0..100 {
        let narrow = format!("N:{round}");
        let wide = key_on(&cluster, &settings.prefix, 2, &format!("W{round}"));
        let slot = slot_of(whole(&narrow).as_bytes());
        let from = cluster.primary_of(slot);
        let to = (from + 1) % 3;
        let moving = Arc::clone(&cluster);
        let (begun, wait_begun) = tokio::sync::oneshot::channel();
        let migration = tokio::task::spawn_blocking(move || {
            moving.begin_migration(slot, from, to);
            let _ = begun.send(());
            moving.migrate_keys(slot, from, to);
            // What was taken at the old node in between.
            moving.migrate_keys(slot, from, to);
            moving.end_migration(slot, from, to);
        });
        let mut allowed = 0;
        let mut begun = Some(wait_begun);
        for wave in 0..4 {
            if wave == 1 {
                begun.take().unwrap().await.unwrap();
            }
            let requests = (0..40).map(|number| {
                let both = [of_hundred(&narrow), of_thousand(&wide)];
                gateways[number % 2].decide(&batch(both), NOW)
            });
            for outcome in join_all(requests).await {
                allowed += u64::from(outcome.unwrap().is_allowed());
            }
        }
        migration.await.unwrap();
        at_rest([&gateways[0], &gateways[1]]).await;
        assert_eq!(allowed, 100, "round {round}");
        assert_eq!(left(&gateways[1], &wide).await, 900, "round {round}");
    }
}

/// All algorithms, of which some need several commands at once, while the slot is half moved.
#[tokio::test]
async fn a_slot_that_is_half_moved_serves_all_algorithms() {
    let cluster = RedisCluster::start(0);
    let settings = settings(&cluster);
    let redis = connect(settings.clone()).await;
    for round in 0..6 {
        let key = format!("L:{round}");
        let transaction = || Transaction {
            quota: hundred(round),
            ..spend(&key, 10)
        };
        let mark = match round {
            0 | 1 => "%f",
            2 => "%w",
            3 | 4 => "%l",
            _ => "",
        };
        let slot = slot_of(format!("{}:{key}{mark}", settings.prefix).as_bytes());
        let from = cluster.primary_of(slot);
        let to = (from + 1) % 3;
        let ask = async || redis.decide(&batch([transaction()]), NOW).await.unwrap();
        for _ in 0..4 {
            assert!(ask().await.is_allowed());
        }
        cluster.begin_migration(slot, from, to);
        for _ in 0..2 {
            assert!(ask().await.is_allowed(), "still there, algorithm {round}");
        }
        cluster.migrate_keys(slot, from, to);
        for _ in 0..3 {
            assert!(ask().await.is_allowed(), "asked for, algorithm {round}");
        }
        redis.refund(owed([transaction()]), NOW).await.unwrap();
        assert!(ask().await.is_allowed(), "given back, algorithm {round}");
        cluster.end_migration(slot, from, to);
        assert!(ask().await.is_allowed(), "moved, algorithm {round}");
        assert!(!ask().await.is_allowed(), "full, algorithm {round}");
        redis.reset([key.as_str().into()].into()).await.unwrap();
        assert!(ask().await.is_allowed(), "reset, algorithm {round}");
    }
}

/// A gateway with a guard, as a worker has it.
struct Gateway {
    guarded: Guarded<Redis>,
    recorder: Arc<Recorder>,
    reachability: Arc<Reachability>,
}

impl Gateway {
    /// A machine that pauses for a moment keeps its deadline; a stopped node does not.
    async fn new(settings: RedisSettings, on_failure: OnFailure) -> Self {
        Self::with_timeout(Duration::from_secs(5), settings, on_failure).await
    }

    async fn with_timeout(
        timeout: Duration,
        settings: RedisSettings,
        on_failure: OnFailure,
    ) -> Self {
        let recorder = Arc::<Recorder>::default();
        let observer: Arc<dyn Observer> = Arc::<Recorder>::clone(&recorder);
        let reachability = Arc::new(Reachability::new(observer));
        let max_buckets = NonZeroUsize::new(1000).unwrap();
        let guarded = Guarded::spawn(
            connect(settings).await,
            GuardSettings {
                timeout,
                on_failure,
                ..GuardSettings::default()
            },
            Arc::clone(&reachability),
            Arc::new(Memory::new(MemorySettings { max_buckets })),
        );
        Self {
            guarded,
            recorder,
            reachability,
        }
    }

    async fn admit(&self, all: impl IntoIterator<Item = Transaction>) -> Option<Outcome> {
        self.guarded.admit(&batch(all), NOW).await.ok()
    }

    /// How many refunds were carried out.
    fn refunds(&self) -> usize {
        let calls = self.recorder.calls();
        let refunds = calls.iter().filter(|call| **call == (Call::Refund, true));
        refunds.count()
    }
}

/// Of 160 requests by 40 clients for a bucket of 100, through two gateways, 100 pass.
async fn assert_exact(gateways: &[Gateway; 2], key: &str) {
    let mut allowed = 0;
    for _ in 0..4 {
        let requests = (0..40).map(|number| gateways[number % 2].admit([of_hundred(key)]));
        for outcome in join_all(requests).await {
            let outcome = outcome.expect("an answer");
            assert_eq!(outcome.source, DecisionSource::Store);
            allowed += u64::from(outcome.is_allowed());
        }
    }
    assert_eq!(allowed, 100);
}

#[tokio::test]
async fn a_stopped_node_takes_nothing_from_buckets_of_others_and_leaves_nothing_taken() {
    let cluster = RedisCluster::start(0);
    let settings = settings(&cluster);
    let on = |primary, name: &str| key_on(&cluster, &settings.prefix, primary, name);
    let gateways = [
        Gateway::new(settings.clone(), OnFailure::Deny).await,
        Gateway::new(settings.clone(), OnFailure::Deny).await,
    ];
    let (here, there) = (on(0, "H"), on(1, "T"));
    cluster.stop(1);
    // What is asked before the node is given up takes on the one that answers.
    let both = || [of_thousand(&here), of_thousand(&there)];
    let mut failed = 0;
    eventually_some("the node is given up", async || {
        let answers = gateways.iter().map(|gateway| gateway.admit(both()));
        failed += join_all(answers)
            .await
            .iter()
            .filter(|o| o.is_none())
            .count();
        let given_up = |gateway: &Gateway| !gateway.reachability.is_reachable();
        gateways.iter().all(given_up).then_some(())
    })
    .await;
    assert!(failed > 0);
    for gateway in &gateways {
        let unreachable = gateway.reachability.unreachable_nodes();
        assert_eq!(unreachable, [Arc::from(cluster.address(1))]);
        assert!(
            gateway.guarded.is_reachable(),
            "the store as a whole is not given up"
        );
        assert!(gateway.recorder.changes().is_empty());
    }
    for round in 0..100 {
        assert_exact(&gateways, &on(2 * (round % 2), &format!("E{round}"))).await;
        assert!(gateways[0].admit(both()).await.is_none());
    }
    // Leases elsewhere are renewed and released meanwhile.
    let place = marked_key_on(&cluster, &settings.prefix, 0, "L", lease_commands::MARK);
    let claim = || Claims::from([Claim::new(place.as_str().into(), NonZeroU64::MIN)]);
    let leased = gateways[0].guarded.acquire(claim(), NOW).await.unwrap();
    assert!(leased.outcome.is_allowed());
    drop(leased);
    eventually_some("the place is free", async || {
        let leased = gateways[1].guarded.acquire(claim(), NOW).await.unwrap();
        leased.outcome.is_allowed().then_some(())
    })
    .await;
    eventually_some("what was taken is given back", async || {
        (left(gateways[0].guarded.get_ref(), &here).await == 1000).then_some(())
    })
    .await;
    cluster.resume(1);
    eventually_some("the node is used again", async || {
        let outcome = gateways[0].admit(both()).await;
        outcome
            .is_some_and(|outcome| outcome.is_allowed())
            .then_some(())
    })
    .await;
    eventually_some("only the last one is taken", async || {
        (left(gateways[0].guarded.get_ref(), &here).await == 999).then_some(())
    })
    .await;
}

/// Each late answer used to be given back by way of the node's open breaker, and so not at all.
#[tokio::test]
async fn what_a_frozen_node_took_from_requests_that_were_denied_is_given_back_when_it_goes_on() {
    let cluster = RedisCluster::start(0);
    let settings = settings(&cluster);
    let on = |primary, name: &str| key_on(&cluster, &settings.prefix, primary, name);
    // Less than a ping may take: else that gives up the connection on which the answers come late.
    let timeout = Duration::from_millis(500);
    let gateway = Gateway::with_timeout(timeout, settings.clone(), OnFailure::Deny).await;
    let (here, there) = (on(0, "H"), on(1, "T"));
    let both = || [of_thousand(&here), of_thousand(&there)];
    let store = gateway.guarded.get_ref();
    assert!(
        store
            .decide(&batch(both()), NOW)
            .await
            .unwrap()
            .is_allowed()
    );
    cluster.stop(1);
    let answers = join_all((0..24).map(|_| gateway.admit(both()))).await;
    assert!(answers.iter().all(Option::is_none));
    assert!(!gateway.reachability.is_reachable(), "the node is given up");
    cluster.resume(1);
    // One refund for each node, as the one that answered in time gets its own at once.
    eventually("all is given back", || gateway.refunds() == 2 * 24).await;
    eventually("the node is used again", || {
        gateway.reachability.is_reachable()
    })
    .await;
    for key in [&here, &there] {
        assert_eq!(left(store, key).await, 999);
    }
}

#[tokio::test]
async fn a_key_of_another_type_gives_up_no_node() {
    let cluster = RedisCluster::start(0);
    let settings = settings(&cluster);
    let on = |primary, name: &str| key_on(&cluster, &settings.prefix, primary, name);
    let gateway = Gateway::new(settings.clone(), OnFailure::Deny).await;
    let (bad, good) = (on(1, "B"), on(1, "G"));
    cluster.command(1, &["LPUSH", &format!("{}:{bad}", settings.prefix), "x"]);
    for _ in 0..10 {
        assert!(gateway.admit([of_hundred(&bad)]).await.is_none());
        let both = [of_hundred(&bad), of_hundred(&good)];
        assert!(gateway.admit(both).await.is_none());
    }
    assert!(gateway.reachability.is_reachable());
    assert_exact_alone(&gateway, &good).await;
}

/// Of a bucket of a hundred, nothing is taken yet.
async fn assert_exact_alone(gateway: &Gateway, key: &str) {
    let requests = (0..120).map(|_| gateway.admit([of_hundred(key)]));
    let outcomes = join_all(requests).await.into_iter().map(Option::unwrap);
    assert_eq!(outcomes.filter(Outcome::is_allowed).count(), 100);
}

#[tokio::test]
async fn a_node_out_of_reach_leaves_a_batch_to_memory_as_a_whole() {
    let cluster = RedisCluster::start(0);
    let settings = settings(&cluster);
    let on = |primary, name: &str| key_on(&cluster, &settings.prefix, primary, name);
    let gateway = Gateway::new(settings.clone(), OnFailure::Local).await;
    let (here, there) = (on(0, "H"), on(1, "T"));
    cluster.kill(1);
    eventually("the node is given up", || {
        !gateway.reachability.is_reachable()
    })
    .await;
    let outcome = gateway.admit([of_thousand(&here), of_thousand(&there)]);
    assert_eq!(outcome.await.unwrap().source, DecisionSource::Local);
    let outcome = gateway.admit([of_thousand(&here)]).await.unwrap();
    assert_eq!(outcome.source, DecisionSource::Store);
    assert_eq!(outcome.decisions[0].unwrap().remaining, 999);
}

/// Prints what was lost and how long it took; `docs/REDIS.md` has figures of an idle machine.
#[tokio::test]
async fn a_killed_primary_is_replaced_and_the_other_nodes_stay_exact_meanwhile() {
    let cluster = Arc::new(RedisCluster::start(1));
    let settings = settings(&cluster);
    let on = |primary, name: &str| key_on(&cluster, &settings.prefix, primary, name);
    let gateways = [
        Gateway::new(settings.clone(), OnFailure::Deny).await,
        Gateway::new(settings.clone(), OnFailure::Deny).await,
    ];
    let lost = on(1, "T");
    let mut admitted = 0;
    for gateway in gateways.iter().cycle().take(40) {
        let outcome = gateway.admit([of_hundred(&lost)]).await.unwrap();
        admitted += u64::from(outcome.is_allowed());
    }
    cluster.kill(1);
    let successor = cluster.replicas_of(1).next().unwrap();
    let elected = {
        let cluster = Arc::clone(&cluster);
        thread::spawn(move || {
            while !cluster.command(successor, &["ROLE"]).contains("master") {
                thread::sleep(Duration::from_millis(5));
            }
            Instant::now()
        })
    };
    let mut round = 0;
    let back = eventually_some("the successor is asked", async || {
        round += 1;
        assert_exact(&gateways, &on(2 * (round % 2), &format!("E{round}"))).await;
        let mut all_back = true;
        for gateway in &gateways {
            let outcome = gateway.admit([of_hundred(&lost)]).await;
            all_back &= outcome.is_some();
            admitted += u64::from(outcome.is_some_and(|outcome| outcome.is_allowed()));
        }
        all_back.then(Instant::now)
    })
    .await;
    for gateway in gateways.iter().cycle().take(200) {
        let outcome = gateway.admit([of_hundred(&lost)]).await.unwrap();
        admitted += u64::from(outcome.is_allowed());
    }
    let elected = elected.join().unwrap();
    println!(
        "back {:?} after the election; {admitted} of a bucket of 100 admitted",
        back.saturating_duration_since(elected)
    );
    // All that was taken before had been replicated long ago.
    assert!((100..=140).contains(&admitted), "{admitted}");
    eventually("the dead node is forgotten", || {
        gateways[0].reachability.is_reachable()
    })
    .await;
}

/// What a failover loses is what replication had not got, and no more.
#[tokio::test]
async fn what_a_replica_had_not_got_when_its_primary_died_is_let_through_again() {
    let cluster = RedisCluster::start(1);
    let settings = settings(&cluster);
    let gateway = Gateway::new(settings.clone(), OnFailure::Deny).await;
    let lost = key_on(&cluster, &settings.prefix, 1, "T");
    let take = async |times: usize| {
        let mut admitted = 0;
        for _ in 0..times {
            let outcome = gateway.admit([of_hundred(&lost)]).await.expect("an answer");
            admitted += u64::from(outcome.is_allowed());
        }
        admitted
    };
    assert_eq!(take(60).await, 60);
    let successor = cluster.replicas_of(1).next().unwrap();
    cluster.await_in_step(1, successor);
    // A replica that is cut off, and cannot come back, gets nothing any more.
    cluster.stop(successor);
    cluster.command(1, &["CLIENT", "KILL", "TYPE", "replica"]);
    assert_eq!(take(25).await, 25);
    cluster.kill(1);
    cluster.resume(successor);
    eventually_some("the successor is asked", async || {
        let look = Transaction {
            mode: Mode::Peek,
            ..of_hundred(&lost)
        };
        gateway.admit([look]).await
    })
    .await;
    assert_eq!(
        take(200).await,
        40,
        "of a hundred, sixty were known to be taken"
    );
}

#[tokio::test]
async fn a_user_with_the_rights_of_the_docs_can_do_everything() {
    let cluster = RedisCluster::start(0);
    let line = rights::documented("+cluster|slots");
    let mut words: Vec<_> = line.split(' ').collect();
    words.extend(rights::documented_by_algorithm());
    for node in 0..3 {
        assert!(cluster.command(node, &words).starts_with("+OK"));
        // Nothing else lets the store in.
        cluster.command(node, &["ACL", "SETUSER", "default", "-bitfield"]);
    }
    let mut nodes = RedisNodes::default();
    nodes.add(&cluster.urls()[0]).unwrap();
    let settings = RedisSettings::cluster(nodes).unwrap();
    let subject = OnCluster(connect(settings.with_login(rights::login())).await);
    let all = || {
        batch((0..6).map(|number| Transaction {
            quota: hundred(number),
            ..spend(&format!("L:{number}"), 1)
        }))
    };
    assert!(decide(&subject, all(), NOW).await.is_allowed());
    subject.0.refund(owed(all()), NOW).await.unwrap();
    let keys = (0..6).map(|number| BucketKey::from(format!("L:{number}").as_str()));
    subject.0.reset(keys.collect()).await.unwrap();
    let claim = Claims::from([Claim::new("L:in".into(), NonZeroU64::MIN)]);
    assert!(
        subject
            .0
            .acquire(claim, NOW)
            .await
            .unwrap()
            .outcome
            .is_allowed()
    );
}

#[tokio::test]
async fn a_server_by_itself_is_not_taken_for_a_cluster() {
    let port = free_port().to_string();
    let _server = RedisServer::start_with(|_| vec!["--port".into(), port.clone()]);
    let mut nodes = RedisNodes::default();
    nodes.add(&format!("redis://127.0.0.1:{port}")).unwrap();
    let settings = RedisSettings::cluster(nodes).unwrap();
    let redis = Redis::spawn(settings, Arc::new(Unobserved)).unwrap();
    let why = eventually_some("the server is asked", async || {
        let error = redis
            .connected(Duration::from_millis(10))
            .await
            .unwrap_err();
        std::error::Error::source(&error).map(ToString::to_string)
    })
    .await;
    assert!(why.contains("cluster support disabled"), "{why}");
}

#[tokio::test]
async fn one_command_a_bucket_whatever_the_number_of_nodes() {
    let cluster = RedisCluster::start(0);
    let settings = settings(&cluster);
    let redis = connect(settings.clone()).await;
    let on = |primary| key_on(&cluster, &settings.prefix, primary, "L");
    for _ in 0..10 {
        let all = [0, 1, 2].map(|primary| of_hundred(&on(primary)));
        assert!(redis.decide(&batch(all), NOW).await.unwrap().is_allowed());
    }
    assert_eq!(cluster.calls("bitfield"), 30);
    assert_eq!(cluster.calls("pexpire"), 3);
    assert_eq!(cluster.calls("multi"), 0);
}

/// They differed for a minute from those that requests had told of it.
#[tokio::test]
async fn a_gateway_that_nobody_asks_learns_at_its_next_ping_that_slot_0_has_moved() {
    let cluster = RedisCluster::start(0);
    let redis = connect(settings(&cluster)).await;
    let Nodes::Cluster(known) = redis.client.nodes() else {
        panic!("it is a Cluster");
    };
    let owner = || {
        let topology = known.topology();
        let place = topology.index_of(0).unwrap();
        Arc::clone(topology.node(place).unwrap())
    };
    let from = cluster.primary_of(0);
    let before = owner();
    before.health().ping().await.unwrap();
    cluster.begin_migration(0, from, (from + 1) % 3);
    cluster.end_migration(0, from, (from + 1) % 3);
    eventually_some("another node is followed", async || {
        // A machine that pauses does not keep the deadline.
        let _ = before.health().ping().await;
        (!Arc::ptr_eq(&before, &owner())).then_some(())
    })
    .await;
}
