//! The gateway from outside: the `weir` binary between real clients and a real upstream, over TCP.

#![allow(
    clippy::print_stderr,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that meets what it does not expect fails"
)]

mod support;

mod access_lists;
mod accounts;
mod acme;
mod addresses;
mod admin;
mod algorithms;
mod ban_lists;
mod bans;
mod basic_auth;
mod boulder;
mod browsers;
mod buckets;
mod cli;
mod client_certificates;
mod clients;
mod clocks;
mod compression;
mod connections;
mod cors;
mod counting;
mod crowds;
mod dashboard;
mod decide;
mod definitions;
mod drain;
mod enforce;
mod envoy;
mod envoy_ratelimit;
mod events;
mod example;
mod explain;
mod failures;
mod fleet;
mod forwarding;
mod gateway_findings;
mod grpc;
mod headers;
mod http2_websockets;
#[cfg(feature = "http3")]
mod http3;
mod https;
mod imports;
mod in_flight;
mod integrations;
mod jwks;
mod limits;
mod listings;
mod logs;
mod memory;
mod migration;
mod openapi;
mod operating;
#[cfg(feature = "otlp")]
mod otlp;
mod overload;
mod override_api;
mod overrides;
mod payloads;
mod prefetch;
mod proxy_protocol;
mod recipes;
mod redis;
mod redis_cluster;
mod redis_rights;
#[cfg(target_os = "linux")]
mod refused_peers;
mod reload;
mod replay;
mod request_bodies;
mod request_ids;
mod restart;
mod routing;
mod sentinel;
mod servers;
mod shadow_ban;
mod shared_lists;
mod shedding;
mod timeouts;
mod tls;
mod tutorial;
mod upstream_connections;
mod upstream_http2;
mod upstream_proxy_protocol;
mod upstream_sockets;
mod upstream_tls;
mod watch;
