//! Weir's own store on a real server, on a simulated one, and on a simulated Cluster whose slots
//! move: one random sequence, equal answers.

use std::fmt::Debug;
use std::io;
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use weir::internals::{Connect, Socket};
use weir::limit::{
    Algorithm, Alignment, Batch, BucketKey, Claim, Claims, Mode, Quota, Transaction,
};
use weir::store::{
    KeyScan, LeaseGuard, Leases, Owed, OwedBatch, Redis, RedisNodes, RedisSettings, ScanPosition,
    SharedEntry, SharedLists, Store, StoreFuture, Unobserved,
};
use weir::time::{Nanos, Timestamp};
use weir_sim::random::Random;
use weir_sim::redis::{ClusterNode, ClusterView, Config, Output, Server, slot_of};
use weir_testing::RedisServer;

use super::peers::now;
use super::sequences::{Seed, seeds};

const STEPS: usize = 300;
const KEYS: u64 = 8;
const PATIENCE: Duration = Duration::from_secs(120);

type Shared = Arc<Mutex<Server>>;

/// Connects to the server whose index is the port, less one.
fn connect(servers: &[Shared]) -> Connect {
    let servers = servers.to_vec();
    Arc::new(move |address| {
        let server = servers.get(usize::from(address.port()) - 1).cloned();
        Box::pin(async move {
            let server = server.ok_or(io::ErrorKind::ConnectionRefused)?;
            let (near, far) = duplex(1 << 20);
            tokio::spawn(serve(server, far));
            Ok(Box::new(near) as Socket)
        })
    })
}

async fn serve(server: Shared, mut stream: DuplexStream) -> io::Result<()> {
    let client = server.lock().unwrap().open().unwrap();
    let mut chunk = vec![0; 4096];
    loop {
        let length = stream.read(&mut chunk).await?;
        if length == 0 {
            server.lock().unwrap().close(client);
            return Ok(());
        }
        let outputs = server
            .lock()
            .unwrap()
            .receive(client, &chunk[..length], now());
        for output in outputs {
            match output {
                Output::Write(_, bytes) => stream.write_all(&bytes).await?,
                Output::Close(_) => return Ok(()),
            }
        }
    }
}

struct Stores {
    all: Vec<Redis>,
    nodes: Vec<Shared>,
    _real: RedisServer,
}

impl Stores {
    async fn new() -> Self {
        let real = RedisServer::start();
        let alone = vec![Arc::new(Mutex::new(Server::new(Config::default())))];
        let nodes: Vec<Shared> = (0..3)
            .map(|_| Arc::new(Mutex::new(Server::new(Config::default()))))
            .collect();
        for (at, node) in nodes.iter().enumerate() {
            let members = (1..=3_u16).map(|port| ClusterNode {
                id: format!("{port:040}"),
                host: "127.0.0.1".to_owned(),
                port,
                primary: None,
            });
            let mut view = ClusterView::new(at, members.collect());
            view.assign(0..=5_000, 0);
            view.assign(5_001..=11_000, 1);
            view.assign(11_001..=16_383, 2);
            node.lock().unwrap().set_cluster(Some(view));
        }
        let mut named = RedisNodes::default();
        named.add("redis://127.0.0.1:2").unwrap();
        let parsed = |url: &str| RedisSettings::parse(url, None, None).unwrap();
        let mut all = Vec::new();
        for mut settings in [
            parsed(&real.url()),
            parsed("redis://127.0.0.1:1/3").with_connect(connect(&alone)),
            RedisSettings::cluster(named)
                .unwrap()
                .with_connect(connect(&nodes)),
        ] {
            // Nothing is renewed meanwhile.
            settings.lease = Duration::from_secs(24 * 3600);
            let redis = Redis::spawn(settings, Arc::new(Unobserved)).unwrap();
            redis.connected(Duration::from_secs(20)).await.unwrap();
            all.push(redis);
        }
        Self {
            all,
            nodes,
            _real: real,
        }
    }

    /// Asks all, and wants the same from them.
    async fn same<T: Debug + PartialEq + Unpin>(
        &self,
        what: &dyn Debug,
        ask: impl Fn(&Redis) -> StoreFuture<T>,
    ) -> T {
        let mut answers = Vec::new();
        for store in &self.all {
            answers.push(ask(store).await.unwrap());
            self.settle().await;
        }
        let last = answers.pop().unwrap();
        for answer in &answers {
            assert_eq!(*answer, last, "{what:#?}");
        }
        last
    }

    /// Waits for what is done behind the answers.
    async fn settle(&self) {
        let deadline = Instant::now() + PATIENCE;
        while self.all.iter().any(|store| store.background_calls() > 0) {
            assert!(Instant::now() < deadline, "background calls end");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Begins to move a slot of the Cluster: keys that are there already are asked for there, as
    /// are those that no node has.
    fn open_slot(&self, slot: u16, to: usize) -> Option<OpenSlot> {
        let mut servers: Vec<_> = self.nodes.iter().map(|node| node.lock().unwrap()).collect();
        let from = servers[0].cluster_mut().unwrap().owners[&slot];
        if from == to {
            return None;
        }
        servers[from]
            .cluster_mut()
            .unwrap()
            .migrating
            .insert(slot, to);
        servers[to]
            .cluster_mut()
            .unwrap()
            .importing
            .insert(slot, from);
        Some(OpenSlot { slot, from, to })
    }

    /// Moves the keys of the slot.
    fn move_keys(&self, open: &OpenSlot) {
        let OpenSlot { slot, from, to } = *open;
        let mut source = self.nodes[from].lock().unwrap();
        let mut target = self.nodes[to].lock().unwrap();
        let keys: Vec<_> = source
            .keys()
            .filter(|key| slot_of(key) == slot)
            .cloned()
            .collect();
        for key in keys {
            if let Some(moved) = source.take_key(&key, now()) {
                target.put_key(&key, &moved, now());
            }
        }
    }

    /// Gives the slot to its new node; all nodes know of it at once.
    fn close_slot(&self, open: &OpenSlot) {
        self.move_keys(open);
        for node in &self.nodes {
            let mut server = node.lock().unwrap();
            let view = server.cluster_mut().unwrap();
            view.assign(open.slot..=open.slot, open.to);
            view.migrating.remove(&open.slot);
            view.importing.remove(&open.slot);
        }
    }

    async fn scanned(&self) -> Vec<Vec<String>> {
        let mut scanned = Vec::new();
        for store in &self.all {
            let (mut all, mut next) = (Vec::new(), Some(ScanPosition::default()));
            while let Some(position) = next {
                let found = store.scan("L:", position).await.unwrap();
                all.extend(found.keys);
                next = found.next;
            }
            all.sort();
            all.dedup();
            scanned.push(all);
        }
        scanned
    }
}

/// A slot on its way.
struct OpenSlot {
    slot: u16,
    from: usize,
    to: usize,
}

/// Makes the sequence.
struct Script {
    random: Random,
    now: Timestamp,
}

impl Script {
    fn key(&mut self) -> BucketKey {
        format!("L:{}", self.random.between(0, KEYS))
            .as_str()
            .into()
    }

    fn tick(&mut self) {
        let seconds = self.random.between(0, 5) * self.random.between(0, 1);
        self.now = self.now + Nanos::from_secs(seconds) + Nanos::new(self.random.between(0, 1000));
    }

    fn quota(&mut self) -> Quota {
        let count_denied = self.random.chance(30);
        let count = [1, 3, 10, 40][self.random.index(4)];
        let period = Duration::from_secs([60, 600][self.random.index(2)]);
        let algorithm = match self.random.index(7) {
            0 => Algorithm::FixedWindow(Alignment::Period),
            1 => Algorithm::FixedWindow(Alignment::FirstRequest),
            2 => Algorithm::SlidingWindow { count_denied },
            3 => Algorithm::SlidingLog { count_denied },
            _ => return Quota::new(count, count, period).unwrap(),
        };
        Quota::windowed(algorithm, count, period).unwrap()
    }

    fn transaction(&mut self) -> Transaction {
        let quota = self.quota();
        let cost = self.random.between(1, quota.burst().get() / 2 + 2);
        let modes = [
            Mode::CheckAndSpend,
            Mode::CheckOnly,
            Mode::SpendOnly,
            Mode::Peek,
            Mode::AllowOnly,
        ];
        let mode = modes[self.random.weighted(&[60, 10, 20, 7, 3])];
        Transaction {
            mode,
            ..Transaction::new(self.key(), quota, NonZeroU64::new(cost).unwrap())
        }
    }

    fn batch(&mut self) -> Batch {
        let mut batch = Batch::new();
        for _ in 0..self.random.between(1, 3) {
            let transaction = self.transaction();
            if batch.iter().all(|other| other.key != transaction.key) {
                batch.push(transaction);
            }
        }
        batch
    }

    fn owed(&mut self) -> OwedBatch {
        let batch = self.batch();
        let owed = |transaction| Owed {
            transaction,
            until: self.now + Nanos::from_secs(self.random.between(0, 600)),
        };
        batch.into_iter().map(owed).collect()
    }

    fn claims(&mut self) -> Claims {
        let most = NonZeroU64::new(self.random.between(1, 3)).unwrap();
        [Claim::new(self.key(), most)].into_iter().collect()
    }

    fn entries(&mut self) -> Vec<SharedEntry> {
        let millis = self.now.as_nanos() / 1_000_000;
        let entry = |random: &mut Random| SharedEntry {
            until: [millis + random.between(0, 20_000), u64::MAX][random.index(2)],
            text: format!("{{\"subject\":{}}}", random.between(0, 9)),
        };
        (0..self.random.between(0, 3))
            .map(|_| entry(&mut self.random))
            .collect()
    }
}

#[tokio::test]
async fn the_store_answers_alike_on_a_real_server_a_simulated_one_and_a_cluster_that_moves() {
    for seed in seeds(2) {
        let _seed = Seed(seed);
        let stores = Stores::new().await;
        let mut script = Script {
            random: Random::new(seed, 30),
            now: Timestamp::from_nanos(u64::try_from(now().as_nanos()).unwrap()),
        };
        let mut held: Vec<Vec<LeaseGuard>> = Vec::new();
        let mut open = None;
        let (mut allowed, mut denied) = (0, 0);
        for _ in 0..STEPS {
            script.tick();
            let now = script.now;
            match script.random.weighted(&[50, 8, 3, 12, 5, 8, 6, 2, 10]) {
                0 => {
                    let batch = script.batch();
                    let outcome = stores.same(&batch, |store| store.decide(&batch, now)).await;
                    *(if outcome.is_allowed() {
                        &mut allowed
                    } else {
                        &mut denied
                    }) += 1;
                }
                1 => {
                    let owed = script.owed();
                    stores
                        .same(&owed, |store| store.refund(owed.clone(), now))
                        .await;
                }
                2 => {
                    let key = script.key();
                    stores
                        .same(&key, |store| {
                            store.reset([key.clone()].into_iter().collect())
                        })
                        .await;
                }
                3 => {
                    let claims = script.claims();
                    let (mut guards, mut outcomes) = (Vec::new(), Vec::new());
                    for store in &stores.all {
                        let leased = store.acquire(claims.clone(), now).await.unwrap();
                        outcomes.push(leased.outcome);
                        guards.push(leased.guard);
                        stores.settle().await;
                    }
                    assert_eq!(outcomes[0], outcomes[1], "{claims:#?}");
                    assert_eq!(outcomes[0], outcomes[2], "{claims:#?}");
                    held.push(guards);
                }
                4 if !held.is_empty() => {
                    drop(held.swap_remove(script.random.index(held.len())));
                    stores.settle().await;
                }
                5 => {
                    let (add, text) = (
                        script.entries(),
                        format!("{{\"subject\":{}}}", script.random.between(0, 9)),
                    );
                    // Versions are random.
                    let removed = async |store: &Redis| {
                        let changed = store.change("bans", add.clone(), vec![text.clone()], now);
                        let changed = changed.await.unwrap();
                        assert_eq!(store.version("bans").await.unwrap(), changed.after);
                        changed.removed
                    };
                    let counts = [
                        removed(&stores.all[0]).await,
                        removed(&stores.all[1]).await,
                        removed(&stores.all[2]).await,
                    ];
                    assert_eq!(counts, [counts[0]; 3], "{add:?} {text}");
                }
                6 => {
                    let from = now.as_nanos() / 1_000_000;
                    let (skip, count) = (script.random.index(3), script.random.index(9));
                    stores
                        .same(&from, |store| store.entries("bans", from, skip, count))
                        .await;
                }
                7 => {
                    let scanned = stores.scanned().await;
                    assert_eq!(scanned[0], scanned[1]);
                    assert_eq!(scanned[0], scanned[2]);
                }
                _ => {
                    let key = format!("weir:L:{}", script.random.between(0, KEYS));
                    let marks = ["", "%f", "%w", "%l", "%i"];
                    let key = key + marks[script.random.index(marks.len())];
                    match open.take() {
                        Some(slot) => stores.close_slot(&slot),
                        None => {
                            open =
                                stores.open_slot(slot_of(key.as_bytes()), script.random.index(3));
                            let moves = script.random.chance(50);
                            open.iter()
                                .filter(|_| moves)
                                .for_each(|slot| stores.move_keys(slot));
                        }
                    }
                }
            }
        }
        // A sequence in which nothing much happens proves nothing.
        assert!(
            allowed > STEPS / 10 && denied > STEPS / 10,
            "{allowed} {denied}"
        );
    }
}
