//! `cors` of routes.

use std::sync::Arc;

use weir_middleware::{Cors, Origins};

use super::routing::{folder, refused};

#[test]
fn cors_that_browsers_would_not_understand_is_refused() {
    let origin = "origins: [\"https://a.example\"]";
    for (cors, told) in [
        (
            format!("{origin}, headers: x-a"),
            ["the app answers preflights", "say which `methods`"],
        ),
        (
            format!("{origin}, max_age: 1h"),
            ["`max_age` is its own", "say which `methods`"],
        ),
        (
            format!("{origin}, methods: []"),
            ["pages may use no method", "name some"],
        ),
        (
            format!("{origin}, methods: get"),
            ["case-sensitive", "\"GET\""],
        ),
        (
            format!("{origin}, methods: \"*\", credentials: true"),
            ["browsers read `*` as a name", "one by one"],
        ),
        (
            format!("{origin}, methods: GET, headers: [\"*\", x-a]"),
            ["stands for all names", "one by one"],
        ),
        (
            format!("{origin}, methods: GET, expose: [\"x a\"]"),
            ["not the name of a header", "cors.expose"],
        ),
        (
            "origins: \"*\", methods: GET, credentials: true".to_owned(),
            ["no credentials for all origins", "name the origins"],
        ),
        (
            "origins: \"https://*.com\"".to_owned(),
            ["not a pattern of origins", "https://*.example.com"],
        ),
        (
            "origins: \"https://a*.example.com\"".to_owned(),
            ["not a pattern of origins", "any port"],
        ),
        (
            "origins: \"*.example.com\"".to_owned(),
            ["not a pattern of origins", "any port"],
        ),
        (
            "origins: \"https://a.*.com\"".to_owned(),
            ["not a pattern of origins", "any port"],
        ),
    ] {
        refused(
            &format!("match: {{}}, upstream: app, cors: {{{cors}}}"),
            &told,
        );
    }
    let edits = format!(
        "match: {{}}, upstream: app, cors: {{{origin}, methods: GET}}, \
         response_headers: {{set: {{access-control-allow-origin: \"*\"}}}}"
    );
    refused(
        &edits,
        &[
            "`access-control-allow-origin` is set by `cors`",
            "leave it out here",
        ],
    );
}

#[test]
fn cors_with_methods_is_as_written() {
    let cors = "cors: {origins: [\"https://*.example.com\", \"http://localhost:*\", \"https://a.example:8443\"], \
                methods: [GET, PUT], headers: [X-A, x-b], expose: x-total, max_age: 1h30m}";
    let settings = folder("", &format!("match: {{}}, upstream: app, {cors}")).settings();
    let cors = settings.routes[0]
        .response_steps
        .find::<Arc<Cors>>()
        .unwrap();
    assert!(matches!(&cors.origins, Origins::Listed(listed) if listed.len() == 3));
    let answer = cors.preflights.as_ref().unwrap();
    assert_eq!(
        (&answer.methods, &answer.max_age),
        (&"GET, PUT".parse().unwrap(), &Some("5400".parse().unwrap()))
    );
    assert_eq!(answer.headers.as_ref().unwrap(), "x-a, x-b");
    assert_eq!(
        cors.exposed,
        "Retry-After, RateLimit-Policy, RateLimit, x-total"
    );
}
