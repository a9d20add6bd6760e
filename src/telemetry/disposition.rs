//! What became of a request.

use std::fmt;

/// What was decided about a request, all of its limits taken together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Disposition {
    /// Every limit that applied let it pass.
    Allowed,
    /// A limit denied it, or its sender is banned or blocked.
    Denied,
    /// The same, and a decoy answered.
    Shadowed,
    /// Its sender is banned or blocked, and another upstream answered.
    Diverted,
    /// Its sender is banned or blocked, and it was held before it was answered.
    Tarpitted,
    /// Its sender is banned or blocked, and it was not answered at all.
    Dropped,
    /// A limit denied it or a ban held, but its denials are not acted upon: a dry run.
    WouldDeny,
    /// No limit applied.
    Unlimited,
    /// The store was out of reach, and the request was let through undecided.
    FailedOpen,
    /// The store was out of reach, and the request was refused for it.
    Unavailable,
    /// It matched no route.
    Unrouted,
}

impl Disposition {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Allowed,
        Self::Denied,
        Self::Shadowed,
        Self::Diverted,
        Self::Tarpitted,
        Self::Dropped,
        Self::WouldDeny,
        Self::Unlimited,
        Self::FailedOpen,
        Self::Unavailable,
        Self::Unrouted,
    ];

    /// The word for it in logs and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Shadowed => "shadowed",
            Self::Diverted => "diverted",
            Self::Tarpitted => "tarpitted",
            Self::Dropped => "dropped",
            Self::WouldDeny => "would_deny",
            Self::Unlimited => "unlimited",
            Self::FailedOpen => "failed_open",
            Self::Unavailable => "unavailable",
            Self::Unrouted => "unrouted",
        }
    }

    /// Its place in [`Self::ALL`].
    pub(super) const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Disposition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
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
