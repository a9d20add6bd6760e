//! SIGHUP: a new configuration as a whole, or the old one as a whole.

use crate::support::*;

const REFUSED: &str = "configuration not reloaded";

fn limit(burst: u32) -> String {
    format!("L: {{per: address, burst: {burst}, count: 1, period: 1000h}}")
}

fn start(upstream: &Upstream, limit: &str) -> Gateway {
    Setup::before(upstream)
        .limits(&[limit])
        .limited_by("L")
        // The log of a gateway under load drops lines before it holds up requests.
        .key("log: {access: false}")
        .start()
}

#[test]
fn a_new_limit_holds_and_the_bucket_is_kept() {
    let upstream = Upstream::start();
    let gateway = start(&upstream, &limit(5));
    let mut client = gateway.client();
    let statuses = [(); 6].map(|()| client.send(&get("/")).status);
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429]);
    gateway.write("limits/defaults.yaml", &limit(8));
    gateway.reload();
    // Each worker follows by itself; until then the old limit denies.
    let first = eventually("the new limit", || {
        Some(client.send(&get("/"))).filter(|it| it.status == 200)
    });
    assert_eq!(
        first.field("ratelimit-policy"),
        Some("\"L\";q=8;w=28800000")
    );
    // Five of the eight are spent already.
    let statuses = [(); 3].map(|()| client.send(&get("/")).status);
    assert_eq!(statuses, [200, 200, 429]);
}

#[test]
fn an_open_connection_gets_the_new_configuration_with_its_next_request() {
    let upstream = Upstream::start();
    let gateway = start(&upstream, &limit(5));
    let mut client = gateway.client();
    assert_eq!(client.send(&get("/")).status, 200);
    gateway.write("limits/defaults.yaml", &limit(2));
    gateway.reload();
    // Each worker follows by itself.
    eventually("the new limit", || {
        let policy = client.send(&get("/"));
        (policy.field("ratelimit-policy")?.starts_with("\"L\";q=2;")).then_some(())
    });
    assert_eq!(client.send(&get("/")).status, 429);
}

#[test]
fn routes_and_upstreams_are_replaced_and_connections_of_the_others_kept() {
    let (upstream, other) = (Upstream::start(), Upstream::start());
    let setup = Setup::before(&upstream);
    let gateway = setup.start();
    let mut client = gateway.client();
    client.send(&get("/"));
    let (a, b) = (upstream.address(), other.address());
    let both = Setup::with_upstreams(&format!(
        "{{app: {{servers: [\"http://{a}\"]}}, new: {{servers: [\"http://{b}\"]}}}}"
    ))
    .routes(&[
        "{match: {}, upstream: app}",
        "{match: {path: /new}, upstream: new}",
    ]);
    gateway.write("gateway.yaml", &both.gateway_yaml());
    gateway.reload();
    eventually("a request at the new upstream", || {
        client.send(&get("/new"));
        (other.count() > 0).then_some(())
    });
    client.send(&get("/"));
    assert_eq!(upstream.connections(), 1);
}

#[test]
fn a_broken_file_keeps_the_old_configuration_and_every_error_is_logged_and_it_is_counted() {
    let upstream = Upstream::start();
    let gateway = start(&upstream, &limit(5));
    gateway.write(
        "limits/defaults.yaml",
        "L: {per: adress, burst: 0, count: 1, period: 1h}\nM: {per: address, bursts: 3}\n",
    );
    gateway.signal("HUP");
    gateway.logs(REFUSED, 1);
    let failures = "weir_config_loads_total{outcome=\"failure\"}";
    let successes = "weir_config_loads_total{outcome=\"success\"}";
    eventually("the count of failures", || {
        (gateway.metric(failures) == Some(1.0)).then_some(())
    });
    assert_eq!(gateway.metric(successes), Some(1.0));
    for part in ["adress", "burst", "bursts"] {
        eventually(part, || {
            let lines = gateway.log();
            let tells = |line: &&serde_json::Value| {
                line["level"] == "ERROR" && line["message"].as_str().unwrap().contains(part)
            };
            lines.iter().find(tells).map(drop)
        });
    }
    // The log names the file and the line of both.
    let log = gateway.log_text();
    assert!(log.contains("limits/defaults.yaml:1"), "{log}");
    assert!(log.contains("limits/defaults.yaml:2"), "{log}");
    let statuses = gateway.statuses(&get("/"), 6);
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429]);
    assert_eq!(gateway.admin(&get("/readyz")).status, 200);

    gateway.write("limits/defaults.yaml", &limit(6));
    gateway.reload();
    assert_eq!(gateway.metric(successes), Some(2.0));
}

#[test]
fn what_only_a_restart_can_change_is_said() {
    let upstream = Upstream::start();
    let gateway = start(&upstream, &limit(5));
    let text = gateway
        .read("gateway.yaml")
        .replace("workers: 2", "workers: 1");
    gateway.write("gateway.yaml", &text);
    gateway.reload();
    gateway.logs(
        "listen, admin, workers, grace, store and log keep their old settings",
        1,
    );
}

#[test]
fn reloads_under_load_fail_no_request() {
    let upstream = Upstream::start();
    let wide = |burst| format!("L: {{per: address, burst: {burst}, count: 1000, period: 1s}}");
    let gateway = start(&upstream, &wide(1_000_000));
    let load = Load::start(gateway.address(), 4, |_, _| get("/"));
    for round in 1..=10 {
        gateway.write("limits/defaults.yaml", &wide(1_000_000 - round));
        gateway.reload();
        load.go_on_for(30);
    }
    let report = load.stop();
    assert_eq!(report.failures, [""; 0]);
    assert_eq!(report.count(200), report.statuses.len());
    eventually("the last of the limits", || {
        let response = gateway.send(&get("/"));
        let policy = response.field("ratelimit-policy")?;
        policy.starts_with("\"L\";q=999990;").then_some(())
    });
}
