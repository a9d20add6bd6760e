//! What a connection's bytes go through: a socket, or TLS over one.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{
    cipher_suite::TLS13_AES_128_GCM_SHA256, default_provider, kx_group::X25519,
};
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use rustls::{
    ClientConfig, ClientConnection, HandshakeKind, RootCertStore, StreamOwned, version::TLS13,
};

use crate::options::{Options, Reconnect};

const PATIENCE: Duration = Duration::from_secs(10);
/// What certificates are for.
pub const SERVER_NAME: &str = "localhost";

/// How connections to the proxy are opened.
pub struct Dialler {
    target: SocketAddr,
    /// None without TLS; one for each connection where sessions are resumed, so that all of them
    /// always have a session of their own to resume; otherwise one for all.
    tls: Vec<Arc<ClientConfig>>,
}

pub enum Wire {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Dialler {
    pub fn new(options: &Options) -> Result<Self, String> {
        let mut tls = Vec::new();
        if let Some(certificate) = &options.tls {
            let config = trusting(certificate)?;
            if options.reconnect == Reconnect::Resumed {
                tls.resize_with(options.connections, || Arc::new(resuming(&config)));
            } else {
                tls.push(Arc::new(config));
            }
        }
        Ok(Self {
            target: options.target,
            tls,
        })
    }

    /// Opens the connection of this number, and shakes hands if there is TLS.
    pub fn dial(&self, number: usize) -> io::Result<Wire> {
        let mut wire = self.connect(number)?;
        if let Wire::Tls(tls) = &mut wire {
            while tls.conn.is_handshaking() {
                tls.conn.complete_io(&mut tls.sock)?;
            }
        }
        Ok(wire)
    }

    /// Opens the connection of this number. If there is TLS, reading and writing shake hands.
    pub fn connect(&self, number: usize) -> io::Result<Wire> {
        let stream = TcpStream::connect_timeout(&self.target, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        // Closed with a reset: thousands of connections in TIME_WAIT would use up the ports.
        set_socket_linger(&stream, Some(Duration::ZERO))?;
        if self.tls.is_empty() {
            return Ok(Wire::Plain(stream));
        }
        let config = Arc::clone(&self.tls[number % self.tls.len()]);
        let name = ServerName::try_from(SERVER_NAME).map_err(io::Error::other)?;
        let session = ClientConnection::new(config, name).map_err(io::Error::other)?;
        Ok(Wire::Tls(Box::new(StreamOwned::new(session, stream))))
    }
}

/// Trusts this certificate alone, and offers one version, one cipher, one key exchange and one
/// protocol, so that every proxy does the same work: there is nothing left for it to choose.
pub fn trusting(certificate: &Path) -> Result<ClientConfig, String> {
    let unusable = |error: &dyn std::fmt::Display| format!("{}: {error}", certificate.display());
    let provider = CryptoProvider {
        cipher_suites: vec![TLS13_AES_128_GCM_SHA256],
        kx_groups: vec![X25519],
        ..default_provider()
    };
    let trusted = CertificateDer::from_pem_file(certificate).map_err(|error| unusable(&error))?;
    let mut roots = RootCertStore::empty();
    roots.add(trusted).map_err(|error| unusable(&error))?;
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// The same, with a memory for the sessions of one server.
fn resuming(config: &ClientConfig) -> ClientConfig {
    let mut config = config.clone();
    config.resumption = Resumption::in_memory_sessions(1);
    config
}

impl Wire {
    pub fn set_nonblocking(&self) -> io::Result<()> {
        self.socket().set_nonblocking(true)
    }

    /// Whether bytes that `write` took have not all gone to the socket.
    pub fn is_holding(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(tls) => tls.conn.wants_write(),
        }
    }

    pub fn is_handshaking(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(tls) => tls.conn.is_handshaking(),
        }
    }

    /// Whether the handshake resumed a session.
    pub fn is_resumed(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(tls) => tls.conn.handshake_kind() == Some(HandshakeKind::Resumed),
        }
    }

    fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(tls) => &tls.sock,
        }
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket().as_fd()
    }
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(buffer),
            Self::Tls(tls) => tls.read(buffer),
        }
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(bytes),
            Self::Tls(tls) => tls.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.flush(),
            Self::Tls(tls) => tls.flush(),
        }
    }
}

#[cfg(test)]
pub mod tests;
