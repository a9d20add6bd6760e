//! The proxy between real clients and real upstreams, over loopback TCP.

mod balancing;
mod bounds;
mod failures;
mod forwarding;
mod framing;
mod http2;
mod pooling;
mod retries;
mod servers;
mod streaming;
mod support;
mod upgrades;
