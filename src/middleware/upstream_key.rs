//! What a request's server is chosen by, where that is a hash of its subject.

use http::request;

use super::RequestContext;
use super::identify::ClientIdentity;
use crate::rules::{Captures, RequestAttributes, SubjectHash};
use crate::time::Timestamp;

/// The number of the request's subject; none if it lacks what the subject consists of.
pub fn upstream_key(hash: &SubjectHash, head: &request::Parts) -> Option<u64> {
    let identity = ClientIdentity::of(&head.extensions);
    let routed = RequestContext::routed(&head.extensions);
    let no_captures = Captures::default();
    hash.of(&RequestAttributes {
        method: &head.method,
        uri: &head.uri,
        headers: &head.headers,
        client: identity.map_or(ClientIdentity::UNKNOWN, |identity| identity.client.address),
        account: identity.and_then(|identity| identity.account.as_ref()),
        route: routed.map_or("", |routed| routed.route.name()),
        captures: routed.map_or(&no_captures, |routed| &routed.captures),
        // No subject depends on it.
        now: Timestamp::from_nanos(0),
    })
}
