//! The outcome of a request: its id, the decision, and the upstream's part. The proxy leaves its
//! part in the response's extensions, for the access log and the metrics.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use http::{HeaderName, HeaderValue, StatusCode};
use parking_lot::Mutex;
use tokio::time::Instant;
use weir_limit::Priority;
use weir_limit::time::Timestamp;

/// Defines an enum whose variants have a word each in logs and metrics.
macro_rules! words {
    (
        $(#[$attribute:meta])*
        pub enum $name:ident {
            $($(#[$of_variant:meta])* $variant:ident = $word:literal,)+
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$of_variant])* $variant,)+
        }

        impl $name {
            /// All of them.
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            /// The word for it in logs and metrics.
            #[inline]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }
    };
}

pub(crate) use words;

/// The id of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestId {
    /// The header that it is sent in, to the upstream and back to the client.
    pub header: HeaderName,
    /// The id: visible ASCII that needs no escapes in JSON and in HTML.
    pub value: HeaderValue,
}

impl RequestId {
    /// The id as text.
    pub fn text(&self) -> &str {
        self.value.to_str().unwrap_or_default()
    }
}

words! {
    /// The decision about a request, by all of its limits together.
    #[non_exhaustive]
    pub enum Disposition {
        /// Every limit that applied let it pass.
        Allowed = "allowed",
        /// Every limit let it pass, after it had waited for its turn.
        Delayed = "delayed",
        /// A limit denied it, or its client is banned or blocked.
        Denied = "denied",
        /// The same, and the response was a decoy.
        Shadowed = "shadowed",
        /// Its client is banned or blocked, and the response was of another upstream.
        Diverted = "diverted",
        /// Its client is banned or blocked, and the response was delayed.
        Tarpitted = "tarpitted",
        /// Its client is banned or blocked, and there was no response.
        Dropped = "dropped",
        /// A limit denied it or a ban held, but its denials are not acted upon: a dry run.
        WouldDeny = "would_deny",
        /// No limit applied.
        Unlimited = "unlimited",
        /// The store was out of reach, and the request was let through undecided.
        FailedOpen = "failed_open",
        /// The store was out of reach, and the request was refused for it.
        Unavailable = "unavailable",
        /// It matched no route.
        Unrouted = "unrouted",
        /// Its upstream, or the gateway itself, had too much to do.
        Shed = "shed",
    }
}

/// The decision about a request; it travels in the response's extensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The decision.
    pub disposition: Disposition,
    /// The strictest limit that denied.
    pub denied_by: Option<Arc<str>>,
    /// The ban that held, or would hold if it were acted upon.
    pub banned_by: Option<Arc<str>>,
    /// The list that the client is on: `allow` or `block`.
    pub listed: Option<&'static str>,
    /// The stand-in that decided, if the store did not.
    pub decided_by: Option<&'static str>,
    /// The time that the store took, if it was called.
    pub store: Option<Duration>,
    /// The time that the request was delayed.
    pub delay: Option<Duration>,
    /// The client's requests in flight, if a limit on those applied.
    pub in_flight: Option<u64>,
    /// The part that had too much to do for the request, if it was shed, or would be without a dry run.
    pub shed: Option<Shed>,
    /// The time of the decision, if limits or bans were checked.
    pub decided_at: Option<Timestamp>,
    /// The client's state with the strictest limit, for the access log.
    pub strictest: Option<Strictest>,
}

/// Where a request stands with the strictest of its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strictest {
    /// The units that it took, or, denied, asked for.
    pub cost: u32,
    /// The units that are left.
    pub remaining: u64,
}

/// Why a request was shed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shed {
    /// `upstream` or `gateway`.
    pub by: &'static str,
    /// The priority of the request.
    pub priority: Priority,
}

impl Verdict {
    /// A verdict without limits and store.
    pub fn new(disposition: Disposition) -> Self {
        Self {
            disposition,
            denied_by: None,
            banned_by: None,
            listed: None,
            decided_by: None,
            store: None,
            delay: None,
            in_flight: None,
            shed: None,
            decided_at: None,
            strictest: None,
        }
    }

    /// Whether a ban or the block list keeps the request out, or the allow list lets it in: no bucket
    /// that others share was asked.
    #[inline]
    pub fn is_of_access(&self) -> bool {
        let is_banned = self.banned_by.is_some() && self.disposition != Disposition::WouldDeny;
        is_banned || self.listed.is_some()
    }

    /// The name of the limit or ban that denied, or would have.
    pub fn decider(&self) -> Option<&Arc<str>> {
        self.denied_by.as_ref().or(self.banned_by.as_ref())
    }

    /// Takes over what a dry run has marked, unless it has a mark of its own.
    #[inline]
    pub fn take_mark(&mut self, other: &Self) {
        self.shed = self.shed.or(other.shed);
    }
}

words! {
    /// The kind of a listener, by where its requests go.
    pub enum ListenerKind {
        /// It forwards them, or answers them itself.
        Forward = "forward",
        /// It decides about them, and another proxy forwards them.
        Decide = "decide",
    }
}

impl ListenerKind {
    /// The word for it in logs and metrics, which have none for the usual kind.
    #[inline]
    pub const fn shown(self) -> Option<&'static str> {
        match self {
            Self::Forward => None,
            Self::Decide => Some(self.as_str()),
        }
    }
}

/// What a disposition says of its request beside the decision.
#[derive(Clone, Copy)]
struct Meaning {
    /// It was kept from its upstream.
    is_refused: bool,
    /// A limit, a ban or a list did that.
    is_denied: bool,
    /// It was made to wait on purpose.
    is_made_to_wait: bool,
    /// It was shed.
    is_shed: bool,
    /// The same requests would get it again by the same rules.
    is_reproducible: bool,
}

const PASSES: Meaning = Meaning {
    is_refused: false,
    is_denied: false,
    is_made_to_wait: false,
    is_shed: false,
    is_reproducible: true,
};

const REFUSED: Meaning = Meaning {
    is_refused: true,
    ..PASSES
};

const DENIED: Meaning = Meaning {
    is_denied: true,
    ..REFUSED
};

impl Disposition {
    /// The table of dispositions, whose columns are asked below.
    const fn meaning(self) -> Meaning {
        match self {
            Self::Allowed | Self::WouldDeny | Self::Unlimited | Self::Unrouted => PASSES,
            Self::FailedOpen => Meaning {
                is_reproducible: false,
                ..PASSES
            },
            Self::Delayed => Meaning {
                is_made_to_wait: true,
                ..PASSES
            },
            Self::Denied | Self::Diverted | Self::Dropped => DENIED,
            Self::Shadowed | Self::Tarpitted => Meaning {
                is_made_to_wait: true,
                ..DENIED
            },
            Self::Unavailable => Meaning {
                is_reproducible: false,
                ..REFUSED
            },
            Self::Shed => Meaning {
                is_shed: true,
                is_reproducible: false,
                ..REFUSED
            },
        }
    }

    /// Whether limits, bans and lists let the request through.
    pub const fn lets_through(self) -> bool {
        !self.meaning().is_refused
    }

    /// Whether a limit, a ban or a list kept the request from its upstream.
    pub const fn is_denied(self) -> bool {
        self.meaning().is_denied
    }

    /// Whether the request was made to wait on purpose, whatever became of it.
    pub const fn is_made_to_wait(self) -> bool {
        self.meaning().is_made_to_wait
    }

    /// Whether the same requests would get it again by the same rules: it is not due to how things
    /// stood at the moment, as where the store was out of reach or too much was to do.
    pub const fn is_reproducible(self) -> bool {
        self.meaning().is_reproducible
    }

    /// Whether the request was shed.
    pub const fn is_shed(self) -> bool {
        self.meaning().is_shed
    }

    /// The disposition with this word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_str() == word)
    }

    pub(super) const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Disposition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The response of an upstream server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamOutcome {
    /// The server, as `host:port`.
    pub server: Arc<str>,
    /// The status of the response.
    pub status: StatusCode,
    /// The time that connecting took, also to servers in vain; `None` on a kept-alive connection.
    pub connect: Option<Duration>,
    /// When the request arrived at the proxy.
    pub arrived: Instant,
    /// The time from the request's arrival at the proxy to the head of the response.
    pub head: Duration,
}

/// The failure of all upstream servers; the response is of the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamFailed {
    /// Why, in a word from a small fixed set, such as `connect` or `response_timeout`.
    pub reason: &'static str,
}

/// The tunnel that a request has become: the line of the access log is written at its end. Clones
/// are the same tunnel.
#[derive(Clone, Default)]
pub struct Tunnel {
    traffic: Arc<Traffic>,
    held: Arc<Mutex<Option<Box<dyn Any + Send>>>>,
}

/// The traffic of a tunnel.
#[derive(Debug, Default)]
pub struct Traffic {
    sent: AtomicU64,
    received: AtomicU64,
    complete: AtomicBool,
    broken: AtomicBool,
}

impl Tunnel {
    /// Its traffic.
    pub fn traffic(&self) -> &Arc<Traffic> {
        &self.traffic
    }

    /// Keeps `what`, which must not know the tunnel itself, until the tunnel ends.
    pub fn hold(&self, what: impl Send + 'static) {
        *self.held.lock() = Some(Box::new(what));
    }

    /// Ends the tunnel, unless it is dropped first.
    pub fn end(self) {
        // It is dropped without the lock, as that may take its time.
        let held = self.held.lock().take();
        drop(held);
    }
}

impl fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let traffic = &self.traffic;
        f.debug_struct("Tunnel")
            .field("traffic", traffic)
            .finish_non_exhaustive()
    }
}

impl Traffic {
    /// Bytes went to the client.
    pub fn sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Relaxed);
    }

    /// Bytes came from the client.
    pub fn received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Relaxed);
    }

    /// Neither side broke it off.
    pub fn complete(&self) {
        self.complete.store(true, Relaxed);
    }

    /// It is broken off. Call it before the client's end is dropped, so that what closes that end
    /// knows that this is no end in order.
    pub fn break_off(&self) {
        self.broken.store(true, Relaxed);
    }

    /// Whether it was broken off.
    pub fn is_broken(&self) -> bool {
        self.broken.load(Relaxed)
    }

    /// Bytes to the client so far, and from it.
    pub fn bytes(&self) -> (u64, u64) {
        (self.sent.load(Relaxed), self.received.load(Relaxed))
    }

    /// Whether it is over, and neither side broke it off.
    pub fn is_complete(&self) -> bool {
        self.complete.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_disposition_is_at_its_index() {
        for (index, disposition) in Disposition::ALL.into_iter().enumerate() {
            assert_eq!(disposition.index(), index, "{disposition}");
        }
    }
}
