//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

const USAGE: &str = "usage: weir-load --target 127.0.0.1:PORT [--path /] [--connections 64] \
    [--idle 0] [--tls CERTIFICATE] [--reconnect no|full|resumed] [--http2 STREAMS] \
    [--http3 STREAMS] [--grpc MESSAGE] [--upload BYTES] [--expect 200] [--warm-up SECONDS]";

/// Whether a connection is used again, and how the next one begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reconnect {
    /// A connection carries all the requests of its turn.
    No,
    /// Each request has a new connection, with a full handshake where there is TLS.
    Full,
    /// Each request has a new connection that resumes the TLS session of the one before.
    Resumed,
}

impl FromStr for Reconnect {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "no" => Ok(Self::No),
            "full" => Ok(Self::Full),
            "resumed" => Ok(Self::Resumed),
            _ => Err(()),
        }
    }
}

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
    pub reconnect: Reconnect,
    /// Streams at once on each connection; zero for HTTP/1.1.
    pub streams: usize,
    /// The same over HTTP/3.
    pub http3: usize,
    /// The message of each call of gRPC, written in hexadecimal digits; none for GET.
    pub grpc: Option<Vec<u8>>,
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
            reconnect: Reconnect::No,
            streams: 0,
            http3: 0,
            grpc: None,
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
            "--reconnect" => self.reconnect = number(value)?,
            "--http2" => self.streams = number(value)?,
            "--http3" => self.http3 = number(value)?,
            "--grpc" => self.grpc = Some(bytes(value)?),
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
        if self.streams == 0 && self.grpc.is_some() {
            return Err("--grpc is for HTTP/2".into());
        }
        if self.streams > 0 && self.tls.is_some() {
            return Err("--tls is for HTTP/1.1".into());
        }
        if self.streams > 0 && self.reconnect != Reconnect::No {
            return Err("--reconnect is for HTTP/1.1".into());
        }
        if self.reconnect == Reconnect::Resumed && self.tls.is_none() {
            return Err("--reconnect resumed is for --tls".into());
        }
        let others = self.streams + self.upload + self.idle;
        if self.http3 > 0 && (others > 0 || self.tls.is_none() || self.reconnect != Reconnect::No) {
            return Err("--http3 is for --tls, without idle connections and uploads".into());
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

/// What hexadecimal digits stand for.
fn bytes(digits: &str) -> Result<Vec<u8>, String> {
    let malformed = || format!("not understood: {digits}\n{USAGE}");
    let pairs = digits.as_bytes().chunks(2);
    let byte = |pair: &[u8]| {
        let text = std::str::from_utf8(pair)
            .ok()
            .filter(|pair| pair.len() == 2);
        u8::from_str_radix(text?, 16).ok()
    };
    pairs.map(|pair| byte(pair).ok_or_else(malformed)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> Result<Options, String> {
        Options::parse(words.split_whitespace().map(String::from))
    }

    #[test]
    fn options_have_defaults_and_are_read() {
        let options = parse("--target 127.0.0.1:80").unwrap();
        assert_eq!(
            (options.connections, options.expect, options.idle),
            (64, 200, 0)
        );
        assert_eq!(options.reconnect, Reconnect::No);
        let options =
            parse("--target [::1]:80 --tls a.pem --reconnect resumed --expect 429").unwrap();
        assert_eq!(options.reconnect, Reconnect::Resumed);
        assert_eq!(options.expect, 429);
        let options = parse("--target 127.0.0.1:80 --http2 1 --grpc 0aff").unwrap();
        assert_eq!(options.grpc, Some(vec![0x0a, 0xff]));
    }

    #[test]
    fn no_address_but_a_loopback_one_is_a_target() {
        assert!(parse("").is_err());
        assert!(parse("--target 127.0.0.1:0").is_err());
        assert!(parse("--target 192.0.2.1:80").is_err());
        assert!(parse("--target 10.0.0.1:80").is_err());
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        let target = "--target 127.0.0.1:80";
        for words in [
            "--http2 4 --upload 9",
            "--http2 4 --tls a.pem",
            "--http2 4 --reconnect full",
            "--reconnect resumed",
            "--http3 4",
            "--http3 4 --tls a.pem --http2 4",
            "--http3 4 --tls a.pem --reconnect full",
            "--grpc 0a",
            "--http2 4 --grpc 0",
            "--http2 4 --grpc 0x",
            "--reconnect always",
            "--connections 0",
            "--expect",
            "--unknown 1",
        ] {
            assert!(parse(&format!("{target} {words}")).is_err(), "{words}");
        }
    }
}
