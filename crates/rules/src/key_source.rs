//! The sources of subjects: what a limit is counted per.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use http::{HeaderMap, HeaderName, Method, Uri};
use thiserror::Error;
use weir_limit::time::Timestamp;

use crate::{Account, Captures};

const V4_PREFIXES: RangeInclusive<u8> = 8..=V4_BITS;
const V6_PREFIXES: RangeInclusive<u8> = 32..=128;
const V4_BITS: u8 = 32;

/// The sources of subjects: what a limit is counted per.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KeySource {
    /// The client's address, cut to a prefix.
    Address {
        /// Bits of an IPv4 address, 8 to 32.
        v4_prefix: u8,
        /// Bits of an IPv6 address, 32 to 128.
        v6_prefix: u8,
    },
    /// The account.
    Account,
    /// The requested host, in lower case and without port.
    Host,
    /// The registrable domain (eTLD+1) of the requested host; the host itself if it has none.
    Domain,
    /// The method. All that RFC 9110 and RFC 5789 do not name are one, `other`, so that inventing
    /// a method earns no new bucket.
    Method,
    /// The route.
    Route,
    /// A header's value. Requests that repeat the header with different values are one subject,
    /// so that a client cannot show one value to Weir and another to the upstream.
    Header(HeaderName),
    /// A cookie's value, the first where there are several.
    Cookie(String),
    /// A query parameter's value, the first where there are several.
    Query(String),
    /// A captured segment of the path, in normal form.
    Path(String),
    /// Nothing: one bucket for all.
    Global,
}

/// Why a text names no source, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SourceError {
    /// There is no such source.
    #[error(
        "{0:?} is not a source; write address, account, host, domain, method, route, header:NAME, \
         cookie:NAME, query:NAME, path:NAME or global"
    )]
    Unknown(String),
    /// A source that needs a name has none.
    #[error("{0} needs a name; write {0}:NAME")]
    NeedsName(String),
    /// A source that takes no name has one.
    #[error("{0} takes nothing behind it; write {0}")]
    TakesNoName(String),
    /// The name cannot be one of a header or cookie.
    #[error("{0:?} cannot be the name of a {1}; write letters, digits, '-' and '_'")]
    BadName(String, String),
    /// Prefixes that are not numbers, or too many.
    #[error("{0:?} has no prefix lengths; write address/64, or address/24/64 for IPv4 and IPv6")]
    NotPrefixes(String),
    /// An IPv6 prefix out of range.
    #[error(
        "an IPv6 prefix has 32 to 128 bits, not {0}; write address/64, or address/24/64 for IPv4 \
         and IPv6"
    )]
    V6Prefix(u8),
    /// An IPv4 prefix out of range.
    #[error("an IPv4 prefix has 8 to 32 bits, not {0}; write address/24/{1}")]
    V4Prefix(u8, u8),
}

impl KeySource {
    /// The words that a source starts with, for suggestions.
    pub const WORDS: [&'static str; 11] = [
        "address", "account", "host", "domain", "method", "route", "header", "cookie", "query",
        "path", "global",
    ];

    /// Reads a source; `address` alone cuts an IPv6 address to `default_v6_prefix`, and
    /// `address/48` to 48 bits. `address/24/48` cuts an IPv4 address, too, to 24.
    ///
    /// # Errors
    /// The error says what to write instead.
    pub fn parse(text: &str, default_v6_prefix: u8) -> Result<Self, SourceError> {
        let (text, default) = (text.trim(), default_v6_prefix);
        if let Some((word, name)) = text.split_once(':') {
            return Self::named(word.trim(), name.trim());
        }
        match text {
            "address" => Self::address(V4_BITS, default),
            "account" => Ok(Self::Account),
            "host" => Ok(Self::Host),
            "domain" => Ok(Self::Domain),
            "method" => Ok(Self::Method),
            "route" => Ok(Self::Route),
            "global" => Ok(Self::Global),
            "header" | "cookie" | "query" | "path" => Err(SourceError::NeedsName(text.to_owned())),
            _ => match text.strip_prefix("address/") {
                Some(prefixes) => Self::prefixed(text, prefixes),
                None => Err(SourceError::Unknown(text.to_owned())),
            },
        }
    }

    fn named(word: &str, name: &str) -> Result<Self, SourceError> {
        let bad = || SourceError::BadName(name.to_owned(), word.to_owned());
        match word {
            "header" | "cookie" | "query" | "path" if name.is_empty() => {
                Err(SourceError::NeedsName(word.to_owned()))
            }
            "header" => name.parse().map(Self::Header).map_err(|_| bad()),
            // A cookie's name is a token (RFC 6265, section 4.1.1), as a header's is.
            "cookie" if HeaderName::try_from(name).is_err() => Err(bad()),
            "cookie" => Ok(Self::Cookie(name.to_owned())),
            "query" => Ok(Self::Query(name.to_owned())),
            "path" => Ok(Self::Path(name.to_owned())),
            _ if Self::WORDS.contains(&word) => Err(SourceError::TakesNoName(word.to_owned())),
            _ => Err(SourceError::Unknown(word.to_owned())),
        }
    }

    fn prefixed(text: &str, prefixes: &str) -> Result<Self, SourceError> {
        let number = |text: &str| text.parse().ok();
        let prefixes = match prefixes.split_once('/') {
            None => number(prefixes).map(|v6| (V4_BITS, v6)),
            Some((v4, v6)) => number(v4).zip(number(v6)),
        };
        let (v4, v6) = prefixes.ok_or_else(|| SourceError::NotPrefixes(text.to_owned()))?;
        Self::address(v4, v6)
    }

    fn address(v4_prefix: u8, v6_prefix: u8) -> Result<Self, SourceError> {
        if !V6_PREFIXES.contains(&v6_prefix) {
            return Err(SourceError::V6Prefix(v6_prefix));
        }
        if !V4_PREFIXES.contains(&v4_prefix) {
            return Err(SourceError::V4Prefix(v4_prefix, v6_prefix));
        }
        Ok(Self::Address {
            v4_prefix,
            v6_prefix,
        })
    }

    /// Whether values are shown and stored as hashes only.
    pub fn is_hashed(&self) -> bool {
        matches!(
            self,
            Self::Account | Self::Header(_) | Self::Cookie(_) | Self::Query(_)
        )
    }

    /// Whether values are texts that wildcards can match.
    pub(super) fn has_text(&self) -> bool {
        !matches!(self, Self::Address { .. } | Self::Method | Self::Global)
    }

    /// Whether values may be IPv6 addresses, which have brackets among other parts.
    pub(super) fn may_have_brackets(&self) -> bool {
        matches!(self, Self::Address { .. } | Self::Host | Self::Domain)
    }
}

/// Shows the source as it is written.
impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address {
                v4_prefix: V4_BITS,
                v6_prefix,
            } => write!(f, "address/{v6_prefix}"),
            Self::Address {
                v4_prefix,
                v6_prefix,
            } => write!(f, "address/{v4_prefix}/{v6_prefix}"),
            Self::Account => f.write_str("account"),
            Self::Host => f.write_str("host"),
            Self::Domain => f.write_str("domain"),
            Self::Method => f.write_str("method"),
            Self::Route => f.write_str("route"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Cookie(name) => write!(f, "cookie:{name}"),
            Self::Query(name) => write!(f, "query:{name}"),
            Self::Path(name) => write!(f, "path:{name}"),
            Self::Global => f.write_str("global"),
        }
    }
}

/// The attributes of a request that subjects and templates are made of. It has no `Debug`, since
/// headers would show secrets.
#[derive(Clone, Copy)]
pub struct RequestAttributes<'a> {
    /// The method.
    pub method: &'a Method,
    /// The request target.
    pub uri: &'a Uri,
    /// The headers.
    pub headers: &'a HeaderMap,
    /// The client's address.
    pub client: IpAddr,
    /// Whether the client asked by TLS. Only templates read it: no limit counts by it.
    pub secure: bool,
    /// The account.
    pub account: Option<&'a Account>,
    /// The route's name.
    pub route: &'a str,
    /// The captures of the route's path.
    pub captures: &'a Captures,
    /// When it arrived.
    pub now: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn help(text: &str) -> String {
        KeySource::parse(text, 64).unwrap_err().to_string()
    }

    #[test]
    fn a_source_shows_as_it_is_written() {
        for text in [
            "address/48",
            "address/24/56",
            "account",
            "host",
            "domain",
            "method",
            "route",
            "header:x-api-key",
            "cookie:Session",
            "query:api key",
            "path:team",
            "global",
        ] {
            assert_eq!(KeySource::parse(text, 64).unwrap().to_string(), text);
        }
    }

    #[test]
    fn an_address_alone_is_cut_to_the_default_prefix() {
        let default = KeySource::parse("address", 56).unwrap();
        assert_eq!(default, KeySource::parse("address/32/56", 64).unwrap());
    }

    #[test]
    fn a_bad_source_is_told_what_to_write_instead() {
        for (text, expected) in [
            ("adress", "write address, account"),
            ("ip:x", "write address, account"),
            ("header", "write header:NAME"),
            ("header:", "write header:NAME"),
            ("header:a b", "letters, digits"),
            ("cookie:a=b", "letters, digits"),
            ("host:x", "write host"),
            ("address/24", "write address/64, or address/24/64"),
            ("address/129", "32 to 128"),
            ("address/4/64", "write address/24/64"),
            ("address/x", "write address/64"),
            ("address/24/64/3", "write address/64"),
        ] {
            let said = help(text);
            assert!(said.contains(expected), "{text}: {said}");
        }
    }
}
