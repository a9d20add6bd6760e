//! All routes, prepared for quick look-up.

use std::collections::HashMap;

use http::{HeaderMap, Method, Uri};

use super::rank::Rank;
use super::{Captures, HostPattern, RouteId, RouteMatch, RouteMatcher};
use crate::rules::domain;
use crate::rules::normal_path::normal_path;

/// All routes, prepared for quick look-up.
///
/// Exact hosts and exact paths are found by hashing; of a host's other paths each is compared with
/// the request's, the most specific first.
#[derive(Clone, Debug, Default)]
pub struct RouteTable {
    exact: HashMap<Box<str>, Host>,
    /// By domain with a dot in front, the longest first.
    below: Vec<(Box<str>, Host)>,
    any: Host,
}

/// The routes of one host.
#[derive(Clone, Debug, Default)]
struct Host {
    exact: HashMap<Box<str>, Vec<Route>>,
    others: Vec<Route>,
}

#[derive(Clone, Debug)]
struct Route {
    id: RouteId,
    rank: Rank,
    matcher: RouteMatcher,
}

/// What routes are chosen by, besides the host.
struct Asked<'r> {
    method: &'r Method,
    path: &'r str,
    headers: &'r HeaderMap,
}

impl RouteTable {
    /// Prepares the routes, which are given in the order of the configuration.
    pub fn new(routes: Vec<RouteMatcher>) -> Self {
        let mut table = Self::default();
        for (index, matcher) in routes.into_iter().enumerate() {
            let rank = Rank::of(&matcher, index);
            let id = RouteId(index);
            table
                .host_mut(matcher.host.as_ref())
                .add(Route { id, rank, matcher });
        }
        table.sort();
        table
    }

    /// The most specific route that a request matches.
    pub fn find(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Option<RouteMatch> {
        let path = normal_path(uri.path());
        let asked = Asked {
            method,
            path: &path,
            headers,
        };
        if self.exact.is_empty() && self.below.is_empty() {
            // To read the host is half of the work.
            return self.any.find(&asked);
        }
        let host = domain::host(uri, headers);
        let host = host.as_deref().unwrap_or_default();
        let exact = self.exact.get(host).into_iter();
        let below = self
            .below
            .iter()
            .filter(|(suffix, _)| is_below(host, suffix));
        exact
            .chain(below.map(|(_, routes)| routes))
            .chain([&self.any])
            .find_map(|routes| routes.find(&asked))
    }

    fn host_mut(&mut self, pattern: Option<&HostPattern>) -> &mut Host {
        match pattern {
            None => &mut self.any,
            Some(HostPattern::Exact(host)) => self.exact.entry(host.clone()).or_default(),
            Some(HostPattern::Below(suffix)) => host_below(&mut self.below, suffix),
        }
    }

    fn sort(&mut self) {
        self.below
            .sort_by_key(|(suffix, _)| std::cmp::Reverse(suffix.len()));
        let below = self.below.iter_mut().map(|(_, routes)| routes);
        let hosts = self.exact.values_mut().chain(below).chain([&mut self.any]);
        hosts.for_each(Host::sort);
    }
}

fn host_below<'t>(below: &'t mut Vec<(Box<str>, Host)>, suffix: &str) -> &'t mut Host {
    let known = below.iter().position(|(known, _)| **known == *suffix);
    let index = known.unwrap_or(below.len());
    if known.is_none() {
        below.push((suffix.into(), Host::default()));
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

impl Host {
    fn add(&mut self, route: Route) {
        match route.matcher.path.exact() {
            Some(path) => self.exact.entry(path.into()).or_default().push(route),
            None => self.others.push(route),
        }
    }

    fn sort(&mut self) {
        for routes in self.exact.values_mut().chain([&mut self.others]) {
            routes.sort_by(|one, other| other.rank.cmp(&one.rank));
        }
    }

    fn find(&self, asked: &Asked<'_>) -> Option<RouteMatch> {
        let exact = self.exact.get(asked.path).into_iter().flatten();
        exact
            .chain(&self.others)
            .find_map(|route| route.matching(asked))
    }
}

impl Route {
    fn matching(&self, asked: &Asked<'_>) -> Option<RouteMatch> {
        let spans = self.matcher.path.find(asked.path)?;
        self.matcher
            .accepts(asked.method, asked.headers)
            .then(|| RouteMatch {
                id: self.id,
                captures: Captures::new(&self.matcher.path.names, asked.path, spans),
            })
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};
    use proptest::prelude::*;
    use proptest::sample::{select, subsequence};

    use super::*;
    use crate::rules::PathPattern;

    fn route(path: &str) -> RouteMatcher {
        RouteMatcher {
            host: None,
            path: PathPattern::parse(path).unwrap(),
            methods: Vec::new(),
            headers: Vec::new(),
        }
    }

    fn at(host: &str, path: &str) -> RouteMatcher {
        let host = Some(HostPattern::parse(host).unwrap());
        RouteMatcher {
            host,
            ..route(path)
        }
    }

    fn by(methods: &[Method], path: &str) -> RouteMatcher {
        let methods = methods.to_vec();
        RouteMatcher {
            methods,
            ..route(path)
        }
    }

    fn with(headers: &[&'static str], path: &str) -> RouteMatcher {
        let one = HeaderValue::from_static("1");
        let headers = headers
            .iter()
            .map(|name| (HeaderName::from_static(name), one.clone()));
        RouteMatcher {
            headers: headers.collect(),
            ..route(path)
        }
    }

    fn find(routes: Vec<RouteMatcher>, method: Method, uri: &str) -> Option<RouteMatch> {
        let headers = HeaderMap::from_iter(
            ["a", "b"].map(|name| (HeaderName::from_static(name), HeaderValue::from_static("1"))),
        );
        RouteTable::new(routes).find(&method, &uri.parse().unwrap(), &headers)
    }

    fn taken(routes: Vec<RouteMatcher>, uri: &str) -> Option<usize> {
        find(routes, Method::GET, uri).map(|found| found.id.0)
    }

    #[test]
    fn the_host_goes_before_the_path() {
        let routes = || {
            vec![
                route("/login"),
                at("*.example.com", "/login"),
                at("*.app.example.com", "/*"),
                at("a.app.example.com", "/*"),
            ]
        };
        assert_eq!(taken(routes(), "http://A.app.example.com/login"), Some(3));
        assert_eq!(taken(routes(), "http://b.app.example.com/login"), Some(2));
        assert_eq!(taken(routes(), "http://x.y.example.com:80/login"), Some(1));
        assert_eq!(taken(routes(), "http://example.com/login"), Some(0));
        assert_eq!(taken(routes(), "http://badexample.com/login"), Some(0));
        assert_eq!(taken(routes(), "http://x.example.com/other"), None);
    }

    #[test]
    fn a_host_without_a_route_for_the_path_leaves_it_to_the_next() {
        let routes = vec![at("a.example", "/x"), route("/*")];
        assert_eq!(taken(routes, "http://a.example/y"), Some(1));
    }

    #[test]
    fn the_path_goes_exact_then_pattern_then_longest_prefix() {
        let routes = || {
            vec![
                route("/*"),
                route("/teams/*"),
                route("/teams/{team}/*"),
                route("/{x}/red"),
                route("/teams/{team}"),
                route("/teams/red"),
            ]
        };
        assert_eq!(taken(routes(), "/teams/red"), Some(5));
        assert_eq!(taken(routes(), "/teams/blue"), Some(4));
        assert_eq!(taken(routes(), "/clubs/red"), Some(3));
        assert_eq!(taken(routes(), "/teams/blue/x"), Some(2));
        assert_eq!(taken(routes(), "/teams"), Some(1));
        assert_eq!(taken(routes(), "/"), Some(0));
    }

    #[test]
    fn then_methods_go_before_headers_and_headers_before_order() {
        let routes = || {
            vec![
                route("/a"),
                with(&["a", "b"], "/a"),
                by(&[Method::GET], "/a"),
                by(&[Method::GET], "/a"),
                with(&["a"], "/b"),
                with(&["a", "b"], "/b"),
                with(&["a", "c"], "/b"),
            ]
        };
        assert_eq!(taken(routes(), "/a"), Some(2));
        assert_eq!(taken(routes(), "/b"), Some(5));
        let post = find(routes(), Method::POST, "/a").unwrap();
        assert_eq!(post.id, RouteId(1));
    }

    #[test]
    fn get_stands_for_head_too() {
        let head = |methods: &[Method]| find(vec![by(methods, "/a")], Method::HEAD, "/a").is_some();
        assert!(head(&[Method::GET]));
        assert!(head(&[]));
        assert!(!head(&[Method::POST]));
    }

    #[test]
    fn another_spelling_of_a_path_takes_the_same_route() {
        for path in [
            "/login",
            "/%6cogin",
            "//login",
            "/login/",
            "/x/../login",
            "/login;x",
        ] {
            let routes = vec![route("/*"), route("/login")];
            assert_eq!(taken(routes, path), Some(1), "{path}");
        }
    }

    #[test]
    fn captures_are_in_normal_form() {
        let found = find(
            vec![route("/teams/{team}/of/{id}")],
            Method::GET,
            "//teams/r%65d/of/a%2fb/",
        );
        let captures = found.unwrap().captures;
        assert_eq!(captures.get("team"), Some("red"));
        assert_eq!(captures.get("id"), Some("a%2Fb"));
    }

    #[test]
    fn the_host_header_is_matched_without_its_port() {
        let table = RouteTable::new(vec![at("app.example.com", "/*")]);
        let find = |host| {
            let host = (http::header::HOST, HeaderValue::from_static(host));
            let headers = HeaderMap::from_iter([host]);
            table.find(&Method::GET, &Uri::from_static("/"), &headers)
        };
        assert!(find("APP.example.com:8080").is_some());
        assert!(find("app.example.org").is_none());
    }

    const HOSTS: [Option<&str>; 4] = [None, Some("a.b.c"), Some("*.b.c"), Some("*.c")];
    const PATHS: [&str; 9] = [
        "/*", "/x", "/x/*", "/{p}", "/x/y", "/x/{p}", "/{p}/y", "/{p}/*", "/x/{p}/*",
    ];

    /// All different routes that there are of these hosts, paths and a method or none.
    fn all_routes() -> Vec<(Option<&'static str>, &'static str, bool)> {
        let of_host = |host| PATHS.into_iter().map(move |path| (host, path));
        let places = HOSTS.into_iter().flat_map(of_host);
        places
            .flat_map(|(host, path)| [(host, path, false), (host, path, true)])
            .collect()
    }

    fn matcher((host, path, posts): (Option<&str>, &str, bool)) -> RouteMatcher {
        let methods = if posts {
            vec![Method::POST]
        } else {
            Vec::new()
        };
        let host = host.map(|host| HostPattern::parse(host).unwrap());
        RouteMatcher {
            host,
            methods,
            ..route(path)
        }
    }

    proptest! {
        #[test]
        fn different_routes_do_not_depend_on_their_order(
            routes in subsequence(all_routes(), 1..12).prop_flat_map(|routes| {
                (Just(routes.clone()), Just(routes).prop_shuffle())
            }),
            host in select(vec!["a.b.c", "d.b.c", "d.c", "c"]),
            path in select(vec!["/", "/x", "/z", "/x/y", "/x/z", "/z/y", "/z/z", "/x/y/z"]),
        ) {
            let uri = format!("http://{host}{path}");
            let chosen = |routes: &[(Option<&'static str>, &'static str, bool)]| {
                let matchers = routes.iter().copied().map(matcher).collect();
                find(matchers, Method::POST, &uri).map(|found| routes[found.id.0])
            };
            prop_assert_eq!(chosen(&routes.0), chosen(&routes.1));
        }
    }
}
