//! Which server is connected to: names with several addresses, names that move, passwords that
//! change, and servers that are no primaries by themselves.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tempfile::TempDir;
use weir_store::{GuardSettings, Guarded, Memory, MemorySettings, OnFailure, Reachability};

use super::*;

/// A name, where it leads, and how often that was asked.
#[derive(Clone, Default)]
struct Name(Arc<Mutex<(Vec<SocketAddr>, usize)>>);

impl Name {
    fn of(addresses: &[SocketAddr]) -> Self {
        let name = Self::default();
        name.leads_to(addresses);
        name
    }

    fn leads_to(&self, addresses: &[SocketAddr]) {
        *self.0.lock() = (addresses.to_vec(), 0);
    }

    fn asked(&self) -> usize {
        self.0.lock().1
    }

    fn settings(&self) -> RedisSettings {
        let name = self.clone();
        let mut settings = RedisSettings::parse("redis://redis.example", None, None).unwrap();
        settings.network.resolve = Arc::new(move |_, _| {
            let mut name = name.0.lock();
            name.1 += 1;
            let addresses = name.0.clone();
            Box::pin(async move { Ok(addresses) })
        });
        settings
    }
}

/// A real server at an address.
fn serve(extra: &[&str]) -> (RedisServer, SocketAddr) {
    let port = free_port();
    let server = RedisServer::start_with(|_| {
        let port = port.to_string();
        let base = ["--port", &port].map(str::to_owned).into_iter();
        base.chain(extra.iter().map(|&word| word.to_owned()))
            .collect()
    });
    (server, SocketAddr::from(([127, 0, 0, 1], port)))
}

/// Addresses that swallow what is sent to them: the listener's queue is full, so it answers no
/// more.
struct BlackHole {
    port: u16,
    _listener: socket2::Socket,
    _queued: Vec<std::net::TcpStream>,
}

impl BlackHole {
    fn new() -> Self {
        let listener = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        let listener = listener.unwrap();
        let any = SocketAddr::from(([0, 0, 0, 0], 0));
        listener.bind(&any.into()).unwrap();
        listener.listen(0).unwrap();
        let port = listener.local_addr().unwrap().as_socket().unwrap().port();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let brief = Duration::from_millis(100);
        let enter = || std::net::TcpStream::connect_timeout(&address, brief).ok();
        Self {
            port,
            _queued: std::iter::from_fn(enter).collect(),
            _listener: listener,
        }
    }

    /// One address of many.
    fn address(&self, number: u8) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, number], self.port))
    }
}

pub(super) async fn why_not(redis: &Redis, reason: &str) -> String {
    eventually_some(reason, async || {
        let refusal = redis.connected(Duration::from_millis(5)).await.err()?;
        let why = std::error::Error::source(&refusal)?.to_string();
        why.contains(reason).then_some(why)
    })
    .await
}

/// The first reason why not, but for the end of an attempt during which the machine paused.
pub(super) async fn first_reason(redis: &Redis) -> String {
    eventually_some("a reason", async || {
        let refusal = redis.connected(Duration::from_millis(1)).await.unwrap_err();
        let why = std::error::Error::source(&refusal)?.to_string();
        (!why.contains("timed out")).then_some(why)
    })
    .await
}

/// A server without TLS takes a handshake for a command, and waits for the end of the line.
#[tokio::test]
async fn a_tls_url_that_leads_to_a_port_without_tls_is_named_as_that() {
    let (_server, there) = serve(&[]);
    let settings = RedisSettings::parse(&format!("rediss://{there}"), None, None).unwrap();
    let redis = Redis::spawn(settings, Arc::new(Unobserved)).unwrap();
    let why = why_not(&redis, "TLS").await;
    assert!(why.contains("redis://"), "{why}");
}

#[tokio::test]
async fn an_address_that_swallows_what_is_sent_does_not_hide_the_next() {
    let hole = BlackHole::new();
    let (_server, there) = serve(&[]);
    for addresses in [[hole.address(1), there], [there, hole.address(1)]] {
        connect(Name::of(&addresses).settings()).await;
    }
}

#[tokio::test]
async fn more_swallowing_addresses_than_one_attempt_has_time_for_hide_the_next_no_longer_either() {
    let hole = BlackHole::new();
    let (_server, there) = serve(&[]);
    let holes = (1..7).map(|number| hole.address(number));
    let addresses: Vec<_> = holes.chain([there]).collect();
    let name = Name::of(&addresses);
    connect(name.settings()).await;
    assert!(name.asked() > 1);
}

#[tokio::test]
async fn each_attempt_begins_after_the_address_that_failed_last() {
    let (replica, one) = serve(&["--replicaof", "127.0.0.1 1"]);
    let (_primary, other) = serve(&[]);
    // The replica accepts first, time and again.
    let redis = connect(Name::of(&[one, other]).settings()).await;
    redis.probe().await.unwrap();
    assert_eq!(replica.calls("bitfield"), 0);
}

#[tokio::test]
async fn a_name_that_moves_is_followed_although_the_old_server_goes_on_to_serve() {
    let (old, before) = serve(&[]);
    let (new, after) = serve(&[]);
    let name = Name::of(&[before]);
    let redis = connect(name.settings()).await;
    redis.probe().await.unwrap();
    assert_eq!(old.calls("bitfield"), 1);
    let session = || redis.session();
    let first = session();
    // A name that stays, or cannot be resolved, is no reason to connect again.
    for stays in [&[after, before][..], &[]] {
        name.leads_to(stays);
        eventually("the name was resolved", || name.asked() > 0).await;
        assert!(Arc::ptr_eq(&session(), &first));
    }
    name.leads_to(&[after]);
    eventually_some("the new server is asked", async || {
        // A machine that pauses does not keep the deadline, which ends the connection.
        let _ = redis.probe().await;
        (new.calls("bitfield") > 0).then_some(())
    })
    .await;
    redis.connected(PATIENCE).await.unwrap();
    // Where nothing serves, nobody follows.
    let served = new.calls("bitfield");
    name.leads_to(&[SocketAddr::from(([127, 0, 0, 1], free_port()))]);
    // Once to see that it has moved, and once to connect.
    eventually("nobody was there", || name.asked() >= 2).await;
    redis.probe().await.unwrap();
    assert_eq!(new.calls("bitfield"), served + 1);
}

#[tokio::test]
async fn a_planned_failover_is_followed_by_the_role_although_nobody_cuts_connections() {
    let (old, before) = serve(&[]);
    let (new, after) = serve(&[]);
    let name = Name::of(&[before]);
    let redis = connect(name.settings()).await;
    name.leads_to(&[after]);
    let port = after.port().to_string();
    old.command(&["REPLICAOF", "127.0.0.1", &port]);
    // No request comes: the ping finds out.
    let answer = redis.ping().await.unwrap_err();
    let why = std::error::Error::source(&answer).unwrap().to_string();
    assert!(why.contains("replica"), "{why}");
    redis.connected(PATIENCE).await.unwrap();
    redis.probe().await.unwrap();
    assert_eq!(new.calls("bitfield"), 1);
}

/// The first is answered, and none after it.
#[tokio::test]
async fn a_look_up_that_never_ends_does_not_hide_that_the_connection_broke_nor_stop_the_next() {
    let (mut server, address) = serve(&[]);
    let asked = Arc::new(AtomicUsize::new(0));
    let asks = Arc::clone(&asked);
    let mut settings = RedisSettings::parse("redis://redis.example", None, None).unwrap();
    settings.network.resolve = Arc::new(move |_, _| match asks.fetch_add(1, Ordering::SeqCst) {
        0 => Box::pin(async move { Ok(vec![address]) }),
        _ => Box::pin(std::future::pending()),
    });
    let redis = connect(settings).await;
    eventually("two look-ups have begun", || {
        asked.load(Ordering::SeqCst) > 2
    })
    .await;
    redis.probe().await.unwrap();
    server.kill();
    redis.manager().lost().await;
}

#[tokio::test]
async fn changed_files_of_user_password_and_authorities_are_taken_at_the_next_connect() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name);
    let write = |name: &str, text: &str| std::fs::write(path(name), text).unwrap();
    write("user", "default\n");
    write("password", "first\n");
    let (server, port) = serve_tls(&["--requirepass", "first"]);
    let ca = std::fs::read_to_string(server.socket().with_file_name("cert.pem")).unwrap();
    let url = format!("rediss://127.0.0.1:{port}");
    let parsed = RedisSettings::parse(&url, Some("default".into()), Some("first".into()));
    let settings = parsed.unwrap().with_ca(ca.as_bytes()).unwrap();
    write("ca", &ca);
    let settings = settings
        .with_login(RedisLogin {
            username: Some(LoginPart::File(path("user"))),
            password: Some(LoginPart::File(path("password"))),
        })
        .with_ca_file(path("ca"));
    let redis = connect(settings).await;
    let admin = |words: &str| server.command(&[&format!("AUTH first\r\n{words}")]);
    admin(
        "ACL SETUSER ann on >second ~* +@all\r\nCONFIG SET requirepass other\r\nCLIENT KILL TYPE normal SKIPME yes",
    );
    redis.ping().await.unwrap_err();
    why_not(&redis, "uthentication").await;
    write("user", "ann\n");
    write("password", "");
    let why = why_not(&redis, "is empty").await;
    assert!(why.contains("password"), "{why}");
    std::fs::remove_file(path("password")).unwrap();
    why_not(&redis, "cannot be read").await;
    write("ca", "none");
    why_not(&redis, "no PEM certificate").await;
    write("password", "second\r\n");
    write("ca", &ca);
    redis.connected(PATIENCE).await.unwrap();
    redis.probe().await.unwrap();
}

/// A worker's store, and who is told of it.
fn guard(redis: Redis) -> (Guarded<Redis>, Arc<Recorder>) {
    let recorder = Arc::<Recorder>::default();
    let reachability = Arc::new(Reachability::new(Arc::<Recorder>::clone(&recorder)));
    let settings = GuardSettings {
        timeout: Duration::from_secs(10),
        on_failure: OnFailure::Local,
        ..GuardSettings::default()
    };
    let max_buckets = std::num::NonZeroUsize::MIN.saturating_add(99);
    let memory = Arc::new(Memory::new(MemorySettings { max_buckets }));
    let guarded = Guarded::spawn(redis, settings, reachability, memory);
    (guarded, recorder)
}

/// A node of a Cluster with all slots.
fn cluster_node() -> (RedisServer, SocketAddr) {
    let bus = free_port().to_string();
    let (server, address) = serve(&["--cluster-enabled", "yes", "--cluster-port", &bus]);
    server.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    (server, address)
}

async fn until_it_serves(server: &RedisServer) {
    let state = || server.command(&["CLUSTER", "INFO"]);
    eventually("the cluster is up", || state().contains("cluster_state:ok")).await;
}

#[tokio::test]
async fn a_node_of_a_cluster_that_loses_slots_is_left_for_good_and_says_so() {
    let (server, address) = cluster_node();
    until_it_serves(&server).await;
    let url = format!("redis://{address}");
    let redis = connect(RedisSettings::parse(&url, None, None).unwrap()).await;
    let (guarded, recorder) = guard(redis);
    // A node that has all keys counts as any other server.
    let ask = async |number: u32| {
        let transaction = spend(&format!("L:{number}"), 1);
        guarded
            .decide(&batch([transaction]), NOW)
            .await
            .unwrap()
            .source
    };
    for number in 0..40 {
        assert_eq!(ask(number).await, DecisionSource::Store);
    }
    server.command(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    server.command(&["CLUSTER", "DELSLOTSRANGE", "0", "8191"]);
    eventually_some("the breaker is open", async || {
        for number in 0..40 {
            ask(number).await;
        }
        (!guarded.is_reachable()).then_some(())
    })
    .await;
    let why = why_not(guarded.get_ref(), "Cluster").await;
    assert!(why.contains("Hash slot not served"), "{why}");
    // It is tried again and again, and never taken for well.
    let tried = server.calls("hello");
    eventually("it was tried five times more", || {
        server.calls("hello") >= tried + 5
    })
    .await;
    assert_eq!(recorder.changes(), [false]);
    server.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "8191"]);
    eventually("it is used again", || guarded.is_reachable()).await;
}

#[tokio::test]
async fn a_node_that_has_but_some_slots_is_never_used() {
    let (server, address) = cluster_node();
    server.command(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    server.command(&["CLUSTER", "DELSLOTSRANGE", "0", "4095"]);
    let settings = RedisSettings::parse(&format!("redis://{address}"), None, None);
    let redis = Redis::spawn(settings.unwrap(), Arc::new(Unobserved)).unwrap();
    why_not(&redis, "Cluster").await;
}

struct Sentinel {
    folder: TempDir,
    process: Child,
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test]
async fn a_sentinel_is_never_used_and_the_reason_says_what_it_is() {
    let folder = TempDir::with_prefix("weir-sentinel-").unwrap();
    std::fs::write(folder.path().join("sentinel.conf"), "").unwrap();
    let process = Command::new("redis-server")
        .current_dir(&folder)
        .args(["sentinel.conf", "--sentinel", "--port", "0"])
        .args(["--unixsocket", "redis.sock"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let sentinel = Sentinel { folder, process };
    let url = format!("unix://{}/redis.sock", sentinel.folder.path().display());
    let settings = RedisSettings::parse(&url, None, None).unwrap();
    let redis = Redis::spawn(settings, Arc::new(Unobserved)).unwrap();
    why_not(&redis, "Sentinel").await;
    let (guarded, recorder) = guard(redis);
    eventually("the breaker is open", || !guarded.is_reachable()).await;
    let outcome = guarded.decide(&batch([spend("L:a", 1)]), NOW).await;
    assert_eq!(outcome.unwrap().source, DecisionSource::Local);
    assert_eq!(recorder.changes(), [false]);
}
