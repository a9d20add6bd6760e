//! Clients that speak TLS.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use tokio_rustls::TlsConnector;
pub(crate) use weir_testing::certificates::{Authority, Certificate, trusting, trusting_roots};

use super::{Client, PATIENCE};

/// What a client sends and gets encrypted.
pub(crate) type Secure = StreamOwned<ClientConnection, TcpStream>;

/// Connects by TLS, and shakes hands.
pub(crate) fn connect(
    to: SocketAddr,
    name: &str,
    config: &Arc<ClientConfig>,
) -> std::io::Result<Client<Secure>> {
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let mut session = ClientConnection::new(Arc::clone(config), name).expect("a session");
    let mut stream = TcpStream::connect(to)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    while session.is_handshaking() {
        session.complete_io(&mut stream)?;
    }
    Ok(Client::over(StreamOwned::new(session, stream)))
}

/// The certificate that a client was shown.
pub(crate) fn shown(client: &Client<Secure>) -> CertificateDer<'static> {
    let chain = client.stream().conn.peer_certificates();
    chain.expect("a certificate")[0].clone().into_owned()
}

/// The same for clients that do not block.
pub(crate) async fn connect_async(
    to: SocketAddr,
    name: &str,
    config: &Arc<ClientConfig>,
) -> tokio_rustls::client::TlsStream<tokio::net::TcpStream> {
    let stream = tokio::net::TcpStream::connect(to)
        .await
        .expect("a connection");
    over_async(stream, name, config).await
}

/// Shakes hands over a connection that is there.
pub(crate) async fn over_async(
    stream: tokio::net::TcpStream,
    name: &str,
    config: &Arc<ClientConfig>,
) -> tokio_rustls::client::TlsStream<tokio::net::TcpStream> {
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let connector = TlsConnector::from(Arc::clone(config));
    connector.connect(name, stream).await.expect("a handshake")
}
