//! A deterministic simulation of gateways, Redis servers and clients.

pub mod explore;
pub mod laws;
pub mod random;
pub mod redis;
pub mod scenario;
pub mod shrink;
pub mod timeline;
pub mod trace;
pub mod world;
