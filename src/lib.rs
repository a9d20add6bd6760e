//! Weir: a rate-limiting reverse proxy, and its limiter as a tower layer.
//!
//! To limit a tower or axum service of your own, start at [`middleware::RateLimitLayer`], without
//! the feature `gateway`. The features `redis`, `jwt` and `decoys` add a store that several
//! processes share, accounts named by verified tokens, and shadow bans.
//!
//! With the feature `gateway`, the default, the package is also the command `weir`. Its layers,
//! upstream connections and configuration are not part of the library's interface.

#![forbid(unsafe_code)]

#[cfg(feature = "gateway")]
mod app;
#[cfg(feature = "gateway")]
pub mod cli;
#[cfg(all(feature = "gateway", any(test, fuzzing)))]
pub mod fuzzing;
#[cfg(feature = "internals")]
pub mod internals;
pub mod limit;
pub mod middleware;
pub mod rules;
pub mod store;
pub mod telemetry;

pub use weir_limit::time;
