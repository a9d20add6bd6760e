//! Patterns of hosts and paths.

use std::fmt;

use thiserror::Error;

use super::captures::{Names, Spans};
use crate::rules::domain;
use crate::rules::normal_path::normal_path;

/// A host, or all hosts below a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPattern {
    /// This host, in lower case.
    Exact(Box<str>),
    /// All hosts that end with this, which starts with a dot: one label more, or several, as in the
    /// Gateway API.
    Below(Box<str>),
}

/// A path, a path with captured segments, or all paths below one.
///
/// `/login` is this path only, `/teams/{team}/invites` captures a segment, and `/api/*` is `/api`
/// and all below it, but not `/apix`. Captures and a final `/*` go together. Paths are compared in
/// normal form, so that a slash at the end makes no difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPattern {
    pub(super) segments: Vec<Segment>,
    /// Whether paths below match too.
    pub(super) open: bool,
    pub(super) names: Names,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Segment {
    Literal(Box<str>),
    Captured,
}

/// Why a pattern cannot be used, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PatternError {
    /// The pattern is empty.
    #[error("the pattern is empty; leave the key out, or write \"/*\" for every path")]
    Empty,
    /// A host has a scheme, a port or a path.
    #[error("{0:?} is more than a host; write {1:?}, without scheme, port and path")]
    MoreThanHost(String, String),
    /// A host cannot be one.
    #[error(
        "{0:?} is no host name; write it in ASCII letters, digits, '-' and '.' (xn--... for others)"
    )]
    NotAHost(String),
    /// A wildcard that is not the first label of a host.
    #[error(
        "{0:?} has its '*' in the wrong place; write \"*.example.com\", or leave the host out for any"
    )]
    HostWildcard(String),
    /// A path does not start with a slash.
    #[error("{0:?} does not start with '/'; write {1:?}")]
    NoSlash(String, String),
    /// A path is spelled in a form that no request has once it is in normal form.
    #[error("requests are compared in normal form, which {0:?} is not; write {1:?}")]
    NotNormal(String, String),
    /// A query or fragment in a path.
    #[error("{0:?} has more than a path; queries and fragments are not matched, so write {1:?}")]
    MoreThanPath(String, String),
    /// A `*` that is not the last segment.
    #[error("{0:?} has a '*' within; write {{name}} for one segment, or end the path with \"/*\"")]
    PathWildcard(String),
    /// Braces that are no capture.
    #[error(
        "the segment {0:?} is no capture; write {{name}} for the whole segment, the name in letters, digits and '_'"
    )]
    BadCapture(String),
    /// A name that is captured twice.
    #[error(
        "the name {{{0}}} is captured twice; give each capture a name of its own, such as {{{0}2}}"
    )]
    TwiceCaptured(String),
}

impl HostPattern {
    /// Reads `app.example.com` or `*.example.com`.
    ///
    /// # Errors
    /// The error says what to write instead.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let host = bare_host(text);
        if host.is_empty() {
            return Err(PatternError::Empty);
        }
        if host != text {
            return Err(PatternError::MoreThanHost(text.to_owned(), host.to_owned()));
        }
        match host.strip_prefix('*') {
            Some(suffix) if is_host_name(suffix.strip_prefix('.').unwrap_or_default()) => {
                Ok(Self::Below(suffix.to_ascii_lowercase().into()))
            }
            _ if host.contains('*') => Err(PatternError::HostWildcard(text.to_owned())),
            _ if domain::ipv6_literal(host).is_some() || is_host_name(host) => {
                Ok(Self::Exact(domain::canonical(host).into()))
            }
            _ => Err(PatternError::NotAHost(text.to_owned())),
        }
    }
}

/// The host of what may be a URL or carry a port.
fn bare_host(text: &str) -> &str {
    let text = text.split_once("://").map_or(text, |(_, rest)| rest);
    let text = text.split_once('/').map_or(text, |(host, _)| host);
    match text.rsplit_once(':') {
        Some((host, _)) if !text.ends_with(']') => host,
        _ => text,
    }
}

fn is_host_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    text.split('.')
        .all(|label| !label.is_empty() && label.len() <= 63 && label.bytes().all(allowed))
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(host) => f.write_str(host),
            Self::Below(suffix) => write!(f, "*{suffix}"),
        }
    }
}

impl PathPattern {
    /// Reads `/login`, `/teams/{team}/invites`, `/api/*` or `/teams/{team}/*`.
    ///
    /// # Errors
    /// The error says what to write instead.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        check_form(text)?;
        let (path, open) = match text.strip_suffix("/*") {
            Some(path) => (path, true),
            None => (text, false),
        };
        let mut names: Vec<Box<str>> = Vec::new();
        let segments = segments(path).map(|segment| Segment::parse(segment, &mut names));
        Ok(Self {
            segments: segments.collect::<Result<_, _>>()?,
            open,
            names: names.into(),
        })
    }

    /// The names of the captured segments, in order.
    pub fn capture_names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|name| &**name)
    }

    /// The path itself, when nothing else matches.
    pub(super) fn exact(&self) -> Option<String> {
        (!self.open && self.names.is_empty()).then(|| self.to_string())
    }

    /// Where the captured segments stand in a path in normal form, when it matches.
    pub(super) fn find(&self, path: &str) -> Option<Spans> {
        let mut spans = Spans::new();
        let mut rest = segments(path);
        let mut start = 0;
        for segment in &self.segments {
            let found = rest.next()?;
            // A slash goes before each segment.
            start += 1;
            let span = start..start + found.len();
            start = span.end;
            match segment {
                Segment::Captured => spans.push(span),
                Segment::Literal(literal) if **literal == *found => {}
                Segment::Literal(_) => return None,
            }
        }
        (self.open || rest.next().is_none()).then_some(spans)
    }
}

/// The segments of a path in normal form. The root has none.
fn segments(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|segment| !segment.is_empty())
}

/// A pattern must be written as requests come to look, so that it cannot match nothing by mistake.
fn check_form(text: &str) -> Result<(), PatternError> {
    if text.is_empty() {
        return Err(PatternError::Empty);
    }
    if !text.starts_with('/') {
        return Err(PatternError::NoSlash(text.to_owned(), format!("/{text}")));
    }
    if let Some((path, _)) = text.split_once(['?', '#']) {
        return Err(PatternError::MoreThanPath(text.to_owned(), path.to_owned()));
    }
    let normal = normal_path(text);
    if normal != text {
        return Err(PatternError::NotNormal(
            text.to_owned(),
            normal.into_owned(),
        ));
    }
    Ok(())
}

impl Segment {
    fn parse(text: &str, names: &mut Vec<Box<str>>) -> Result<Self, PatternError> {
        if text.contains('*') {
            return Err(PatternError::PathWildcard(text.to_owned()));
        }
        if !text.contains(['{', '}']) {
            return Ok(Self::Literal(text.into()));
        }
        let name = text
            .strip_prefix('{')
            .and_then(|text| text.strip_suffix('}'))
            .filter(|name| is_name(name))
            .ok_or_else(|| PatternError::BadCapture(text.to_owned()))?;
        if names.iter().any(|known| **known == *name) {
            return Err(PatternError::TwiceCaptured(name.to_owned()));
        }
        names.push(name.into());
        Ok(Self::Captured)
    }
}

fn is_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    !text.is_empty() && text.bytes().all(allowed)
}

/// Shows the pattern as it is written.
impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = self.names.iter();
        for segment in &self.segments {
            match segment {
                Segment::Literal(literal) => write!(f, "/{literal}")?,
                Segment::Captured => write!(f, "/{{{}}}", names.next().map_or("", |name| name))?,
            }
        }
        match (self.open, self.segments.is_empty()) {
            (true, _) => f.write_str("/*"),
            (false, true) => f.write_str("/"),
            (false, false) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn path_remedy(text: &str) -> String {
        PathPattern::parse(text).unwrap_err().to_string()
    }

    fn host_remedy(text: &str) -> String {
        HostPattern::parse(text).unwrap_err().to_string()
    }

    fn matches(pattern: &str, path: &str) -> bool {
        PathPattern::parse(pattern).unwrap().find(path).is_some()
    }

    #[test]
    fn a_prefix_is_a_path_and_all_below_it() {
        for path in ["/api", "/api/x", "/api/x/y"] {
            assert!(matches("/api/*", path), "{path}");
        }
        assert!(!matches("/api/*", "/apix"));
        assert!(!matches("/api/*", "/"));
        assert!(matches("/*", "/") && matches("/*", "/a/b"));
    }

    #[test]
    fn a_capture_is_one_whole_segment() {
        assert!(matches("/teams/{team}/invites", "/teams/red/invites"));
        for path in [
            "/teams/invites",
            "/teams/a/b/invites",
            "/teams/a",
            "/teams/a/invites/1",
        ] {
            assert!(!matches("/teams/{team}/invites", path), "{path}");
        }
        assert!(matches("/teams/{team}/*", "/teams/red"));
        assert!(matches("/teams/{team}/*", "/teams/red/a/b"));
        assert!(!matches("/teams/{team}/*", "/teams"));
    }

    #[test]
    fn patterns_show_as_they_are_written() {
        for text in ["/", "/*", "/login", "/a/{b}/c", "/a/{b}/*", "/a b"] {
            assert_eq!(PathPattern::parse(text).unwrap().to_string(), text);
        }
        for text in [
            "app.example.com",
            "*.example.com",
            "[2001:db8::1]",
            "192.0.2.1",
        ] {
            assert_eq!(HostPattern::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_bad_path_is_told_what_to_write_instead() {
        for (text, remedy) in [
            ("login", "write \"/login\""),
            ("/login/", "write \"/login\""),
            ("/%6cogin", "write \"/login\""),
            ("//a/../b/*", "write \"/b/*\""),
            ("/a?b=c", "write \"/a\""),
            ("/a*", "end the path with \"/*\""),
            ("/*/a", "write {name}"),
            ("/a/{b", "write {name}"),
            ("/a/x{b}", "write {name}"),
            ("/{}", "write {name}"),
            ("/{a}/{a}", "{a2}"),
            ("", "\"/*\""),
        ] {
            let said = path_remedy(text);
            assert!(said.contains(remedy), "{text}: {said}");
        }
    }

    #[test]
    fn a_bad_host_is_told_what_to_write_instead() {
        for (text, remedy) in [
            ("http://a.example/x", "write \"a.example\""),
            ("a.example:80", "write \"a.example\""),
            ("[2001:db8::1]:80", "write \"[2001:db8::1]\""),
            ("*", "leave the host out"),
            ("a.*.example", "\"*.example.com\""),
            ("*example.com", "\"*.example.com\""),
            ("b\u{fc}cher.example", "xn--"),
            ("a..example", "no host name"),
            ("a.example.", "no host name"),
            ("", "empty"),
        ] {
            let said = host_remedy(text);
            assert!(said.contains(remedy), "{text}: {said}");
        }
    }

    proptest! {
        #[test]
        fn no_pattern_is_read_other_than_it_is_shown(text in "/?([a-z{}*./%;]|\\PC){0,20}") {
            if let Ok(pattern) = PathPattern::parse(&text) {
                prop_assert_eq!(&pattern.to_string(), &text);
            }
            let _ = HostPattern::parse(&text);
        }
    }
}
