//! How long an upstream, and all of a request, may take.

use std::time::Duration;

use http_body_util::{BodyExt, StreamBody};

use crate::forwarding::assert_problem;
use crate::support::upstream::text;
use crate::support::*;

#[test]
fn an_upstream_that_takes_too_long_is_504() {
    let upstream = Upstream::serving(|_| std::future::pending());
    let address = upstream.address();
    let gateway = Setup::with_upstreams(&format!(
        "{{app: {{servers: [\"http://{address}\"], response_timeout: 200ms}}}}"
    ))
    .start();
    assert_problem(&gateway.send(&get("/")), 504);
}

#[test]
fn a_route_bounds_how_long_all_of_a_request_may_take() {
    let upstream = Upstream::serving(|request| async move {
        match request.uri().path() {
            "/fast" => text("fast"),
            "/endless" => {
                let pieces = futures_util::stream::unfold((), |()| async {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    let piece = bytes::Bytes::from_static(b"x");
                    Some((Ok(http_body::Frame::data(piece)), ()))
                });
                http::Response::new(StreamBody::new(pieces).boxed())
            }
            _ => std::future::pending().await,
        }
    });
    let gateway = Setup::before(&upstream)
        .routes(&["{name: all, match: {}, upstream: app, total_timeout: 2s}"])
        .start();
    assert_eq!(gateway.send(&get("/fast")).status, 200);
    let late = gateway.send(&get("/silent"));
    assert_eq!((late.status, &late.json()["status"]), (504, &504.into()));
    let mut client = gateway.client();
    client.write(&get("/endless").bytes()).unwrap();
    assert_eq!(client.read_head().unwrap().status, 200);
    let rest = client.rest();
    assert!(!rest.ends_with(b"0\r\n\r\n"), "the connection is cut");
    let by_http2 = http2::run(async {
        let mut sender = http2::connect(gateway.address()).await;
        let response = sender.send_request(http2::get("/endless")).await.unwrap();
        response.into_body().collect().await.is_err()
    });
    assert!(by_http2);
    let logged = gateway.logged("/silent");
    assert_eq!(logged["upstream_error"], "total_timeout");
}
