//! A real `redis-server`, on a socket of its own in a folder of its own.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::{eventually, uninterrupted};

/// Runs `redis-server` with the arguments that follow. Writes its process id, and ends with it; kills
/// it when standard input is closed, so that it never outlives the process that started it.
const KEEPER: &str = "exec 3<&0; redis-server \"$@\" </dev/null >/dev/null 2>&1 & server=$!; \
                      echo $server; { cat <&3; kill -s KILL $server; } >/dev/null 2>&1 & \
                      wait $server";

/// A running `redis-server`, killed when it is dropped, and at the latest when the process ends.
pub struct RedisServer {
    folder: TempDir,
    arguments: Vec<String>,
    process: Process,
}

struct Process {
    id: String,
    keeper: Child,
    /// Closed, it kills the server.
    alive: Option<ChildStdin>,
}

impl RedisServer {
    /// Starts a server that listens on a unix socket only and keeps nothing on disk.
    pub fn start() -> Self {
        Self::start_with(|_| vec!["--port".into(), "0".into()])
    }

    /// Starts a server with more arguments, which are made from its folder.
    pub fn start_with(arguments: impl FnOnce(&TempDir) -> Vec<String>) -> Self {
        let mut server = Self::launch(arguments);
        server.await_ready();
        server
    }

    /// Starts a server that is not ready yet.
    pub(crate) fn launch(arguments: impl FnOnce(&TempDir) -> Vec<String>) -> Self {
        let folder = TempDir::with_prefix("weir-redis-").expect("a temporary folder");
        let arguments = arguments(&folder);
        let process = Process::spawn(&folder, &arguments);
        Self {
            folder,
            arguments,
            process,
        }
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("redis.sock")
    }

    pub fn url(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// Kills the server at once; everything it knew is lost.
    pub fn kill(&mut self) {
        self.process.kill();
        let _ = fs::remove_file(self.socket());
    }

    /// Starts the server again after [`RedisServer::kill`].
    pub fn restart(&mut self) {
        self.process = Process::spawn(&self.folder, &self.arguments);
        self.await_ready();
    }

    /// Stops the server without closing its connections, as an overloaded machine would.
    pub fn stop(&self) {
        self.signal("STOP");
    }

    /// Lets a stopped server go on.
    pub fn resume(&self) {
        self.signal("CONT");
    }

    /// Sends one command on a connection of its own; its reply as Redis wrote it.
    pub fn command(&self, words: &[&str]) -> String {
        loop {
            match self.try_command(words) {
                // Sentinels cut all connections to a server whose role they change.
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
                    ) => {}
                reply => return reply.expect("redis-server answers"),
            }
        }
    }

    /// How often the server has carried out a command, by `INFO commandstats`.
    pub fn calls(&self, command: &str) -> u64 {
        let stats = self.command(&["INFO", "commandstats"]);
        let start = format!("cmdstat_{command}:calls=");
        let line = stats.lines().find_map(|line| line.strip_prefix(&start));
        let count = line.and_then(|line| line.split(',').next());
        count.map_or(0, |count| count.parse().expect("a number of calls"))
    }

    fn try_command(&self, words: &[&str]) -> std::io::Result<String> {
        let mut stream = UnixStream::connect(self.socket())?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        // After QUIT the server closes the connection, which ends the reply.
        stream.write_all(format!("{}\r\nQUIT\r\n", words.join(" ")).as_bytes())?;
        let mut reply = Vec::new();
        let mut chunk = [0; 4096];
        loop {
            match uninterrupted(|| stream.read(&mut chunk))? {
                0 => break,
                length => reply.extend_from_slice(&chunk[..length]),
            }
            // A Sentinel does not know QUIT, and says so after the reply.
            let text = String::from_utf8_lossy(&reply);
            if let Some((reply, _)) = text.split_once("-ERR unknown command 'QUIT'") {
                return Ok(reply.to_owned());
            }
        }
        Ok(String::from_utf8_lossy(&reply).into_owned())
    }

    pub(crate) fn await_ready(&mut self) {
        eventually("redis-server is ready", || {
            let ended = self.process.keeper.try_wait().expect("its state");
            assert!(
                ended.is_none(),
                "redis-server ended at once ({ended:?}): is it installed? \
                 `apt-get install redis-server`"
            );
            let reply = self.try_command(&["PING"]).ok()?;
            // A server that wants a password is ready, too.
            (reply.starts_with("+PONG") || reply.starts_with("-NOAUTH")).then_some(())
        });
    }

    pub(crate) fn signal(&self, name: &str) {
        let mut kill = Command::new("kill");
        let status = kill.args(["-s", name, &self.process.id]);
        assert!(status.status().expect("the kill command").success());
    }
}

impl Process {
    fn spawn(folder: &TempDir, arguments: &[String]) -> Self {
        let keeper = Command::new("sh")
            .current_dir(folder)
            .args(["-c", KEEPER, "sh"])
            // A Sentinel begins with its file.
            .args(arguments)
            .args(["--unixsocket", "redis.sock"])
            .args(["--save", "", "--appendonly", "no"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut keeper = keeper.expect("sh");
        let mut id = String::new();
        let output = keeper.stdout.take().expect("its output");
        let read = BufReader::new(output).read_line(&mut id);
        read.expect("the id of redis-server");
        Self {
            id: id.trim().to_owned(),
            alive: keeper.stdin.take(),
            keeper,
        }
    }

    /// Kills the server, and waits for its end.
    fn kill(&mut self) {
        self.alive = None;
        let _ = self.keeper.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
