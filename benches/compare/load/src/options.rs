//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

const USAGE: &str = "usage: weir-load --target 127.0.0.1:PORT [--path /] [--connections 64] \
    [--idle 0] [--tls CERTIFICATE] [--http2 STREAMS] [--upload BYTES] [--expect 200] [--warm-up SECONDS]";

/// What to send, whither, and how much of it at once.
pub struct Options {
    pub target: SocketAddr,
    pub path: String,
    /// Connections that send requests.
    pub connections: usize,
    /// Connections that send one request and then stay open.
    pub idle: usize,
    /// The certificate that the proxy has to show, as PEM; none for connections without TLS.
    pub tls: Option<PathBuf>,
    /// Streams at once on each connection; zero for HTTP/1.1.
    pub streams: usize,
    /// Bytes of each request's body; zero for GET.
    pub upload: usize,
    /// The status that answers must have.
    pub expect: u16,
    pub warm_up: Duration,
}

impl Options {
    pub fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            target: SocketAddr::from(([127, 0, 0, 1], 0)),
            path: "/".into(),
            connections: 64,
            idle: 0,
            tls: None,
            streams: 0,
            upload: 0,
            expect: 200,
            warm_up: Duration::from_millis(300),
        };
        while let Some(name) = words.next() {
            let value = words.next().ok_or(USAGE)?;
            options.set(&name, &value)?;
        }
        options.checked()
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "--target" => self.target = number(value)?,
            "--path" => self.path = value.into(),
            "--connections" => self.connections = number(value)?,
            "--idle" => self.idle = number(value)?,
            "--tls" => self.tls = Some(value.into()),
            "--http2" => self.streams = number(value)?,
            "--upload" => self.upload = number(value)?,
            "--expect" => self.expect = number(value)?,
            "--warm-up" => self.warm_up = Duration::from_secs_f64(number(value)?),
            _ => return Err(USAGE.into()),
        }
        Ok(())
    }

    fn checked(self) -> Result<Self, String> {
        if !self.target.ip().is_loopback() || self.target.port() == 0 {
            return Err(format!("the target must be a loopback address\n{USAGE}"));
        }
        if self.streams > 0 && self.upload > 0 {
            return Err("--upload is for HTTP/1.1".into());
        }
        if self.streams > 0 && self.tls.is_some() {
            return Err("--tls is for HTTP/1.1".into());
        }
        if self.connections == 0 {
            return Err("--connections must not be 0".into());
        }
        Ok(self)
    }
}

pub fn number<N: FromStr>(text: &str) -> Result<N, String> {
    text.parse()
        .map_err(|_| format!("not understood: {text}\n{USAGE}"))
}
