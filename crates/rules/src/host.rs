//! The host that a request asks for, the registrable domain that it belongs to, and patterns of
//! hosts.

use std::borrow::Cow;
use std::fmt;
use std::net::Ipv6Addr;

use http::header::HOST;
use http::{HeaderMap, Uri};

use crate::PatternError;

/// The host of a request, in lower case, without port and final dot, and without percent-encoding
/// that is not needed: of the request target
/// where it has one (HTTP/2, or the absolute form, which RFC 9112 section 3.2.2 puts above the
/// header), else of the `Host` header.
pub fn host<'r>(uri: &'r Uri, headers: &'r HeaderMap) -> Option<Cow<'r, str>> {
    let authority = match uri.authority() {
        Some(authority) => authority.as_str(),
        None => headers.get(HOST)?.to_str().ok()?,
    };
    let host = decoded(without_port(authority));
    let host = match host {
        Cow::Borrowed(host) => canonical(without_final_dot(host)),
        Cow::Owned(host) => Cow::Owned(canonical(without_final_dot(&host)).into_owned()),
    };
    (!host.is_empty()).then_some(host)
}

fn without_final_dot(host: &str) -> &str {
    host.strip_suffix('.').unwrap_or(host)
}

/// A host with those bytes decoded that need not be encoded: `%61` is `a` (RFC 3986 section
/// 6.2.2.2), and an app that parses URLs may read it so.
fn decoded(host: &str) -> Cow<'_, str> {
    if !host.contains('%') {
        return Cow::Borrowed(host);
    }
    let mut decoded = String::with_capacity(host.len());
    let mut rest = host;
    while let Some((plain, encoded)) = rest.split_once('%') {
        decoded.push_str(plain);
        let byte = encoded
            .get(..2)
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        rest = match byte.map(char::from).filter(|char| is_unreserved(*char)) {
            Some(char) => {
                decoded.push(char);
                encoded.get(2..).unwrap_or_default()
            }
            None => {
                decoded.push('%');
                encoded
            }
        };
    }
    decoded.push_str(rest);
    Cow::Owned(decoded)
}

fn is_unreserved(char: char) -> bool {
    char.is_ascii_alphanumeric() || "-._~".contains(char)
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

/// The bits of an IPv6 address that stand for a domain: a /64 is one subscriber's.
const DOMAIN_BITS: u32 = 64;

/// The registrable domain of a canonical host: one label below a public suffix (eTLD+1).
///
/// A host that has none, because it is a public suffix itself or a bare name, stands for itself, and
/// so does an IPv4 address. An IPv6 address stands for the lowest one of its /64.
pub(super) fn domain(host: &str) -> Cow<'_, str> {
    if let Some(address) = ipv6_literal(host) {
        return Cow::Owned(format!("[{}]", lowest_of_subscriber(address)));
    }
    if host.starts_with('[') || host.parse::<std::net::Ipv4Addr>().is_ok() {
        return host.into();
    }
    psl::domain_str(host).unwrap_or(host).into()
}

/// The lowest address of the /64 that an address is in.
pub(super) fn lowest_of_subscriber(address: Ipv6Addr) -> Ipv6Addr {
    Ipv6Addr::from_bits(address.to_bits() >> DOMAIN_BITS << DOMAIN_BITS)
}

/// A host, or all hosts below a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPattern {
    /// This host, in lower case.
    Exact(Box<str>),
    /// All hosts that end with this, which starts with a dot: one label more, or several, as in the
    /// Gateway API.
    Below(Box<str>),
}

impl HostPattern {
    /// Reads `app.example.com` or `*.example.com`.
    ///
    /// # Errors
    /// The error says what to write instead.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let host = bare_host(text);
        if host.is_empty() {
            return Err(PatternError::Empty);
        }
        if host != text {
            return Err(PatternError::MoreThanHost(text.to_owned(), host.to_owned()));
        }
        match host.strip_prefix('*') {
            Some(suffix) if is_host_name(suffix.strip_prefix('.').unwrap_or_default()) => {
                Ok(Self::Below(suffix.to_ascii_lowercase().into()))
            }
            _ if host.contains('*') => Err(PatternError::HostWildcard(text.to_owned())),
            _ if ipv6_literal(host).is_some() || is_host_name(host) => {
                Ok(Self::Exact(canonical(host).into()))
            }
            _ => Err(PatternError::NotAHost(text.to_owned())),
        }
    }
}

impl HostPattern {
    /// Whether it is the pattern of a canonical host (see [`host`]).
    pub fn covers(&self, host: &str) -> bool {
        match self {
            Self::Exact(exact) => **exact == *host,
            Self::Below(suffix) => host.len() > suffix.len() && host.ends_with(&**suffix),
        }
    }
}

/// The host of what may be a URL or carry a port.
fn bare_host(text: &str) -> &str {
    let text = text.split_once("://").map_or(text, |(_, rest)| rest);
    let text = text.split_once('/').map_or(text, |(host, _)| host);
    match text.rsplit_once(':') {
        Some((host, _)) if !text.ends_with(']') => host,
        _ => text,
    }
}

fn is_host_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    text.split('.')
        .all(|label| !label.is_empty() && label.len() <= 63 && label.bytes().all(allowed))
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(host) => f.write_str(host),
            Self::Below(suffix) => write!(f, "*{suffix}"),
        }
    }
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
    fn a_pattern_covers_its_host_or_all_below_its_domain() {
        for (pattern, host, covers) in [
            ("app.example.com", "app.example.com", true),
            ("app.example.com", "an.app.example.com", false),
            ("*.example.com", "a.b.example.com", true),
            ("*.example.com", "example.com", false),
            ("*.example.com", "badexample.com", false),
            ("*.example.com", ".example.com", false),
        ] {
            let pattern = HostPattern::parse(pattern).unwrap();
            assert_eq!(pattern.covers(host), covers, "{pattern} {host}");
        }
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
        for spelling in [
            "a.example",
            "A.Example:8080",
            "a.example.",
            "a.example.:80",
            "%61.ex%41mple",
            "a%2eexample%2E:80",
        ] {
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
        for kept in ["%c3%bc", "a%2fb", "a%", "a%zz", "%2561"] {
            assert_eq!(asked("/", Some(kept)).unwrap(), kept);
        }
    }

    #[test]
    fn a_domain_is_one_label_below_a_public_suffix() {
        assert_eq!(domain("a.b.example.com"), "example.com");
        assert_eq!(domain("a.b.example.co.uk"), "example.co.uk");
        assert_eq!(domain("me.github.io"), "me.github.io");
    }

    #[test]
    fn a_host_without_a_domain_stands_for_itself() {
        for host in ["co.uk", "com", "localhost", "192.0.2.1", "[2001:db8::]"] {
            assert_eq!(domain(host), host);
        }
    }

    proptest! {
        #[test]
        fn any_host_has_one_domain(text in "([a-zA-Z.:@\\[\\]1-]|[ -~]){0,30}") {
            let headers = HeaderMap::from_iter([(HOST, HeaderValue::try_from(text).unwrap())]);
            let uri = Uri::from_static("/");
            if let Some(host) = host(&uri, &headers) {
                let domain_of_host = domain(&host);
                prop_assert_eq!(domain(&domain_of_host), domain(&host));
                prop_assert_eq!(canonical(&host), host.as_ref());
            }
        }
    }

    #[test]
    fn patterns_show_as_they_are_written() {
        for text in [
            "app.example.com",
            "*.example.com",
            "[2001:db8::1]",
            "192.0.2.1",
        ] {
            assert_eq!(HostPattern::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_bad_host_is_told_what_to_write_instead() {
        for (text, help) in [
            ("http://a.example/x", "write \"a.example\""),
            ("a.example:80", "write \"a.example\""),
            ("[2001:db8::1]:80", "write \"[2001:db8::1]\""),
            ("*", "leave the host out"),
            ("a.*.example", "\"*.example.com\""),
            ("*example.com", "\"*.example.com\""),
            ("b\u{fc}cher.example", "xn--"),
            ("a..example", "not a host name"),
            ("a.example.", "not a host name"),
            ("", "empty"),
        ] {
            let said = HostPattern::parse(text).unwrap_err().to_string();
            assert!(said.contains(help), "{text}: {said}");
        }
    }

    proptest! {
        #[test]
        fn a_pattern_is_read_again_as_it_is_shown(text in "([a-zA-Z*.:\\[\\]1-]|\\PC){0,20}") {
            if let Ok(pattern) = HostPattern::parse(&text) {
                prop_assert_eq!(HostPattern::parse(&pattern.to_string()), Ok(pattern));
            }
        }
    }

    #[test]
    fn all_addresses_of_a_subscriber_are_one_domain() {
        for (host, expected) in [
            ("[2602:80a:6000:666::5]", "[2602:80a:6000:666::]"),
            ("[2602:80a:6000:666::]", "[2602:80a:6000:666::]"),
            ("[2602:80a:6000:667::]", "[2602:80a:6000:667::]"),
            ("203.0.113.9", "203.0.113.9"),
        ] {
            assert_eq!(domain(host), expected);
        }
    }
}
