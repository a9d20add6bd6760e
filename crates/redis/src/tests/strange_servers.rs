//! Servers that fail, and some that are no Redis.

use std::sync::atomic::{AtomicUsize, Ordering};

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use weir_limit::time::{Clock, SystemClock};

use super::connecting::first_reason;
use super::*;

/// What says that it is a Redis, and answers each request with what the test has written down.
struct Impostor {
    folder: TempDir,
    logins: Arc<AtomicUsize>,
}

impl Impostor {
    /// Gives the first request after a login the first reply, and so on; the last one again and
    /// again.
    fn answering<const N: usize>(replies: [&str; N]) -> Self {
        let replies = replies.map(str::to_owned).to_vec();
        let folder = TempDir::with_prefix("weir-impostor-").unwrap();
        let listener = UnixListener::bind(folder.path().join("redis.sock")).unwrap();
        let logins = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&logins);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(attend(client, replies.clone(), Arc::clone(&counted)));
            }
        });
        Self { folder, logins }
    }

    async fn redis(&self) -> Redis {
        let socket = self.folder.path().join("redis.sock");
        let url = format!("unix://{}", socket.display());
        connect(RedisSettings::parse(&url, None, None).unwrap()).await
    }

    fn logins(&self) -> usize {
        self.logins.load(Ordering::SeqCst)
    }
}

async fn attend(mut client: UnixStream, replies: Vec<String>, logins: Arc<AtomicUsize>) {
    let last = replies.last().unwrap();
    let mut replies = replies.iter();
    let mut bytes = [0; 4096];
    while let Ok(length @ 1..) = client.read(&mut bytes).await {
        let request = String::from_utf8_lossy(&bytes[..length]).into_owned();
        let reply = if request.contains("SETINFO") {
            logins.fetch_add(1, Ordering::SeqCst);
            "+OK\r\n+OK\r\n".to_owned()
        } else if request.contains("HELLO") {
            introduction()
        } else {
            replies.next().unwrap_or(last).clone()
        };
        if reply.is_empty() || client.write_all(reply.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// What a server answers that has the right time, and stands alone.
fn introduction() -> String {
    let micros = SystemClock.now().as_nanos() / 1000;
    let (seconds, micros) = (micros / 1_000_000, micros % 1_000_000);
    format!(
        "*4\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n\
         *2\r\n$10\r\n{seconds}\r\n$6\r\n{micros:06}\r\n"
    )
}

const TAKEN: &str = "*5\r\n:0\r\n:0\r\n:9\r\n:5\r\n:7\r\n:1\r\n";

async fn ask(redis: &Redis) -> Result<Outcome, StoreError> {
    redis.decide(&batch([spend("L:a", 1)]), NOW).await
}

#[tokio::test]
async fn errors_of_a_server_are_answers_and_its_connection_stays() {
    for error in [
        "-LOADING Redis is loading the dataset in memory\r\n",
        "-BUSY Redis is busy running a script\r\n",
        "-NOAUTH Authentication required.\r\n",
        "-NOPERM this user has no permissions\r\n",
        "-OOM command not allowed when used memory > 'maxmemory'.\r\n",
        "-MISCONF Redis is configured to save RDB snapshots\r\n",
        "-ERR unknown command 'BITFIELD'\r\n",
    ] {
        let impostor = Impostor::answering([&error.repeat(2), TAKEN]);
        let redis = impostor.redis().await;
        let answer = ask(&redis).await.unwrap_err();
        assert!(
            matches!(answer, StoreError::Failed(_)),
            "{error} {answer:?}"
        );
        let detail = error.split_once(' ').unwrap().1.trim_end();
        let source = std::error::Error::source(&answer).unwrap().to_string();
        assert!(source.contains(detail), "{error} {source}");
        assert!(ask(&redis).await.unwrap().is_allowed());
        assert_eq!(impostor.logins(), 1);
    }
}

/// What replication alone tells of others is too late: three replicas let 103 of 100 pass.
#[tokio::test]
async fn an_active_replica_of_keydb_is_used_and_told_of() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut bytes = [0; 4096];
        while let Ok(length @ 1..) = client.read(&mut bytes).await {
            let request = String::from_utf8_lossy(&bytes[..length]).into_owned();
            let reply = match request.contains("HELLO") {
                true => introduction().replace("$6\r\nmaster", "$14\r\nactive-replica"),
                false => "+OK\r\n+OK\r\n".to_owned(),
            };
            client.write_all(reply.as_bytes()).await.unwrap();
        }
    });
    let recorder = Arc::<Recorder>::default();
    let settings = RedisSettings::parse(&url, None, None).unwrap();
    let redis = Redis::spawn(settings, Arc::<Recorder>::clone(&recorder) as _).unwrap();
    redis.connected(PATIENCE).await.unwrap();
    let told = recorder.peculiarities();
    assert!(told.len() == 1 && told[0].contains("KeyDB"), "{told:?}");
}

/// As twemproxy does at `HELLO`, and a server with TLS at what is no handshake.
#[tokio::test]
async fn what_it_means_that_a_server_hangs_up_at_the_first_commands_is_said() {
    for hangs_up_at in ["SETINFO", "HELLO"] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut bytes = [0; 4096];
                while let Ok(length @ 1..) = client.read(&mut bytes).await {
                    let request = String::from_utf8_lossy(&bytes[..length]).into_owned();
                    if request.contains(hangs_up_at) {
                        break;
                    }
                    let _ = client.write_all(b"+OK\r\n+OK\r\n").await;
                }
            }
        });
        let settings = RedisSettings::parse(&url, None, None).unwrap();
        let redis = Redis::spawn(settings, Arc::new(Unobserved)).unwrap();
        let cause = first_reason(&redis).await;
        for word in ["twemproxy", "rediss://"] {
            assert!(cause.contains(word), "{cause}");
        }
    }
}

#[tokio::test]
async fn replies_that_fit_no_question_end_the_connection_before_others_are_misled() {
    for stray in [":1\r\n:1\r\n", "*1\r\n:1\r\n:1\r\n", "+OK\r\n+OK\r\n"] {
        let impostor = Impostor::answering([stray]);
        let redis = impostor.redis().await;
        for logins in 1..4 {
            redis.connected(PATIENCE).await.unwrap();
            assert_eq!(impostor.logins(), logins);
            let answer = ask(&redis).await.unwrap_err();
            assert!(matches!(answer, StoreError::Lost(_)), "{stray} {answer:?}");
        }
    }
}

#[tokio::test]
async fn a_server_that_answers_more_than_it_was_asked_is_left() {
    let impostor = Impostor::answering([&format!("{TAKEN}+PONG\r\n")]);
    let redis = impostor.redis().await;
    assert!(ask(&redis).await.unwrap().is_allowed());
    let answer = ask(&redis).await.unwrap_err();
    assert!(matches!(answer, StoreError::Lost(_)), "{answer:?}");
    redis.connected(PATIENCE).await.unwrap();
    assert_eq!(impostor.logins(), 2);
}

#[tokio::test]
async fn a_server_that_hangs_up_when_it_is_asked_is_given_rests() {
    let impostor = Impostor::answering([""]);
    let redis = impostor.redis().await;
    let start = time::Instant::now();
    for _ in 0..4 {
        redis.connected(PATIENCE).await.unwrap();
        assert!(ask(&redis).await.unwrap_err().is_out_of_reach());
    }
    // At least half of 25, 50 and 100 ms.
    assert!(start.elapsed() >= Duration::from_millis(87));
}

#[tokio::test]
async fn a_server_that_has_become_a_replica_is_left_and_its_name_asked_again() {
    let fixture = Fixture::new().await;
    assert!(ask(&fixture.redis).await.unwrap().is_allowed());
    fixture.server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    let session = || fixture.redis.session();
    let before = session();
    let answer = ask(&fixture.redis).await.unwrap_err();
    assert!(matches!(answer, StoreError::Lost(_)), "{answer:?}");
    fixture.server.command(&["REPLICAOF", "NO", "ONE"]);
    fixture.redis.connected(PATIENCE).await.unwrap();
    assert!(!Arc::ptr_eq(&session(), &before));
    assert!(ask(&fixture.redis).await.unwrap().is_allowed());
}

#[tokio::test]
async fn what_a_cluster_answers_ends_the_connection_with_a_reason_that_says_so() {
    for error in [
        "-MOVED 3999 127.0.0.1:6381\r\n",
        "-ASK 3999 127.0.0.1:6381\r\n",
        "-CROSSSLOT Keys in request don't hash to the same slot\r\n",
        "-CLUSTERDOWN The cluster is down\r\n",
    ] {
        let impostor = Impostor::answering([&error.repeat(2)]);
        let redis = impostor.redis().await;
        let answer = ask(&redis).await.unwrap_err();
        assert!(matches!(answer, StoreError::Lost(_)), "{error} {answer:?}");
        let why = std::error::Error::source(&answer).unwrap().to_string();
        let detail = error.split_once(' ').unwrap().1.trim_end();
        assert!(
            why.contains("Redis Cluster") && why.contains(detail),
            "{why}"
        );
    }
}

/// A server in protected mode, or with as many clients as it may have, says so and hangs up.
#[tokio::test]
async fn why_a_server_lets_nobody_in_is_not_hidden_by_the_connection_that_it_closes() {
    for refusal in [
        "DENIED Redis is running in protected mode because protected mode is enabled",
        "ERR max number of clients reached",
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let _ = client.write_all(format!("-{refusal}\r\n").as_bytes()).await;
            }
        });
        let settings = RedisSettings::parse(&url, None, None).unwrap();
        let redis = Redis::spawn(settings, Arc::new(Unobserved)).unwrap();
        let cause = first_reason(&redis).await;
        assert!(cause.contains(refusal), "{cause}");
    }
}
