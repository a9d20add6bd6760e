//! A worker that has more to do than its CPU can handle: what it sheds, and what it says of that.

use http::Response as HttpResponse;

use crate::support::*;

const OVERLOAD: &str = "overload: {max_delay: 5ms}";

/// Lets the only worker of a gateway compress for clients that matter most, more than it can.
struct Busy {
    gateway: Gateway,
    flood: Load,
    _upstream: Upstream,
}

impl Busy {
    fn start(overload: &str, more: &str) -> Self {
        let page: String = (0..100_000)
            .map(|line| format!("<p>line {line}</p>\n"))
            .collect();
        let upstream = Upstream::answering(move |received| {
            let response = HttpResponse::builder().header("content-type", "text/html");
            let page = match received.target.as_str() {
                "/critical" => &page,
                _ => "real",
            };
            response.body(upstream::full(page)).unwrap()
        });
        let gateway = Setup::before(&upstream)
            .basis_with("workers: 2", "workers: 1")
            .key(overload)
            .key(more)
            .limits(&["Requests: {per: address, burst: 1000, count: 1, period: 1000h}"])
            .routes(&[
                "{name: critical, match: {path: /critical}, upstream: app, limits: [], \
                 priority: critical, compression: {}}",
                "{name: normal, match: {path: /normal}, upstream: app, limits: []}",
                "{name: low, match: {path: /low}, upstream: app, limits: [Requests], priority: low}",
            ])
            .start();
        let flood = Load::start(gateway.address(), 16, |_, _| {
            get("/critical").with("accept-encoding", "gzip")
        });
        Self {
            gateway,
            flood,
            _upstream: upstream,
        }
    }

    fn status(&self, path: &str) -> u16 {
        self.gateway.send(&get(path)).status
    }

    /// Waits until a request to this path is shed.
    fn shed(&self, path: &str) -> Response {
        eventually("a request that is shed", || {
            let response = self.gateway.send(&get(path));
            (response.status == 503).then_some(response)
        })
    }

    fn counted(&self, priority: &str, decision: &str) -> f64 {
        let labels = format!("{{priority=\"{priority}\",decision=\"{decision}\"}}");
        let name = format!("weir_overload_shed_requests_total{labels}");
        self.gateway.metric(&name).unwrap_or_default()
    }
}

#[test]
fn a_busy_worker_sheds_no_critical_request_and_all_others_only_while_it_is_late() {
    let busy = Busy::start(OVERLOAD, "");
    let response = busy.shed("/low");
    let gateway = &busy.gateway;
    // At once: a worker that sheds all in vain soon sheds nothing for a minute.
    let example = "{\"path\": \"/low\", \"ip\": \"127.0.0.1\"}";
    eventually("what the worker sheds now", || {
        let explain = post("/v1/explain", example).with("host", "localhost");
        let explained = gateway.admin(&explain).text().to_owned();
        assert!(explained.contains("shed with priority low"), "{explained}");
        explained.contains("now 1 of 1 workers shed").then_some(())
    });
    let after: u64 = response.field("retry-after").unwrap().parse().unwrap();
    assert!((1..=10).contains(&after), "{after}");
    let reason = response.field("proxy-status").unwrap();
    assert!(reason.contains("shed by gateway"), "{reason}");
    assert_eq!(response.json()["status"], 503);
    busy.shed("/normal");
    let line = eventually("a line of the access log", || {
        let mut lines = gateway.access("/low").into_iter();
        lines.find(|line| line["decision"] == "shed")
    });
    assert_eq!(line["shed"], "gateway");
    assert_eq!(line["priority"], "low");
    assert!(busy.counted("low", "shed") >= 1.0);
    gateway.logs("a worker has more to do than its CPU can handle", 1);
    assert!(
        gateway
            .metrics()
            .contains("weir_worker_delay_seconds{worker=\"0\"}")
    );
    let findings = gateway.admin(&get("/v1/findings").with("host", "localhost"));
    let findings = findings.text();
    assert!(
        findings.contains("shed by the gateway itself"),
        "{findings}"
    );
    assert!(!findings.contains("Look at the app"), "{findings}");

    let Busy { gateway, flood, .. } = busy;
    let report = flood.stop();
    assert_eq!(report.count(200), report.statuses.len());
    assert!(report.failures.is_empty(), "{:?}", report.failures);
    for path in ["/low", "/normal"] {
        eventually("a request that is let in", || {
            (gateway.send(&get(path)).status == 200).then_some(())
        });
    }
}

#[test]
fn a_request_that_is_shed_is_charged_by_no_limit_and_a_reload_ends_it() {
    let busy = Busy::start(OVERLOAD, "");
    let (mut let_in, mut shed) = (0, 0);
    eventually("ten requests that are shed", || {
        match busy.status("/low") {
            503 => shed += 1,
            _ => let_in += 1,
        }
        (shed == 10).then_some(())
    });
    let without = busy.gateway.read("gateway.yaml").replace(OVERLOAD, "");
    busy.gateway.write("gateway.yaml", &without);
    busy.gateway.reload();
    let gone = || {
        (!busy
            .gateway
            .metrics()
            .contains("weir_worker_delay_seconds{"))
        .then_some(())
    };
    eventually("no delay of a worker", gone);
    let response = busy.gateway.send(&get("/low"));
    assert_eq!(response.status, 200);
    let remaining = response.field("ratelimit").unwrap().to_owned();
    let expected = format!("r={}", 1000 - let_in - 1);
    assert!(
        remaining.contains(&expected),
        "{remaining} without {expected}"
    );
}

#[test]
fn a_dry_run_and_the_allow_list_are_shed_nothing_of_by_a_busy_worker() {
    let dry = "overload: {max_delay: 5ms, enforce: false}";
    let busy = Busy::start(dry, "");
    eventually("a request that would be shed", || {
        assert_eq!(busy.status("/normal"), 200);
        (busy.counted("normal", "would_deny") > 0.0).then_some(())
    });
    assert_eq!(busy.counted("normal", "shed"), 0.0);
    eventually("a mark of it in the access log", || {
        assert_eq!(busy.status("/normal"), 200);
        let mut lines = busy.gateway.access("/normal").into_iter();
        let line = lines.find(|line| line["shed"] == "gateway")?;
        assert_eq!(line["priority"], "normal");
        assert_eq!(line["decision"], "unlimited");
        Some(())
    });
    drop(busy.flood.stop());

    let allowed = "allow: {addresses: [127.0.0.0/8]}";
    let busy = Busy::start(OVERLOAD, allowed);
    busy.gateway
        .logs("a worker has more to do than its CPU can handle", 3);
    assert_eq!(busy.status("/normal"), 200);
    assert_eq!(busy.counted("normal", "shed"), 0.0);
}
