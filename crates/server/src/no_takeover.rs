//! [`takeover`](super::takeover) where sockets have no abstract names: there is none.

use std::convert::Infallible;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;

use tokio::sync::mpsc;

use super::listeners::{Inherited, ListeningSocket};

/// A gateway that serves, which is never found.
#[derive(Debug)]
pub struct Predecessor(Infallible);

impl Predecessor {
    /// Finds none.
    ///
    /// # Errors
    /// Always.
    pub fn find(_: SocketAddr, _: &mut Inherited) -> io::Result<Option<Self>> {
        Err(ErrorKind::Unsupported.into())
    }

    /// Never called.
    ///
    /// # Errors
    /// Never.
    pub fn replace(self, _: &[SocketAddr]) -> io::Result<()> {
        match self.0 {}
    }
}

/// A gateway that serves, and has no successor.
#[derive(Debug)]
pub struct Takeover;

/// Hears nothing.
pub type Replaced = mpsc::UnboundedReceiver<Vec<SocketAddr>>;

impl Takeover {
    /// Waits for nothing.
    ///
    /// # Errors
    /// Never.
    pub fn spawn(
        _: SocketAddr,
        _: Vec<ListeningSocket>,
        _: Vec<ListeningSocket>,
    ) -> io::Result<(Self, Replaced)> {
        Ok((Self, mpsc::unbounded_channel().1))
    }

    /// No successor has anything.
    pub fn give_up(&self) -> Vec<SocketAddr> {
        Vec::new()
    }
}
