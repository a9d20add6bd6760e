//! Access to the admin API: for clients with a token, or, if none is configured, for this machine.
//!
//! Not only this machine's users send requests from it. A proxy on it forwards the requests of
//! others, and a browser sends what any web page tells it to, perhaps to a name that the page
//! resolves to 127.0.0.1 (DNS rebinding). Both are refused without a token; with one, they would
//! have to know it.
//!
//! The dashboard is a page as well. Browsers tell that it is this listener's own by `Origin` and
//! `Sec-Fetch-Site`, which no page can write. The token is typed into it, and sent as every other
//! client sends it: there is no cookie that a browser would add for another page.

use std::net::IpAddr;
use std::sync::Arc;

use http::header::{AUTHORIZATION, FORWARDED, HOST, ORIGIN};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Method, request};
use weir_config::AdminToken;

use super::error::ApiError;

/// The sender of a request, for the log of changes: the name of a token, or the address of this
/// machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::app) struct Operator(Arc<str>);

impl Operator {
    pub(in crate::app) fn name(&self) -> &str {
        &self.0
    }
}

/// Refuses a request without the right to its endpoint. `only_asks` says that the endpoint changes
/// nothing, whatever the method.
pub(super) fn check(
    tokens: &[AdminToken],
    has_dashboard: bool,
    peer: Option<IpAddr>,
    head: &request::Parts,
    only_asks: impl FnOnce() -> bool,
) -> Result<Operator, ApiError> {
    if tokens.is_empty() {
        let peer = is_local(peer, has_dashboard, head);
        let peer = peer.map_err(|why| ApiError::Forbidden(why.to_owned()))?;
        return Ok(Operator(peer.to_string().into()));
    }
    let shown = bearer(&head.headers);
    // All are compared, so that the time does not tell which one it is.
    let known = tokens.iter().fold(None, |found, token| {
        let is_it = shown.is_some_and(|shown| token.is(shown));
        found.or(is_it.then_some(token))
    });
    let token = known.ok_or(ApiError::Unauthorised)?;
    let name = &token.name;
    let is_change = || !matches!(head.method, Method::GET | Method::HEAD) && !only_asks();
    if token.is_read_only && is_change() {
        let why = format!("The token \"{name}\" is in `admin.read_only`; show another one.");
        return Err(ApiError::Forbidden(why));
    }
    Ok(Operator(Arc::clone(name)))
}

/// Whether a request shows a token, right or wrong.
pub(super) fn shows_token(head: &request::Parts) -> bool {
    bearer(&head.headers).is_some()
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let field = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = field.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(token)
}

/// The address, if this machine's own user sent the request; the error says why not.
fn is_local(
    peer: Option<IpAddr>,
    has_dashboard: bool,
    head: &request::Parts,
) -> Result<IpAddr, &'static str> {
    let peer = peer.map(|peer| peer.to_canonical());
    let Some(peer) = peer.filter(IpAddr::is_loopback) else {
        return Err("Without a token only this machine may ask; configure `admin: {token: ...}`.");
    };
    if is_forwarded(&head.headers) {
        return Err("A proxy passed this on; configure `admin: {token: ...}` for such requests.");
    }
    let is_allowed_page = has_dashboard && is_of_own_page(head);
    let is_of_other_page = is_of_a_page(&head.headers) && !is_allowed_page;
    if is_of_other_page || !host(head).is_some_and(|host| is_loopback(&host)) {
        return Err("This may come from a web page; use `localhost` and no browser, or a token.");
    }
    Ok(peer)
}

/// Whether there is a header that only proxies write.
fn is_forwarded(headers: &HeaderMap) -> bool {
    let written_by_proxies = [FORWARDED.as_str(), "x-forwarded-for", "x-real-ip", "via"];
    written_by_proxies
        .iter()
        .any(|name| headers.contains_key(*name))
}

/// Browsers say which page a request comes from; an address that the user enters comes from none.
fn is_of_a_page(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site");
    headers.contains_key(ORIGIN) || site.is_some_and(|site| site != "none")
}

/// Whether all that the browser says about the page is that it has the origin of this request's
/// target.
fn is_of_own_page(head: &request::Parts) -> bool {
    let site = head.headers.get("sec-fetch-site");
    let origin = head.headers.get(ORIGIN);
    let own = authority(head).map(|authority| format!("http://{authority}"));
    let is_own = |origin: &HeaderValue| {
        let own = own.as_ref().map(String::as_bytes);
        own.is_some_and(|own| origin.as_bytes().eq_ignore_ascii_case(own))
    };
    site.is_none_or(|site| site == "same-origin") && origin.is_none_or(is_own)
}

fn authority(head: &request::Parts) -> Option<Authority> {
    let written = || head.headers.get(HOST)?.to_str().ok()?.parse().ok();
    head.uri.authority().cloned().or_else(written)
}

fn host(head: &request::Parts) -> Option<String> {
    let authority = authority(head)?;
    Some(authority.host().trim_matches(['[', ']']).to_owned())
}

fn is_loopback(host: &str) -> bool {
    let address = host.parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    /// The operator who sends a request with this method and these fields, apart from the
    /// dashboard.
    fn operator(
        tokens: &[AdminToken],
        method: Method,
        peer: &str,
        fields: &[(&str, &str)],
    ) -> Option<String> {
        operator_with(false, tokens, method, peer, fields)
    }

    /// The same, where there is a dashboard or not.
    fn operator_with(
        dashboard: bool,
        tokens: &[AdminToken],
        method: Method,
        peer: &str,
        fields: &[(&str, &str)],
    ) -> Option<String> {
        let mut request = Request::builder().method(method).uri("/v1/buckets/L/a");
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let (head, ()) = request.body(()).unwrap().into_parts();
        let operator = check(tokens, dashboard, peer.parse().ok(), &head, || false).ok()?;
        Some(operator.name().to_owned())
    }

    /// Whether a request with these fields may see buckets.
    fn may(token: bool, peer: &str, fields: &[(&str, &str)]) -> bool {
        let token = token.then(|| AdminToken::new("admin", TOKEN).unwrap());
        operator(token.as_slice(), Method::GET, peer, fields).is_some()
    }

    #[test]
    fn a_read_only_token_never_posts_but_where_that_changes_nothing() {
        let tokens = [AdminToken::new("grafana", TOKEN).unwrap().read_only()];
        let request = Request::post("/v1/buckets/L/a/refund");
        let request = request.header("authorization", format!("Bearer {TOKEN}"));
        let (head, ()) = request.body(()).unwrap().into_parts();
        for only_asks in [false, true] {
            let operator = check(&tokens, false, None, &head, || only_asks);
            assert_eq!(operator.is_ok(), only_asks);
        }
    }

    #[test]
    fn an_operator_is_known_by_the_token_or_else_by_the_loopback_address() {
        let alice = AdminToken::new("alice", TOKEN).unwrap();
        let grafana = AdminToken::new("grafana", "fedcba9876543210").unwrap();
        let tokens = [alice, grafana.read_only()];
        let with = |method, token: &str| {
            let bearer = format!("Bearer {token}");
            operator(&tokens, method, "192.0.2.1", &[("authorization", &bearer)])
        };
        assert_eq!(with(Method::DELETE, TOKEN).as_deref(), Some("alice"));
        let reading = with(Method::GET, "fedcba9876543210");
        assert_eq!(reading.as_deref(), Some("grafana"));
        for method in [Method::PUT, Method::POST, Method::DELETE, Method::PATCH] {
            assert_eq!(with(method, "fedcba9876543210"), None);
        }
        let local = operator(
            &[],
            Method::PUT,
            "::ffff:127.0.0.1",
            &[("host", "localhost")],
        );
        assert_eq!(local.as_deref(), Some("127.0.0.1"));
    }

    #[test]
    fn without_a_token_only_this_machine_may_ask() {
        for peer in ["127.0.0.1", "127.8.0.1", "::1", "::ffff:127.0.0.1"] {
            assert!(may(false, peer, &[("host", "localhost:9901")]), "{peer}");
        }
        for peer in ["192.0.2.1", "10.0.0.1", "2001:db8::1", "unknown"] {
            assert!(!may(false, peer, &[("host", "localhost:9901")]), "{peer}");
        }
    }

    #[test]
    fn without_a_token_the_host_must_be_this_machine() {
        for host in ["127.0.0.1", "127.0.0.1:9901", "[::1]:9901", "LOCALHOST:1"] {
            assert!(may(false, "127.0.0.1", &[("host", host)]), "{host}");
        }
        for host in [
            "rebound.example.com",
            "192.0.2.1",
            "localhost.example.com",
            "",
        ] {
            assert!(!may(false, "127.0.0.1", &[("host", host)]), "{host}");
        }
        assert!(!may(false, "127.0.0.1", &[]));
    }

    #[test]
    fn without_a_token_pages_and_proxies_are_refused() {
        for field in [
            ("origin", "http://127.0.0.1:9901"),
            ("origin", "null"),
            ("sec-fetch-site", "cross-site"),
            ("x-forwarded-for", "192.0.2.1"),
            ("forwarded", "for=192.0.2.1"),
            ("x-real-ip", "192.0.2.1"),
            ("via", "1.1 proxy"),
        ] {
            let fields = [("host", "127.0.0.1"), field];
            assert!(!may(false, "127.0.0.1", &fields), "{field:?}");
        }
        let entered = [("host", "127.0.0.1"), ("sec-fetch-site", "none")];
        assert!(may(false, "127.0.0.1", &entered));
    }

    #[test]
    fn without_a_token_the_dashboard_may_ask_and_no_other_page() {
        let may = |dashboard, peer: &str, fields: &[(&str, &str)]| {
            operator_with(dashboard, &[], Method::POST, peer, fields).is_some()
        };
        let host = ("host", "127.0.0.1:9901");
        let own = ("origin", "http://127.0.0.1:9901");
        let same = ("sec-fetch-site", "same-origin");
        for fields in [&[host, own, same][..], &[host, own], &[host, same]] {
            assert!(may(true, "127.0.0.1", fields), "{fields:?}");
            assert!(!may(false, "127.0.0.1", fields), "{fields:?}");
            assert!(!may(true, "192.0.2.1", fields), "{fields:?}");
        }
        for field in [
            ("origin", "http://127.0.0.1:9902"),
            ("origin", "http://localhost:9901"),
            ("origin", "https://127.0.0.1:9901"),
            ("origin", "http://evil.example"),
            ("origin", "null"),
            ("origin", ""),
            ("sec-fetch-site", "same-site"),
            ("sec-fetch-site", "cross-site"),
            ("x-forwarded-for", "192.0.2.1"),
        ] {
            assert!(!may(true, "127.0.0.1", &[host, field]), "{field:?}");
            // One header must not make up for what the other says.
            let mixed = [host, if field.0 == "origin" { same } else { own }, field];
            assert!(!may(true, "127.0.0.1", &mixed), "{field:?}");
        }
        let rebound = [
            ("host", "rebound.example.com:9901"),
            ("origin", "http://rebound.example.com:9901"),
            same,
        ];
        assert!(!may(true, "127.0.0.1", &rebound));
    }

    #[test]
    fn with_a_token_every_client_has_to_show_it_and_it_is_enough() {
        assert!(!may(true, "127.0.0.1", &[("host", "127.0.0.1")]));
        for value in ["Bearer 0123456789abcdef", "bearer 0123456789abcdef"] {
            assert!(may(true, "192.0.2.1", &[("authorization", value)]));
        }
        for value in [
            "",
            "Bearer",
            "Bearer ",
            "Basic 0123456789abcdef",
            "Bearer 0123456789abcdeF",
        ] {
            assert!(
                !may(true, "127.0.0.1", &[("authorization", value)]),
                "{value}"
            );
        }
    }
}
