//! What the banned and the blocked get.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use crate::middleware::Rejection;
use crate::middleware::decoy::Decoy;

/// What a request gets whose sender is banned or blocked. In no case does its route's upstream see
/// it.
#[derive(Clone, Debug)]
pub enum Treatment {
    /// An honest answer.
    Reject(Rejection),
    /// An invented one.
    Shadow(Arc<Decoy>),
    /// The answer of another upstream.
    Divert(Diversion),
    /// Nothing for a while, and an honest answer then.
    Tarpit(Tarpit),
    /// No answer: the connection is closed. Of a connection of HTTP/2, which other clients of the
    /// same proxy may share, only the stream is reset.
    Drop,
}

/// Another upstream, by its place in the order of upstreams; it travels in a request's extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Diversion(pub usize);

/// How requests are held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tarpit {
    /// For how long.
    pub hold: Duration,
    /// How many are held at the most, those of all tarpits together. Who is one too many gets the
    /// answer at once.
    pub most: NonZeroU32,
    /// The answer that ends it.
    pub rejection: Rejection,
}
