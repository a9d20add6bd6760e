//! Regular expressions for paths, where a pattern is not enough.

use super::path_pattern::{Captures, Names, PathPattern, Spans};
use crate::AnchoredRegex;

/// A regular expression that a route's paths match in normal form, beside its pattern. Its named
/// groups capture, as the segments of the pattern do.
#[derive(Clone, Debug)]
pub struct PathRegex {
    regex: AnchoredRegex,
    /// The names of the pattern, then those of the groups.
    names: Names,
}

impl PathRegex {
    /// An expression for paths that this pattern matches.
    pub fn new(regex: AnchoredRegex, pattern: &PathPattern) -> Self {
        let groups = regex.group_names().into_iter().map(Into::into);
        let names = pattern.names.iter().cloned().chain(groups).collect();
        Self { regex, names }
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        self.regex.as_str()
    }

    /// The names of all that is captured, also by the pattern.
    pub fn capture_names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|name| &**name)
    }

    /// Whether a path can match that has nothing in the group of this name.
    pub(super) fn may_lack(&self, group: &str) -> bool {
        self.regex.group_names().contains(&group) && self.regex.may_lack(group)
    }

    /// The captures of a path in normal form that the pattern matches; `None` if the expression
    /// does not match it.
    pub(super) fn captures(&self, pattern: &PathPattern, path: &str) -> Option<Captures> {
        if self.names.is_empty() {
            return self.regex.is_match(path).then(Captures::default);
        }
        let groups = self.regex.and_groups(path, Spans::new())?;
        let spans = pattern.spans(path).into_iter().chain(groups).collect();
        Some(Captures::new(&self.names, path, spans))
    }
}
