//! Networks as nginx has them, in the form of Weir's.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The size of the IPv6 network that Weir takes for one client.
const CLIENT_BITS: u8 = 64;

/// The addresses that translators write IPv4 in (RFC 6052 section 2.1), but for those 32 bits.
/// Weir counts such clients as the IPv4 addresses that they are.
const NAT64: Network = Network {
    address: IpAddr::V6(Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0)),
    bits: 96,
};

/// An address or a network, without bits behind its prefix: nginx ignores those.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    /// None for a text that is neither an address nor a network.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse().ok()?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let width = width(address);
        let bits = bits.unwrap_or(width);
        (bits <= width).then(|| Self::masked(address, bits))
    }

    fn masked(address: IpAddr, bits: u8) -> Self {
        let behind = u32::from(width(address) - bits);
        let address = match address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(behind).unwrap_or(0);
                Ipv4Addr::from_bits(address.to_bits() & mask).into()
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(behind).unwrap_or(0);
                Ipv6Addr::from_bits(address.to_bits() & mask).into()
            }
        };
        Self { address, bits }
    }

    /// The clients of Weir that the network has an address of.
    fn of_clients(self) -> Self {
        match self.address {
            IpAddr::V6(_) => Self::masked(self.address, self.bits.min(CLIENT_BITS)),
            IpAddr::V4(_) => self,
        }
    }

    /// Whether it is one of IPv4 in IPv6's form, in which nginx finds no client.
    fn is_mapped(self) -> bool {
        matches!(self.address, IpAddr::V6(address) if self.bits >= 96 && address.to_ipv4_mapped().is_some())
    }

    /// The network of IPv4 that a translator writes so.
    fn embedded(self) -> Option<Self> {
        let IpAddr::V6(address) = self.address else {
            return None;
        };
        let is_part = self.bits > NAT64.bits && NAT64.contains(self);
        let [.., a, b, c, d] = address.octets();
        is_part.then(|| Self::masked(Ipv4Addr::new(a, b, c, d).into(), self.bits - NAT64.bits))
    }

    /// Whether no client of Weir is in its /64, or in the network: it has all of IPv4 as
    /// translators write it, and no other network that is in use.
    fn is_all_translated(self) -> bool {
        let clients = self.of_clients();
        clients.bits >= 32 && clients.contains(NAT64)
    }

    fn contains(self, other: Self) -> bool {
        self.bits <= other.bits
            && width(self.address) == width(other.address)
            && Self::masked(other.address, self.bits) == self
    }
}

fn width(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bits == width(self.address) {
            true => write!(f, "{}", self.address),
            false => write!(f, "{}/{}", self.address, self.bits),
        }
    }
}

/// Which clients a limit counts, by their networks. The longest network decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counted {
    /// Whether clients of no network are exempt.
    pub(super) is_exempt_by_default: bool,
    /// Whether a network is counted.
    networks: BTreeMap<Network, bool>,
    /// An address whose whole /64 is exempt, as Weir takes that for one client.
    pub(super) widened: Option<Network>,
    /// Networks of translators that are counted or exempt in nginx by themselves.
    pub(super) translated: BTreeSet<Network>,
}

impl Counted {
    /// Takes the later of two entries for one network, as nginx does. Of two addresses of one
    /// client, one that is counted decides.
    pub(super) fn insert(&mut self, network: Network, is_counted: bool) {
        if network.is_mapped() {
            return;
        }
        let embedded = network.embedded();
        if embedded.is_some() || network.is_all_translated() {
            self.translated.insert(network);
        }
        if embedded.is_none() && network.is_all_translated() {
            return;
        }
        let clients = embedded.unwrap_or_else(|| network.of_clients());
        let is_wider = clients != network;
        if is_wider
            && embedded.is_none()
            && !is_counted
            && network.address != IpAddr::V6(Ipv6Addr::LOCALHOST)
        {
            self.widened = Some(network);
        }
        let known = self.networks.get(&clients);
        let is_counted = is_counted || is_wider && known == Some(&true);
        self.networks.insert(clients, is_counted);
    }

    /// The networks that are otherwise than what is around them: the exempt, or the counted ones.
    pub(super) fn ids(&self, are_counted: bool) -> Vec<String> {
        let networks = self.networks.iter().filter(|(network, is_counted)| {
            **is_counted == are_counted && self.around(**network) != are_counted
        });
        networks.map(|(network, _)| network.to_string()).collect()
    }

    /// Whether clients around a network are counted.
    fn around(&self, network: Network) -> bool {
        let around = self.networks.iter();
        let around = around.filter(|(it, _)| **it != network && it.contains(network));
        let nearest = around.max_by_key(|(it, _)| it.bits);
        nearest.map_or(!self.is_exempt_by_default, |(_, is_counted)| *is_counted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_written_without_bits_behind_its_prefix() {
        for (text, expected) in [
            ("10.0.0.1/8", "10.0.0.0/8"),
            ("192.0.2.17/32", "192.0.2.17"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("2001:DB8::/32", "2001:db8::/32"),
            ("::/0", "::/0"),
            ("::1", "::1"),
        ] {
            assert_eq!(Network::parse(text).unwrap().to_string(), expected);
        }
        for text in [
            "10.0.0.1/33",
            "a",
            "10.0.0.0-10.0.0.9",
            "::/129",
            "1.2.3.4/x",
        ] {
            assert_eq!(Network::parse(text), None, "{text}");
        }
    }

    #[test]
    fn the_longest_network_decides_and_no_exempt_client_takes_another_with_it() {
        let mut counted = Counted::default();
        for (text, is_counted) in [
            ("10.0.0.0/8", false),
            ("10.1.0.0/16", true),
            ("10.1.2.3", false),
            ("192.0.2.0/24", true),
            ("::ffff:10.0.0.1", false),
            ("2001:db8::1", true),
            ("2001:db8::2", false),
            ("2001:db8:1::1", false),
        ] {
            counted.insert(Network::parse(text).unwrap(), is_counted);
        }
        assert_eq!(
            counted.ids(false),
            ["10.0.0.0/8", "10.1.2.3", "2001:db8:1::/64"]
        );
        assert_eq!(counted.ids(true), ["10.1.0.0/16"]);
        assert_eq!(counted.widened, Network::parse("2001:db8:1::1"));
    }
}
