//! The address of a client that reaches the gateway through proxies.
//!
//! Every proxy adds the address of its peer on the right. So the walk starts at the connection's
//! own peer and goes from right to left for as long as the address at hand is a trusted proxy's:
//! what that one said of its peer is believed, and nothing of what came before an untrusted one.

use std::net::IpAddr;
use std::str;

use http::{HeaderMap, HeaderName, HeaderValue};
use ipnet::IpNet;
use weir_http::address::Nat64Prefixes;
use weir_http::list;

use crate::forwarded::{ForwardedElement, MAX_FORWARDED_BYTES, Node, parse_forwarded};

/// Upper bound on hops. Real chains have a handful; longer ones are made up.
const MAX_HOPS: usize = 64;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The origin of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// The client's address, as far as trusted proxies vouch for it. Never an IPv6 address that
    /// stands for one of IPv4.
    pub address: IpAddr,
    /// The other end of the connection. Never an IPv6 address that stands for one of IPv4.
    pub peer: IpAddr,
    /// Whether the other end is one of the trusted proxies.
    pub peer_is_trusted: bool,
}

/// Which header trusted proxies write the client's address into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressHeader {
    /// `X-Forwarded-For`: a list that every proxy appends its peer to.
    XForwardedFor,
    /// `Forwarded` (RFC 7239): the same as a list of parameters.
    Forwarded,
    /// A header with one address that the proxy sets anew, such as `X-Real-IP`.
    Single(HeaderName),
}

/// Whose forwarding headers are believed, and which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientRules {
    /// The networks of the trusted proxies.
    trusted_proxies: Box<[IpNet]>,
    header: AddressHeader,
    nat64: Nat64Prefixes,
}

impl ClientRules {
    /// Believes proxies of these networks, which write this header.
    pub fn new(trusted_proxies: impl IntoIterator<Item = IpNet>, header: AddressHeader) -> Self {
        Self {
            trusted_proxies: trusted_proxies.into_iter().map(unmapped).collect(),
            header,
            nat64: Nat64Prefixes::default(),
        }
    }

    /// The same with translators of one's own, whose addresses stand for those of IPv4.
    #[must_use]
    pub fn with_nat64_prefixes(self, nat64: Nat64Prefixes) -> Self {
        let trusted = self.trusted_proxies.iter();
        Self {
            trusted_proxies: trusted.map(|net| canonical_network(&nat64, *net)).collect(),
            nat64,
            ..self
        }
    }

    /// The same of proxies that write another header.
    #[must_use]
    pub fn with_header(self, header: AddressHeader) -> Self {
        Self { header, ..self }
    }

    /// Whether any proxy is trusted.
    pub fn has_trusted_proxies(&self) -> bool {
        !self.trusted_proxies.is_empty()
    }

    /// The header that trusted proxies write.
    pub fn header(&self) -> &AddressHeader {
        &self.header
    }

    /// The translators of one's own.
    pub fn nat64_prefixes(&self) -> &Nat64Prefixes {
        &self.nat64
    }

    /// The address that a client is counted by.
    pub fn canonical(&self, address: IpAddr) -> IpAddr {
        self.nat64.canonical(address)
    }

    /// The client of a request with these headers on a connection from `peer`.
    ///
    /// It is the first address, right to left, that is not a trusted proxy's. Where the chain
    /// breaks off, at an entry that is malformed, `unknown` or obfuscated, or at its left end, it
    /// is the last address before the break.
    pub fn client(&self, peer: IpAddr, headers: &HeaderMap) -> Client {
        let peer = self.canonical(peer);
        let peer_is_trusted = self.trusts(peer);
        let address = if peer_is_trusted {
            self.client_behind(peer, headers)
        } else {
            peer
        };
        Client {
            address,
            peer,
            peer_is_trusted,
        }
    }

    /// Whether an address is one of the trusted proxies.
    pub fn trusts(&self, address: IpAddr) -> bool {
        let address = self.canonical(address);
        self.trusted_proxies
            .iter()
            .any(|net| net.contains(&address))
    }

    fn client_behind(&self, proxy: IpAddr, headers: &HeaderMap) -> IpAddr {
        match &self.header {
            AddressHeader::XForwardedFor => self.walk(proxy, x_forwarded_for(headers)),
            AddressHeader::Forwarded => self.walk(proxy, forwarded(headers)),
            AddressHeader::Single(name) => self.known(single(headers, name)).unwrap_or(proxy),
        }
    }

    /// An address that a client can have: 0.0.0.0 and :: stand for none.
    fn known(&self, address: Option<IpAddr>) -> Option<IpAddr> {
        let address = address.map(|address| self.canonical(address));
        address.filter(|address| !address.is_unspecified())
    }

    /// Follows hops from right to left; one that names no address ends the walk.
    fn walk(&self, proxy: IpAddr, hops: impl Iterator<Item = Option<IpAddr>>) -> IpAddr {
        let mut nearest = proxy;
        for hop in hops.take(MAX_HOPS) {
            let Some(address) = self.known(hop) else {
                break;
            };
            nearest = address;
            if !self.trusts(address) {
                break;
            }
        }
        nearest
    }
}

/// A network of IPv6 addresses that stand for IPv4 ones as the IPv4 network that it is.
pub fn unmapped(net: IpNet) -> IpNet {
    canonical_network(&Nat64Prefixes::default(), net)
}

/// The same with translators of one's own.
pub fn canonical_network(nat64: &Nat64Prefixes, net: IpNet) -> IpNet {
    let (first, prefix) = nat64.canonical_network(net.addr(), net.prefix_len());
    IpNet::new(first, prefix).unwrap_or(net)
}

/// The hops of `X-Forwarded-For`, right to left through all its field lines.
fn x_forwarded_for(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    let lines = headers.get_all(X_FORWARDED_FOR).into_iter().rev();
    lines
        .flat_map(|line| list::elements(line).rev())
        // Empty elements are ignored, but not without end.
        .take(2 * MAX_HOPS)
        .filter(|entry| !entry.is_empty())
        .map(address)
}

/// The hops of `Forwarded`, right to left through all its field lines.
fn forwarded(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    let lines = headers.get_all(http::header::FORWARDED).into_iter().rev();
    lines.flat_map(forwarded_line)
}

fn forwarded_line(line: &HeaderValue) -> impl Iterator<Item = Option<IpAddr>> {
    let readable = line.len() <= MAX_FORWARDED_BYTES;
    let elements = readable.then(|| parse_forwarded(line.as_bytes()));
    let too_long = (!readable).then_some(None);
    let hops = elements.into_iter().flatten().rev();
    hops.map(|element| element.and_then(|element: ForwardedElement<'_>| element.node()))
        .map(|node| node.ok().and_then(Node::address))
        .chain(too_long)
}

/// The address of a header that must be there once. One of two lines is not by the proxy, and it is
/// unknown which.
fn single(headers: &HeaderMap, name: &HeaderName) -> Option<IpAddr> {
    let mut lines = headers.get_all(name).into_iter();
    let line = lines.next().filter(|_| lines.next().is_none())?;
    address(line.as_bytes().trim_ascii())
}

fn address(entry: &[u8]) -> Option<IpAddr> {
    let entry = str::from_utf8(entry).ok()?;
    Node::parse(entry).ok()?.address()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(header: AddressHeader) -> ClientRules {
        let trusted = ["10.0.0.0/8", "2001:db8:ffff::/48"];
        ClientRules::new(trusted.map(|net| net.parse().unwrap()), header)
    }

    fn client(header: AddressHeader, peer: &str, lines: &[(&'static str, &str)]) -> String {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        let peer = peer.parse().unwrap();
        rules(header).client(peer, &headers).address.to_string()
    }

    fn by_x_forwarded_for(peer: &str, lines: &[&str]) -> String {
        let lines: Vec<_> = lines
            .iter()
            .map(|line| ("x-forwarded-for", *line))
            .collect();
        client(AddressHeader::XForwardedFor, peer, &lines)
    }

    fn by_forwarded(lines: &[&str]) -> String {
        let lines: Vec<_> = lines.iter().map(|line| ("forwarded", *line)).collect();
        client(AddressHeader::Forwarded, "10.0.0.1", &lines)
    }

    #[test]
    fn the_headers_of_an_untrusted_peer_are_never_believed() {
        assert_eq!(
            by_x_forwarded_for("203.0.113.9", &["198.51.100.1"]),
            "203.0.113.9"
        );
    }

    #[test]
    fn the_first_untrusted_address_from_the_right_is_the_client() {
        assert_eq!(
            by_x_forwarded_for("10.0.0.1", &["1.1.1.1, 198.51.100.1, 10.0.0.3 ,10.0.0.2"]),
            "198.51.100.1"
        );
        assert_eq!(
            by_x_forwarded_for("10.0.0.1", &["198.51.100.1", "198.51.100.2", "10.0.0.2"]),
            "198.51.100.2"
        );
    }

    #[test]
    fn when_all_hops_are_trusted_the_leftmost_is_the_client() {
        assert_eq!(
            by_x_forwarded_for("10.0.0.1", &["10.0.0.9", "10.0.0.3, 10.0.0.2"]),
            "10.0.0.9"
        );
        assert_eq!(by_x_forwarded_for("10.0.0.1", &[]), "10.0.0.1");
    }

    #[test]
    fn an_entry_that_names_no_address_stops_the_walk_at_the_hop_that_wrote_it() {
        for entry in [
            "unknown",
            "_hidden",
            "localhost",
            "198.51.100.1:x",
            "fe80::1%1",
            // Each request of such a client was a 500.
            "0.0.0.0",
            "::",
            "::ffff:0.0.0.0",
            "\u{e9}",
        ] {
            let line = format!("198.51.100.7, {entry}, 10.0.0.2");
            assert_eq!(
                by_x_forwarded_for("10.0.0.1", &[&line]),
                "10.0.0.2",
                "{entry}"
            );
        }
    }

    #[test]
    fn empty_entries_are_passed_over() {
        assert_eq!(
            by_x_forwarded_for("10.0.0.1", &["198.51.100.1,, ", ""]),
            "198.51.100.1"
        );
    }

    #[test]
    fn mapped_addresses_are_ipv4_for_trust_and_for_the_client() {
        assert_eq!(
            by_x_forwarded_for(
                "::ffff:10.0.0.1",
                &["::ffff:198.51.100.1, [::ffff:10.0.0.2]:80"]
            ),
            "198.51.100.1"
        );
        let networks = ["::ffff:10.0.0.0/104".parse().unwrap()];
        let mapped = ClientRules::new(networks, AddressHeader::XForwardedFor);
        assert!(mapped.trusts("10.1.2.3".parse().unwrap()));
        assert!(!mapped.trusts("11.1.2.3".parse().unwrap()));
    }

    /// All clients behind a translator were one, and so was a ban of one of them.
    #[test]
    fn addresses_of_translators_are_ipv4_for_trust_and_for_the_client() {
        let line = "2001:db8:64::198.51.100.1, [64:ff9b::10.0.0.3]:80, 2001:db8:64::10.0.0.2";
        assert_eq!(
            by_x_forwarded_for("64:ff9b::10.0.0.1", &["64:ff9b::198.51.100.1"]),
            "198.51.100.1"
        );
        assert_eq!(
            by_x_forwarded_for("64:ff9b::10.0.0.1", &[line]),
            "2001:db8:64::a00:2"
        );
        let nat64 = Nat64Prefixes::new(["2001:db8:64::".parse().unwrap()]);
        let rules = rules(AddressHeader::XForwardedFor).with_nat64_prefixes(nat64.clone());
        let headers = HeaderMap::from_iter([(X_FORWARDED_FOR, HeaderValue::from_static(line))]);
        let client = rules.client("2001:db8:64::10.0.0.1".parse().unwrap(), &headers);
        assert_eq!(client.address.to_string(), "198.51.100.1");
        assert_eq!(
            (client.peer.to_string(), client.peer_is_trusted),
            ("10.0.0.1".to_owned(), true)
        );
        let trusted = ["2001:db8:64::10.0.0.0/104".parse().unwrap()];
        let rules =
            ClientRules::new(trusted, AddressHeader::XForwardedFor).with_nat64_prefixes(nat64);
        assert!(rules.trusts("10.1.2.3".parse().unwrap()));
        assert!(!rules.trusts("11.1.2.3".parse().unwrap()));
    }

    #[test]
    fn a_network_that_only_contains_the_mapped_addresses_is_left_as_it_is() {
        let everything: IpNet = "::/0".parse().unwrap();
        assert_eq!(unmapped(everything), everything);
    }

    #[test]
    fn forwarded_is_walked_like_x_forwarded_for() {
        assert_eq!(
            by_forwarded(&[
                "for=1.1.1.1, for=198.51.100.1",
                "For=\"[2001:db8:ffff::1]:80\""
            ]),
            "198.51.100.1"
        );
        assert_eq!(by_forwarded(&["for=198.51.100.1, for=unknown"]), "10.0.0.1");
        assert_eq!(
            by_forwarded(&["for=198.51.100.1, proto=https, for=10.0.0.2"]),
            "10.0.0.2"
        );
    }

    #[test]
    fn a_chain_longer_than_any_real_one_is_not_followed_to_its_end() {
        let forged = "198.51.100.1, ".to_owned() + &vec!["10.0.0.2"; 1000].join(",");
        assert_eq!(by_x_forwarded_for("10.0.0.1", &[&forged]), "10.0.0.2");
        let long = format!("for=198.51.100.1;x={}", "y".repeat(MAX_FORWARDED_BYTES));
        assert_eq!(by_forwarded(&["for=198.51.100.1", &long]), "10.0.0.1");
    }

    #[test]
    fn no_more_than_64_hops_are_followed_and_no_fewer() {
        let chain = |proxies: usize, hop: &str, client: &str| {
            let proxies = std::iter::repeat_n(hop, proxies);
            let hops: Vec<_> = std::iter::once(client).chain(proxies).collect();
            hops.join(",")
        };
        for (proxies, address) in [(63, "198.51.100.1"), (64, "10.0.0.2")] {
            let line = chain(proxies, "10.0.0.2", "198.51.100.1");
            assert_eq!(by_x_forwarded_for("10.0.0.1", &[&line]), address);
            let lines: Vec<&str> = line.split(',').collect();
            assert_eq!(by_x_forwarded_for("10.0.0.1", &lines), address);
            let line = chain(proxies, "for=10.0.0.2", "for=198.51.100.1");
            assert_eq!(by_forwarded(&[&line]), address);
        }
    }

    #[test]
    fn empty_entries_are_not_passed_over_without_end() {
        for (empty, address) in [(127, "198.51.100.1"), (128, "10.0.0.1")] {
            let line = format!("198.51.100.1{}", ",".repeat(empty));
            assert_eq!(by_x_forwarded_for("10.0.0.1", &[&line]), address);
            let mut lines = vec![""; empty];
            lines.insert(0, "198.51.100.1");
            assert_eq!(by_x_forwarded_for("10.0.0.1", &lines), address);
        }
    }

    #[test]
    fn a_single_address_header_is_believed_only_when_it_comes_once() {
        let by_real_ip = |lines: &[(&'static str, &str)]| {
            let header = AddressHeader::Single(HeaderName::from_static("x-real-ip"));
            client(header, "10.0.0.1", lines)
        };
        let one = ("x-real-ip", "198.51.100.1");
        assert_eq!(by_real_ip(&[one]), "198.51.100.1");
        assert_eq!(
            by_real_ip(&[one, ("x-real-ip", "198.51.100.2")]),
            "10.0.0.1"
        );
        assert_eq!(by_real_ip(&[("x-real-ip", "1.1.1.1, 2.2.2.2")]), "10.0.0.1");
        assert_eq!(by_real_ip(&[]), "10.0.0.1");
    }
}
