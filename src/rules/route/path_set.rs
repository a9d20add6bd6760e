//! Paths that are looked for, whatever route they take.

use super::PathPattern;
use super::path_pattern::folded;
use super::path_tree::PathTree;
use crate::rules::normal_path::{normal_path, separated_path};

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

    #[test]
    fn a_path_is_found_however_it_is_spelt() {
        let patterns = ["/wp-login.php", "/.git/*", "/{app}/phpinfo.php"];
        let set: PathSet = patterns
            .iter()
            .map(|it| PathPattern::parse(it).unwrap())
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
