//! What the tests stand on, beside the servers and clients of `weir-testing`: gateways, their
//! upstreams, and load.

use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) mod browser;
pub(crate) mod front;
pub(crate) mod gateway;
pub(crate) mod http2;
#[cfg(feature = "http3")]
pub(crate) mod http3;
mod load;
pub(crate) mod page;
pub(crate) mod pebble;
pub(crate) mod rate_limit_service;
pub(crate) mod recipe;
mod setup;
pub(crate) mod shell;
pub(crate) mod strict_upstream;
pub(crate) mod tap;
pub(crate) mod tls;
pub(crate) mod upstream;
mod websocket;

pub(crate) use weir_testing::client::{Client, Request, Response, get, post, put, request};
pub(crate) use weir_testing::sentinels::{PRIMARY, Sentinels};
pub(crate) use weir_testing::{
    PATIENCE, RedisCluster, RedisServer, eventually, free_port, promtool, refusing_address,
    uninterrupted,
};

pub(crate) use gateway::Gateway;
pub(crate) use load::{Answered, Load};
pub(crate) use setup::Setup;
pub(crate) use upstream::{Entrance, Upstream};
pub(crate) use websocket::WebSocket;

/// Seconds of a minute.
pub(crate) const MINUTE: u64 = 60;

/// Seconds of an hour.
pub(crate) const HOUR: u64 = 60 * MINUTE;

/// Waits until at least so many seconds are left of the minute or hour of the clock: once it has
/// turned, what was counted in it is an estimate.
pub(crate) fn until_left(seconds: u64, period: u64) {
    eventually("a minute or an hour that goes on", || {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        (now.as_secs() % period < period - seconds).then_some(())
    });
}
