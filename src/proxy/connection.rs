//! One connection to a server, and its way from request to request.

use std::error::Error as StdError;
use std::io;
use std::sync::Weak;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::peer::Peer;
use super::server::Server;
use super::upload::Upload;

/// A connection that is open as far as is known.
pub(super) struct Connection<B> {
    sender: http1::SendRequest<Upload<B>>,
    home: Weak<Peer<B>>,
    /// When it was last used; `None` before its first request.
    rests_since: Option<Instant>,
}

/// The way back to the pool, for a holder who does not care what bodies the connection carries.
pub(super) trait Release: Send {
    /// Makes the connection available to the next request. Whoever drops it instead closes it.
    fn release(self: Box<Self>);
}

impl<B> Connection<B>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    /// Opens a connection that will go to the pool of `home`.
    ///
    /// It is driven by a task of its own, which ends with the connection.
    pub(super) async fn open(server: &Server, home: Weak<Peer<B>>) -> io::Result<Box<Self>> {
        let stream = TcpStream::connect(server.endpoint()).await?;
        stream.set_nodelay(true)?;
        let (sender, driver) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        // What goes wrong with a request is told to its sender, and an idle connection may end.
        tokio::spawn(driver.with_upgrades());
        Ok(Box::new(Self {
            sender,
            home,
            rests_since: None,
        }))
    }

    /// Sends a request and awaits the head of the response. The error gives the request back if
    /// nothing of it was sent. Dropping the future closes the connection.
    pub(super) fn send(
        &mut self,
        request: Request<Upload<B>>,
    ) -> impl Future<Output = Result<Response<Incoming>, TrySendError<Request<Upload<B>>>>> + use<B>
    {
        self.sender.try_send_request(request)
    }
}

impl<B> Connection<B> {
    /// Whether a request can be sent now.
    pub(super) fn is_ready(&self) -> bool {
        self.sender.is_ready()
    }
}

impl<B: Send + 'static> Connection<B> {
    /// How long it has been idle.
    pub(super) fn rested(&self, now: Instant) -> Duration {
        self.rests_since
            .map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    fn go_home(mut self: Box<Self>) {
        // The pool is gone when the configuration was reloaded meanwhile.
        if let Some(home) = self.home.upgrade() {
            let now = Instant::now();
            self.rests_since = Some(now);
            home.keep(self, now);
        }
    }
}

impl<B: Send + 'static> Release for Connection<B> {
    /// On a worker's own thread the connection is ready by the time its response was read to the
    /// end, unless it is closing, or the request's body is still on its way.
    fn release(mut self: Box<Self>) {
        if self.is_ready() {
            self.go_home();
        } else if !self.sender.is_closed() {
            tokio::spawn(async move {
                if self.sender.ready().await.is_ok() {
                    self.go_home();
                }
            });
        }
    }
}
