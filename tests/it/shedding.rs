//! Limits on an upstream's requests in flight: which requests wait, and which are shed.

use std::convert::Infallible;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tokio::sync::Semaphore;

use crate::support::upstream::text;
use crate::support::*;

/// An app that answers requests below `/held` as it is told to, and all others at once.
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
                if request.uri().path().starts_with("/held") {
                    told.acquire().await.unwrap().forget();
                }
                text("real")
            }
        });
        Self { upstream, answers }
    }

    /// A gateway whose routes are limited to 10 requests, and whose upstream to `concurrency`.
    fn gateway(&self, concurrency: &str, more: &str) -> Gateway {
        let app = self.upstream.address();
        let keys = format!("servers: [\"http://{app}\"], concurrency: {concurrency}");
        Setup::with_upstreams(&format!("{{app: {{{keys}}}}}"))
            .key("defaults: {limits: [Requests]}")
            .key(more)
            .routes(&[
                "{name: all, match: {path: \"/*\"}, upstream: app}",
                "{name: low, match: {path: /held/low}, upstream: app, priority: low, limits: []}",
                "{name: high, match: {path: /held/high}, upstream: app, priority: high}",
                "{name: free, match: {path: /free}, upstream: app, limits: []}",
            ])
            .limits(&["Requests: {per: address, burst: 10, count: 10, period: 1h}"])
            .start()
    }

    /// Sends a request that the app does not answer yet, and waits until it has it.
    fn hold(&self, gateway: &Gateway, path: &str) -> Client {
        let before = self.upstream.count();
        let client = send_only(gateway, path);
        eventually("a request at the app", || {
            (self.upstream.count() > before).then_some(())
        });
        client
    }

    fn answer(&self, requests: usize) {
        self.answers.add_permits(requests);
    }
}

fn send_only(gateway: &Gateway, path: &str) -> Client {
    let mut client = gateway.client();
    client.write(&get(path).bytes()).unwrap();
    client
}

fn status(client: &mut Client) -> u16 {
    client.read("GET").unwrap().status
}

fn remaining(response: &Response) -> String {
    let field = response.field("ratelimit").unwrap_or_default();
    field.split(';').nth(1).unwrap_or_default().to_owned()
}

fn waiting(gateway: &Gateway, requests: f64) {
    eventually("requests that wait", || {
        let waiting = gateway.metric("weir_upstream_slots_waiting{upstream=\"app\"}");
        (waiting == Some(requests)).then_some(())
    });
}

/// Requests that the limit has let through.
fn allowed(gateway: &Gateway) -> Option<f64> {
    gateway.metric("weir_decisions_total{limit=\"Requests\",decision=\"allowed\"}")
}

fn limit(gateway: &Gateway) -> f64 {
    let limit = gateway.metric("weir_upstream_concurrency_limit{upstream=\"app\"}");
    limit.unwrap_or_default()
}

fn shed(gateway: &Gateway, priority: &str, decision: &str) -> Option<f64> {
    let labels = format!("upstream=\"app\",priority=\"{priority}\",decision=\"{decision}\"");
    gateway.metric(&format!("weir_shed_requests_total{{{labels}}}"))
}

#[test]
fn a_shed_request_gets_503_with_a_reason_and_is_charged_by_no_limit() {
    let app = App::start();
    let gateway = app.gateway("{limit: 1, max_wait: 0s}", "");
    let _held = app.hold(&gateway, "/held");
    for path in ["/", "/free"] {
        let response = gateway.send(&get(path));
        assert_eq!(response.status, 503, "{path}");
        let after: u64 = response.field("retry-after").unwrap().parse().unwrap();
        assert!((1..=10).contains(&after), "{after}");
        let reason = response.field("proxy-status").unwrap();
        assert!(reason.contains("shed by upstream"), "{reason}");
        assert_eq!(response.json()["status"], 503);
    }
    assert_eq!(shed(&gateway, "normal", "shed"), Some(2.0));
    // The one that is held took one of ten units, and the shed ones got theirs back.
    assert_eq!(remaining(&gateway.send(&get("/"))), "r=9");
    assert_eq!(allowed(&gateway), Some(1.0));
    app.answer(1);
    eventually("a free slot", || {
        let response = gateway.send(&get("/"));
        (response.status == 200).then(|| assert_eq!(remaining(&response), "r=8"))
    });
    let line = gateway.logged("/free");
    assert_eq!(line["decision"], "shed");
    assert_eq!(line["shed"], "upstream");
    assert_eq!(line["priority"], "normal");
}

#[test]
fn a_free_slot_goes_to_no_lower_priority_while_a_higher_one_waits() {
    let app = App::start();
    let gateway = app.gateway("{limit: 1, max_wait: 60s}", "");
    let mut first = app.hold(&gateway, "/held");
    let mut low = send_only(&gateway, "/held/low");
    waiting(&gateway, 1.0);
    let _more: Vec<Client> = (1..10).map(|_| send_only(&gateway, "/held/low")).collect();
    waiting(&gateway, 10.0);
    // There are ten places to wait in at least. The oldest of the least makes room.
    let mut high = send_only(&gateway, "/held/high");
    assert_eq!(status(&mut low), 503);
    app.answer(2);
    assert_eq!(status(&mut first), 200);
    assert_eq!(status(&mut high), 200);
    assert_eq!(shed(&gateway, "low", "shed"), Some(1.0));
    assert_eq!(shed(&gateway, "high", "shed"), Some(0.0));
}

#[test]
fn a_client_that_leaves_does_not_keep_its_slot_or_its_place_to_wait_in() {
    let app = App::start();
    let gateway = app.gateway("{limit: 1, max_wait: 60s}", "");
    let held = app.hold(&gateway, "/held");
    let waits = send_only(&gateway, "/");
    waiting(&gateway, 1.0);
    drop(waits);
    waiting(&gateway, 0.0);
    drop(held);
    let response = gateway.send(&get("/"));
    assert_eq!(response.status, 200);
    // What was held was charged; what waited was not.
    assert_eq!(remaining(&response), "r=8");
    assert_eq!(allowed(&gateway), Some(2.0));
}

#[test]
fn a_client_that_uploads_slowly_keeps_no_slot_from_others() {
    let app = App::start();
    let gateway = app.gateway("{limit: 1, max_wait: 60s}", "");
    let mut slow = gateway.client();
    let head = "POST /held HTTP/1.1\r\nhost: app\r\ncontent-length: 2\r\n\r\n1";
    slow.write(head.as_bytes()).unwrap();
    assert_eq!(gateway.send(&get("/")).status, 200);
    // It has a slot again when its body is over, and the app works on it.
    slow.write(b"2").unwrap();
    eventually("a slot that is taken again", || {
        let taken = gateway.metric("weir_upstream_slots_taken{upstream=\"app\"}");
        (taken == Some(1.0)).then_some(())
    });
    let mut next = send_only(&gateway, "/");
    waiting(&gateway, 1.0);
    app.answer(1);
    assert_eq!(status(&mut slow), 200);
    assert_eq!(status(&mut next), 200);
}

/// An app that serves as many requests at a time as `workers` has permits, 20 ms each, asked by 40
/// clients without a pause. Two of them matter more. A limit that is only measured at its half, and
/// does not follow latency, is not seen at a quarter.
#[test]
fn an_app_that_gets_slow_is_not_asked_for_as_much_as_before_and_what_matters_is_not_shed_first() {
    const WORKERS: u32 = 16;
    let workers = Arc::new(Semaphore::new(WORKERS as usize));
    let working = Arc::clone(&workers);
    let upstream = Upstream::serving(move |_| {
        let working = Arc::clone(&working);
        async move {
            let _worker = working.acquire().await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
            text("real")
        }
    });
    let app = upstream.address();
    let upstreams = format!("{{app: {{servers: [\"http://{app}\"], concurrency: adaptive}}}}");
    let gateway = Setup::with_upstreams(&upstreams)
        .key("defaults: {limits: []}")
        .routes(&[
            "{name: all, match: {path: \"/*\"}, upstream: app, priority: low}",
            "{name: high, match: {path: /high}, upstream: app, priority: high}",
        ])
        .start();
    let load = Load::start(gateway.address(), 40, |client, _| {
        thread::sleep(Duration::from_millis(15));
        get(if client < 2 { "/high" } else { "/low" })
    });
    load.go_on_for(4000);
    let usual = eventually("a limit that leaves no worker idle", || {
        Some(limit(&gateway)).filter(|limit| *limit >= f64::from(WORKERS))
    });
    let before = load.answers().len();
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let gone = runtime.unwrap().block_on(workers.acquire_many(WORKERS - 1));
    eventually("a lower limit", || {
        (limit(&gateway) <= usual / 4.0).then_some(())
    });
    load.go_on_for(2000);
    let lower = limit(&gateway);
    assert!(lower < usual / 2.0, "{lower} after {usual}");
    let answers = load.answers().split_off(before);
    let count = |high: bool, status: u16| {
        let of_class = answers.iter().filter(|it| (it.client < 2) == high);
        of_class.filter(|it| it.status == status).count()
    };
    let (high, low) = (count(true, 200), count(false, 200));
    let (high_shed, low_shed) = (count(true, 503), count(false, 503));
    let all = format!("{high} served and {high_shed} shed; {low} and {low_shed}");
    assert!(high_shed * low < low_shed * high, "{all}");
    drop(gone);
    eventually("a limit that has come back", || {
        (limit(&gateway) >= usual / 2.0).then_some(())
    });
    let report = load.stop();
    assert!(report.failures.is_empty(), "{:?}", report.failures);
    let known = |status: &u16| [200, 503].contains(status);
    assert!(report.statuses.iter().all(known));
}

#[test]
fn a_reload_does_not_forget_requests_in_flight() {
    let app = App::start();
    let gateway = app.gateway("{limit: 4, max_wait: 0s}", "");
    let _held = [1, 2].map(|_| app.hold(&gateway, "/held"));
    for (earlier, later) in [("/free", "/other"), ("limit: 4", "limit: 3")] {
        let changed = gateway.read("gateway.yaml").replace(earlier, later);
        gateway.write("gateway.yaml", &changed);
        gateway.reload();
        let taken = gateway.metric("weir_upstream_slots_taken{upstream=\"app\"}");
        assert_eq!(taken, Some(2.0), "{later}");
    }
    let _third = app.hold(&gateway, "/held");
    assert_eq!(gateway.send(&get("/")).status, 503);
    app.answer(3);
    eventually("a free slot", || {
        (gateway.send(&get("/")).status == 200).then_some(())
    });
}

#[test]
fn a_dry_run_and_the_allow_list_shed_nothing() {
    let app = App::start();
    let gateway = app.gateway("{limit: 1, max_wait: 0s, enforce: false}", "");
    let _held = app.hold(&gateway, "/held");
    assert_eq!(gateway.send(&get("/")).status, 200);
    assert_eq!(shed(&gateway, "normal", "would_deny"), Some(1.0));
    let line = gateway.logged("/");
    assert_eq!(line["decision"], "allowed");
    assert_eq!(line["shed"], "upstream");

    let gateway = app.gateway(
        "{limit: 1, max_wait: 0s}",
        "allow: {addresses: [127.0.0.0/8]}",
    );
    let _held = app.hold(&gateway, "/held");
    assert_eq!(gateway.send(&get("/")).status, 200);
    assert_eq!(shed(&gateway, "normal", "would_deny"), Some(0.0));
}

/// A gateway whose clients are told apart by `x-forwarded-for`, before an app of `concurrency` slots.
fn gateway_of_clients(app: &App, concurrency: &str) -> Gateway {
    let app = app.upstream.address();
    let keys = format!("servers: [\"http://{app}\"], concurrency: {concurrency}");
    Setup::with_upstreams(&format!("{{app: {{{keys}}}}}"))
        .key("client_address: {trusted_proxies: [127.0.0.1]}")
        .key("defaults: {limits: []}")
        .start()
}

/// Each kept a slot for a second, so that one client with a few of them had all.
#[test]
fn bodies_that_are_withheld_keep_no_slots_from_others() {
    const LENGTH: &str = "content-length: 1000\r\n\r\nabc";
    for (keys, rest) in [
        ("", LENGTH),
        ("", "content-length: 100000\r\n\r\nabc"),
        ("", "transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n"),
        ("", "content-length: 1000\r\nexpect: 100-continue\r\n\r\n"),
        (", request_buffering: {max: 64KiB}", LENGTH),
    ] {
        let app = App::start();
        let address = app.upstream.address();
        let keys = format!(
            "servers: [\"http://{address}\"], concurrency: {{limit: 2, max_wait: 0s}}{keys}"
        );
        let gateway = Setup::with_upstreams(&format!("{{app: {{{keys}}}}}"))
            .key("defaults: {limits: []}")
            .start();
        let _withheld: Vec<Client> = (0..4)
            .map(|_| {
                let mut client = gateway.client();
                let head = format!("POST /held HTTP/1.1\r\nhost: app\r\n{rest}");
                client.write(head.as_bytes()).unwrap();
                client
            })
            .collect();
        eventually("requests in flight", || {
            (gateway.metric("weir_requests_in_flight") >= Some(4.0)).then_some(())
        });
        assert_eq!(gateway.send(&get("/")).status, 200, "{keys} {rest}");
    }
}

#[test]
fn streams_whose_bodies_are_withheld_keep_no_slots_from_others() {
    let app = App::start();
    let gateway = app.gateway("{limit: 2, max_wait: 0s}", "");
    http2::run(async {
        let mut sender = http2::connect(gateway.address()).await;
        let mut withheld = Vec::new();
        for _ in 0..4 {
            let (body, stream) = tokio::sync::mpsc::channel::<Result<Frame<Bytes>, Infallible>>(1);
            let frames = futures_util::stream::unfold(stream, async |mut stream| {
                Some((stream.recv().await?, stream))
            });
            let mut request = http2::get("/held");
            *request.method_mut() = http::Method::POST;
            *request.body_mut() = StreamBody::new(frames).boxed();
            sender.ready().await.unwrap();
            withheld.push((body, tokio::spawn(sender.send_request(request))));
        }
        sender.ready().await.unwrap();
        let answer = sender.send_request(http2::get("/")).await.unwrap();
        assert_eq!(answer.status(), 200);
        // A body that comes after all is answered.
        let (body, response) = withheld.pop().unwrap();
        app.answer(1);
        drop(body);
        assert_eq!(response.await.unwrap().unwrap().status(), 200);
    });
}

/// The app is asked nothing before, and gets the body as it was sent.
#[test]
fn a_request_whose_body_was_read_first_is_sent_on_as_it_came() {
    let upstream = Upstream::serving(|request| async {
        let body = request.into_body().collect().await.unwrap().to_bytes();
        text(std::str::from_utf8(&body).unwrap())
    });
    let app = upstream.address();
    let upstreams = format!("{{app: {{servers: [\"http://{app}\"], concurrency: 4}}}}");
    let gateway = Setup::with_upstreams(&upstreams)
        .key("defaults: {limits: []}")
        .start();
    for length in [1, 16 * 1024, 16 * 1024 + 1, 300_000] {
        let text = "x".repeat(length);
        let response = gateway.send(&post("/", &text));
        assert_eq!((response.status, response.text().len()), (200, length));
    }
}

/// One client had all slots for as long as it liked, by requests that take long.
#[test]
fn a_client_that_holds_most_slots_leaves_some_to_those_that_hold_none() {
    let app = App::start();
    let gateway = gateway_of_clients(&app, "{limit: 10, max_wait: 0s}");
    let send = |address: &str, path: &str| {
        let mut client = gateway.client();
        let request = get(path).with("x-forwarded-for", address);
        client.write(&request.bytes()).unwrap();
        client
    };
    let hold = |address: &str| {
        let before = app.upstream.count();
        let client = send(address, "/held");
        eventually("a request at the app", || {
            (app.upstream.count() > before).then_some(())
        });
        client
    };
    let status_of = |address, path| status(&mut send(address, path));
    let mut held: Vec<Client> = (0..10).map(|_| hold("192.0.2.1")).collect();
    assert_eq!(status_of("192.0.2.2", "/"), 503);
    app.answer(2);
    for answered in held.drain(..2) {
        status(&mut { answered });
    }
    // Eight of the ten are its share; no more while the other one comes.
    assert_eq!(status_of("192.0.2.1", "/held"), 503);
    for _ in 0..3 {
        assert_eq!(status_of("192.0.2.2", "/"), 200);
        assert_eq!(status_of("192.0.2.1", "/"), 503);
    }
}
