//! The one form of an address, by which clients are counted and listed: IPv6 addresses that stand
//! for IPv4 ones become these. All of IPv4 would be one IPv6 network otherwise.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// The length of a prefix that an IPv4 address follows.
const PREFIX_BITS: u8 = 96;

/// `::ffff:0:0/96`, as sockets for both families write IPv4 (RFC 4291 section 2.5.5.2).
const MAPPED: u128 = 0xffff;

/// `::/96` (RFC 4291 section 2.5.5.1). Deprecated, but `::203.0.113.9` is no neighbour of `::1`.
const COMPATIBLE: u128 = 0;

/// `64:ff9b::/96`, as translators write IPv4 (NAT64, SIIT; RFC 6052 section 2.1).
const WELL_KNOWN: u128 = 0x0064_ff9b << 64;

/// The address that counts in place of `address`. An IPv6 address stays one if what is embedded
/// names no host of others: 0.0.0.0/8, which `::1` has too, and 127.0.0.0/8, as nobody may pass for
/// this machine.
#[inline]
pub fn canonical(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else {
        return address;
    };
    match split(v6) {
        (MAPPED, embedded) => embedded.into(),
        (WELL_KNOWN | COMPATIBLE, embedded) if is_other_host(embedded) => embedded.into(),
        _ => address,
    }
}

/// The first 96 bits, and the IPv4 address in the others.
fn split(address: Ipv6Addr) -> (u128, Ipv4Addr) {
    let [.., a, b, c, d] = address.octets();
    (address.to_bits() >> 32, Ipv4Addr::new(a, b, c, d))
}

fn is_other_host(address: Ipv4Addr) -> bool {
    !matches!(address.octets(), [0 | 127, ..])
}

/// The prefixes that an operator's own translators put before IPv4 addresses (RFC 6052 section
/// 2.2), beside `64:ff9b::/96`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nat64Prefixes(Arc<[u128]>);

impl Nat64Prefixes {
    /// The prefixes of 96 bits of these networks.
    pub fn new(networks: impl IntoIterator<Item = Ipv6Addr>) -> Self {
        let prefix = |network| split(network).0;
        Self(networks.into_iter().map(prefix).collect())
    }

    /// As [`canonical`], for these prefixes too.
    #[inline]
    pub fn canonical(&self, address: IpAddr) -> IpAddr {
        match address {
            IpAddr::V6(v6) if !self.0.is_empty() => match split(v6) {
                (prefix, embedded) if self.0.contains(&prefix) && is_other_host(embedded) => {
                    embedded.into()
                }
                _ => canonical(address),
            },
            address => canonical(address),
        }
    }

    /// The network that counts in place of one, by its first address and the length of its prefix.
    pub fn canonical_network(&self, first: IpAddr, prefix_bits: u8) -> (IpAddr, u8) {
        let IpAddr::V6(v6) = first else {
            return (first, prefix_bits);
        };
        let (prefix, embedded) = split(v6);
        let embeds = match prefix {
            MAPPED => prefix_bits >= PREFIX_BITS,
            // A prefix this short holds others than that block.
            _ if self.translates(prefix) => {
                prefix_bits > PREFIX_BITS
                    && (is_other_host(embedded) || prefix_bits < PREFIX_BITS + 8)
            }
            COMPATIBLE => prefix_bits > PREFIX_BITS && is_other_host(embedded),
            _ => false,
        };
        match embeds {
            true => (embedded.into(), prefix_bits - PREFIX_BITS),
            false => (first, prefix_bits),
        }
    }

    /// Whether a network holds the addresses that all of IPv4 has behind a translator, and no
    /// others: no client has such an address once it is canonical.
    pub fn is_all_of_ipv4(&self, first: IpAddr, prefix_bits: u8) -> bool {
        let IpAddr::V6(v6) = first else { return false };
        let (prefix, embedded) = split(v6);
        let is_whole = match prefix {
            WELL_KNOWN => (32..=PREFIX_BITS).contains(&prefix_bits),
            prefix => prefix_bits == PREFIX_BITS && self.0.contains(&prefix),
        };
        is_whole && embedded.is_unspecified()
    }

    fn translates(&self, prefix: u128) -> bool {
        prefix == WELL_KNOWN || self.0.contains(&prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Nat64Prefixes {
        Nat64Prefixes::new(["2001:db8:64::", "64:ff9b:1:2::"].map(|net| net.parse().unwrap()))
    }

    #[test]
    fn an_address_that_stands_for_one_of_ipv4_counts_as_that() {
        for (address, expected) in [
            ("203.0.113.9", "203.0.113.9"),
            ("::ffff:203.0.113.9", "203.0.113.9"),
            ("::ffff:127.0.0.1", "127.0.0.1"),
            ("::ffff:0.0.0.0", "0.0.0.0"),
            ("64:ff9b::203.0.113.9", "203.0.113.9"),
            ("64:ff9b::cb00:7109", "203.0.113.9"),
            ("64:ff9b::10.0.0.1", "10.0.0.1"),
            ("::203.0.113.9", "203.0.113.9"),
            // Nobody passes for this machine, or for nobody.
            ("::", "::"),
            ("::1", "::1"),
            ("64:ff9b::", "64:ff9b::"),
            ("64:ff9b::127.0.0.1", "64:ff9b::7f00:1"),
            ("::127.0.0.1", "::7f00:1"),
            // Close, but other networks.
            ("64:ff9b:1:2::203.0.113.9", "64:ff9b:1:2::cb00:7109"),
            ("64:ff9b::1:203.0.113.9", "64:ff9b::1:cb00:7109"),
            ("64:ff9c::203.0.113.9", "64:ff9c::cb00:7109"),
            ("::fffe:203.0.113.9", "::fffe:cb00:7109"),
            ("2001:db8:64::203.0.113.9", "2001:db8:64::cb00:7109"),
        ] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(canonical(address).to_string(), expected, "{address}");
            let none = Nat64Prefixes::default();
            assert_eq!(none.canonical(address).to_string(), expected, "{address}");
        }
    }

    #[test]
    fn own_prefixes_of_translators_are_known_beside_the_others() {
        for (address, expected) in [
            ("2001:db8:64::203.0.113.9", "203.0.113.9"),
            ("64:ff9b:1:2::203.0.113.9", "203.0.113.9"),
            ("64:ff9b::203.0.113.9", "203.0.113.9"),
            ("::ffff:203.0.113.9", "203.0.113.9"),
            ("203.0.113.9", "203.0.113.9"),
            ("2001:db8:64::127.0.0.1", "2001:db8:64::7f00:1"),
            ("2001:db8:64::1:203.0.113.9", "2001:db8:64::1:cb00:7109"),
        ] {
            let address = own().canonical(address.parse().unwrap());
            assert_eq!(address.to_string(), expected);
        }
    }

    #[test]
    fn a_network_within_a_translators_prefix_is_one_of_ipv4_and_the_prefix_itself_is_not() {
        for (first, bits, expected) in [
            ("10.0.0.0", 8, "10.0.0.0/8"),
            ("::ffff:10.0.0.0", 104, "10.0.0.0/8"),
            ("::ffff:0:0", 96, "0.0.0.0/0"),
            ("64:ff9b::10.0.0.0", 104, "10.0.0.0/8"),
            ("64:ff9b::", 97, "0.0.0.0/1"),
            ("64:ff9b::", 96, "64:ff9b::/96"),
            ("64:ff9b::127.0.0.0", 104, "64:ff9b::7f00:0/104"),
            ("2001:db8:64::203.0.113.9", 128, "203.0.113.9/32"),
            ("2001:db8:64::", 96, "2001:db8:64::/96"),
            ("2001:db8::", 32, "2001:db8::/32"),
            ("::203.0.113.0", 120, "203.0.113.0/24"),
            ("::1", 128, "::1/128"),
            ("::", 97, "::/97"),
            ("::", 0, "::/0"),
        ] {
            let (first, bits) = own().canonical_network(first.parse().unwrap(), bits);
            assert_eq!(format!("{first}/{bits}"), expected);
        }
        for (first, bits, is_all) in [
            ("64:ff9b::", 96, true),
            ("64:ff9b::", 64, true),
            ("64:ff9b::", 97, false),
            ("64::", 16, false),
            ("2001:db8:64::", 96, true),
            ("2001:db8:64::", 64, false),
            ("0.0.0.0", 0, false),
            ("::", 96, false),
        ] {
            let found = own().is_all_of_ipv4(first.parse().unwrap(), bits);
            assert_eq!(found, is_all, "{first}/{bits}");
        }
    }
}
