//! Nodes of a Cluster that answer as a test says, and write down what they are asked: what a real
//! one cannot be made to do, and what must not be asked twice.

use std::net::SocketAddr;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::Instant;
use weir_limit::{Claim, Claims};
use weir_store::tests::contract::minutes;
use weir_store::{Leases, Owed, SharedLists};

use super::super::cluster::slot_of;
use super::super::resp::{Replies, split_first};
use super::super::settings::ClusterTimes;
use super::*;

/// What a node does about a command.
enum Act {
    Reply(String),
    HangUp,
    /// It answers nothing from then on.
    Freeze,
}

type Behaviour = Arc<dyn Fn(&str) -> Act + Send + Sync>;

/// Nodes that share all slots alike. They live as long as the runtime.
struct FakeCluster(Vec<Arc<FakeNode>>);

struct FakeNode {
    address: String,
    behaviour: Mutex<Behaviour>,
    /// What it answers to `CLUSTER SLOTS`.
    map: Mutex<String>,
    /// What it was asked, but for what is asked of each server, and when.
    asked: Mutex<Vec<(Instant, String)>>,
}

impl FakeCluster {
    async fn start(nodes: usize) -> Self {
        let mut listeners = Vec::new();
        for _ in 0..nodes {
            listeners.push(TcpListener::bind("127.0.0.1:0").await.unwrap());
        }
        let addresses: Vec<_> = listeners
            .iter()
            .map(|listener| listener.local_addr().unwrap())
            .collect();
        let map = map_of(&addresses, nodes);
        let start = |(listener, address): (TcpListener, &SocketAddr)| {
            let node = Arc::new(FakeNode {
                address: address.to_string(),
                behaviour: Mutex::new(Arc::new(|command| Act::Reply(taken(command)))),
                map: Mutex::new(map.clone()),
                asked: Mutex::default(),
            });
            tokio::spawn(Arc::clone(&node).serve(listener));
            node
        };
        Self(listeners.into_iter().zip(&addresses).map(start).collect())
    }

    async fn redis(&self) -> Redis {
        connect(self.settings()).await
    }

    fn settings(&self) -> RedisSettings {
        let mut nodes = RedisNodes::default();
        nodes
            .add(&format!("redis://{}", self.0[0].address))
            .unwrap();
        RedisSettings::cluster(nodes).unwrap()
    }

    /// A gateway, and what it knows of the nodes.
    async fn gateway(&self) -> (Redis, Arc<Reachability>) {
        self.observed_gateway(Arc::new(Unobserved)).await
    }

    async fn observed_gateway(&self, observer: Arc<dyn Observer>) -> (Redis, Arc<Reachability>) {
        let redis = self.redis().await;
        let reachability = Arc::new(Reachability::new(observer));
        let settings = GuardSettings {
            timeout: PATIENCE,
            ..GuardSettings::default()
        };
        redis.guard_nodes(settings, &reachability);
        (redis, reachability)
    }

    /// The name of a bucket on this node.
    fn key_on(&self, node: usize, name: &str) -> String {
        self.marked_key_on(node, name, "")
    }

    /// The name of a bucket of which what is kept under this mark is on this node.
    fn marked_key_on(&self, node: usize, name: &str, mark: &str) -> String {
        let (first, last) = slots(node, self.0.len());
        let mut keys = (0..).map(|number| format!("{name}:{number}"));
        let is_there = |key: &String| {
            let slot = usize::from(slot_of(format!("weir:{key}{mark}").as_bytes()));
            (first..=last).contains(&slot)
        };
        keys.find(is_there).unwrap()
    }

    /// How often each node was asked to take from this bucket.
    fn takes(&self, key: &str) -> Vec<usize> {
        let takes = |command: &str| command.contains("FAIL") && command.contains(key);
        self.0.iter().map(|node| node.count(takes)).collect()
    }
}

/// The map of slots of so many nodes, without those that have no address here.
fn map_of(addresses: &[SocketAddr], nodes: usize) -> String {
    let ranges = addresses.iter().enumerate().map(|(node, address)| {
        let (first, last) = slots(node, nodes);
        let port = address.port();
        format!("*3\r\n:{first}\r\n:{last}\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n")
    });
    format!("*{}\r\n{}", addresses.len(), ranges.collect::<String>())
}

fn slots(node: usize, nodes: usize) -> (usize, usize) {
    let of = |node| node * 16_384 / nodes;
    (of(node), of(node + 1) - 1)
}

impl FakeNode {
    /// From now on it does this about commands that name the key, and what a node does about
    /// others.
    fn set(&self, key: &str, act: impl Fn() -> Act + Send + Sync + 'static) {
        let key = key.to_owned();
        *self.behaviour.lock() = Arc::new(move |command| match command.contains(&key) {
            true => act(),
            false => Act::Reply(taken(command)),
        });
    }

    fn count(&self, counts: impl Fn(&str) -> bool) -> usize {
        let asked = self.asked.lock();
        asked.iter().filter(|(_, command)| counts(command)).count()
    }

    async fn serve(self: Arc<Self>, listener: TcpListener) {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(Arc::clone(&self).attend(client));
        }
    }

    async fn attend(self: Arc<Self>, mut client: TcpStream) {
        let mut received = Vec::new();
        while let Ok(1..) = client.read_buf(&mut received).await {
            while let Some((command, rest)) = split_first(&received) {
                let (words, rest) = (words(command), rest.to_vec());
                received = rest;
                let act = match words.split(' ').next() {
                    Some("HELLO") => Act::Reply(
                        "*4\r\n$4\r\nmode\r\n$7\r\ncluster\r\n$4\r\nrole\r\n$6\r\nmaster\r\n"
                            .into(),
                    ),
                    Some("TIME") => Act::Reply(time_now()),
                    Some("CLIENT") => Act::Reply("+OK\r\n".into()),
                    Some("CLUSTER") => {
                        self.asked.lock().push((Instant::now(), words));
                        Act::Reply(self.map.lock().clone())
                    }
                    _ => {
                        let behaviour = Arc::clone(&self.behaviour.lock());
                        let act = behaviour(&words);
                        self.asked.lock().push((Instant::now(), words));
                        act
                    }
                };
                match act {
                    Act::Reply(reply) => {
                        if client.write_all(reply.as_bytes()).await.is_err() {
                            return;
                        }
                    }
                    Act::HangUp => return,
                    Act::Freeze => std::future::pending().await,
                }
            }
        }
    }
}

fn words(command: &[u8]) -> String {
    let values = Replies::new(command.to_vec()).values().unwrap();
    let words: Vec<Vec<u8>> = redis::from_redis_value(values[0].clone()).unwrap();
    let words = words.iter().map(|word| String::from_utf8_lossy(word));
    words.collect::<Vec<_>>().join(" ")
}

fn time_now() -> String {
    let micros = SystemClock.now().as_nanos() / 1000;
    let (seconds, micros) = (micros / 1_000_000, micros % 1_000_000);
    format!("*2\r\n$10\r\n{seconds}\r\n$6\r\n{micros:06}\r\n")
}

/// What a node answers about a full bucket.
fn taken(command: &str) -> String {
    let values = ["INCRBY", " GET ", " SET "].map(|step| command.matches(step).count());
    let values: usize = values.iter().sum();
    match command.split(' ').next() {
        Some("BITFIELD") if command.contains("FAIL") => {
            "*5\r\n:0\r\n:0\r\n:9\r\n:5\r\n:7\r\n".into()
        }
        Some("BITFIELD") => format!("*{values}\r\n{}", ":0\r\n".repeat(values)),
        Some("ASKING" | "MULTI") => "+OK\r\n".into(),
        _ => ":1\r\n".into(),
    }
}

/// What a node answers about a lease that is free: the third reply of the transaction says that it
/// is taken.
fn granted(command: &str) -> String {
    match command.split(' ').next() {
        Some("EXEC") => "*7\r\n:0\r\n:1\r\n:1\r\n:1\r\n:0\r\n:1\r\n:1\r\n".to_owned(),
        Some("MULTI") => "+OK\r\n".to_owned(),
        _ => "+QUEUED\r\n".to_owned(),
    }
}

fn reply(text: &str) -> impl Fn() -> Act + Send + Sync + use<> {
    let reply = format!("{text}\r\n");
    move || Act::Reply(reply.clone())
}

/// The node that an error is about, and whether it is out of reach.
fn blamed(error: &StoreError) -> (&str, bool) {
    match error {
        StoreError::Node { node, source, .. } => (node, source.is_out_of_reach()),
        error => panic!("of no node: {error:?}"),
    }
}

#[tokio::test]
async fn what_a_node_cannot_do_now_is_its_failure_and_is_not_repeated() {
    for error in [
        "-TRYAGAIN Multiple keys request during rehashing of slot",
        "-CLUSTERDOWN The cluster is down",
        "-CLUSTERDOWN Hash slot not served",
        "-LOADING Redis is loading the dataset in memory",
    ] {
        let cluster = FakeCluster::start(2).await;
        let (redis, reachability) = cluster.gateway().await;
        let [here, there] = [0, 1].map(|node| cluster.key_on(node, "L"));
        cluster.0[0].set(&here, reply(error));
        for round in 1..=5 {
            assert!(reachability.is_reachable(), "{error}, round {round}");
            let both = batch([spend(&here, 1), spend(&there, 1)]);
            let failure = redis.decide(&both, NOW).await.unwrap_err();
            assert_eq!(blamed(&failure), (&*cluster.0[0].address, false), "{error}");
            assert_eq!(cluster.takes(&here), [round, 0], "{error}");
            assert_eq!(cluster.takes(&there), [0, round], "{error}");
        }
        let failed = reachability.unreachable_nodes();
        assert_eq!(failed, [Arc::from(&*cluster.0[0].address)], "{error}");
    }
}

#[tokio::test]
async fn what_was_sent_on_a_connection_that_broke_is_sent_to_no_node_again() {
    let cluster = FakeCluster::start(2).await;
    let (redis, _) = cluster.gateway().await;
    for round in 0..3 {
        let [lost, next] = ["A", "B"].map(|name| cluster.key_on(0, &format!("{name}{round}")));
        cluster.0[0].set(&lost, || Act::HangUp);
        let failure = redis
            .decide(&batch([spend(&lost, 1)]), NOW)
            .await
            .unwrap_err();
        assert_eq!(blamed(&failure), (&*cluster.0[0].address, true));
        eventually_some("the node is used again", async || {
            redis.decide(&batch([spend(&next, 1)]), NOW).await.ok()
        })
        .await;
        assert_eq!(cluster.takes(&lost), [1, 0], "round {round}");
    }
}

#[tokio::test]
async fn where_a_redirection_leads_what_broke_there_is_not_sent_again() {
    for redirection in ["-ASK", "-MOVED"] {
        let cluster = FakeCluster::start(2).await;
        let (redis, reachability) = cluster.gateway().await;
        let key = cluster.key_on(0, "L");
        let there = &cluster.0[1];
        let slot = slot_of(format!("weir:{key}").as_bytes());
        cluster.0[0].set(
            &key,
            reply(&format!("{redirection} {slot} {}", there.address)),
        );
        there.set(&key, || Act::HangUp);
        let failure = redis
            .decide(&batch([spend(&key, 1)]), NOW)
            .await
            .unwrap_err();
        assert_eq!(blamed(&failure), (&*there.address, true), "{redirection}");
        let source = Arc::from(&*cluster.0[0].address);
        assert!(
            !reachability.unreachable_nodes().contains(&source),
            "{redirection}"
        );
        let next = cluster.key_on(1, "N");
        eventually_some("the node is used again", async || {
            redis.decide(&batch([spend(&next, 1)]), NOW).await.ok()
        })
        .await;
        assert_eq!(cluster.takes(&key), [1, 1], "{redirection}");
    }
}

/// The node that redirects does what it should.
#[tokio::test]
async fn what_fails_where_a_redirection_leads_counts_against_the_node_there() {
    for redirection in ["-ASK", "-MOVED"] {
        let cluster = FakeCluster::start(2).await;
        let (redis, reachability) = cluster.gateway().await;
        let there = &cluster.0[1];
        let redirect = |key: &str| {
            let slot = slot_of(format!("weir:{key}").as_bytes());
            reply(&format!("{redirection} {slot} {}", there.address))
        };
        there.set(
            "weir:L",
            reply("-LOADING Redis is loading the dataset in memory"),
        );
        for round in 0..5 {
            assert!(reachability.is_reachable(), "{redirection}, round {round}");
            let key = cluster.key_on(0, &format!("L{round}"));
            cluster.0[0].set(&key, redirect(&key));
            let one = batch([spend(&key, 1)]);
            let failure = match round {
                4 => redis.refund(owed(one), NOW).await.unwrap_err(),
                _ => redis.decide(&one, NOW).await.unwrap_err(),
            };
            assert_eq!(blamed(&failure), (&*there.address, false), "{redirection}");
            assert!(
                failure.to_string().contains("the store failed"),
                "{failure}"
            );
        }
        let failed = reachability.unreachable_nodes();
        assert_eq!(failed, [Arc::from(&*there.address)], "{redirection}");
    }
}

const LOADING: &str = "-LOADING Redis is loading the dataset in memory\r\n";

/// What a node replies about a bucket that another definition of its limit has filled: it is asked
/// for the levels below the first, of which the next one is full of units.
fn of_two_definitions(command: &str, levels: &str) -> String {
    let debt = minutes(60);
    let above = (NOW + debt).as_nanos();
    match command {
        _ if !command.starts_with("BITFIELD") || command.contains("u63 160 -") => taken(command),
        _ if command.contains("GET u63 96") => levels.replace("ABOVE", &above.to_string()),
        _ => format!("*5\r\n:0\r\n:{}\r\n$-1\r\n$-1\r\n:{above}\r\n", debt.get()),
    }
}

const LEVELS: &str = "*6\r\n:ABOVE\r\n:0\r\n:0\r\n:0\r\n:0\r\n:0\r\n";

/// It was dropped as well, and so its unit stayed taken.
#[tokio::test]
async fn a_level_of_a_node_that_fails_hides_no_unit_that_another_node_took() {
    let cluster = FakeCluster::start(2).await;
    let (redis, _) = cluster.gateway().await;
    let [here, there] = [0, 1].map(|node| cluster.key_on(node, "L"));
    for (node, levels) in cluster.0.iter().zip([LEVELS, LOADING]) {
        let reply = |command: &str| Act::Reply(of_two_definitions(command, levels));
        *node.behaviour.lock() = Arc::new(reply);
    }
    let both = batch([spend(&here, 1), spend(&there, 1)]);
    let failure = redis.decide(&both, NOW).await.unwrap_err();
    assert_eq!(blamed(&failure), (&*cluster.0[1].address, false));
    let taken = |command: &str| command.contains("u63 160 -") && command.contains("FAIL");
    assert_eq!(cluster.0[0].count(taken), 1);
    let StoreError::Node { allowed, .. } = failure else {
        unreachable!()
    };
    let decisions = allowed.expect("what the other node took").decisions;
    assert!(decisions[0].is_some_and(|decision| decision.allowed));
    assert_eq!(decisions[1], None);
}

/// Such a failure opened the breaker of the whole store.
#[tokio::test]
async fn what_fails_at_a_lower_level_of_a_bucket_is_the_failure_of_its_node() {
    for (levels, is_lost) in [(LOADING, false), (":1\r\n", true)] {
        let cluster = FakeCluster::start(2).await;
        let (redis, _) = cluster.gateway().await;
        let key = cluster.key_on(0, "L");
        let reply = move |command: &str| Act::Reply(of_two_definitions(command, levels));
        *cluster.0[0].behaviour.lock() = Arc::new(reply);
        let answer = redis.decide(&batch([spend(&key, 1)]), NOW).await;
        let blame = (&*cluster.0[0].address, is_lost);
        assert_eq!(blamed(&answer.unwrap_err()), blame, "{levels}");
    }
}

/// Its success, of nothing that it was asked, ended the count of its failures.
#[tokio::test]
async fn a_refund_counts_nothing_for_a_node_that_took_no_part_in_it() {
    let cluster = FakeCluster::start(2).await;
    let (redis, reachability) = cluster.gateway().await;
    let [here, there] = [0, 1].map(|node| cluster.key_on(node, "L"));
    let mut both = redis.decide(&batch([spend(&here, 1), spend(&there, 1)]), NOW);
    assert!((&mut both).await.unwrap().is_allowed());
    cluster.0[1].set(&there, || Act::Reply(LOADING.to_owned()));
    for round in 0..5 {
        assert!(reachability.is_reachable(), "round {round}");
        redis
            .decide(&batch([spend(&there, 1)]), NOW)
            .await
            .unwrap_err();
        both.refund(owed([spend(&here, 1)]), NOW).await.unwrap();
    }
    let failed = reachability.unreachable_nodes();
    assert_eq!(failed, [Arc::from(&*cluster.0[1].address)]);
}

/// Each of them ended the count of the node's failures, so that a slow node was waited for by each
/// request.
#[tokio::test]
async fn replies_that_come_after_the_deadline_do_not_hide_that_a_node_is_slow() {
    async fn is_late<T: Unpin>(mut answer: StoreFuture<T>) -> Result<T, StoreError> {
        assert!((&mut answer).now_or_never().is_none());
        assert!(matches!(answer.overdue(), StoreError::Node { .. }));
        answer.await
    }
    for call in ["a refund", "a lease", "a list", "a foreign bucket"] {
        let cluster = FakeCluster::start(1).await;
        let (redis, reachability) = cluster.gateway().await;
        *cluster.0[0].behaviour.lock() = Arc::new(move |command| {
            Act::Reply(match command.split(' ').next() {
                Some("ZSCORE") => "$-1\r\n".to_owned(),
                Some("BITFIELD") if call == "a foreign bucket" => {
                    of_two_definitions(command, LEVELS)
                }
                _ if call == "a lease" => granted(command),
                _ => taken(command),
            })
        });
        for round in 0..5 {
            assert!(reachability.is_reachable(), "{call}, round {round}");
            match call {
                "a refund" => is_late(redis.refund(owed([spend("L:a", 1)]), NOW))
                    .await
                    .unwrap(),
                "a list" => drop(is_late(redis.version("bans")).await.unwrap()),
                "a foreign bucket" => {
                    let taken = is_late(redis.decide(&batch([spend("L:a", 1)]), NOW)).await;
                    assert!(taken.unwrap().is_allowed());
                }
                _ => {
                    let claims = Claims::from([Claim::new("L:a".into(), NonZeroU64::MIN)]);
                    drop(is_late(redis.acquire(claims, NOW)).await.unwrap());
                }
            }
        }
        assert!(!reachability.is_reachable(), "{call}");
    }
}

/// The same of the node that a redirection leads to.
#[tokio::test]
async fn replies_to_redirected_commands_that_come_late_do_not_hide_that_a_node_is_slow() {
    let cluster = FakeCluster::start(2).await;
    let (redis, reachability) = cluster.gateway().await;
    let key = cluster.key_on(0, "L");
    let slot = slot_of(format!("weir:{key}").as_bytes());
    let slow = &cluster.0[1].address;
    cluster.0[0].set(&key, reply(&format!("-ASK {slot} {slow}")));
    for round in 0..5 {
        assert!(reachability.is_reachable(), "round {round}");
        let mut answer = redis.decide(&batch([spend(&key, 1)]), NOW);
        while cluster.takes(&key)[1] == round {
            assert!((&mut answer).now_or_never().is_none());
            tokio::task::yield_now().await;
        }
        let failure = answer.overdue();
        assert_eq!(blamed(&failure), (&**slow, false));
        assert!(answer.await.unwrap().is_allowed());
    }
    assert_eq!(reachability.unreachable_nodes(), [Arc::from(&**slow)]);
}

/// Whether such a reply is late is not known where it is read.
#[tokio::test]
async fn a_redirected_refund_does_not_hide_that_a_node_fails() {
    let cluster = FakeCluster::start(2).await;
    let (redis, reachability) = cluster.gateway().await;
    let [moving, there] = [0, 1].map(|node| cluster.key_on(node, "L"));
    let slot = slot_of(format!("weir:{moving}").as_bytes());
    let failing = &cluster.0[1].address;
    cluster.0[0].set(&moving, reply(&format!("-ASK {slot} {failing}")));
    cluster.0[1].set(&there, || Act::Reply(LOADING.to_owned()));
    for round in 0..5 {
        assert!(reachability.is_reachable(), "round {round}");
        let answer = redis.decide(&batch([spend(&there, 1)]), NOW).await;
        assert_eq!(blamed(&answer.unwrap_err()), (&**failing, false));
        // The last one finds the node given up.
        let refund = redis.refund(owed([spend(&moving, 1)]), NOW).await;
        assert_eq!(refund.is_ok(), round < 4, "round {round}");
    }
    assert_eq!(reachability.unreachable_nodes(), [Arc::from(&**failing)]);
}

#[tokio::test]
async fn a_slot_that_both_nodes_redirect_is_the_failure_of_none() {
    let cluster = FakeCluster::start(2).await;
    let (redis, reachability) = cluster.gateway().await;
    let key = cluster.key_on(0, "L");
    let slot = slot_of(format!("weir:{key}").as_bytes());
    for (node, other) in [(0, 1), (1, 0)] {
        let other = &cluster.0[other].address;
        cluster.0[node].set(&key, reply(&format!("-ASK {slot} {other}")));
    }
    for round in 1..=10 {
        let failure = redis
            .decide(&batch([spend(&key, 1)]), NOW)
            .await
            .unwrap_err();
        assert!(failure.is_partial(), "{failure:?}");
        assert_eq!(cluster.takes(&key), [round, round]);
    }
    assert!(reachability.is_reachable());
}

/// Time stands still until a test moves it, although servers are waited for.
struct ManualTime {
    _stands: oneshot::Sender<()>,
}

impl ManualTime {
    /// A blocking task that waits keeps the runtime from moving the time by itself.
    fn begin() -> Self {
        time::pause();
        let (stands, ends) = oneshot::channel();
        tokio::task::spawn_blocking(move || ends.blocking_recv());
        Self { _stands: stands }
    }
}

/// The amounts of the steps that increase a bucket's TAT.
fn increments(command: &str) -> Vec<i64> {
    let steps = command.split("INCRBY u63 0 ").skip(1);
    let amounts = steps.map(|step| step.split(' ').next().unwrap().parse().unwrap());
    amounts.collect()
}

/// What a server is asked by a refund of these units that has to wait for a new connection.
async fn late_refund(owed: Owed) -> Vec<String> {
    let cluster = FakeCluster::start(1).await;
    let redis = cluster.redis().await;
    let mut taken = redis.decide(&batch([spend("L:a", 1)]), NOW);
    assert!((&mut taken).await.unwrap().is_allowed());
    cluster.0[0].set("L:b", || Act::HangUp);
    let broken = redis.decide(&batch([spend("L:b", 1)]), NOW).await;
    assert!(broken.is_err());

    let before = cluster.0[0].asked.lock().len();
    let mut refund = taken.refund([owed].into_iter().collect(), NOW);
    while (&mut refund).now_or_never().is_none() {
        time::advance(Duration::from_millis(1)).await;
        // Messages come and go while the time stands still.
        for _ in 0..64 {
            tokio::task::yield_now().await;
        }
    }
    let asked = cluster.0[0].asked.lock();
    let asked = asked.iter().skip(before);
    let asked = asked.filter(|(_, command)| command.starts_with("BITFIELD"));
    asked.map(|(_, command)| command.clone()).collect()
}

/// The wait counted for nothing: what had come back in it was given back again.
#[tokio::test]
async fn what_comes_back_while_a_refund_waits_for_a_connection_is_not_given_back_again() {
    let _time = ManualTime::begin();
    let owed = Owed {
        transaction: Transaction {
            quota: Quota::new(10, 1, Duration::from_secs(86_400)).unwrap(),
            ..spend("L:a", 1)
        },
        until: NOW + Nanos::from_secs(3600),
    };
    let asked = late_refund(owed.clone()).await;
    let command = asked.last().unwrap();
    let [before, given_back, after] = increments(command)[..] else {
        panic!("no refund: {command}")
    };
    let waited = after - i64::try_from(NOW.as_nanos()).unwrap();
    let owed = i64::try_from(owed.until.since(NOW).get()).unwrap();
    assert!(waited > 0);
    assert_eq!((before, given_back), (-after, waited - owed));
}

/// It took units off the next window, which other requests had used.
#[tokio::test]
async fn a_window_that_ends_while_its_refund_waits_for_a_connection_is_not_refunded() {
    let _time = ManualTime::begin();
    let window = Algorithm::FixedWindow(Alignment::Period);
    let late = |left| {
        late_refund(Owed {
            transaction: Transaction {
                quota: Quota::windowed(window, 5, Duration::from_secs(10)).unwrap(),
                ..spend("L:a", 1)
            },
            until: NOW + left,
        })
    };
    let in_time = late(Nanos::from_secs(5)).await;
    assert!(
        in_time
            .iter()
            .any(|command| command.contains("INCRBY u63 62 -1 ")),
        "{in_time:?}"
    );
    assert!(late(Nanos::new(1)).await.is_empty());
}

#[tokio::test]
async fn the_map_is_learned_each_minute_by_each_gateway_at_a_moment_of_its_own() {
    let _time = ManualTime::begin();
    let mut clusters = Vec::new();
    for _ in 0..8 {
        let cluster = FakeCluster::start(1).await;
        let redis = cluster.redis().await;
        clusters.push((cluster, redis));
    }
    for _ in 0..200 {
        time::advance(Duration::from_secs(1)).await;
        for (_, redis) in &clusters {
            // What is asked behind the map by the same connection is answered behind it.
            for _ in 0..2 {
                redis.decide(&batch([spend("L:a", 1)]), NOW).await.unwrap();
            }
        }
    }
    let mut pauses = Vec::new();
    for (cluster, _) in &clusters {
        let asked = cluster.0[0].asked.lock();
        let maps = asked
            .iter()
            .filter(|(_, command)| command == "CLUSTER SLOTS");
        let maps: Vec<_> = maps.map(|(at, _)| *at).collect();
        // It is learned again when the nodes in it are connected.
        let own = maps.windows(2).map(|two| (two[1] - two[0]).as_secs());
        let own: Vec<_> = own.filter(|pause| *pause > 1).collect();
        assert!((2..=4).contains(&own.len()), "{own:?}");
        pauses.extend(own);
    }
    assert!(
        pauses.iter().all(|pause| (47..=74).contains(pause)),
        "{pauses:?}"
    );
    let [shortest, longest] = [pauses.iter().min(), pauses.iter().max()];
    assert_ne!(shortest, longest, "all at the same time: {pauses:?}");
}

#[tokio::test]
async fn what_waits_for_one_of_several_nodes_takes_its_part_of_the_memory_and_no_more() {
    let mut refused_after = Vec::new();
    for nodes in [1, 4] {
        let cluster = FakeCluster::start(nodes).await;
        let redis = cluster.redis().await;
        cluster.0[0].set("weir:", || Act::Freeze);
        let key = cluster.key_on(0, "L");
        let mut waiting = Vec::new();
        loop {
            let mut answer = redis.decide(&batch([spend(&key, 1)]), NOW);
            if let Some(answer) = (&mut answer).now_or_never() {
                assert!(answer.is_err());
                break;
            }
            waiting.push(answer);
            assert!(waiting.len() < 100_000, "no end");
        }
        refused_after.push(waiting.len());
        // What is remembered of buckets has one place for all nodes.
        let Nodes::Cluster(nodes) = redis.client.nodes() else {
            panic!("a Cluster")
        };
        let places: Vec<_> = nodes
            .topology()
            .nodes()
            .filter_map(|node| Some(node.member()?.shared.expiries.clone()))
            .collect();
        assert!(places.iter().all(|place| place.is_that_of(&places[0])));
    }
    let quarter = refused_after[0] / 4;
    assert!(
        (quarter - 10..=quarter + 10).contains(&refused_after[1]),
        "{refused_after:?}"
    );
}

#[tokio::test]
async fn slots_without_a_node_are_looked_for_until_they_have_one() {
    let cluster = FakeCluster::start(2).await;
    let whole = cluster.0[0].map.lock().clone();
    let here: SocketAddr = cluster.0[0].address.parse().unwrap();
    for node in &cluster.0 {
        *node.map.lock() = map_of(&[here], 2);
    }
    let redis = cluster.redis().await;
    let [here, there] = [0, 1].map(|node| cluster.key_on(node, "L"));
    redis.decide(&batch([spend(&here, 1)]), NOW).await.unwrap();
    let homeless = batch([spend(&there, 1)]);
    let failure = redis.decide(&homeless.clone(), NOW).await.unwrap_err();
    assert_eq!(blamed(&failure), ("of no slot", false));
    for node in &cluster.0 {
        node.map.lock().clone_from(&whole);
    }
    eventually_some("the slots have a node", async || {
        redis.decide(&homeless.clone(), NOW).await.ok()
    })
    .await;
}

/// Where a server hangs up at once. It lives as long as the runtime.
async fn dead_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { while listener.accept().await.is_ok() {} });
    address
}

/// Nodes learn of a failover one after the other, and those that have not name the dead node.
#[tokio::test]
async fn a_node_that_was_replaced_is_not_asked_again_because_another_has_not_heard_of_that() {
    let cluster = FakeCluster::start(3).await;
    let alive = |node: usize| cluster.0[node].address.parse().unwrap();
    // While one more is dead, the map is learned again and again.
    let (dead, missing) = (dead_address().await, dead_address().await);
    let old = map_of(&[alive(0), dead, alive(2), missing], 4);
    for node in &cluster.0 {
        node.map.lock().clone_from(&old);
    }
    let recorder = Arc::<Recorder>::default();
    let reachability = Arc::new(Reachability::new(Arc::<Recorder>::clone(&recorder)));
    let mut settings = cluster.settings();
    // On a slow machine, too, each node answers in time, and nothing is forgotten.
    settings.cluster_times = ClusterTimes {
        map_answer: PATIENCE,
        gone_for: Duration::from_secs(3600),
    };
    let redis = Redis::spawn(settings, Arc::new(Unobserved)).unwrap();
    let guard = GuardSettings {
        timeout: PATIENCE,
        ..GuardSettings::default()
    };
    redis.guard_nodes(guard, &reachability);
    let told = |word: &str| {
        let change = format!("{dead} {word}");
        let changes = recorder.node_changes();
        changes.iter().filter(|told| **told == change).count()
    };
    eventually("the node is out of reach", || told("unreachable") == 1).await;
    *cluster.0[0].map.lock() = map_of(&[alive(0), alive(1), alive(2), missing], 4);
    eventually("the node was replaced", || told("left") == 1).await;
    let maps = || cluster.0[2].count(|command| command == "CLUSTER SLOTS");
    let before = maps();
    eventually("maps of before are told", || maps() > before + 10).await;
    assert_eq!((told("joined"), told("reachable")), (1, 0));

    // It is believed to be back when all nodes say so.
    for node in &cluster.0 {
        node.map.lock().clone_from(&old);
    }
    eventually("the node is asked again", || told("joined") == 2).await;
}

/// A dead node that a redirection has named, and that serves nothing, holds nobody unready.
#[tokio::test]
async fn a_dead_node_without_slots_is_not_waited_for() {
    let cluster = FakeCluster::start(1).await;
    let recorder = Arc::<Recorder>::default();
    let (redis, reachability) = cluster.observed_gateway(Arc::clone(&recorder) as _).await;
    let dead = dead_address().await;
    let asked = cluster.key_on(0, "L");
    let take = || redis.decide(&batch([spend(&asked, 1)]), NOW);
    // The map is known to be whole, and would not be read again for a minute. What is asked behind
    // it by the same connection is answered behind it.
    let Nodes::Cluster(nodes) = redis.client.nodes() else {
        panic!("a Cluster")
    };
    let maps = || cluster.0[0].count(|command| command == "CLUSTER SLOTS");
    let known = maps();
    nodes.topology().nodes().for_each(|node| {
        let member = node.member().unwrap();
        member.has_changed();
    });
    eventually("the map is read", || maps() > known).await;
    for _ in 0..2 {
        take().await.unwrap();
    }
    let slot = slot_of(format!("weir:{asked}").as_bytes());
    cluster.0[0].set(&asked, reply(&format!("-ASK {slot} {dead}")));
    let failure = take().await.unwrap_err();
    assert_eq!(blamed(&failure).0, dead.to_string());
    cluster.0[0].set("nothing", reply("+OK"));
    // On a slow machine it is forgotten before it counts as out of reach.
    let left = format!("{dead} left");
    eventually("the node is forgotten", || {
        recorder.node_changes().contains(&left)
    })
    .await;
    assert!(reachability.is_reachable());
    take().await.unwrap();
}

#[tokio::test]
async fn a_frozen_node_holds_up_the_leases_of_no_other() {
    let cluster = FakeCluster::start(2).await;
    let mut settings = cluster.settings();
    // A release is given up when the lease is over, so a pause has to be shorter.
    settings.lease = Duration::from_secs(3);
    let redis = connect(settings).await;
    let mut held = Vec::new();
    for (number, node) in cluster.0.iter().enumerate() {
        *node.behaviour.lock() = Arc::new(|command| Act::Reply(granted(command)));
        let key = cluster.marked_key_on(number, "L", lease_commands::MARK);
        let claim = Claims::from([Claim::new(key.as_str().into(), NonZeroU64::MIN)]);
        let leased = redis.acquire(claim, NOW).await.unwrap();
        assert!(!leased.guard.is_empty());
        held.push(leased.guard);
    }
    // A renewal writes an expiry outside a transaction, where taking it writes `NX` or `+inf`.
    let is_renewal = |command: &str| {
        command.starts_with("ZADD") && !command.contains(" NX ") && !command.contains(" +inf ")
    };
    let renewals = |node: usize| cluster.0[node].count(is_renewal);
    eventually("both leases are renewed", || {
        renewals(0) > 0 && renewals(1) > 0
    })
    .await;
    *cluster.0[1].behaviour.lock() = Arc::new(|_| Act::Freeze);
    let before = renewals(0);
    eventually("the lease on the other node is renewed on", || {
        renewals(0) > before + 5
    })
    .await;
    // And it is released at once.
    let release = |command: &str| command.starts_with("ZREM ");
    assert_eq!(cluster.0[0].count(release), 0);
    drop(held);
    eventually("the lease on the other node is released", || {
        cluster.0[0].count(release) > 0
    })
    .await;
}
