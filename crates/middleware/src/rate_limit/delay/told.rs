//! Tells clients how long their requests were delayed.

use std::time::Duration;

use super::Delay;
use crate::rate_limit::held::{Held, HeldResponse};

/// Adds the delay to a response of the service.
pub(in crate::rate_limit) struct ToldDelay(Duration);

impl ToldDelay {
    /// Tells that a request `waited`, if clients are told.
    pub(in crate::rate_limit) fn new(delay: &Delay, waited: Duration) -> Option<Box<Self>> {
        delay.server_timing.then(|| Box::new(Self(waited)))
    }
}

impl Held for ToldDelay {
    fn concealed(&mut self, response: &mut HeldResponse) {
        if let Ok(value) = format!("ratelimit;dur={}", self.0.as_millis()).parse() {
            response.head.headers_mut().append("server-timing", value);
        }
    }
}
