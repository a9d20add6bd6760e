//! The configuration: YAML files in, settings of the other modules out, or every error at once.
//!
//! [`load()`] reads `gateway.yaml` and the two files of its limits folder. There is a folder for
//! limits, for routes, for who is kept out, and for the gateway as a whole. What may be written is in
//! the `schema` of each, plain types without logic; what runs is in [`Settings`]; the rest of a
//! folder leads from the one to the other, with what `weir-yaml` provides, and never stops at the
//! first error. A feature has all three beside its code, in `config.rs`, or here in one file of its
//! name.

#![forbid(unsafe_code)]

mod access;
mod addresses;
mod admin_address;
mod capability;
mod certificates;
mod defaults;
mod foreign;
pub mod gateway;
mod limits;
mod load;
mod lowered_steps;
mod named;
mod routes;
mod secret;
mod settings;
mod shown;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod until;

pub use admin_address::admin_address;
pub use defaults::FileSchemas;
pub use gateway::listen::Listener;
pub use gateway::process::{ProcessSettings, RedisStore, StoreSettings};
pub use limits::OverrideCheck;
#[cfg(any(test, fuzzing, feature = "fuzzing"))]
pub use load::fuzz_configuration;
pub use load::{LoadResult, check, check_with, load, read, read_in_memory};
pub use settings::*;
pub use until::Until;
