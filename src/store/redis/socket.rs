//! The way to Redis: a socket, TLS on it where the URL says so, and the login.
//!
//! The `redis` crate logs in; what comes after goes past its multiplexer, which takes longer over a
//! request's commands and replies than all the rest of Weir's own work on that request.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ConnectionAddr, ErrorKind, RedisError};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use super::settings::RedisSettings;

/// What bytes are read from and written to.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> Stream for S {}

pub(super) type Socket = Box<dyn Stream>;

/// Connects and logs in.
pub(super) async fn open(settings: &RedisSettings) -> Result<Socket, RedisError> {
    let socket = dial(settings).await?;
    let loan = Arc::new(Mutex::new(Some(socket)));
    let login = settings.endpoint.redis_settings();
    let config = AsyncConnectionConfig::new();
    let lent = Loan(Arc::clone(&loan));
    // The crate's connection is dropped, with no reply under way, as soon as it is logged in.
    drop(MultiplexedConnection::new_with_config(login, lent, config).await?);
    let socket = loan.lock().take();
    socket.ok_or_else(|| not_connected().into())
}

async fn dial(settings: &RedisSettings) -> Result<Socket, RedisError> {
    match settings.endpoint.addr() {
        ConnectionAddr::Tcp(host, port) => Ok(Box::new(connect(host, *port).await?)),
        ConnectionAddr::TcpTls { host, port, .. } => {
            let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
            let connector = TlsConnector::from(trusting(settings.ca.clone()));
            let tcp = connect(host, *port).await?;
            Ok(Box::new(connector.connect(name, tcp).await?))
        }
        ConnectionAddr::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
        _ => {
            let why = "an address of a kind that is not known";
            Err((ErrorKind::InvalidClientConfig, why).into())
        }
    }
}

/// A command must not wait until the reply to an earlier one has acknowledged it.
async fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn trusting(ca: Option<Arc<RootCertStore>>) -> Arc<ClientConfig> {
    let public = || Arc::new(webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect());
    let roots = ca.unwrap_or_else(public);
    let config = ClientConfig::builder().with_root_certificates(roots);
    Arc::new(config.with_no_client_auth())
}

fn not_connected() -> io::Error {
    io::ErrorKind::NotConnected.into()
}

/// A socket that is lent to the crate's connection, and taken back from it.
struct Loan(Arc<Mutex<Option<Socket>>>);

impl Loan {
    fn poll<T>(
        &self,
        act: impl FnOnce(Pin<&mut Socket>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match self.0.lock().as_mut() {
            Some(socket) => act(Pin::new(socket)),
            None => Poll::Ready(Err(not_connected())),
        }
    }
}

impl AsyncRead for Loan {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll(|socket| socket.poll_read(cx, buffer))
    }
}

impl AsyncWrite for Loan {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll(|socket| socket.poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll(|socket| socket.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll(|socket| socket.poll_shutdown(cx))
    }
}
