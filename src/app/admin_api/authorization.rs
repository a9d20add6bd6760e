//! Who may see and change buckets: clients that know the token, or, if none is configured, this
//! machine.
//!
//! Not only this machine's users send requests from it. A proxy on it forwards the requests of
//! others, and a browser sends what any web page tells it to, perhaps to a name that the page
//! resolves to 127.0.0.1 (DNS rebinding). Both are refused without a token; with one, they would
//! have to know it.

use std::net::IpAddr;

use http::header::{AUTHORIZATION, FORWARDED, HOST, ORIGIN};
use http::uri::Authority;
use http::{HeaderMap, request};

use super::error::ApiError;
use crate::config::AdminToken;

/// Refuses a request that may not see buckets.
pub(super) fn check(
    token: Option<&AdminToken>,
    peer: Option<IpAddr>,
    head: &request::Parts,
) -> Result<(), ApiError> {
    match token {
        Some(token) if bearer(&head.headers).is_some_and(|shown| token.is(shown)) => Ok(()),
        Some(_) => Err(ApiError::Unauthorised),
        None => is_local(peer, head).map_err(ApiError::Forbidden),
    }
}

/// The token of `Authorization: Bearer`.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let field = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = field.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(token)
}

/// Checks that this machine's own user sent the request; the error says why not.
fn is_local(peer: Option<IpAddr>, head: &request::Parts) -> Result<(), &'static str> {
    if !peer.is_some_and(|peer| peer.to_canonical().is_loopback()) {
        return Err("Without a token only this machine may ask; configure `admin: {token: ...}`.");
    }
    if is_forwarded(&head.headers) {
        return Err("A proxy passed this on; configure `admin: {token: ...}` for such requests.");
    }
    if is_of_a_page(&head.headers) || !host(head).is_some_and(|host| is_loopback(&host)) {
        return Err("This may come from a web page; use `localhost` and no browser, or a token.");
    }
    Ok(())
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

    /// Whether a request with these fields may see buckets.
    fn may(token: bool, peer: &str, fields: &[(&str, &str)]) -> bool {
        let mut request = Request::get("/v1/buckets/L/a");
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let (head, ()) = request.body(()).unwrap().into_parts();
        let token = token.then(|| AdminToken::new(TOKEN).unwrap());
        check(token.as_ref(), peer.parse().ok(), &head).is_ok()
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
