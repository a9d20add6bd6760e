//! Paths that are looked for, whatever route they take.

use std::collections::HashSet;

use super::PathPattern;
use crate::rules::normal_path::normal_path;

/// Patterns of paths. Those without captures and wildcards are found by hashing.
#[derive(Clone, Debug, Default)]
pub struct PathSet {
    exact: HashSet<Box<str>>,
    others: Vec<PathPattern>,
}

impl PathSet {
    /// Whether one of the patterns matches a request's path, by its normal form.
    pub fn matches(&self, path: &str) -> bool {
        if self.is_empty() {
            return false;
        }
        let path = normal_path(path);
        self.exact.contains(&*path) || self.others.iter().any(|it| it.find(&path).is_some())
    }

    /// Whether there are no patterns.
    pub fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.others.is_empty()
    }
}

impl FromIterator<PathPattern> for PathSet {
    fn from_iter<T: IntoIterator<Item = PathPattern>>(patterns: T) -> Self {
        let mut set = Self::default();
        for pattern in patterns {
            match pattern.exact() {
                Some(path) => drop(set.exact.insert(path.into())),
                None => set.others.push(pattern),
            }
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
            "/x/phpinfo.php",
        ] {
            assert!(set.matches(path), "{path}");
        }
        for path in ["/", "/wp-login", "/git/config", "/x/y/phpinfo.php"] {
            assert!(!set.matches(path), "{path}");
        }
        assert!(!PathSet::default().matches("/"));
    }
}
