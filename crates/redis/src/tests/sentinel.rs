//! Real Sentinels, and a store that follows the primary that they name.

use std::path::Path;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast;
use weir_store::{Guarded, Memory, MemorySettings, Observer, OnFailure};

use super::super::manager::Session;
use super::connecting::why_not;
use super::*;
use weir_testing::certificates::openssl;
use weir_testing::sentinels::{Options, PRIMARY, Sentinels};

/// Which primaries and Sentinels were told of.
#[derive(Default)]
struct Witness {
    primaries: Mutex<Vec<String>>,
    failures: Mutex<Vec<String>>,
}

impl Observer for Witness {
    fn called(&self, _: Call, _: Duration, _: Option<&StoreError>) {}

    fn state_changed(&self, _: bool, _: Option<&StoreError>) {}

    fn clock_measured(
        &self,
        _: Option<&str>,
        _: Result<weir_store::ClockOffset, &dyn std::error::Error>,
    ) {
    }

    fn primary_named(&self, primary: &str) {
        self.primaries.lock().push(primary.to_owned());
    }

    fn sentinel_changed(&self, sentinel: &str, failure: Option<&dyn std::error::Error>) {
        let failure = failure.map_or("well".to_owned(), ToString::to_string);
        self.failures.lock().push(format!("{sentinel} {failure}"));
    }
}

fn settings(urls: &[String], primary: &str) -> RedisSettings {
    let mut nodes = RedisNodes::default();
    for url in urls {
        nodes.add(url).unwrap();
    }
    RedisSettings::sentinel(nodes, RedisLogin::default(), primary, 0).unwrap()
}

/// A unit of a bucket of a hundred.
fn of_hundred() -> Transaction {
    Transaction {
        quota: Quota::new(100, 1, Duration::from_secs(3600)).unwrap(),
        ..spend("L:a", 1)
    }
}

/// How many of these units are given.
async fn admitted(redis: &Redis, requests: usize) -> usize {
    let requests = (0..requests).map(|_| redis.decide(&batch([of_hundred()]), NOW));
    let outcomes = join_all(requests).await;
    let outcomes = outcomes.into_iter().map(Result::unwrap);
    outcomes.filter(Outcome::is_allowed).count()
}

/// The connection that the store uses now.
fn session(redis: &Redis) -> Arc<Session> {
    redis.manager().session().unwrap()
}

/// Waits until the store has left this connection, to this server, for another server, and returns
/// for which.
async fn moved(
    redis: &Redis,
    deployment: &Sentinels,
    (session, from): (Arc<Session>, usize),
) -> usize {
    eventually("there is another connection", || {
        let current = redis.manager().session();
        current.is_ok_and(|current| !Arc::ptr_eq(&current, &session))
    })
    .await;
    // Replicas carry out what the primary does, but for this.
    let is_used = |server: &usize| deployment.servers[*server].calls("hello") > 0;
    let mut others = (0..deployment.servers.len()).filter(|other| *other != from);
    others.find(is_used).expect("another server")
}

/// What is known to be in the replicas stays taken, and no more is given than the rest.
async fn moves_when(event: impl FnOnce(&mut Sentinels, usize)) -> (Redis, Sentinels, usize, usize) {
    let mut deployment = Sentinels::start();
    let redis = connect(settings(&deployment.urls(), PRIMARY)).await;
    let old = deployment.primary_by(0);
    assert_eq!(admitted(&redis, 60).await, 60);
    deployment.await_replicated(old);
    let before = (session(&redis), old);
    event(&mut deployment, old);
    let new = moved(&redis, &deployment, before).await;
    assert_eq!(admitted(&redis, 100).await, 40);
    (redis, deployment, old, new)
}

#[tokio::test]
async fn a_planned_failover_is_followed_and_nothing_more_is_taken_at_the_old_primary() {
    let (redis, deployment, old, new) = moves_when(|deployment, _| deployment.fail_over(1)).await;
    // The others are told by the one that leads.
    for sentinel in 0..3 {
        eventually("all Sentinels name the new primary", || {
            deployment.primary_by(sentinel) == new
        })
        .await;
    }
    let asked = deployment.servers[old].calls("hello");
    redis.ping().await.unwrap();
    redis.probe().await.unwrap();
    assert_eq!(deployment.servers[old].calls("hello"), asked);
}

#[tokio::test]
async fn a_primary_that_is_killed_is_replaced() {
    moves_when(|deployment, old| {
        deployment.servers[old].kill();
        deployment.fail_over_from(old);
    })
    .await;
}

#[tokio::test]
async fn a_primary_that_is_frozen_is_left_and_what_is_under_way_there_is_lost_and_not_repeated() {
    let mut deployment = Sentinels::start();
    let redis = connect(settings(&deployment.urls(), PRIMARY)).await;
    let old = deployment.primary_by(0);
    assert_eq!(admitted(&redis, 60).await, 60);
    deployment.await_replicated(old);
    let connected = session(&redis);
    deployment.servers[old].stop();
    let under_way = redis.decide(&batch([spend("L:a", 7)]), NOW);
    deployment.fail_over_from(old);
    // It has no deadline here, so only the move ends it.
    let lost = under_way.await.unwrap_err();
    assert!(matches!(lost, StoreError::Lost(_)), "{lost:?}");
    let why = connected.connection.ended().await.to_string();
    assert!(why.contains("the Sentinels say"), "{why}");
    redis.connected(PATIENCE).await.unwrap();
    assert_eq!(admitted(&redis, 100).await, 40);
    // It wakes up as a primary, carries out what it was sent, and is not asked again.
    deployment.servers[old].resume();
    eventually("the old primary is a replica", || {
        deployment.is_replica(old)
    })
    .await;
    assert_eq!(admitted(&redis, 1).await, 0);
    // The servers go one after the other.
    let new = deployment.primary_by(0);
    assert_ne!(new, old);
    deployment.servers[new].kill();
    deployment.fail_over_from(new);
    eventually_some("the store has gone on", async || redis.probe().await.ok()).await;
}

/// Its late answers used to be given back to the successor, which had never given anything.
#[tokio::test]
async fn what_a_frozen_primary_takes_after_it_was_replaced_is_not_given_back_to_its_successor() {
    const DENIED: usize = 10;
    let deployment = Sentinels::start();
    let recorder = Arc::<Recorder>::default();
    let observer: Arc<dyn Observer> = Arc::<Recorder>::clone(&recorder);
    let redis = connect(settings(&deployment.urls(), PRIMARY)).await;
    let guarded = Guarded::spawn(
        redis,
        GuardSettings {
            timeout: Duration::from_millis(500),
            on_failure: OnFailure::Deny,
            ..GuardSettings::default()
        },
        Arc::new(Reachability::new(observer)),
        Arc::new(Memory::new(MemorySettings::default())),
    );
    let redis = guarded.get_ref();
    let old = deployment.primary_by(0);
    assert_eq!(admitted(redis, 60).await, 60);
    deployment.await_replicated(old);
    deployment.servers[old].stop();
    let denied = join_all((0..DENIED).map(|_| guarded.admit(&batch([of_hundred()]), NOW))).await;
    assert!(denied.iter().all(Result::is_err));
    // A connection that was given up before the failover is not closed by it.
    eventually("the connection is given up", || {
        redis.manager().session().is_err()
    })
    .await;
    deployment.fail_over_from(old);
    redis.connected(PATIENCE).await.unwrap();
    let new = deployment.primary_by(0);
    assert_ne!(new, old);
    deployment.servers[old].resume();
    let refunds = || {
        let calls = recorder.calls();
        calls
            .iter()
            .filter(|(call, _)| *call == Call::Refund)
            .count()
    };
    eventually("late answers are seen to", || refunds() == DENIED).await;
    assert_eq!(admitted(redis, 100).await, 40);
}

#[tokio::test]
async fn what_a_primary_took_is_forgotten_with_it() {
    let deployment = Sentinels::start();
    let redis = connect(settings(&deployment.urls(), PRIMARY)).await;
    let old = deployment.primary_by(0);
    let mut taken = redis.decide(&batch([of_hundred()]), NOW);
    assert!((&mut taken).await.unwrap().is_allowed());
    deployment.await_replicated(old);
    let before = (session(&redis), old);
    deployment.fail_over(1);
    moved(&redis, &deployment, before).await;
    assert!(taken.refund(owed([of_hundred()]), NOW).await.is_err());
    assert_eq!(admitted(&redis, 120).await, 99);
}

#[tokio::test]
async fn without_a_word_from_any_sentinel_the_store_stays_where_it_is() {
    let mut deployment = Sentinels::start();
    let redis = connect(settings(&deployment.urls(), PRIMARY)).await;
    for sentinel in &mut deployment.sentinels {
        sentinel.kill();
    }
    assert_eq!(admitted(&redis, 30).await, 30);
    let connected = session(&redis);
    let primary = &deployment.servers[0];
    primary.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    connected.connection.ended().await;
    eventually_some("the store is back", async || redis.probe().await.ok()).await;
    assert_eq!(admitted(&redis, 100).await, 70);
    for sentinel in &mut deployment.sentinels {
        sentinel.restart();
    }
    // They have kept what they knew, and lead elsewhere as before.
    let before = (session(&redis), 0);
    deployment.fail_over(2);
    moved(&redis, &deployment, before).await;
}

#[tokio::test]
async fn a_sentinel_that_is_frozen_or_gone_holds_up_nothing() {
    let mut deployment = Sentinels::start();
    deployment.sentinels[0].stop();
    deployment.sentinels[1].kill();
    let witness = Arc::<Witness>::default();
    let settings = settings(&deployment.urls(), PRIMARY);
    let observer = Arc::clone(&witness) as Arc<dyn Observer>;
    let redis = Redis::spawn(settings, observer).unwrap();
    redis.connected(PATIENCE).await.unwrap();
    let before = (session(&redis), 0);
    deployment.fail_over(2);
    let new = moved(&redis, &deployment, before).await;
    let address = |server: usize| format!("127.0.0.1:{}", deployment.ports[server]);
    let named = [address(0), address(new)];
    eventually("both are told of", || *witness.primaries.lock() == named).await;
    // Both are told of, and when one is back.
    let told = |sentinel: usize, how: &str| {
        let start = format!("127.0.0.1:{} ", deployment.sentinel_ports[sentinel]);
        let failures = witness.failures.lock();
        let mut told = failures.iter().filter_map(|line| line.strip_prefix(&start));
        told.any(|failure| failure.contains(how))
    };
    eventually("they fail", || told(0, "timed out") && told(1, "refused")).await;
    deployment.sentinels[0].resume();
    eventually("it is well again", || told(0, "well")).await;
}

#[tokio::test]
async fn all_stores_of_a_process_share_one_subscription_to_each_sentinel() {
    let deployment = Sentinels::start();
    let observer = Arc::new(Unobserved) as Arc<dyn Observer>;
    let settings = settings(&deployment.urls(), PRIMARY).shared(&observer);
    let mut stores = Vec::new();
    for _ in 0..8 {
        stores.push(connect(settings.clone()).await);
    }
    let subscriptions = |sentinel: usize| {
        let clients = deployment.sentinels[sentinel].command(&["CLIENT", "LIST"]);
        clients.matches(" sub=3 ").count()
    };
    for sentinel in 0..3 {
        eventually("it is subscribed to", || subscriptions(sentinel) == 1).await;
    }
    drop((stores, settings));
    for sentinel in 0..3 {
        eventually("nothing is left", || subscriptions(sentinel) == 0).await;
    }
}

#[tokio::test]
async fn what_keeps_the_primary_from_being_known_is_the_reason_that_is_told() {
    let deployment = Sentinels::start();
    let urls = deployment.urls();
    let nobody = vec![format!("redis://127.0.0.1:{}", free_port())];
    let wrong_password = RedisLogin {
        password: Some(LoginPart::Text("wrong".to_owned())),
        ..RedisLogin::default()
    };
    let mut nodes = RedisNodes::default();
    nodes.add(&urls[0]).unwrap();
    let wrong = RedisSettings::sentinel(nodes, wrong_password, PRIMARY, 0).unwrap();
    // A data server is not a Sentinel.
    let server = vec![format!("redis://127.0.0.1:{}", deployment.ports[0])];
    for (settings, reason) in [
        (settings(&urls, "other"), "No such master"),
        (settings(&nobody, PRIMARY), "refused"),
        (wrong, "uthentication"),
        (settings(&server, PRIMARY), "unknown command"),
    ] {
        let redis = Redis::spawn(settings, Arc::new(Unobserved)).unwrap();
        let why = why_not(&redis, reason).await;
        assert!(why.contains("the Sentinel at 127.0.0.1:"), "{why}");
    }
}

/// The rights that docs/REDIS.md lists.
#[tokio::test]
async fn users_with_the_documented_rights_can_follow_a_failover() {
    let deployment = Sentinels::start();
    let [of_server, of_sentinel] = ["+select", "+switch-master"].map(rights::documented);
    for (servers, line) in [
        (&deployment.servers, of_server),
        (&deployment.sentinels, of_sentinel),
    ] {
        for server in servers {
            let reply = server.command(&[line]);
            assert!(reply.starts_with("+OK"), "{reply}");
            // Nothing else lets the store in. Replicas and Sentinels log in by themselves.
            server.command(&["ACL", "SETUSER", "default", "-bitfield", "-subscribe"]);
        }
    }
    let login = rights::login();
    let mut nodes = RedisNodes::default();
    for url in deployment.urls() {
        nodes.add(&url).unwrap();
    }
    let settings = RedisSettings::sentinel(nodes, login.clone(), PRIMARY, 2).unwrap();
    let redis = connect(settings.with_login(login)).await;
    assert_eq!(admitted(&redis, 60).await, 60);
    deployment.await_replicated(0);
    let before = (session(&redis), 0);
    deployment.fail_over(0);
    moved(&redis, &deployment, before).await;
    assert_eq!(admitted(&redis, 100).await, 40);
}

/// Makes an authority, and by it a certificate for a name that nothing is reached by.
fn certify(folder: &Path) {
    let openssl = |arguments: &str| {
        openssl(folder, &arguments.split(' ').collect::<Vec<_>>());
    };
    let (ca, key) = AUTHORITY.get_or_init(|| {
        openssl(
            "req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:P-256 -days 2 -subj /CN=ca \
             -keyout ca.key -out ca.pem",
        );
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
        (read("ca.pem"), read("ca.key"))
    });
    std::fs::write(folder.join("ca.pem"), ca).unwrap();
    std::fs::write(folder.join("ca.key"), key).unwrap();
    openssl(
        "req -nodes -newkey ec -pkeyopt ec_paramgen_curve:P-256 -subj /CN=redis.internal \
         -addext subjectAltName=DNS:redis.internal -keyout key.pem -out request.pem",
    );
    openssl(
        "x509 -req -in request.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 \
         -copy_extensions copyall -out cert.pem",
    );
}

static AUTHORITY: std::sync::OnceLock<(String, String)> = std::sync::OnceLock::new();

#[tokio::test]
async fn tls_with_a_private_authority_and_a_common_name_reaches_sentinels_and_primary() {
    let deployment = Sentinels::start_with(&Options {
        certify: Some(certify),
    });
    let (ca, _) = AUTHORITY.get().unwrap();
    let trusting = || settings(&deployment.urls(), PRIMARY).with_ca(ca.as_bytes());
    let unnamed = Redis::spawn(trusting().unwrap(), Arc::new(Unobserved)).unwrap();
    why_not(&unnamed, "certificate").await;
    let named = trusting().unwrap().with_tls_name("redis.internal").unwrap();
    let redis = connect(named).await;
    assert_eq!(admitted(&redis, 60).await, 60);
    deployment.await_replicated(0);
    let before = (session(&redis), 0);
    deployment.fail_over(0);
    moved(&redis, &deployment, before).await;
    assert_eq!(admitted(&redis, 100).await, 40);
}

/// A Sentinel that says and publishes what it is told to, and nothing else.
#[derive(Clone, Default)]
struct Puppet(Arc<Mutex<PuppetState>>);

struct PuppetState {
    port: u16,
    epoch: u32,
    asked: usize,
    messages: broadcast::Sender<String>,
}

impl Default for PuppetState {
    fn default() -> Self {
        Self {
            port: 0,
            epoch: 0,
            asked: 0,
            messages: broadcast::Sender::new(100),
        }
    }
}

impl Puppet {
    async fn start(port: u16, epoch: u32) -> (Self, String) {
        let sentinel = Self::default();
        sentinel.says(port, epoch);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let listening = sentinel.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(listening.clone().attend(client));
            }
        });
        (sentinel, url)
    }

    fn says(&self, port: u16, epoch: u32) {
        let mut state = self.0.lock();
        (state.port, state.epoch) = (port, epoch);
    }

    fn asked(&self) -> usize {
        self.0.lock().asked
    }

    /// Publishes that a server is chosen.
    fn chooses(&self, port: u16) {
        let channel = "+failover-state-wait-promotion";
        let length = channel.len();
        let payload = format!("slave name 127.0.0.1 {port} @ {PRIMARY} 127.0.0.1 1");
        let message = format!("*3\r\n$7\r\nmessage\r\n${length}\r\n{channel}\r\n+{payload}\r\n");
        let _ = self.0.lock().messages.send(message);
    }

    async fn attend(self, mut client: TcpStream) {
        let mut bytes = [0; 4096];
        let mut messages = self.0.lock().messages.subscribe();
        let mut is_subscribed = false;
        loop {
            let reply = tokio::select! {
                Ok(length @ 1..) = client.read(&mut bytes) => {
                    let request = String::from_utf8_lossy(&bytes[..length]).into_owned();
                    is_subscribed |= request.contains("SUBSCRIBE");
                    self.reply(&request)
                }
                Ok(message) = messages.recv(), if is_subscribed => message,
                else => return,
            };
            if client.write_all(reply.as_bytes()).await.is_err() {
                return;
            }
        }
    }

    fn reply(&self, request: &str) -> String {
        if request.contains("SETINFO") {
            return "+OK\r\n+OK\r\n".to_owned();
        }
        if request.contains("SUBSCRIBE") {
            let confirmed = |number: usize| format!("*3\r\n$9\r\nsubscribe\r\n+c\r\n:{number}\r\n");
            return [1, 2, 3].map(confirmed).concat();
        }
        let mut state = self.0.lock();
        state.asked += 1;
        let PuppetState { port, epoch, .. } = *state;
        format!("*2\r\n+config-epoch\r\n+{epoch}\r\n*2\r\n+127.0.0.1\r\n+{port}\r\n")
    }
}

#[tokio::test]
async fn a_primary_that_moves_without_a_message_is_found_by_asking_and_kept() {
    let start = || {
        let port = free_port();
        let server = RedisServer::start_with(|_| vec!["--port".to_owned(), port.to_string()]);
        (server, port)
    };
    let ((one, before), (other, after)) = (start(), start());
    let (sentinel, url) = Puppet::start(before, 3).await;
    // This one is cut off from the others, and never hears of the failover.
    let (outdated, outdated_url) = Puppet::start(before, 3).await;
    let redis = connect(settings(&[url, outdated_url], PRIMARY)).await;
    sentinel.says(after, 4);
    eventually_some("the other server is asked", async || {
        let _ = redis.probe().await;
        (other.calls("bitfield") > 0).then_some(())
    })
    .await;
    let served = one.calls("bitfield");
    let asked = outdated.asked();
    eventually("the outdated one was asked again", || {
        outdated.asked() >= asked + 2
    })
    .await;
    redis.probe().await.unwrap();
    assert_eq!(one.calls("bitfield"), served);
}

/// The Sentinel that leads a failover notices a second later, and names the old primary till then.
#[tokio::test]
async fn a_chosen_replica_is_used_as_soon_as_it_says_that_it_is_the_primary() {
    let [before, after] = [free_port(), free_port()];
    let start = |port: u16, extra: [String; 2]| {
        let port = ["--port".to_owned(), port.to_string()];
        RedisServer::start_with(|_| [port, extra].concat())
    };
    let words = |name: &str, value: String| [name.to_owned(), value];
    let one = start(before, words("--databases", "16".to_owned()));
    let other = start(after, words("--replicaof", format!("127.0.0.1 {before}")));
    let (sentinel, url) = Puppet::start(before, 3).await;
    let redis = connect(settings(&[url], PRIMARY)).await;
    let first = session(&redis);
    let has_moved = || {
        let current = redis.manager().session();
        current.is_ok_and(|current| !Arc::ptr_eq(&current, &first))
    };
    let looks = || other.calls("hello");
    sentinel.chooses(after);
    let seen = looks();
    eventually("it is looked at", || looks() >= seen + 2).await;
    assert!(!has_moved(), "it is a replica");
    other.command(&["REPLICAOF", "NO", "ONE"]);
    // A look does not last for ever, and this machine may be slow.
    while !has_moved() {
        let seen = looks();
        sentinel.chooses(after);
        eventually("it is looked at again", || has_moved() || looks() > seen).await;
    }
    let served = one.calls("bitfield");
    let asked = sentinel.asked();
    eventually("the old one is named again", || sentinel.asked() > asked).await;
    redis.probe().await.unwrap();
    assert_eq!(one.calls("bitfield"), served);
    assert_eq!(other.calls("bitfield"), 1);
}
