//! Patterns of paths, and what they capture.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;
use thiserror::Error;

use crate::normal_path::normal_path;

/// A tree of patterns is walked, and dropped, by recursion.
const MAX_SEGMENTS: usize = 64;

/// A path, a path with captured segments, or all paths below one.
///
/// `/login` is this path only, `/teams/{team}/invites` captures a segment, and `/api/*` is `/api`
/// and all below it, but not `/apix`. Captures and a final `/*` go together. Paths are compared in
/// normal form, so that a slash at the end makes no difference, and without regard to case unless
/// told otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPattern {
    pub(super) segments: Vec<Segment>,
    /// Whether paths below match too.
    pub(super) open: bool,
    pub(super) names: Names,
    is_case_sensitive: bool,
}

/// The precedence of patterns that match different forms of a path. The beginning of the path
/// decides first: `/{page}` must not take `/api%2Fx` away from `/api/*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Specificity {
    literal_segments: usize,
    is_closed: bool,
    is_exact: bool,
    segments: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Segment {
    Literal(Box<str>),
    Captured,
}

impl PathPattern {
    /// All paths: `/*`.
    pub fn everything() -> Self {
        Self {
            segments: Vec::new(),
            open: true,
            names: Vec::new().into(),
            is_case_sensitive: false,
        }
    }

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
        if segments(path).nth(MAX_SEGMENTS).is_some() {
            return Err(PatternError::TooManySegments(MAX_SEGMENTS));
        }
        let mut names: Vec<Box<str>> = Vec::new();
        let segments = segments(path).map(|segment| Segment::parse(segment, &mut names));
        Ok(Self {
            segments: segments.collect::<Result<_, _>>()?,
            open,
            names: names.into(),
            is_case_sensitive: false,
        })
    }

    /// The same pattern, with regard to case.
    #[must_use]
    pub fn case_sensitive(self) -> Self {
        Self {
            is_case_sensitive: true,
            ..self
        }
    }

    /// Whether it matches paths in just its case.
    pub(super) fn is_case_sensitive(&self) -> bool {
        self.is_case_sensitive
    }

    /// A text that is equal for patterns that match the same paths, whatever the names of their
    /// captures.
    pub fn form(&self) -> String {
        let mut form = String::new();
        for segment in &self.segments {
            form.push('/');
            form.push_str(&match segment {
                Segment::Literal(literal) if self.is_case_sensitive => Cow::from(&**literal),
                Segment::Literal(literal) => folded(literal),
                // No literal has a brace.
                Segment::Captured => Cow::from("{}"),
            });
        }
        form.push_str(if self.open { "/*" } else { "/" });
        // Of two patterns that differ in this alone, the case-sensitive one comes first.
        form.push_str(if self.is_case_sensitive { "?" } else { "" });
        form
    }

    /// Whether a path in normal form that it matches without regard to case is in the right one.
    pub(super) fn accepts_case(&self, path: &str) -> bool {
        let same = |(pattern, segment): (&Segment, &str)| match pattern {
            Segment::Literal(literal) => **literal == *segment,
            Segment::Captured => true,
        };
        !self.is_case_sensitive || self.segments.iter().zip(segments(path)).all(same)
    }

    pub(super) fn specificity(&self) -> Specificity {
        let is_literal = |segment: &&Segment| matches!(segment, Segment::Literal(_));
        Specificity {
            literal_segments: self.segments.iter().take_while(is_literal).count(),
            is_closed: !self.open,
            is_exact: !self.open && self.names.is_empty(),
            segments: self.segments.len(),
        }
    }

    /// A path that it matches, percent-encoded.
    pub fn example(&self) -> String {
        use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
        let mut path = String::new();
        for segment in &self.segments {
            let text = match segment {
                Segment::Literal(literal) => &**literal,
                Segment::Captured => "example",
            };
            path.push('/');
            path.extend(utf8_percent_encode(text, NON_ALPHANUMERIC));
        }
        if self.open || path.is_empty() {
            path.push('/');
        }
        path
    }

    /// The names of the captured segments, in order.
    pub fn capture_names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|name| &**name)
    }

    /// The captures of a path in normal form that the pattern matches.
    pub(super) fn captures(&self, path: &str) -> Captures {
        if self.names.is_empty() {
            return Captures::default();
        }
        Captures::new(&self.names, path, self.spans(path))
    }

    /// The ranges of the captured segments in a path in normal form that the pattern matches.
    pub(super) fn spans(&self, path: &str) -> Spans {
        let mut spans = Spans::new();
        let mut end = 0;
        for (pattern, segment) in self.segments.iter().zip(segments(path)) {
            // A slash goes before each segment.
            let span = end + 1..end + 1 + segment.len();
            end = span.end;
            if let Segment::Captured = pattern {
                spans.push(span);
            }
        }
        spans
    }
}

/// A text as it is compared without regard to case. What has no upper case is not copied.
pub(super) fn folded(text: &str) -> Cow<'_, str> {
    let is_folded = |byte: u8| byte.is_ascii() && !byte.is_ascii_uppercase();
    if text.bytes().all(is_folded) {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(text.to_lowercase())
    }
}

/// The segments of a path in normal form. The root has none.
pub(super) const fn segments(path: &str) -> Segments<'_> {
    Segments(path)
}

/// The segments of what is left of a path. Few have more than some bytes, for which a loop over
/// these takes less than a search of the library.
#[derive(Clone)]
pub(super) struct Segments<'p>(&'p str);

impl<'p> Iterator for Segments<'p> {
    type Item = &'p str;

    #[inline]
    fn next(&mut self) -> Option<&'p str> {
        while let Some(rest) = self.0.strip_prefix('/') {
            self.0 = rest;
        }
        let end = self.0.bytes().position(|byte| byte == b'/');
        let (segment, rest) = self.0.split_at_checked(end.unwrap_or(self.0.len()))?;
        self.0 = rest;
        (!segment.is_empty()).then_some(segment)
    }
}

/// A pattern must be written as requests come to look, so that it cannot match nothing by mistake.
fn check_form(text: &str) -> Result<(), PatternError> {
    if text.is_empty() {
        return Err(PatternError::Empty);
    }
    if let Some((host, path)) = split_url(text) {
        return Err(PatternError::Url(text.to_owned(), path, host));
    }
    if is_regular_expression(text) {
        return Err(PatternError::RegularExpression(
            text.to_owned(),
            instead_of_expression(text),
        ));
    }
    // What would be a query here may mark a capture there.
    let path = text.split(['?', '#']).next().unwrap_or_default();
    let other = segments(path).find_map(|segment| Some((segment, captured_elsewhere(segment)?)));
    if let Some((segment, name)) = other {
        return Err(PatternError::OtherCapture(
            segment.to_owned(),
            name.to_owned(),
        ));
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

/// The host of a URL, without its port, and its path.
fn split_url(text: &str) -> Option<(String, String)> {
    let (scheme, rest) = text.split_once("://")?;
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, rest) = rest.split_at(end);
    let path = rest.split(['?', '#']).next().unwrap_or_default();
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    };
    is_scheme.then(|| {
        let path = if path.is_empty() { "/" } else { path };
        (host.to_owned(), normal_path(path).into_owned())
    })
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

/// The name that `:name` or `<name>` captures by in the patterns of others (Express, Rails; Flask,
/// Rocket). No request asks for such a segment: it is meant as a capture, and a limit on it would
/// never apply. A colon further in is a path's own, as in `/v1/docs:batchGet`.
fn captured_elsewhere(segment: &str) -> Option<&str> {
    let name = match segment.strip_prefix(':') {
        Some(name) => name,
        None => {
            let inner = segment.strip_prefix('<')?.strip_suffix('>')?;
            // Flask writes the type first, and Rocket marks the rest of the path.
            let (_, name) = inner.rsplit_once(':').unwrap_or(("", inner));
            name.trim_end_matches("..")
        }
    };
    Some(if is_name(name) { name } else { "name" })
}

fn is_regular_expression(text: &str) -> bool {
    let begins = ["^", "~ ", "~*", "("]
        .iter()
        .any(|start| text.starts_with(start));
    let within = [".*", ".+", "[^", "(?", "\\d", "\\w", "\\."];
    begins || within.iter().any(|part| text.contains(part))
}

/// The path that an expression was most likely meant to be.
fn instead_of_expression(text: &str) -> String {
    let path = text.trim_start_matches(['^', '~', '*', ' ']);
    let path = path.trim_end_matches('$');
    let below = path.strip_suffix("/.*").or(path.strip_suffix("/.+"));
    let path = below.map_or(path.to_owned(), |path| format!("{path}/*"));
    match !is_regular_expression(&path) && PathPattern::parse(&path).is_ok() {
        true => format!("{path:?}"),
        false => "\"/api/*\" for all below /api, or {name} for one segment".to_owned(),
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

/// The names that a pattern captures by, in order.
pub(super) type Names = Arc<[Box<str>]>;

/// The ranges of captured segments in a path, in order.
pub(super) type Spans = SmallVec<[Range<usize>; 4]>;

/// Captured segments and groups of a path, by name.
///
/// Their values are in normal form: percent-decoded, but for what would mean something else (such
/// as `%2F`). None is empty. Without captures nothing is allocated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Captures(Option<CapturedPath>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct CapturedPath {
    names: Names,
    path: Box<str>,
    spans: Spans,
}

impl Captures {
    /// No captures.
    pub const NONE: &'static Self = &Self(None);

    pub(super) fn new(names: &Names, path: &str, spans: Spans) -> Self {
        let captured = (!spans.is_empty()).then(|| CapturedPath {
            names: Arc::clone(names),
            path: path.into(),
            spans,
        });
        Self(captured)
    }

    /// The segment that was captured as `name`.
    pub fn get(&self, name: &str) -> Option<&str> {
        let mut all = self.iter();
        all.find_map(|(known, segment)| (known == name).then_some(segment))
    }

    /// All captured segments by name, in the order of the path.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().flat_map(CapturedPath::iter)
    }
}

impl CapturedPath {
    fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let names = self.names.iter().map(|name| &**name);
        let segments = self
            .spans
            .iter()
            .filter_map(|span| self.path.get(span.clone()));
        // A group that took no part in a match is empty.
        names.zip(segments).filter(|(_, text)| !text.is_empty())
    }
}

/// Captures made up of names and segments, without a path.
impl<'a> FromIterator<(&'a str, &'a str)> for Captures {
    fn from_iter<T: IntoIterator<Item = (&'a str, &'a str)>>(pairs: T) -> Self {
        let (mut names, mut path, mut spans) = (Vec::new(), String::new(), Spans::new());
        for (name, segment) in pairs {
            names.push(name.into());
            spans.push(path.len()..path.len() + segment.len());
            path.push_str(segment);
        }
        Self::new(&names.into(), &path, spans)
    }
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
        "{0:?} is not a host name; write it in ASCII letters, digits, '-' and '.' (xn--... for others)"
    )]
    NotAHost(String),
    /// A wildcard that is not the first label of a host.
    #[error(
        "{0:?} has its '*' in the wrong place; write \"*.example.com\", or leave the host out for any"
    )]
    HostWildcard(String),
    /// A URL, its path and its host.
    #[error("{0:?} is a URL, and not a path; write {1:?}")]
    Url(String, String, String),
    /// A path does not start with a slash.
    #[error("{0:?} does not start with '/'; write {1:?}")]
    NoSlash(String, String),
    /// A path is spelled in a form that no request has once it is in normal form.
    #[error("requests are compared in normal form, which {0:?} is not; write {1:?}")]
    NotNormal(String, String),
    /// A query or fragment in a path.
    #[error("{0:?} has more than a path; write {1:?}, without query and fragment")]
    MoreThanPath(String, String),
    /// A `*` that is not the last segment.
    #[error("{0:?} has a '*' within; write {{name}} for one segment, or end the path with \"/*\"")]
    PathWildcard(String),
    /// A segment that would capture in another router's patterns, but not here.
    #[error("{0:?} captures nothing here, and would match only itself; write {{{1}}}")]
    OtherCapture(String, String),
    /// A regular expression in the place of a path.
    #[error("{0:?} is a regular expression, and paths are none; write {1}")]
    RegularExpression(String, String),
    /// Braces that are not a capture.
    #[error(
        "the segment {0:?} is not a capture; write {{name}} for the whole segment, \
         the name in letters, digits and '_'"
    )]
    BadCapture(String),
    /// A name that is captured twice.
    #[error(
        "the name {{{0}}} is captured twice; give each capture a name of its own, such as {{{0}2}}"
    )]
    TwiceCaptured(String),
    /// More or less than whole segments to take from the beginning of a path.
    #[error("{0:?} is not a prefix of whole segments; write one such as \"/api\"")]
    NotAPrefix(String),
    /// More segments than any app has.
    #[error(
        "the path has more than {0} segments; end it with \"/*\" where the others do not matter"
    )]
    TooManySegments(usize),
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn patterns_show_as_they_are_written() {
        for text in ["/", "/*", "/login", "/a/{b}/c", "/a/{b}/*", "/a b"] {
            assert_eq!(PathPattern::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_bad_path_is_told_what_to_write_instead() {
        for (text, help) in [
            ("login", "write \"/login\""),
            ("http://x/login", "write \"/login\""),
            ("https://x.example:8443/a/?b=c", "write \"/a\""),
            ("https://x.example", "write \"/\""),
            ("http://x/api/*", "write \"/api/*\""),
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
            ("/users/:id", "write {id}"),
            ("/users/:id?/x", "write {id}"),
            ("/users/<id>", "write {id}"),
            ("/users/<int:id>/x", "write {id}"),
            ("/files/<path..>", "write {path}"),
            ("/users/:", "write {name}"),
            ("/users/<>", "write {name}"),
            ("^/api/.*$", "write \"/api/*\""),
            ("^/api$", "write \"/api\""),
            ("/api/.*", "write \"/api/*\""),
            ("~ ^/api/", "for all below"),
            ("/users/(?<id>[0-9]+)", "{name} for one segment"),
            ("^/users/[^/]+$", "{name} for one segment"),
            ("/users/\\d+", "{name} for one segment"),
            ("", "\"/*\""),
        ] {
            let said = PathPattern::parse(text).unwrap_err().to_string();
            assert!(said.contains(help), "{text}: {said}");
        }
    }

    /// Colons and angle brackets are taken for captures only where no path has them.
    #[test]
    fn a_colon_or_bracket_within_a_segment_is_its_own() {
        for text in [
            "/v1/docs:batchGet",
            "/v1/{doc}/a:b",
            "/a<b>",
            "/<a",
            "/a>",
            "/a:",
            "/~a/b.c+d$",
        ] {
            assert_eq!(PathPattern::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn no_pattern_is_so_deep_that_a_walk_exhausts_the_stack() {
        let deep = |segments: usize| PathPattern::parse(&"/a".repeat(segments));
        assert!(deep(MAX_SEGMENTS).is_ok());
        let error = deep(100_000).unwrap_err();
        assert_eq!(error, PatternError::TooManySegments(MAX_SEGMENTS));
    }

    proptest! {
        #[test]
        fn the_segments_of_a_path_are_what_its_slashes_part(path in "[/a\u{e9}]{0,9}") {
            let parted = path.split('/').filter(|part| !part.is_empty());
            prop_assert!(segments(&path).eq(parted), "{}", path);
        }

        #[test]
        fn no_pattern_is_read_other_than_it_is_shown(text in "/?([a-z{}*./%;]|\\PC){0,20}") {
            if let Ok(pattern) = PathPattern::parse(&text) {
                prop_assert_eq!(&pattern.to_string(), &text);
            }
        }
    }

    #[test]
    fn segments_are_found_by_name() {
        let captures = Captures::from_iter([("team", "red"), ("id", "7")]);
        assert_eq!(captures.get("id"), Some("7"));
        assert_eq!(captures.get("x"), None);
        assert_eq!(captures.iter().count(), 2);
        assert_eq!(Captures::default().get("id"), None);
    }
}
