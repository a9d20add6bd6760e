//! Holds `src/` and the crates to docs/ARCHITECTURE.md: what a crate depends on, and which files
//! follow one another. Also, that no two files import each other, that features stay in their
//! rooms, that log lines have the targets that filters name, and that the pages of docs/ are a book
//! without dead links.
//!
//! Unit tests may know every module: files of tests, and what follows `#[cfg(test)]` with a module
//! in braces, are not looked at.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod book;
mod circles;
mod log_targets;
mod manifests;
mod rooms;
mod source;
mod walks;
