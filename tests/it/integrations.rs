//! nginx, Caddy and Envoy ask for decisions, by the files in `deploy/examples`. There is no Traefik to test
//! with; its files are held to those of Weir by the tests of `weir-config`.

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::decide::DECIDE;
use crate::support::front::{Front, documented_for, read_example};
use crate::support::upstream::{Received, text};
use crate::support::*;

/// The gateway of the examples, with a slower refill, so that no machine is slow enough for one.
fn gateway() -> Gateway {
    gateway_of("gateway.yaml")
}

fn gateway_of(example: &str) -> Gateway {
    let text = read_example(example)
        .replace("127.0.0.1:9000", "127.0.0.1:0")
        .replace("count: 100, period: 1m", "count: 1, period: 1000h")
        .replace("count: 10, period: 1h", "count: 1, period: 1000h");
    let folder = tempfile::TempDir::with_prefix("weir-it-").unwrap();
    std::fs::write(folder.path().join("gateway.yaml"), text).unwrap();
    Gateway::start(folder)
}

fn from(front: SocketAddr, client: u8) -> Client {
    Client::connect_from(Ipv4Addr::new(127, 0, 1, client), front)
}

/// Limits hold by client, method and path, clients see where they stand, and the app gets what it
/// would get without Weir.
fn is_limited(front: &Front, upstream: &Upstream) {
    let mut client = from(front.address(), 1);
    for left in (0..20).rev() {
        let response = client.send(&post("/a?b=c", "sent"));
        assert_eq!((response.status, response.text()), (200, "real"));
        let field = response.field("ratelimit").unwrap_or_default();
        assert!(
            field.starts_with(&format!("\"RequestsPerAddress\";r={left};t=")),
            "{field}"
        );
        assert!(response.field("ratelimit-policy").is_some());
    }
    let received = upstream.last();
    assert_eq!(
        (received.method.as_str(), received.target.as_str()),
        ("POST", "/a?b=c")
    );
    assert_eq!(&received.body[..], b"sent");
    assert!(!received.headers.contains_key("ratelimit"));
    let reached = upstream.count();

    let denied = client.send(&post("/a?b=c", "sent"));
    assert_eq!(denied.status, 429);
    assert_eq!(
        denied.field("content-type"),
        Some("application/problem+json")
    );
    assert_eq!(denied.json()["status"], 429);
    assert!(denied.field("retry-after").is_some());
    let field = denied.field("ratelimit").unwrap_or_default();
    assert!(
        field.starts_with("\"RequestsPerAddress\";r=0;t="),
        "{field}"
    );
    assert_eq!(upstream.count(), reached);

    let mut other = from(front.address(), 2);
    for status in [200, 200, 200, 200, 200, 429] {
        assert_eq!(other.send(&post("/login", "")).status, status);
    }
    assert_eq!(other.send(&get("/login")).status, 200);
}

/// What a client sends under the names that the proxy uses changes nothing.
fn believes_no_client(front: &Front) {
    let mut client = from(front.address(), 3);
    let forged = |request: Request, address: usize| {
        request
            .with("x-forwarded-for", &format!("203.0.113.{address}"))
            .with("forwarded", "for=203.0.113.9")
            .with("x-real-ip", "203.0.113.9")
            .with("x-forwarded-method", "GET")
            .with("x-forwarded-uri", "/elsewhere")
            .with("x-forwarded-host", "elsewhere.example")
            .with("x-forwarded-proto", "https")
            .with("weir-status", "200")
    };
    for number in 0..5 {
        assert_eq!(client.send(&forged(post("/login", ""), number)).status, 200);
    }
    for number in 5..10 {
        assert_eq!(client.send(&forged(post("/login", ""), number)).status, 429);
    }
}

#[test]
fn nginx_limits_by_decisions() {
    let (upstream, gateway) = (Upstream::start(), gateway());
    let front = Front::nginx(gateway.decides_at(), upstream.address());
    is_limited(&front, &upstream);
    believes_no_client(&front);
    // What the app itself forbids is not taken for a denial.
    let forbidding = Upstream::answering(|_: &Received| {
        let mut response = text("forbidden by the app");
        *response.status_mut() = http::StatusCode::FORBIDDEN;
        response
    });
    let front = Front::nginx(gateway.decides_at(), forbidding.address());
    let response = from(front.address(), 4).send(&get("/"));
    assert_eq!(
        (response.status, response.text()),
        (403, "forbidden by the app")
    );
}

/// A client of nginx as Debian sets it up, who names the app or another host.
#[test]
fn the_file_for_nginx_serves_its_app_beside_the_default_site_of_debian() {
    let (upstream, gateway) = (Upstream::start(), gateway());
    let at = gateway.decides_at();
    let Some(front) = Front::nginx_of_debian(at, upstream.address(), true) else {
        return;
    };
    let mut client = from(front.address(), 9);
    let named = get("/").with("host", "app.example.com");
    assert_eq!(client.send(&named).text(), "real");
    let other = client.send(&get("/").with("host", "other.example"));
    assert_eq!((other.status, other.field("ratelimit")), (200, None));
    assert_ne!(other.text(), "real");

    let without = Front::nginx_of_debian(at, upstream.address(), false).unwrap();
    is_limited(&without, &upstream);
    believes_no_client(&without);
}

/// Bodies of more than the megabyte that nginx takes by default reach the app.
fn passes_large_bodies(front: &Front, upstream: &Upstream) {
    let body = "x".repeat(3 << 20);
    assert_eq!(front.send(&post("/upload", &body)).text(), "real");
    assert_eq!(upstream.last().body.len(), body.len());
}

fn tunnels_websockets(front: &Front, app: WebSocket) {
    let mut client = Client::connect(front.address());
    let ask = get("/socket")
        .with("connection", "keep-alive, Upgrade")
        .with("upgrade", "WebSocket")
        .with("sec-websocket-version", "13")
        .with("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
    client.write(&ask.bytes()).unwrap();
    assert_eq!(client.read_head().unwrap().status, 101);
    client.write(b"frame").unwrap();
    let mut echo = [0; 5];
    client.read_exact(&mut echo).unwrap();
    assert_eq!(&echo, b"frame");
    drop(client);
    let received = app.ended().to_lowercase();
    for field in ["connection: upgrade\r\n", "upgrade: websocket\r\n"] {
        assert!(received.contains(field), "{received}");
    }
}

#[test]
fn an_app_behind_nginx_gets_bodies_above_a_megabyte_and_websockets() {
    let (upstream, gateway) = (Upstream::start(), gateway());
    let at = gateway.decides_at();
    let Some(front) = Front::nginx_of_debian(at, upstream.address(), false) else {
        return;
    };
    passes_large_bodies(&front, &upstream);
    // Another protocol would be a tunnel through which requests pass undecided.
    let h2c = get("/")
        .with("connection", "upgrade")
        .with("upgrade", "h2c");
    assert_eq!(front.send(&h2c).text(), "real");
    assert!(!upstream.last().headers.contains_key("upgrade"));
    let app = WebSocket::start();
    let front = Front::nginx_of_debian(at, app.address(), false).unwrap();
    tunnels_websockets(&front, app);
}

#[test]
fn an_app_behind_caddy_gets_bodies_above_a_megabyte_and_websockets() {
    let (upstream, gateway) = (Upstream::start(), gateway());
    let at = gateway.decides_at();
    let Some(front) = Front::caddy(at, upstream.address()) else {
        return;
    };
    passes_large_bodies(&front, &upstream);
    let app = WebSocket::start();
    let front = Front::caddy(at, app.address()).unwrap();
    tunnels_websockets(&front, app);
}

#[test]
fn without_weir_caddy_lets_nothing_through() {
    let upstream = Upstream::start();
    let Some(front) = Front::caddy(refusing_address(), upstream.address()) else {
        return;
    };
    assert_eq!(front.send(&get("/")).status, 502);
    assert_eq!(upstream.count(), 0);
}

/// The app is asked once in any case, as it may have done what it was asked for before it failed.
#[test]
fn caddy_lets_requests_through_without_weir_where_it_is_told_to_and_none_twice() {
    let (upstream, gateway) = (Upstream::start(), gateway());
    let [block] = &documented_for("caddy")[..] else {
        panic!("a block for Caddy");
    };
    let told = |text: &str| text.replacen("\troute {", &format!("{block}\troute {{"), 1);
    let Some(without) = Front::caddy_with(refusing_address(), upstream.address(), told) else {
        return;
    };
    assert_eq!(without.send(&post("/a", "sent")).text(), "real");
    assert_eq!(&upstream.last().body[..], b"sent");
    assert_eq!(upstream.count(), 1);
    let with = Front::caddy_with(gateway.decides_at(), upstream.address(), told).unwrap();
    is_limited(&with, &upstream);

    let (failing, asked) = hanging_up();
    let at = gateway.decides_at();
    let front = Front::caddy_with(at, failing, told).unwrap();
    assert_eq!(front.send(&post("/a", "sent")).status, 502);
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

/// An app that closes each connection after it has read from it, and how often it has.
fn hanging_up() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.read(&mut [0; 4096]);
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    (address, asked)
}

#[test]
fn a_browser_that_nginx_denies_gets_a_page_that_says_when_to_come_back() {
    let (upstream, gateway) = (Upstream::start(), gateway());
    let front = Front::nginx(gateway.decides_at(), upstream.address());
    let browser = post("/login", "").with("accept", "text/html,application/xhtml+xml,*/*;q=0.8");
    let mut client = from(front.address(), 1);
    for _ in 0..5 {
        assert_eq!(client.send(&browser).status, 200);
    }
    let denied = client.send(&browser);
    assert_eq!(denied.status, 429);
    assert_eq!(denied.field("content-type"), Some("text/html"));
    let retry_after = denied.field("retry-after").unwrap();
    assert!(denied.text().contains("<h1>429 Too Many Requests</h1>"));
    assert!(
        denied
            .text()
            .contains(&format!("try again in {retry_after} s."))
    );
    let program = client.send(&post("/login", "").with("accept", "*/*"));
    assert_eq!(program.json()["title"], "Too Many Requests");
    // Nobody reaches the documents by their own addresses.
    assert_eq!(client.send(&get("/_weir_denied.html")).status, 404);
}

/// nginx asks again after each redirect inside of it, with the same request.
#[test]
fn a_request_that_nginx_redirects_within_itself_is_counted_once() {
    let upstream = Upstream::answering(|request: &Received| {
        let mut response = text(&request.target);
        if request.target.ends_with("missing") {
            *response.status_mut() = http::StatusCode::NOT_FOUND;
        }
        response
    });
    let gateway = gateway();
    let site = tempfile::TempDir::with_prefix("weir-site-").unwrap();
    std::fs::create_dir(site.path().join("site")).unwrap();
    for file in ["index.html", "page.html", "404.html"] {
        std::fs::write(site.path().join("site").join(file), file).unwrap();
    }
    // For the whole server, in which some locations are of files.
    let files = format!(
        "root {};
        error_page 404 /site/404.html;
        location /site/ {{ index index.html; }}
        location /tried/ {{ try_files /nothing /site/page.html; }}
        location /named/ {{ try_files /nothing @app; }}
        location @app {{ proxy_pass http://app; }}
        location / {{ proxy_intercept_errors on;",
        site.path().display()
    );
    let front = Front::nginx_with(gateway.decides_at(), upstream.address(), |text| {
        let (before, rest) = text.split_once("    location / {\n").unwrap();
        let (asking, rest) = rest.split_once("\n\n").unwrap();
        let asking = asking.replace(
            "error_page 403",
            "error_page 404 /site/404.html; error_page 403",
        );
        let files = files.replace("error_page 404 /site/404.html;\n", "\n");
        format!("{before}{asking}\n{files}\n{rest}")
    });
    let mut client = from(front.address(), 1);
    for (number, (path, status, body)) in [
        ("/site/", 200, "index.html"),
        ("/site/page.html", 200, "page.html"),
        ("/tried/a", 200, "page.html"),
        ("/named/a", 200, "/named/a"),
        ("/a/missing", 404, "404.html"),
        ("/site/nothing", 404, "404.html"),
        ("/a", 200, "/a"),
    ]
    .into_iter()
    .enumerate()
    {
        let response = client.send(&get(path));
        assert_eq!((response.status, response.text()), (status, body), "{path}");
        let left = format!("\"RequestsPerAddress\";r={};t=", 19 - number);
        let field = response.field("ratelimit").unwrap_or_default();
        assert!(field.starts_with(&left), "{path}: {field}");
    }
    for _ in 0..13 {
        assert_eq!(client.send(&get("/site/")).status, 200);
    }
    for path in ["/site/", "/tried/a", "/named/a", "/a/missing"] {
        assert_eq!(client.send(&get(path)).status, 429, "{path}");
    }
}

/// nginx took what Weir refused of a subrequest for a failure, and answered with 500.
#[test]
fn what_a_client_sends_is_no_failure_to_nginx_however_malformed() {
    let (upstream, gateway) = (Upstream::start(), gateway());
    let front = Front::nginx(gateway.decides_at(), upstream.address());
    let fields = |count: usize| "x-n: 1\r\n".repeat(count);
    let mut reached = 0;
    for (request, status) in [
        (
            "GET / HTTP/1.1\r\nhost: a\r\nx-a: \u{1}\r\n\r\n".to_owned(),
            400,
        ),
        // Without a host, it is for the server that nginx has first.
        ("GET / HTTP/1.0\r\n\r\n".to_owned(), 200),
        ("GET /a/../../b HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(), 400),
        (
            format!("GET / HTTP/1.1\r\nhost: a\r\n{}\r\n", fields(120)),
            431,
        ),
        (
            format!("GET / HTTP/1.1\r\nhost: a\r\n{}\r\n", fields(20)),
            200,
        ),
    ] {
        let mut client = from(front.address(), 5);
        client.write(request.as_bytes()).unwrap();
        let response = client.read("GET").unwrap();
        assert_eq!(response.status, status, "{request}");
        reached += usize::from(status == 200);
        assert_eq!(upstream.count(), reached, "{request}");
    }
}

#[test]
fn caddy_limits_by_decisions() {
    let (upstream, gateway) = (Upstream::start(), gateway());
    let Some(front) = Front::caddy(gateway.decides_at(), upstream.address()) else {
        return;
    };
    is_limited(&front, &upstream);
    believes_no_client(&front);
}

#[test]
fn envoy_limits_by_decisions() {
    let (upstream, gateway) = (Upstream::start(), gateway_of("envoy/gateway.yaml"));
    let Some(front) = Front::envoy(gateway.decides_at(), upstream.address()) else {
        return;
    };
    let mut client = from(front.address(), 1);
    for left in (0..20).rev() {
        let response = client.send(&post("/a?b=c", "sent").with("x-forwarded-for", "203.0.113.9"));
        assert_eq!((response.status, response.text()), (200, "real"));
        let field = response.field("ratelimit").unwrap_or_default();
        let expected = format!("\"RequestsPerAddress\";r={left};t=");
        assert!(field.starts_with(&expected), "{field}");
    }
    let denied = client.send(&get("/a"));
    assert_eq!(denied.status, 429);
    assert!(denied.field("retry-after").is_some());
    assert_eq!(upstream.count(), 20);
    let mut other = from(front.address(), 2);
    for status in [200, 200, 200, 200, 200, 429] {
        assert_eq!(other.send(&post("/login", "")).status, status);
    }
    // The denial by one descriptor has taken nothing from the other.
    let field = other.send(&get("/")).field("ratelimit").map(str::to_owned);
    assert!(field.unwrap().starts_with("\"RequestsPerAddress\";r=14;"));
}

#[test]
fn two_gateways_and_two_envoys_admit_a_bucket_once() {
    let (upstream, redis) = (Upstream::start(), RedisServer::start());
    let setup = Setup::before(&upstream)
        .key(
            "decide: {address: \"127.0.0.1:0\", trusted_proxies: [127.0.0.1], envoy: [{domain: \
             edge, descriptors: [{key: remote_address, limit: L}]}]}",
        )
        .limits(&["L: {per: address, burst: 100, count: 1, period: 1000h}"])
        .limited_by("L")
        .key(&crate::redis::store(&redis.url()));
    let gateways = [setup.start(), setup.start()];
    let mut fronts = Vec::new();
    for gateway in &gateways {
        let Some(front) = Front::envoy(gateway.decides_at(), upstream.address()) else {
            return;
        };
        fronts.push(front);
    }
    let addresses = fronts.iter().map(Front::address);
    let addresses = addresses.chain(gateways.iter().map(Gateway::address));
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let senders = addresses.map(|address| {
            scope.spawn(move || {
                let mut client = Client::connect(address);
                let send = |_| client.send(&get("/")).status;
                (0..60).map(send).collect::<Vec<_>>()
            })
        });
        let senders: Vec<_> = senders.collect();
        let statuses = senders.into_iter().map(|sender| sender.join().unwrap());
        statuses.flatten().collect()
    });
    let admitted = statuses.iter().filter(|status| **status == 200).count();
    assert_eq!(admitted, 100, "{statuses:?}");
    assert_eq!(upstream.count(), 100);
}

#[test]
fn without_weir_nginx_lets_nothing_through() {
    let upstream = Upstream::start();
    let front = Front::nginx(refusing_address(), upstream.address());
    assert_eq!(front.send(&get("/")).status, 500);
    assert_eq!(upstream.count(), 0);
}

#[test]
fn nginx_lets_requests_through_without_weir_where_it_is_told_to() {
    let (upstream, gateway) = (Upstream::start(), gateway());
    let [fallback, location] = &documented_for("nginx")[..] else {
        panic!("two blocks for nginx");
    };
    let asking = "location = /_weir {";
    let told = |text: &str| text.replacen(asking, &format!("{location}\n{asking}\n{fallback}"), 1);
    let without = Front::nginx_with(refusing_address(), upstream.address(), told);
    assert_eq!(without.send(&post("/a", "sent")).text(), "real");
    let with = Front::nginx_with(gateway.decides_at(), upstream.address(), told);
    is_limited(&with, &upstream);
}

#[test]
fn two_gateways_nginx_and_caddy_admit_a_bucket_once() {
    let (upstream, redis) = (Upstream::start(), RedisServer::start());
    let setup = Setup::before(&upstream)
        .key(DECIDE)
        .limits(&["L: {per: global, burst: 100, count: 1, period: 1000h}"])
        .limited_by("L")
        .key(&crate::redis::store(&redis.url()));
    let (one, other) = (setup.start(), setup.start());
    let nginx = Front::nginx(one.decides_at(), upstream.address());
    let caddy = Front::caddy(other.decides_at(), upstream.address());
    let caddy = caddy.as_ref().map(Front::address);
    let fronts = [nginx.address(), one.address(), other.address()];
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let senders = fronts.into_iter().chain(caddy).map(|front| {
            scope.spawn(move || {
                let mut client = Client::connect(front);
                let send = |_| client.send(&get("/")).status;
                (0..60).map(send).collect::<Vec<_>>()
            })
        });
        let senders: Vec<_> = senders.collect();
        let statuses = senders.into_iter().map(|sender| sender.join().unwrap());
        statuses.flatten().collect()
    });
    let admitted = statuses.iter().filter(|status| **status == 200).count();
    assert_eq!(admitted, 100, "{statuses:?}");
    assert!(statuses.iter().all(|status| [200, 429].contains(status)));
    assert_eq!(upstream.count(), 100);
}
