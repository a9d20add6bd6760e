//! Bans that operators set beyond what a ban's buckets hold: of networks, and of subjects for good
//! or for longer than the longest ban. They are few, and each gateway knows all of them.

use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::IpNet;
use thiserror::Error;
use weir_http::address::canonical;
use weir_limit::BucketKey;
use weir_limit::time::{Nanos, Timestamp};

use super::Ban;
use crate::client_address::canonical_network;
use crate::{IdError, KeySource, RequestAttributes};

/// The target of an operator's ban.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Banned {
    /// A subject, as bucket keys have it.
    Subject(String),
    /// Every address in a network.
    Network(IpNet),
}

/// Why an id names neither a subject of a ban nor a network, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BannedError {
    /// It is not an id of the ban.
    #[error(transparent)]
    Id(#[from] IdError),
    /// The ban has other subjects than addresses.
    #[error("{0:?} is a network, and this ban is not per address alone; name a subject of it")]
    NotPerAddress(String),
    /// Bits are set behind the prefix.
    #[error("{0} is an address in a network; write {1}")]
    HostBits(IpNet, IpNet),
    /// It holds every address there is.
    #[error("{0} holds all addresses; name a smaller network")]
    Everyone(IpNet),
}

/// The bans that operators have set, by the names of the bans.
#[derive(Clone, Debug, Default)]
pub struct StandingBans(HashMap<String, StandingEntries>);

#[derive(Clone, Debug, Default)]
struct StandingEntries {
    subjects: HashMap<String, Timestamp>,
    networks: HashMap<IpNet, Timestamp>,
    /// The lengths of the prefixes that some network has, the shortest first.
    prefixes: Vec<u8>,
}

impl Ban {
    /// The target that an id names: a subject, or a network whose addresses are all banned.
    ///
    /// # Errors
    /// See [`BannedError`].
    pub fn banned(&self, id: &str) -> Result<Banned, BannedError> {
        let subject = match self.subject_of(id) {
            Ok(subject) => return Ok(Banned::Subject(subject.as_str().to_owned())),
            Err(error @ IdError::AllOfIpv4(..)) => return Err(error.into()),
            Err(error) => error,
        };
        let canonical = |network| canonical_network(&self.schema.nat64, network);
        let Ok(network) = id.parse::<IpNet>().map(canonical) else {
            return Err(subject.into());
        };
        if !matches!(self.per(), [KeySource::Address { .. }]) {
            return Err(BannedError::NotPerAddress(id.to_owned()));
        }
        match network {
            network if network.prefix_len() == 0 => Err(BannedError::Everyone(network)),
            network if network.trunc() != network => {
                Err(BannedError::HostBits(network, network.trunc()))
            }
            network => Ok(Banned::Network(network)),
        }
    }

    /// The id of a subject that is written as bucket keys have it.
    pub fn id_of(&self, subject: &str) -> String {
        self.schema.id_of(subject)
    }
}

impl StandingBans {
    /// Bans from now on until a moment; [`Timestamp::MAX`] is for good. Of several bans of the
    /// same, the one that ends last holds.
    pub fn add(&mut self, ban: &str, banned: Banned, until: Timestamp) {
        let entries = self.0.entry(ban.to_owned()).or_default();
        let end = match banned {
            Banned::Subject(subject) => entries.subjects.entry(subject).or_insert(until),
            Banned::Network(network) => {
                if let Err(place) = entries.prefixes.binary_search(&network.prefix_len()) {
                    entries.prefixes.insert(place, network.prefix_len());
                }
                entries.networks.entry(network).or_insert(until)
            }
        };
        *end = until.max(*end);
    }

    /// Whether nobody is banned.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The targets of the ban with this name, and when it ends for each.
    pub fn of(&self, ban: &str) -> Vec<(Banned, Timestamp)> {
        let entries = self.0.get(ban).into_iter();
        let all = entries.flat_map(|entries| {
            let subjects = entries.subjects.iter();
            let subjects = subjects.map(|(subject, end)| (Banned::Subject(subject.clone()), *end));
            let networks = entries.networks.iter();
            subjects.chain(networks.map(|(network, end)| (Banned::Network(*network), *end)))
        });
        all.collect()
    }

    /// The rest of this ban for the client of a request; [`Nanos::NEVER`] is for good.
    pub fn left(
        &self,
        ban: &Ban,
        request: &RequestAttributes<'_>,
        now: Timestamp,
    ) -> Option<Nanos> {
        let entries = self.0.get(&**ban.name())?;
        let by_network = || entries.address_end(request.client);
        let subject = || ban.subject(request);
        let by_subject = entries.subject_end(subject);
        let until = by_subject.into_iter().chain(by_network()).max()?;
        match until {
            Timestamp::MAX => Some(Nanos::NEVER),
            until => Some(until.since(now)).filter(|left| !left.is_zero()),
        }
    }
}

impl StandingEntries {
    fn subject_end(&self, subject: impl FnOnce() -> Option<BucketKey>) -> Option<Timestamp> {
        if self.subjects.is_empty() {
            return None;
        }
        self.subjects.get(subject()?.as_str()).copied()
    }

    /// The latest end of the networks that hold an address.
    fn address_end(&self, address: IpAddr) -> Option<Timestamp> {
        let address = canonical(address);
        let ends = self.prefixes.iter().filter_map(|prefix| {
            let network = IpNet::new(address, *prefix).ok()?.trunc();
            self.networks.get(&network).copied()
        });
        ends.max()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::banning;
    use super::*;

    fn network(text: &str) -> Banned {
        Banned::Network(text.parse().unwrap())
    }

    fn is_banned(bans: &StandingBans, address: &str) -> bool {
        let entries = bans.0.get("scanners").unwrap();
        entries.address_end(address.parse().unwrap()).is_some()
    }

    #[test]
    fn an_id_is_a_subject_or_a_network_of_a_ban_per_address() {
        let ban = banning("address", 1);
        let subject = Banned::Subject("203.0.113.9".to_owned());
        assert_eq!(ban.banned("203.0.113.9"), Ok(subject));
        assert_eq!(ban.banned("203.0.113.0/24"), Ok(network("203.0.113.0/24")));
        // What the ban counts as one is a subject of it.
        let counted = Banned::Subject("2001:db8::/64".to_owned());
        assert_eq!(ban.banned("2001:db8::/64"), Ok(counted));
        assert_eq!(ban.banned("2001:db8::/32"), Ok(network("2001:db8::/32")));
        assert_eq!(
            ban.banned("::ffff:203.0.113.0/120"),
            Ok(network("203.0.113.0/24"))
        );
        assert_eq!(
            ban.banned("64:ff9b::203.0.113.0/120"),
            Ok(network("203.0.113.0/24"))
        );
        for (id, error) in [
            ("203.0.113.9/24", "write 203.0.113.0/24"),
            ("0.0.0.0/0", "all addresses"),
            ("::/0", "all addresses"),
            ("64:ff9b::/96", "stands for all IPv4 addresses"),
            ("64:ff9b::203.0.113.9", "write \"203.0.113.9\""),
            ("::203.0.113.9", "write \"203.0.113.9\""),
        ] {
            let refused = ban.banned(id).unwrap_err().to_string();
            assert!(refused.contains(error), "{refused}");
        }
        let refused = banning("header:x-team", 1).banned("203.0.113.0/24");
        assert!(!matches!(refused, Ok(Banned::Network(_))), "{refused:?}");
    }

    #[test]
    fn every_address_of_a_network_is_banned_and_no_other() {
        let mut bans = StandingBans::default();
        assert!(bans.is_empty());
        for text in ["203.0.113.0/24", "203.0.0.0/16", "2001:db8::/32"] {
            bans.add("scanners", network(text), Timestamp::MAX);
        }
        for address in [
            "203.0.113.0",
            "203.0.7.7",
            "::ffff:203.0.113.255",
            "64:ff9b::203.0.113.255",
            "::203.0.113.1",
            "2001:db8::1",
        ] {
            assert!(is_banned(&bans, address), "{address}");
        }
        for address in [
            "203.1.0.0",
            "202.255.255.255",
            "2001:db9::",
            "64:ff9c::203.0.113.1",
        ] {
            assert!(!is_banned(&bans, address), "{address}");
        }
    }
}
