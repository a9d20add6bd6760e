//! A real `redis-server` for tests and benches, on a socket of its own in a folder of its own.

#![allow(
    dead_code,
    reason = "no one of the tests and benches that share this uses all of it"
)]
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test without its server fails"
)]

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

const START_DEADLINE: Duration = Duration::from_secs(20);

/// A running `redis-server`, killed when it is dropped.
pub(crate) struct RedisServer {
    folder: TempDir,
    arguments: Vec<String>,
    process: Child,
}

impl RedisServer {
    /// Starts a server that listens on a unix socket only and keeps nothing on disk.
    pub(crate) fn start() -> Self {
        Self::start_with(|_| vec!["--port".into(), "0".into()])
    }

    /// Starts a server with more arguments, which are made from its folder.
    pub(crate) fn start_with(arguments: impl FnOnce(&TempDir) -> Vec<String>) -> Self {
        let folder = TempDir::with_prefix("weir-redis-").expect("a temporary folder");
        let arguments = arguments(&folder);
        let process = spawn(&folder, &arguments);
        let mut server = Self {
            folder,
            arguments,
            process,
        };
        server.await_ready();
        server
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("redis.sock")
    }

    pub(crate) fn url(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// Kills the server at once; everything it knew is lost.
    pub(crate) fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_file(self.socket());
    }

    /// Starts the server again after [`RedisServer::kill`].
    pub(crate) fn restart(&mut self) {
        self.process = spawn(&self.folder, &self.arguments);
        self.await_ready();
    }

    /// Stops the server without closing its connections, as an overloaded machine would.
    pub(crate) fn stop(&self) {
        self.signal("STOP");
    }

    /// Lets a stopped server go on.
    pub(crate) fn resume(&self) {
        self.signal("CONT");
    }

    /// Sends one command on a connection of its own; its reply as Redis wrote it.
    pub(crate) fn command(&self, words: &[&str]) -> String {
        loop {
            match self.try_command(words) {
                // Sentinels cut all connections to a server whose role they change.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
                reply => return reply.expect("redis-server answers"),
            }
        }
    }

    /// How often the server has carried out a command, by `INFO commandstats`.
    pub(crate) fn calls(&self, command: &str) -> u64 {
        let stats = self.command(&["INFO", "commandstats"]);
        let start = format!("cmdstat_{command}:calls=");
        let line = stats.lines().find_map(|line| line.strip_prefix(&start));
        let count = line.and_then(|line| line.split(',').next());
        count.map_or(0, |count| count.parse().expect("a number of calls"))
    }

    fn try_command(&self, words: &[&str]) -> std::io::Result<String> {
        let mut stream = UnixStream::connect(self.socket())?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        // After QUIT the server closes the connection, which ends the reply.
        stream.write_all(format!("{}\r\nQUIT\r\n", words.join(" ")).as_bytes())?;
        let mut reply = Vec::new();
        let mut chunk = [0; 4096];
        loop {
            match stream.read(&mut chunk)? {
                0 => break,
                length => reply.extend_from_slice(chunk.get(..length).unwrap_or_default()),
            }
            // A Sentinel does not know QUIT, and says so after the reply.
            let text = String::from_utf8_lossy(&reply);
            if let Some((reply, _)) = text.split_once("-ERR unknown command 'QUIT'") {
                return Ok(reply.to_owned());
            }
        }
        Ok(String::from_utf8_lossy(&reply).into_owned())
    }

    fn await_ready(&mut self) {
        let deadline = Instant::now() + START_DEADLINE;
        loop {
            match self.try_command(&["PING"]) {
                // A server that wants a password is ready, too.
                Ok(reply) if reply.starts_with("+PONG") || reply.starts_with("-NOAUTH") => return,
                _ => thread::sleep(Duration::from_millis(5)),
            }
            let ended = self.process.try_wait().expect("redis-server's state");
            assert!(ended.is_none(), "redis-server ended at once: {ended:?}");
            assert!(
                Instant::now() < deadline,
                "redis-server is not getting ready"
            );
        }
    }

    fn signal(&self, name: &str) {
        let pid = self.process.id().to_string();
        let status = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(status.expect("the kill command").success());
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn spawn(folder: &TempDir, arguments: &[String]) -> Child {
    let spawned = Command::new("redis-server")
        .current_dir(folder)
        // A Sentinel begins with its file.
        .args(arguments)
        .args(["--unixsocket", "redis.sock"])
        .args(["--save", "", "--appendonly", "no"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    spawned.unwrap_or_else(|error| {
        panic!(
            "redis-server cannot be started ({error}): install it by `apt-get install redis-server`"
        )
    })
}

/// A TCP port that is free now. It is none of those that the system gives to whoever asks for any,
/// since one of them may be taken before it is used.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        // Processes that are started one after the other begin far from each other.
        let first = std::process::id().wrapping_mul(4241);
        let number = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = u16::try_from(20_000 + number % 10_000).expect("a port");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
