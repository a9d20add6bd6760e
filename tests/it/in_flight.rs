//! Limits on requests in flight: how many of a subject are under way at the same time.

use std::io;
use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::Arc;

use bytes::Bytes;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tokio::sync::Semaphore;

use crate::support::gateway::WEIR;
use crate::support::upstream::{Body, text};
use crate::support::*;

/// An app that answers requests below `/held` one by one as it is told to, with a body that breaks
/// off below `/broken`, with a body that never ends below `/endless`, and all others at once.
struct App {
    upstream: Upstream,
    answers: Arc<Semaphore>,
}

impl App {
    fn start() -> Self {
        let answers = Arc::new(Semaphore::new(0));
        let told = Arc::clone(&answers);
        let upstream = Upstream::serving(move |request| {
            let told = Arc::clone(&told);
            async move {
                match request.uri().path() {
                    "/held" => {
                        told.acquire().await.unwrap().forget();
                        text("late")
                    }
                    "/broken" => http::Response::new(pieces(vec![
                        Ok("begun"),
                        Err(io::ErrorKind::BrokenPipe.into()),
                    ])),
                    "/endless" => http::Response::new(begun_for_ever()),
                    _ => text("real"),
                }
            }
        });
        Self { upstream, answers }
    }

    fn answer(&self, requests: usize) {
        self.answers.add_permits(requests);
    }

    fn setup(&self, limit: &str) -> Setup {
        Setup::before(&self.upstream)
            .limits(&[limit])
            .limited_by("AtOnce")
    }

    /// Sends requests that the app does not answer yet, and waits until it has them.
    fn held(&self, gateway: &Gateway, requests: usize) -> Vec<Client> {
        let before = self.upstream.count();
        let clients = (0..requests).map(|_| send_only(gateway, "/held")).collect();
        eventually("requests at the app", || {
            (self.upstream.count() == before + requests).then_some(())
        });
        clients
    }
}

fn pieces(all: Vec<io::Result<&'static str>>) -> Body {
    let frame = |text: &'static str| Frame::data(Bytes::from_static(text.as_bytes()));
    let frames = all.into_iter().map(move |piece| piece.map(frame));
    BodyExt::boxed(StreamBody::new(futures_util::stream::iter(frames)))
}

fn begun_for_ever() -> Body {
    let mut first = Some(Frame::data(Bytes::from_static(b"begun")));
    let stream = futures_util::stream::poll_fn(move |_| match first.take() {
        Some(frame) => std::task::Poll::Ready(Some(Ok(frame))),
        None => std::task::Poll::Pending,
    });
    BodyExt::boxed(StreamBody::new(stream))
}

const ONE: &str = "AtOnce: {per: address, in_flight: 1}";

fn send_only(gateway: &Gateway, path: &str) -> Client {
    let mut client = gateway.client();
    client.write(&get(path).bytes()).unwrap();
    client
}

fn status(gateway: &Gateway) -> u16 {
    gateway.send(&get("/")).status
}

/// How many places the gateway holds.
const HELD: &str = "weir_leases_held{limit=\"AtOnce\"}";

/// Waits until no request has a place: one that was answered gives it back a moment later.
fn until_none_is_held(gateway: &Gateway) {
    eventually("all places to be free", || {
        (gateway.metric(HELD) == Some(0.0)).then_some(())
    });
}

/// Waits until a request gets a place.
fn until_free(gateway: &Gateway) {
    eventually("a free place", || (status(gateway) == 200).then_some(()));
}

fn store(redis: &RedisServer, more: &str) -> String {
    let url = redis.url();
    format!("store: {{redis: {{url: \"{url}\", timeout: 10s, on_failure: deny{more}}}}}")
}

#[test]
fn as_many_requests_are_forwarded_at_once_as_there_are_places() {
    let app = App::start();
    let gateway = app.setup("AtOnce: {per: address, in_flight: 3}").start();
    let mut held = app.held(&gateway, 3);
    let denied = gateway.send(&get("/fourth"));
    assert_eq!(denied.status, 429);
    assert_eq!(denied.field("retry-after"), Some("1"));
    assert_eq!(denied.field("ratelimit"), Some("\"AtOnce\";r=0"));
    let policy = "\"AtOnce\";q=3;qu=\"concurrent-requests\"";
    assert_eq!(denied.field("ratelimit-policy"), Some(policy));
    assert_eq!(denied.json()["violated-policies"][0], "AtOnce");
    assert_eq!(app.upstream.count(), 3);
    assert_eq!(gateway.metric(HELD), Some(3.0));

    app.answer(1);
    until_free(&gateway);
    app.answer(2);
    for client in &mut held {
        assert_eq!(client.read("GET").unwrap().status, 200);
    }
    until_none_is_held(&gateway);
    let line = gateway.logged("/fourth");
    assert_eq!(
        (&line["limit"], &line["in_flight"]),
        (&"AtOnce".into(), &3.into())
    );
    assert_eq!(line["decision"], "denied");
}

#[test]
fn a_place_is_held_until_the_last_byte_and_no_longer_than_its_client_stays() {
    let app = App::start();
    let gateway = app.setup(ONE).start();
    let mut slow = send_only(&gateway, "/endless");
    assert_eq!(slow.read_head().unwrap().status, 200);
    assert_eq!(slow.read_chunk().unwrap().unwrap(), b"begun");
    assert_eq!(status(&gateway), 429);
    drop(slow);
    until_free(&gateway);
}

#[test]
fn a_client_that_leaves_before_the_answer_gives_its_place_back() {
    let app = App::start();
    let gateway = app.setup(ONE).start();
    let held = app.held(&gateway, 1);
    assert_eq!(status(&gateway), 429);
    drop(held);
    until_free(&gateway);
}

#[test]
fn an_app_that_breaks_off_or_is_not_there_gives_the_place_back() {
    let app = App::start();
    let address = app.upstream.address();
    let upstreams = format!(
        "{{app: {{servers: [\"http://{address}\"]}}, gone: {{servers: [\"http://127.0.0.1:1\"]}}}}"
    );
    let gateway = Setup::with_upstreams(&upstreams)
        .limits(&[ONE])
        .routes(&[
            "{match: {path: /gone}, upstream: gone, limits: [AtOnce]}",
            "{match: {}, upstream: app, limits: [AtOnce]}",
        ])
        .start();
    for _ in 0..3 {
        let broken = gateway.client().try_send(&get("/broken"));
        assert!(broken.is_err() || broken.unwrap().status == 502);
        until_free(&gateway);
        let gone = || gateway.send(&get("/gone")).status;
        eventually("a place for it", || (gone() == 502).then_some(()));
        until_free(&gateway);
        until_none_is_held(&gateway);
    }
}

#[test]
fn gateways_on_one_redis_share_the_places() {
    let (app, redis) = (App::start(), RedisServer::start());
    let setup = app
        .setup("AtOnce: {per: address, in_flight: 2}")
        .key(&store(&redis, ""));
    let gateways = [setup.start(), setup.start()];
    let held = [app.held(&gateways[0], 1), app.held(&gateways[1], 1)];
    for gateway in &gateways {
        assert_eq!(status(gateway), 429);
    }
    drop(held);
    gateways.iter().for_each(until_free);
    // Beside the buckets are the keys of the fleet.
    eventually("no bucket in Redis", || {
        let buckets = redis.command(&["KEYS", "weir:[^:]*"]);
        buckets.starts_with("*0\r").then_some(())
    });
}

#[test]
fn a_gateway_that_is_killed_leaks_no_place_for_longer_than_a_lease() {
    let (app, redis) = (App::start(), RedisServer::start());
    let setup = app.setup(ONE).key(&store(&redis, ", lease: 5s"));
    let (killed, other) = (setup.start(), setup.start());
    let _held = app.held(&killed, 1);
    // It is renewed for as long as its gateway lives.
    assert_eq!(status(&other), 429);
    killed.signal("KILL");
    until_free(&other);
}

#[test]
fn a_gateway_that_stops_gives_back_what_it_had_to_cut_off() {
    let (app, redis) = (App::start(), RedisServer::start());
    let setup = app.setup(ONE).key(&store(&redis, ", lease: 1h"));
    let mut stopped = setup.clone().key("grace: 1ms").start();
    let other = setup.start();
    let _held = app.held(&stopped, 1);
    assert_eq!(status(&other), 429);
    stopped.signal("TERM");
    stopped.ended();
    until_free(&other);
}

#[test]
fn a_websocket_holds_its_place_as_long_as_it_is_open() {
    let app = WebSocket::start();
    let other = Upstream::start();
    let upstreams = format!(
        "{{socket: {{servers: [\"http://{}\"]}}, app: {{servers: [\"http://{}\"]}}}}",
        app.address(),
        other.address()
    );
    let gateway = Setup::with_upstreams(&upstreams)
        .limits(&[ONE])
        .routes(&[
            "{match: {path: /socket}, upstream: socket, limits: [AtOnce]}",
            "{match: {}, upstream: app, limits: [AtOnce]}",
        ])
        .start();
    let mut socket = gateway.client();
    let ask = get("/socket")
        .with("connection", "upgrade")
        .with("upgrade", "websocket")
        .with("sec-websocket-version", "13")
        .with("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
    socket.write(&ask.bytes()).unwrap();
    assert_eq!(socket.read_head().unwrap().status, 101);
    socket.write(b"frame").unwrap();
    socket.read_exact(&mut [0; 5]).unwrap();
    assert_eq!(status(&gateway), 429);
    drop(socket);
    until_free(&gateway);
    app.ended();
}

#[test]
fn a_request_without_a_place_takes_nothing_from_other_limits() {
    let (app, redis) = (App::start(), RedisServer::start());
    let limits = [
        "Rate: {per: address, burst: 3, count: 1, period: 1h}",
        "Window: {per: address, algorithm: sliding_window, count: 3, period: 1h}",
        ONE,
    ];
    let setup = Setup::before(&app.upstream)
        .limits(&limits)
        .limited_by("AtOnce, Rate, Window");
    for setup in [setup.clone(), setup.key(&store(&redis, ""))] {
        let gateway = setup.start();
        let held = app.held(&gateway, 1);
        for _ in 0..5 {
            // What it took is given back off the response's path.
            eventually("a denial that finds the others as they were", || {
                let denied = gateway.send(&get("/"));
                assert_eq!(denied.status, 429);
                let fields = denied.field("ratelimit").unwrap();
                assert!(fields.starts_with("\"AtOnce\";r=0, "), "{fields}");
                let untouched = ["\"Rate\";r=2", "\"Window\";r=2"];
                untouched.iter().all(|it| fields.contains(it)).then_some(())
            });
        }
        drop(held);
        until_free(&gateway);
        eventually("the last unit", || (status(&gateway) == 200).then_some(()));
        let denied = gateway.send(&get("/"));
        assert_eq!(denied.status, 429);
        let violated = denied.json()["violated-policies"].to_string();
        assert!(!violated.contains("AtOnce"), "{violated}");
    }
}

#[test]
fn what_another_limit_denies_takes_no_place() {
    let app = App::start();
    let gateway = Setup::before(&app.upstream)
        .limits(&[
            "Rate: {per: address, burst: 1, count: 1, period: 1h}",
            "AtOnce: {per: global, in_flight: 1}",
        ])
        .limited_by("AtOnce, Rate")
        .start();
    assert_eq!(gateway.statuses(&get("/"), 3), [200, 429, 429]);
    let mut elsewhere = Client::connect_from(Ipv4Addr::new(127, 0, 0, 2), gateway.address());
    assert_eq!(elsewhere.send(&get("/")).status, 200);
}

#[test]
fn a_dry_run_forwards_all_and_says_what_it_would_have_denied() {
    let app = App::start();
    let limit = "{limit: AtOnce, enforce: false}";
    let gateway = app.setup(ONE).limited_by(limit).start();
    let _held = app.held(&gateway, 1);
    assert_eq!(gateway.send(&get("/beyond")).status, 200);
    let line = gateway.logged("/beyond");
    assert_eq!(line["decision"], "would_deny");
    assert_eq!(
        (&line["limit"], &line["in_flight"]),
        (&"AtOnce".into(), &1.into())
    );
    let would = "weir_decisions_total{limit=\"AtOnce\",decision=\"would_deny\"}";
    assert_eq!(gateway.metric(would), Some(1.0));
    assert_eq!(
        gateway.metric("weir_leases_held{limit=\"AtOnce\"}"),
        Some(1.0)
    );
}

#[test]
fn a_shadow_ban_hides_that_there_was_no_place() {
    let app = App::start();
    let gateway = app
        .setup(ONE)
        .key("decoys: {fake: {body: real}}")
        .routes(&["{match: {}, upstream: app, limits: [AtOnce], on_denied: {shadow: fake}}"])
        .start();
    let _held = app.held(&gateway, 1);
    let before = app.upstream.count();
    assert_eq!(gateway.send(&get("/")).status, 200);
    assert_eq!(app.upstream.count(), before);
}

#[test]
fn an_override_gives_a_subject_more_places_and_a_reload_takes_them() {
    let app = App::start();
    let gateway = app
        .setup(ONE)
        .overrides("- AtOnce: {in_flight: 2, ids: [127.0.0.1]}")
        .start();
    let held = app.held(&gateway, 2);
    assert_eq!(status(&gateway), 429);
    gateway.write("limits/overrides.yaml", "[]\n");
    gateway.reload();
    drop(held);
    until_none_is_held(&gateway);
    let _held = app.held(&gateway, 1);
    assert_eq!(status(&gateway), 429);
}

#[test]
fn operators_see_who_is_in_flight_and_may_forget_it() {
    let (app, redis) = (App::start(), RedisServer::start());
    let setup = app.setup("AtOnce: {per: address, in_flight: 2}");
    for setup in [setup.clone(), setup.key(&store(&redis, ", lease: 1h"))] {
        let gateway = setup.start();
        let held = app.held(&gateway, 2);
        let bucket = |method: &str, path: &str| {
            let path = format!("/v1/buckets/AtOnce/127.0.0.1{path}");
            gateway.admin(&request(method, &path).with("host", "127.0.0.1"))
        };
        let shown = bucket("GET", "").json();
        assert_eq!(shown["algorithm"], "in_flight");
        assert_eq!(
            (&shown["most"], &shown["in_flight"]),
            (&2.into(), &2.into())
        );
        assert_eq!(bucket("POST", "/refund").status, 409);
        assert_eq!(status(&gateway), 429);
        assert_eq!(bucket("DELETE", "").json()["in_flight"], 0);
        until_free(&gateway);
        drop(held);
    }
}

/// Redis answers all but what is asked about places.
#[test]
fn without_an_answer_about_places_it_goes_as_it_is_configured() {
    let (app, redis) = (App::start(), RedisServer::start());
    redis.command(&["SET", "weir:AtOnce:127.0.0.1%i", "x"]);
    let limits = ["Rate: {per: address, burst: 3, count: 1, period: 1h}", ONE];
    let setup = |on_failure: &str| {
        let store = store(&redis, "").replace("on_failure: deny", on_failure);
        Setup::before(&app.upstream)
            .limits(&limits)
            .limited_by("Rate, AtOnce")
            .key(&store)
    };
    let closed = setup("on_failure: deny").start();
    assert_eq!(status(&closed), 503);
    let remaining = || {
        let rate = get("/v1/buckets/Rate/127.0.0.1").with("host", "127.0.0.1");
        closed.admin(&rate).json()["remaining"].clone()
    };
    eventually("what it took to be given back", || {
        (remaining() == 3).then_some(())
    });
    let local = setup("on_failure: local").start();
    let held = app.held(&local, 1);
    assert_eq!(status(&local), 429);
    drop(held);
    let open = setup("on_failure: allow").start();
    assert_eq!(open.send(&get("/open")).status, 200);
    let line = open.logged("/open");
    assert_eq!(line["decision"], "failed_open");
}

#[test]
fn explain_says_how_many_may_be_in_flight() {
    let app = App::start();
    let folder = app
        .setup(ONE)
        .overrides("- AtOnce: {in_flight: 7, ids: [{id: 192.0.2.1, comment: the crawler}]}")
        .written();
    let output = Command::new(WEIR)
        .current_dir(folder.path())
        .args(["explain", "--path", "/", "--ip", "192.0.2.1"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("in_flight: at most 7 at once"), "{text}");
    assert!(text.contains("the crawler"), "{text}");
}
