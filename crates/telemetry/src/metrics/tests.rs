use std::time::Duration;

use http::StatusCode;

use super::*;
use crate::{Disposition, GaugeGuard, ListenerKind};

const MILLISECOND: Duration = Duration::from_millis(1);

fn finished(route: &RouteMetrics, status: u16, decision: Disposition) {
    let status = StatusCode::from_u16(status).unwrap();
    route.finished(status, decision, MILLISECOND);
}

/// The page without what differs from one version to the next.
fn page(metrics: &Metrics) -> String {
    let page = metrics.encode().unwrap();
    page.replace(env!("CARGO_PKG_VERSION"), "VERSION")
}

/// The page with the labels of each counter in order; they are kept in none.
fn sorted(page: &str) -> String {
    let mut lines: Vec<_> = page.lines().collect();
    let counter = |line: &&str| line.split_once("_total{").map(|(name, _)| name.to_owned());
    lines
        .chunk_by_mut(|one, next| counter(one) == counter(next))
        .filter(|lines| lines.first().and_then(counter).is_some())
        .for_each(<[_]>::sort_unstable);
    lines.join("\n")
}

fn value(metrics: &Metrics, name: &str) -> String {
    let page = page(metrics);
    let line = page.lines().find(|line| line.starts_with(name));
    let value = line.and_then(|line| line.rsplit(' ').next());
    value
        .unwrap_or_else(|| panic!("no {name} in {page}"))
        .to_owned()
}

#[test]
fn the_page_is_what_dashboards_were_promised() {
    let metrics = Metrics::new();
    finished(&metrics.route("login"), 200, Disposition::Allowed);
    let login = metrics.limit("LoginsPerAddress");
    login.decided(Disposition::Denied);
    let decide = metrics.store_call("decide", &["deadline"]);
    decide.called(MILLISECOND, Some("deadline"));
    metrics.memory_store(|| 7, || 3);
    metrics.log_lines_dropped(|| 0);
    metrics.loaded(false);
    insta::assert_snapshot!(sorted(&page(&metrics)));
}

#[test]
fn a_route_loaded_again_goes_on_counting_where_it_was() {
    let metrics = Metrics::new();
    finished(&metrics.route("login"), 429, Disposition::Denied);
    finished(&metrics.route("login"), 429, Disposition::Denied);
    let name = "weir_requests_total{route=\"login\",status=\"4xx\",decision=\"denied\"}";
    assert_eq!(value(&metrics, name), "2");
}

#[test]
fn decisions_for_other_proxies_are_not_counted_as_forwarded_requests() {
    let metrics = Metrics::new();
    let route = metrics.route("login");
    finished(&route, 200, Disposition::Allowed);
    for _ in 0..2 {
        finished(&route.on(ListenerKind::Decide), 200, Disposition::Allowed);
    }
    let name = "weir_requests_total{route=\"login\",status=\"2xx\",decision=\"allowed\"";
    assert_eq!(value(&metrics, &format!("{name}}} ")), "1");
    assert_eq!(
        value(&metrics, &format!("{name},listener=\"decide\"}} ")),
        "2"
    );
    let (_, sample) = metrics.route_samples().pop().unwrap();
    assert_eq!(sample.decisions[Disposition::Allowed.index()], 3);
}

#[test]
fn every_status_and_disposition_is_counted_as_itself() {
    let metrics = Metrics::new();
    let route = metrics.unrouted();
    for decision in Disposition::ALL {
        for class in 1..=5 {
            finished(&route, class * 100, decision);
        }
    }
    let page = page(&metrics);
    let counted = page
        .lines()
        .filter(|line| line.starts_with("weir_requests_total{"));
    assert!(counted.clone().all(|line| line.ends_with(" 1")), "{page}");
    assert_eq!(counted.count(), 5 * Disposition::ALL.len());
}

#[test]
fn a_gauge_counts_as_long_as_its_guard_lives() {
    let metrics = Metrics::new();
    let guard = GaugeGuard::new(&metrics.server().open);
    assert_eq!(value(&metrics, "weir_connections_open "), "1");
    drop(guard);
    assert_eq!(value(&metrics, "weir_connections_open "), "0");
}

#[test]
fn the_store_is_reachable_until_it_is_said_not_to_be() {
    let metrics = Metrics::new();
    assert_eq!(value(&metrics, "weir_store_reachable "), "1");
    metrics.store_reachable(false);
    assert_eq!(value(&metrics, "weir_store_reachable "), "0");
    metrics.store_reachable(true);
    assert_eq!(value(&metrics, "weir_store_reachable "), "1");
    metrics.node_reachable("a:1", false);
    let of_node = "weir_store_reachable{node=\"a:1\"} ";
    assert_eq!(value(&metrics, of_node), "0");
    assert_eq!(value(&metrics, "weir_store_reachable "), "1");
    metrics.node_left("a:1");
    let page = metrics.page(PageFormat::Text).unwrap();
    assert!(!page.contains("a:1"), "{page}");
}

#[test]
fn a_name_with_quotes_and_line_breaks_stays_one_label() {
    let metrics = Metrics::new();
    metrics.limit("a\"}\nb").decided(Disposition::Allowed);
    let page = page(&metrics);
    assert!(page.contains("limit=\"a\\\"}\\nb\""), "{page}");
}

/// A counter that is born with its first event looks to `increase` like one that never grew.
#[test]
fn what_has_a_finite_set_of_labels_is_there_at_zero_before_anything_happens() {
    let metrics = Metrics::new();
    let route = metrics.route("login");
    route.expect([Disposition::Allowed, Disposition::Denied]);
    let limit = metrics.limit("LoginsPerAddress");
    limit.expect_settlements();
    metrics.store_call("decide", &["deadline", "lost"]);
    for series in [
        "weir_config_loads_total{outcome=\"success\"}",
        "weir_config_loads_total{outcome=\"failure\"}",
        "weir_requests_total{route=\"login\",status=\"1xx\",decision=\"allowed\"}",
        "weir_requests_total{route=\"login\",status=\"5xx\",decision=\"denied\"}",
        "weir_decisions_total{limit=\"LoginsPerAddress\",decision=\"would_deny\"}",
        "weir_settlements_total{limit=\"LoginsPerAddress\",outcome=\"failed\"}",
        "weir_store_errors_total{call=\"decide\",kind=\"lost\"}",
        "weir_tls_handshakes_total{outcome=\"plain_text\"}",
    ] {
        assert_eq!(value(&metrics, series), "0", "{series}");
    }
}

#[test]
fn the_last_load_is_successful_until_one_is_refused() {
    let metrics = Metrics::new();
    let last = || value(&metrics, "weir_config_last_load_successful ");
    assert_eq!(last(), "1");
    metrics.loaded(false);
    assert_eq!(last(), "0");
    metrics.loaded(true);
    assert_eq!(last(), "1");
}

#[test]
fn the_stores_clock_is_shown_as_a_whole_and_by_node() {
    let metrics = Metrics::new();
    metrics.store_clock_offset(-1.5);
    metrics.node_clock_offset("a:1", 0.25);
    assert_eq!(value(&metrics, "weir_store_clock_offset_seconds "), "-1.5");
    let of_node = "weir_store_clock_offset_seconds{node=\"a:1\"} ";
    assert_eq!(value(&metrics, of_node), "0.25");
    // Only a member without labels loses its braces.
    let odd = "a{b=\"{} c\"} 1\n# HELP a {} d\na{} 2\n# EOF\n";
    let shown = openmetrics::without_empty_labels(odd);
    assert_eq!(shown, odd.replace("a{} 2", "a 2"));
}

#[test]
fn a_feature_that_asks_again_for_its_counters_gets_the_same_ones_in_their_place_on_the_page() {
    let metrics = Metrics::new();
    let name = || Name::new("weir_acme_orders", "Orders");
    let order = || metrics.counters(name()).member([("domain", "a")]);
    order().inc();
    order().inc();
    let page = page(&metrics);
    let orders: Vec<_> = page.match_indices("weir_acme_orders_total{").collect();
    assert_eq!(orders.len(), 1, "{page}");
    assert!(
        page.contains("weir_acme_orders_total{domain=\"a\"} 2\n"),
        "{page}"
    );
    let place = |name: &str| page.find(&format!("# TYPE {name} ")).unwrap();
    assert!(place("weir_access_log_lines_left_out") < place("weir_acme_orders"));
    assert!(place("weir_acme_orders") < place("weir_admin_wrong_tokens"));
    metrics.counters(name()).remove([("domain", "a")]);
    assert!(!metrics.encode().unwrap().contains("weir_acme_orders"));
}
