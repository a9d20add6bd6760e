//! Path patterns, prepared so that those that begin otherwise are never compared.

use std::cmp::Reverse;

use smallvec::SmallVec;

use super::path_pattern::{PathPattern, Segment, Segments, folded, segments};
use crate::normal_path::{normal_path, separated_path};

/// Values by path pattern. A look-up walks down the path's segments, and costs the same however
/// many patterns there are.
#[derive(Clone, Debug)]
pub(super) struct PathTree<T> {
    /// For patterns that end here.
    closed: Vec<T>,
    /// For patterns that end here with `/*`.
    open: Vec<T>,
    /// In their order: most places have few, which a comparison finds sooner than a hash.
    literal: Vec<(Box<str>, PathTree<T>)>,
    captured: Option<Box<PathTree<T>>>,
}

/// The values whose patterns match a path. Either list has those first whose patterns are literal further.
struct Matches<'t, T> {
    closed: SmallVec<[&'t [T]; 2]>,
    /// With the number of their segments.
    open: SmallVec<[(usize, &'t [T]); 4]>,
}

impl<T> Default for PathTree<T> {
    fn default() -> Self {
        Self {
            closed: Vec::new(),
            open: Vec::new(),
            literal: Vec::new(),
            captured: None,
        }
    }
}

impl<T> PathTree<T> {
    /// Adds a value, behind those with the same pattern.
    pub(super) fn insert(&mut self, pattern: &PathPattern, value: T) {
        let end = pattern
            .segments
            .iter()
            .fold(self, |tree, segment| match segment {
                Segment::Literal(text) => tree.below(&folded(text)),
                Segment::Captured => tree.captured.get_or_insert_default(),
            });
        match pattern.open {
            true => end.open.push(value),
            false => end.closed.push(value),
        }
    }

    fn below(&mut self, segment: &str) -> &mut Self {
        let index = self.position(segment).unwrap_or_else(|index| {
            self.literal
                .insert(index, (segment.into(), Self::default()));
            index
        });
        #[expect(
            clippy::indexing_slicing,
            reason = "it is where it was found or just inserted"
        )]
        &mut self.literal[index].1
    }

    fn position(&self, segment: &str) -> Result<usize, usize> {
        self.literal
            .binary_search_by(|(literal, _)| (**literal).cmp(segment))
    }

    /// Calls `take` with the values whose patterns match a path in normal form that is [`folded`],
    /// and returns its first result. `take` has to compare the case itself where that matters.
    ///
    /// Patterns that end with the path go first, then the longest with paths below; of equally long
    /// ones those that are literal further.
    pub(super) fn find_map<'t, R>(
        &'t self,
        path: &str,
        mut take: impl FnMut(&'t T) -> Option<R>,
    ) -> Option<R> {
        let mut matches = Matches {
            closed: SmallVec::new(),
            open: SmallVec::new(),
        };
        self.descend(segments(path), 0, &mut matches);
        let mut first = |values: &'t [T]| values.iter().find_map(&mut take);
        let closed = matches.closed.iter().find_map(|values| first(values));
        closed.or_else(|| {
            matches.open.sort_by_key(|(depth, _)| Reverse(*depth));
            matches.open.iter().find_map(|(_, values)| first(values))
        })
    }

    fn descend<'t>(&'t self, mut rest: Segments<'_>, depth: usize, matches: &mut Matches<'t, T>) {
        if !self.open.is_empty() {
            matches.open.push((depth, &self.open));
        }
        let Some(segment) = rest.next() else {
            matches.closed.push(&self.closed);
            return;
        };
        if let Some((_, tree)) = self
            .position(segment)
            .ok()
            .and_then(|at| self.literal.get(at))
        {
            tree.descend(rest.clone(), depth + 1, matches);
        }
        if let Some(tree) = &self.captured {
            tree.descend(rest, depth + 1, matches);
        }
    }
}

/// Patterns of paths.
#[derive(Clone, Debug, Default)]
pub struct PathSet {
    patterns: PathTree<()>,
    is_filled: bool,
}

impl PathSet {
    /// Whether one of the patterns matches a request's path, by one of its normal forms.
    pub fn matches(&self, path: &str) -> bool {
        let is_in = |path: &str| {
            let found = self.patterns.find_map(&folded(path), |()| Some(()));
            found.is_some()
        };
        self.is_filled
            && (is_in(&normal_path(path)) || separated_path(path).is_some_and(|path| is_in(&path)))
    }

    /// Whether there are no patterns.
    pub fn is_empty(&self) -> bool {
        !self.is_filled
    }
}

impl FromIterator<PathPattern> for PathSet {
    fn from_iter<T: IntoIterator<Item = PathPattern>>(patterns: T) -> Self {
        let mut set = Self::default();
        for pattern in patterns {
            set.patterns.insert(&pattern, ());
            set.is_filled = true;
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The patterns that match a path, in their order.
    fn matching(patterns: &[&'static str], path: &str) -> Vec<&'static str> {
        let mut tree = PathTree::default();
        for &pattern in patterns {
            tree.insert(&PathPattern::parse(pattern).unwrap(), pattern);
        }
        let mut matches = Vec::new();
        let none: Option<()> = tree.find_map(path, |&pattern| {
            matches.push(pattern);
            None
        });
        assert_eq!(none, None);
        matches
    }

    #[test]
    fn a_prefix_is_a_path_and_all_below_it() {
        for path in ["/api", "/api/x", "/api/x/y"] {
            assert_eq!(matching(&["/api/*"], path), ["/api/*"], "{path}");
        }
        assert!(matching(&["/api/*"], "/apix").is_empty());
        assert!(matching(&["/api/*"], "/").is_empty());
        assert_eq!(matching(&["/*"], "/"), ["/*"]);
        assert_eq!(matching(&["/*"], "/a/b"), ["/*"]);
    }

    #[test]
    fn a_capture_is_one_whole_segment() {
        let invites = "/teams/{team}/invites";
        assert_eq!(matching(&[invites], "/teams/red/invites"), [invites]);
        for path in [
            "/teams/invites",
            "/teams/a/b/invites",
            "/teams/a",
            "/teams/a/invites/1",
        ] {
            assert!(matching(&[invites], path).is_empty(), "{path}");
        }
        let below = "/teams/{team}/*";
        assert_eq!(matching(&[below], "/teams/red"), [below]);
        assert_eq!(matching(&[below], "/teams/red/a/b"), [below]);
        assert!(matching(&[below], "/teams").is_empty());
    }

    #[test]
    fn all_that_match_come_in_order() {
        let ordered = [
            "/a/b", "/a/{x}", "/{x}/b", "/{x}/{y}", "/a/b/*", "/a/{x}/*", "/{x}/b/*", "/a/*",
            "/{x}/*", "/*",
        ];
        assert_eq!(matching(&ordered, "/a/b"), ordered);
        let mut reversed = ordered;
        reversed.reverse();
        assert_eq!(matching(&reversed, "/a/b"), ordered);
    }

    #[test]
    fn a_path_is_found_however_it_is_spelt() {
        let patterns = ["/wp-login.php", "/.git/*", "/{app}/phpinfo.php"];
        let set: PathSet = patterns
            .iter()
            .map(|pattern| PathPattern::parse(pattern).unwrap())
            .collect();
        for path in [
            "/wp-login.php",
            "//wp%2Dlogin.php/",
            "/.git/config",
            "/.git",
            "/.GIT%2fconfig",
            "/WP-Login.php",
            "/x/phpinfo.php",
            "/x%2fphpinfo.php",
            "/x/phpinfo.php%20",
        ] {
            assert!(set.matches(path), "{path}");
        }
        for path in ["/", "/wp-login", "/git/config", "/x/y/phpinfo.php"] {
            assert!(!set.matches(path), "{path}");
        }
        assert!(!PathSet::default().matches("/"));
    }
}
