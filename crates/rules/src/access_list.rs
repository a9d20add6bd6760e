//! Allow and block lists of addresses and accounts.

use std::collections::HashSet;
use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use weir_http::address::canonical;

use crate::SecretHash;
use crate::client_address::unmapped;

/// The allow list and the block list.
#[derive(Clone, Debug, Default)]
pub struct AccessLists {
    /// Clients that are neither limited nor banned nor blocked.
    pub allow: AccessList,
    /// Clients that are blocked, unless allowed.
    pub block: AccessList,
}

/// The result of looking up a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It is allowed, by this entry.
    Allowed(ListEntry),
    /// It is blocked, by this entry.
    Blocked(ListEntry),
    /// It is on no list.
    Unlisted,
}

/// The entry of a list that a client was found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListEntry {
    /// A network that its address is in.
    Network(IpNet),
    /// Its account.
    Account(SecretHash),
}

/// Addresses and accounts.
#[derive(Clone, Debug, Default)]
pub struct AccessList {
    networks: NetworkSet,
    accounts: HashSet<SecretHash>,
}

/// Networks of which none is within another, so that an address is in one of them at most, which a
/// binary search finds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct NetworkSet {
    v4: Box<[Ipv4Net]>,
    v6: Box<[Ipv6Net]>,
}

impl AccessLists {
    /// Looks up a client with this address and account. A client on both lists is allowed, so that
    /// a block list from elsewhere keeps out no client that the operator wants in.
    pub fn access(&self, address: IpAddr, account: Option<SecretHash>) -> Access {
        if let Some(listed) = self.allow.find(address, account) {
            return Access::Allowed(listed);
        }
        let blocked = self.block.find(address, account);
        blocked.map_or(Access::Unlisted, Access::Blocked)
    }

    /// Whether both are empty.
    pub fn is_empty(&self) -> bool {
        self.allow.is_empty() && self.block.is_empty()
    }
}

impl AccessList {
    /// A list of these networks and accounts, in any order.
    pub fn new(
        networks: impl IntoIterator<Item = IpNet>,
        accounts: impl IntoIterator<Item = SecretHash>,
    ) -> Self {
        Self {
            networks: networks.into_iter().collect(),
            accounts: accounts.into_iter().collect(),
        }
    }

    /// The entry that names this address or account.
    pub fn find(&self, address: IpAddr, account: Option<SecretHash>) -> Option<ListEntry> {
        let of_address = || self.networks.find(address).map(ListEntry::Network);
        let of_account = || account.filter(|id| self.accounts.contains(id));
        of_address().or_else(|| of_account().map(ListEntry::Account))
    }

    /// The disjoint networks.
    pub fn networks(&self) -> impl Iterator<Item = IpNet> {
        let v4 = self.networks.v4.iter().copied().map(IpNet::from);
        v4.chain(self.networks.v6.iter().copied().map(IpNet::from))
    }

    /// Whether both are empty.
    pub fn is_empty(&self) -> bool {
        self.networks.v4.is_empty() && self.networks.v6.is_empty() && self.accounts.is_empty()
    }

    /// Whether it names accounts.
    pub fn has_accounts(&self) -> bool {
        !self.accounts.is_empty()
    }

    /// The number of disjoint networks, and that of accounts.
    pub fn len(&self) -> (usize, usize) {
        let networks = self.networks.v4.len() + self.networks.v6.len();
        (networks, self.accounts.len())
    }
}

impl NetworkSet {
    fn find(&self, address: IpAddr) -> Option<IpNet> {
        match canonical(address) {
            IpAddr::V4(address) => {
                let after = self.v4.partition_point(|net| net.network() <= address);
                let before = self.v4.get(after.checked_sub(1)?)?;
                before.contains(&address).then_some((*before).into())
            }
            IpAddr::V6(address) => {
                let after = self.v6.partition_point(|net| net.network() <= address);
                let before = self.v6.get(after.checked_sub(1)?)?;
                before.contains(&address).then_some((*before).into())
            }
        }
    }
}

/// Two networks are apart, or one is within the other; then the wider one stands for both.
impl FromIterator<IpNet> for NetworkSet {
    fn from_iter<T: IntoIterator<Item = IpNet>>(all: T) -> Self {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for net in all {
            match unmapped(net).trunc() {
                IpNet::V4(net) => v4.push(net),
                IpNet::V6(net) => v6.push(net),
            }
        }
        // Ordered by address, and of the same address the widest first.
        v4.sort_unstable_by_key(|net| (net.network(), net.prefix_len()));
        v6.sort_unstable_by_key(|net| (net.network(), net.prefix_len()));
        v4.dedup_by(|net, before| before.contains(&*net));
        v6.dedup_by(|net, before| before.contains(&*net));
        Self {
            v4: v4.into(),
            v6: v6.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::HashKey;

    fn list(networks: &[&str]) -> AccessList {
        let networks = networks.iter().map(|net| net.parse().unwrap());
        AccessList::new(networks, [])
    }

    fn is_in(list: &AccessList, address: &str) -> bool {
        list.find(address.parse().unwrap(), None).is_some()
    }

    fn account(name: &str) -> SecretHash {
        let key = HashKey::from_bytes(&[7; 16]).unwrap();
        key.hash(name.as_bytes())
    }

    #[test]
    fn a_list_that_names_anybody_is_not_empty() {
        let nobody = || AccessList::new([], []);
        assert!(nobody().is_empty());
        assert!(AccessLists::default().is_empty());
        for list in [
            || list(&["10.0.0.0/8"]),
            || list(&["2001:db8::/32"]),
            || AccessList::new([], [account("acme")]),
        ] {
            assert!(!list().is_empty());
            let lists = |allow, block| AccessLists { allow, block };
            assert!(!lists(list(), nobody()).is_empty());
            assert!(!lists(nobody(), list()).is_empty());
        }
    }

    #[test]
    fn an_address_is_listed_by_itself_or_by_its_network() {
        let list = list(&["203.0.113.9/32", "10.0.0.0/8", "2001:db8::/32"]);
        for address in [
            "203.0.113.9",
            "10.1.2.3",
            "2001:db8:1::1",
            "::ffff:10.1.2.3",
            "64:ff9b::10.1.2.3",
        ] {
            assert!(is_in(&list, address), "{address}");
        }
        for address in [
            "203.0.113.8",
            "11.0.0.0",
            "9.255.255.255",
            "2001:db9::",
            "::",
        ] {
            assert!(!is_in(&list, address), "{address}");
        }
    }

    #[test]
    fn a_network_within_another_makes_no_hole_in_it() {
        let list = list(&["10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24", "0.0.0.0/32"]);
        assert_eq!(list.len(), (2, 0));
        assert!(is_in(&list, "10.2.0.1") && is_in(&list, "10.1.2.3"));
    }

    #[test]
    fn an_allowed_client_is_not_blocked() {
        let lists = AccessLists {
            allow: AccessList::new([], [account("acme")]),
            block: list(&["203.0.113.0/24"]),
        };
        let address = "203.0.113.9".parse().unwrap();
        let blocked = lists.access(address, Some(account("other")));
        let network = "203.0.113.0/24".parse().unwrap();
        assert_eq!(blocked, Access::Blocked(ListEntry::Network(network)));
        let acme = account("acme");
        let allowed = lists.access(address, Some(acme));
        assert_eq!(allowed, Access::Allowed(ListEntry::Account(acme)));
        let elsewhere = lists.access("192.0.2.1".parse().unwrap(), None);
        assert_eq!(elsewhere, Access::Unlisted);
    }

    fn networks() -> impl Strategy<Value = Vec<IpNet>> {
        // Few distinct addresses, so that networks often meet.
        let v4 = (0_u32..8, 0_u32..4, 0_u8..=32).prop_map(|(high, low, bits)| {
            let address = std::net::Ipv4Addr::from_bits(high << 29 | low);
            IpNet::new(address.into(), bits).unwrap()
        });
        let v6 = (0_u128..8, 0_u128..4, 0_u8..=128).prop_map(|(high, low, bits)| {
            let address = std::net::Ipv6Addr::from_bits(high << 125 | low);
            IpNet::new(address.into(), bits).unwrap()
        });
        prop::collection::vec(prop_oneof![v4, v6], 0..12)
    }

    proptest! {
        #[test]
        fn an_address_is_listed_if_and_only_if_a_network_contains_it(
            networks in networks(),
            high in 0_u32..8,
            low in 0_u32..4,
        ) {
            let v4 = std::net::Ipv4Addr::from_bits(high << 29 | low);
            let v6 = std::net::Ipv6Addr::from_bits(u128::from(high) << 125 | u128::from(low));
            let list = AccessList::new(networks.clone(), []);
            for address in [IpAddr::from(v4), IpAddr::V6(v6).to_canonical()] {
                let expected = networks.iter().any(|net| unmapped(*net).contains(&address));
                prop_assert_eq!(list.find(address, None).is_some(), expected);
            }
        }
    }
}
