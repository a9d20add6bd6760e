//! The PROXY protocol: a load balancer that forwards connections, not requests, sends the client's
//! address in front of the first byte of each connection.
//!
//! A header is required of trusted peers, and read from nobody else: guessing whether there is one
//! would let the clients of a peer that sends none write it themselves.
//! <https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt>

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use arc_swap::ArcSwap;
use ipnet::IpNet;
use ppp::{v1, v2};
use thiserror::Error;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::sleep;
use weir_http::address::canonical;
use weir_telemetry::ProxyHeader;
use weir_telemetry::events::LastWarning;

use super::connection_state::HEAD_WHILE_OTHERS_WAIT;
use super::drain::Draining;
use super::tls::HandshakeBounds;

/// The longest line of version 1 (section 2.1).
const MAX_LINE: usize = 107;

/// What version 2 has before the addresses: a signature of 12 bytes, four more, the last two of
/// which say how many bytes follow (section 2.2).
const FIXED_BYTES: usize = 16;

/// Version 2, and the command LOCAL.
const LOCAL: u8 = 0x20;

/// The longest header of version 2, as in nginx. What exceeds 232 bytes are extensions.
const MAX_HEADER: usize = 4096;

/// How many bytes are looked at at a time.
const PEEK: usize = 256;

/// Who sends PROXY headers to a listener, shared by all workers.
#[derive(Clone, Debug)]
pub struct ProxyProtocol(Arc<TrustedSenders>);

#[derive(Debug)]
struct TrustedSenders {
    trusted: ArcSwap<Vec<IpNet>>,
    warned: LastWarning,
}

impl ProxyProtocol {
    /// Requires headers of peers in these networks. IPv4 networks must not be written as
    /// IPv4-mapped ones.
    pub fn new(trusted: Vec<IpNet>) -> Self {
        Self(Arc::new(TrustedSenders {
            trusted: ArcSwap::from_pointee(trusted),
            warned: LastWarning::default(),
        }))
    }

    /// Replaces the networks, for new connections.
    pub fn renew(&self, trusted: Vec<IpNet>) {
        self.0.trusted.store(Arc::new(trusted));
    }

    /// Whether this peer has to send a header.
    pub(super) fn trusts(&self, peer: IpAddr) -> bool {
        let peer = canonical(peer);
        self.0.trusted.load().iter().any(|net| net.contains(&peer))
    }

    /// Whether a warning is due: a load balancer that is set up wrongly fails on every connection.
    pub(super) fn may_warn(&self) -> bool {
        self.0.warned.is_due()
    }
}

#[derive(Debug, Error)]
pub(super) enum ProxyHeaderError {
    #[error("the connection does not begin with a PROXY header")]
    Missing,
    #[error("the PROXY header is malformed")]
    Malformed,
    #[error("the PROXY header is too long")]
    TooLong,
    #[error("the PROXY header takes too long")]
    TooSlow,
    #[error("the connection was closed before its PROXY header")]
    Closed,
    #[error("the gateway drains")]
    Drains,
    #[error("another connection needs its place")]
    Evicted,
    #[error(transparent)]
    Failed(#[from] io::Error),
}

impl ProxyHeaderError {
    pub(super) fn kind(&self) -> ProxyHeader {
        match self {
            Self::Missing | Self::Malformed | Self::TooLong => ProxyHeader::Malformed,
            Self::TooSlow => ProxyHeader::TooSlow,
            Self::Closed | Self::Drains | Self::Evicted | Self::Failed(_) => ProxyHeader::Closed,
        }
    }
}

/// Reads the header, and not a byte of what follows it. Returns the address of the client; none if
/// the connection is the peer's own, or the client has no address.
pub(super) async fn read_proxy_header(
    stream: &mut TcpStream,
    bounds: HandshakeBounds<'_>,
    draining: &Draining,
) -> Result<Option<SocketAddr>, ProxyHeaderError> {
    tokio::select! {
        biased;
        header = read(stream) => header,
        () = sleep(bounds.timeout) => Err(ProxyHeaderError::TooSlow),
        // The header is the first thing that is sent, and fits into one packet.
        () = bounds.limit.evicted_after(HEAD_WHILE_OTHERS_WAIT) => Err(ProxyHeaderError::Evicted),
        () = async { draining.begun().await; sleep(bounds.idle_grace).await } => Err(ProxyHeaderError::Drains),
    }
}

async fn read(stream: &mut TcpStream) -> Result<Option<SocketAddr>, ProxyHeaderError> {
    let mut header = Vec::new();
    let mut peeked = [0; PEEK];
    loop {
        let before = header.len();
        let some = stream.peek(&mut peeked).await?;
        if some == 0 {
            return Err(ProxyHeaderError::Closed);
        }
        header.extend_from_slice(peeked.get(..some).unwrap_or_default());
        let length = header_length(&header)?;
        header.truncate(length.unwrap_or(usize::MAX));
        // As long as the header is incomplete, all bytes belong to it.
        let own = peeked.get_mut(..header.len().saturating_sub(before));
        stream.read_exact(own.unwrap_or_default()).await?;
        if length == Some(header.len()) {
            let source = source(&header).ok_or(ProxyHeaderError::Malformed)?;
            // 0.0.0.0 and :: stand for no address.
            return Ok(source.filter(|source| !source.ip().to_canonical().is_unspecified()));
        }
    }
}

/// How long the header is that begins like this, once that is known.
fn header_length(begin: &[u8]) -> Result<Option<usize>, ProxyHeaderError> {
    if agree(begin, v2::PROTOCOL_PREFIX) {
        let Some(&[high, low]) = begin.get(FIXED_BYTES - 2..FIXED_BYTES) else {
            return Ok(None);
        };
        let length = FIXED_BYTES + usize::from(u16::from_be_bytes([high, low]));
        let fits = length <= MAX_HEADER;
        return fits
            .then_some(Some(length))
            .ok_or(ProxyHeaderError::TooLong);
    }
    if !agree(begin, b"PROXY ") {
        return Err(ProxyHeaderError::Missing);
    }
    match memchr::memchr(b'\n', begin) {
        Some(end) if end < MAX_LINE => Ok(Some(end + 1)),
        None if begin.len() < MAX_LINE => Ok(None),
        _ => Err(ProxyHeaderError::TooLong),
    }
}

/// Whether the shorter one is the beginning of the other.
fn agree(one: &[u8], other: &[u8]) -> bool {
    one.iter().zip(other).all(|(a, b)| a == b)
}

/// The address of the client in a whole header; none if the header is malformed.
#[expect(
    clippy::option_option,
    reason = "a header without an address is as good as one with it"
)]
fn source(header: &[u8]) -> Option<Option<SocketAddr>> {
    if header.starts_with(v2::PROTOCOL_PREFIX) {
        // A health check of the peer itself, of whatever family (section 2.2).
        if header.get(v2::PROTOCOL_PREFIX.len()) == Some(&LOCAL) {
            return Some(None);
        }
        let header = v2::Header::try_from(header).ok()?;
        let is_proxied = header.protocol == v2::Protocol::Stream;
        return Some(match header.addresses {
            v2::Addresses::IPv4(ends) if is_proxied => {
                Some((ends.source_address, ends.source_port).into())
            }
            v2::Addresses::IPv6(ends) if is_proxied => {
                Some((ends.source_address, ends.source_port).into())
            }
            // Sockets that have no IP address.
            _ => None,
        });
    }
    let parsed = v1::Header::try_from(header).ok()?;
    // Otherwise it ends at an earlier carriage return, and so is malformed.
    (parsed.header.len() == header.len()).then_some(match parsed.addresses {
        v1::Addresses::Tcp4(ends) => Some((ends.source_address, ends.source_port).into()),
        v1::Addresses::Tcp6(ends) => Some((ends.source_address, ends.source_port).into()),
        v1::Addresses::Unknown => None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    const LINE: &[u8] = b"PROXY TCP4 192.0.2.1 198.51.100.7 4711 443\r\n";

    /// A header of version 2, with these bytes after the signature and before the addresses.
    fn binary(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
        [v2::PROTOCOL_PREFIX, &[command, family], &length, rest].concat()
    }

    fn ipv4(extensions: &[u8]) -> Vec<u8> {
        let ends = [192, 0, 2, 1, 198, 51, 100, 7, 0x12, 0x67, 1, 187];
        binary(0x21, 0x11, &[&ends, extensions].concat())
    }

    fn ipv6() -> Vec<u8> {
        let address = |last: u8| [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
        let ends = [&address(1)[..], &address(2), &[0x12, 0x67, 1, 187]];
        binary(0x21, 0x21, &ends.concat())
    }

    /// What is read of these pieces, and what is left for the protocol that follows.
    async fn read_pieces(
        pieces: &[&[u8]],
    ) -> (Result<Option<SocketAddr>, ProxyHeaderError>, Vec<u8>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        client.set_nodelay(true).unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        let send = async {
            for piece in pieces {
                client.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
            client.shutdown().await.unwrap();
        };
        let (read, ()) = tokio::join!(read(&mut server), send);
        let mut rest = Vec::new();
        server.read_to_end(&mut rest).await.unwrap();
        (read, rest)
    }

    #[tokio::test]
    async fn both_versions_name_the_client_and_leave_what_follows() {
        let mapped = b"PROXY TCP6 2001:db8::1 2001:db8::2 4711 443\r\n";
        let extensions = [&[0xE0, 1, 0][..], &[7; 256]].concat();
        for (header, client) in [
            (LINE.to_vec(), "192.0.2.1:4711"),
            (mapped.to_vec(), "[2001:db8::1]:4711"),
            (ipv4(&[]), "192.0.2.1:4711"),
            (ipv4(&extensions), "192.0.2.1:4711"),
            (ipv6(), "[2001:db8::1]:4711"),
        ] {
            let client: SocketAddr = client.parse().unwrap();
            let (head, tail) = header.split_at(header.len() - 3);
            let whole = [&header, &b"GET"[..]].concat();
            let bytes: Vec<_> = whole.chunks(1).collect();
            for pieces in [vec![&*whole], vec![head, tail, b"GET"], bytes] {
                let (read, rest) = read_pieces(&pieces).await;
                assert_eq!(read.unwrap(), Some(client), "{header:?}");
                assert_eq!(rest, b"GET");
            }
        }
    }

    #[tokio::test]
    async fn a_header_without_a_client_leaves_the_peer() {
        let unix = [0; 216];
        for header in [
            b"PROXY UNKNOWN\r\n".to_vec(),
            b"PROXY UNKNOWN ffff:f...f:ffff 65535\r\n".to_vec(),
            binary(0x20, 0, &[]),
            binary(0x20, 0x11, &[0; 12]),
            // A family that is not known, which a receiver of LOCAL has to ignore.
            binary(0x20, 0xf5, &[1, 2, 3]),
            b"PROXY TCP4 0.0.0.0 198.51.100.7 4711 443\r\n".to_vec(),
            binary(0x21, 0x11, &[0; 12]),
            binary(0x21, 0x21, &[0; 36]),
            binary(0x21, 0, &[1, 2, 3]),
            binary(0x21, 0x31, &unix),
            binary(0x21, 0x12, &[0; 12]),
        ] {
            let (read, rest) = read_pieces(&[&header, b"x"]).await;
            assert_eq!(read.unwrap(), None, "{header:?}");
            assert_eq!(rest, b"x");
        }
    }

    #[tokio::test]
    async fn what_is_not_a_header_is_refused() {
        use ProxyHeaderError as E;
        let long_line = [b"PROXY UNKNOWN ", &[b'x'; MAX_LINE][..]].concat();
        let version_1 = {
            let mut header = ipv4(&[]);
            header[12] = 0x11;
            header
        };
        type Matches = fn(&ProxyHeaderError) -> bool;
        let cases: [(&[u8], Matches); 12] = [
            (b"", |error| matches!(error, E::Closed)),
            (b"PROX", |error| matches!(error, E::Closed)),
            (&ipv4(&[])[..20], |error| matches!(error, E::Closed)),
            (b"GET / HTTP/1.1\r\n\r\n", |error| {
                matches!(error, E::Missing)
            }),
            (b"PROXYTCP4", |error| matches!(error, E::Missing)),
            (b"\x16\x03\x01", |error| matches!(error, E::Missing)),
            (b"PROXY TCP4 192.0.2.1 198.51.100.7 4711\r\n", |error| {
                matches!(error, E::Malformed)
            }),
            (b"PROXY TCP4 192.0.2.1 2001:db8::2 4711 443\r\n", |error| {
                matches!(error, E::Malformed)
            }),
            (b"PROXY UNKNOWN\n", |error| matches!(error, E::Malformed)),
            (&version_1, |error| matches!(error, E::Malformed)),
            (&long_line, |error| matches!(error, E::TooLong)),
            (
                &binary(0x21, 0x11, &[0; MAX_HEADER - FIXED_BYTES + 1]),
                |error| matches!(error, E::TooLong),
            ),
        ];
        for (bytes, expected) in cases {
            let error = read_pieces(&[bytes]).await.0.unwrap_err();
            assert!(expected(&error), "{bytes:?}: {error}");
        }
    }

    #[test]
    fn only_peers_in_the_networks_send_headers_also_over_ipv6_sockets() {
        let protocol = ProxyProtocol::new(vec!["10.0.0.0/8".parse().unwrap()]);
        let trusts = |peer: &str| protocol.trusts(peer.parse().unwrap());
        assert!(trusts("10.1.2.3") && trusts("::ffff:10.1.2.3"));
        assert!(!trusts("11.1.2.3") && !trusts("2001:db8::1"));
        protocol.renew(vec!["11.0.0.0/8".parse().unwrap()]);
        assert!(!trusts("10.1.2.3") && trusts("11.1.2.3"));
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_header_longer_than_its_bound(
            which in 0..3_usize,
            bytes in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let prefix: &[u8] = [&b""[..], b"PROXY ", v2::PROTOCOL_PREFIX][which];
            let bytes = [prefix, &bytes].concat();
            if let Ok(Some(length)) = header_length(&bytes) {
                prop_assert!(length <= MAX_HEADER);
                if let Some(header) = bytes.get(..length) {
                    let _ = source(header);
                }
            }
        }
    }
}
