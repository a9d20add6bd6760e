//! Expressions by themselves, and the routes that have them.

use http::{HeaderMap, Method};
use weir_rules::{PathPattern, PathRegex, RouteMatch, RouteMatcher, RouteTable, ValuePattern};

use super::*;

fn parse(text: &str) -> AnchoredRegex {
    anchored(text, false).unwrap()
}

#[test]
fn an_expression_matches_a_whole_text_and_no_part_of_one() {
    for text in ["xab", "abx", "xabx", "ab\n", "\nab", ""] {
        assert!(!parse("ab").is_match(text), "{text:?}");
    }
    assert!(parse("ab").is_match("ab") && parse("^ab$").is_match("ab"));
    // Each alternative is anchored, and the longer one is not hidden by the shorter.
    assert!(parse("a|ab").is_match("ab") && !parse("a|b").is_match("ax"));
    assert!(!anchored("AB", false).unwrap().is_match("ab"));
    assert!(anchored("AB", true).unwrap().is_match("ab"));
}

#[test]
fn a_group_is_known_to_be_there_in_each_text_or_not_in_some() {
    for (text, may_lack) in [
        ("/users(/(?<id>[0-9]+))?", true),
        ("/users/(?<id>[0-9]*)", true),
        ("/users/(?<id>[0-9]*)(?<other>a)", true),
        ("/(a/(?<id>b)|c)", true),
        ("/(a|b(?<id>c))+", true),
        ("/(?<id>|a)", true),
        ("/(?<id>\\b)a", true),
        ("/((?<id>a)){0,3}", true),
        ("/a", true),
        ("/users/(?<id>[0-9]+)", false),
        ("(?i)/users(/(?<id>[0-9]+))", false),
        ("/(a/((?<id>b))|c/d/e(?<other>f)?/(?<ID>g))", true),
        ("/((?<id>a)x?){1,3}", false),
        ("/(?<id>(a|bc)x?)(/.*)?", false),
    ] {
        assert_eq!(parse(text).may_lack("id"), may_lack, "{text}");
    }
}

#[test]
fn an_expression_cannot_leave_the_group_that_anchors_it() {
    for text in ["a)|(b", "a)|.*(", "(?x)a # "] {
        assert!(anchored(text, false).is_err(), "{text}");
    }
}

#[test]
fn what_cannot_be_compiled_is_told_with_its_reason() {
    let error = |text: &str| anchored(text, false).unwrap_err();
    assert_eq!(error(""), RegexError::Empty);
    for (text, reason) in [
        ("(", "unclosed group"),
        ("*", "repetition operator missing expression"),
        ("(?=a)", "look-around"),
        (r"(a)\1", "backreferences are not supported"),
        ("[z-a]", "invalid character class range"),
    ] {
        let told = error(text).to_string();
        assert!(told.contains(reason) && !told.contains('\n'), "{told}");
    }
    for large in [r"\w{1000}", "(((a{100}){100}){100}){100}"] {
        assert_eq!(error(large), RegexError::TooLarge, "{large}");
    }
}

/// `(a+)+$` takes exponential time where expressions are tried by going back.
#[test]
fn no_text_makes_an_expression_slow() {
    let text = "a".repeat(100_000) + "!";
    assert!(!parse("(a+)+").is_match(&text));
}

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

fn by(methods: &[Method], path: &str) -> RouteMatcher {
    let methods = methods.to_vec();
    RouteMatcher {
        methods,
        ..route(path)
    }
}

fn find(routes: Vec<RouteMatcher>, uri: &str) -> Option<RouteMatch> {
    RouteTable::new(routes).find(&Method::GET, &uri.parse().unwrap(), &HeaderMap::new())
}

fn taken(routes: Vec<RouteMatcher>, uri: &str) -> Option<usize> {
    find(routes, uri).map(|found| found.id.0)
}

/// A route with an expression beside its pattern.
fn matching(regex: &str, path: &str) -> RouteMatcher {
    let regex = anchored(regex, true).unwrap();
    let path = route(path);
    RouteMatcher {
        path_regex: Some(PathRegex::new(regex, &path.path)),
        ..path
    }
}

#[test]
fn an_expression_narrows_a_pattern_and_goes_before_it() {
    let routes = || {
        vec![
            route("/users/*"),
            by(&[Method::GET], "/users/*"),
            matching("/users/[0-9]+", "/users/*"),
            route("/users/0"),
        ]
    };
    for (path, expected) in [
        ("/users/17", 2),
        ("/USERS//1%37/", 2),
        ("/users/17/x", 1),
        ("/users/x17", 1),
        ("/users/17%0", 1),
        ("/users/0", 3),
    ] {
        assert_eq!(taken(routes(), path), Some(expected), "{path}");
    }
}

/// The upstream may decode `%2F`. A route's limits must hold for what it then serves.
#[test]
fn an_encoded_slash_does_not_evade_an_expression() {
    let routes = || vec![route("/*"), matching("/(admin|intern)/.*", "/*")];
    for path in ["/admin/x", "/admin%2Fx", "/admin%2fx%2Fy", "/admin%5Cx"] {
        assert_eq!(taken(routes(), path), Some(1), "{path}");
    }
    assert_eq!(taken(routes(), "/admin"), Some(0));
}

#[test]
fn named_groups_capture_beside_segments() {
    let routes = vec![matching(
        "/t/[^/]+/(?<kind>a|b)(/(?<rest>.+))?",
        "/t/{team}/*",
    )];
    let captured = |uri: &str| {
        let found = find(routes.clone(), uri).unwrap();
        let all = found.captures.iter();
        all.map(|(name, text)| format!("{name}={text}"))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        captured("/t/Red/a/x%20y/z"),
        ["team=Red", "kind=a", "rest=x y/z"]
    );
    assert_eq!(captured("/T/red/B"), ["team=red", "kind=B"]);
    let names: Vec<_> = routes[0]
        .path_regex
        .as_ref()
        .unwrap()
        .capture_names()
        .collect();
    assert_eq!(names, ["team", "kind", "rest"]);
}

#[test]
fn one_of_several_values_is_enough_for_an_expression() {
    let regex = ValuePattern::Regex(anchored("[0-9]+", false).unwrap());
    let accepts = |values: &[&str]| regex.accepts(values.iter());
    assert!(accepts(&["x", "22"]) && !accepts(&["x22", ""]));
    assert!(!regex.accepts([[0xff_u8]].iter()));
}
