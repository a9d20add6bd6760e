//! Sticky balancing: a cookie leads a client back to the server that it had.
//!
//! The cookie of a server is a MAC of the upstream's and the server's name. So it tells nothing
//! about the server, no client can make one, and all gateways with the same key agree on it. Each
//! server has one valid value for each key, so a cookie is looked up rather than verified, in a
//! table whose hashes are keyed.

use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac_sha256::HMAC;
use http::header::COOKIE;
use http::{HeaderMap, HeaderValue};

use super::balance::Sticky;
use super::settings::{Server, UpstreamSettings};

/// Keeps these MACs apart from others under the same key.
const PURPOSE: &str = "weir sticky v1";

/// 128 bits of the MAC are enough for what is valid only once for each server.
const MAC_BYTES: usize = 16;

/// The cookies of an upstream's servers.
pub(super) struct StickyCookies {
    settings: Sticky,
    /// The value for each server.
    values: Box<[String]>,
    servers: HashMap<String, StickyServer>,
}

/// The server that a cookie leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StickyServer {
    pub(super) index: usize,
    /// Whether an old key has signed the cookie.
    is_old: bool,
}

impl StickyServer {
    /// Whether a client that has this cookie, and whose response is of this server, keeps it.
    pub(super) fn keeps(self, server: usize) -> bool {
        !self.is_old && self.index == server
    }
}

impl StickyCookies {
    pub(super) fn new(settings: &Sticky, upstream: &UpstreamSettings) -> Self {
        let value = |server: &Server, key: &[u8]| {
            let text = [PURPOSE, &upstream.name, server.name()].join("\0");
            let mac = HMAC::mac(text, key);
            URL_SAFE_NO_PAD.encode(mac.get(..MAC_BYTES).unwrap_or(&mac))
        };
        let (mut values, mut servers) = (Vec::new(), HashMap::new());
        for (place, key) in settings.keys.iter().enumerate() {
            for (index, server) in upstream.servers.iter().enumerate() {
                let (value, is_old) = (value(server, key), place > 0);
                if !is_old {
                    values.push(value.clone());
                }
                let found = StickyServer { index, is_old };
                servers.entry(value).or_insert(found);
            }
        }
        Self {
            settings: settings.clone(),
            values: values.into(),
            servers,
        }
    }

    /// Takes the cookies of this name out of a request, as they say nothing to the upstream.
    /// Returns the server that the first valid one names.
    pub(super) fn take(&self, headers: &mut HeaderMap) -> Option<StickyServer> {
        let is_there = |line: &HeaderValue| pairs(line).any(|pair| self.value(pair).is_some());
        if !headers.get_all(COOKIE).iter().any(is_there) {
            return None;
        }
        let (mut server, mut kept) = (None, Vec::new());
        for line in headers.get_all(COOKIE) {
            let mut others = Vec::new();
            for pair in pairs(line) {
                match self.value(pair) {
                    Some(value) => server = server.or_else(|| self.server(value)),
                    None => others.push(pair),
                }
            }
            let others = HeaderValue::from_bytes(&others.join(&b"; "[..]));
            kept.extend(others.ok().filter(|others| !others.is_empty()));
        }
        headers.remove(COOKIE);
        for line in kept {
            headers.append(COOKIE, line);
        }
        server
    }

    /// The `Set-Cookie` that leads a client to this server.
    pub(super) fn cookie(&self, server: usize, is_secure: bool) -> Option<HeaderValue> {
        let (settings, value) = (&self.settings, self.values.get(server)?);
        let mut cookie = format!(
            "{}={value}; Path=/; HttpOnly; SameSite=Lax",
            settings.cookie
        );
        if is_secure {
            cookie.push_str("; Secure");
        }
        if let Some(max_age) = settings.max_age {
            // Zero would remove it.
            cookie.push_str(&format!("; Max-Age={}", max_age.as_secs().max(1)));
        }
        HeaderValue::try_from(cookie).ok()
    }

    /// The value of a pair that has the cookie's name.
    fn value<'p>(&self, pair: &'p [u8]) -> Option<&'p [u8]> {
        let rest = pair.strip_prefix(self.settings.cookie.as_bytes())?;
        rest.trim_ascii_start().strip_prefix(b"=")
    }

    fn server(&self, value: &[u8]) -> Option<StickyServer> {
        let value = str::from_utf8(value).ok()?;
        self.servers.get(value.trim_ascii()).copied()
    }
}

fn pairs(line: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    let pairs = line.as_bytes().split(|byte| *byte == b';');
    pairs
        .map(<[u8]>::trim_ascii)
        .filter(|pair| !pair.is_empty())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const KEY: &[u8; 16] = b"0123456789abcdef";

    fn cookies(key: &[u8], upstream: &str) -> StickyCookies {
        let servers = ["10.0.0.1:80", "10.0.0.2:80"].map(|text| {
            let address: std::net::SocketAddr = text.parse().unwrap();
            Server::from(address)
        });
        let sticky = Sticky {
            cookie: "s".into(),
            keys: vec![key.into()],
            max_age: None,
        };
        StickyCookies::new(&sticky, &UpstreamSettings::new(upstream, servers.into()))
    }

    /// The server that these lines lead to, and what is left of them.
    fn taken(cookies: &StickyCookies, lines: &[&str]) -> (Option<usize>, Vec<String>) {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(COOKIE, line.parse().unwrap());
        }
        let server = cookies.take(&mut headers);
        let left = headers.get_all(COOKIE).iter();
        let left = left.map(|line| line.to_str().unwrap().to_owned());
        (server.map(|server| server.index), left.collect())
    }

    #[test]
    fn nobody_without_the_key_makes_a_valid_cookie() {
        let own = cookies(KEY, "app");
        for value in &own.values {
            assert_eq!(value.len(), 22);
            for position in 0..value.len() {
                let mut forged = value.clone().into_bytes();
                forged[position] = if forged[position] == b'A' { b'B' } else { b'A' };
                let forged = format!("s={}", String::from_utf8(forged).unwrap());
                assert_eq!(taken(&own, &[&forged]).0, None, "{forged}");
            }
            let cut = format!("s={}", &value[..21]);
            assert_eq!(taken(&own, &[&cut]).0, None);
        }
        for other in [
            cookies(b"another key, the same", "app"),
            cookies(KEY, "api"),
        ] {
            let foreign = format!("s={}", other.values[1]);
            assert_eq!(taken(&own, &[&foreign]), (None, vec![]));
        }
        let same = format!("s={}", cookies(KEY, "app").values[1]);
        assert_eq!(taken(&own, &[&same]), (Some(1), vec![]));
        for odd in [
            "s=10.0.0.2:80",
            "s=1",
            "s=",
            "s",
            &format!("s={}", "A".repeat(60_000)),
        ] {
            assert_eq!(taken(&own, &[odd]).0, None);
        }
    }

    #[test]
    fn another_key_lets_no_client_lose_its_server_while_the_old_one_is_named_too() {
        let old = cookies(KEY, "app");
        let sticky = Sticky {
            keys: vec![(*b"another key, as long").into(), (*KEY).into()],
            ..old.settings.clone()
        };
        let servers = ["10.0.0.1:80", "10.0.0.2:80"];
        let servers =
            servers.map(|text| Server::from(text.parse::<std::net::SocketAddr>().unwrap()));
        let new = StickyCookies::new(&sticky, &UpstreamSettings::new("app", servers.into()));
        for (value, keeps) in [(&old.values[1], false), (&new.values[1], true)] {
            let mut headers = HeaderMap::new();
            headers.insert(COOKIE, format!("s={value}").parse().unwrap());
            let found = new.take(&mut headers).unwrap();
            assert_eq!(
                (found.index, found.keeps(1), found.keeps(0)),
                (1, keeps, false)
            );
        }
        assert_ne!(new.cookie(1, false), old.cookie(1, false));
    }

    #[test]
    fn an_upstream_does_not_get_the_cookie_and_loses_no_other() {
        let own = cookies(KEY, "app");
        let (first, second) = (&own.values[0], &own.values[1]);
        let several = format!("a=1; s=forged; s={second} ;s = {first}; ss=2; S=3");
        let (server, left) = taken(&own, &[&several, "b=\"s=4\""]);
        assert_eq!(
            (server, &*left[0], &*left[1]),
            (Some(1), "a=1; ss=2; S=3", "b=\"s=4\"")
        );
        assert_eq!(
            taken(&own, &["a=1;b=2"]),
            (None, vec!["a=1;b=2".to_owned()])
        );
    }

    #[test]
    fn no_script_and_no_plain_connection_gets_the_cookie_of_a_secure_one() {
        let mut own = cookies(KEY, "app");
        own.settings.max_age = Some(Duration::from_millis(10));
        let value = &own.values[0];
        let secure = own.cookie(0, true).unwrap();
        let expected = format!("s={value}; Path=/; HttpOnly; SameSite=Lax; Secure; Max-Age=1");
        assert_eq!(secure, expected.as_str());
        own.settings.max_age = None;
        let plain = own.cookie(0, false).unwrap();
        assert_eq!(
            plain,
            format!("s={value}; Path=/; HttpOnly; SameSite=Lax").as_str()
        );
        assert_eq!(own.cookie(2, false), None);
    }
}
