//! Upstreams behind Unix sockets.

use crate::support::upstream::text;
use crate::support::*;

#[test]
fn an_upstream_behind_a_socket_gets_requests_on_kept_connections() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("app.sock");
    let upstream = Upstream::behind(Entrance::Unix(path.clone()), |_| text("real"));
    let server = format!("unix://{}", path.display());
    let gateway = Setup::with_upstreams(&format!("{{app: {{servers: [\"{server}\"]}}}}")).start();
    let mut client = gateway.client();
    for _ in 0..3 {
        let answer = client.send(&post("/a", &"x".repeat(100_000)));
        assert_eq!((answer.status, answer.text()), (200, "real"));
    }
    assert_eq!((upstream.count(), upstream.connections()), (3, 1));
    let received = upstream.last();
    assert_eq!(received.lines("host"), ["app.example.com"]);
    assert_eq!(received.body.len(), 100_000);
    let server = format!("unix:{}", path.display());
    let line = gateway.logged("/a");
    assert_eq!(line["upstream"], server.as_str());
}

#[test]
fn a_socket_that_nothing_listens_on_is_an_upstream_out_of_reach() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("none.sock");
    let server = format!("unix://{}", path.display());
    let gateway = Setup::with_upstreams(&format!("{{app: {{servers: [\"{server}\"]}}}}")).start();
    assert_eq!(gateway.send(&get("/")).status, 502);
    gateway.logs("upstream request failed", 1);
    let text = gateway.log_text();
    assert!(text.contains("none.sock"), "{text}");
}
