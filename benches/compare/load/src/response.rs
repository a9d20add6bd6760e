//! A response of the proxy, as it is counted.

use std::time::Instant;

pub struct Response {
    /// When the request was sent, or was meant to be.
    pub began: Instant,
    pub status: u16,
}
