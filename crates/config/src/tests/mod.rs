//! Loading whole configurations.

mod acme;
mod balancing;
mod bans;
mod boulder;
mod compression;
mod concurrency;
mod cors;
mod counting;
mod decide;
mod defaults;
mod documented;
mod envoy;
mod errors;
mod http3;
mod https;
mod in_flight;
mod in_kernel;
pub(crate) mod json_schema;
mod loading;
mod log_fields;
mod prefetch;
mod redis;
mod reference;
mod routing;
mod timeouts_and_bodies;
mod tls;
mod upstreams;
mod warnings;

use std::fs;

use tempfile::TempDir;

use super::*;
use crate::testing::{DEFAULTS, Folder, SMALLEST, key};
