//! In place of `http3.rs` in a build without HTTP/3, which refuses a configuration that wants it.

use std::io;
use std::net::SocketAddr;

use weir_config::Settings;
use weir_server::{BindError, Connection, ConnectionService, Draining, Http, Transport};

use super::Sockets;

#[derive(Clone)]
pub(in crate::app) struct UdpSockets;

impl UdpSockets {
    pub(in crate::app) fn open(
        _: &Settings,
        _: &[SocketAddr],
        _: &Sockets,
        _: bool,
    ) -> Result<Self, BindError> {
        Ok(Self)
    }

    pub(in crate::app) async fn serve<M, S>(
        &self,
        _: &Http,
        _: &[Transport],
        _: &Draining,
        _: impl Fn(usize) -> M,
    ) -> io::Result<usize>
    where
        M: Fn(&Connection) -> S,
        S: ConnectionService,
    {
        Ok(0)
    }
}
