//! The simulator's Redis beside a real `redis-server`: the same bytes in, the same bytes out.
//!
//! `WEIR_SIM_REDIS_SEEDS` says how many random sequences each test runs, and
//! `WEIR_SIM_REDIS_SEED` with which one it begins.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test that meets what it does not expect fails"
)]

mod cluster;
mod commands;
mod conditions;
mod connections;
mod peers;
mod properties;
mod replica;
mod rights;
mod sentinel;
mod sequences;
mod store;
