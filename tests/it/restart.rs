//! One gateway takes the place of another, and no client notices.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream::unfold;
use http::Response as HttpResponse;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tokio::sync::mpsc;

use crate::support::gateway::{WEIR, weir};
use crate::support::upstream::text;
use crate::support::*;

/// Under load, the log would drop lines before it held up requests.
const QUIET: &str = "log: {access: false}";

/// Clients that must not fail, whatever happens.
#[derive(Default)]
struct Clients {
    stop: AtomicBool,
    answered: AtomicUsize,
    failures: Mutex<Vec<String>>,
}

impl Clients {
    /// One that keeps its connection until an answer says otherwise, or connects for each request.
    fn start(self: &Arc<Self>, to: SocketAddr, keep_alive: bool) -> JoinHandle<()> {
        let clients = Arc::clone(self);
        thread::spawn(move || {
            let mut connection = None;
            while !clients.stop.load(SeqCst) {
                let client = connection
                    .take()
                    .map_or_else(|| Client::try_connect(to), Ok);
                let answer = client.and_then(|mut client: Client| {
                    let answer = client.try_send(&get("/"))?;
                    Ok((answer, client))
                });
                match answer {
                    Ok((answer, client)) if answer.status == 200 => {
                        clients.answered.fetch_add(1, SeqCst);
                        connection = Some(client).filter(|_| keep_alive && !answer.closes());
                    }
                    Ok((answer, _)) => clients.failed(format!("{}", answer.status)),
                    Err(error) => clients.failed(format!("{keep_alive}: {error}")),
                }
            }
        })
    }

    fn failed(&self, why: String) {
        self.failures.lock().unwrap().push(why);
    }

    /// Waits until so many more requests were answered.
    fn go_on_for(&self, requests: usize) {
        let goal = self.answered.load(SeqCst) + requests;
        eventually("answers to the clients", || {
            (self.answered.load(SeqCst) >= goal).then_some(())
        });
    }
}

/// An app that has a stream of events at `/events`.
fn app() -> (mpsc::UnboundedSender<&'static str>, Upstream) {
    let (events, stream) = mpsc::unbounded_channel();
    let stream = Arc::new(Mutex::new(Some(stream)));
    let upstream = Upstream::serving(move |request| {
        let stream = match request.uri().path() {
            "/events" => stream.lock().unwrap().take(),
            _ => None,
        };
        async move {
            let Some(stream) = stream else {
                return text("real");
            };
            let frames = unfold(stream, |mut stream| async {
                let event: &str = stream.recv().await?;
                Some((Ok(Frame::data(Bytes::from(event))), stream))
            });
            HttpResponse::new(StreamBody::new(frames).boxed())
        }
    });
    (events, upstream)
}

#[test]
fn two_restarts_under_load_fail_no_request_and_break_no_stream() {
    let (events, upstream) = app();
    let setup = Setup::before(&upstream).key(QUIET).key("grace: 60s");
    let mut serving = setup.start();
    serving.keep_ports();
    let mut stream = serving.client();
    stream.write(&get("/events").bytes()).unwrap();
    events.send("early").unwrap();
    assert_eq!(stream.read_head().unwrap().status, 200);
    assert_eq!(stream.read_chunk().unwrap().unwrap(), b"early");

    let clients = Arc::<Clients>::default();
    let kinds = [true, true, true, false, false, false];
    let threads = kinds.map(|keep_alive| clients.start(serving.address(), keep_alive));
    clients.go_on_for(100);
    let mut replaced = Vec::new();
    for _ in 0..2 {
        let successor = serving.successor();
        assert_eq!(successor.address(), serving.address());
        replaced.push(std::mem::replace(&mut serving, successor));
        clients.go_on_for(200);
        assert!(serving.metric("weir_connections_accepted_total") > Some(0.0));
        assert_eq!(serving.admin(&get("/readyz")).status, 200);
    }
    events.send("late").unwrap();
    assert_eq!(stream.read_chunk().unwrap().unwrap(), b"late");
    drop(events);
    assert_eq!(stream.read_chunk().unwrap(), None);
    drop(stream);

    clients.go_on_for(100);
    clients.stop.store(true, SeqCst);
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(*clients.failures.lock().unwrap(), [""; 0]);
    for mut gateway in replaced {
        assert_eq!(gateway.ended().code(), Some(0));
        gateway.logs("a successor has taken over", 1);
        gateway.logs("drained", 1);
    }
    serving.signal("TERM");
    assert_eq!(serving.ended().code(), Some(0));
}

#[test]
fn a_second_gateway_that_was_not_told_to_take_over_is_refused_and_says_how() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).start();
    gateway.keep_ports();
    let mut second = weir();
    let second = second.current_dir(gateway.folder()).output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    let said = String::from_utf8(second.stderr).unwrap();
    assert!(said.contains("weir run --takeover"), "{said}");
    assert_eq!(gateway.send(&get("/")).status, 200);
}

#[test]
fn a_successor_that_cannot_start_leaves_everything_as_it_was() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).start();
    gateway.keep_ports();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let text = gateway.read("gateway.yaml");
    let admin = text.lines().find(|it| it.starts_with("admin")).unwrap();
    let elsewhere = format!("admin: {{address: \"{taken}\"}}");
    gateway.write("gateway.yaml", &text.replace(admin, &elsewhere));
    let mut successor = weir();
    successor.args(["run", "--takeover"]);
    let successor = successor.current_dir(gateway.folder()).output().unwrap();
    assert_eq!(successor.status.code(), Some(1));
    for _ in 0..20 {
        assert_eq!(gateway.send(&get("/")).status, 200);
    }
    assert_eq!(gateway.admin(&get("/readyz")).status, 200);
}

#[test]
fn a_gateway_that_drains_already_leaves_its_ports_to_the_next() {
    let (events, upstream) = app();
    let mut old = Setup::before(&upstream).key("grace: 60s").start();
    old.keep_ports();
    let mut stream = old.client();
    stream.write(&get("/events").bytes()).unwrap();
    events.send("early").unwrap();
    assert_eq!(stream.read_head().unwrap().status, 200);
    old.signal("TERM");
    old.logs("draining", 1);
    // It holds the admin listener as long as it lives.
    let new = old.successor();
    assert_eq!(new.send(&get("/")).status, 200);
    assert_eq!(new.admin(&get("/readyz")).status, 200);
    drop((events, stream));
    assert_eq!(old.ended().code(), Some(0));
    assert_eq!(new.admin(&get("/readyz")).status, 200);
}

/// Ends a process that is nobody's child any more.
struct Ends(String);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-s", "KILL", &self.0]).status();
    }
}

/// The id of the process that a gateway started to take its place.
fn successor_of(gateway: &Gateway) -> String {
    eventually("a successor", || {
        let log = gateway.log();
        let mut started = log
            .iter()
            .filter(|line| line["message"] == "started a successor");
        started.next().map(|line| line["pid"].to_string())
    })
}

#[test]
fn sigusr2_starts_a_successor_with_the_same_arguments() {
    let upstream = Upstream::start();
    let mut gateway = Setup::before(&upstream).start();
    gateway.keep_ports();
    gateway.signal("USR2");
    let _ends = Ends(successor_of(&gateway));
    assert_eq!(gateway.gave_way().code(), Some(0));
    assert_eq!(gateway.send(&get("/")).status, 200);
    assert_eq!(gateway.admin(&get("/readyz")).status, 200);
}

/// With a time limit, a system call fails when its process goes on after a pause.
#[test]
fn a_successor_that_is_paused_while_it_waits_for_sockets_does_not_give_up() {
    let upstream = Upstream::start();
    let mut gateway = Setup::before(&upstream).start();
    gateway.keep_ports();
    gateway.signal("STOP");
    let mut successor = weir();
    successor.args(["run", "--takeover"]);
    successor
        .current_dir(gateway.folder())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let pid = successor.spawn().unwrap().id().to_string();
    let _ends = Ends(pid.clone());
    // Some of these pauses come while it waits, for no longer than it may.
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(1) {
        for signal in ["STOP", "CONT"] {
            let status = Command::new("kill").args(["-s", signal, &pid]).status();
            assert!(status.unwrap().success());
        }
    }
    gateway.signal("CONT");
    assert_eq!(gateway.gave_way().code(), Some(0));
    assert_eq!(gateway.send(&get("/")).status, 200);
}

#[test]
fn a_configuration_from_standard_input_is_not_lost_by_reloads_and_restarts() {
    let upstream = Upstream::start();
    let setup = Setup::before(&upstream).on_kept_ports();
    let folder = setup.written();
    let file = folder.path().join("gateway.yaml");
    let configuration = File::open(&file).unwrap();
    fs::remove_file(&file).unwrap();
    let mut command = weir();
    command.args(["-c", "-"]).stdin(configuration);
    let mut gateway = Gateway::launch(Arc::new(folder), command);
    assert_eq!(gateway.send(&get("/")).status, 200);
    gateway.signal("HUP");
    gateway.logs("configuration unchanged; its files say what is in force", 1);
    assert_eq!(gateway.send(&get("/")).status, 200);
    gateway.signal("USR2");
    let _ends = Ends(successor_of(&gateway));
    assert_eq!(gateway.gave_way().code(), Some(0));
    assert_eq!(gateway.send(&get("/")).status, 200);
}

/// `weir` as a service manager starts it that listens on this socket.
fn activated(socket: &TcpListener) -> Command {
    let mut shell = Command::new("sh");
    let socket = OwnedFd::from(socket.try_clone().unwrap());
    let activate = format!("exec 3<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec {WEIR}");
    shell.args(["-c", &activate]).stdin(socket);
    shell
}

#[test]
fn a_socket_of_the_service_manager_is_served_and_outlives_the_gateway_with_its_queue() {
    let upstream = Upstream::start();
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let setup = Setup::before(&upstream);
    let setup = setup.listening(&format!("[{{address: \"{address}\"}}]"));
    let mut gateway = Gateway::launch(Arc::new(setup.written()), activated(&socket));
    assert_eq!(gateway.address(), address);
    assert_eq!(gateway.send(&get("/")).status, 200);
    gateway.signal("TERM");
    assert_eq!(gateway.ended().code(), Some(0));

    let mut waiting = Client::connect(address);
    waiting.write(&get("/").bytes()).unwrap();
    let next = Gateway::launch(Arc::new(setup.written()), activated(&socket));
    assert_eq!(waiting.read("GET").unwrap().status, 200);
    assert_eq!(next.send(&get("/")).status, 200);
}

#[test]
fn the_service_manager_is_told_when_it_serves_which_process_it_is_and_when_it_stops() {
    let upstream = Upstream::start();
    let folder = Setup::before(&upstream).written();
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let heard = || {
        let mut bytes = [0; 512];
        let some = uninterrupted(|| manager.recv(&mut bytes)).expect("a message");
        String::from_utf8(bytes[..some].to_vec()).unwrap()
    };
    let mut command = weir();
    command.env("NOTIFY_SOCKET", &path);
    let mut gateway = Gateway::launch(Arc::new(folder), command);
    let ready = heard();
    assert!(ready.contains("READY=1\n"), "{ready}");
    assert!(
        ready.contains(&format!("MAINPID={}\n", gateway.pid())),
        "{ready}"
    );
    gateway.signal("TERM");
    assert_eq!(heard(), "STOPPING=1\n");
    assert_eq!(gateway.ended().code(), Some(0));
}
