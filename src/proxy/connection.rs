//! One connection to a server, and its way from request to request.

use std::io;
use std::sync::Weak;

use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::alarm::Alarm;
use super::http1::ReadBuffer;
use super::peer::Endpoint;
use super::server::Server;

/// A connection that is open as far as is known. Whoever drops it closes it.
pub(super) struct Connection {
    pub(super) wire: ReadBuffer,
    /// Away while the rest of a request is sent that is answered already.
    pub(super) writer: Option<OwnedWriteHalf>,
    /// Goes off when the server takes too long.
    pub(super) alarm: Alarm,
    home: Weak<Endpoint>,
    /// What allows it to be open.
    pub(super) permit: Option<OwnedSemaphorePermit>,
}

impl Connection {
    /// Opens a connection that will go to the pool of `home`.
    pub(super) async fn open(server: &Server, home: Weak<Endpoint>) -> io::Result<Box<Self>> {
        let stream = TcpStream::connect(server.endpoint()).await?;
        stream.set_nodelay(true)?;
        let (wire, writer) = ReadBuffer::split(stream);
        Ok(Box::new(Self {
            wire,
            writer: Some(writer),
            alarm: Alarm::default(),
            home,
            permit: None,
        }))
    }

    /// Whether a request can be sent now.
    pub(super) fn is_ready(&self) -> bool {
        self.wire.is_quiet()
    }

    /// Whether no other connection may be opened as long as this one is there.
    fn is_wanted_elsewhere(&self) -> bool {
        let permit = self.permit.as_ref();
        permit.is_some_and(|permit| permit.semaphore().available_permits() == 0)
    }

    /// Makes the connection available to the next request, unless something came after the answer that
    /// would be taken for the next one.
    pub(super) fn go_home(mut self: Box<Self>) {
        if !self.wire.is_used_up() || self.is_wanted_elsewhere() {
            return;
        }
        // The pool is gone when the configuration was reloaded meanwhile.
        if let Some(home) = self.home.upgrade() {
            let now = Instant::now();
            self.wire.rest();
            home.keep(self, now);
        }
    }
}
