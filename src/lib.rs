//! Weir: a rate-limiting reverse proxy, and the parts that it is made of.
//!
//! The binary puts these parts together; each of them stands on its own. To put limits on a tower
//! or axum service of yours, start at `middleware::RateLimitLayer`.
//!
//! Dependencies point inward only: [`time`] and [`limit`] are pure, [`store`] and [`rules`] build on
//! them, `middleware` on those, and only `config` and `app` know everybody.

// The library's features leave out what calls some of what they share with the gateway.
#![cfg_attr(not(feature = "gateway"), allow(dead_code))]

#[cfg(feature = "gateway")]
pub mod accept;
#[cfg(feature = "gateway")]
pub mod app;
#[cfg(feature = "gateway")]
pub mod cli;
#[cfg(feature = "gateway")]
pub mod config;
#[cfg(all(feature = "gateway", any(test, fuzzing)))]
pub mod fuzzing;
pub mod limit;
pub mod middleware;
pub mod problem;
#[cfg(feature = "gateway")]
pub mod proxy;
pub mod rules;
#[cfg(feature = "gateway")]
pub mod server;
pub mod store;
pub mod telemetry;
pub mod time;
