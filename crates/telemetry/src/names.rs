//! The names of all metrics and labels, in one place, with the text that explains each.
//!
//! The names are a promise to dashboards: a change of one is a breaking change. Counters are
//! registered without their `_total`, which the exposition format adds.

/// A metric's name and what it counts.
#[derive(Clone, Copy, Debug)]
pub struct Name {
    /// The name, without the suffix that the exposition format adds.
    pub name: &'static str,
    /// One line for the `HELP` of the page.
    pub help: &'static str,
}

const fn name(name: &'static str, help: &'static str) -> Name {
    Name { name, help }
}

/// Requests, by route, status class and decision.
pub const REQUESTS: Name = name(
    "weir_requests",
    "Requests answered, by route, status class and decision",
);
/// How long requests took, by route.
pub const REQUEST_SECONDS: Name = name(
    "weir_request_duration_seconds",
    "Time from a request's head to the end of its answer, by route",
);
/// Decisions, by limit.
pub const DECISIONS: Name = name("weir_decisions", "Decisions, by limit");
/// Places among the requests in flight that are held.
pub const LEASES: Name = name(
    "weir_leases_held",
    "Requests that hold a place of a limit on requests in flight, by limit",
);
/// What was left to be done for limits when responses were there.
pub const SETTLEMENTS: Name = name(
    "weir_settlements",
    "Costs taken or given back once the response was there, by limit and outcome",
);
/// How long calls of the store took.
pub const STORE_SECONDS: Name = name(
    "weir_store_call_duration_seconds",
    "Time that calls of the store took, failed ones included",
);
/// Calls of the store that failed.
pub const STORE_ERRORS: Name = name(
    "weir_store_errors",
    "Calls of the store that failed, by call and kind",
);
/// Whether the store is within reach.
pub const STORE_REACHABLE: Name = name(
    "weir_store_reachable",
    "Whether the store is asked (1) or its circuit breaker is open (0)",
);
/// How far the gateway's clock is off from the store's.
pub const STORE_CLOCK_OFFSET: Name = name(
    "weir_store_clock_offset_seconds",
    "By how much this gateway's clock is ahead of the store's; negative when it is behind",
);
/// How far the time of decisions is off from the store's.
pub const STORE_CLOCK_SLEW: Name = name(
    "weir_store_clock_slew_seconds",
    "By how much the time that limits go by is ahead of the store's while it is slewed",
);
/// Buckets in the memory store.
pub const MEMORY_BUCKETS: Name = name(
    "weir_memory_store_buckets",
    "Buckets that the memory store holds",
);
/// Buckets that the memory store gave up to stay within its bound.
pub const MEMORY_EVICTED: Name = name(
    "weir_memory_store_evicted",
    "Buckets given up to keep the memory store within its bound",
);
/// Open connections from clients.
pub const CONNECTIONS: Name = name("weir_connections_open", "Open connections from clients");
/// Connections accepted from clients.
pub const ACCEPTED: Name = name(
    "weir_connections_accepted",
    "Connections accepted from clients",
);
/// Connections that made room for others.
pub const EVICTED: Name = name(
    "weir_connections_evicted",
    "Connections from clients, idle or with an incomplete head, closed to make room for new ones",
);
/// Tokens that the admin API does not know.
pub const ADMIN_WRONG_TOKENS: Name = name(
    "weir_admin_wrong_tokens",
    "Requests to the admin API that showed a wrong token",
);
/// PROXY headers of load balancers.
pub const PROXY_HEADERS: Name = name(
    "weir_proxy_headers",
    "Connections of peers that must send a PROXY header, by outcome",
);
/// TLS handshakes with clients.
pub const HANDSHAKES: Name = name(
    "weir_tls_handshakes",
    "TLS handshakes with clients, by outcome",
);
/// When the first certificate expires.
pub const CERTIFICATE_EXPIRY: Name = name(
    "weir_tls_certificate_expiry_timestamp_seconds",
    "When the first of the certificates in force expires, in seconds since the Unix epoch",
);
/// Orders of certificates.
pub const ACME_ORDERS: Name = name(
    "weir_acme_orders",
    "Attempts to obtain or renew a certificate by ACME, by domain and outcome",
);
/// Fetches of key sets.
pub const JWKS_FETCHES: Name = name(
    "weir_jwks_fetches",
    "Fetches of the key sets that tokens are verified with, by URL and outcome",
);
/// When a key set was fetched last.
pub const JWKS_FETCHED_AT: Name = name(
    "weir_jwks_fetched_timestamp_seconds",
    "When the key set was fetched last, in seconds since the Unix epoch; 0 before",
);
/// Failures to accept a connection.
pub const ACCEPT_ERRORS: Name = name(
    "weir_accept_errors",
    "Failures to accept a connection, such as for want of file descriptors",
);
/// Requests that are being served.
pub const IN_FLIGHT: Name = name("weir_requests_in_flight", "Requests being served");
/// Bans that began, by ban.
pub const BANS: Name = name("weir_bans", "Bans that this gateway began, by ban");
/// Requests of the banned, by ban.
pub const BANNED: Name = name(
    "weir_banned_requests",
    "Requests of the banned, by ban and decision",
);
/// Requests of the blocked.
pub const BLOCKED: Name = name(
    "weir_blocked_requests",
    "Requests of clients on the block list",
);
/// Requests that are held in tarpits.
pub const TARPIT: Name = name("weir_tarpit_held", "Requests held in tarpits");
/// Requests in flight to a server of an upstream.
pub const UPSTREAM_IN_FLIGHT: Name = name(
    "weir_upstream_requests_in_flight",
    "Requests in flight to each server of an upstream",
);
/// Whether a server of an upstream gets requests.
pub const UPSTREAM_AVAILABLE: Name = name(
    "weir_upstream_server_available",
    "Whether a server gets requests (1), or is ejected or unhealthy (0)",
);
/// Ejections of a server of an upstream.
pub const UPSTREAM_EJECTIONS: Name = name(
    "weir_upstream_ejections",
    "Ejections of each server of an upstream, for its failures",
);
/// Requests that were sent again.
pub const UPSTREAM_RETRIES: Name = name(
    "weir_upstream_retries",
    "Requests that were sent to another server after a failure, by upstream",
);
/// Log lines that were dropped.
pub const LOG_DROPPED: Name = name(
    "weir_log_lines_dropped",
    "Log lines dropped because the log's reader was too slow",
);
/// Lines of the access log that its bound left out.
pub const LOG_LEFT_OUT: Name = name(
    "weir_access_log_lines_left_out",
    "Lines of requests that were not let through, left out of the access log by its bound",
);
/// Spans that were dropped.
#[cfg(any(feature = "otlp", test))]
pub const OTLP_DROPPED: Name = name(
    "weir_otlp_spans_dropped",
    "Spans dropped because they were more than the collector took",
);
/// The version that runs.
pub const BUILD: Name = name("weir_build", "The version that runs");
/// Loads of the configuration.
pub const RELOADS: Name = name(
    "weir_config_loads",
    "Loads of the configuration, the first one included, by outcome",
);
/// When the configuration in force was loaded.
pub const LOADED_AT: Name = name(
    "weir_config_loaded_timestamp_seconds",
    "When the configuration in force was loaded, in seconds since the Unix epoch",
);
/// Whether the last load of the configuration succeeded.
pub const LAST_LOAD_SUCCESSFUL: Name = name(
    "weir_config_last_load_successful",
    "Whether the last load of the configuration succeeded (1) or was refused (0)",
);

/// Label: the route's name; `-` when the request matched none.
pub const ROUTE: &str = "route";
/// Label: the class of the answer's status, such as `2xx`.
pub const STATUS: &str = "status";
/// Label: what was decided.
pub const DECISION: &str = "decision";
/// Label: the upstream's name.
pub const UPSTREAM: &str = "upstream";
/// Label: a server of an upstream, as `host:port`.
pub const SERVER: &str = "server";
/// Label: the limit's name.
pub const LIMIT: &str = "limit";
/// Label: the ban's name.
pub const BAN: &str = "ban";
/// Label: the call of the store.
pub const CALL: &str = "call";
/// Label: the kind of a store's failure.
pub const KIND: &str = "kind";
/// Label: `success` or `failure`; of settlements, `spent`, `refunded` or `failed`; of TLS
/// handshakes, `full`, `resumed`, `failed`, `too_slow` or `plain_text`; of PROXY headers,
/// `proxied`, `local`, `malformed`, `too_slow` or `closed`.
pub const OUTCOME: &str = "outcome";
/// Label: the domain of a certificate.
pub const DOMAIN: &str = "domain";
/// Label: the URL of a key set.
pub const URL: &str = "url";
/// Label: the version of Weir.
pub const VERSION: &str = "version";
