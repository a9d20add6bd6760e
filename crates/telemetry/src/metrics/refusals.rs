//! Connections of banned and blocked peers that are refused before there is a request.

use super::page::{Family, Name, Page};
use super::{Counter, Gauge, Metrics};

/// The metrics of refused peers.
#[derive(Clone, Debug, Default)]
pub struct RefusalMetrics {
    /// Banned and blocked addresses and networks whose connections are refused.
    pub peers: Gauge,
    /// Those of the banned and blocked that the kernel's filter has no room for.
    pub left_out: Gauge,
    /// Whether the kernel refuses them.
    pub in_kernel: Gauge,
    refused: Family<Counter>,
}

/// Who is refused, and what was refused of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    /// Addresses and networks that have a place in the kernel's filter.
    pub peers: u64,
    /// Those that it has no room for.
    pub left_out: u64,
    /// Whether the kernel has the filter. Else connections are closed when they are accepted.
    pub is_by_kernel: bool,
    /// Packets of handshakes that the kernel dropped, and connections that were closed or ignored.
    pub connections: u64,
}

impl RefusalMetrics {
    pub(super) fn new(page: &Page) -> Self {
        let refusals = Self {
            refused: page.metric(Name::new(
                "weir_connections_refused",
                "Connections of banned or blocked peers: packets of handshakes that the kernel \
                 dropped, and connections closed or ignored when they arrived",
            )),
            peers: page.metric(Name::new(
                "weir_refused_peers",
                "Banned and blocked addresses and networks whose connections are refused",
            )),
            left_out: page.metric(Name::new(
                "weir_refused_peers_left_out",
                "Banned and blocked addresses and networks that the kernel's filter has no room \
                 for",
            )),
            in_kernel: page.metric(Name::new(
                "weir_refused_in_kernel",
                "Whether the kernel drops the TCP connections of refused peers (1), or they are \
                 closed when they are accepted (0)",
            )),
        };
        refusals.by_kernel();
        refusals.at_accept();
        refusals
    }

    /// Packets of handshakes of refused peers that the kernel dropped.
    pub fn by_kernel(&self) -> Counter {
        self.refused.member([("by", "kernel")])
    }

    /// Connections of refused peers that were closed or ignored when they arrived.
    pub fn at_accept(&self) -> Counter {
        self.refused.member([("by", "accept")])
    }

    /// All of that.
    pub fn sample(&self) -> Refusals {
        let count = |gauge: &Gauge| u64::try_from(gauge.get()).unwrap_or_default();
        Refusals {
            peers: count(&self.peers),
            left_out: count(&self.left_out),
            is_by_kernel: self.in_kernel.get() > 0,
            connections: self.by_kernel().get() + self.at_accept().get(),
        }
    }
}

impl Metrics {
    /// The metrics of refused peers.
    pub fn refusals(&self) -> &RefusalMetrics {
        &self.refusals
    }
}
