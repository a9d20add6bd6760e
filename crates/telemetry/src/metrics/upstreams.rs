//! Metrics of upstreams and their servers, which the proxy keeps, read at each scrape.

use std::sync::Arc;

use super::Metrics;
use super::openmetrics::{SampleKind, family_on_collect};
use crate::names;

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
        let registry = &mut *self.registry.lock();
        let mut servers = |name, kind, number: fn(&UpstreamServerSample) -> u64| {
            let upstreams = upstreams.clone();
            family_on_collect(registry, name, kind, move || {
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
        servers(names::UPSTREAM_IN_FLIGHT, SampleKind::Gauge, |server| {
            server.in_flight
        });
        servers(names::UPSTREAM_AVAILABLE, SampleKind::Gauge, |server| {
            u64::from(server.available)
        });
        servers(names::UPSTREAM_EJECTIONS, SampleKind::Counter, |server| {
            server.ejections
        });
        let mut limits = |name, number: fn(&ConcurrencySample) -> u64| {
            let upstreams = upstreams.clone();
            family_on_collect(registry, name, SampleKind::Gauge, move || {
                let limited = upstreams().into_iter().filter_map(|upstream| {
                    let number = number(&upstream.concurrency?);
                    Some((vec![("upstream", upstream.name)], number))
                });
                limited.collect()
            });
        };
        limits(names::CONCURRENCY_LIMIT, |sample| u64::from(sample.limit));
        limits(names::SLOTS_TAKEN, |sample| u64::from(sample.taken));
        limits(names::SLOTS_WAITING, |sample| sample.waiting as u64);
        let limited = upstreams.clone();
        family_on_collect(registry, names::SHED, SampleKind::Counter, move || {
            let samples = limited().into_iter().flat_map(|upstream| {
                let (name, sample) = (upstream.name, upstream.concurrency.unwrap_or_default());
                sample.shed.into_iter().flat_map(move |of| {
                    [("shed", of.shed), ("would_deny", of.would_deny)].map(|(decision, count)| {
                        let labels = vec![
                            ("upstream", Arc::clone(&name)),
                            ("priority", of.priority.into()),
                            ("decision", decision.into()),
                        ];
                        (labels, count)
                    })
                })
            });
            samples.collect()
        });
        family_on_collect(
            registry,
            names::UPSTREAM_RETRIES,
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
