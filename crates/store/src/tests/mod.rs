//! The contract that every store must keep, and what the tests of stores share.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    missing_docs,
    reason = "a test that meets what it does not expect fails; names of tests are sentences"
)]

pub mod contract;
pub mod definitions;
pub mod laws;
pub mod lease_contract;
pub mod support;
pub mod window_contract;
