//! Taking the beginning of a path away, from the path as it was sent.
//!
//! Routes match paths in normal form, and upstreams get them as they were sent. So a prefix is
//! found segment by segment: `/%61pi;v=1//x%2Fy` begins with `/api`, and `/x%2Fy` is left of it.

use std::borrow::Cow;

use super::path_pattern::{PathPattern, PatternError, Segment, folded};
use crate::normal_path::{normal_path, separated_path};

/// The beginning of paths, of whole segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPrefix {
    text: Box<str>,
    /// In normal form and folded; there is at least one.
    segments: Vec<Box<str>>,
}

impl PathPrefix {
    /// Reads `/api` or `/api/v2`.
    ///
    /// # Errors
    /// The error says what to write instead.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let pattern = PathPattern::parse(text)?;
        let literals = pattern.segments.iter().map(|segment| match segment {
            Segment::Literal(literal) => Some(folded(literal).into()),
            Segment::Captured => None,
        });
        let segments: Option<Vec<Box<str>>> = literals.collect();
        match segments.filter(|segments| !segments.is_empty() && !pattern.open) {
            Some(segments) => Ok(Self {
                text: text.into(),
                segments,
            }),
            None => Err(PatternError::NotAPrefix(text.to_owned())),
        }
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether all paths that a pattern matches begin with it.
    pub fn begins(&self, pattern: &PathPattern) -> bool {
        let mut segments = pattern.segments.iter();
        self.segments.iter().all(|literal| {
            let segment = segments.next();
            matches!(segment, Some(Segment::Literal(other)) if folded(other) == **literal)
        })
    }

    /// The rest of a path as it was sent: from a slash on, or an empty text. `None` if the path
    /// does not begin with the prefix.
    ///
    /// Empty segments and `.` that follow are left out: `//evil.example` in front of a path is a
    /// host for whoever resolves it.
    pub fn rest<'p>(&self, path: &'p str) -> Option<Cow<'p, str>> {
        let path = path.strip_prefix(['/', '\\'])?;
        self.rest_by(path, Separators::Plain)
            // The upstream may decode separators before it splits the path, and such a path takes
            // the route, too.
            .or_else(|| self.rest_by(path, Separators::Encoded))
    }

    fn rest_by<'p>(&self, path: &'p str, separators: Separators) -> Option<Cow<'p, str>> {
        let mut rest = Some(path);
        for literal in &self.segments {
            let (segment, after) = first_segment(rest, separators)?;
            if folded(&separators.normal(segment)) != **literal {
                return None;
            }
            rest = after;
        }
        let Some(mut rest) = rest else {
            return Some(Cow::Borrowed(""));
        };
        while let (segment, Some(after)) = separators.split(rest)
            && separators.is_void(segment)
        {
            rest = after;
        }
        let rest = if separators.is_void(rest) { "" } else { rest };
        Some(Cow::Owned(format!("/{rest}")))
    }
}

/// The first segment of a path that is one, and what comes behind its separator.
fn first_segment(mut rest: Option<&str>, separators: Separators) -> Option<(&str, Option<&str>)> {
    loop {
        let (segment, after) = separators.split(rest?);
        if !separators.is_void(segment) {
            return Some((segment, after));
        }
        rest = after;
    }
}

#[derive(Clone, Copy, Debug)]
enum Separators {
    /// Slashes and backslashes.
    Plain,
    /// The same, and both of them percent-encoded.
    Encoded,
}

impl Separators {
    /// Splits at the first separator.
    fn split(self, path: &str) -> (&str, Option<&str>) {
        let separator = path.char_indices().find_map(|(at, char)| match char {
            '/' | '\\' => Some((at, 1)),
            '%' if matches!(self, Self::Encoded) => {
                let code = path.get(at + 1..at + 3)?;
                let separates = code.eq_ignore_ascii_case("2f") || code.eq_ignore_ascii_case("5c");
                separates.then_some((at, 3))
            }
            _ => None,
        });
        match separator {
            Some((at, len)) => (path.get(..at).unwrap_or(path), path.get(at + len..)),
            None => (path, None),
        }
    }

    /// Whether a segment is left out of the normal form.
    fn is_void(self, segment: &str) -> bool {
        self.normal(segment).is_empty()
    }

    fn normal(self, segment: &str) -> String {
        let path = format!("/{segment}");
        let separated = match self {
            Self::Plain => None,
            // What is left encoded in a segment is `;` alone.
            Self::Encoded => separated_path(&path),
        };
        let mut normal = separated.unwrap_or_else(|| normal_path(&path).into_owned());
        normal.remove(0);
        normal
    }
}

/// A path whose beginning cannot be taken for a host: it starts with one slash, and no other
/// follows it.
pub fn with_one_slash(path: &str) -> Cow<'_, str> {
    let is_slash = |char| matches!(char, '/' | '\\');
    match path.strip_prefix('/') {
        Some(rest) if !rest.starts_with(is_slash) => Cow::Borrowed(path),
        _ => Cow::Owned(format!("/{}", path.trim_start_matches(is_slash))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rest(prefix: &str, path: &str) -> Option<String> {
        let prefix = PathPrefix::parse(prefix).unwrap();
        prefix.rest(path).map(Cow::into_owned)
    }

    /// The table of the Gateway API for `ReplacePrefixMatch`, and spellings.
    #[test]
    fn what_follows_a_prefix_stays_as_it_was_sent() {
        for (path, left) in [
            ("/api", ""),
            ("/api/", "/"),
            ("/api/x", "/x"),
            ("/api/x/", "/x/"),
            ("/API/X", "/X"),
            ("/%61pi/%78", "/%78"),
            ("/api;v=1/x;y=2", "/x;y=2"),
            ("/api/x%2Fy", "/x%2Fy"),
            ("/api/%2Fy", "/%2Fy"),
            ("/api/x//y/./z", "/x//y/./z"),
            ("//./api/x", "/x"),
            ("\\api\\x", "/x"),
            ("/api%20/x", "/x"),
        ] {
            assert_eq!(rest("/api", path).as_deref(), Some(left), "{path}");
        }
        assert_eq!(rest("/api/v2", "/api//v2/x").as_deref(), Some("/x"));
        assert_eq!(rest("/api/v2", "/api/v2").as_deref(), Some(""));
    }

    #[test]
    fn what_is_left_cannot_be_taken_for_a_host() {
        for path in [
            "/api//evil.example",
            "/api/\\evil.example",
            "/api/.//evil.example",
            "/api/;//evil.example",
            "/api%2F%2Fevil.example",
            "/api%2f/%5Cevil.example",
        ] {
            assert_eq!(
                rest("/api", path).as_deref(),
                Some("/evil.example"),
                "{path}"
            );
        }
        for (path, one) in [
            ("/x//y", "/x//y"),
            ("//evil.example", "/evil.example"),
            ("/\\evil.example", "/evil.example"),
            ("\\//evil.example", "/evil.example"),
            ("//", "/"),
            ("*", "/*"),
        ] {
            assert_eq!(with_one_slash(path), one);
        }
    }

    #[test]
    fn a_prefix_behind_encoded_separators_is_found_as_routes_find_it() {
        assert_eq!(rest("/api", "/api%2Fx%2Fy").as_deref(), Some("/x%2Fy"));
        assert_eq!(rest("/api", "/api%5cx").as_deref(), Some("/x"));
        assert_eq!(rest("/api", "/api%3Bv=1/x").as_deref(), Some("/x"));
        assert_eq!(rest("/a%2Fb", "/a%2fb/c").as_deref(), Some("/c"));
    }

    #[test]
    fn another_path_has_no_rest() {
        for path in ["/", "/apix", "/apix/y", "/x/api", "*", "", "/api%252Fx"] {
            assert_eq!(rest("/api", path), None, "{path}");
        }
    }

    #[test]
    fn a_prefix_is_of_whole_segments_without_captures() {
        for text in ["/", "/*", "/api/*", "/{team}", "/api/{team}"] {
            let error = PathPrefix::parse(text).unwrap_err();
            assert_eq!(error, PatternError::NotAPrefix(text.to_owned()));
        }
        assert!(PathPrefix::parse("api").is_err() && PathPrefix::parse("/api/").is_err());
    }

    #[test]
    fn a_prefix_begins_the_patterns_below_it() {
        let begins = |prefix: &str, pattern: &str| {
            let prefix = PathPrefix::parse(prefix).unwrap();
            prefix.begins(&PathPattern::parse(pattern).unwrap())
        };
        for pattern in ["/api", "/api/*", "/API/{team}/x", "/api/x"] {
            assert!(begins("/api", pattern), "{pattern}");
        }
        for pattern in ["/*", "/{team}/*", "/apix/*", "/x/api"] {
            assert!(!begins("/api", pattern), "{pattern}");
        }
    }

    mod every_path {
        use proptest::prelude::*;

        use super::*;

        proptest! {
            /// Whatever takes a route below a prefix begins with it, and what is left stands for
            /// the same path.
            #[test]
            fn below_a_prefix_loses_the_prefix_and_nothing_else(
                path in "(/|%2f|%2F|\\\\|%5c|;|%3b|\\.|api|%61pi|x|y|%20){0,12}"
            ) {
                let path = format!("/{path}");
                let prefix = PathPrefix::parse("/api").unwrap();
                let is_below = |path: &str| path == "/api" || path.starts_with("/api/");
                let forms = [Some(normal_path(&path).into_owned()), separated_path(&path)];
                let mut forms = forms.into_iter().flatten();
                let known = crate::path_fault(&path).is_none();
                if known && let Some(form) = forms.find(|form| is_below(form)) {
                    let rest = prefix.rest(&path).expect("a path below the prefix");
                    prop_assert!(!rest.starts_with("//") && !rest.starts_with("/\\"));
                    let mut left = [Some(normal_path(&rest).into_owned()), separated_path(&rest)]
                        .into_iter()
                        .flatten();
                    let expected = normal_path(form.strip_prefix("/api").unwrap()).into_owned();
                    prop_assert!(left.any(|left| left == expected), "{rest} {expected}");
                }
            }
        }
    }
}
