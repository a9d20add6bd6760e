//! x
mod diagnostics;
mod duration;
mod nearest;
mod schema;
mod yaml;
