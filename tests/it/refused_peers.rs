//! Connections of the banned, which the kernel drops, or which are closed when they are accepted
//! where the kernel may not be asked. Clients of loopback addresses are never refused, so these tests
//! have a network namespace of their own.

use std::fs::{self, Permissions};
use std::io::{ErrorKind, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};
use weir_testing::namespace;

use crate::redis;
use crate::support::gateway::{WEIR, weir};
use crate::support::*;

/// Each address in it is one of the namespace.
const NETWORK: &str = "198.18.0.0/15";

pub(crate) const BANNED: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 7);
pub(crate) const OTHER: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 8);

pub(crate) const BANS: &str = "bans: {scanners: {per: address, strikes: {paths: /trap, \
                    count: 1, period: 1h}, for: 1h, on_denied: {drop: {in_kernel: auto}}}}";

/// The name by which a gateway says that the kernel takes its filter.
const IN_KERNEL: &str = "weir_refused_in_kernel";
pub(crate) const PEERS: &str = "weir_refused_peers";
pub(crate) const BY_KERNEL: &str = "weir_connections_refused_total{by=\"kernel\"}";
pub(crate) const AT_ACCEPT: &str = "weir_connections_refused_total{by=\"accept\"}";

/// Whether the rest of the test is to run here, which is in a namespace.
pub(crate) fn is_within(test: &str) -> bool {
    let networks = namespace::with(&[NETWORK], test);
    networks.is_some_and(|networks| networks == [NETWORK])
}

fn setup(upstream: &Upstream) -> Setup {
    unbanned(upstream).key(BANS)
}

fn unbanned(upstream: &Upstream) -> Setup {
    Setup::before(upstream).listening("[{address: \"0.0.0.0:0\"}, {address: \"[::]:0\"}]")
}

/// Where all listeners of a gateway are reached in the namespace.
fn addresses(gateway: &Gateway) -> Vec<SocketAddr> {
    let host = Ipv4Addr::new(198, 18, 0, 1);
    let ports = gateway.listening().iter().map(SocketAddr::port);
    ports.map(|port| SocketAddr::from((host, port))).collect()
}

/// Begins a handshake. In this namespace it is done, or dropped, before the call returns.
fn connect(source: Ipv4Addr, to: SocketAddr) -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((source, 0)).into()).unwrap();
    socket.set_nonblocking(true).unwrap();
    let _ = socket.connect(&to.into());
    socket
}

fn is_connected(socket: &Socket) -> bool {
    socket.peer_addr().is_ok()
}

fn connects(source: Ipv4Addr, to: SocketAddr) -> bool {
    is_connected(&connect(source, to))
}

fn send(source: Ipv4Addr, to: SocketAddr, path: &str) -> std::io::Result<Response> {
    Client::connect_from(source, to).try_send(&get(path))
}

pub(crate) fn wait_for(gateway: &Gateway, metric: &str, value: f64) {
    eventually(&format!("{metric} {value}"), || {
        (gateway.metric(metric) == Some(value)).then_some(())
    });
}

/// Has the banned address earn its ban, and come once more.
fn ban(gateway: &Gateway) {
    let to = addresses(gateway)[0];
    assert_eq!(send(BANNED, to, "/trap").unwrap().status, 200);
    assert!(
        send(BANNED, to, "/").is_err(),
        "it is closed without a response"
    );
    wait_for(gateway, PEERS, 1.0);
}

/// What operators are told of connections that are refused: by the API, and the first line of
/// `weir top`.
fn finding(gateway: &Gateway) -> (String, String) {
    let text = eventually("a finding", || {
        let answer = gateway.admin(&get("/v1/findings").with("host", "localhost"));
        let of_gateway = answer.json()["gateway"].as_array()?.clone();
        let mut found = of_gateway.iter();
        let found = found.find(|finding| finding["kind"] == "refused")?;
        found["text"].as_str().map(str::to_owned)
    });
    let mut top = weir();
    let address = gateway.admin_address().to_string();
    top.args(["top", "--once", "--admin", &address]);
    let output = top.current_dir(gateway.folder()).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let first = printed.lines().next().unwrap_or_default();
    (text, first.to_owned())
}

pub(crate) fn lift(gateway: &Gateway) {
    let request = request("DELETE", &format!("/v1/bans/scanners/{BANNED}"));
    assert_eq!(
        gateway.admin(&request.with("host", "localhost")).status,
        200
    );
}

#[test]
fn the_kernel_drops_connections_of_the_banned_until_the_ban_is_lifted() {
    if !is_within("the_kernel_drops_connections_of_the_banned_until") {
        return;
    }
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    let all = addresses(&gateway);
    assert_eq!(gateway.metric(PEERS), Some(0.0));
    ban(&gateway);
    wait_for(&gateway, IN_KERNEL, 1.0);
    for to in &all {
        eventually("a filter on each listener", || {
            (!connects(BANNED, *to)).then_some(())
        });
        assert_eq!(send(OTHER, *to, "/").unwrap().status, 200);
    }
    eventually("dropped handshakes", || {
        gateway.metric(BY_KERNEL).filter(|count| *count >= 2.0)
    });
    assert_eq!(gateway.metric(AT_ACCEPT), Some(0.0));
    let (text, of_top) = finding(&gateway);
    let expected = "the kernel drops connections of 1 banned or blocked peer: ";
    assert!(text.starts_with(expected), "{text}");
    assert!(
        of_top.starts_with(&format!("REFUSED     {expected}")),
        "{of_top}"
    );

    let waiting = connect(BANNED, all[1]);
    assert!(!is_connected(&waiting));
    lift(&gateway);
    eventually("the handshake of a client that tries again", || {
        is_connected(&waiting).then_some(())
    });
    for to in all {
        assert_eq!(send(BANNED, to, "/").unwrap().status, 200);
    }
    wait_for(&gateway, PEERS, 0.0);
}

#[test]
fn a_ban_that_ends_lets_its_peer_connect_again() {
    if !is_within("a_ban_that_ends_lets_its_peer_connect_again") {
        return;
    }
    let upstream = Upstream::start();
    let short = BANS.replace("for: 1h", "for: 5s");
    let gateway = unbanned(&upstream).key(&short).start();
    ban(&gateway);
    let to = addresses(&gateway)[0];
    // The filter is counted before the sockets have it, so one more connection may be closed.
    eventually("the end of the ban", || {
        let response = connects(BANNED, to).then(|| send(BANNED, to, "/"))?;
        response.ok().filter(|response| response.status == 200)
    });
}

/// A flood is banned within seconds, so its bans end within seconds as well.
#[test]
fn of_many_bans_each_ends_on_time_and_no_neighbour_is_ever_dropped() {
    if !is_within("of_many_bans_each_ends_on_time_and_no_neighbour") {
        return;
    }
    let upstream = Upstream::start();
    let short = BANS.replace("for: 1h", "for: 5s");
    let gateway = unbanned(&upstream).key(&short).start();
    let to = addresses(&gateway)[0];
    let at = |number: u32| Ipv4Addr::from_bits(Ipv4Addr::new(198, 18, 1, 0).to_bits() + number);
    // One of two, so that each is a range of its own.
    let banned: Vec<_> = (0..400).map(|number| at(2 * number)).collect();
    let start = Instant::now();
    for address in &banned {
        assert_eq!(send(*address, to, "/trap").unwrap().status, 200);
        assert!(send(*address, to, "/").is_err(), "{address} is banned");
    }
    let is_let_in = |address: &&Ipv4Addr| send_at_once(**address, to).is_some();
    eventually("the end of all bans", || {
        for number in (1..800).step_by(100) {
            assert_eq!(
                send(at(number), to, "/").unwrap().status,
                200,
                "a neighbour"
            );
        }
        let let_in = banned.iter().filter(is_let_in).count();
        let age = start.elapsed();
        if age < Duration::from_secs(5) {
            assert_eq!(let_in, 0, "after {age:?}");
        }
        (let_in == banned.len()).then_some(())
    });
}

#[test]
fn a_reload_that_takes_the_key_away_takes_the_filter_away_and_another_puts_it_back() {
    if !is_within("a_reload_that_takes_the_key_away_takes") {
        return;
    }
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    let to = addresses(&gateway)[0];
    ban(&gateway);
    eventually("a filter", || (!connects(BANNED, to)).then_some(()));
    let with_key = gateway.read("gateway.yaml");
    gateway.write(
        "gateway.yaml",
        &with_key.replace("in_kernel: auto", "in_kernel: off"),
    );
    gateway.reload();
    eventually("no filter", || connects(BANNED, to).then_some(()));
    assert!(send(BANNED, to, "/").is_err(), "the ban holds");
    gateway.write("gateway.yaml", &with_key);
    gateway.reload();
    eventually("the filter again", || (!connects(BANNED, to)).then_some(()));
    // Whoever is on the allow list is never refused.
    let allowed = format!("{with_key}allow: {{addresses: [{BANNED}]}}\n");
    gateway.write("gateway.yaml", &allowed);
    gateway.reload();
    eventually("an allowed client", || connects(BANNED, to).then_some(()));
    assert_eq!(send(BANNED, to, "/").unwrap().status, 200);
}

#[test]
fn the_block_list_and_standing_bans_of_networks_are_dropped_before_anybody_comes() {
    if !is_within("the_block_list_and_standing_bans_of_networks") {
        return;
    }
    let upstream = Upstream::start();
    let block = "block: {addresses: [198.18.0.0/29], on_denied: {drop: {in_kernel: auto}}}";
    let gateway = setup(&upstream).key(block).start();
    let to = addresses(&gateway)[0];
    eventually("a filter", || (!connects(BANNED, to)).then_some(()));
    assert!(connects(OTHER, to));
    let put = put("/v1/bans/scanners/198.19.0.0%2F24", r#"{"for": "forever"}"#);
    assert_eq!(gateway.admin(&put.with("host", "localhost")).status, 200);
    let banned = Ipv4Addr::new(198, 19, 0, 9);
    eventually("a filter of the network", || {
        (!connects(banned, to)).then_some(())
    });
    assert!(connects(Ipv4Addr::new(198, 19, 1, 9), to));
}

#[test]
fn a_ban_that_one_gateway_lifts_is_dropped_by_no_other() {
    if !is_within("a_ban_that_one_gateway_lifts_is_dropped") {
        return;
    }
    let (upstream, server) = (Upstream::start(), RedisServer::start());
    let setup = setup(&upstream).key(&redis::store(&server.url()));
    let (one, other) = (setup.start(), setup.start());
    ban(&one);
    let to = addresses(&other)[0];
    // It learns of the ban from the first request.
    eventually("the filter of the other", || {
        let _ = send_at_once(BANNED, to);
        (other.metric(PEERS) == Some(1.0)).then_some(())
    });
    lift(&one);
    eventually("a client of the other", || send_at_once(BANNED, to));
    wait_for(&other, PEERS, 0.0);
    assert_eq!(send(BANNED, addresses(&one)[0], "/").unwrap().status, 200);
}

/// The response to a request, if the handshake was not dropped.
fn send_at_once(source: Ipv4Addr, to: SocketAddr) -> Option<Response> {
    let socket = Some(connect(source, to)).filter(is_connected)?;
    let mut client = Client::over(TcpStream::from(blocking(socket)));
    client.try_send(&get("/")).ok()
}

#[test]
fn a_successor_takes_the_filter_over_and_clears_it_where_nobody_is_banned() {
    if !is_within("a_successor_takes_the_filter_over_and_clears") {
        return;
    }
    let upstream = Upstream::start();
    let port = free_port();
    let listen = format!("[{{address: \"0.0.0.0:{port}\"}}]");
    let setup = Setup::before(&upstream).listening(&listen).key(BANS);
    let gateway = setup.start();
    let to = addresses(&gateway)[0];
    ban(&gateway);
    eventually("a filter", || (!connects(BANNED, to)).then_some(()));
    // Bans of the memory store end with their process.
    let admin = gateway.admin_address().to_string();
    let text = gateway.read("gateway.yaml").replace("127.0.0.1:0", &admin);
    gateway.write("gateway.yaml", &text);
    let successor = gateway.successor();
    eventually("a successor without bans", || {
        connects(BANNED, to).then_some(())
    });
    drop(gateway);
    assert_eq!(send(BANNED, to, "/").unwrap().status, 200);
    ban(&successor);
    eventually("its own filter", || (!connects(BANNED, to)).then_some(()));
}

/// The kernel lets only those attach filters who may administer networks.
#[test]
fn without_the_right_connections_of_the_banned_are_closed_when_they_are_accepted() {
    if !is_within("without_the_right_connections_of_the_banned") {
        return;
    }
    let upstream = Upstream::start();
    let folder = setup(&upstream).written();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let mut unprivileged = Command::new("setpriv");
    unprivileged.args([
        "--bounding-set=-all",
        "--inh-caps=-all",
        "--no-new-privs",
        WEIR,
    ]);
    unprivileged.stdin(Stdio::null());
    let gateway = Gateway::launch(Arc::new(folder), unprivileged);
    let to = addresses(&gateway)[0];
    ban(&gateway);
    // It sends nothing. A connection that is closed without a reset is kept by the kernel.
    eventually("a connection that is reset at once", || {
        // After a handshake: else it would be refused. It may be reset before it is looked at.
        let socket = connect(BANNED, to);
        socket
            .set_read_timeout(Some(Duration::from_secs(1)))
            .unwrap();
        let seen = TcpStream::from(blocking(socket)).read(&mut [0]);
        seen.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset)
            .then_some(())
    });
    assert!(gateway.metric(AT_ACCEPT) >= Some(1.0));
    assert_eq!(gateway.metric(IN_KERNEL), Some(0.0));
    assert_eq!(send(OTHER, to, "/").unwrap().status, 200);
    let message = "the kernel drops no connections for this process";
    gateway.logs(message, 1);
    let said = gateway.times_logged(message);
    assert_eq!(said, 1, "however many listeners and workers there are");
    assert!(gateway.log_text().contains("CAP_NET_ADMIN"));
    let (text, _) = finding(&gateway);
    assert!(text.ends_with("as the kernel does not drop them"), "{text}");
    lift(&gateway);
    eventually("a client that is let in again", || send_at_once(BANNED, to));
}

fn blocking(socket: Socket) -> Socket {
    socket.set_nonblocking(false).unwrap();
    socket
}
