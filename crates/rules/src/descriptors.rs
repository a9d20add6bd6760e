//! Descriptors of Envoy's rate limit service: which limit is for one, and the values that limits
//! count it by.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header};
use thiserror::Error;
use weir_limit::time::Timestamp;

use crate::{Account, AccountRules, Captures, KeySource, LimitMatch, LimitUse, RequestAttributes};

const REMOTE_ADDRESS: &str = "remote_address";
const MASKED_REMOTE_ADDRESS: &str = "masked_remote_address";
const ACCOUNT: &str = "account";
const HOST: &str = "host";
const METHOD: &str = "method";

/// Stands for an empty value. An empty header or capture would count as none, and a client that sends
/// an empty header as unlimited.
const EMPTY: &str = "(empty)";

/// An entry of a descriptor: its key and its value.
pub type DescriptorEntry<'e> = (&'e str, &'e str);

/// The rules for the first entry of a descriptor, or for the entry behind one that a rule matched.
#[derive(Clone, Debug, Default)]
pub struct DescriptorRules(HashMap<Box<str>, KeyRules>);

/// The rules for the entries with one key.
#[derive(Clone, Debug, Default)]
struct KeyRules {
    exact: HashMap<Box<str>, DescriptorRule>,
    /// The longest first.
    prefixes: Vec<(Box<str>, DescriptorRule)>,
    any: Option<DescriptorRule>,
}

/// What holds for an entry.
#[derive(Clone, Debug, Default)]
pub struct DescriptorRule {
    /// The index of the limit for descriptors that end with the entry; `None` if they are not limited.
    pub limit: Option<usize>,
    /// The rules for the next entry.
    pub below: DescriptorRules,
}

impl DescriptorRules {
    /// Adds the rule for entries with this key and value: for all values if there is none, for all
    /// that begin alike if it ends with `*`. Returns false if there is one already.
    pub fn add(&mut self, key: &str, value: Option<&str>, rule: DescriptorRule) -> bool {
        let rules = self.0.entry(key.into()).or_default();
        let Some(value) = value else {
            let is_new = rules.any.is_none();
            rules.any = Some(rule);
            return is_new;
        };
        let Some(prefix) = value.strip_suffix('*') else {
            return rules.exact.insert(value.into(), rule).is_none();
        };
        let is_new = rules.prefixes.iter().all(|(known, _)| **known != *prefix);
        let longer = |known: &(Box<str>, _)| known.0.len() > prefix.len();
        let index = rules.prefixes.partition_point(longer);
        rules.prefixes.insert(index, (prefix.into(), rule));
        is_new
    }

    /// The index of the limit for a descriptor: of the rule that its last entry leads to.
    pub fn find(&self, entries: &[DescriptorEntry<'_>]) -> Option<usize> {
        let ((key, value), rest) = entries.split_first()?;
        let rule = self.0.get(*key)?.find(value)?;
        match rest {
            [] => rule.limit,
            rest => rule.below.find(rest),
        }
    }
}

impl KeyRules {
    fn find(&self, value: &str) -> Option<&DescriptorRule> {
        let mut matching = self.prefixes.iter();
        let by_prefix = matching.find(|(prefix, _)| value.starts_with(&**prefix));
        let exact = self.exact.get(value);
        let found = exact.or(by_prefix.map(|(_, rule)| rule));
        found.or(self.any.as_ref())
    }
}

/// The values of a descriptor's entries, as the sources of limits name them.
#[derive(Debug)]
pub struct DescriptorValues {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    /// None where no entry has an address, or one has another text in its place.
    client: Option<IpAddr>,
    account: Option<Account>,
    captures: Captures,
}

impl DescriptorValues {
    /// Reads the entries. Accounts are hashed by these rules.
    pub fn new(entries: &[DescriptorEntry<'_>], accounts: &AccountRules) -> Self {
        let value = |key| entries.iter().find(|(known, _)| *known == key);
        let value = |key| value(key).map(|(_, value)| *value);
        let mut headers: HeaderMap = entries.iter().filter_map(header_field).collect();
        headers.remove(header::HOST);
        let host = value(HOST).and_then(|host| header_field(&(HOST, host)));
        let host = host.map(|(_, host)| host);
        headers.extend(host.map(|host| (header::HOST, host)));
        let method = value(METHOD).and_then(|method| method.parse().ok());
        let client = value(REMOTE_ADDRESS).or_else(|| value(MASKED_REMOTE_ADDRESS));
        Self {
            method: method.unwrap_or_default(),
            uri: Uri::default(),
            headers,
            client: client.and_then(address),
            account: value(ACCOUNT).map(|name| accounts.named(name.as_bytes())),
            captures: entries.iter().map(capture_of_entry).collect(),
        }
    }

    /// What a limit has to do with the descriptor. A text in the place of an address lacks the value
    /// that the limit counts by, whatever its `missing` says: clients can choose such a text.
    pub fn matching<'l>(&self, used: &'l LimitUse, domain: &str, now: Timestamp) -> LimitMatch<'l> {
        let mut per = used.limit.per().iter();
        let address = per.find(|source| matches!(source, KeySource::Address { .. }));
        if let (None, Some(source), true) = (self.client, address, used.mode.checks()) {
            let acts = !used.enforcement.is_partial();
            return LimitMatch::Missing { source, acts };
        }
        used.matching(&self.attributes(domain, now), || None)
    }

    /// The account.
    pub fn account(&self) -> Option<&Account> {
        self.account.as_ref()
    }

    /// The attributes of a request with these values; the domain is its route.
    pub fn attributes<'a>(&'a self, domain: &'a str, now: Timestamp) -> RequestAttributes<'a> {
        RequestAttributes {
            method: &self.method,
            uri: &self.uri,
            headers: &self.headers,
            client: self.client.unwrap_or(Ipv4Addr::UNSPECIFIED.into()),
            secure: false,
            account: self.account.as_ref(),
            route: domain,
            captures: &self.captures,
            now,
        }
    }
}

fn header_field((key, value): &DescriptorEntry<'_>) -> Option<(HeaderName, HeaderValue)> {
    let value = if value.trim_ascii().is_empty() {
        EMPTY
    } else {
        value
    };
    // A value that no header can have is counted all the same.
    let replaced = |byte| {
        if matches!(byte, b'\t' | b' '..=b'~' | 0x80..) {
            byte
        } else {
            b'?'
        }
    };
    let value: Vec<u8> = value.bytes().map(replaced).collect();
    Some((key.parse().ok()?, HeaderValue::from_bytes(&value).ok()?))
}

fn capture_of_entry<'a>((key, value): &DescriptorEntry<'a>) -> DescriptorEntry<'a> {
    (key, if value.is_empty() { EMPTY } else { value })
}

/// An address, or that of a network.
fn address(value: &str) -> Option<IpAddr> {
    value.split('/').next()?.parse().ok()
}

impl KeySource {
    /// The keys of the entries of a descriptor, one of which has the value of the source. None for a
    /// source that needs no entry.
    ///
    /// # Errors
    /// When descriptors have no such value.
    pub fn descriptor_keys(&self) -> Result<Vec<&str>, NotInDescriptors> {
        Ok(match self {
            Self::Address { .. } => vec![REMOTE_ADDRESS, MASKED_REMOTE_ADDRESS],
            Self::Account => vec![ACCOUNT],
            Self::Host | Self::Domain => vec![HOST],
            Self::Method => vec![METHOD],
            Self::Header(name) => vec![name.as_str()],
            Self::Path(name) => vec![name],
            Self::Route | Self::Global => Vec::new(),
            Self::Cookie(_) | Self::Query(_) => return Err(NotInDescriptors),
        })
    }
}

/// A source whose value no descriptor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("descriptors have neither cookies nor queries; count per path:KEY")]
pub struct NotInDescriptors;

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use weir_limit::Quota;

    use super::*;
    use crate::{AccountWildcards, Enforcement, HashKey, Limit, Missing};

    fn rule(limit: usize) -> DescriptorRule {
        DescriptorRule {
            limit: Some(limit),
            below: DescriptorRules::default(),
        }
    }

    fn rules() -> DescriptorRules {
        let mut below = DescriptorRules::default();
        assert!(below.add("path", Some("/foo"), rule(1)));
        let mut rules = DescriptorRules::default();
        let authenticated = DescriptorRule { limit: None, below };
        assert!(rules.add("authenticated", Some("false"), authenticated));
        assert!(rules.add("client", None, rule(2)));
        assert!(rules.add("client", Some("acme"), rule(3)));
        assert!(rules.add("client", Some("ac*"), rule(4)));
        assert!(rules.add("client", Some("acm*"), rule(5)));
        rules
    }

    #[test]
    fn the_nearest_value_has_its_rule_before_all_values() {
        for (value, limit) in [("acme", 3), ("acmes", 5), ("aces", 4), ("b", 2), ("", 2)] {
            assert_eq!(rules().find(&[("client", value)]), Some(limit), "{value}");
        }
    }

    #[test]
    fn a_descriptor_that_ends_above_or_below_a_limit_is_not_limited() {
        let (anonymous, path) = (("authenticated", "false"), ("path", "/foo"));
        assert_eq!(rules().find(&[anonymous, path]), Some(1));
        for entries in [
            &[anonymous][..],
            &[path],
            &[path, anonymous],
            &[anonymous, ("path", "/bar")],
            &[anonymous, path, path],
            &[("client", "acme"), path],
            &[("authenticated", "true"), path],
            &[],
        ] {
            assert_eq!(rules().find(entries), None, "{entries:?}");
        }
    }

    #[test]
    fn no_value_has_two_rules() {
        for value in [None, Some("acme"), Some("ac*")] {
            assert!(!rules().add("client", value, rule(9)), "{value:?}");
        }
    }

    fn accounts() -> AccountRules {
        AccountRules {
            sources: Vec::new(),
            key: HashKey::from_bytes(&[7; 16]).unwrap(),
            wildcards: AccountWildcards::default(),
            keeps_names: false,
        }
    }

    fn used(source: &str) -> LimitUse {
        let quota = Quota::new(1, 1, Duration::from_secs(1)).unwrap();
        let per = vec![KeySource::parse(source, 64).unwrap()];
        let limit = Limit::new("L", per, quota, Missing::Skip, accounts().key);
        LimitUse::new(Arc::new(limit.unwrap()))
    }

    #[test]
    fn entries_have_the_values_of_sources() {
        let entries = [
            ("remote_address", "203.0.113.9"),
            ("account", "acme"),
            ("host", "App.example.com"),
            ("method", "POST"),
            ("x-api-key", "secret"),
        ];
        let values = DescriptorValues::new(&entries, &accounts());
        let attributes = values.attributes("edge", Timestamp::default());
        assert_eq!(attributes.client.to_string(), "203.0.113.9");
        assert_eq!(attributes.account.unwrap().id, accounts().key.hash(b"acme"));
        assert_eq!(attributes.headers["host"], "App.example.com");
        assert_eq!(attributes.headers["x-api-key"], "secret");
        assert_eq!(attributes.method, Method::POST);
        assert_eq!(attributes.captures.get("x-api-key"), Some("secret"));
        assert_eq!(attributes.route, "edge");
    }

    /// A client chooses its headers. One that is no text, empty or blank would have been unlimited.
    #[test]
    fn no_value_that_a_client_chooses_goes_uncounted() {
        for (key, source) in [
            ("x-api-key", "header:x-api-key"),
            ("x-api-key", "path:x-api-key"),
            ("account", "account"),
            ("host", "host"),
            ("host", "domain"),
            ("method", "method"),
        ] {
            let used = used(source);
            for value in ["\u{e9}", "\u{fffd}", "\u{1}", "", " ", "\t"] {
                let values = DescriptorValues::new(&[(key, value)], &accounts());
                let found = values.matching(&used, "edge", Timestamp::default());
                assert!(
                    matches!(found, LimitMatch::Counted { .. }),
                    "{source}: {value:?}"
                );
            }
        }
    }

    #[test]
    fn an_address_may_be_masked() {
        let masked = [("masked_remote_address", "2001:db8::/64")];
        let values = DescriptorValues::new(&masked, &accounts());
        assert_eq!(values.client.unwrap().to_string(), "2001:db8::");
    }

    /// Where a header of the client stands in the place of the address.
    #[test]
    fn what_is_no_address_is_neither_uncounted_nor_one_client() {
        for value in ["", "localhost", "192.0.2.1, 192.0.2.2"] {
            let entries = [(REMOTE_ADDRESS, value), ("tenant", "red")];
            let values = DescriptorValues::new(&entries, &accounts());
            let found = |used: &LimitUse| match values.matching(used, "edge", Timestamp::default())
            {
                LimitMatch::Missing { acts, .. } => Some(acts),
                _ => None,
            };
            assert_eq!(found(&used("address")), Some(true), "{value:?}");
            let dry_run = LimitUse {
                enforcement: Enforcement::NONE,
                ..used("address")
            };
            assert_eq!(found(&dry_run), Some(false), "{value:?}");
            assert_eq!(found(&used("path:tenant")), None);
        }
    }
}
