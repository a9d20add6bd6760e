//! Which route a request takes: the most specific one, whatever the order of the configuration.
//!
//! The precedence is that of the Kubernetes Gateway API: the host (exact, then the longest
//! wildcard, then any), the path (exact, then pattern, then the longest prefix), whether an
//! expression for the path is given, whether methods are, how many headers are, how many query
//! parameters are, and what is written first.

mod path_pattern;
mod path_prefix;
mod path_regex;
mod path_tree;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;

use http::header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN};
use http::{HeaderMap, HeaderName, Method, Uri};

use self::path_pattern::{Specificity, folded};
use self::path_tree::PathTree;
use crate::ValuePattern;
use crate::host::{self, HostPattern};
use crate::normal_path::{normal_path, separated_path};

pub use path_pattern::{Captures, PathPattern, PatternError};
pub use path_prefix::{PathPrefix, with_one_slash};
pub use path_regex::PathRegex;
pub use path_tree::PathSet;

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

/// The conditions of a route on requests. It displays as `GET,POST app.example.com/path`.
#[derive(Clone, Debug)]
pub struct RouteMatcher {
    /// The host; any when there is none.
    pub host: Option<HostPattern>,
    /// The path.
    pub path: PathPattern,
    /// An expression that the path must match too.
    pub path_regex: Option<PathRegex>,
    /// The methods; any when there are none. `GET` stands for `HEAD` too, as in nginx's
    /// `limit_except`: a limit on reading a page is not passed by asking for its head.
    pub methods: Vec<Method>,
    /// Conditions on headers.
    pub headers: Vec<(HeaderName, ValuePattern)>,
    /// Conditions on query parameters.
    pub query: Vec<(Box<str>, ValuePattern)>,
    /// Whether preflights of CORS take the route that the request takes which they are about. They
    /// lack its headers.
    pub preflights: bool,
}

/// The method that a preflight of CORS is about; `None` for any other request.
pub fn preflighted(method: &Method, headers: &HeaderMap) -> Option<Method> {
    if method != Method::OPTIONS || !headers.contains_key(ORIGIN) {
        return None;
    }
    let method = headers.get(ACCESS_CONTROL_REQUEST_METHOD)?;
    Method::from_bytes(method.as_bytes()).ok()
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
        write!(f, "{}", self.path)?;
        match &self.path_regex {
            Some(regex) => write!(f, " matching {}", regex.as_str()),
            None => Ok(()),
        }
    }
}

impl RouteMatcher {
    /// The names of all that is captured.
    pub fn capture_names(&self) -> impl Iterator<Item = &str> {
        let by_regex = self.path_regex.as_ref().map(PathRegex::capture_names);
        let by_pattern = by_regex.is_none().then(|| self.path.capture_names());
        let all = by_regex.into_iter().flatten();
        all.chain(by_pattern.into_iter().flatten())
    }

    /// Whether a path may match from which nothing is captured by this name. A segment of the pattern
    /// always has something.
    pub fn may_lack(&self, name: &str) -> bool {
        let regex = self.path_regex.as_ref();
        let by_regex = regex.is_some_and(|regex| regex.may_lack(name));
        by_regex || !self.capture_names().any(|captured| captured == name)
    }

    /// Whether it has conditions beside host, path and method.
    fn has_conditions(&self) -> bool {
        self.path_regex.is_some() || !self.headers.is_empty() || !self.query.is_empty()
    }

    /// The captures of the path, if the request meets all conditions beside host, path pattern and
    /// method.
    fn captures_if_met(&self, path: &str, request: &RequestParts<'_>) -> Option<Captures> {
        let RequestParts {
            method,
            uri,
            headers,
        } = *request;
        let meets_headers = || {
            let mut conditions = self.headers.iter();
            conditions.all(|(name, pattern)| pattern.accepts(headers.get_all(name).iter()))
        };
        let meets_query = || {
            let query = uri.query().unwrap_or_default();
            self.query.iter().all(|(name, pattern)| {
                let pairs = form_urlencoded::parse(query.as_bytes());
                let values = pairs.filter(|(key, _)| *key == **name);
                pattern.accepts(values.map(|(_, value)| value.into_owned()))
            })
        };
        let met = (meets_headers() || self.accepts_preflight(method, headers)) && meets_query();
        match &self.path_regex {
            _ if !met => None,
            None => Some(self.path.captures(path)),
            Some(regex) => regex.captures(&self.path, path),
        }
    }

    /// Compares the paths of two routes that match different forms of a request.
    fn specificity(&self) -> (Specificity, bool) {
        (self.path.specificity(), self.path_regex.is_some())
    }

    fn accepts_preflight(&self, method: &Method, headers: &HeaderMap) -> bool {
        self.preflights
            && preflighted(method, headers).is_some_and(|method| self.accepts_method(&method))
    }

    fn accepts_method(&self, method: &Method) -> bool {
        let reads = method == Method::HEAD && self.methods.contains(&Method::GET);
        self.methods.is_empty() || reads || self.methods.contains(method)
    }
}

/// All routes, prepared for quick look-up.
///
/// Exact hosts and the segments of paths are found by hashing, whatever the number of routes.
#[derive(Clone, Debug, Default)]
pub struct RouteTable {
    exact: HashMap<Box<str>, Paths>,
    /// By domain with a dot in front, the longest first.
    below: Vec<(Box<str>, Paths)>,
    any: Paths,
}

/// The routes of one host. Among those of one path the order is: with methods, with more headers,
/// for one case.
type Paths = PathTree<RouteEntry>;

#[derive(Clone, Debug)]
struct RouteEntry {
    id: RouteId,
    matcher: RouteMatcher,
    has_conditions: bool,
}

/// The parts of a request that conditions look at, beside its path.
#[derive(Clone, Copy)]
struct RequestParts<'r> {
    method: &'r Method,
    uri: &'r Uri,
    headers: &'r HeaderMap,
}

impl RouteTable {
    /// Prepares the routes, which are given in the order of the configuration.
    pub fn new(routes: Vec<RouteMatcher>) -> Self {
        let mut routes: Vec<_> = routes.into_iter().enumerate().collect();
        routes.sort_by_key(|(_, matcher)| {
            let is_for_one_case = matcher.path.is_case_sensitive();
            Reverse((
                matcher.path_regex.is_some(),
                !matcher.methods.is_empty(),
                matcher.headers.len(),
                matcher.query.len(),
                is_for_one_case,
            ))
        });
        let mut table = Self::default();
        for (index, matcher) in routes {
            let id = RouteId(index);
            let path = matcher.path.clone();
            let paths = table.paths_mut(matcher.host.as_ref());
            let has_conditions = matcher.has_conditions();
            paths.insert(
                &path,
                RouteEntry {
                    id,
                    matcher,
                    has_conditions,
                },
            );
        }
        table.below.sort_by_key(|(suffix, _)| Reverse(suffix.len()));
        table
    }

    /// The most specific route that a request matches.
    pub fn find(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Option<RouteMatch> {
        let path = normal_path(uri.path());
        let separated = match path {
            // Nothing is encoded in it.
            Cow::Borrowed(_) => None,
            Cow::Owned(_) => separated_path(uri.path()),
        };
        let request = RequestParts {
            method,
            uri,
            headers,
        };
        let find = |paths: &Paths| {
            let taken = |path: &str| taken(paths, path, &request);
            let found = taken(&path);
            match separated.as_deref().and_then(taken) {
                Some(other) if found.as_ref().is_none_or(|found| goes_first(&other, found)) => {
                    Some(other.1)
                }
                _ => found.map(|(_, found)| found),
            }
        };
        if self.exact.is_empty() && self.below.is_empty() {
            // To read the host is half of the work.
            return find(&self.any);
        }
        let host = host::host(uri, headers);
        let host = host.as_deref().unwrap_or_default();
        let exact = self.exact.get(host).into_iter();
        let below = self
            .below
            .iter()
            .filter(|(suffix, _)| is_below(host, suffix));
        exact
            .chain(below.map(|(_, paths)| paths))
            .chain([&self.any])
            .find_map(find)
    }

    fn paths_mut(&mut self, pattern: Option<&HostPattern>) -> &mut Paths {
        match pattern {
            None => &mut self.any,
            Some(HostPattern::Exact(host)) => self.exact.entry(host.clone()).or_default(),
            Some(HostPattern::Below(suffix)) => paths_below(&mut self.below, suffix),
        }
    }
}

/// The route of one host that a path in normal form takes, with its matcher.
fn taken<'t>(
    paths: &'t Paths,
    path: &str,
    request: &RequestParts<'_>,
) -> Option<(&'t RouteMatcher, RouteMatch)> {
    paths.find_map(&folded(path), |route| {
        let RouteEntry { id, matcher, .. } = route;
        let accepts_method = matcher.accepts_method(request.method)
            || matcher.accepts_preflight(request.method, request.headers);
        if !accepts_method || !matcher.path.accepts_case(path) {
            return None;
        }
        let captures = match route.has_conditions {
            false => matcher.path.captures(path),
            true => matcher.captures_if_met(path, request)?,
        };
        Some((matcher, RouteMatch { id: *id, captures }))
    })
}

/// Whether the route of the decoded form of a path takes precedence over that of the other form. If
/// both forms have the same route, the decoded form does, for its captures: `/users/bob%3B1` is
/// `/users/bob`, and no subject of its own.
fn goes_first(decoded: &(&RouteMatcher, RouteMatch), other: &(&RouteMatcher, RouteMatch)) -> bool {
    decoded.0.specificity() > other.0.specificity() || decoded.1.id == other.1.id
}

fn paths_below<'t>(below: &'t mut Vec<(Box<str>, Paths)>, suffix: &str) -> &'t mut Paths {
    let known = below.iter().position(|(known, _)| **known == *suffix);
    let index = known.unwrap_or(below.len());
    if known.is_none() {
        below.push((suffix.into(), Paths::default()));
    }
    #[expect(
        clippy::indexing_slicing,
        reason = "it is where it was found or just pushed"
    )]
    &mut below[index].1
}

/// Whether a host ends with a domain that has a dot in front, and has a label before it.
fn is_below(host: &str, suffix: &str) -> bool {
    host.len() > suffix.len() && host.ends_with(suffix)
}
