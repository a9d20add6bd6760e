//! Redirects what came in plain text to HTTPS, on listeners that are there for that.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, request};
use http_body_util::Full;

use super::redirect::Redirect;
use super::{ClientIdentity, RequestHead};

/// In a request's extensions: it came by a listener that redirects to HTTPS.
#[derive(Clone, Debug)]
pub struct HttpsRedirect(pub Arc<Redirect>);

impl HttpsRedirect {
    /// The response to a request that is redirected; a part of the [`Refusal`](crate::Refusal) where
    /// some listener redirects.
    pub fn response(head: &request::Parts) -> Option<Response<Full<Bytes>>> {
        let Self(redirect) = head.extensions.get()?;
        // What a trusted proxy was sent by HTTPS is there already, and would come back for ever.
        let is_secure = ClientIdentity::from_extensions(&head.extensions)
            .is_some_and(|identity| identity.secure);
        (!is_secure).then(|| redirect.respond(&RequestHead::from(head).attributes()))
    }
}
