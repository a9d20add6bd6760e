//! Tells browsers that asked by HTTPS to stay there (RFC 6797).

#[cfg(feature = "config")]
mod config;

use http::HeaderValue;
use http::header::STRICT_TRANSPORT_SECURITY;

use crate::steps::response_step::{Outgoing, Phase, PreparedStep, ResponseStep};
use crate::{ClientIdentity, RequestHead};
#[cfg(feature = "config")]
pub use config::HstsKeys;

/// What browsers are told: the value of `Strict-Transport-Security`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hsts(pub HeaderValue);

impl ResponseStep for Hsts {
    fn phase(&self) -> Phase {
        Phase::OwnFields
    }

    fn prepare(&self, request: &RequestHead<'_>) -> Option<Box<dyn PreparedStep>> {
        let identity = ClientIdentity::from_extensions(request.extensions);
        let is_secure = identity.is_some_and(|identity| identity.secure);
        is_secure.then(|| Box::new(self.clone()) as Box<dyn PreparedStep>)
    }
}

impl PreparedStep for Hsts {
    /// The app's own takes precedence.
    fn apply(self: Box<Self>, response: &mut Outgoing) {
        let headers = response.head.headers_mut();
        headers.entry(STRICT_TRANSPORT_SECURITY).or_insert(self.0);
    }
}
