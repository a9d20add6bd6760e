//! A set of peers, as ranges of addresses that do not touch.

use std::net::IpAddr;

use ipnet::IpNet;

/// The first and the last address of a range, as numbers. Those of IPv4 have 32 bits.
pub(crate) type Range = (u128, u128);

/// Addresses of peers: all of some networks, without those that are exempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerSet {
    v4: Box<[Range]>,
    v6: Box<[Range]>,
}

impl PeerSet {
    /// The addresses of these networks that are in none of the `exempt` ones. A network of IPv6
    /// must not be one of IPv4-mapped addresses.
    pub fn new(
        networks: impl IntoIterator<Item = IpNet>,
        exempt: impl IntoIterator<Item = IpNet>,
    ) -> Self {
        let ((v4, v6), (exempt_v4, exempt_v6)) = (by_version(networks), by_version(exempt));
        Self {
            v4: without(&merged(v4), &merged(exempt_v4)).into(),
            v6: without(&merged(v6), &merged(exempt_v6)).into(),
        }
    }

    /// Whether there is no address.
    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    /// Whether it has the address of a peer; IPv4-mapped addresses are those of IPv4.
    pub fn contains(&self, peer: IpAddr) -> bool {
        let (ranges, address) = match peer.to_canonical() {
            IpAddr::V4(address) => (&self.v4, address.to_bits().into()),
            IpAddr::V6(address) => (&self.v6, address.to_bits()),
        };
        let after = ranges.partition_point(|(first, _)| *first <= address);
        let before = after.checked_sub(1).and_then(|index| ranges.get(index));
        before.is_some_and(|(_, last)| address <= *last)
    }

    pub(crate) fn v4(&self) -> &[Range] {
        &self.v4
    }

    pub(crate) fn v6(&self) -> &[Range] {
        &self.v6
    }
}

fn by_version(networks: impl IntoIterator<Item = IpNet>) -> (Vec<Range>, Vec<Range>) {
    let (mut v4, mut v6) = (Vec::new(), Vec::new());
    for network in networks {
        match network {
            IpNet::V4(network) => v4.push((
                network.network().to_bits().into(),
                network.broadcast().to_bits().into(),
            )),
            IpNet::V6(network) => {
                v6.push((network.network().to_bits(), network.broadcast().to_bits()));
            }
        }
    }
    (v4, v6)
}

/// The same addresses in ascending ranges that neither overlap nor touch.
fn merged(mut ranges: Vec<Range>) -> Vec<Range> {
    ranges.sort_unstable();
    ranges.dedup_by(|(first, last), (_, before)| {
        let touches = *first <= before.saturating_add(1);
        if touches {
            *before = (*last).max(*before);
        }
        touches
    });
    ranges
}

/// The ranges without what is `exempt`. Both are [`merged`].
fn without(ranges: &[Range], exempt: &[Range]) -> Vec<Range> {
    let mut left = Vec::with_capacity(ranges.len());
    let mut exempt = exempt.iter().copied().peekable();
    for &(mut first, last) in ranges {
        let mut is_used_up = false;
        while let Some((from, to)) = exempt.peek().copied().filter(|(from, _)| *from <= last) {
            if from > first {
                left.push((first, from - 1));
            }
            // An exempt range may reach into the next range, and is kept for it.
            if to >= last {
                is_used_up = to >= first;
                break;
            }
            first = first.max(to + 1);
            exempt.next();
        }
        if !is_used_up {
            left.push((first, last));
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;

    /// Few distinct addresses, so that networks often meet.
    fn networks() -> impl Strategy<Value = Vec<IpNet>> {
        let v4 = (0_u32..8, 0_u32..4, 0_u8..=32).prop_map(|(high, low, prefix)| {
            let address = Ipv4Addr::from_bits(high << 29 | low);
            IpNet::new(address.into(), prefix).unwrap().trunc()
        });
        let v6 = (1_u128..8, 0_u128..4, 1_u8..=128).prop_map(|(high, low, prefix)| {
            let address = Ipv6Addr::from_bits(high << 125 | low);
            IpNet::new(address.into(), prefix).unwrap().trunc()
        });
        prop::collection::vec(prop_oneof![v4, v6], 0..10)
    }

    proptest! {
        #[test]
        fn a_peer_is_in_it_if_and_only_if_a_network_has_it_and_no_exempt_one(
            named in networks(),
            exempt in networks(),
            high in 0_u32..8,
            low in 0_u32..5,
        ) {
            let set = PeerSet::new(named.clone(), exempt.clone());
            for ranges in [set.v4(), set.v6()] {
                prop_assert!(ranges.iter().all(|(first, last)| first <= last));
                prop_assert!(ranges.is_sorted_by(|(_, before), (first, _)| before + 1 < *first
                    || before < first && !exempt.is_empty()));
            }
            let v4 = Ipv4Addr::from_bits(high << 29 | low);
            let v6 = Ipv6Addr::from_bits(u128::from(high.max(1)) << 125 | u128::from(low));
            for peer in [IpAddr::V4(v4), IpAddr::V6(v6)] {
                let is_in = |networks: &[IpNet]| networks.iter().any(|it| it.contains(&peer));
                prop_assert_eq!(set.contains(peer), is_in(&named) && !is_in(&exempt));
            }
            prop_assert_eq!(set.contains(v4.to_ipv6_mapped().into()), set.contains(v4.into()));
        }
    }
}
