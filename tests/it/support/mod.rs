//! What the tests stand on: gateways, upstreams, clients, Redis servers, and patience.

pub(crate) mod browser;
pub(crate) mod client;
mod eventually;
pub(crate) mod gateway;
pub(crate) mod http2;
mod load;
pub(crate) mod pebble;
pub(crate) mod promtool;
pub(crate) mod recipe;
#[path = "redis_cluster.rs"]
pub(crate) mod redis_cluster;
#[path = "redis_server.rs"]
pub(crate) mod redis_server;
pub(crate) mod sentinels;
mod setup;
pub(crate) mod strict_upstream;
pub(crate) mod tap;
pub(crate) mod tls;
pub(crate) mod upstream;
mod websocket;

pub(crate) use client::{Client, Request, Response, get, post, put, request};
pub(crate) use eventually::{PATIENCE, eventually};
pub(crate) use gateway::Gateway;
pub(crate) use load::{Answered, Load};
pub(crate) use redis_cluster::RedisCluster;
pub(crate) use redis_server::RedisServer;
pub(crate) use setup::Setup;
pub(crate) use upstream::{Entrance, Upstream};
pub(crate) use websocket::WebSocket;
