//! Holds `src/` and the crates to docs/ARCHITECTURE.md: who may know whom as far as Cargo does not
//! say it, which files follow one another, and
//! that no two files import each other.
//!
//! Unit tests may know every module: files of tests, and what follows `#[cfg(test)]` with a module
//! in braces, are not looked at.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod circles;
mod source;
mod table;
mod walks;
