//! The PROXY protocol to servers: a header in front of a connection's first byte has the addresses
//! of the client's connection. <https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt>

use std::io;
use std::net::{IpAddr, SocketAddr};

use ppp::{v1, v2};

/// The version of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyProtocol {
    /// A line of text.
    V1,
    /// Binary.
    V2,
}

/// The two ends of a client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionAddrs {
    /// The client.
    pub source: SocketAddr,
    /// The address that the client connected to.
    pub destination: SocketAddr,
}

impl ProxyProtocol {
    /// The header of a connection for a request of this client, or for one of the gateway's own.
    pub(super) fn header(self, ends: Option<&ConnectionAddrs>) -> io::Result<Vec<u8>> {
        let ends = ends.map(ConnectionAddrs::of_one_family);
        match (self, ends) {
            (Self::V1, ends) => {
                let addresses = ends.map_or(v1::Addresses::Unknown, v1::Addresses::from);
                Ok(addresses.to_string().into_bytes())
            }
            (Self::V2, Some(ends)) => {
                let command = v2::Version::Two | v2::Command::Proxy;
                v2::Builder::with_addresses(command, v2::Protocol::Stream, ends).build()
            }
            (Self::V2, None) => {
                let command = v2::Version::Two | v2::Command::Local;
                let kind = v2::AddressFamily::Unspecified | v2::Protocol::Unspecified;
                v2::Builder::new(command, kind).build()
            }
        }
    }
}

impl ConnectionAddrs {
    /// Both as IPv4 addresses, or as IPv6 addresses.
    fn of_one_family(&self) -> (SocketAddr, SocketAddr) {
        let canonical = [self.source, self.destination]
            .map(|end| SocketAddr::new(end.ip().to_canonical(), end.port()));
        let [source, destination] = match canonical.iter().all(SocketAddr::is_ipv4) {
            true => canonical,
            false => canonical.map(mapped),
        };
        (source, destination)
    }
}

fn mapped(end: SocketAddr) -> SocketAddr {
    let address = match end.ip() {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    SocketAddr::new(address.into(), end.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(source: &str, destination: &str) -> String {
        let ends = ConnectionAddrs {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
        };
        String::from_utf8(ProxyProtocol::V1.header(Some(&ends)).unwrap()).unwrap()
    }

    #[test]
    fn both_ends_are_told_in_one_family() {
        let four = line("203.0.113.9:5555", "192.0.2.1:443");
        assert_eq!(four, "PROXY TCP4 203.0.113.9 192.0.2.1 5555 443\r\n");
        let six = line("[2001:db8::9]:5555", "[::ffff:192.0.2.1]:443");
        assert_eq!(six, "PROXY TCP6 2001:db8::9 ::ffff:192.0.2.1 5555 443\r\n");
        assert_eq!(
            line("[::ffff:203.0.113.9]:1", "192.0.2.1:2"),
            line("203.0.113.9:1", "192.0.2.1:2")
        );
    }

    #[test]
    fn the_binary_header_is_what_the_parser_reads() {
        let ends = ConnectionAddrs {
            source: "203.0.113.9:5555".parse().unwrap(),
            destination: "192.0.2.1:443".parse().unwrap(),
        };
        let header = ProxyProtocol::V2.header(Some(&ends)).unwrap();
        let parsed = v2::Header::try_from(&*header).unwrap();
        assert_eq!(parsed.command, v2::Command::Proxy);
        assert_eq!(parsed.protocol, v2::Protocol::Stream);
        let expected: v2::Addresses = (ends.source, ends.destination).into();
        assert_eq!(parsed.addresses, expected);
    }

    #[test]
    fn a_health_check_is_the_gateways_own() {
        assert_eq!(
            ProxyProtocol::V1.header(None).unwrap(),
            b"PROXY UNKNOWN\r\n"
        );
        let header = ProxyProtocol::V2.header(None).unwrap();
        let parsed = v2::Header::try_from(&*header).unwrap();
        assert_eq!(parsed.command, v2::Command::Local);
    }
}
