//! Regular expressions as routes ask them. What compiles them takes libraries that a limiter does
//! without; the gateway has `weir-regex` for that.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A compiled expression, which matches a text from its beginning to its end.
pub trait Expression: fmt::Debug + Send + Sync {
    /// Whether it matches a text.
    fn is_match(&self, text: &str) -> bool;

    /// As it was written.
    fn as_str(&self) -> &str;

    /// The names of its groups, in order.
    fn group_names(&self) -> Vec<&str>;

    /// Passes on the ranges of its named groups in a text, in order, an empty one for a group that
    /// takes no part. False if it does not match the text.
    fn groups(&self, text: &str, found: &mut dyn FnMut(Range<usize>)) -> bool;

    /// Whether it can match a text that has nothing in the group of this name.
    fn may_lack(&self, group: &str) -> bool;
}

/// A regular expression that matches a text from its beginning to its end.
#[derive(Clone, Debug)]
pub struct AnchoredRegex(Arc<dyn Expression>);

impl AnchoredRegex {
    /// An expression that is compiled.
    pub fn new(compiled: impl Expression + 'static) -> Self {
        Self(Arc::new(compiled))
    }

    /// Whether it matches a text.
    pub fn is_match(&self, text: &str) -> bool {
        self.0.is_match(text)
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// Whether it can match a text that has nothing in the group of this name.
    pub fn may_lack(&self, group: &str) -> bool {
        self.0.may_lack(group)
    }

    pub(super) fn group_names(&self) -> Vec<&str> {
        self.0.group_names()
    }

    /// The ranges of the named groups behind those that are there; `None` if it does not match.
    pub(super) fn and_groups<R>(&self, text: &str, mut ranges: R) -> Option<R>
    where
        R: Extend<Range<usize>>,
    {
        let is_match = self.0.groups(text, &mut |range| ranges.extend([range]));
        is_match.then_some(ranges)
    }
}
