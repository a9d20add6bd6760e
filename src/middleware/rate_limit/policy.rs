//! What holds on a route: its limits, and what becomes of a request that one of them denies.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use crate::middleware::Cors;
use crate::middleware::decoy::Shadow;
use crate::rules::LimitUse;

/// The limits of one route and how their decisions show.
#[derive(Clone, Debug)]
pub struct RoutePolicy {
    /// The route's name, which limits `per: route` count by.
    pub name: Arc<str>,
    /// The limits; a request takes from all of them or from none.
    pub limits: Vec<LimitUse>,
    /// What a denied request gets.
    pub on_denied: OnDenied,
    /// The header fields that tell a client where it stands.
    pub headers: HeaderForms,
    /// What pages of other origins may do; none where nothing is said of that.
    pub cors: Option<Arc<Cors>>,
}

/// What a denied request gets.
#[derive(Clone, Debug)]
pub enum OnDenied {
    /// An honest answer.
    Reject(Rejection),
    /// An invented one.
    Shadow(Arc<Shadow>),
}

/// An honest answer to a denied request; 429 with a problem document unless told otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The status.
    pub status: StatusCode,
    /// Fields to set, over those that Weir sets itself.
    pub headers: HeaderMap,
    /// The body; none for a problem document that names the violated limits.
    pub body: Option<Bytes>,
}

impl Default for Rejection {
    fn default() -> Self {
        Self {
            status: StatusCode::TOO_MANY_REQUESTS,
            headers: HeaderMap::new(),
            body: None,
        }
    }
}

/// Which header fields tell a client where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderForms {
    /// `RateLimit-Policy` and `RateLimit` of draft-ietf-httpapi-ratelimit-headers, from -08 on.
    pub draft: bool,
    /// `RateLimit-Limit`, `-Remaining` and `-Reset` of its -03.
    pub draft_03: bool,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`, the last in seconds from now.
    pub x_ratelimit: bool,
}

impl HeaderForms {
    /// No field at all.
    pub const NONE: Self = Self {
        draft: false,
        draft_03: false,
        x_ratelimit: false,
    };
}

/// The current draft's fields.
impl Default for HeaderForms {
    fn default() -> Self {
        Self {
            draft: true,
            ..Self::NONE
        }
    }
}
