//! Decisions about requests that other proxies forward, asked for as they ask.

use crate::support::tls::{self, Authority, Certificate};
use crate::support::upstream::{Received, text};
use crate::support::*;

pub(crate) const DECIDE: &str = "decide: {address: \"127.0.0.1:0\", trusted_proxies: [127.0.0.1]}";

/// Three requests of an address, and nothing comes back.
const LIMIT: &str = "L: {per: address, burst: 3, count: 1, period: 1000h}";

fn setup(upstream: &Upstream) -> Setup {
    Setup::before(upstream)
        .key(DECIDE)
        .limits(&[LIMIT])
        .limited_by("L")
}

/// What Traefik and Caddy send for a request of this client.
fn subrequest(method: &str, target: &str, client: &str) -> Request {
    get("/forward-auth")
        .with("x-forwarded-method", method)
        .with("x-forwarded-uri", target)
        .with("x-forwarded-host", "app.example.com")
        .with("x-forwarded-proto", "http")
        .with("x-forwarded-for", client)
}

/// The same to the path for nginx.
fn auth_request(target: &str, client: &str) -> Request {
    get("/auth-request")
        .with("x-forwarded-method", "GET")
        .with("x-forwarded-uri", target)
        .with("x-forwarded-host", "app.example.com")
        .with("x-forwarded-proto", "http")
        .with("x-forwarded-for", client)
}

fn ask(gateway: &Gateway, subrequest: &Request) -> Response {
    Client::connect(gateway.decides_at()).send(subrequest)
}

fn statuses(gateway: &Gateway, subrequest: &Request, count: usize) -> Vec<u16> {
    let mut client = Client::connect(gateway.decides_at());
    (0..count).map(|_| client.send(subrequest).status).collect()
}

#[test]
fn a_decision_takes_from_the_bucket_that_a_forwarded_request_takes_from() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    let asked = subrequest("GET", "/", "127.0.0.1");
    let admitted = ask(&gateway, &asked);
    assert_eq!((admitted.status, admitted.text()), (200, ""));
    assert_eq!(
        admitted.field("ratelimit-policy"),
        Some("\"L\";q=3;w=10800000")
    );
    assert!(
        admitted
            .field("ratelimit")
            .unwrap()
            .starts_with("\"L\";r=2;t=")
    );
    assert_eq!(gateway.statuses(&get("/"), 1), [200]);
    assert_eq!(ask(&gateway, &asked).status, 200);

    let denied = ask(&gateway, &asked);
    assert_eq!(denied.status, 429);
    assert_eq!(denied.json()["violated-policies"], serde_json::json!(["L"]));
    assert!(denied.field("retry-after").is_some());
    assert_eq!(gateway.statuses(&get("/"), 1), [429]);
    let other = subrequest("GET", "/", "203.0.113.9");
    assert_eq!(statuses(&gateway, &other, 4), [200, 200, 200, 429]);
    assert_eq!(upstream.count(), 1);
}

#[test]
fn nginx_gets_403_and_the_status_beside_it() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    let asked = auth_request("/", "203.0.113.9");
    assert_eq!(statuses(&gateway, &asked, 3), [200; 3]);
    let denied = ask(&gateway, &asked);
    assert_eq!(
        (denied.status, denied.field("weir-status")),
        (403, Some("429"))
    );
    assert!(denied.field("retry-after").is_some());
    assert!(
        denied
            .field("ratelimit")
            .unwrap()
            .starts_with("\"L\";r=0;t=")
    );
}

#[test]
fn routes_accounts_and_proxies_in_front_are_those_of_the_original_request() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .key(DECIDE)
        .key("client_address: {trusted_proxies: [10.0.0.0/8]}")
        .key("account: [header: x-api-key]")
        .limits(&[
            "Logins: {per: address, burst: 1, count: 1, period: 1000h}",
            "Calls: {per: account, burst: 2, count: 1, period: 1000h}",
        ])
        .overrides("- Calls: {burst: 4, count: 1, period: 1000h, ids: [gold]}\n")
        .routes(&[
            "{name: login, match: {host: app.example.com, path: '/{team}/login', methods: POST}, upstream: app, limits: [Logins]}",
            "{name: all, match: {}, upstream: app, limits: [Calls]}",
        ])
        .start();
    let login = |client| subrequest("POST", "/red/login?next=/", client);
    assert_eq!(statuses(&gateway, &login("203.0.113.9"), 2), [200, 429]);
    // Through a load balancer that is trusted, and one that is not.
    assert_eq!(ask(&gateway, &login("203.0.113.9, 10.0.0.1")).status, 429);
    assert_eq!(ask(&gateway, &login("203.0.113.9, 192.0.2.1")).status, 200);
    let silver = subrequest("POST", "/", "203.0.113.9").with("x-api-key", "silver");
    let gold = subrequest("POST", "/", "203.0.113.9").with("x-api-key", "gold");
    assert_eq!(statuses(&gateway, &silver, 3), [200, 200, 429]);
    assert_eq!(statuses(&gateway, &gold, 5), [200, 200, 200, 200, 429]);
}

#[test]
fn two_gateways_admit_a_bucket_once_between_decisions_and_forwarded_requests() {
    let (upstream, redis) = (Upstream::start(), RedisServer::start());
    let setup = Setup::before(&upstream)
        .key(DECIDE)
        .limits(&["L: {per: global, burst: 100, count: 1, period: 1000h}"])
        .limited_by("L")
        .key(&crate::redis::store(&redis.url()));
    let gateways = [setup.start(), setup.start()];
    let asked = subrequest("GET", "/", "203.0.113.9");
    let admitted: usize = std::thread::scope(|scope| {
        let asking = gateways.iter().map(|gateway| {
            let asked = &asked;
            scope.spawn(move || statuses(gateway, asked, 60))
        });
        let sending = gateways
            .iter()
            .map(|gateway| scope.spawn(move || gateway.statuses(&get("/"), 60)));
        let all: Vec<_> = asking.chain(sending).collect();
        let statuses = all.into_iter().flat_map(|thread| thread.join().unwrap());
        statuses.filter(|status| *status == 200).count()
    });
    assert_eq!(admitted, 100);
}

#[test]
fn bans_and_lists_hold_for_decisions() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream)
        .limited_by("")
        .key(
            "bans: {trapped: {per: address, strikes: {paths: /trap, count: 1, period: 1h}, \
             for: 1h, on_denied: drop}}",
        )
        .key("block: {addresses: [203.0.113.7], on_denied: {shadow: sent}}")
        .key("decoys: {sent: {body: sent}}")
        .start();
    let blocked = subrequest("GET", "/", "203.0.113.7");
    assert_eq!(ask(&gateway, &blocked).status, 403);
    let trap = subrequest("GET", "/trap", "203.0.113.8");
    assert_eq!(ask(&gateway, &trap).status, 200);
    gateway.logs("ban begun", 1);
    let banned = subrequest("GET", "/", "203.0.113.8");
    let denied = ask(&gateway, &banned);
    assert_eq!(denied.status, 429);
    assert!(denied.field("retry-after").is_some());
    assert_eq!(
        ask(&gateway, &subrequest("GET", "/", "203.0.113.9")).status,
        200
    );
}

#[test]
fn no_denial_passes_for_an_admission_whatever_status_is_configured_for_it() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .key(DECIDE)
        .key("decoys: {sent: {status: 200, body: sent}}")
        .limits(&["L: {per: route, burst: 1, count: 1, period: 1000h}"])
        .routes(&[
            "{name: shadow, match: {path: /shadow}, upstream: app, limits: [L], on_denied: {shadow: sent}}",
            "{name: ok, match: {path: /ok}, upstream: app, limits: [L], on_denied: {reject: {status: 200, body: sorry}}}",
            "{name: fixed, match: {path: /fixed}, response: {status: 410}, limits: [L]}",
            "{name: moved, match: {path: /moved}, redirect: 'https://example.com/', limits: [L]}",
        ])
        .start();
    for (path, status) in [
        ("/shadow", 429),
        ("/ok", 403),
        ("/fixed", 429),
        ("/moved", 429),
    ] {
        let asked = subrequest("GET", path, "203.0.113.9");
        assert_eq!(statuses(&gateway, &asked, 2), [200, status], "{path}");
        assert_eq!(
            ask(&gateway, &auth_request(path, "203.0.113.9")).status,
            403
        );
    }
    for path in ["/unrouted", "/a/../b", "/%zz"] {
        let asked = subrequest("GET", path, "203.0.113.9");
        let status = ask(&gateway, &asked).status;
        assert!([400, 404].contains(&status), "{path}: {status}");
    }
    let options = subrequest("OPTIONS", "/shadow", "203.0.113.9").with("max-forwards", "0");
    assert_eq!(
        ask(&gateway, &options).status,
        429,
        "Max-Forwards is no way around"
    );
}

#[test]
fn decoys_never_learn_from_decisions() {
    let upstream = Upstream::answering(|_: &Received| {
        let mut response = text("real");
        let app = "app/1".parse().unwrap();
        response.headers_mut().insert("x-powered-by", app);
        response
    });
    let gateway = setup(&upstream)
        .key("decoys: {sent: {body: sent}}")
        .routes(&["{name: all, match: {}, upstream: app, limits: [L], on_denied: {shadow: sent}}"])
        .start();
    let asked = subrequest("GET", "/", "203.0.113.9");
    assert_eq!(statuses(&gateway, &asked, 3), [200; 3]);
    assert_eq!(gateway.statuses(&get("/"), 3), [200; 3]);
    let decoy = gateway.send(&get("/"));
    assert_eq!(decoy.text(), "sent");
    assert_eq!(decoy.field("x-powered-by"), Some("app/1"));
}

#[test]
fn what_counts_by_the_response_is_checked_and_never_taken_by_a_decision() {
    let upstream = Upstream::answering(|_: &Received| {
        let mut response = text("no");
        *response.status_mut() = http::StatusCode::UNAUTHORIZED;
        response
    });
    let gateway = Setup::before(&upstream)
        .key(DECIDE)
        .limits(&["Failed: {per: address, burst: 2, count: 1, period: 1000h}"])
        .limited_by("{limit: Failed, spend_on: {status: 401}}")
        .start();
    let asked = subrequest("GET", "/", "127.0.0.1");
    assert_eq!(statuses(&gateway, &asked, 5), [200; 5]);
    assert_eq!(gateway.statuses(&get("/"), 2), [401; 2]);
    assert_eq!(ask(&gateway, &asked).status, 429);
}

#[test]
fn a_request_that_is_held_until_its_turn_is_admitted_then() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .key(DECIDE)
        .limits(&["L: {per: address, burst: 1, count: 1, period: 1s}"])
        .routes(&[
            "{name: all, match: {}, upstream: app, limits: [L], on_denied: {delay: {up_to: 2s}}}",
        ])
        .start();
    let asked = subrequest("GET", "/", "203.0.113.9");
    assert_eq!(statuses(&gateway, &asked, 3), [200; 3]);
}

#[test]
fn preflights_are_left_to_the_app_and_denials_can_be_read_by_pages() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream)
        .routes(&[
            "{name: all, match: {}, upstream: app, limits: [L], cors: {origins: 'https://page.example', methods: '*'}}",
        ])
        .start();
    let preflight = subrequest("OPTIONS", "/", "203.0.113.9")
        .with("origin", "https://page.example")
        .with("access-control-request-method", "POST");
    assert_eq!(statuses(&gateway, &preflight, 5), [200; 5]);
    let asked = subrequest("GET", "/", "203.0.113.9").with("origin", "https://page.example");
    assert_eq!(statuses(&gateway, &asked, 3), [200; 3]);
    let denied = ask(&gateway, &asked);
    assert_eq!(denied.status, 429);
    let allowed = denied.field("access-control-allow-origin");
    assert_eq!(allowed, Some("https://page.example"));
}

#[test]
fn the_log_shows_the_original_request_and_the_status_that_was_meant() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    let asked = auth_request("/from/nginx?a=b", "203.0.113.9");
    assert_eq!(statuses(&gateway, &asked, 4), [200, 200, 200, 403]);
    let lines = eventually("four lines", || {
        let lines = gateway.access("/from/nginx");
        (lines.len() == 4).then_some(lines)
    });
    for line in &lines {
        assert_eq!(
            (&line["method"], &line["client"]),
            (&"GET".into(), &"203.0.113.9".into())
        );
        assert_eq!(line["host"], "app.example.com");
        assert_eq!(line["listener"], "decide");
    }
    assert_eq!(gateway.statuses(&get("/forwarded"), 1), [200]);
    let forwarded = gateway.logged("/forwarded");
    assert_eq!(forwarded["listener"], serde_json::Value::Null);
    let metric = |labels: &str| gateway.metric(&format!("weir_requests_total{{{labels}}} "));
    let allowed = "route=\"all\",status=\"2xx\",decision=\"allowed\"";
    assert_eq!(metric(allowed), Some(1.0), "{}", gateway.metrics());
    assert_eq!(metric(&format!("{allowed},listener=\"decide\"")), Some(3.0));
    let failed = "route=\"all\",status=\"5xx\",decision=\"denied\",listener=\"decide\"";
    assert_eq!(metric(failed), Some(0.0), "it is there before the first");
    let denied: Vec<_> = lines
        .iter()
        .filter(|line| line["decision"] == "denied")
        .collect();
    assert_eq!(denied.len(), 1, "{lines:?}");
    assert_eq!(denied[0]["status"], 429);
}

#[test]
fn who_is_not_trusted_or_says_too_little_is_told_so_and_counts_nothing() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    let stranger = std::net::Ipv4Addr::new(127, 0, 0, 2);
    let mut stranger = Client::connect_from(stranger, gateway.decides_at());
    let asked = subrequest("GET", "/", "203.0.113.9");
    let refused = stranger.send(&asked);
    assert_eq!(refused.status, 403);
    assert!(
        refused.json()["detail"]
            .as_str()
            .unwrap()
            .contains("decide.trusted_proxies")
    );

    let without_for = get("/forward-auth")
        .with("x-forwarded-method", "GET")
        .with("x-forwarded-uri", "/")
        .with("x-forwarded-host", "app.example.com")
        .with("x-forwarded-proto", "http");
    let refused = ask(&gateway, &without_for);
    assert_eq!(refused.status, 400);
    assert_eq!(
        refused.json()["detail"],
        "The subrequest lacks the header x-forwarded-for."
    );
    assert_eq!(ask(&gateway, &get("/")).status, 404);
    let rest = asked.clone();
    assert_eq!(statuses(&gateway, &rest, 4), [200, 200, 200, 429]);
    assert_eq!(upstream.count(), 0);
}

#[test]
fn a_reload_changes_which_proxies_are_trusted_and_leaves_none_without_the_key() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    let asked = subrequest("GET", "/", "203.0.113.9");
    assert_eq!(ask(&gateway, &asked).status, 200);
    let written = gateway.read("gateway.yaml");
    let others = written.replace(
        "trusted_proxies: [127.0.0.1]",
        "trusted_proxies: [127.0.0.9]",
    );
    gateway.write("gateway.yaml", &others);
    gateway.reload();
    assert_eq!(ask(&gateway, &asked).status, 403);
    gateway.write("gateway.yaml", &written.replace(DECIDE, ""));
    gateway.reload();
    gateway.logs("listen keeps its old value until a restart", 1);
    assert_eq!(ask(&gateway, &asked).status, 403);
    assert_eq!(upstream.count(), 0, "it never forwards");
}

/// The certificate of the connection is that of the proxy, whoever its client is.
#[test]
fn by_tls_only_proxies_with_a_certificate_ask_and_no_client_has_their_account() {
    let upstream = Upstream::start();
    let (server, authority) = (Certificate::of("weir.example"), Authority::new("proxies"));
    let gateway = Setup::before(&upstream)
        .file("1.pem", &server.certificate)
        .file("1.key", &server.key)
        .file("ca.pem", &authority.pem())
        .listening(
            "[{address: \"127.0.0.1:0\", tls: {certificate: 1.pem, key: 1.key}, \
             client_auth: {ca: ca.pem}}]",
        )
        .key(
            "decide: {address: \"127.0.0.1:0\", trusted_proxies: [127.0.0.1], \
             tls: {certificate: 1.pem, key: 1.key}, client_auth: {ca: ca.pem}}",
        )
        .key("account: [certificate: subject_cn, header: x-api-key]")
        .limits(&["L: {per: account, missing: deny, burst: 1, count: 1, period: 1000h}"])
        .limited_by("L")
        .start();
    let asked = subrequest("GET", "/", "203.0.113.9");
    let ask = |config: &std::sync::Arc<rustls::ClientConfig>, subrequest: &Request| {
        let mut client = tls::connect(gateway.decides_at(), "weir.example", config).ok()?;
        let response = client.try_send(subrequest).ok()?;
        Some(response.status)
    };
    let proxy = authority.sign("proxy", 1).shown_to(&server, &[]);
    assert_eq!(ask(&proxy, &asked), Some(403), "it has no account");
    let named = asked.clone().with("x-api-key", "red");
    assert_eq!(ask(&proxy, &named), Some(200));
    assert_eq!(ask(&proxy, &named), Some(429));
    assert_eq!(ask(&server.trusted(&[]), &named), None);
    let stranger = Authority::new("proxies").sign("proxy", 1);
    assert_eq!(ask(&stranger.shown_to(&server, &[]), &named), None);
    let mut plain = Client::connect(gateway.decides_at());
    assert_eq!(plain.send(&named).status, 400, "it speaks TLS alone");
    let client = authority.sign("proxy", 2).shown_to(&server, &[]);
    let mut client = tls::connect(gateway.address(), "weir.example", &client).unwrap();
    assert_eq!(client.send(&get("/")).status, 200, "clients have accounts");
}

#[test]
fn a_gateway_that_decides_alone_needs_no_upstream_and_listens_nowhere_else() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .basis_with("listen: [{address: \"127.0.0.1:0\"}]\n", "")
        .key(DECIDE)
        .limits(&[LIMIT])
        .routes(&["{name: all, match: {}, limits: [L]}"])
        .start();
    assert_eq!(gateway.address(), gateway.decides_at());
    let asked = subrequest("GET", "/", "203.0.113.9");
    assert_eq!(statuses(&gateway, &asked, 4), [200, 200, 200, 429]);
    let told = gateway.tells("decisions alone");
    let address = gateway.decides_at();
    assert!(told.contains(&format!(
        "weir decides for other proxies on http://{address}"
    )));
    assert!(!told.contains("try: curl"), "{told}");
}

#[test]
fn without_its_store_a_gateway_denies_as_it_is_told_to() {
    let (upstream, mut redis) = (Upstream::start(), RedisServer::start());
    let url = redis.url();
    let gateway = setup(&upstream)
        .key(&format!(
            "store: {{redis: {{url: \"{url}\", timeout: 500ms, on_failure: deny}}}}"
        ))
        .start();
    redis.kill();
    let asked = auth_request("/", "203.0.113.9");
    let denied = eventually("a denial", || {
        let response = ask(&gateway, &asked);
        (response.status != 200).then_some(response)
    });
    assert_eq!(
        (denied.status, denied.field("weir-status")),
        (403, Some("503"))
    );
}
