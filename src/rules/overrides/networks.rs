//! Networks, found by an address: one lookup for each prefix length that occurs.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::IpNet;

/// Values by networks.
#[derive(Clone, Debug)]
pub(super) struct Networks<V> {
    /// The longest prefix first.
    lengths: Vec<Length<V>>,
}

#[derive(Clone, Debug)]
struct Length<V> {
    prefix: u8,
    is_ipv4: bool,
    by_address: HashMap<IpAddr, V>,
}

impl<V> Default for Networks<V> {
    fn default() -> Self {
        Self {
            lengths: Vec::new(),
        }
    }
}

impl<V: Default> Networks<V> {
    /// The value of a network, which is made if there is none.
    pub(super) fn entry(&mut self, network: IpNet) -> &mut V {
        let length = self.length(network.prefix_len(), network.addr().is_ipv4());
        let entry = length.by_address.entry(network.network());
        entry.or_default()
    }

    fn length(&mut self, prefix: u8, is_ipv4: bool) -> &mut Length<V> {
        let sought = Reverse((prefix, is_ipv4));
        let found = self
            .lengths
            .binary_search_by_key(&sought, |it| Reverse((it.prefix, it.is_ipv4)));
        let at = found.unwrap_or_else(|at| {
            let by_address = HashMap::new();
            let length = Length {
                prefix,
                is_ipv4,
                by_address,
            };
            self.lengths.insert(at, length);
            at
        });
        #[expect(clippy::indexing_slicing, reason = "it was found there, or put there")]
        &mut self.lengths[at]
    }
}

impl<V> Networks<V> {
    pub(super) fn is_empty(&self) -> bool {
        self.lengths.is_empty()
    }

    /// The values of the networks that an address is in, that of the longest prefix first.
    pub(super) fn around(&self, address: IpAddr) -> impl Iterator<Item = &V> {
        let of_family = self
            .lengths
            .iter()
            .filter(move |it| it.is_ipv4 == address.is_ipv4());
        of_family.filter_map(move |length| {
            let network = IpNet::new(address, length.prefix).ok()?;
            length.by_address.get(&network.network())
        })
    }

    /// All values.
    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.lengths.iter().flat_map(|it| it.by_address.values())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn around(networks: &[&str], address: &str) -> Vec<String> {
        let mut table = Networks::<String>::default();
        for network in networks {
            *table.entry(network.parse().unwrap()) = (*network).to_owned();
        }
        let found = table.around(address.parse().unwrap());
        found.cloned().collect()
    }

    #[test]
    fn the_longest_prefix_is_first_and_families_are_kept_apart() {
        let all = [
            "::/0",
            "10.0.0.0/8",
            "10.1.0.0/16",
            "10.2.0.0/16",
            "0.0.0.0/0",
            "2001:db8::/32",
        ];
        assert_eq!(
            around(&all, "10.1.2.3"),
            ["10.1.0.0/16", "10.0.0.0/8", "0.0.0.0/0"]
        );
        assert_eq!(around(&all, "192.0.2.1"), ["0.0.0.0/0"]);
        assert_eq!(around(&all, "2001:db8::1"), ["2001:db8::/32", "::/0"]);
        assert_eq!(around(&all, "2001:db9::1"), ["::/0"]);
    }
}
