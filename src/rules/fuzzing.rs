//! What strangers send, as fuzz targets feed it in. Not part of the public interface.
//!
//! Each function panics when an invariant breaks. `fuzz/` calls them with made-up input, and the
//! tests below with the corpus that is checked in.

use std::net::IpAddr;
use std::str;
use std::sync::LazyLock;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};

use crate::rules::normal_path::normal_path;
use crate::rules::{
    AccountRules, AccountSource, AccountWildcards, AddressHeader, ClientRules, HashKey,
    HostPattern, Jwt, JwtAlgorithm, JwtKeys, PathPattern, RouteMatcher, RouteTable,
    parse_forwarded,
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

/// Field lines of `Authorization` and `Cookie`, one to a line.
pub fn credentials(input: &[u8]) {
    let mut all = headers("cookie", input);
    all.extend(headers("authorization", input));
    let first = ACCOUNTS.account(&all);
    assert_eq!(
        first,
        ACCOUNTS.account(&all),
        "the same request has the same account"
    );
}

static ROUTES: LazyLock<RouteTable> = LazyLock::new(|| {
    let patterns = ["/*", "/login", "/teams/{team}/invites", "/{any}/*"];
    let route = |pattern| {
        Some(RouteMatcher {
            host: None,
            path: PathPattern::parse(pattern).ok()?,
            methods: Vec::new(),
            headers: Vec::new(),
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
    let keys = JwtKeys::secret(b"0123456789abcdef0123456789abcdef").ok();
    let others = [
        AccountSource::Cookie("session".to_owned()),
        AccountSource::Bearer,
    ];
    AccountRules {
        sources: keys.map(jwt).into_iter().chain(others).collect(),
        key: HashKey::random(),
        wildcards: AccountWildcards::default(),
    }
});

fn client(header: AddressHeader, headers: &HeaderMap) {
    let rules = ClientRules {
        trusted_proxies: vec![ipnet::Ipv4Net::new_assert([10, 0, 0, 0].into(), 8).into()],
        header,
    };
    let stranger = rules.client(STRANGER, headers);
    assert_eq!(stranger.address, STRANGER, "strangers are never believed");
    let address = rules.client(PROXY, headers).address;
    assert_eq!(address, address.to_canonical(), "addresses are unmapped");
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
    use std::fs;
    use std::path::Path;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    type Target = fn(&[u8]);

    const TARGETS: [(&str, Target); 4] = [
        ("forwarded", forwarded),
        ("x_forwarded_for", x_forwarded_for),
        ("path", path),
        ("credentials", credentials),
    ];

    #[test]
    fn the_corpus_of_every_fuzz_target_is_survived() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
        for (target, run) in TARGETS {
            let inputs: Vec<_> = fs::read_dir(corpus.join(target)).unwrap().collect();
            assert!(!inputs.is_empty(), "fuzz/corpus/{target} is empty");
            for input in inputs {
                run(&fs::read(input.unwrap().path()).unwrap());
            }
        }
    }

    proptest! {
        #[test]
        fn arbitrary_input_is_survived(
            bytes in vec(any::<u8>(), 0..80), text in "([/%;=,\"\\\\:.\\[\\]a0\n]|for|\\PC){0,60}"
        ) {
            for (_, run) in TARGETS {
                run(&bytes);
                run(text.as_bytes());
            }
        }
    }
}
