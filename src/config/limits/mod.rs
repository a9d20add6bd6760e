//! Limits: what may be written of them, and what comes of it.

mod quota;
pub(super) mod schema;
mod table;
mod usage;
mod warnings;

pub(super) use quota::enforcement;
pub(super) use table::{LimitFiles, LimitTable, key_sources, limits};
pub(super) use usage::{limit_use, status_set};
pub(super) use warnings::warn_of_limits;
