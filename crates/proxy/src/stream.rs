//! The transport of a connection to a server: TCP, TLS over it, or a Unix socket.
//!
//! The two directions are apart, as a request may still be on its way when its response is read.
//! They are enums, as a box for what most connections do not need would cost each of them a call
//! through a pointer per read and write.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::io::{self as tokio_io, AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpStream, UnixStream, tcp, unix};
use tokio::time::Instant;
use tokio_rustls::client::TlsStream;
use weir_runtime::keepalive;

use super::addresses::CachedAddresses;
use super::proxy_header::ConnectionAddrs;
use super::settings::{Address, Server};
use super::tls::HTTP2;

/// An open connection to a server.
pub(super) enum Stream {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
}

impl Stream {
    /// Connects to a server, sends a PROXY header and shakes hands for TLS, where these are
    /// configured. With TLS that may lead to HTTP/2 unless it is `http1_only`.
    /// The caller gives up at `deadline`.
    pub(super) async fn connect(
        server: &Server,
        addresses: &CachedAddresses,
        http1_only: bool,
        client: Option<&ConnectionAddrs>,
        deadline: Instant,
    ) -> io::Result<Self> {
        let header = server.proxy_protocol();
        let header = header.map(|protocol| protocol.header(client)).transpose()?;
        let (host, port) = match server.address() {
            Address::Tcp { host, port } => (&**host, *port),
            Address::Srv(_) => {
                let error = "SRV records say where the servers are";
                return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, error));
            }
            Address::Unix(path) => {
                let mut stream = UnixStream::connect(path).await?;
                if let Some(header) = header {
                    stream.write_all(&header).await?;
                }
                return Ok(Self::Unix(stream));
            }
        };
        let mut stream = addresses.connect(host, port, deadline).await?;
        stream.set_nodelay(true)?;
        keepalive::enable((&stream).into())?;
        if let Some(header) = header {
            stream.write_all(&header).await?;
        }
        match server.tls() {
            None => Ok(Self::Tcp(stream)),
            Some(tls) => {
                let stream = Box::pin(tls.handshake(host, stream, http1_only)).await?;
                Ok(Self::Tls(Box::new(stream)))
            }
        }
    }

    /// Whether HTTP/2 was agreed upon; none without TLS, which agrees on nothing.
    pub(super) fn agreed_on_http2(&self) -> Option<bool> {
        match self {
            Self::Tls(stream) => Some(stream.get_ref().1.alpn_protocol() == Some(HTTP2)),
            Self::Tcp(_) | Self::Unix(_) => None,
        }
    }

    pub(super) fn split(self) -> (ReadHalf, WriteHalf) {
        match self {
            Self::Tcp(stream) => {
                let (reader, writer) = stream.into_split();
                (ReadHalf::Tcp(reader), WriteHalf::Tcp(writer))
            }
            Self::Tls(stream) => {
                let (reader, writer) = tokio_io::split(*stream);
                (ReadHalf::Tls(reader), WriteHalf::Tls(writer))
            }
            Self::Unix(stream) => {
                let (reader, writer) = stream.into_split();
                (ReadHalf::Unix(reader), WriteHalf::Unix(writer))
            }
        }
    }
}

/// The direction from the server.
pub(super) enum ReadHalf {
    Tcp(tcp::OwnedReadHalf),
    Tls(tokio_io::ReadHalf<TlsStream<TcpStream>>),
    Unix(unix::OwnedReadHalf),
}

impl ReadHalf {
    /// Whether nothing has arrived, and the server has not closed its direction, as far as is
    /// known. That costs a system call only if something did happen.
    pub(super) fn is_quiet(&mut self) -> bool {
        let arrived = match self {
            Self::Tcp(reader) => reader.try_read(&mut [0]),
            Self::Unix(reader) => reader.try_read(&mut [0]),
            // The bytes may be no more than a ticket for the next handshake, so the session has to
            // see them.
            Self::Tls(reader) => {
                let mut byte = [0];
                let mut buffer = ReadBuf::new(&mut byte);
                let mut cx = Context::from_waker(Waker::noop());
                return Pin::new(reader)
                    .poll_read(&mut cx, &mut buffer)
                    .is_pending();
            }
        };
        arrived.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }
}

impl AsyncRead for ReadHalf {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(reader) => Pin::new(reader).poll_read(cx, buffer),
            Self::Tls(reader) => Pin::new(reader).poll_read(cx, buffer),
            Self::Unix(reader) => Pin::new(reader).poll_read(cx, buffer),
        }
    }
}

/// The direction to the server.
pub(super) enum WriteHalf {
    Tcp(tcp::OwnedWriteHalf),
    Tls(tokio_io::WriteHalf<TlsStream<TcpStream>>),
    Unix(unix::OwnedWriteHalf),
}

impl AsyncWrite for WriteHalf {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(writer) => Pin::new(writer).poll_write(cx, bytes),
            Self::Tls(writer) => Pin::new(writer).poll_write(cx, bytes),
            Self::Unix(writer) => Pin::new(writer).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(writer) => Pin::new(writer).poll_write_vectored(cx, slices),
            Self::Tls(writer) => Pin::new(writer).poll_write_vectored(cx, slices),
            Self::Unix(writer) => Pin::new(writer).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Only TLS holds back bytes that were written.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(_) | Self::Unix(_) => Poll::Ready(Ok(())),
            Self::Tls(writer) => Pin::new(writer).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(writer) => Pin::new(writer).poll_shutdown(cx),
            Self::Tls(writer) => Pin::new(writer).poll_shutdown(cx),
            Self::Unix(writer) => Pin::new(writer).poll_shutdown(cx),
        }
    }
}
