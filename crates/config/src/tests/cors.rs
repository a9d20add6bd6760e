//! `cors` beside other keys of routes; its own keys have their tests beside them.

use std::sync::Arc;

use weir_middleware::Cors;

use super::routing::{folder, refused};

const KEYS: &str = "cors: {origins: [\"https://a.example\"], methods: GET}";

#[test]
fn headers_of_cors_are_not_edited_where_weir_sets_them() {
    let edits = "response_headers: {set: {access-control-allow-origin: \"*\"}}";
    refused(
        &format!("match: {{}}, upstream: app, {KEYS}, {edits}"),
        &[
            "`access-control-allow-origin` is set by `cors`",
            "leave it out here",
        ],
    );
}

#[test]
fn pages_may_read_the_headers_of_the_routes_limits() {
    let exposed = |route: &str| {
        let route = format!("match: {{}}, upstream: app, {KEYS}{route}");
        let settings = folder("", &route).settings();
        let steps = &settings.routes[0].response_steps;
        steps.find::<Arc<Cors>>().unwrap().exposed.clone()
    };
    assert_eq!(exposed(""), "Retry-After, RateLimit-Policy, RateLimit");
    assert_eq!(exposed(", ratelimit_headers: none"), "Retry-After");
}
