//! What responses of a listener say of its other services (`Alt-Svc`, RFC 7838).

use std::num::NonZeroU16;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::HeaderValue;

/// What clients are told of the service that a listener has beside TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AltService {
    /// It is there no more.
    Withdrawn,
    /// It is there.
    Announced {
        /// The port that clients reach, if not the listener's.
        port: Option<NonZeroU16>,
        /// For how long they remember it.
        max_age: Duration,
        /// Whether they may send requests to it before the handshake ends.
        early_data: bool,
    },
}

/// The `Alt-Svc` of a listener's responses; none until it is set.
#[derive(Clone, Debug, Default)]
pub struct AltSvc(Arc<OnceLock<HeaderValue>>);

impl AltSvc {
    /// Announces a protocol by its name of ALPN, at this port of the same host, which clients may
    /// remember for this long.
    pub fn announce(&self, protocol: &str, port: u16, age: Duration) {
        let value = format!("{protocol}=\":{port}\"; ma={}", age.as_secs());
        if let Ok(value) = HeaderValue::try_from(value) {
            self.set(value);
        }
    }

    /// Makes clients forget what was announced before (RFC 7838, section 3).
    pub fn clear(&self) {
        self.set(HeaderValue::from_static("clear"));
    }

    /// The first value stays: a listener never changes what it serves.
    fn set(&self, value: HeaderValue) {
        let _ = self.0.set(value);
    }

    pub(super) fn value(&self) -> Option<&HeaderValue> {
        self.0.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_silent_until_it_has_something_to_tell_and_then_names_the_port_and_the_age() {
        let alt_svc = AltSvc::default();
        assert_eq!(alt_svc.value(), None);
        alt_svc.announce("h3", 8443, Duration::from_secs(3600));
        assert_eq!(alt_svc.value().unwrap(), "h3=\":8443\"; ma=3600");
    }
}
