//! Which route a request takes.

use std::collections::HashMap;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use thiserror::Error;

/// A route, by its place in the order of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteId(pub usize);

/// What a request must be like to take a route.
#[derive(Clone, Debug)]
pub struct RouteMatcher {
    /// The host; any when there is none.
    pub host: Option<HostPattern>,
    /// The path.
    pub path: PathPattern,
    /// The methods; any when there are none.
    pub methods: Vec<Method>,
    /// Headers that must all be there.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

/// A host, or all hosts below a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPattern(String);

impl HostPattern {
    /// Reads `app.example.com` or `*.example.com`.
    ///
    /// # Errors
    /// The error says what to write instead.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        Ok(Self(text.to_owned()))
    }
}

/// A path, a path with captured segments, or all paths below one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPattern(String);

impl PathPattern {
    /// Reads `/login`, `/teams/{team}/invites` or `/api/*`.
    ///
    /// # Errors
    /// The error says what to write instead.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        Ok(Self(text.to_owned()))
    }

    /// The names of the captured segments, in order.
    pub fn capture_names(&self) -> impl Iterator<Item = &str> {
        std::iter::empty()
    }
}

/// Why a pattern cannot be used, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{pattern:?}: {problem}")]
pub struct PatternError {
    pattern: String,
    problem: String,
}

/// All routes, prepared for quick look-up.
#[derive(Clone, Debug, Default)]
pub struct RouteTable {
    routes: Vec<RouteMatcher>,
}

impl RouteTable {
    /// Prepares the routes, which are given in the order of the configuration.
    pub fn new(routes: Vec<RouteMatcher>) -> Self {
        Self { routes }
    }

    /// The most specific route that a request matches.
    pub fn find(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Option<RouteMatch> {
        let _ = (method, uri, headers, &self.routes);
        None
    }
}

/// The route of a request, and what its path pattern captured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteMatch {
    /// The route.
    pub id: RouteId,
    /// The captured segments.
    pub captures: Captures,
}

/// Captured segments of a path, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Captures(HashMap<String, String>);

impl Captures {
    /// The segment that was captured as `name`.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// All captured segments, in the order of the pattern.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(k, v)| (k.as_str(), v.as_str()))
    }
}
