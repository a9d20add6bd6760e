//! docs/METRICS.md names every metric with its type and labels, docs/LOGS.md every field of the
//! access log and every decision, and nothing else. So do the alerts and the dashboard in deploy/,
//! which ask for these metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use http::StatusCode;
use weir_testing::promtool;

use weir_limit::Quota;
use weir_middleware::{
    AccessSettings, AccessState, Rejection, RouteAction, RoutePolicy, RouteState, Treatment,
};
use weir_rules::{AccessLists, HashKey, KeySource, Limit, LimitUse, Missing};
use weir_telemetry::events::{self, Loaded};
use weir_telemetry::{
    ACCESS_LOG_FIELDS, ConcurrencySample, Disposition, Handshake, Metrics, PageFormat, ProxyHeader,
    Settled, ShedSample, UpstreamSample, UpstreamServerSample,
};

use crate::app::features::jwks::JwksMetrics;
use crate::app::features::srv::SrvMetrics;
use crate::app::sockets::acme::AcmeMetrics;

const METRICS: &str = include_str!("../../../docs/METRICS.md");
const LOGS: &str = include_str!("../../../docs/LOGS.md");
const DASHBOARD: &str = include_str!("../../../deploy/grafana/weir.json");
const NAMES: &str = include_str!("../../../crates/telemetry/src/names.rs");

/// The rows of the table whose first column is called so, each a list of cells.
fn table(first_column: &str) -> Vec<Vec<String>> {
    let head = format!("\n| {first_column} |");
    let pages = [METRICS, LOGS];
    let (_, rest) = pages
        .iter()
        .find_map(|page| page.split_once(&head))
        .unwrap();
    let rows = rest
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    rows.map(|row| row.split('|').skip(1).map(unquoted).collect())
        .collect()
}

fn unquoted(cell: &str) -> String {
    cell.replace('`', "").trim().to_owned()
}

/// The first cells of a table.
fn words(first_column: &str) -> BTreeSet<String> {
    table(first_column)
        .into_iter()
        .map(|row| row[0].clone())
        .collect()
}

const KEY_SET: &str = "https://id.example.com/keys";
const SRV_NAME: &str = "_http._tcp.app.example.com";

fn upstream(available: bool) -> UpstreamSample {
    let server = UpstreamServerSample {
        name: "10.0.0.5:3000".into(),
        in_flight: 1,
        available,
        trouble: None,
        ejections: 2,
    };
    UpstreamSample {
        name: "app".into(),
        servers: vec![server],
        retries: 3,
    }
}

/// The limit on an upstream's requests in flight.
fn limited(shed: u64) -> (Arc<str>, ConcurrencySample) {
    let sample = ConcurrencySample {
        shed: vec![ShedSample {
            priority: "low",
            shed,
            would_deny: 0,
        }],
        ..ConcurrencySample::default()
    };
    ("app".into(), sample)
}

/// A type, and labels, separated by commas.
type Described = (String, String);

/// Counts the places of a limit with this name, as a route does that has it.
fn count_places(limit: &str, metrics: &Metrics) {
    let (per, quota) = (vec![KeySource::Global], Quota::in_flight(1).unwrap());
    let limit = Limit::new(limit, per, quota, Missing::Skip, HashKey::random()).unwrap();
    let policy = RoutePolicy {
        name: "login".into(),
        limits: vec![LimitUse::new(Arc::new(limit))],
        ..RoutePolicy::default()
    };
    let nobody = AccessSettings {
        lists: AccessLists::default(),
        blocked: Treatment::Reject(Rejection::default()),
        bans: Vec::new(),
    };
    let access = AccessState::new(metrics).control(nobody, metrics);
    RouteState::new(policy, &RouteAction::default(), &access, metrics);
}

/// Metrics by the name that a dashboard asks for. Everything is counted once, for a family without
/// members is not on the page.
fn exposed() -> BTreeMap<String, Described> {
    let metrics = Metrics::new();
    let took = Duration::from_millis(1);
    let route = metrics.route("login");
    route.finished(StatusCode::OK, Disposition::Allowed, took);
    let limit = metrics.limit("LoginsPerAddress");
    limit.decided(Disposition::Allowed);
    limit.settled(Settled::Spent);
    metrics.bans().ban(&"abusers".into()).held(true);
    count_places("LoginsPerAddress", &metrics);
    let decide = metrics.store_call("decide", &["deadline"]);
    decide.called(took, Some("deadline"));
    metrics.memory_store(|| 0, || 0);
    metrics.log_lines_dropped(|| 0);
    metrics.otlp_spans_dropped(|| 0);
    metrics.server().handshakes(Handshake::Full).inc();
    metrics.server().proxy_headers(ProxyHeader::Proxied).inc();
    metrics.certificates(|| 0);
    metrics.node_clock_offset("a:1", 0.0);
    metrics.node_reachable("a:1", true);
    AcmeMetrics::new(&metrics, "example.com").ordered(true);
    JwksMetrics::new(&metrics, KEY_SET).fetched(0);
    SrvMetrics::new(&metrics).looked_up(SRV_NAME, true);
    metrics.upstreams(|| vec![upstream(true)]);
    metrics.limited_upstreams(|| vec![limited(4)]);
    metrics.overload().worker_delay(0, Some(0.0));
    metrics.overload().of_priority("low").count(true);
    events::reloaded(
        &metrics,
        Loaded {
            routes: 1,
            limits: 1,
        },
    );
    metrics.config_digest("5b1d0a6f3c2e");
    metrics.gateways([("up", 1)], 0);
    let page = metrics.encode().unwrap();
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    types
        .map(|line| {
            let (name, kind) = line.split_once(' ').unwrap();
            let suffix = match kind {
                "counter" => "_total",
                "info" => "_info",
                _ => "",
            };
            let described = (kind.to_owned(), labels(&page, name));
            (format!("{name}{suffix}"), described)
        })
        .collect()
}

/// The labels of a metric's first sample that has any, without those that every histogram has.
fn labels(page: &str, name: &str) -> String {
    let mut samples = page.lines().filter(|line| line.starts_with(name));
    let sample = samples.find(|line| line.contains('{')).unwrap_or_default();
    let labels = sample.split_once('{').map_or("", |(_, rest)| rest);
    let pairs = labels.split(',').filter_map(|pair| pair.split_once('='));
    let names: Vec<&str> = pairs.map(|(name, _)| name).collect();
    names.join(", ")
}

#[test]
fn the_metrics_in_the_docs_are_those_on_the_page() {
    let documented: BTreeMap<String, Described> = table("metric")
        .into_iter()
        .map(|row| (row[0].clone(), (row[1].clone(), row[2].clone())))
        .collect();
    assert_eq!(documented, exposed());
}

#[test]
fn every_name_of_a_metric_is_on_the_page() {
    let names: BTreeSet<&str> = NAMES
        .split('"')
        .filter(|text| text.starts_with("weir_"))
        .collect();
    let exposed: BTreeSet<String> = exposed().into_keys().collect();
    let on_the_page = |name: &&str| {
        let mut forms = ["", "_total", "_info"].into_iter();
        forms.any(|suffix| exposed.contains(&format!("{name}{suffix}")))
    };
    let lacking: Vec<_> = names.iter().filter(|name| !on_the_page(name)).collect();
    assert!(lacking.is_empty(), "{lacking:?}");
    assert_eq!(names.len(), exposed.len());
}

#[test]
fn the_fields_in_the_docs_are_those_of_the_access_log() {
    let written = ACCESS_LOG_FIELDS.map(|field| field.name.to_owned());
    assert_eq!(words("field"), BTreeSet::from(written));
}

#[test]
fn the_decisions_in_the_docs_are_all_there_are() {
    let all: BTreeSet<String> = Disposition::ALL.iter().map(ToString::to_string).collect();
    assert_eq!(words("decision"), all);
}

/// The table of `proxy::error`: a status, and the word for it.
#[test]
fn the_upstream_errors_in_the_docs_are_those_of_the_proxy() {
    let proxy = include_str!("../../../crates/proxy/src/error.rs");
    let rows = proxy.split("StatusCode::").skip(1);
    let written: BTreeMap<String, String> = rows
        .filter_map(|row| {
            let (status, rest) = row.split_once(',')?;
            let (reason, _) = rest.trim_start().strip_prefix('"')?.split_once('"')?;
            Some((reason.to_owned(), number(status)))
        })
        .collect();
    let documented: BTreeMap<String, String> = table("upstream_error")
        .into_iter()
        .map(|row| (row[0].clone(), row[2].clone()))
        .collect();
    assert_eq!(documented, written);
}

/// The number of a status that has its name in capitals.
fn number(name: &str) -> String {
    let spoken = |status: &StatusCode| {
        let reason = status.canonical_reason().unwrap_or_default();
        reason.to_uppercase().replace(' ', "_") == name
    };
    let mut all = (100..600).filter_map(|number| StatusCode::from_u16(number).ok());
    all.find(spoken).unwrap().as_str().to_owned()
}

/// A gateway at which nothing has happened yet, with all that it shows of itself.
struct Calm {
    metrics: Arc<Metrics>,
    /// Whether Prometheus reaches it.
    up: AtomicBool,
    evicted: Arc<AtomicU64>,
    expiry: Arc<AtomicU64>,
    available: Arc<AtomicBool>,
    shed: Arc<AtomicU64>,
}

impl Calm {
    fn new() -> Self {
        let metrics = Metrics::new();
        events::reloaded(
            &metrics,
            Loaded {
                routes: 1,
                limits: 1,
            },
        );
        metrics.config_digest("5b1d0a6f3c2e");
        metrics.gateways([("up", 3), ("behind", 0), ("silent", 0)], 0);
        metrics.route("login").expect(Disposition::ALL);
        metrics.limit("LoginsPerAddress").expect_settlements();
        metrics.store_call("decide", &["deadline"]);
        metrics.log_lines_dropped(|| 0);
        let evicted = Arc::<AtomicU64>::default();
        let expiry = Arc::new(AtomicU64::new(in_days(30)));
        let (buckets, expires) = (Arc::clone(&evicted), Arc::clone(&expiry));
        metrics.memory_store(|| 0, move || buckets.load(Ordering::Relaxed));
        metrics.certificates(move || expires.load(Ordering::Relaxed));
        AcmeMetrics::new(&metrics, "example.com").ordered(true);
        JwksMetrics::new(&metrics, KEY_SET).fetched(0);
        SrvMetrics::new(&metrics).looked_up(SRV_NAME, true);
        let available = Arc::new(AtomicBool::new(true));
        let shed = Arc::<AtomicU64>::default();
        let (reached, by_upstream) = (Arc::clone(&available), Arc::clone(&shed));
        metrics.overload().of_priority("low");
        metrics.upstreams(move || {
            let is_reached = reached.load(Ordering::Relaxed);
            vec![upstream(is_reached)]
        });
        metrics.limited_upstreams(move || vec![limited(by_upstream.load(Ordering::Relaxed))]);
        Self {
            metrics,
            up: AtomicBool::new(true),
            evicted,
            expiry,
            available,
            shed,
        }
    }

    fn page(&self) -> String {
        self.metrics.page(PageFormat::Text).unwrap()
    }

    /// The page, and what Prometheus adds.
    fn scraped(&self) -> String {
        let up = u8::from(self.up.load(Ordering::Relaxed));
        format!("{}up {up}\n", self.page())
    }

    fn requests(&self, status: StatusCode, decision: Disposition, count: usize) {
        for _ in 0..count {
            let route = self.metrics.route("login");
            route.finished(status, decision, Duration::from_millis(1));
        }
    }
}

/// Promtool's time begins with the epoch.
fn in_days(days: u64) -> u64 {
    days * 24 * 3600
}

/// The name of an alert, and what it is about.
type Trouble = (&'static str, fn(&Calm));

fn troubles() -> Vec<Trouble> {
    vec![
        ("WeirDown", |gateway| {
            gateway.up.store(false, Ordering::Relaxed);
        }),
        ("WeirStoreUnreachable", |gateway| {
            gateway.metrics.store_reachable(false);
        }),
        ("WeirClockDrifts", |gateway| {
            gateway.metrics.store_clock_offset(-0.7);
        }),
        ("WeirConnectionsEvicted", |gateway| {
            gateway.metrics.server().evicted.inc();
        }),
        ("WeirStoreErrors", |gateway| {
            let decide = gateway.metrics.store_call("decide", &["deadline"]);
            decide.called(Duration::from_millis(20), Some("deadline"));
        }),
        ("WeirBucketsEvicted", |gateway| {
            gateway.evicted.fetch_add(1, Ordering::Relaxed);
        }),
        ("WeirSettlementsFail", |gateway| {
            gateway
                .metrics
                .limit("LoginsPerAddress")
                .settled(Settled::Failed);
        }),
        ("WeirUnlimited", |gateway| {
            gateway.requests(StatusCode::OK, Disposition::FailedOpen, 1);
        }),
        ("WeirGatewaySilent", |gateway| {
            gateway.metrics.gateways([("up", 2), ("silent", 1)], 0);
        }),
        ("WeirConfigurationsDiffer", |gateway| {
            gateway.metrics.gateways([("up", 3)], 1);
        }),
        ("WeirReloadRefused", |gateway| {
            events::reload_failed(&gateway.metrics, &"refused");
        }),
        ("WeirCertificateExpires", |gateway| {
            gateway.expiry.store(in_days(13), Ordering::Relaxed);
        }),
        ("WeirCertificateNotObtained", |gateway| {
            AcmeMetrics::new(&gateway.metrics, "example.com").ordered(false);
        }),
        ("WeirServerUnavailable", |gateway| {
            gateway.available.store(false, Ordering::Relaxed);
        }),
        ("WeirKeySetNotFetched", |gateway| {
            JwksMetrics::new(&gateway.metrics, KEY_SET).failed();
        }),
        ("WeirSrvLookupsFail", |gateway| {
            SrvMetrics::new(&gateway.metrics).looked_up(SRV_NAME, false);
        }),
        ("WeirCannotAccept", |gateway| {
            gateway.metrics.server().accept_errors.inc();
        }),
        ("WeirServerErrors", |gateway| {
            gateway.requests(StatusCode::OK, Disposition::Allowed, 9);
            gateway.requests(StatusCode::BAD_GATEWAY, Disposition::Allowed, 1);
        }),
        ("WeirSheds", |gateway| {
            gateway.requests(StatusCode::SERVICE_UNAVAILABLE, Disposition::Shed, 1);
            gateway.shed.fetch_add(1, Ordering::Relaxed);
        }),
        ("WeirOverloaded", |gateway| {
            gateway.requests(StatusCode::SERVICE_UNAVAILABLE, Disposition::Shed, 1);
            gateway.metrics.overload().of_priority("low").count(true);
        }),
        ("WeirManyDenials", |gateway| {
            let limit = gateway.metrics.limit("LoginsPerAddress");
            (0..100).for_each(|_| limit.decided(Disposition::Denied));
        }),
    ]
}

/// The documented rules named series that were born with their first event, which `increase` and
/// `rate` do not see.
#[test]
fn each_documented_alert_fires_at_its_first_trouble_and_none_fires_before() {
    for (alert, trouble) in troubles() {
        let gateway = Calm::new();
        let mut pages = vec![gateway.scraped(); 5];
        promtool::check_alerts(&pages, &[]);
        // What has to last for a while lasts.
        let lasts = [
            "WeirConfigurationsDiffer",
            "WeirClockDrifts",
            "WeirStoreErrors",
            "WeirServerErrors",
            "WeirSheds",
            "WeirOverloaded",
            "WeirManyDenials",
            "WeirServerUnavailable",
            "WeirCertificateNotObtained",
            "WeirKeySetNotFetched",
            "WeirSrvLookupsFail",
        ];
        trouble(&gateway);
        pages.push(gateway.scraped());
        for _ in 0..if lasts.contains(&alert) { 15 } else { 2 } {
            if lasts.contains(&alert) {
                trouble(&gateway);
            }
            pages.push(gateway.scraped());
        }
        promtool::check_alerts(&pages, &[alert]);
    }
}

#[test]
fn every_documented_alert_is_tried() {
    let tried: BTreeSet<String> = troubles().iter().map(|(name, _)| (*name).into()).collect();
    let alerts = promtool::ALERTS
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    assert_eq!(alerts.map(str::to_owned).collect::<BTreeSet<_>>(), tried);
    assert_eq!(words("alert"), tried);
}

/// What the panels of the dashboard ask for, with Grafana's variables filled in.
fn asked_for() -> Vec<String> {
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels
        .iter()
        .filter_map(|panel| panel["targets"].as_array())
        .flatten();
    let expressions = targets.map(|target| target["expr"].as_str().unwrap());
    expressions
        .map(|expression| expression.replace("$__rate_interval", "5m"))
        .collect()
}

/// A metric by the name that the docs have for it, and the labels by which a query selects it.
fn selected(expression: &str) -> impl Iterator<Item = (String, Vec<&str>)> {
    let mentions = expression.match_indices("weir_");
    mentions.map(|(start, _)| {
        let (name, rest) = expression[start..].split_once('{').unwrap();
        let (selector, _) = rest.split_once('}').unwrap();
        let labels = selector.split(',').map(|label| {
            let end = label.find(['=', '!']).unwrap();
            &label[..end]
        });
        let name = name.strip_suffix("_bucket").unwrap_or(name);
        (name.to_owned(), labels.collect())
    })
}

#[test]
fn the_dashboard_asks_for_every_metric_by_labels_that_it_has_and_for_nothing_else() {
    let exposed = exposed();
    let expressions = asked_for();
    let mut shown = BTreeSet::new();
    for expression in &expressions {
        let mut known: BTreeSet<&str> = ["job", "instance", "le"].into();
        for (name, selectors) in selected(expression) {
            let (_, labels) = exposed.get(&name).unwrap_or_else(|| panic!("{name}"));
            known.extend(labels.split(", "));
            for label in selectors {
                assert!(known.contains(label), "{label}: {expression}");
            }
            shown.insert(name);
        }
        for (_, rest) in expression
            .match_indices("by (")
            .map(|(at, by)| expression[at..].split_at(by.len()))
        {
            let (labels, _) = rest.split_once(')').unwrap();
            for label in labels.split(", ") {
                assert!(known.contains(label), "{label}: {expression}");
            }
        }
    }
    assert_eq!(shown, exposed.into_keys().collect());
    promtool::check_expressions(expressions.iter().map(String::as_str));
}

/// Grafana would draw them over each other.
#[test]
fn no_two_panels_of_the_dashboard_share_an_id_or_a_place() {
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).unwrap();
    let mut taken = BTreeSet::new();
    let mut ids = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        let [x, y, w, h] =
            ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().unwrap());
        assert!(x + w <= 24, "{panel}");
        for column in x..x + w {
            for line in y..y + h {
                assert!(taken.insert((column, line)), "{panel}");
            }
        }
    }
}

#[test]
fn prometheus_reads_the_page_in_its_text_format_and_finds_no_fault_with_it() {
    let page = Calm::new().page();
    promtool::check_metrics(&page);
    for line in [
        "# TYPE weir_requests_total counter",
        "# TYPE weir_build_info gauge",
        "# TYPE weir_request_duration_seconds histogram",
    ] {
        assert!(page.lines().any(|it| it == line), "{line}: {page}");
    }
}

/// Both forms of the page say the same.
#[test]
fn the_text_format_has_the_samples_of_openmetrics() {
    let metrics = Calm::new().metrics;
    let samples = |format| {
        let page = metrics.page(format).unwrap();
        let lines = page.lines().filter(|line| !line.starts_with('#'));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(samples(PageFormat::Text), samples(PageFormat::OpenMetrics));
}
