//! Who may see and change what the admin API has: clients that know a token, or, if none is
//! configured, this machine.
//!
//! Not only this machine's users send requests from it. A proxy on it forwards the requests of
//! others, and a browser sends what any web page tells it to, perhaps to a name that the page
//! resolves to 127.0.0.1 (DNS rebinding). Both are refused without a token; with one, they would
//! have to know it.

use std::net::IpAddr;
use std::sync::Arc;

use http::header::{AUTHORIZATION, FORWARDED, HOST, ORIGIN};
use http::uri::Authority;
use http::{HeaderMap, Method, request};

use super::error::ApiError;
use crate::config::AdminToken;

/// Who sent a request, for the log of changes: the name of a token, or the address of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Operator(Arc<str>);

impl Operator {
    pub(super) fn name(&self) -> &str {
        &self.0
    }
}

/// Refuses a request that may not do what it asks for.
pub(super) fn check(
    tokens: &[AdminToken],
    peer: Option<IpAddr>,
    head: &request::Parts,
) -> Result<Operator, ApiError> {
    if tokens.is_empty() {
        let peer = is_local(peer, head).map_err(|why| ApiError::Forbidden(why.to_owned()))?;
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
    if token.is_read_only && !matches!(head.method, Method::GET | Method::HEAD) {
        let why = format!("The token \"{name}\" is in `admin.read_only`; show another one.");
        return Err(ApiError::Forbidden(why));
    }
    Ok(Operator(Arc::clone(name)))
}

/// The token of `Authorization: Bearer`.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let field = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = field.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(token)
}

/// The address, if this machine's own user sent the request; the error says why not.
fn is_local(peer: Option<IpAddr>, head: &request::Parts) -> Result<IpAddr, &'static str> {
    let peer = peer.map(|peer| peer.to_canonical());
    let Some(peer) = peer.filter(IpAddr::is_loopback) else {
        return Err("Without a token only this machine may ask; configure `admin: {token: ...}`.");
    };
    if is_forwarded(&head.headers) {
        return Err("A proxy passed this on; configure `admin: {token: ...}` for such requests.");
    }
    if is_of_a_page(&head.headers) || !host(head).is_some_and(|host| is_loopback(&host)) {
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

fn host(head: &request::Parts) -> Option<String> {
    let written = || head.headers.get(HOST)?.to_str().ok()?.parse().ok();
    let authority: Authority = head.uri.authority().cloned().or_else(written)?;
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

    /// Who may send a request with this method and these fields.
    fn operator(
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
        let operator = check(tokens, peer.parse().ok(), &head).ok()?;
        Some(operator.name().to_owned())
    }

    /// Whether a request with these fields may see buckets.
    fn may(token: bool, peer: &str, fields: &[(&str, &str)]) -> bool {
        let token = token.then(|| AdminToken::new("admin", TOKEN).unwrap());
        operator(token.as_slice(), Method::GET, peer, fields).is_some()
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
