//! One connection to a server, and its way from request to request.

use std::io;
use std::pin::Pin;
use std::sync::Weak;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::time::{Instant, Sleep, sleep_until};

use super::http1::Wire;
use super::peer::Peer;
use super::server::Server;

/// A connection that is open as far as is known. Whoever drops it closes it.
pub(super) struct Connection {
    pub(super) wire: Wire,
    /// Away while the rest of a request is sent that is answered already.
    pub(super) writer: Option<OwnedWriteHalf>,
    home: Weak<Peer>,
    /// When it was last used; `None` before its first request.
    rests_since: Option<Instant>,
    alarm: Option<Pin<Box<Sleep>>>,
}

impl Connection {
    /// Opens a connection that will go to the pool of `home`.
    pub(super) async fn open(server: &Server, home: Weak<Peer>) -> io::Result<Box<Self>> {
        let stream = TcpStream::connect(server.endpoint()).await?;
        stream.set_nodelay(true)?;
        let (wire, writer) = Wire::split(stream);
        Ok(Box::new(Self {
            wire,
            writer: Some(writer),
            home,
            rests_since: None,
            alarm: None,
        }))
    }

    /// Whether a request can be sent now.
    pub(super) fn is_ready(&self) -> bool {
        self.wire.is_quiet()
    }

    /// How long it has been idle.
    pub(super) fn rested(&self, now: Instant) -> Duration {
        self.rests_since
            .map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    /// Makes the connection available to the next request, unless something came after the answer that
    /// would be taken for the next one.
    pub(super) fn go_home(mut self: Box<Self>) {
        if !self.wire.is_used_up() {
            return;
        }
        // The pool is gone when the configuration was reloaded meanwhile.
        if let Some(home) = self.home.upgrade() {
            let now = Instant::now();
            self.rests_since = Some(now);
            self.wire.rest();
            home.keep(self, now);
        }
    }

    /// Ready when `deadline` has passed, which is asked for again and again with later ones.
    ///
    /// The timer stays set from request to request and is only ever put off when it goes off, so that a
    /// deadline that is not reached costs nothing.
    pub(super) fn poll_past(&mut self, deadline: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let alarm = self
            .alarm
            .get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if alarm.deadline() > deadline {
            alarm.as_mut().reset(deadline);
        }
        loop {
            ready!(alarm.as_mut().poll(cx));
            if deadline <= Instant::now() {
                return Poll::Ready(());
            }
            alarm.as_mut().reset(deadline);
        }
    }
}
