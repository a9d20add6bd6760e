//! Input by which clients are identified and routed, for [`crate::fuzzing`].

use std::net::IpAddr;
use std::str;
use std::sync::LazyLock;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use jsonwebtoken::crypto::sign;
use jsonwebtoken::{Algorithm, EncodingKey};
use weir_http::address::canonical;

use crate::forwarded::parse_forwarded;
use crate::normal_path::{PathFault, normal_path, path_fault, separated_path};
use crate::{
    AccountRules, AccountSource, AccountWildcards, AddressHeader, ClientRules, HashKey,
    HostPattern, Jwt, JwtAlgorithm, JwtKeys, PathPattern, RouteMatcher, RouteTable,
};

const PROXY: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const STRANGER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(203, 0, 113, 9));

/// Field lines of `Forwarded`, one to a line.
pub fn forwarded(input: &[u8]) {
    parse_forwarded(input);
    client(AddressHeader::Forwarded, &headers("forwarded", input));
}

/// Field lines of `X-Forwarded-For`, one to a line.
pub fn x_forwarded_for(input: &[u8]) {
    client(
        AddressHeader::XForwardedFor,
        &headers("x-forwarded-for", input),
    );
    let single = AddressHeader::Single(HeaderName::from_static("x-forwarded-for"));
    client(single, &headers("x-forwarded-for", input));
}

/// A path, which is also read as patterns of hosts and paths.
pub fn path(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else {
        return;
    };
    let normal = normal_path(text);
    assert_eq!(
        normal_path(&normal),
        normal,
        "normal paths stay as they are"
    );
    assert!(normal.starts_with('/'), "normal paths start with a slash");
    if let Some(separated) = separated_path(text) {
        assert_eq!(
            normal_path(&separated),
            separated,
            "a second form is normal, too"
        );
    }
    leaves_no_prefix(text);
    let _ = HostPattern::parse(text);
    if let Ok(pattern) = PathPattern::parse(text) {
        assert_eq!(
            pattern.to_string(),
            text,
            "patterns show as they are written"
        );
    }
    if let Ok(uri) = text.parse::<Uri>() {
        let found = ROUTES.find(&Method::GET, &uri, &HeaderMap::new());
        assert!(found.is_some(), "every path has a route");
    }
}

/// A path without a fault stays below whatever precedes it, in both of its forms; a path that goes
/// upward, or that encodes a control character, has a fault.
fn leaves_no_prefix(path: &str) {
    let below = format!("/prefix/{path}");
    if path_fault(path).is_none() {
        let forms = [
            Some(normal_path(&below).into_owned()),
            separated_path(&below),
        ];
        for form in forms.into_iter().flatten() {
            let rest = form.strip_prefix("/prefix");
            let stays = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
            assert!(stays, "{path:?} left its prefix for {form:?}");
        }
    }
    for upward in ["/..", "/%2e.", "%2F..", "%5c%2E%2e"] {
        let fault = path_fault(&format!("{path}{upward}"));
        assert!(fault.is_some(), "{path:?}{upward} is taken");
    }
    let fault = path_fault(&format!("{path}%00"));
    assert_eq!(fault, Some(PathFault::Control), "{path:?}%00 is taken");
}

/// Field lines of `Authorization` and `Cookie`, one to a line. A line that begins with `{` is the
/// claims of a token that is signed here, since no input gets past a signature otherwise.
pub fn credentials(input: &[u8]) {
    let mut all = headers("cookie", input);
    let lines = input.split(|&byte| byte == b'\n').map(|line| match line {
        [b'{', ..] => signed(line),
        _ => line.to_vec(),
    });
    let lines: Vec<_> = lines.collect();
    all.extend(headers("authorization", &lines.join(&b'\n')));
    let first = ACCOUNTS.account(&all);
    assert_eq!(
        first,
        ACCOUNTS.account(&all),
        "the same request has the same account"
    );
}

/// `Bearer` and a token of these claims, which need not be JSON.
fn signed(claims: &[u8]) -> Vec<u8> {
    let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256"}"#);
    let message = format!("{header}.{}", URL_SAFE_NO_PAD.encode(claims));
    let key = EncodingKey::from_secret(SECRET);
    let signature = sign(message.as_bytes(), &key, Algorithm::HS256).unwrap_or_default();
    format!("Bearer {message}.{signature}").into_bytes()
}

const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

static ROUTES: LazyLock<RouteTable> = LazyLock::new(|| {
    let patterns = ["/*", "/login", "/teams/{team}/invites", "/{any}/*"];
    let route = |pattern| {
        Some(RouteMatcher {
            host: None,
            path: PathPattern::parse(pattern).ok()?,
            methods: Vec::new(),
            path_regex: None,
            headers: Vec::new(),
            query: Vec::new(),
            preflights: false,
        })
    };
    RouteTable::new(patterns.into_iter().filter_map(route).collect())
});

static ACCOUNTS: LazyLock<AccountRules> = LazyLock::new(|| {
    let jwt = |keys| {
        AccountSource::Jwt(Jwt::new(
            "realm.id".to_owned(),
            keys,
            JwtAlgorithm::ALL.to_vec(),
            None,
            None,
            http::header::AUTHORIZATION,
            Duration::ZERO,
        ))
    };
    let keys = JwtKeys::secret(SECRET).ok();
    let others = [
        AccountSource::Cookie("session".to_owned()),
        AccountSource::Bearer,
    ];
    AccountRules {
        sources: keys.map(jwt).into_iter().chain(others).collect(),
        key: HashKey::random(),
        wildcards: AccountWildcards::default(),
        keeps_names: false,
    }
});

fn client(header: AddressHeader, headers: &HeaderMap) {
    let trusted = ipnet::Ipv4Net::new_assert([10, 0, 0, 0].into(), 8);
    let rules = ClientRules::new([trusted.into()], header);
    let stranger = rules.client(STRANGER, headers);
    assert_eq!(stranger.address, STRANGER, "strangers are never believed");
    let address = rules.client(PROXY, headers).address;
    assert_eq!(address, canonical(address), "addresses are canonical");
}

fn headers(name: &'static str, input: &[u8]) -> HeaderMap {
    let lines = input.split(|&byte| byte == b'\n');
    let values = lines.filter_map(|line| HeaderValue::from_bytes(line).ok());
    let mut headers = HeaderMap::new();
    for value in values.take(100) {
        headers.append(name, value);
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_get_behind_the_signature() {
        let account = |claims: &[u8]| {
            let headers = headers("authorization", &signed(claims));
            ACCOUNTS.account(&headers)
        };
        let exp = u32::MAX;
        let acme = account(format!(r#"{{"realm":{{"id":"acme"}},"exp":{exp}}}"#).as_bytes());
        let other = account(format!(r#"{{"realm":{{"id":"other"}},"exp":{exp}}}"#).as_bytes());
        assert!(acme.is_some() && other.is_some());
        assert_ne!(acme, other);
    }
}
