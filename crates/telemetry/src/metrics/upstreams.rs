//! Metrics of upstreams and their servers, which the proxy keeps, read at each scrape.

use std::sync::Arc;

use super::Metrics;
use super::page::{Name, SampleKind};

/// The state of an upstream at a scrape.
#[derive(Clone, Debug)]
pub struct UpstreamSample {
    /// Its name.
    pub name: Arc<str>,
    /// Its servers.
    pub servers: Vec<UpstreamServerSample>,
    /// Requests that were sent again.
    pub retries: u64,
    /// The limit on its requests in flight, if there is one.
    pub concurrency: Option<ConcurrencySample>,
}

/// The state of the limit on an upstream's requests in flight.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConcurrencySample {
    /// How many requests may be in flight.
    pub limit: u32,
    /// Slots that are taken.
    pub taken: u32,
    /// Requests that wait for a slot.
    pub waiting: usize,
    /// The requests that were shed, by priority, the least first.
    pub shed: Vec<ShedSample>,
}

/// The requests of a priority that were shed until now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShedSample {
    /// The priority.
    pub priority: &'static str,
    /// Requests that were shed.
    pub shed: u64,
    /// Requests that would have been shed without a dry run.
    pub would_deny: u64,
}

/// The state of a server of an upstream at a scrape.
#[derive(Clone, Debug)]
pub struct UpstreamServerSample {
    /// The server, as `host:port`.
    pub name: Arc<str>,
    /// Requests in flight.
    pub in_flight: u64,
    /// Whether it gets requests.
    pub available: bool,
    /// Why it is out of use, or why requests to it fail, if so.
    pub trouble: Option<&'static str>,
    /// The number of its ejections.
    pub ejections: u64,
}

impl Metrics {
    /// Shows, at every scrape, what is known of upstreams and their servers.
    pub fn upstreams<U>(&self, upstreams: U)
    where
        U: Fn() -> Vec<UpstreamSample> + Clone + Send + Sync + 'static,
    {
        let servers = |name, kind, number: fn(&UpstreamServerSample) -> u64| {
            let upstreams = upstreams.clone();
            self.page.family_on_collect(name, kind, move || {
                let upstreams = upstreams().into_iter();
                let samples = upstreams.flat_map(|UpstreamSample { name, servers, .. }| {
                    servers.into_iter().map(move |server| {
                        let labels = vec![
                            ("upstream", Arc::clone(&name)),
                            ("server", Arc::clone(&server.name)),
                        ];
                        (labels, number(&server))
                    })
                });
                samples.collect()
            });
        };
        servers(
            Name::new(
                "weir_upstream_requests_in_flight",
                "Requests in flight to each server of an upstream",
            ),
            SampleKind::Gauge,
            |server| server.in_flight,
        );
        servers(
            Name::new(
                "weir_upstream_server_available",
                "Whether a server gets requests (1), or is ejected or unhealthy (0)",
            ),
            SampleKind::Gauge,
            |server| u64::from(server.available),
        );
        servers(
            Name::new(
                "weir_upstream_ejections",
                "Ejections of each server of an upstream, for its failures",
            ),
            SampleKind::Counter,
            |server| server.ejections,
        );
        let limits = |name, number: fn(&ConcurrencySample) -> u64| {
            let upstreams = upstreams.clone();
            self.page
                .family_on_collect(name, SampleKind::Gauge, move || {
                    let limited = upstreams().into_iter().filter_map(|upstream| {
                        let number = number(&upstream.concurrency?);
                        Some((vec![("upstream", upstream.name)], number))
                    });
                    limited.collect()
                });
        };
        limits(
            Name::new(
                "weir_upstream_concurrency_limit",
                "How many requests may be in flight to an upstream, where that is limited",
            ),
            |sample| u64::from(sample.limit),
        );
        limits(
            Name::new(
                "weir_upstream_slots_taken",
                "Requests in flight that the limit of an upstream counts: until their responses begin",
            ),
            |sample| u64::from(sample.taken),
        );
        limits(
            Name::new(
                "weir_upstream_slots_waiting",
                "Requests that wait for a slot of an upstream",
            ),
            |sample| sample.waiting as u64,
        );
        let limited = upstreams.clone();
        let shed = Name::new(
            "weir_shed_requests",
            "Requests that were shed as their upstream can handle no more, by upstream, priority \
             and decision",
        );
        self.page
            .family_on_collect(shed, SampleKind::Counter, move || {
                let samples = limited().into_iter().flat_map(|upstream| {
                    let (name, sample) = (upstream.name, upstream.concurrency.unwrap_or_default());
                    sample.shed.into_iter().flat_map(move |of| {
                        [("shed", of.shed), ("would_deny", of.would_deny)].map(
                            |(decision, count)| {
                                let labels = vec![
                                    ("upstream", Arc::clone(&name)),
                                    ("priority", of.priority.into()),
                                    ("decision", decision.into()),
                                ];
                                (labels, count)
                            },
                        )
                    })
                });
                samples.collect()
            });
        self.page.family_on_collect(
            Name::new(
                "weir_upstream_retries",
                "Requests that were sent to another server after a failure, by upstream",
            ),
            SampleKind::Counter,
            move || {
                let samples = upstreams().into_iter();
                samples
                    .map(|upstream| (vec![("upstream", upstream.name)], upstream.retries))
                    .collect()
            },
        );
    }
}
