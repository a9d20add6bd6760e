//! Why a pattern of hosts or paths cannot be used.

use thiserror::Error;

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
    /// A segment that would capture in another router's patterns, but is no capture here.
    #[error("{0:?} captures nothing here, and would match only itself; write {{{1}}}")]
    OtherCapture(String, String),
    /// A regular expression in the place of a path.
    #[error("{0:?} is a regular expression, and paths are none; write {1}")]
    RegularExpression(String, String),
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
    /// More segments than any app has.
    #[error(
        "the path has more than {0} segments; end it with \"/*\" where the others do not matter"
    )]
    TooManySegments(usize),
}
