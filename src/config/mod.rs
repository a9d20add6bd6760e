//! The configuration: YAML files in, settings of the other modules out, or every error at once.
//!
//! [`load()`] reads `gateway.yaml` and the two files of its limits folder. What may be written is
//! in `schema`, plain types without logic; what runs is in [`Settings`]; `lower` leads from the
//! one to the other, and never stops at the first error.

mod admin_token;
mod byte_size;
mod diagnostics;
mod duration;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod inputs;
mod load;
mod lower;
mod nearest;
mod schema;
mod settings;
#[cfg(test)]
pub(crate) mod tests;
mod until;
mod warnings;
mod yaml;

pub use admin_token::AdminToken;
pub use byte_size::{ByteSize, ByteSizeError};
pub use diagnostics::{Diagnostic, Diagnostics, Location, Severity};
pub use duration::{HumanDuration, HumanDurationError};
pub use inputs::{Inputs, Stamps};
pub use load::{LoadResult, check, load, read, read_in_memory};
pub use settings::{
    Listener, Parameters, ProcessSettings, RedisStore, Route, Settings, StoreSettings, Upstream,
};
pub use until::{NotADate, Until};

pub(crate) use diagnostics::counted;
pub(crate) use nearest::suggest;
