//! The host that a request asks for, and the registrable domain that it belongs to.

use std::borrow::Cow;
use std::net::Ipv6Addr;

use http::header::HOST;
use http::{HeaderMap, Uri};

/// The host of a request, in lower case and without port and final dot: of the request target
/// where it has one (HTTP/2, or the absolute form, which RFC 9112 section 3.2.2 puts above the
/// header), else of the `Host` header.
pub(super) fn host<'r>(uri: &'r Uri, headers: &'r HeaderMap) -> Option<Cow<'r, str>> {
    let authority = match uri.authority() {
        Some(authority) => authority.as_str(),
        None => headers.get(HOST)?.to_str().ok()?,
    };
    let host = without_port(authority);
    let host = host.strip_suffix('.').unwrap_or(host);
    (!host.is_empty()).then(|| canonical(host))
}

/// Cuts off user information and port.
fn without_port(authority: &str) -> &str {
    let host = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host)
        .trim_ascii();
    if host.starts_with('[') {
        return host.split_inclusive(']').next().unwrap_or(host);
    }
    host.split_once(':').map_or(host, |(host, _)| host)
}

/// The one spelling of a host: lower case, and an IPv6 address as RFC 5952 writes it.
pub(super) fn canonical(host: &str) -> Cow<'_, str> {
    if let Some(address) = ipv6_literal(host) {
        return Cow::Owned(format!("[{address}]"));
    }
    if host.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Cow::Owned(host.to_ascii_lowercase());
    }
    Cow::Borrowed(host)
}

/// The address within brackets.
pub(super) fn ipv6_literal(host: &str) -> Option<Ipv6Addr> {
    let inside = host.strip_prefix('[')?.strip_suffix(']')?;
    inside.parse().ok()
}

/// The registrable domain of a canonical host: one label below a public suffix (eTLD+1).
///
/// A host that has none, because it is an address, a public suffix itself or a bare name, stands
/// for itself.
pub(super) fn domain(host: &str) -> &str {
    let is_address = host.starts_with('[') || host.parse::<std::net::Ipv4Addr>().is_ok();
    if is_address {
        return host;
    }
    psl::domain_str(host).unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn asked(uri: &str, header: Option<&'static str>) -> Option<String> {
        let header = header.map(|host| (HOST, HeaderValue::from_static(host)));
        let headers = HeaderMap::from_iter(header);
        host(&uri.parse().unwrap(), &headers).map(Cow::into_owned)
    }

    #[test]
    fn the_request_target_goes_before_the_host_header() {
        assert_eq!(
            asked("http://a.example/", Some("b.example")).unwrap(),
            "a.example"
        );
        assert_eq!(asked("/", Some("b.example")).unwrap(), "b.example");
        assert_eq!(asked("/", None), None);
        assert_eq!(asked("/", Some("")), None);
    }

    #[test]
    fn a_host_has_one_spelling() {
        for spelling in ["a.example", "A.Example:8080", "a.example.", "a.example.:80"] {
            assert_eq!(
                asked("/", Some(spelling)).unwrap(),
                "a.example",
                "{spelling}"
            );
        }
        for spelling in ["[2001:DB8::1]", "[2001:db8:0::1]:80"] {
            assert_eq!(
                asked("/", Some(spelling)).unwrap(),
                "[2001:db8::1]",
                "{spelling}"
            );
        }
        assert_eq!(asked("http://u:p@a.example:1/", None).unwrap(), "a.example");
    }

    #[test]
    fn a_domain_is_one_label_below_a_public_suffix() {
        assert_eq!(domain("a.b.example.com"), "example.com");
        assert_eq!(domain("a.b.example.co.uk"), "example.co.uk");
        assert_eq!(domain("me.github.io"), "me.github.io");
    }

    #[test]
    fn a_host_without_a_domain_stands_for_itself() {
        for host in ["co.uk", "com", "localhost", "192.0.2.1", "[2001:db8::1]"] {
            assert_eq!(domain(host), host);
        }
    }

    proptest! {
        #[test]
        fn any_host_has_one_domain(text in "([a-zA-Z.:@\\[\\]1-]|[ -~]){0,30}") {
            let headers = HeaderMap::from_iter([(HOST, HeaderValue::try_from(text).unwrap())]);
            let uri = Uri::from_static("/");
            if let Some(host) = host(&uri, &headers) {
                prop_assert_eq!(domain(domain(&host)), domain(&host));
                prop_assert_eq!(canonical(&host), host.as_ref());
            }
        }
    }
}
