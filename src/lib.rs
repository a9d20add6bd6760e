//! Weir: a rate-limiting reverse proxy, and the parts that it is made of.
//!
//! The binary puts these parts together; each of them stands on its own. To put limits on a tower
//! or axum service of yours, start at `middleware::RateLimitLayer`.
//!
//! Dependencies point inward only: [`time`] and [`limit`] are pure, [`store`] and [`rules`] build on
//! them, `middleware` on those, and only `config` and `app` know everybody.

pub mod accept;
pub mod app;
pub mod cli;
pub mod config;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod limit;
pub mod middleware;
pub mod problem;
pub mod proxy;
pub mod rules;
pub mod server;
pub mod store;
pub mod telemetry;
pub mod time;
