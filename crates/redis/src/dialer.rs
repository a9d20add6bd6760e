//! The way to Redis: a socket, TLS on it where the URL says so, and the login.
//!
//! A name is resolved for each connection, and all of its addresses are tried: each gets a short
//! head start before the next, so one that swallows what is sent to it does not use up the time-out
//! of all.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use redis::RedisError;
use rustls::crypto::CryptoProvider;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time;
use tokio_rustls::TlsConnector;
use weir_runtime::{blocking, keepalive};

use super::access::Access;
use super::endpoint::{Address, HostPort};
use super::login::log_in;

/// A connection that bytes are read from and written to.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> Stream for S {}

/// A connection to a server.
pub type Socket = Box<dyn Stream>;

/// The time for which one address is tried alone (RFC 8305, section 5).
const HEAD_START: Duration = Duration::from_millis(250);

/// How long a TLS handshake may take: a server that does not speak TLS may wait for the rest of
/// what it takes for a command. It is shorter than the time for the whole attempt, so that it is
/// named.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_millis(900);

/// Finds the addresses of a host; a test says what they are.
pub(super) type Resolve =
    Arc<dyn Fn(String, u16) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> + Send + Sync>;

/// Connects to an address.
pub type Connect = Arc<dyn Fn(SocketAddr) -> BoxFuture<'static, io::Result<Socket>> + Send + Sync>;

/// How servers are found and connected to.
#[derive(Clone)]
pub(super) struct Network {
    pub(super) resolve: Resolve,
    pub(super) connect: Connect,
}

/// The operating system's, as everything else on the machine uses it.
impl Default for Network {
    fn default() -> Self {
        Self {
            resolve: Arc::new(|host, port| {
                Box::pin(async move { Ok(lookup_host((host, port)).await?.collect::<Vec<_>>()) })
            }),
            connect: Arc::new(|address| Box::pin(connect(address))),
        }
    }
}

/// Reads files of the settings on a thread of its own.
async fn read<T: Send + 'static>(
    access: &Access,
    what: fn(&Access) -> io::Result<T>,
) -> io::Result<T> {
    let access = access.clone();
    blocking::run(move || what(&access)).await
}

/// Connects again and again, and remembers which address was tried last.
pub(super) struct Dialer {
    access: Access,
    network: Network,
    tried: Option<SocketAddr>,
}

impl Dialer {
    pub(super) fn new(access: Access, network: Network) -> Self {
        Self {
            access,
            network,
            tried: None,
        }
    }

    /// Connects and logs in, by what the files of the settings hold now.
    pub(super) async fn open(&mut self, address: &Address) -> Result<Socket, RedisError> {
        let mut socket = self.dial(address).await?;
        let login = read(&self.access, Access::read_login).await?;
        let logged_in = log_in(&mut socket, &login).await;
        logged_in.map_err(Arc::unwrap_or_clone)?;
        Ok(socket)
    }

    /// Connects, with TLS if there is any.
    async fn dial(&mut self, address: &Address) -> Result<Socket, RedisError> {
        match address {
            Address::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
            Address::Tcp(there) if self.access.tls.is_none() => Ok(self.connect(there).await?),
            Address::Tcp(there) => {
                let name = self.access.server_name(&there.host)?;
                let authorities = read(&self.access, Access::read_authorities).await?;
                let connector = TlsConnector::from(trusting(authorities));
                let tcp = self.connect(there).await?;
                let secured = time::timeout(HANDSHAKE_TIMEOUT, connector.connect(name, tcp)).await;
                match secured {
                    Ok(Ok(stream)) => Ok(Box::new(stream)),
                    Ok(Err(error)) if !is_no_tls(&error) => Err(error.into()),
                    _ => Err(no_tls().into()),
                }
            }
        }
    }

    /// Connects to the first address that accepts, beginning after the one that was tried last: it
    /// failed, or led to a server that is of no use.
    async fn connect(&mut self, there: &HostPort) -> io::Result<Socket> {
        let mut addresses = (self.network.resolve)(there.host.clone(), there.port).await?;
        let tried = addresses
            .iter()
            .position(|address| Some(*address) == self.tried);
        addresses.rotate_left(tried.map_or(0, |at| at + 1));
        let mut addresses = addresses.into_iter();
        let mut attempts = FuturesUnordered::new();
        let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        loop {
            if let Some(next) = addresses.next() {
                self.tried = Some(next);
                let connected = (self.network.connect)(next);
                attempts.push(async move { Ok((next, connected.await?)) });
            }
            tokio::select! {
                ended = attempts.next() => match ended {
                    Some(Ok((address, stream))) => {
                        self.tried = Some(address);
                        return Ok(stream);
                    }
                    Some(Err(error)) => failure = error,
                    None => return Err(failure),
                },
                () = time::sleep(HEAD_START), if addresses.len() > 0 => {}
            }
        }
    }

    /// The connection that was made can be used: the next one begins with the first address again.
    /// Tells which address it leads to.
    pub(super) fn succeeded(&mut self) -> Option<SocketAddr> {
        self.tried.take()
    }

    /// Whether a name that led to `peer` leads elsewhere by now. One that cannot be resolved says
    /// nothing.
    pub(super) async fn has_moved(&self, address: &Address, peer: Option<SocketAddr>) -> bool {
        let (Some(peer), Some(there)) = (peer, name(address)) else {
            return false;
        };
        let addresses = (self.network.resolve)(there.host.clone(), there.port).await;
        addresses.is_ok_and(|all| !all.is_empty() && !all.contains(&peer))
    }
}

/// The host, when it is a name, and its port.
fn name(address: &Address) -> Option<&HostPort> {
    match address {
        Address::Tcp(there) if there.host.parse::<IpAddr>().is_err() => Some(there),
        Address::Tcp(_) | Address::Unix(_) => None,
    }
}

async fn connect(address: SocketAddr) -> io::Result<Socket> {
    Ok(Box::new(connect_tcp(address).await?))
}

/// A command must not wait until the reply to an earlier one has acknowledged it. A server that has
/// vanished answers nothing for which a connection waits that was given up.
async fn connect_tcp(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    keepalive::enable((&stream).into())?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    keepalive::bound_retransmission((&stream).into(), Duration::ZERO)?;
    Ok(stream)
}

fn trusting(authorities: Arc<RootCertStore>) -> Arc<ClientConfig> {
    choose_crypto();
    let config = ClientConfig::builder().with_root_certificates(authorities);
    Arc::new(config.with_no_client_auth())
}

/// The TLS library panics when no cryptographic back end is chosen and its features leave it none
/// or several, which other packages of a program have a say in. A choice already made stays.
fn choose_crypto() {
    if CryptoProvider::get_default().is_none() {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    }
}

/// Whether a handshake failed because what came is not TLS.
fn is_no_tls(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|error| error.downcast_ref());
    matches!(cause, Some(rustls::Error::InvalidMessage(_)))
}

fn no_tls() -> io::Error {
    let why = "the server does not answer in TLS: give the port on which it does, or a URL without TLS \
               (`redis://`)";
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Servers that vanished without a packet held the connections that waited for them for ever.
    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn the_kernel_notices_servers_that_vanished() {
        let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = connect_tcp(server.local_addr().unwrap()).await.unwrap();
        let socket = socket2::SockRef::from(&stream);
        assert!(socket.keepalive().unwrap());
        let bound = socket.tcp_user_timeout().unwrap();
        assert_eq!(bound, Some(Duration::from_secs(90)));
    }
}
