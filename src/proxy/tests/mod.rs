//! The proxy between real clients and real upstreams, over loopback TCP.

mod balancing;
mod failures;
mod forwarding;
mod framing;
mod pooling;
mod streaming;
mod support;
mod upgrades;
