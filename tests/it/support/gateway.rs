//! A gateway: the `weir` binary as a process of its own.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::Value;
use tempfile::TempDir;

use super::{Client, Request, Response, eventually};

/// The binary under test.
pub(crate) const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// A running gateway, killed when it is dropped.
pub(crate) struct Gateway {
    process: Child,
    folder: Arc<TempDir>,
    log: Lines,
    errors: Lines,
    listening: Vec<SocketAddr>,
    admin: Option<SocketAddr>,
}

/// Lines that a process has written so far.
type Lines = Arc<Mutex<Vec<String>>>;

impl Gateway {
    /// Starts `weir` in a folder with a `gateway.yaml`, and waits until it listens.
    pub(crate) fn start(folder: TempDir) -> Self {
        Self::launch(Arc::new(folder), weir())
    }

    /// The same where it may have so many file descriptors.
    pub(crate) fn start_with_descriptors(folder: TempDir, most: usize) -> Self {
        let mut shell = Command::new("sh");
        let limited = format!("ulimit -n {most} && exec {WEIR}");
        shell.args(["-c", &limited]).stdin(Stdio::null());
        Self::launch(Arc::new(folder), shell)
    }

    /// The same on a machine whose clock is off by so many seconds. The command `faketime` is not
    /// used, as its child outlives it.
    pub(crate) fn start_with_clock_off_by(folder: TempDir, seconds: i64) -> Self {
        let mut command = weir();
        command.env("LD_PRELOAD", faketime_library());
        command.env("FAKETIME", format!("{seconds:+}s"));
        command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        Self::launch(Arc::new(folder), command)
    }

    /// Starts another process in the same folder, and waits until it serves.
    pub(crate) fn successor(&self) -> Self {
        let mut command = weir();
        command.args(["run", "--takeover"]);
        Self::launch(Arc::clone(&self.folder), command)
    }

    /// Writes into its configuration which ports it got, so that another process gets the same.
    pub(crate) fn keep_ports(&self) {
        let free = "127.0.0.1:0";
        let text = self.read("gateway.yaml");
        let text = text.replacen(free, &self.address().to_string(), 1);
        let admin = self.admin.expect("an admin listener").to_string();
        self.write("gateway.yaml", &text.replacen(free, &admin, 1));
    }

    /// Starts a process by a command that ends up as `weir`, and waits until it serves.
    pub(crate) fn launch(folder: Arc<TempDir>, mut command: Command) -> Self {
        command
            .current_dir(folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut tries = 0;
        let (process, log, errors, started) = loop {
            tries += 1;
            let mut process = command.spawn().expect("the weir binary");
            let log = collect(process.stdout.take().unwrap());
            let errors = collect(process.stderr.take().unwrap());
            let outcome = eventually("a gateway that has started", || {
                if let Some(status) = process.try_wait().unwrap() {
                    return Some(Err(status));
                }
                let mut lines = parsed(&log, "started").into_iter();
                lines.find(|line| line["message"] == "started").map(Ok)
            });
            match outcome {
                Ok(started) => break (process, log, errors, started),
                Err(status) => {
                    await_all_of(&errors);
                    let errors = errors.lock().unwrap();
                    // A port that was free for TCP may be another test's for UDP.
                    let is_taken = |line: &String| line.contains("by UDP, for HTTP/3: Address alr");
                    assert!(
                        tries < 20 && errors.iter().any(is_taken),
                        "weir ended at once: {status}: {errors:#?}"
                    );
                }
            }
        };
        let addresses = |name: &str| -> Vec<SocketAddr> {
            let addresses = started[name].as_str().unwrap_or_default();
            let addresses = addresses.split(',');
            addresses.filter_map(|it| it.parse().ok()).collect()
        };
        Self {
            listening: addresses("listening"),
            admin: addresses("admin").first().copied(),
            process,
            folder,
            log,
            errors,
        }
    }

    /// The address of its first listener.
    pub(crate) fn address(&self) -> SocketAddr {
        *self.listening.first().expect("an address")
    }

    /// The addresses of all its listeners.
    pub(crate) fn listening(&self) -> &[SocketAddr] {
        &self.listening
    }

    /// The address at which it decides for other proxies, which is the last.
    pub(crate) fn decides_at(&self) -> SocketAddr {
        *self.listening.last().expect("an address")
    }

    /// The number of the process.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The folder of its configuration.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A connection to it.
    pub(crate) fn client(&self) -> Client {
        Client::connect(self.address())
    }

    /// Sends a request by a connection of its own.
    pub(crate) fn send(&self, request: &Request) -> Response {
        self.client().send(request)
    }

    /// The statuses of so many requests by one connection, one after the other.
    pub(crate) fn statuses(&self, request: &Request, count: usize) -> Vec<u16> {
        let mut client = self.client();
        (0..count).map(|_| client.send(request).status).collect()
    }

    /// Where the admin listener is.
    pub(crate) fn admin_address(&self) -> SocketAddr {
        self.admin.expect("an admin listener")
    }

    /// A connection to the admin listener.
    pub(crate) fn admin_client(&self) -> Client {
        Client::connect(self.admin.expect("an admin listener"))
    }

    /// Asks the admin listener, which shows metrics to nobody who asks for an app's host.
    pub(crate) fn admin(&self, request: &Request) -> Response {
        let request = match request.has("host") {
            true => request.clone(),
            false => request.clone().with("host", "gateway"),
        };
        self.admin_client().send(&request)
    }

    /// The page of metrics.
    pub(crate) fn metrics(&self) -> String {
        let page = self.admin(&super::get("/metrics"));
        page.text().to_owned()
    }

    /// The value of a metric; none while it is not on the page.
    pub(crate) fn metric(&self, name_and_labels: &str) -> Option<f64> {
        let page = self.metrics();
        let value = page
            .lines()
            .find_map(|line| line.strip_prefix(name_and_labels));
        value.map(|value| value.trim().parse().expect("a number"))
    }

    /// Sends a signal, such as `TERM`.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.process.id().to_string();
        let status = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(status.expect("the kill command").success());
    }

    /// Waits for the end of the process alone, as the successor that it has started goes on writing
    /// to where it wrote.
    pub(crate) fn gave_way(&mut self) -> ExitStatus {
        eventually("the end of the gateway", || {
            self.process.try_wait().unwrap()
        })
    }

    /// Waits for the end of the process, and until all that it wrote has been read.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        let status = self.gave_way();
        await_all_of(&self.log);
        await_all_of(&self.errors);
        status
    }

    /// Replaces a file of the configuration, at once and as a whole.
    pub(crate) fn write(&self, file: &str, text: &str) {
        let path = self.folder.path().join(file);
        let new = path.with_extension("new");
        fs::write(&new, text).expect("a file");
        fs::rename(new, path).expect("a file");
    }

    /// The text of a file of the configuration.
    pub(crate) fn read(&self, file: &str) -> String {
        fs::read_to_string(self.folder.path().join(file)).expect("a file")
    }

    /// The log so far, as text.
    pub(crate) fn log_text(&self) -> String {
        self.log.lock().unwrap().join("\n")
    }

    /// Waits until standard error has this text, and returns all that it has by then. Neither it nor
    /// the log waits for what is read of the other.
    pub(crate) fn tells(&self, text: &str) -> String {
        eventually(text, || {
            Some(self.errors()).filter(|errors| errors.contains(text))
        })
    }

    fn errors(&self) -> String {
        self.errors.lock().unwrap().join("\n")
    }

    /// The log so far.
    pub(crate) fn log(&self) -> Vec<Value> {
        parsed(&self.log, "")
    }

    /// The lines of the log so far that tell of a request with this path.
    pub(crate) fn access(&self, path: &str) -> Vec<Value> {
        let mut lines = parsed(&self.log, "weir::access");
        lines.retain(|line| line["target"] == "weir::access" && line["path"] == path);
        lines
    }

    /// Waits for the line of the log that tells of a request with this path, the last if there are
    /// several.
    pub(crate) fn logged(&self, path: &str) -> Value {
        eventually("a line of the access log", || self.access(path).pop())
    }

    /// Waits for so many lines of the log that tell of requests with this path.
    pub(crate) fn logged_times(&self, path: &str, times: usize) -> Vec<Value> {
        let what = format!("{times} lines of the access log");
        eventually(&what, || {
            Some(self.access(path)).filter(|lines| lines.len() >= times)
        })
    }

    /// Waits until the log has this text: what is logged in several lines is not there at once.
    pub(crate) fn log_tells(&self, text: &str) {
        eventually(text, || self.log_text().contains(text).then_some(()));
    }

    /// How often the log says something that begins so.
    pub(crate) fn times_logged(&self, message: &str) -> usize {
        let lines = parsed(&self.log, message);
        let messages = lines.iter().filter_map(|line| line["message"].as_str());
        messages.filter(|it| it.starts_with(message)).count()
    }

    /// Waits until the log has said so as often as that.
    pub(crate) fn logs(&self, message: &str, times: usize) {
        eventually(&format!("the message {message:?}"), || {
            (self.times_logged(message) >= times).then_some(())
        });
    }

    /// Asks for a reload, and waits until it is done.
    pub(crate) fn reload(&self) {
        let message = "configuration reloaded";
        let before = self.times_logged(message);
        self.signal("HUP");
        self.logs(message, before + 1);
    }

    /// Resident memory in bytes.
    pub(crate) fn resident(&self) -> u64 {
        self.memory("VmRSS:")
    }

    /// The most resident memory so far, in bytes.
    pub(crate) fn peak_resident(&self) -> u64 {
        self.memory("VmHWM:")
    }

    fn memory(&self, of: &str) -> u64 {
        let status = PathBuf::from(format!("/proc/{}/status", self.process.id()));
        let status = fs::read_to_string(status).expect("the state of the process");
        let line = status.lines().find_map(|line| line.strip_prefix(of));
        let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
        kilobytes.unwrap().parse::<u64>().unwrap() * 1024
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if thread::panicking() {
            eprintln!("--- log of {}\n{}", self.address(), self.log_text());
            eprintln!("--- standard error\n{}", self.errors());
        }
    }
}

/// The library that sets a process's clock, of the Debian package `libfaketime`.
fn faketime_library() -> PathBuf {
    let folders = fs::read_dir("/usr/lib").expect("/usr/lib");
    let libraries = folders.flatten().map(|folder| {
        let path = folder.path();
        path.join("faketime/libfaketimeMT.so.1")
    });
    let mut found = libraries.into_iter().filter(|path| path.exists());
    found
        .next()
        .expect("tests need the Debian package `faketime`")
}

/// The command without arguments.
pub(crate) fn weir() -> Command {
    let mut command = Command::new(WEIR);
    command.stdin(Stdio::null());
    command
}

fn collect(stream: impl Read + Send + 'static) -> Lines {
    let lines = Lines::default();
    let collected = Arc::clone(&lines);
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            collected.lock().unwrap().push(line);
        }
    });
    lines
}

/// Waits until the thread that collects lines has come to their end.
fn await_all_of(lines: &Lines) {
    eventually("all that a gateway wrote", || {
        (Arc::strong_count(lines) == 1).then_some(())
    });
}

/// The lines that contain `text`, as JSON. Under load there are many lines, of which only few are
/// asked for.
fn parsed(lines: &Lines, text: &str) -> Vec<Value> {
    let lines = lines.lock().unwrap();
    let wanted = lines.iter().filter(|line| line.contains(text));
    let parse = |line: &String| serde_json::from_str(line).expect("a line of JSON");
    wanted.map(parse).collect()
}
