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
