use std::convert::Infallible;

use http::Request;
use http::request::Builder;
use http_body_util::{Empty, Full};
use tower::{ServiceExt, service_fn};
use weir_http::request::BoxedRequest;

use super::*;
use crate::{RejectInvalidLayer, ResponseBody};

type Fields<'f> = [(&'f str, &'f str)];

/// What Traefik sends for `GET /a?b=c` of a client at 203.0.113.9.
const ASKED: &Fields<'static> = &[
    ("x-forwarded-method", "GET"),
    ("x-forwarded-uri", "/a?b=c"),
    ("x-forwarded-host", "app.example"),
    ("x-forwarded-proto", "https"),
    ("x-forwarded-for", "203.0.113.9"),
];

fn subrequest(path: &str, peer: &str, fields: &Fields<'_>) -> Request<()> {
    let request = Request::get(path).version(Version::HTTP_10);
    let add = |request: Builder, (name, value): &(&str, &str)| request.header(*name, *value);
    let mut request = fields.iter().fold(request, add).body(()).unwrap();
    let address = peer.parse().unwrap();
    let peer = Peer {
        address,
        secure: false,
    };
    request.extensions_mut().insert(RequestContext::new(peer));
    request
}

/// `ASKED` with one field in place of its own, or with one more.
fn with<'f>(name: &'f str, value: &'f str) -> Vec<(&'f str, &'f str)> {
    let asked = ASKED.iter().copied();
    let others = asked.filter(|(other, _)| *other != name);
    others.chain([(name, value)]).collect()
}

fn without(name: &str) -> Vec<(&'static str, &'static str)> {
    let asked = ASKED.iter().copied();
    asked.filter(|(other, _)| *other != name).collect()
}

fn layer() -> ForwardAuthLayer {
    ForwardAuthLayer::new(&["10.0.0.0/8".parse().unwrap()])
}

/// The request that a trusted proxy describes.
fn restored(fields: &Fields<'_>) -> Result<Request<()>, SubrequestError> {
    let mut request = subrequest("/forward-auth", "10.0.0.1", fields).into_boxed();
    restore(&mut request.head).map(|()| request.into())
}

fn peer(request: &Request<()>) -> (String, bool) {
    let peer = RequestContext::peer(request.extensions()).unwrap();
    (peer.address.to_string(), peer.secure)
}

#[test]
fn the_request_is_the_one_that_the_proxy_received() {
    let mut fields = with("x-forwarded-method", "DELETE");
    fields.extend([
        ("host", "weir:9000"),
        ("authorization", "Bearer a"),
        ("connection", "close"),
        ("content-length", "12"),
        ("max-forwards", "0"),
    ]);
    let request = restored(&fields).unwrap();
    assert_eq!(request.method(), Method::DELETE);
    assert_eq!(request.uri(), "/a?b=c");
    assert_eq!(request.version(), Version::HTTP_11);
    assert_eq!(peer(&request), ("203.0.113.9".to_owned(), true));
    let mut headers: Vec<_> = request.headers().iter().collect();
    headers.sort_by_key(|(name, _)| name.as_str());
    let headers: Vec<_> = headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
        .collect();
    assert_eq!(
        headers,
        [
            ("authorization", "Bearer a"),
            ("host", "app.example"),
            ("x-forwarded-host", "app.example"),
            ("x-forwarded-proto", "https"),
        ]
    );
}

#[test]
fn the_peer_is_the_last_hop_and_what_came_before_is_never_taken_for_it() {
    for (line, address, earlier) in [
        ("203.0.113.9", "203.0.113.9", None),
        ("6.6.6.6, 203.0.113.9", "203.0.113.9", Some("6.6.6.6")),
        ("6.6.6.6,,203.0.113.9", "203.0.113.9", Some("6.6.6.6,")),
        ("6.6.6.6, [2001:db8::1]:80", "2001:db8::1", Some("6.6.6.6")),
        (", 203.0.113.9:4711", "203.0.113.9", None),
    ] {
        let request = restored(&with("x-forwarded-for", line)).unwrap();
        assert_eq!(peer(&request).0, address, "{line}");
        let lines: Vec<_> = request.headers().get_all(FORWARDED_FOR).iter().collect();
        assert_eq!(lines, Vec::from_iter(earlier), "{line}");
    }
    let mut fields = ASKED.to_vec();
    fields.insert(0, ("x-forwarded-for", "6.6.6.6"));
    let request = restored(&fields).unwrap();
    assert_eq!(peer(&request).0, "203.0.113.9");
    assert_eq!(request.headers()[FORWARDED_FOR], "6.6.6.6");
    // Lines are one list: the last address of the last line is the peer, wherever it was split.
    let lists = [
        &["6.6.6.6, 10.0.0.7, 203.0.113.9"][..],
        &["6.6.6.6, 10.0.0.7", "203.0.113.9"],
        &["6.6.6.6", "10.0.0.7, 203.0.113.9"],
        &["6.6.6.6", "10.0.0.7", "203.0.113.9"],
    ];
    for lines in lists {
        let mut fields = without("x-forwarded-for");
        fields.extend(lines.iter().map(|line| ("x-forwarded-for", *line)));
        let request = restored(&fields).unwrap();
        assert_eq!(peer(&request).0, "203.0.113.9", "{lines:?}");
        let left = request.headers().get_all(FORWARDED_FOR).iter();
        let left: Vec<_> = left.map(|line| line.to_str().unwrap()).collect();
        assert_eq!(left.join(", "), "6.6.6.6, 10.0.0.7", "{lines:?}");
    }
}

#[test]
fn a_header_that_is_missing_is_named() {
    for (name, _) in ASKED {
        for fields in [without(name), with(name, "")] {
            let found = restored(&fields).unwrap_err();
            let missing = SubrequestError::Missing(HeaderName::from_static(name));
            assert_eq!(found, missing);
            assert!(found.to_string().contains(name), "{found}");
        }
    }
}

#[test]
fn a_header_that_the_client_may_have_added_or_spoiled_is_refused() {
    for (name, value) in [
        ("x-forwarded-method", "GET /"),
        ("x-forwarded-uri", "a"),
        ("x-forwarded-uri", "http://other/"),
        ("x-forwarded-uri", "/a b"),
        ("x-forwarded-proto", "ftp"),
        ("x-forwarded-host", "a:x"),
        ("x-forwarded-host", "[::1/x"),
        ("x-forwarded-host", "::1"),
        ("x-forwarded-host", "%zz"),
        ("x-forwarded-host", "user@app.example"),
        ("x-forwarded-for", "203.0.113.9, unknown"),
        ("x-forwarded-for", "203.0.113.9, "),
        ("x-forwarded-for", "0.0.0.0"),
    ] {
        let found = restored(&with(name, value)).unwrap_err();
        let malformed = SubrequestError::Malformed(HeaderName::from_static(name));
        assert_eq!(found, malformed, "{value}");
    }
    for (name, value) in &ASKED[..4] {
        let mut fields = ASKED.to_vec();
        fields.push((name, value));
        let found = restored(&fields).unwrap_err();
        assert!(matches!(found, SubrequestError::Malformed(_)), "{name}");
    }
}

#[test]
fn a_proxy_that_is_not_trusted_is_believed_nothing() {
    for address in ["192.0.2.1", "2001:db8::1", "::ffff:192.0.2.1"] {
        let request = subrequest("/forward-auth", address, ASKED);
        let found = layer().protocol(&request.into_boxed().head);
        assert_eq!(found, Err(SubrequestError::Untrusted), "{address}");
    }
    let mapped = subrequest("/forward-auth", "::ffff:10.0.0.1", ASKED);
    assert_eq!(
        layer().protocol(&mapped.into_boxed().head),
        Ok(Protocol::ForwardAuth)
    );
}

/// What a proxy gets when the layers below respond so.
async fn response(path: &str, peer: &str, below: Response<()>) -> (u16, Option<String>) {
    let inner = service_fn(move |_: BoxedRequest<()>| {
        let response = below.clone();
        async { Ok::<_, Infallible>(response.map(|()| ResponseBody::<Empty<Bytes>>::full(""))) }
    });
    let service = RejectInvalidLayer::new(SubrequestError::refusal).layer(inner);
    let service = layer().layer(service);
    let response = service.oneshot(subrequest(path, peer, ASKED)).await;
    let response = response.unwrap();
    let status = response.headers().get(WEIR_STATUS);
    let status = status.map(|status| status.to_str().unwrap().to_owned());
    (response.status().as_u16(), status)
}

fn below(status: u16) -> Response<()> {
    Response::builder().status(status).body(()).unwrap()
}

#[tokio::test]
async fn nothing_but_an_admission_is_a_success() {
    let mut admission = below(200);
    admission.extensions_mut().insert(Admitted);
    for path in ["/forward-auth", "/auth-request?a=b"] {
        let found = response(path, "10.0.0.1", admission.clone()).await;
        assert_eq!(found, (200, None), "{path}");
    }
    for status in [200, 204, 299] {
        let found = response("/forward-auth", "10.0.0.1", below(status)).await;
        assert_eq!(found, (403, None));
        let found = response("/auth-request", "10.0.0.1", below(status)).await;
        assert_eq!(found, (403, Some(status.to_string())));
    }
}

#[tokio::test]
async fn a_denial_is_sent_as_it_is_except_to_nginx_which_would_take_it_for_an_error() {
    for status in [429, 503, 404, 403, 302] {
        let found = response("/forward-auth", "10.0.0.1", below(status)).await;
        assert_eq!(found, (status, None));
        let found = response("/auth-request", "10.0.0.1", below(status)).await;
        assert_eq!(found, (403, Some(status.to_string())));
    }
}

#[tokio::test]
async fn a_subrequest_that_describes_no_request_never_gets_below() {
    let mut admission = below(200);
    admission.extensions_mut().insert(Admitted);
    for (path, peer, status) in [
        ("/forward-auth", "192.0.2.1", 403),
        ("/auth-request", "192.0.2.1", 403),
        ("/", "10.0.0.1", 404),
        ("/forward-auth/", "10.0.0.1", 404),
    ] {
        let found = response(path, peer, admission.clone()).await;
        assert_eq!(found, (status, None), "{path}");
    }
}

/// A client can spoil the header of its host or its target. nginx would take 400 for a failure of
/// Weir's, and answer with 500.
#[tokio::test]
async fn the_problem_says_which_header_is_missing_and_is_no_failure_to_nginx() {
    for (path, status, weir_status) in [
        ("/forward-auth", 400, None),
        ("/auth-request", 403, Some("400")),
    ] {
        let inner = service_fn(|_: BoxedRequest<()>| async {
            Ok::<_, Infallible>(Response::new(ResponseBody::<Full<Bytes>>::full("")))
        });
        let service = RejectInvalidLayer::new(SubrequestError::refusal).layer(inner);
        let asked = subrequest(path, "10.0.0.1", &without("x-forwarded-uri"));
        let response = layer().layer(service).oneshot(asked).await.unwrap();
        assert_eq!(response.status(), status);
        let said = response.headers().get(WEIR_STATUS);
        assert_eq!(said.map(|said| said.to_str().unwrap()), weir_status);
        let body = http_body_util::BodyExt::collect(response.into_body()).await;
        let body = body.unwrap().to_bytes();
        let document: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(
            document["detail"],
            "The subrequest lacks the header x-forwarded-uri."
        );
    }
}
