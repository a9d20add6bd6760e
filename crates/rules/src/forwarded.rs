//! The `Forwarded` header (RFC 7239), and the addresses that forwarding headers are made of.
//!
//! Lists are split first and their elements read afterwards, so that what a client made up spoils
//! its own element and none of those that proxies put behind it.

use std::borrow::Cow;
use std::net::IpAddr;
use std::str;

use http::HeaderMap;
use http::header::FORWARDED;
use smallvec::SmallVec;
use thiserror::Error;
use weir_http::address::{Nat64Prefixes, canonical};

/// The longest line of `Forwarded` that is read. It has to be read from its left end, which
/// is the client's.
pub(crate) const MAX_FORWARDED_BYTES: usize = 16 * 1024;

/// An element of a `Forwarded` field, by one proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForwardedElement<'a> {
    /// `for`: who sent the request to the proxy.
    pub sent_by: Option<Cow<'a, str>>,
    /// `by`: where the proxy received it.
    pub received_by: Option<Cow<'a, str>>,
    /// `host`: the `Host` field that the proxy received.
    pub host: Option<Cow<'a, str>>,
    /// `proto`: the scheme of the request to the proxy.
    pub proto: Option<Cow<'a, str>>,
}

/// The error of a text that does not have the form of its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("malformed forwarding header")]
pub struct MalformedForwarded;

/// The elements of a `Forwarded` field, left to right; empty ones are left out.
pub(crate) type ForwardedElements<'a> =
    SmallVec<[Result<ForwardedElement<'a>, MalformedForwarded>; 4]>;

/// Reads one line of `Forwarded`.
pub(crate) fn parse_forwarded(line: &[u8]) -> ForwardedElements<'_> {
    elements(line).map(ForwardedElement::parse).collect()
}

/// The elements of all lines of `Forwarded`, as they were sent, left to right; empty ones are left
/// out.
pub fn forwarded_elements(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let lines = headers.get_all(FORWARDED).into_iter();
    lines.flat_map(|line| elements(line.as_bytes()))
}

fn elements(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    split_unquoted(line, b',').filter(|element| !element.is_empty())
}

/// The element by the proxy that the client spoke with, and its index among
/// [`forwarded_elements`]: the last one that names the client's address, as what is before it may
/// be the client's own. Nor is anything believed that is before an element without an address or a
/// line that is too long, where the walk to the client's address ends. Where that leaves none it is
/// the very last element, which the trusted peer wrote.
pub fn client_element<'h>(
    headers: &'h HeaderMap,
    client: IpAddr,
    nat64: &Nat64Prefixes,
) -> Option<(usize, ForwardedElement<'h>)> {
    let (mut of_client, mut last) = (None, None);
    let mut index = 0;
    for line in headers.get_all(FORWARDED) {
        let is_readable = line.len() <= MAX_FORWARDED_BYTES;
        for element in elements(line.as_bytes()) {
            let parsed = is_readable.then(|| ForwardedElement::parse(element).ok());
            last = parsed.flatten().map(|element| (index, element));
            let node = last.as_ref().and_then(|(_, element)| element.node().ok());
            let address = node
                .and_then(Node::address)
                .map(|node| nat64.canonical(node));
            match address.filter(|address| !address.is_unspecified()) {
                Some(address) if address == client => of_client.clone_from(&last),
                Some(_) => {}
                None => of_client = None,
            }
            index += 1;
        }
    }
    of_client.or(last)
}

impl<'a> ForwardedElement<'a> {
    fn parse(element: &'a [u8]) -> Result<Self, MalformedForwarded> {
        let mut parsed = Self::default();
        for pair in split_unquoted(element, b';').filter(|pair| !pair.is_empty()) {
            let pair = str::from_utf8(pair).map_err(|_| MalformedForwarded)?;
            parsed.set(pair)?;
        }
        Ok(parsed)
    }

    /// Takes in one `name=value`. A name must not come twice in an element (RFC 7239, section 4).
    fn set(&mut self, pair: &'a str) -> Result<(), MalformedForwarded> {
        let (name, value) = pair.split_once('=').ok_or(MalformedForwarded)?;
        let value = unquote(value)?;
        let Some(parameter) = self.parameter(name) else {
            return if is_token(name) {
                Ok(())
            } else {
                Err(MalformedForwarded)
            };
        };
        match parameter.replace(value) {
            None => Ok(()),
            Some(_) => Err(MalformedForwarded),
        }
    }

    fn parameter(&mut self, name: &str) -> Option<&mut Option<Cow<'a, str>>> {
        let known = [
            ("for", &mut self.sent_by),
            ("by", &mut self.received_by),
            ("host", &mut self.host),
            ("proto", &mut self.proto),
        ];
        known
            .into_iter()
            .find_map(|(known, parameter)| known.eq_ignore_ascii_case(name).then_some(parameter))
    }

    /// The node that sent the request to the proxy.
    ///
    /// # Errors
    /// When it did not say, or what it said is not a node.
    pub fn node(&self) -> Result<Node, MalformedForwarded> {
        self.sent_by
            .as_deref()
            .ok_or(MalformedForwarded)
            .and_then(Node::parse)
    }
}

/// A token, or a quoted string without its quotes and escapes.
///
/// Addresses with colons or brackets must be quoted, but not every proxy does so; both are read.
fn unquote(value: &str) -> Result<Cow<'_, str>, MalformedForwarded> {
    match value.strip_prefix('"') {
        None if is_lenient_token(value) => Ok(Cow::Borrowed(value)),
        None => Err(MalformedForwarded),
        Some(quoted) => unescape(quoted),
    }
}

/// The inside of a quoted string whose closing quote is still there (RFC 9110, section 5.6.4).
fn unescape(quoted: &str) -> Result<Cow<'_, str>, MalformedForwarded> {
    if let Some((inside, "")) = quoted.split_once('"')
        && !inside.contains('\\')
    {
        return Ok(Cow::Borrowed(inside));
    }
    let mut inside = String::with_capacity(quoted.len());
    let mut chars = quoted.chars();
    loop {
        match chars.next().ok_or(MalformedForwarded)? {
            '\\' => inside.push(chars.next().ok_or(MalformedForwarded)?),
            '"' if chars.as_str().is_empty() => return Ok(Cow::Owned(inside)),
            '"' => return Err(MalformedForwarded),
            other => inside.push(other),
        }
    }
}

fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(is_token_byte)
}

fn is_lenient_token(text: &str) -> bool {
    let allowed = |byte| is_token_byte(byte) || b":[]".contains(&byte);
    !text.is_empty() && text.bytes().all(allowed)
}

fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Splits at the separators that stand outside quoted strings, and trims white space. A quoted
/// string that never ends reaches to the end.
fn split_unquoted(text: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let (mut quoted, mut escaped) = (false, false);
    text.split(move |&byte| {
        if std::mem::take(&mut escaped) {
            return false;
        }
        match byte {
            b'"' => quoted = !quoted,
            b'\\' => escaped = quoted,
            _ => {}
        }
        !quoted && byte == separator
    })
    .map(<[u8]>::trim_ascii)
}

/// The far end of a hop, as a forwarding header names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// An address; its port is not kept. Never an IPv6 address that stands for one of IPv4.
    Address(IpAddr),
    /// `unknown`.
    Unknown,
    /// An obfuscated identifier, which starts with an underscore.
    Obfuscated,
}

impl Node {
    /// Reads `203.0.113.9`, `203.0.113.9:80`, `2001:db8::1`, `[2001:db8::1]`, `[2001:db8::1]:80`,
    /// `unknown` or `_hidden`. Zone ids mean nothing beyond the machine that wrote them, and are
    /// refused.
    ///
    /// # Errors
    /// When it is none of these.
    pub fn parse(text: &str) -> Result<Self, MalformedForwarded> {
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self::Address(canonical(address)));
        }
        if let Some(bracketed) = text.strip_prefix('[') {
            return Self::parse_bracketed(bracketed);
        }
        let (name, port) = split_port(text)?;
        match name {
            _ if name.eq_ignore_ascii_case("unknown") => Ok(Self::Unknown),
            _ if is_obfuscated(name) => Ok(Self::Obfuscated),
            // Only IPv4 goes without brackets before a port.
            _ if port.is_some() && !name.contains(':') => parse_address(name),
            _ => Err(MalformedForwarded),
        }
    }

    fn parse_bracketed(text: &str) -> Result<Self, MalformedForwarded> {
        let (address, rest) = text.split_once(']').ok_or(MalformedForwarded)?;
        match split_port(rest)? {
            ("", _) if address.contains(':') => parse_address(address),
            _ => Err(MalformedForwarded),
        }
    }

    /// The address, when it is one.
    pub fn address(self) -> Option<IpAddr> {
        match self {
            Self::Address(address) => Some(address),
            Self::Unknown | Self::Obfuscated => None,
        }
    }
}

fn parse_address(text: &str) -> Result<Node, MalformedForwarded> {
    let address: IpAddr = text.parse().map_err(|_| MalformedForwarded)?;
    Ok(Node::Address(canonical(address)))
}

/// Splits off a port, which is up to five digits or an obfuscated one (RFC 7239, section 6).
fn split_port(text: &str) -> Result<(&str, Option<&str>), MalformedForwarded> {
    match text.rsplit_once(':') {
        None => Ok((text, None)),
        Some((name, port)) if is_port(port) => Ok((name, Some(port))),
        Some(_) => Err(MalformedForwarded),
    }
}

fn is_port(text: &str) -> bool {
    let digits = text.len() <= 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    (digits && text.parse::<u16>().is_ok()) || is_obfuscated(text)
}

fn is_obfuscated(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    text.len() > 1 && text.starts_with('_') && text.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(line: &str) -> Vec<Option<IpAddr>> {
        parse_forwarded(line.as_bytes())
            .iter()
            .map(|element| element.as_ref().ok()?.node().ok()?.address())
            .collect()
    }

    fn address(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn the_examples_of_rfc_7239_are_read() {
        assert_eq!(
            nodes("for=192.0.2.43, for=\"[2001:db8:cafe::17]\""),
            [address("192.0.2.43"), address("2001:db8:cafe::17")]
        );
        assert_eq!(
            nodes("For=\"[2001:db8:cafe::17]:4711\""),
            [address("2001:db8:cafe::17")]
        );
        assert_eq!(
            nodes("for=192.0.2.60;proto=http;by=203.0.113.43"),
            [address("192.0.2.60")]
        );
        assert_eq!(
            nodes("for=_gazonk, for=unknown, for=\"_x:_y\""),
            [None, None, None]
        );
    }

    fn headers(lines: &[&str]) -> HeaderMap {
        let lines = lines.iter().map(|line| line.parse().unwrap());
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(FORWARDED, line);
        }
        headers
    }

    /// The index and scheme of the element of a client at 192.0.2.1.
    fn found(lines: &[&str]) -> Option<(usize, Option<String>)> {
        let nat64 = Nat64Prefixes::new(["2001:db8:64::".parse().unwrap()]);
        let headers = headers(lines);
        let element = client_element(&headers, "192.0.2.1".parse().unwrap(), &nat64);
        element.map(|(index, element)| (index, element.proto.map(Cow::into_owned)))
    }

    fn said(index: usize, proto: &str) -> Option<(usize, Option<String>)> {
        Some((index, Some(proto.to_owned())))
    }

    #[test]
    fn the_element_of_the_client_is_the_last_that_names_it() {
        let forged = "for=192.0.2.1;proto=https, for=\"192.0.2.1:80\";proto=http";
        assert_eq!(found(&[forged]), said(1, "http"));
        assert_eq!(
            found(&["for=6.6.6.6;proto=https", ", for=192.0.2.1;proto=http"]),
            said(1, "http")
        );
        assert_eq!(
            found(&["for=192.0.2.1, for=10.0.0.1;proto=http"]),
            Some((0, None))
        );
        let translated = "for=\"[2001:db8:64::192.0.2.1]:80\";proto=https, for=10.0.0.1;proto=http";
        assert_eq!(found(&[translated]), said(0, "https"));
        assert_eq!(found(&[]), None);
    }

    /// It was the first element, which is the client's own text.
    #[test]
    fn what_a_client_wrote_is_never_taken_for_the_element_of_a_proxy_that_hides_it() {
        for lines in [
            &["for=6.6.6.6;proto=https, for=_hidden;proto=http"][..],
            &["for=6.6.6.6;proto=https", "for=_hidden;proto=http"],
            &["for=@;proto=https, for=unknown;proto=http"],
            // The client has guessed what its address is taken for.
            &["for=192.0.2.1;proto=https, for=_hidden;proto=http"],
            &["for=192.0.2.1;proto=https, proto=http"],
            &["for=192.0.2.1;proto=https, for=0.0.0.0;proto=http"],
        ] {
            assert_eq!(found(lines), said(1, "http"), "{lines:?}");
        }
        assert_eq!(
            found(&["for=_hidden;proto=https, for=10.0.0.1"]),
            Some((1, None))
        );
        assert_eq!(found(&["for=192.0.2.1;proto=https, for=@"]), None);
    }

    #[test]
    fn nothing_is_believed_of_a_line_that_is_too_long_nor_before_it() {
        let own = "for=192.0.2.1;proto=https";
        let long = format!("{own};x={}", "a".repeat(MAX_FORWARDED_BYTES));
        assert_eq!(found(&[&long]), None);
        assert_eq!(found(&[own, &long]), None);
        let behind = "for=_hidden;proto=http";
        assert_eq!(found(&[own, &long, behind]), said(2, "http"));
        let behind = "for=10.0.0.1;proto=http";
        assert_eq!(found(&[own, &long, behind]), said(2, "http"));
    }

    #[test]
    fn quoted_strings_hide_separators_and_lose_their_escapes() {
        let line = br#"host="a\",b;c";FOR="192.0.2.\43:80";proto=https"#;
        let elements = parse_forwarded(line);
        let [Ok(element)] = elements.as_slice() else {
            panic!("{elements:?}")
        };
        assert_eq!(element.host.as_deref(), Some("a\",b;c"));
        assert_eq!(element.node().unwrap().address(), address("192.0.2.43"));
        assert_eq!(element.proto.as_deref(), Some("https"));
    }

    #[test]
    fn an_element_that_a_client_spoiled_spoils_no_other() {
        assert_eq!(
            nodes("for=@, for=192.0.2.1;for=192.0.2.2, for=192.0.2.3"),
            [None, None, address("192.0.2.3")]
        );
    }

    #[test]
    fn a_quote_that_a_client_left_open_never_makes_its_own_address_the_last() {
        assert_eq!(nodes("for=192.0.2.1;x=\", for=\"[2001:db8::1]\""), [None]);
        assert_eq!(nodes("for=192.0.2.1;x=\", for=192.0.2.9"), [None]);
    }

    #[test]
    fn empty_elements_are_left_out() {
        assert_eq!(nodes(" , for=192.0.2.1 ;, "), [address("192.0.2.1")]);
        assert_eq!(nodes(""), []);
    }

    #[test]
    fn nodes_may_carry_ports_and_are_unmapped() {
        let parsed = |text| Node::parse(text).ok().and_then(Node::address);
        for text in [
            "192.0.2.1",
            "192.0.2.1:567",
            "::ffff:192.0.2.1",
            "[::ffff:192.0.2.1]:5",
            "64:ff9b::192.0.2.1",
            "[64:ff9b::c000:201]:5",
            "::192.0.2.1",
        ] {
            assert_eq!(parsed(text), address("192.0.2.1"), "{text}");
        }
        for text in ["2001:db8::1", "[2001:db8::1]", "[2001:db8::1]:567"] {
            assert_eq!(parsed(text), address("2001:db8::1"), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_node_is_refused() {
        for text in [
            "",
            " ",
            ":",
            "192.0.2.1:",
            "192.0.2.1:99999",
            "192.0.2.1:123456",
            "192.0.2.1:+5",
            "192.0.2.256",
            "192.0.2.01",
            "[192.0.2.1]",
            "[2001:db8::1",
            "[2001:db8::1]x",
            "fe80::1%eth0",
            "[fe80::1%1]:80",
            "localhost",
            "_",
            "_a b",
            "2001:db8::1:99999",
        ] {
            assert_eq!(Node::parse(text), Err(MalformedForwarded), "{text:?}");
        }
    }
}
