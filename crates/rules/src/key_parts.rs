//! Bucket keys, part by part: one part for each source of a limit.
//!
//! Two different subjects never share a key: parts are joined by `:`, and none contains one but
//! inside brackets. Requests and override ids write their parts here alike.

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::Method;
use weir_http::address::Nat64Prefixes;
use weir_limit::BucketKey;

use crate::{HashKey, KeySource, RequestAttributes, SecretHash, host, request_values};

/// Longer text is hashed, so that a client cannot fill a store with long keys.
const MAX_TEXT_BYTES: usize = 128;

/// The part of a source that all requests share.
pub(super) const GLOBAL: &str = "*";

/// The part of a method that no RFC of ours names.
pub(super) const OTHER_METHOD: &str = "other";

/// The methods that are counted by themselves (RFC 9110, section 9, and RFC 5789).
pub(super) const METHODS: [Method; 9] = [
    Method::GET,
    Method::HEAD,
    Method::POST,
    Method::PUT,
    Method::DELETE,
    Method::CONNECT,
    Method::OPTIONS,
    Method::TRACE,
    Method::PATCH,
];

/// The sources of the subjects of a limit or ban, and the form of these subjects in bucket keys and
/// ids.
#[derive(Clone, Debug)]
pub(super) struct KeySchema {
    /// Never empty.
    pub(super) per: Vec<KeySource>,
    pub(super) hash_key: HashKey,
    pub(super) nat64: Nat64Prefixes,
}

impl KeySchema {
    /// Subjects that `per` makes up; [`KeySource::Global`] when it is empty.
    pub(super) fn new(mut per: Vec<KeySource>, hash_key: HashKey) -> Self {
        if per.is_empty() {
            per.push(KeySource::Global);
        }
        Self {
            per,
            hash_key,
            nat64: Nat64Prefixes::default(),
        }
    }

    pub(super) fn is_composite(&self) -> bool {
        self.per.len() > 1
    }

    /// Writes the subject of a request to the end of `key`.
    ///
    /// # Errors
    /// The first source that the request has no value for.
    pub(super) fn write(
        &self,
        attributes: &RequestAttributes<'_>,
        key: &mut BucketKey,
    ) -> Result<(), &KeySource> {
        let mut writer = self.writer(key);
        for (index, source) in self.per.iter().enumerate() {
            if index > 0 {
                writer.key.push_str(":");
            }
            writer.write(source, attributes).ok_or(source)?;
        }
        Ok(())
    }

    pub(super) fn writer<'k>(&'k self, key: &'k mut BucketKey) -> KeyWriter<'k> {
        KeyWriter {
            key,
            hash_key: &self.hash_key,
            nat64: &self.nat64,
            composite: self.is_composite(),
        }
    }
}

/// Writes parts to the end of a key.
pub(super) struct KeyWriter<'k> {
    pub(super) key: &'k mut BucketKey,
    pub(super) hash_key: &'k HashKey,
    pub(super) nat64: &'k Nat64Prefixes,
    /// Whether the subject has several parts, so that IPv6 addresses need brackets.
    pub(super) composite: bool,
}

impl KeyWriter<'_> {
    /// Writes the part of `source`, if the request has a value for it.
    pub(super) fn write(
        &mut self,
        source: &KeySource,
        attributes: &RequestAttributes<'_>,
    ) -> Option<()> {
        match source {
            KeySource::Address {
                v4_prefix,
                v6_prefix,
            } => self.address(attributes.client, *v4_prefix, *v6_prefix),
            KeySource::Account => self.show(attributes.account?.id),
            KeySource::Host => self.host(&request_host(attributes)),
            KeySource::Domain => self.host(&host::domain(&request_host(attributes))),
            KeySource::Method => self.key.push_str(method(attributes.method)),
            KeySource::Route => self.text(attributes.route),
            KeySource::Header(name) => self.hash(request_values::header(attributes.headers, name)?),
            KeySource::Cookie(name) => {
                self.hash(&request_values::cookie(attributes.headers, name)?);
            }
            KeySource::Query(name) => {
                self.hash(request_values::query(attributes.uri.query()?, name)?.as_bytes());
            }
            KeySource::Path(name) => self.text(attributes.captures.get(name)?),
            KeySource::Global => self.key.push_str(GLOBAL),
        }
        Some(())
    }

    /// Writes the network of an address.
    pub(super) fn address(&mut self, address: IpAddr, v4_prefix: u8, v6_prefix: u8) {
        match self.nat64.canonical(address) {
            IpAddr::V4(address) => self.v4(cut_v4(address, v4_prefix), v4_prefix),
            IpAddr::V6(address) => self.v6(cut_v6(address, v6_prefix), v6_prefix),
        }
    }

    fn v4(&mut self, network: Ipv4Addr, prefix: u8) {
        push_v4(network, |piece| self.key.push_str(piece));
        if u32::from(prefix) < Ipv4Addr::BITS {
            self.display(format_args!("/{prefix}"));
        }
    }

    fn v6(&mut self, network: Ipv6Addr, prefix: u8) {
        let (open, close) = if self.composite { ("[", "]") } else { ("", "") };
        self.key.push_str(open);
        self.display(format_args!("{network}"));
        if u32::from(prefix) < Ipv6Addr::BITS {
            self.display(format_args!("/{prefix}"));
        }
        self.key.push_str(close);
    }

    /// Writes a canonical host. An IPv6 address has its brackets already.
    pub(super) fn host(&mut self, host: &str) {
        match host::ipv6_literal(host) {
            Some(_) => self.key.push_str(host),
            None => self.text(host),
        }
    }

    pub(super) fn hash(&mut self, secret: &[u8]) {
        self.show(self.hash_key.hash(secret));
    }

    pub(super) fn show(&mut self, hash: SecretHash) {
        self.display(format_args!("{hash}"));
    }

    /// Writes free text, with what would break keys apart percent-encoded.
    pub(super) fn text(&mut self, text: &str) {
        if text.len() > MAX_TEXT_BYTES {
            self.key.push_str("#");
            return self.hash(text.as_bytes());
        }
        for run in text.split_inclusive(must_be_encoded) {
            let plain = run.trim_end_matches(must_be_encoded);
            self.key.push_str(plain);
            let encoded = run.bytes().skip(plain.len());
            encoded.for_each(|byte| self.display(format_args!("%{byte:02X}")));
        }
    }

    fn display(&mut self, text: fmt::Arguments<'_>) {
        // Writing to a key cannot fail.
        let _ = self.key.write_fmt(text);
    }
}

/// `:` and brackets delimit parts, `#` marks a hash, `{` would let a client pick the node of a
/// Redis Cluster that serves its buckets, and control characters would break log lines.
fn must_be_encoded(char: char) -> bool {
    matches!(char, ':' | '%' | '[' | ']' | '#' | '{') || char.is_control()
}

/// The host that is asked. A request that names none, as `Host: :80` does and HTTP/1.0 may, is one
/// of an empty host, so that leaving the name out does not avoid the limit.
pub(super) fn request_host<'a>(attributes: &RequestAttributes<'a>) -> Cow<'a, str> {
    host::host(attributes.uri, attributes.headers).unwrap_or_default()
}

fn method(method: &Method) -> &str {
    if METHODS.contains(method) {
        method.as_str()
    } else {
        OTHER_METHOD
    }
}

fn cut_v4(address: Ipv4Addr, prefix: u8) -> Ipv4Addr {
    let host_bits = Ipv4Addr::BITS.saturating_sub(prefix.into());
    let mask = u32::MAX.checked_shl(host_bits).unwrap_or(0);
    Ipv4Addr::from_bits(address.to_bits() & mask)
}

fn cut_v6(address: Ipv6Addr, prefix: u8) -> Ipv6Addr {
    let host_bits = Ipv6Addr::BITS.saturating_sub(prefix.into());
    let mask = u128::MAX.checked_shl(host_bits).unwrap_or(0);
    Ipv6Addr::from_bits(address.to_bits() & mask)
}

/// A canonical address, and the length of its prefix if it has one.
pub(super) fn network(text: &str, nat64: &Nat64Prefixes) -> Option<(IpAddr, Option<u8>)> {
    let (address, prefix) = written_network(text)?;
    Some(match prefix {
        None => (nat64.canonical(address), None),
        Some(prefix) => {
            let (address, prefix) = nat64.canonical_network(address, prefix);
            (address, Some(prefix))
        }
    })
}

/// An address and the length of its prefix, as they are written.
pub(super) fn written_network(text: &str) -> Option<(IpAddr, Option<u8>)> {
    let (address, prefix) = match text.split_once('/') {
        None => (text, None),
        Some((address, prefix)) => (address, Some(prefix.parse().ok()?)),
    };
    let inside = address
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    Some((inside.unwrap_or(address).parse().ok()?, prefix))
}

/// Hands the text of an address to `push`, in pieces where it is one of IPv6.
pub fn push_address(address: IpAddr, push: impl FnMut(&str)) {
    match address {
        IpAddr::V4(address) => push_v4(address, push),
        // A sink takes whatever is written to it.
        IpAddr::V6(address) => drop(write!(Sink(push), "{address}")),
    }
}

/// `Display` would pad and measure each number.
fn push_v4(address: Ipv4Addr, push: impl FnOnce(&str)) {
    let mut text = [0; "255.255.255.255.".len()];
    let mut end = 0;
    for octet in address.octets() {
        let digits @ [_, _, _, length] = octet_text(octet);
        if let Some(room) = text.get_mut(end..end + 4) {
            // The zeros beyond its digits are written over by the next number, or cut off.
            room.copy_from_slice(&digits);
        }
        end += usize::from(length);
        if let Some(dot) = text.get_mut(end) {
            *dot = b'.';
        }
        end += 1;
    }
    let text = text.get(..end - 1).unwrap_or_default();
    push(str::from_utf8(text).unwrap_or_default());
}

/// The digits of a number, and how many they are.
const fn octet_text(octet: u8) -> [u8; 4] {
    let [hundreds, tens, ones] = [octet / 100, octet / 10 % 10, octet % 10];
    match octet {
        0..10 => [b'0' + ones, 0, 0, 1],
        10..100 => [b'0' + tens, b'0' + ones, 0, 2],
        100.. => [b'0' + hundreds, b'0' + tens, b'0' + ones, 3],
    }
}

struct Sink<F>(F);

impl<F: FnMut(&str)> Write for Sink<F> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        (self.0)(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(write: impl FnOnce(&mut KeyWriter<'_>), composite: bool) -> String {
        let mut key = BucketKey::default();
        let hash_key = &HashKey::from_bytes(&[7; 16]).unwrap();
        write(&mut KeyWriter {
            key: &mut key,
            hash_key,
            nat64: &Nat64Prefixes::default(),
            composite,
        });
        key.to_string()
    }

    fn network(address: &str, v4: u8, v6: u8, composite: bool) -> String {
        let address = address.parse().unwrap();
        written(|parts| parts.address(address, v4, v6), composite)
    }

    fn text(text: &str) -> String {
        written(|parts| parts.text(text), false)
    }

    #[test]
    fn addresses_are_cut_to_their_prefix() {
        assert_eq!(network("203.0.113.9", 32, 64, true), "203.0.113.9");
        assert_eq!(network("203.0.113.9", 24, 64, true), "203.0.113.0/24");
        assert_eq!(network("2001:db8::1:2", 32, 64, false), "2001:db8::/64");
        assert_eq!(network("2001:db8::1:2", 32, 128, false), "2001:db8::1:2");
        assert_eq!(network("2001:db8:1:2::", 32, 48, true), "[2001:db8:1::/48]");
        assert_eq!(network("::ffff:203.0.113.9", 32, 64, true), "203.0.113.9");
        assert_eq!(network("64:ff9b::203.0.113.9", 32, 64, true), "203.0.113.9");
        assert_eq!(network("::203.0.113.9", 24, 64, true), "203.0.113.0/24");
        assert_eq!(network("::1", 32, 64, false), "::/64");
    }

    #[test]
    fn text_is_encoded_where_it_would_break_keys_apart() {
        assert_eq!(text("red team/\u{e9}"), "red team/\u{e9}");
        assert_eq!(text("a::b%c\n[#]"), "a%3A%3Ab%25c%0A%5B%23%5D");
        assert_eq!(text("{a}{b"), "%7Ba}%7Bb");
        assert_eq!(text("\u{85}"), "%C2%85");
    }

    #[test]
    fn long_text_is_hashed() {
        assert_eq!(text(&"x".repeat(128)).len(), 128);
        let long = text(&"x".repeat(129));
        assert_eq!((long.len(), long.starts_with('#')), (33, true));
        assert_ne!(long, text(&"y".repeat(129)));
    }

    #[test]
    fn invented_methods_are_all_the_same() {
        let made_up = Method::from_bytes(b"GETT").unwrap();
        assert_eq!(method(&made_up), "other");
        assert_eq!(method(&Method::PATCH), "PATCH");
    }

    proptest! {
        #[test]
        fn different_texts_are_written_differently(
            one in "([a:%#\\[\\]\n]|3A|\\PC){0,8}", other in "([a:%#\\[\\]\n]|3A|\\PC){0,8}"
        ) {
            prop_assert_eq!(one == other, text(&one) == text(&other));
            prop_assert!(!text(&one).contains([':', '[', '#', '\n']));
        }

        #[test]
        fn an_address_is_written_as_it_is_displayed(address: IpAddr) {
            let mut text = String::new();
            push_address(address, |piece| text.push_str(piece));
            prop_assert_eq!(text, address.to_string());
        }
    }
}
