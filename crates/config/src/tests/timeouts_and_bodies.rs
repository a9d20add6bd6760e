//! How long requests may take and how large they may be: what routes and upstreams say, and which
//! of the two goes.

use std::time::Duration;

use super::*;

pub(super) fn folder(upstream: &str, route: &str) -> Folder {
    let gateway = format!(
        "upstreams: {{app: {{servers: [\"http://a:1\"]{upstream}}}}}\n\
         routes: [{{match: {{path: \"/*\"}}, upstream: app, limits: [RequestsPerAddress]{route}}}]\n"
    );
    Folder::with(&[
        ("gateway.yaml", &gateway),
        ("limits/defaults.yaml", DEFAULTS),
    ])
}

#[test]
fn a_route_has_its_own_bounds_and_else_those_of_its_upstream() {
    let upstream = ", connect_timeout: 1s, response_timeout: 2s, body_timeout: 3s, \
                    total_timeout: 4s, max_body_bytes: 1KiB, request_buffering: {max: 1KiB}";
    let settings = folder(upstream, "").settings();
    let [route] = &settings.routes[..] else {
        panic!("one route")
    };
    assert_eq!(route.timeouts, settings.upstreams[0].settings.timeouts);
    assert_eq!(route.timeouts.total, Some(Duration::from_secs(4)));
    assert_eq!(route.bounds.max_body_bytes, Some(1024));
    assert!(route.request_buffering.is_some());

    let own = ", body_timeout: 5s, total_timeout: 6s, max_body_bytes: 2KiB, request_buffering: off";
    let settings = folder(upstream, own).settings();
    let route = &settings.routes[0];
    let seconds = [
        route.timeouts.connect,
        route.timeouts.response,
        route.timeouts.body,
    ];
    assert_eq!(seconds.map(|time| time.as_secs()), [1, 2, 5]);
    assert_eq!(route.timeouts.total, Some(Duration::from_secs(6)));
    assert_eq!(route.bounds.max_body_bytes, Some(2048));
    assert!(route.request_buffering.is_none());
    assert!(settings.upstreams[0].request_buffering.is_some());
}

#[test]
fn bounds_that_leave_no_room_are_refused() {
    for (keys, message) in [
        ("total_timeout: 0s", "a time of zero leaves no time at all"),
        ("max_body_bytes: 0", "a size of zero leaves no room at all"),
        ("max_body_bytes: much", "is not a size"),
        (
            "request_buffering: {max: 0}",
            "a size of zero leaves no room at all",
        ),
        (
            "request_buffering: {max: 2GiB}",
            "more than 1GiB of one body",
        ),
        (
            "request_buffering: {max: 2KiB, total: 1KiB}",
            "no room for one body of `max` bytes",
        ),
        (
            "request_buffering: on",
            "`on` is neither `off` nor keys and values",
        ),
        ("request_buffering: {total: 1KiB}", "max"),
    ] {
        for found in [
            folder(&format!(", {keys}"), "").findings(),
            folder("", &format!(", {keys}")).findings(),
        ] {
            assert!(found.contains(message), "{keys}: {found}");
            assert!(found.contains("1 error, "), "{keys}: {found}");
        }
    }
}
