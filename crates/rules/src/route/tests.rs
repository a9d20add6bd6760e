use super::path_pattern::segments;
use super::*;
use http::{HeaderName, HeaderValue};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

fn route(path: &str) -> RouteMatcher {
    RouteMatcher {
        host: None,
        path: PathPattern::parse(path).unwrap(),
        methods: Vec::new(),
        path_regex: None,
        headers: Vec::new(),
        query: Vec::new(),
        preflights: false,
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
    let one = ValuePattern::Exact(b"1"[..].into());
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
fn no_host_is_below_a_domain_without_a_label_of_its_own() {
    assert!(is_below("a.example.com", ".example.com"));
    assert!(!is_below(".example.com", ".example.com"));
    assert!(!is_below("example.com", ".example.com"));
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
        "/LOGIN",
        "/Login%20",
        "/login.",
        "/login%2f",
        "/LOGIN%5C",
        "/login%3bx",
    ] {
        let routes = vec![route("/*"), route("/login")];
        assert_eq!(taken(routes, path), Some(1), "{path}");
    }
}

#[test]
fn case_matters_where_a_route_says_so() {
    let exact = |path: &str| {
        let path = PathPattern::parse(path).unwrap().case_sensitive();
        RouteMatcher {
            path,
            ..route("/*")
        }
    };
    let routes = || {
        vec![
            route("/a/{x}"),
            exact("/A/{x}"),
            exact("/caf\u{e9}"),
            route("/*"),
        ]
    };
    assert_eq!(taken(routes(), "/A/b"), Some(1));
    assert_eq!(taken(routes(), "/a/b"), Some(0));
    assert_eq!(taken(routes(), "/caf%C3%A9"), Some(2));
    assert_eq!(taken(routes(), "/CAF%C3%89"), Some(3));
    let folding = vec![route("/*"), route("/Caf\u{e9}/X")];
    assert_eq!(taken(folding, "/cAF%C3%89/x"), Some(1));
}

#[test]
fn what_is_captured_keeps_its_case() {
    let found = find(vec![route("/teams/{team}")], Method::GET, "/TEAMS/Red");
    assert_eq!(found.unwrap().captures.get("team"), Some("Red"));
}

/// Upstreams do not agree on whether `%2F` is a separator: neither reading passes a limit.
#[test]
fn an_encoded_separator_takes_the_more_specific_of_two_routes() {
    let routes = || {
        vec![
            route("/*"),
            route("/admin/users"),
            route("/projects/{id}"),
            route("/projects/*"),
            route("/{x}/y"),
        ]
    };
    let found = |uri| find(routes(), Method::GET, uri).unwrap();
    assert_eq!(found("/admin%2Fusers").id, RouteId(1));
    assert_eq!(found("/admin%5cusers%3bx").id, RouteId(1));
    let project = found("/projects/group%2Fname");
    assert_eq!(project.id, RouteId(2));
    assert_eq!(project.captures.get("id"), Some("group%2Fname"));
    assert_eq!(found("/projects/group%2Fname/x").id, RouteId(3));
    let split = found("/red%2fy");
    assert_eq!(
        (split.id, split.captures.get("x")),
        (RouteId(4), Some("red"))
    );
    assert_eq!(found("/a%2fb").id, RouteId(0));
}

/// Otherwise a client that adds `%3B1`, `%3B2` and so on has a bucket for each, of a limit per
/// `path:id`.
#[test]
fn an_encoded_separator_at_the_end_makes_no_other_subject() {
    for end in [
        "%2f",
        "%2F%2f",
        "%3b1",
        "%3B2%2f",
        "%5c",
        ".%5c%20",
        "%C2%A0",
        "%e3%80%80.",
    ] {
        let found = find(
            vec![route("/users/{id}")],
            Method::GET,
            &format!("/users/bob{end}"),
        );
        assert_eq!(found.unwrap().captures.get("id"), Some("bob"), "{end}");
    }
}

/// An app that decodes before it routes takes `/api%2Fx` for `/api/x`.
#[test]
fn no_route_for_any_segment_takes_a_path_away_from_one_that_names_its_beginning() {
    let routes = || vec![route("/{page}"), route("/api/*"), route("/{page}/about")];
    let found = |uri| find(routes(), Method::GET, uri).unwrap().id;
    for uri in ["/api/x", "/api%2Fx", "/api%5cx", "/%61pi%2fx"] {
        assert_eq!(found(uri), RouteId(1), "{uri}");
    }
    assert_eq!(found("/other%2Fabout"), RouteId(2));
    assert_eq!(found("/other%2Fx"), RouteId(0));
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

/// A host, a path, and whether a method is named.
type Written = (Option<&'static str>, &'static str, bool);

/// All different routes that there are of these hosts, paths and a method or none.
fn all_routes() -> Vec<Written> {
    let of_host = |host| PATHS.into_iter().map(move |path| (host, path));
    let places = HOSTS.into_iter().flat_map(of_host);
    places
        .flat_map(|(host, path)| [(host, path, false), (host, path, true)])
        .collect()
}

fn matcher((host, path, posts): Written) -> RouteMatcher {
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

/// How specific a route is; none when it does not match.
fn specificity((host, pattern, posts): Written, asked: &str, path: &str) -> Option<impl Ord> {
    let host = match host {
        None => 0,
        Some(host) if host == asked => usize::MAX,
        Some(host) => asked
            .ends_with(host.strip_prefix('*')?)
            .then_some(host.len())?,
    };
    let closed = pattern.strip_suffix("/*").is_none();
    let pattern = pattern.strip_suffix("/*").unwrap_or(pattern);
    let path: Vec<_> = segments(path).collect();
    let pattern: Vec<_> = segments(pattern).collect();
    let fits = path.len() == pattern.len() || (!closed && path.len() > pattern.len());
    let literal: Vec<_> = pattern.iter().map(|segment| *segment != "{p}").collect();
    let mut pairs = pattern.iter().zip(&path).zip(&literal);
    let equal = pairs.all(|((one, other), literal)| !literal || one == other);
    (fits && equal).then_some((host, closed, pattern.len(), literal, posts))
}

proptest! {
    #[test]
    fn the_most_specific_of_all_that_match_is_found(
        routes in subsequence(all_routes(), 1..12).prop_shuffle(),
        host in select(vec!["a.b.c", "d.b.c", "d.c", "c"]),
        path in select(vec!["/", "/x", "/z", "/x/y", "/x/z", "/z/y", "/z/z", "/x/y/z"]),
    ) {
        let matchers = routes.iter().copied().map(matcher).collect();
        let found = find(matchers, Method::POST, &format!("http://{host}{path}"));
        let matching = routes
            .iter()
            .filter_map(|route| Some((specificity(*route, host, path)?, route)));
        let best = matching.max_by(|(one, _), (other, _)| one.cmp(other));
        prop_assert_eq!(found.map(|found| &routes[found.id.0]), best.map(|(_, route)| route));
    }

    #[test]
    fn different_routes_do_not_depend_on_their_order(
        routes in subsequence(all_routes(), 1..12).prop_flat_map(|routes| {
            (Just(routes.clone()), Just(routes).prop_shuffle())
        }),
        host in select(vec!["a.b.c", "d.b.c", "d.c", "c"]),
        path in select(vec!["/", "/x", "/z", "/x/y", "/x/z", "/z/y", "/z/z", "/x/y/z"]),
    ) {
        let uri = format!("http://{host}{path}");
        let chosen = |routes: &[Written]| {
            let matchers = routes.iter().copied().map(matcher).collect();
            find(matchers, Method::POST, &uri).map(|found| routes[found.id.0])
        };
        prop_assert_eq!(chosen(&routes.0), chosen(&routes.1));
    }
}

fn asking(query: &str, path: &str) -> RouteMatcher {
    let (name, value) = query.split_once('=').unwrap();
    RouteMatcher {
        query: vec![(name.into(), ValuePattern::Exact(value.as_bytes().into()))],
        ..route(path)
    }
}

#[test]
fn a_query_parameter_counts_like_a_header_and_in_every_spelling() {
    let routes = || {
        vec![
            route("/s"),
            asking("page=2 x", "/s"),
            with(&["a", "b"], "/s"),
        ]
    };
    assert_eq!(taken(routes(), "/s?page=2%20x"), Some(2));
    let routes = || vec![route("/s"), asking("page=2 x", "/s")];
    for (uri, expected) in [
        ("/s?page=2+x", 1),
        ("/s?%70age=%32%20x&y", 1),
        ("/s?page=1&page=2+x", 1),
        ("/s?page=2", 0),
        ("/s", 0),
        ("/s?Page=2+x", 0),
    ] {
        assert_eq!(taken(routes(), uri), Some(expected), "{uri}");
    }
}

#[test]
fn a_preflight_takes_its_route_without_the_headers_of_the_request() {
    let mut with_header = with(&["x-beta"], "/s");
    with_header.preflights = true;
    let headers = HeaderMap::from_iter([
        (ORIGIN, HeaderValue::from_static("https://app.example.com")),
        (
            ACCESS_CONTROL_REQUEST_METHOD,
            HeaderValue::from_static("POST"),
        ),
    ]);
    let table = RouteTable::new(vec![route("/s"), with_header]);
    let uri = Uri::from_static("/s");
    let taken = |method: Method| table.find(&method, &uri, &headers).unwrap().id.0;
    assert_eq!((taken(Method::OPTIONS), taken(Method::POST)), (1, 0));
}
