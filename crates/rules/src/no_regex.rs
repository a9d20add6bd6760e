//! Stands in for regular expressions in a limiter without the gateway: the type has no values.

use std::ops::Range;

/// A regular expression that matches a text from its beginning to its end. The feature `gateway`
/// brings them.
#[derive(Clone, Copy, Debug)]
pub enum AnchoredRegex {}

impl AnchoredRegex {
    /// Whether it matches a text.
    pub fn is_match(&self, _: &str) -> bool {
        match *self {}
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        match *self {}
    }

    pub(super) fn may_lack(&self, _: &str) -> bool {
        match *self {}
    }

    pub(super) fn group_names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.as_str())
    }

    pub(super) fn groups(&self, text: &str) -> Option<impl Iterator<Item = Range<usize>>> {
        self.is_match(text).then(|| std::iter::once(0..0))
    }
}
