//! The pairs of docs/MIGRATION.md: another gateway and Weir, both by the blocks of the page, admit
//! the same requests.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::sync::Semaphore;

use crate::support::front::Front;
use crate::support::upstream::text;
use crate::support::*;

/// What the page says instead of the address of an app.
const APP: &str = "127.0.0.1:3000";

/// What a file of HAProxy needs beside the blocks of the page.
const HAPROXY: &str = "defaults
    mode http
    timeout connect 60s
    timeout client 60s
    timeout server 60s
";

/// The file of Envoy around a filter of the page.
const ENVOY: &str = r#"static_resources:
  listeners:
    - address: {socket_address: {address: 127.0.0.1, port_value: 80}}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: edge
                route_config:
                  virtual_hosts:
                    - name: all
                      domains: ["*"]
                      routes: [{match: {prefix: /}, direct_response: {status: 200}}]
                http_filters:
FILTER
                  - name: envoy.filters.http.router
                    typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
"#;

/// A section of the page: a limit of another gateway, and Weir's.
struct Pair {
    theirs: String,
    ours: String,
}

impl Pair {
    /// The first two blocks under a heading.
    fn under(heading: &str) -> Self {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/MIGRATION.md");
        let page = fs::read_to_string(page).expect("docs/MIGRATION.md");
        let (_, section) = page.split_once(&format!("# {heading}\n")).expect(heading);
        let mut parts = section.split("```");
        let mut block = || {
            let block = parts.nth(1).expect("a block");
            let (_, text) = block.split_once('\n').expect("lines");
            text.to_owned()
        };
        let (theirs, ours) = (block(), block());
        assert!(ours.starts_with("limits:"), "{heading}: {ours}");
        Self { theirs, ours }
    }

    /// The same with other texts in both blocks.
    fn with(mut self, theirs: (&str, &str), ours: (&str, &str)) -> Self {
        for (text, (usual, other)) in [(&mut self.theirs, theirs), (&mut self.ours, ours)] {
            assert!(text.contains(usual), "no {usual:?} in {text}");
            *text = text.replace(usual, other);
        }
        self
    }

    fn theirs(&self, upstream: &Upstream) -> String {
        self.theirs.replace(APP, &upstream.address().to_string())
    }

    /// Weir with the second block.
    fn weir(&self, upstream: &Upstream) -> Gateway {
        let folder = TempDir::with_prefix("weir-migration-").expect("a temporary folder");
        let text = format!(
            "listen: [{{address: \"127.0.0.1:0\"}}]\nworkers: 2\nwatch: false\n\
             upstreams: {{app: {{servers: [\"http://{}\"]}}}}\n{}",
            upstream.address(),
            self.ours
        );
        fs::write(folder.path().join("gateway.yaml"), text).expect("a file");
        Gateway::start(folder)
    }
}

fn from(address: SocketAddr, client: u8) -> Client {
    Client::connect_from(Ipv4Addr::new(127, 0, 1, client), address)
}

/// The statuses of so many requests of a client, one after the other.
fn statuses(address: SocketAddr, client: u8, count: usize) -> Vec<u16> {
    let send = |_| from(address, client).send(&get("/")).status;
    (0..count).map(send).collect()
}

/// Both admit as many requests of each client, and deny the others by 429.
fn admit_the_same(theirs: SocketAddr, ours: SocketAddr, admitted: usize, clients: &[u8]) {
    for client in clients {
        let count = admitted + 4;
        let (theirs, ours) = (
            statuses(theirs, *client, count),
            statuses(ours, *client, count),
        );
        let mut expected = vec![200; admitted];
        expected.resize(count, 429);
        assert_eq!(theirs, expected, "theirs");
        assert_eq!(ours, expected, "ours");
    }
}

/// An app that responds when it is told to.
struct WaitingApp {
    upstream: Upstream,
    responses: Arc<Semaphore>,
}

impl WaitingApp {
    fn start() -> Self {
        let responses = Arc::new(Semaphore::new(0));
        let allowed = Arc::clone(&responses);
        let upstream = Upstream::serving(move |_| {
            let allowed = Arc::clone(&allowed);
            async move {
                allowed.acquire().await.unwrap().forget();
                text("real")
            }
        });
        Self {
            upstream,
            responses,
        }
    }

    /// A gateway admits so many requests at once, and others when one of them is over.
    fn gets_at_once(&self, address: SocketAddr, number: usize) {
        let before = self.upstream.count();
        let mut clients: Vec<Client> = (0..number).map(|_| from(address, 1)).collect();
        for client in &mut clients {
            client.write(&get("/").bytes()).unwrap();
        }
        eventually("the requests in flight", || {
            (self.upstream.count() == before + number).then_some(())
        });
        assert_eq!(statuses(address, 1, 2), [429, 429]);
        assert_eq!(self.upstream.count(), before + number);
        self.responses.add_permits(number + 1);
        for client in &mut clients {
            assert_eq!(client.read("GET").unwrap().status, 200);
        }
        eventually("a place for another request", || {
            (statuses(address, 1, 1) == [200]).then_some(())
        });
    }
}

#[test]
fn nginx_without_delay_admits_no_more_and_no_less_than_weir() {
    let upstream = Upstream::start();
    let pair = Pair::under("limit_req with nodelay").with(
        ("rate=10r/s", "rate=1r/m"),
        ("count: 10, period: 1s", "count: 1, period: 1m"),
    );
    let nginx = Front::nginx_serving(&pair.theirs(&upstream));
    let weir = pair.weir(&upstream);
    admit_the_same(nginx.address(), weir.address(), 21, &[1, 2]);
}

#[test]
fn nginx_with_a_delay_holds_no_request_for_longer_than_weir() {
    let upstream = Upstream::start();
    let pair = Pair::under("limit_req with a delay")
        .with(("rate=10r/s", "rate=1r/s"), ("count: 10,", "count: 1,"))
        .with(("burst=20", "burst=2"), ("delay: 2s", "delay: 2s"));
    let nginx = Front::nginx_serving(&pair.theirs(&upstream));
    let weir = pair.weir(&upstream);
    for address in [nginx.address(), weir.address()] {
        let sent_in_time = (1..100).find_map(|client| four_at_once(address, client));
        let [first, second, third] = sent_in_time.expect("a denial");
        assert!(first <= second, "{first:?} {second:?}");
        // A client is a little later than the clock of a gateway.
        assert!(second >= Duration::from_millis(950), "{second:?}");
        assert!(third >= Duration::from_millis(1950), "{third:?}");
    }
}

/// After how long three of four requests were admitted, by their order. None on a machine that was
/// so slow that something came back meanwhile, and none was denied.
fn four_at_once(address: SocketAddr, client: u8) -> Option<[Duration; 3]> {
    let mut clients: [Client; 4] = std::array::from_fn(|_| from(address, client));
    let begun = Instant::now();
    for client in &mut clients {
        client.write(&get("/").bytes()).unwrap();
    }
    let responses = thread::scope(|scope| {
        let readers = clients.each_mut().map(|client| {
            scope.spawn(move || (client.read("GET").unwrap().status, begun.elapsed()))
        });
        readers.map(|reader| reader.join().unwrap())
    });
    let mut admitted: Vec<Duration> = Vec::new();
    for (status, elapsed) in responses {
        match status {
            200 => admitted.push(elapsed),
            status => assert_eq!(status, 429),
        }
    }
    admitted.sort();
    admitted.try_into().ok()
}

#[test]
fn nginx_admits_no_more_requests_at_once_than_weir() {
    let app = WaitingApp::start();
    let pair = Pair::under("limit_conn");
    let nginx = Front::nginx_serving(&pair.theirs(&app.upstream));
    let weir = pair.weir(&app.upstream);
    app.gets_at_once(nginx.address(), 10);
    app.gets_at_once(weir.address(), 10);
}

#[test]
fn haproxy_admits_no_more_and_no_less_than_weir() {
    let upstream = Upstream::start();
    let pair = Pair::under("http_req_rate").with(("10s", "1h"), ("10s", "1h"));
    let Some(haproxy) = Front::haproxy(&format!("{HAPROXY}{}", pair.theirs(&upstream))) else {
        return;
    };
    let weir = pair.weir(&upstream);
    admit_the_same(haproxy.address(), weir.address(), 20, &[1, 2]);
}

#[test]
fn haproxy_admits_no_more_requests_at_once_than_weir() {
    let app = WaitingApp::start();
    let pair = Pair::under("conn_cur");
    let Some(haproxy) = Front::haproxy(&format!("{HAPROXY}{}", pair.theirs(&app.upstream))) else {
        return;
    };
    let weir = pair.weir(&app.upstream);
    app.gets_at_once(haproxy.address(), 10);
    app.gets_at_once(weir.address(), 10);
}

#[test]
fn envoy_admits_no_more_and_no_less_than_weir() {
    let upstream = Upstream::start();
    let pair = Pair::under("Local rate limits").with(("10s", "10000s"), ("10s", "10000s"));
    let filter = pair.theirs.lines();
    let filter: Vec<_> = filter.map(|line| format!("{:18}{line}", "")).collect();
    let Some(envoy) = Front::envoy_with(&ENVOY.replace("FILTER", &filter.join("\n"))) else {
        return;
    };
    let weir = pair.weir(&upstream);
    admit_the_same(envoy.address(), weir.address(), 20, &[1]);
}

#[test]
fn express_admits_no_more_and_no_less_than_weir() {
    let upstream = Upstream::start();
    let pair = Pair::under("express-rate-limit");
    let server = format!(
        "import express from 'express';\n\
         import {{ rateLimit }} from 'express-rate-limit';\n\
         const app = express();\n\
         {}\n\
         app.get('/', (request, response) => response.send('real'));\n\
         app.listen(80, '127.0.0.1');\n",
        pair.theirs
    );
    let Some(express) = Front::node(&server) else {
        return;
    };
    let weir = pair.weir(&upstream);
    admit_the_same(express.address(), weir.address(), 100, &[1, 2]);
}
