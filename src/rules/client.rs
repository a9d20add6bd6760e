//! Who the client is, when proxies stand between it and the gateway.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName};
use ipnet::IpNet;

/// Where a request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// The client's address, as far as it is known for sure. Never an IPv4-mapped IPv6 address.
    pub address: IpAddr,
    /// The other end of the connection. Never an IPv4-mapped IPv6 address.
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
    /// A header with one address, such as `X-Real-IP`.
    Single(HeaderName),
}

/// Whose forwarding headers are believed, and which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientRules {
    /// The networks of the trusted proxies.
    pub trusted_proxies: Vec<IpNet>,
    /// The header that they write.
    pub header: AddressHeader,
}

impl ClientRules {
    /// Who sent a request with these headers over a connection from `peer`.
    pub fn client(&self, peer: IpAddr, _headers: &HeaderMap) -> Client {
        let peer = peer.to_canonical();
        Client {
            address: peer,
            peer,
            peer_is_trusted: self.trusts(peer),
        }
    }

    /// Whether an address is one of the trusted proxies.
    pub fn trusts(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.trusted_proxies
            .iter()
            .any(|net| net.contains(&address))
    }
}
