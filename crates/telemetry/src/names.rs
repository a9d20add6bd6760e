//! The names of all metrics, in one place, each with the help that the page has for it.
//!
//! The names are a promise to dashboards: a change of one is a breaking change. Counters are
//! registered without their `_total`, which the exposition format adds.

#[derive(Clone, Copy, Debug)]
pub(crate) struct Name {
    /// Without the suffix that the exposition format adds.
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
}

macro_rules! names {
    ($($(#[$attribute:meta])* $constant:ident: $name:literal, $help:literal;)+) => {
        $(
            $(#[$attribute])*
            pub(crate) const $constant: Name = Name { name: $name, help: $help };
        )+
    };
}

names! {
    REQUESTS: "weir_requests", "Requests answered, by route, status class and decision";
    REQUEST_SECONDS: "weir_request_duration_seconds",
        "Time from a request's head to the end of its answer, by route";
    DECISIONS: "weir_decisions", "Decisions, by limit";
    LEASES: "weir_leases_held", "Requests that hold a place of a limit on requests in flight, by limit";
    SETTLEMENTS: "weir_settlements",
        "Costs taken or given back once the response was there, by limit and outcome";
    STORE_SECONDS: "weir_store_call_duration_seconds",
        "Time that calls of the store took, failed ones included";
    STORE_ERRORS: "weir_store_errors", "Calls of the store that failed, by call and kind";
    STORE_REACHABLE: "weir_store_reachable",
        "Whether the store is asked (1) or its circuit breaker is open (0)";
    STORE_CLOCK_OFFSET: "weir_store_clock_offset_seconds",
        "By how much this gateway's clock is ahead of the store's; negative when it is behind";
    STORE_CLOCK_SLEW: "weir_store_clock_slew_seconds",
        "By how much the time that limits go by is ahead of the store's while it is slewed";
    MEMORY_BUCKETS: "weir_memory_store_buckets", "Buckets that the memory store holds";
    MEMORY_EVICTED: "weir_memory_store_evicted",
        "Buckets given up to keep the memory store within its bound";
    CONNECTIONS: "weir_connections_open", "Open connections from clients";
    ACCEPTED: "weir_connections_accepted", "Connections accepted from clients";
    REFUSED: "weir_connections_refused",
        "Connections of banned or blocked peers: packets of handshakes that the kernel dropped, and connections closed or ignored when they arrived";
    REFUSED_PEERS: "weir_refused_peers",
        "Banned and blocked addresses and networks whose connections are refused";
    REFUSED_LEFT_OUT: "weir_refused_peers_left_out",
        "Banned and blocked addresses and networks that the kernel's filter has no room for";
    REFUSED_IN_KERNEL: "weir_refused_in_kernel",
        "Whether the kernel drops the TCP connections of refused peers (1), or they are closed when they are accepted (0)";
    EVICTED: "weir_connections_evicted",
        "Connections from clients, idle or with an incomplete head, closed to make room for new ones";
    ADMIN_WRONG_TOKENS: "weir_admin_wrong_tokens", "Requests to the admin API that showed a wrong token";
    PROXY_HEADERS: "weir_proxy_headers", "Connections of peers that must send a PROXY header, by outcome";
    HANDSHAKES: "weir_tls_handshakes", "TLS handshakes with clients, by outcome";
    CERTIFICATE_EXPIRY: "weir_tls_certificate_expiry_timestamp_seconds",
        "When the first of the certificates in force expires, in seconds since the Unix epoch";
    ACME_ORDERS: "weir_acme_orders",
        "Attempts to obtain or renew a certificate by ACME, by domain and outcome";
    JWKS_FETCHES: "weir_jwks_fetches",
        "Fetches of the key sets that tokens are verified with, by URL and outcome";
    JWKS_FETCHED_AT: "weir_jwks_fetched_timestamp_seconds",
        "When the key set was fetched last, in seconds since the Unix epoch; 0 before";
    SRV_LOOKUPS: "weir_srv_lookups",
        "Lookups of the SRV records that name servers, by name and outcome";
    ACCEPT_ERRORS: "weir_accept_errors",
        "Failures to accept a connection, such as for want of file descriptors";
    IN_FLIGHT: "weir_requests_in_flight", "Requests being served";
    BANS: "weir_bans", "Bans that this gateway began, by ban";
    BANNED: "weir_banned_requests", "Requests of the banned, by ban and decision";
    BLOCKED: "weir_blocked_requests", "Requests of clients on the block list";
    TARPIT: "weir_tarpit_held", "Requests held in tarpits";
    UPSTREAM_IN_FLIGHT: "weir_upstream_requests_in_flight",
        "Requests in flight to each server of an upstream";
    UPSTREAM_AVAILABLE: "weir_upstream_server_available",
        "Whether a server gets requests (1), or is ejected or unhealthy (0)";
    UPSTREAM_EJECTIONS: "weir_upstream_ejections",
        "Ejections of each server of an upstream, for its failures";
    UPSTREAM_RETRIES: "weir_upstream_retries",
        "Requests that were sent to another server after a failure, by upstream";
    CONCURRENCY_LIMIT: "weir_upstream_concurrency_limit",
        "How many requests may be in flight to an upstream, where that is limited";
    SLOTS_TAKEN: "weir_upstream_slots_taken",
        "Requests in flight that the limit of an upstream counts: until their responses begin";
    SLOTS_WAITING: "weir_upstream_slots_waiting", "Requests that wait for a slot of an upstream";
    SHED: "weir_shed_requests",
        "Requests that were shed as their upstream can handle no more, by upstream, priority and decision";
    WORKER_DELAY: "weir_worker_delay_seconds",
        "How late the event loop of each worker is, where that is measured: the least delay of 100 ms";
    OVERLOAD_SHED: "weir_overload_shed_requests",
        "Requests that were shed as their worker has more to do than its CPU can handle, by priority and decision";
    LOG_DROPPED: "weir_log_lines_dropped", "Log lines dropped because the log's reader was too slow";
    LOG_LEFT_OUT: "weir_access_log_lines_left_out",
        "Lines of requests that were not let through, left out of the access log by its bound";
    #[cfg(any(feature = "otlp", test))]
    OTLP_DROPPED: "weir_otlp_spans_dropped", "Spans dropped because they were more than the collector took";
    BUILD: "weir_build", "The version that runs";
    RELOADS: "weir_config_loads", "Loads of the configuration, the first one included, by outcome";
    LOADED_AT: "weir_config_loaded_timestamp_seconds",
        "When the configuration in force was loaded, in seconds since the Unix epoch";
    CONFIG_DIGEST: "weir_config_digest",
        "1 for the digest of the configuration in force, as gateways of one Redis compare theirs";
    GATEWAYS: "weir_gateways",
        "Gateways of the same Redis that this one knows, itself included, by state";
    OTHER_CONFIGURATIONS: "weir_other_configurations",
        "Gateways of the same Redis whose configuration or hash_key is another than here";
    LAST_LOAD_SUCCESSFUL: "weir_config_last_load_successful",
        "Whether the last load of the configuration succeeded (1) or was refused (0)";
}
