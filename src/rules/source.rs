//! What a limit is counted per, and where in a request that is found.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, Method, Uri};
use thiserror::Error;

use crate::rules::{Account, Captures};

/// What a limit is counted per.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The client's address, cut to a prefix.
    Address {
        /// Bits of an IPv4 address, 8 to 32.
        v4_prefix: u8,
        /// Bits of an IPv6 address, 32 to 128.
        v6_prefix: u8,
    },
    /// The account.
    Account,
    /// The host that is asked.
    Host,
    /// The registrable domain (eTLD+1) of the host that is asked.
    Domain,
    /// The method.
    Method,
    /// The route.
    Route,
    /// A header's value.
    Header(HeaderName),
    /// A cookie's value.
    Cookie(String),
    /// A query parameter's value.
    Query(String),
    /// A captured segment of the path.
    Path(String),
    /// Nothing: one bucket for all.
    Global,
}

/// Why a text names no source, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SourceError {
    /// There is no such source.
    #[error("{0:?} is no source")]
    Unknown(String),
}

impl Source {
    /// The words that a source can start with, for suggestions.
    pub const WORDS: [&'static str; 11] = [
        "address", "account", "host", "domain", "method", "route", "header", "cookie", "query",
        "path", "global",
    ];

    /// Reads a source; `address` alone cuts an IPv6 address to `default_v6_prefix`.
    ///
    /// # Errors
    /// The error says what to write instead.
    pub fn parse(text: &str, default_v6_prefix: u8) -> Result<Self, SourceError> {
        match text {
            "address" => Ok(Self::Address {
                v4_prefix: 32,
                v6_prefix: default_v6_prefix,
            }),
            "global" => Ok(Self::Global),
            _ => Err(SourceError::Unknown(text.to_owned())),
        }
    }
}

/// What is known of a request.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The method.
    pub method: &'a Method,
    /// The request target.
    pub uri: &'a Uri,
    /// The headers.
    pub headers: &'a HeaderMap,
    /// The client's address.
    pub client: IpAddr,
    /// The account.
    pub account: Option<&'a Account>,
    /// The route's name.
    pub route: &'a str,
    /// What the route's path captured.
    pub captures: &'a Captures,
}
