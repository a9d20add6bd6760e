//! What QUIC may do on connections of clients.

use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::QuicServerConfig;
use quinn::{IdleTimeout, ServerConfig, TransportConfig, VarInt};
use weir_server::StreamBounds;

use crate::early_data::EarlyData;

/// The protocol that clients agree upon by ALPN (RFC 9114, section 3.1).
const PROTOCOL: &[u8] = b"h3";

/// A client has three streams of its own beside those of requests, and may try unknown ones.
const UNI_STREAMS: u32 = 8;

/// How much of a stream may arrive that is not read yet, and of all streams of a connection.
const RECEIVE_WINDOWS: (u32, u32) = (1 << 20, 2 << 20);

/// How much may be sent on a connection that its client has not acknowledged.
const SEND_WINDOW: u64 = 1 << 20;

/// How often a client is asked for a sign of life, and how long it may give none: as over HTTP/2.
const KEEP_ALIVE: (Duration, u32) = (Duration::from_secs(20), 40_000);

/// How many connections may wait to be accepted, and how many bytes of packets of each and of all.
const INCOMING: (usize, u64, u64) = (1024, 64 * 1024, 4 * 1024 * 1024);

pub(crate) fn transport(bounds: &StreamBounds) -> TransportConfig {
    let mut transport = TransportConfig::default();
    let (interval, timeout) = KEEP_ALIVE;
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(bounds.max_streams))
        .max_concurrent_uni_streams(VarInt::from_u32(UNI_STREAMS))
        .stream_receive_window(VarInt::from_u32(RECEIVE_WINDOWS.0))
        .receive_window(VarInt::from_u32(RECEIVE_WINDOWS.1))
        .send_window(SEND_WINDOW)
        .keep_alive_interval(Some(interval))
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(timeout))))
        // No datagrams.
        .datagram_receive_buffer_size(None);
    transport
}

/// Connections by the TLS that the listener's TCP has, and its certificates. None if it has no
/// cipher of QUIC.
pub(crate) fn server(
    tls: &Arc<rustls::ServerConfig>,
    transport: &Arc<TransportConfig>,
    early_data: Option<&EarlyData>,
) -> Option<ServerConfig> {
    let mut of_quic = of_quic(tls);
    if let Some(early_data) = early_data {
        early_data.allow(&mut of_quic, tls);
    }
    let crypto = Arc::new(QuicServerConfig::try_from(of_quic).ok()?);
    let mut server = match early_data {
        Some(early_data) => early_data.server(crypto),
        None => ServerConfig::with_crypto(crypto),
    };
    let (most, each, all) = INCOMING;
    server
        .transport_config(Arc::clone(transport))
        // Limits go by the address of the handshake, which is the connection's for its life.
        .migration(false)
        .max_incoming(most)
        .incoming_buffer_size(each)
        .incoming_buffer_size_total(all);
    Some(server)
}

/// The TLS of TCP as connections of QUIC have it.
fn of_quic(tls: &rustls::ServerConfig) -> rustls::ServerConfig {
    let mut tls = tls.clone();
    tls.alpn_protocols = vec![PROTOCOL.to_vec()];
    // A request that is sent before the handshake ends may be a replay (RFC 9001, section 9.2).
    tls.max_early_data_size = 0;
    tls
}

#[cfg(test)]
mod tests {
    use rustls::server::ResolvesServerCertUsingSni;

    use super::*;

    #[test]
    fn tickets_allow_no_early_data_even_if_those_of_tcp_did() {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut of_tcp = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(ResolvesServerCertUsingSni::new()));
        of_tcp.max_early_data_size = u32::MAX;
        of_tcp.alpn_protocols = vec![b"h2".to_vec()];
        let of_quic = of_quic(&of_tcp);
        assert_eq!(of_quic.max_early_data_size, 0);
        assert_eq!(of_quic.alpn_protocols, [b"h3"]);
    }
}
