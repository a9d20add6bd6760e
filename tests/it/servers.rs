//! Servers that come and go: by a file, by SRV records, and clients that stay on theirs.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use crate::support::upstream::text;
use crate::support::*;

const RELOADED: &str = "configuration reloaded";
const REFUSED: &str = "configuration not reloaded";
const STICKY: &str = "sticky: {cookie: own, key: {file: sticky.key}}";

/// An app that responds with its name.
fn app(name: &'static str) -> Upstream {
    Upstream::answering(move |_| text(name))
}

/// A list as it stands in a file of servers.
fn list(apps: &[&Upstream]) -> String {
    let line = |app: &&Upstream| format!("- http://{}\n", app.address());
    apps.iter().map(line).collect()
}

/// A gateway whose upstream has a file of servers and these keys.
fn setup(keys: &str, apps: &[&Upstream]) -> Setup {
    Setup::with_upstreams(&format!("{{app: {{servers_file: servers.yaml, {keys}}}}}"))
        .file("servers.yaml", &list(apps))
        .file("sticky.key", "0123456789abcdef")
        .watching()
}

/// Which apps respond to some requests.
fn served_by(gateway: &Gateway) -> Vec<String> {
    let mut client = gateway.client();
    let mut names: Vec<_> = (0..12)
        .map(|_| client.send(&get("/")).text().to_owned())
        .collect();
    names.sort();
    names.dedup();
    names
}

/// The response to a request with this `Cookie`, and the cookie that it sets.
fn with_cookie(client: &mut Client, cookie: &str) -> (String, Option<String>) {
    let response = client.send(&get("/").with("cookie", cookie));
    let set = response.field("set-cookie");
    let set = set.map(|set| set.split(';').next().unwrap().to_owned());
    (response.text().to_owned(), set)
}

#[test]
fn servers_that_a_file_adds_and_removes_fail_no_request() {
    let (one, two, three) = (app("one"), app("two"), app("three"));
    let gateway = setup("protocol: http1", &[&one, &two]).start();
    let load = Load::start(gateway.address(), 4, |client, count| {
        get(&format!("/{client}/{count}"))
    });
    load.go_on_for(50);
    gateway.write("servers.yaml", &list(&[&one, &three]));
    gateway.logs(RELOADED, 1);
    // What a client sent before is answered before it sends again.
    let reloaded = Instant::now();
    eventually("what each client sends after the reload", || {
        let answers = load.answers();
        let later = answers.iter().filter(|answer| answer.sent > reloaded);
        let clients: HashSet<_> = later.map(|answer| answer.client).collect();
        (clients.len() == 4).then_some(())
    });
    let of_two = two.count();
    load.go_on_for(200);
    assert_eq!(load.stop().failures, [""; 0]);
    assert_eq!(two.count(), of_two, "a removed server gets no request");
    assert_eq!(served_by(&gateway), ["one", "three"]);
}

#[test]
fn a_server_that_stays_in_the_file_needs_no_other_connection() {
    let (one, two, three) = (app("one"), app("two"), app("three"));
    let gateway = setup("protocol: http1", &[&one, &two]).start();
    let mut client = gateway.client();
    let mut send = || (0..6).for_each(|_| assert_eq!(client.send(&get("/")).status, 200));
    send();
    // It is now the second, of another weight.
    let heavy = format!("- {{url: \"http://{}\", weight: 3}}\n", one.address());
    gateway.write("servers.yaml", &(list(&[&three]) + &heavy));
    gateway.logs(RELOADED, 1);
    let before = one.count();
    send();
    assert_eq!((one.connections(), three.connections()), (1, 1));
    assert!(one.count() > before + 3);
}

#[test]
fn a_request_on_a_removed_server_is_not_cut_off() {
    let (release, held) = std::sync::mpsc::channel();
    let (enter, entered) = std::sync::mpsc::channel();
    let held = Mutex::new(held);
    let slow = Upstream::answering(move |_| {
        enter.send(()).unwrap();
        held.lock().unwrap().recv().unwrap();
        text("slow")
    });
    let other = app("other");
    let gateway = setup("protocol: http1", &[&slow]).start();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| gateway.send(&get("/")));
        entered.recv().unwrap();
        gateway.write("servers.yaml", &list(&[&other]));
        gateway.logs(RELOADED, 1);
        assert_eq!(gateway.send(&get("/")).text(), "other");
        assert!(!waiting.is_finished());
        release.send(()).unwrap();
        let response = waiting.join().unwrap();
        assert_eq!((response.status, response.text()), (200, "slow"));
    });
}

#[test]
fn a_server_that_stays_in_the_file_is_not_forgiven_what_ejected_it() {
    let dead = app("dead");
    let (live, late) = (app("live"), app("late"));
    let keys = "ejection: {base_time: 1h, max_time: 1h}";
    let gateway = setup(keys, &[&dead, &live]).start();
    let lists = [list(&[&dead, &live]), list(&[&live, &dead, &late])];
    let address = dead.die();
    assert_eq!(served_by(&gateway), ["live"]);
    gateway.logs("server ejected", 1);
    gateway.write("servers.yaml", &lists[1]);
    gateway.logs(RELOADED, 1);
    assert_eq!(served_by(&gateway), ["late", "live"]);
    assert_eq!(gateway.times_logged("server ejected"), 1);
    let ejections =
        format!("weir_upstream_ejections_total{{upstream=\"app\",server=\"{address}\"}}");
    assert_eq!(gateway.metric(&ejections), Some(1.0));
    // One that has left and returns is a new one.
    gateway.write("servers.yaml", &list(&[&live]));
    gateway.logs(RELOADED, 2);
    gateway.write("servers.yaml", &lists[0]);
    gateway.logs(RELOADED, 3);
    assert_eq!(served_by(&gateway), ["live"]);
    gateway.logs("server ejected", 2);
}

#[test]
fn a_file_of_servers_that_is_wrong_empty_or_gone_changes_nothing_and_says_where() {
    let one = app("one");
    let gateway = setup("protocol: http1", &[&one]).start();
    let wrong = [
        ("- http://10.0.0.1:80\n- nonsense", "servers.yaml:2"),
        ("", "the file is empty"),
        ("[]", "at least one server"),
        ("servers: [\"http://10.0.0.1:80\"]", "servers.yaml:1"),
        ("- {url: \"http://10.0.0.1\", weight: 0}", "servers.yaml:1"),
        (
            "- http+srv://_http._tcp.app:80",
            "http+srv://_http._tcp.app.internal",
        ),
        (
            "- {url: \"http+srv://_http._tcp.app\", weight: 2}",
            "weights of their own",
        ),
    ];
    for (times, (text, reason)) in (1..).zip(wrong) {
        gateway.write("servers.yaml", text);
        gateway.logs(REFUSED, times);
        gateway.log_tells(reason);
        assert!(gateway.log_text().contains("servers.yaml"), "{reason}");
        assert_eq!(served_by(&gateway), ["one"]);
    }
    std::fs::remove_file(gateway.folder().join("servers.yaml")).unwrap();
    gateway.logs(REFUSED, wrong.len() + 1);
    gateway.log_tells("there is no such file");
    assert_eq!(served_by(&gateway), ["one"]);
    gateway.write("servers.yaml", &list(&[&one]));
    gateway.logs("configuration unchanged", 1);
}

#[test]
fn a_client_stays_on_its_server_by_a_cookie_that_the_app_does_not_see() {
    let (one, two) = (app("one"), app("two"));
    let gateway = setup(STICKY, &[&one, &two]).start();
    let mut client = gateway.client();
    let response = client.send(&get("/"));
    let set = response.field("set-cookie").unwrap().to_owned();
    assert!(set.ends_with("; Path=/; HttpOnly; SameSite=Lax"), "{set}");
    let cookie = set.split(';').next().unwrap();
    let own = response.text().to_owned();
    assert!(!cookie.contains("127"), "{cookie}");
    for _ in 0..10 {
        let sent = format!("a=1; {cookie}; b=2");
        assert_eq!(with_cookie(&mut client, &sent), (own.clone(), None));
    }
    let app = if own == "one" { &one } else { &two };
    assert_eq!(app.last().lines("cookie"), ["a=1; b=2"]);
    // Others are spread, whatever they invent.
    for forged in [
        "own=AAAAAAAAAAAAAAAAAAAAAA",
        "own=127.0.0.1:80",
        "own=",
        "own",
    ] {
        let names: Vec<_> = (0..4).map(|_| with_cookie(&mut client, forged)).collect();
        assert!(
            names.iter().all(|(_, set)| set.is_some()),
            "{forged}: {names:?}"
        );
        assert_ne!(names[0].0, names[1].0);
    }
    // Of two, the valid one counts.
    let both = format!("own=AAAAAAAAAAAAAAAAAAAAAA; {cookie}");
    assert_eq!(with_cookie(&mut client, &both), (own, None));
    // Another gateway with the same key agrees.
    let other = setup(STICKY, &[&two, &one]).start();
    let (_, set) = with_cookie(&mut other.client(), cookie);
    assert_eq!(set, None);
}

#[test]
fn a_client_whose_server_dies_or_is_removed_gets_another_and_its_cookie() {
    let (one, two, three) = (app("one"), app("two"), app("three"));
    let gateway = setup(STICKY, &[&one, &two]).start();
    let mut client = gateway.client();
    let (own, cookie) = with_cookie(&mut client, "a=1");
    let cookie = cookie.unwrap();
    let (dead, live) = if own == "one" { (one, two) } else { (two, one) };
    gateway.write("servers.yaml", &list(&[&live, &three]));
    gateway.logs(RELOADED, 1);
    let (name, second) = with_cookie(&mut client, &cookie);
    assert_ne!(name, own, "it is off the list");
    let second = second.unwrap();
    assert_eq!(with_cookie(&mut client, &second), (name, None));
    // The first request of many to fail is sent again, elsewhere, with another cookie.
    gateway.write("servers.yaml", &list(&[&live, &dead]));
    gateway.logs(RELOADED, 2);
    assert_eq!(with_cookie(&mut client, &cookie), (own.clone(), None));
    dead.die();
    let (name, set) = with_cookie(&mut client, &cookie);
    assert_ne!(name, own);
    assert!(set.is_some_and(|set| set != cookie));
}

/// What the DNS says of `_http._tcp.app.test`: the servers with priority and weight. None for no
/// answer at all.
type Zone = Arc<Mutex<Option<Vec<(u16, u16, SocketAddr)>>>>;

/// A DNS server that knows SRV records, and the addresses of their targets by the port in the
/// target's name.
fn dns() -> (SocketAddr, Zone) {
    let zone = Zone::default();
    let (address, udp, tcp) = eventually("a port that is free for both", || {
        let tcp = TcpListener::bind("127.0.0.1:0").ok()?;
        let address = tcp.local_addr().ok()?;
        Some((address, UdpSocket::bind(address).ok()?, tcp))
    });
    let of_udp = Arc::clone(&zone);
    thread::spawn(move || {
        let mut query = [0; 2048];
        while let Ok((length, from)) = udp.recv_from(&mut query) {
            if let Some(mut reply) = reply(&query[..length], &of_udp) {
                // A long list is cut, and nothing says so, as with Consul.
                if reply.len() > 1200 {
                    reply = question(&query[..length]).to_vec();
                    reply[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0]);
                }
                udp.send_to(&reply, from).unwrap();
            }
        }
    });
    let of_tcp = Arc::clone(&zone);
    thread::spawn(move || {
        while let Ok((mut stream, _)) = tcp.accept() {
            let zone = Arc::clone(&of_tcp);
            thread::spawn(move || {
                let mut length = [0; 2];
                while stream.read_exact(&mut length).is_ok() {
                    let mut query = vec![0; u16::from_be_bytes(length).into()];
                    stream.read_exact(&mut query).unwrap();
                    let Some(reply) = reply(&query, &zone) else {
                        continue;
                    };
                    let length = u16::try_from(reply.len()).unwrap().to_be_bytes();
                    stream.write_all(&[&length, &*reply].concat()).unwrap();
                }
            });
        }
    });
    (address, zone)
}

/// The header and the question of a query, without what EDNS adds.
fn question(query: &[u8]) -> &[u8] {
    let name = query[12..].iter().position(|byte| *byte == 0).unwrap();
    &query[..12 + name + 5]
}

fn reply(query: &[u8], zone: &Zone) -> Option<Vec<u8>> {
    const A: u16 = 1;
    const SRV: u16 = 33;
    let zone = zone.lock().unwrap().clone()?;
    let question = question(query);
    let kind = u16::from_be_bytes([question[question.len() - 4], question[question.len() - 3]]);
    let mut records = Vec::new();
    let record = |data: &[u8]| {
        let length = u16::try_from(data.len()).unwrap();
        // The name of the question, the type, IN, and a TTL of 0.
        let [of_kind, kind] = kind.to_be_bytes();
        let head = [0xc0, 12, of_kind, kind, 0, 1, 0, 0, 0, 0];
        [&head[..], &length.to_be_bytes(), data].concat()
    };
    match kind {
        SRV => {
            for (priority, weight, server) in &zone {
                let numbers = [*priority, *weight, server.port()];
                let mut data: Vec<u8> = numbers.iter().flat_map(|n| n.to_be_bytes()).collect();
                if !server.ip().is_unspecified() {
                    let label = format!("s{}", server.ip()).replace('.', "-");
                    data.push(u8::try_from(label.len()).unwrap());
                    data.extend(label.bytes());
                    data.extend(b"\x04test");
                }
                data.push(0);
                records.push(record(&data));
            }
        }
        A => {
            let label = std::str::from_utf8(&question[13..13 + usize::from(question[12])]).unwrap();
            let address = label.strip_prefix('s')?.replace('-', ".");
            let address: std::net::Ipv4Addr = address.parse().ok()?;
            records.push(record(&address.octets()));
        }
        _ => {}
    }
    let mut reply = question.to_vec();
    reply[2..4].copy_from_slice(&[0x81, 0x80]);
    reply[6..8].copy_from_slice(&u16::try_from(records.len()).unwrap().to_be_bytes());
    reply[8..12].fill(0);
    reply.extend(records.concat());
    Some(reply)
}

/// A gateway whose servers are those that this DNS server names.
fn by_srv(dns: SocketAddr) -> Gateway {
    let keys = format!("resolvers: [\"{dns}\"], resolve_interval: 100ms");
    let servers = "servers: [\"http+srv://_http._tcp.app.test\"]";
    Setup::with_upstreams(&format!("{{app: {{{servers}, {keys}}}}}")).start()
}

fn set(zone: &Zone, records: &[(u16, u16, SocketAddr)]) {
    *zone.lock().unwrap() = Some(records.to_vec());
}

fn becomes(gateway: &Gateway, names: &[&str]) {
    eventually("other servers", || {
        (served_by(gateway) == names).then_some(())
    });
}

#[test]
fn requests_follow_srv_records_and_stay_where_they_were_while_the_dns_fails() {
    let (one, two, three) = (app("one"), app("two"), app("three"));
    let [first, second, third] = [&one, &two, &three].map(Upstream::address);
    let (dns, zone) = dns();
    // Several times the same one is one server.
    set(
        &zone,
        &[(1, 0, first), (1, 0, first), (1, 0, second), (2, 9, third)],
    );
    let gateway = by_srv(dns);
    // From the first request on; the third is for when the others are gone.
    assert_eq!(served_by(&gateway), ["one", "two"]);
    set(&zone, &[(1, 5, second)]);
    becomes(&gateway, &["two"]);
    set(&zone, &[(1, 5, second), (0, 1, third)]);
    becomes(&gateway, &["three"]);
    *zone.lock().unwrap() = None;
    gateway.logs(
        "SRV records cannot be looked up; the servers stay as they were",
        1,
    );
    let failed = "weir_srv_lookups_total{name=\"_http._tcp.app.test\",outcome=\"failure\"}";
    assert!(gateway.metric(failed).is_some_and(|count| count >= 1.0));
    assert_eq!(served_by(&gateway), ["three"]);
    set(&zone, &[(0, 1, third)]);
    gateway.logs("SRV records can be looked up again", 1);
    // No record at all, the target `.`, and a port of 0.
    let nowhere = SocketAddr::from(([0, 0, 0, 0], 80));
    let unusable = [
        vec![],
        vec![(0, 0, nowhere)],
        vec![(0, 0, SocketAddr::from(([127, 0, 0, 1], 0)))],
    ];
    for (times, records) in (2..).zip(unusable) {
        set(&zone, &records);
        gateway.logs(
            "SRV records cannot be looked up; the servers stay as they were",
            times,
        );
        assert_eq!(served_by(&gateway), ["three"]);
        set(&zone, &[(0, 1, third)]);
        gateway.logs("SRV records can be looked up again", times);
    }
}

#[test]
fn no_lookups_are_shown_of_a_name_that_the_configuration_names_no_more() {
    let one = app("one");
    let (dns, zone) = dns();
    set(&zone, &[(1, 1, one.address())]);
    let gateway = by_srv(dns);
    let is_shown = |host| {
        let lookups = format!("weir_srv_lookups_total{{name=\"_http._tcp.{host}\"");
        gateway.metrics().contains(&lookups)
    };
    assert!(is_shown("app.test"));
    let renamed = gateway
        .read("gateway.yaml")
        .replace("app.test", "shop.test");
    gateway.write("gateway.yaml", &renamed);
    gateway.reload();
    eventually("the other name alone", || {
        (is_shown("shop.test") && !is_shown("app.test")).then_some(())
    });
}

#[test]
fn backups_of_srv_records_serve_while_those_before_them_are_out() {
    let (one, two) = (app("one"), app("two"));
    let (dns, zone) = dns();
    set(&zone, &[(1, 1, one.address()), (2, 1, two.address())]);
    let gateway = by_srv(dns);
    assert_eq!(served_by(&gateway), ["one"]);
    one.die();
    assert_eq!(served_by(&gateway), ["two"]);
}

#[test]
fn five_hundred_srv_records_are_no_fewer_servers() {
    let one = app("one");
    let (dns, zone) = dns();
    let records = (1..=500).map(|port| (1, 1, SocketAddr::from(([127, 0, 0, 1], port))));
    let records: Vec<_> = records.chain([(0, 1, one.address())]).collect();
    set(&zone, &records);
    let gateway = by_srv(dns);
    gateway.logs("servers found by SRV records", 1);
    let mut log = gateway.log().into_iter();
    let found = log.find(|line| line["servers"].is_number());
    assert_eq!(found.unwrap()["servers"], 501);
    assert_eq!(served_by(&gateway), ["one"]);
}

#[test]
fn another_dns_server_is_asked_where_the_first_one_is_gone() {
    let one = app("one");
    let (second, zone) = dns();
    set(&zone, &[(0, 1, one.address())]);
    let gone = UdpSocket::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let servers = "servers: [\"http+srv://_http._tcp.app.test\"]";
    let resolvers = format!("resolvers: [\"{gone}\", \"{second}\"]");
    let gateway = Setup::with_upstreams(&format!("{{app: {{{servers}, {resolvers}}}}}")).start();
    becomes(&gateway, &["one"]);
    // Other servers that do not answer change nothing, nor does a reload meanwhile.
    *zone.lock().unwrap() = None;
    let text = gateway.read("gateway.yaml");
    gateway.write(
        "gateway.yaml",
        &text.replace("resolvers:", "resolve_interval: 1s, resolvers:"),
    );
    gateway.reload();
    assert_eq!(gateway.send(&get("/")).status, 200);
}

#[test]
fn an_upstream_whose_servers_are_not_known_yet_does_not_keep_the_gateway_from_starting() {
    let one = app("one");
    let (dns, zone) = dns();
    let gateway = by_srv(dns);
    assert_eq!(gateway.send(&get("/")).status, 503);
    set(&zone, &[(0, 0, one.address())]);
    becomes(&gateway, &["one"]);
}

#[test]
fn the_sticky_cookie_is_secure_where_a_trusted_proxy_says_that_the_client_asked_by_tls() {
    let one = app("one");
    let gateway = setup(STICKY, &[&one])
        .key("client_address: {trusted_proxies: [127.0.0.2]}")
        .start();
    let is_secure = |last, header: &str, value: &str| {
        let mut client = Client::connect_from([127, 0, 0, last].into(), gateway.address());
        let response = client.send(&get("/").with(header, value));
        let cookie = response.field("set-cookie").expect("a cookie");
        cookie.split("; ").any(|attribute| attribute == "Secure")
    };
    assert!(is_secure(2, "x-forwarded-proto", "https"));
    assert!(is_secure(2, "x-forwarded-proto", "wss"));
    assert!(is_secure(2, "forwarded", "for=192.0.2.1;proto=https"));
    assert!(!is_secure(2, "x-forwarded-proto", "http"));
    assert!(
        !is_secure(3, "x-forwarded-proto", "https"),
        "nobody vouches for it"
    );
}
