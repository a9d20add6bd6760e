//! Connections of banned and blocked peers that are refused before there is a request.

use prometheus_client::metrics::gauge::Gauge;

use super::Counter;
use super::handles::{ServerMetrics, member};

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

impl ServerMetrics {
    /// Packets of handshakes of refused peers that the kernel dropped.
    pub fn refused_by_kernel(&self) -> Counter {
        member(&self.refused, [("by", "kernel")])
    }

    /// Connections of refused peers that were closed or ignored when they arrived.
    pub fn refused_at_accept(&self) -> Counter {
        member(&self.refused, [("by", "accept")])
    }

    /// All of that.
    pub fn refusals(&self) -> Refusals {
        let count = |gauge: &Gauge| u64::try_from(gauge.get()).unwrap_or_default();
        Refusals {
            peers: count(&self.refused_peers),
            left_out: count(&self.refused_left_out),
            is_by_kernel: self.refused_in_kernel.get() > 0,
            connections: self.refused_by_kernel().get() + self.refused_at_accept().get(),
        }
    }
}
