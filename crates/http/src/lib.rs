//! HTTP helpers of several crates: addresses of clients, requests as layers pass them on, problem
//! documents, media types, names of header lines, hosts, lists in headers, sets of statuses.

#![forbid(unsafe_code)]

pub mod address;
pub mod header_name;
pub mod host;
pub mod line;
pub mod list;
pub mod media_type;
pub mod problem;
pub mod request;
pub mod status_set;
