//! How an upstream is reached and what it is sent: what the configuration decides.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::uri::{Authority, Scheme};
use http::{HeaderValue, Uri};
use thiserror::Error;

/// An upstream's servers, and the times and bounds that hold for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamSettings {
    /// The upstream's name, as logs show it.
    pub name: String,
    /// The servers that take turns.
    pub servers: Vec<Server>,
    /// How long a request may take to get a new connection, to any of the servers.
    pub connect_timeout: Duration,
    /// How long the upstream may keep a request waiting for the head of the response, or an
    /// unfinished request body waiting to be taken further. Waiting for the client does not count.
    pub response_timeout: Duration,
    /// How long an unused connection is kept.
    pub idle_timeout: Duration,
    /// How many unused connections are kept, per server and worker.
    pub max_idle: usize,
    /// What the upstream sees as the request's host.
    pub host: HostHeader,
}

impl UpstreamSettings {
    /// Unless configured otherwise, 5 s to connect.
    pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
    /// Unless configured otherwise, 60 s until the response's head.
    pub const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
    /// Unless configured otherwise, 60 s without use.
    pub const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
    /// Unless configured otherwise, 128 unused connections.
    pub const MAX_IDLE: usize = 128;

    /// An upstream of these servers with the times and bounds that hold unless configured
    /// otherwise.
    pub fn new(name: impl Into<String>, servers: Vec<Server>) -> Self {
        Self {
            name: name.into(),
            servers,
            connect_timeout: Self::CONNECT_TIMEOUT,
            response_timeout: Self::RESPONSE_TIMEOUT,
            idle_timeout: Self::IDLE_TIMEOUT,
            max_idle: Self::MAX_IDLE,
            host: HostHeader::default(),
        }
    }
}

/// The `Host` that the upstream gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HostHeader {
    /// The one that the client sent.
    #[default]
    Preserve,
    /// The server's own `host:port`.
    Upstream,
    /// Always this one.
    Fixed(HeaderValue),
}

const HTTP_PORT: u16 = 80;

/// Where a server of an upstream is reached, taken from a URI of the form `http://host:port`; port
/// 80 if none is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    host: Box<str>,
    port: u16,
    name: Arc<str>,
    host_header: HeaderValue,
}

/// Why a URI does not name a server.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ServerError {
    /// The scheme is missing, or another one than `http`.
    #[error("a server's URI begins with http://, as TLS to upstreams is not supported")]
    Scheme,
    /// There is no host.
    #[error("a server's URI needs a host")]
    Host,
    /// What follows the host is not a port, or one that nothing can listen on.
    #[error("a server's port is a number from 1 to 65535")]
    Port,
    /// There are a user name and a password, which HTTP does not send in this way.
    #[error("a server's URI has no user name or password")]
    UserInfo,
    /// There is a path or a query: requests go to the path that the client asked for.
    #[error("a server's URI ends after host and port, without a path or query")]
    Path,
}

impl Server {
    /// The server, as `host:port`.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The host and port to connect to; an IPv6 address without its brackets.
    pub fn endpoint(&self) -> (&str, u16) {
        (&self.host, self.port)
    }

    /// What the server itself would call its host.
    pub(super) fn host_header(&self) -> &HeaderValue {
        &self.host_header
    }
}

impl From<SocketAddr> for Server {
    fn from(address: SocketAddr) -> Self {
        let name = address.to_string();
        Self {
            host: address.ip().to_string().into(),
            port: address.port(),
            host_header: HeaderValue::try_from(&name)
                .unwrap_or_else(|_| HeaderValue::from_static("")),
            name: name.into(),
        }
    }
}

impl TryFrom<&Uri> for Server {
    type Error = ServerError;

    fn try_from(uri: &Uri) -> Result<Self, ServerError> {
        if uri.scheme() != Some(&Scheme::HTTP) {
            return Err(ServerError::Scheme);
        }
        let authority = uri.authority().ok_or(ServerError::Host)?;
        if authority.as_str().contains('@') {
            return Err(ServerError::UserInfo);
        }
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(ServerError::Path);
        }
        let host = authority.host();
        if host.is_empty() {
            return Err(ServerError::Host);
        }
        let port = port(authority, host)?;
        Ok(Self {
            host: host.trim_matches(['[', ']']).into(),
            port,
            name: format!("{host}:{port}").into(),
            host_header: HeaderValue::from_str(authority.as_str())
                .map_err(|_| ServerError::Host)?,
        })
    }
}

/// The port of a server. `http::uri` lets anything stand in its place.
fn port(authority: &Authority, host: &str) -> Result<u16, ServerError> {
    let rest = authority.as_str().strip_prefix(host).unwrap_or_default();
    if rest.is_empty() {
        return Ok(HTTP_PORT);
    }
    let digits = rest.strip_prefix(':').ok_or(ServerError::Port)?;
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(ServerError::Port);
    }
    let port = digits.parse().ok().filter(|port| *port != 0);
    port.ok_or(ServerError::Port)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(uri: &str) -> Result<Server, ServerError> {
        Server::try_from(&uri.parse::<Uri>().unwrap())
    }

    #[test]
    fn a_server_is_its_host_and_port() {
        let server = server("http://app.internal:3000").unwrap();
        assert_eq!(server.endpoint(), ("app.internal", 3000));
        assert_eq!(&**server.name(), "app.internal:3000");
        assert_eq!(server.host_header(), "app.internal:3000");
    }

    #[test]
    fn the_port_is_80_if_none_is_given() {
        let server = server("http://app.internal/").unwrap();
        assert_eq!(server.endpoint(), ("app.internal", 80));
        assert_eq!(server.host_header(), "app.internal");
    }

    #[test]
    fn an_ipv6_address_is_connected_to_without_its_brackets() {
        let server = server("http://[::1]:3000").unwrap();
        assert_eq!(server.endpoint(), ("::1", 3000));
        assert_eq!(&**server.name(), "[::1]:3000");
    }

    /// It went to port 80, whatever was meant.
    #[test]
    fn what_is_not_a_port_is_refused() {
        for port in ["8o80", "70000", "-1", "0", "12ab", "", "+80", "80 "] {
            for host in ["127.0.0.1", "h", "[::1]"] {
                let Ok(uri) = format!("http://{host}:{port}").parse::<Uri>() else {
                    continue;
                };
                let server = Server::try_from(&uri);
                assert_eq!(server, Err(ServerError::Port), "{uri}");
            }
        }
        assert!(server("http://h:065535").is_ok());
    }

    #[test]
    fn what_would_be_ignored_is_refused() {
        assert_eq!(server("https://app:1"), Err(ServerError::Scheme));
        assert_eq!(server("/app"), Err(ServerError::Scheme));
        assert_eq!(server("http://u:p@app:1"), Err(ServerError::UserInfo));
        assert_eq!(server("http://app:1/base"), Err(ServerError::Path));
        assert_eq!(server("http://app:1/?q"), Err(ServerError::Path));
    }
}
