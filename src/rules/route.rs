//! Which route a request takes: the most specific one, whatever the order of the configuration.
//!
//! The precedence is that of the Kubernetes Gateway API: the host (exact, then the longest
//! wildcard, then any), the path (exact, then pattern, then the longest prefix), whether methods
//! are given, how many headers are, and what is written first.

mod captures;
mod host_pattern;
mod path_pattern;
mod path_set;
mod path_tree;
mod pattern_error;
mod table;

use std::fmt;

use http::header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN};
use http::{HeaderMap, HeaderName, HeaderValue, Method};

pub use captures::Captures;
pub use host_pattern::HostPattern;
pub use path_pattern::PathPattern;
pub use path_set::PathSet;
pub use pattern_error::PatternError;
pub use table::RouteTable;

/// A route, by its place in the order of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteId(pub usize);

/// The route of a request, and what its path pattern captured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteMatch {
    /// The route.
    pub id: RouteId,
    /// The captured segments.
    pub captures: Captures,
}

/// What a request must be like to take a route. It displays as `GET,POST app.example.com/path`.
#[derive(Clone, Debug)]
pub struct RouteMatcher {
    /// The host; any when there is none.
    pub host: Option<HostPattern>,
    /// The path.
    pub path: PathPattern,
    /// The methods; any when there are none. `GET` stands for `HEAD` too, as in nginx's
    /// `limit_except`: a limit on reading a page is not passed by asking for its head.
    pub methods: Vec<Method>,
    /// Headers that must all be there with just this value, each in one of its field lines.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Whether preflights of CORS take the route that the request takes which they are about.
    pub preflights: bool,
}

/// The method that a preflight of CORS asks about; none for any other request.
pub fn preflighted(method: &Method, headers: &HeaderMap) -> Option<Method> {
    if method != Method::OPTIONS || !headers.contains_key(ORIGIN) {
        return None;
    }
    let asked = headers.get(ACCESS_CONTROL_REQUEST_METHOD)?;
    Method::from_bytes(asked.as_bytes()).ok()
}

impl fmt::Display for RouteMatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let methods: Vec<_> = self.methods.iter().map(Method::as_str).collect();
        if !methods.is_empty() {
            write!(f, "{} ", methods.join(","))?;
        }
        if let Some(host) = &self.host {
            write!(f, "{host}")?;
        }
        write!(f, "{}", self.path)
    }
}

impl RouteMatcher {
    /// Whether all but host and path are as asked.
    fn accepts(&self, method: &Method, headers: &HeaderMap) -> bool {
        (self.accepts_method(method) || self.accepts_preflight(method, headers))
            && self
                .headers
                .iter()
                .all(|(name, value)| headers.get_all(name).iter().any(|line| line == value))
    }

    fn accepts_preflight(&self, method: &Method, headers: &HeaderMap) -> bool {
        self.preflights
            && preflighted(method, headers).is_some_and(|asked| self.accepts_method(&asked))
    }

    fn accepts_method(&self, method: &Method) -> bool {
        let reads = method == Method::HEAD && self.methods.contains(&Method::GET);
        self.methods.is_empty() || reads || self.methods.contains(method)
    }
}
