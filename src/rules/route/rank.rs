//! How specific a route is.

use std::cmp::Reverse;

use super::RouteMatcher;
use super::path_pattern::{PathPattern, Segment};

/// How specific a route is among those of the same host; the greatest is asked first.
///
/// The order of the fields is the precedence.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    path: PathRank,
    has_methods: bool,
    headers: usize,
    written: Reverse<usize>,
}

/// How specific a path pattern is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PathRank {
    /// With paths below: the longer, the more specific; then the one that is literal further.
    Prefix(usize, Vec<bool>),
    /// With captures. Patterns of different lengths never match the same path.
    Pattern(Vec<bool>),
    /// This path only.
    Exact,
}

impl Rank {
    pub(super) fn of(route: &RouteMatcher, written: usize) -> Self {
        Self {
            path: PathRank::of(&route.path),
            has_methods: !route.methods.is_empty(),
            headers: route.headers.len(),
            written: Reverse(written),
        }
    }
}

impl PathRank {
    fn of(path: &PathPattern) -> Self {
        let is_literal = |segment: &Segment| matches!(segment, Segment::Literal(_));
        let literal: Vec<_> = path.segments.iter().map(is_literal).collect();
        if path.open {
            Self::Prefix(literal.len(), literal)
        } else if path.names.is_empty() {
            Self::Exact
        } else {
            Self::Pattern(literal)
        }
    }
}
