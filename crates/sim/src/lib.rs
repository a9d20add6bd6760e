//! A deterministic simulation of gateways, Redis servers and clients.

#![allow(
    missing_docs,
    reason = "the simulator is a tool, and no library to build on"
)]

pub mod explore;
pub mod laws;
pub mod random;
pub mod redis;
pub mod scenario;
pub mod shrink;
pub mod timeline;
pub mod trace;
pub mod world;
