//! How an upstream is reached and what it is sent: what the configuration decides.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use domain::base::Name;
use http::uri::{Authority, Scheme};
use http::{HeaderValue, Uri};
use thiserror::Error;

use super::balance::{Balance, Ejection, HealthCheck, Retries, Sticky};
use super::proxy_header::ProxyProtocol;
use super::tls::{Protocol, UpstreamTls};

/// An upstream's servers, and the times and bounds that hold for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamSettings {
    /// The upstream's name, as logs show it.
    pub name: String,
    /// The servers that share the requests.
    pub servers: Vec<Server>,
    /// How one of them is chosen.
    pub balance: Balance,
    /// The cookie that leads clients back to their server, if there is one.
    pub sticky: Option<Sticky>,
    /// When one that fails gets no requests for a while, if ever.
    pub ejection: Option<Ejection>,
    /// How the process asks them whether they are healthy, if it does.
    pub health_check: Option<HealthCheck>,
    /// For how long one that is back gets less than its share.
    pub slow_start: Duration,
    /// When a request is sent again, if ever.
    pub retries: Option<Retries>,
    /// How long the parts of an exchange may take, unless a route says otherwise.
    pub timeouts: Timeouts,
    /// How many connections each server may have, over all workers.
    pub max_connections: Option<usize>,
    /// How long a connection to a server with a name is used, before the name is resolved again for
    /// another one.
    pub resolve_interval: Duration,
    /// The DNS servers that know the names and SRV records; the system's by default.
    pub resolvers: Vec<SocketAddr>,
    /// How long an unused connection is kept.
    pub idle_timeout: Duration,
    /// How many unused connections are kept, per server and worker.
    pub max_idle: usize,
    /// The `Host` that the upstream gets.
    pub host: HostHeader,
}

impl UpstreamSettings {
    /// Unless configured otherwise, names are resolved again after 30 s.
    pub const RESOLVE_INTERVAL: Duration = Duration::from_secs(30);
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
            balance: Balance::default(),
            sticky: None,
            ejection: Some(Ejection::default()),
            health_check: None,
            slow_start: Duration::ZERO,
            retries: Some(Retries::default()),
            timeouts: Timeouts::default(),
            max_connections: None,
            resolve_interval: Self::RESOLVE_INTERVAL,
            resolvers: Vec::new(),
            idle_timeout: Self::IDLE_TIMEOUT,
            max_idle: Self::MAX_IDLE,
            host: HostHeader::default(),
        }
    }

    /// Whether nothing differs that servers which stay depend on: all but their list and the
    /// cookie.
    pub(super) fn differs_by_servers(&self, other: &Self) -> bool {
        let without_servers = |settings: &Self| Self {
            servers: Vec::new(),
            sticky: None,
            ..settings.clone()
        };
        without_servers(self) == without_servers(other)
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
const HTTPS_PORT: u16 = 443;

/// A server of an upstream, taken from a URI of the form `http://host:port` or `https://host:port`,
/// by default at port 80 or 443, or `unix:///path`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    address: Address,
    is_secure: bool,
    tls: Option<UpstreamTls>,
    protocol: Protocol,
    proxy_protocol: Option<ProxyProtocol>,
    name: Arc<str>,
    host_header: HeaderValue,
    weight: u32,
    priority: u16,
}

/// Where a server is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A host, an IPv6 address without its brackets, and a port.
    Tcp {
        /// A name or an IP address.
        host: Box<str>,
        /// Never 0.
        port: u16,
    },
    Unix(Box<Path>),
    /// Nowhere itself: SRV records of this name say where.
    Srv(Box<str>),
}

/// A server that an SRV record names (RFC 2782).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SrvRecord {
    /// The server's name.
    pub target: String,
    /// Never 0.
    pub port: u16,
    /// Servers with a greater number are for when no other is available.
    pub priority: u16,
    /// Its share of the requests, beside those of the same priority.
    pub weight: u16,
}

/// Why a URI does not name a server.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ServerError {
    /// The text is not a URI.
    #[error("this is not a URI")]
    Syntax,
    /// The scheme is missing or unknown.
    #[error("a server's URI begins with http://, https://, unix://, http+srv:// or https+srv://")]
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
    /// An SRV name has a port, or is an address.
    #[error("SRV records are named by a name alone, as their ports count")]
    Srv,
    /// The path of a socket is missing or not absolute.
    #[error("a socket is named by its absolute path, after unix://")]
    Socket,
}

impl Server {
    /// The server, as `host:port` or `unix:/path`.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Where to connect to.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The host and port to connect to, unless it is a socket.
    pub fn endpoint(&self) -> Option<(&str, u16)> {
        match &self.address {
            Address::Tcp { host, port } => Some((host, *port)),
            Address::Unix(_) | Address::Srv(_) => None,
        }
    }

    /// The name whose SRV records say where the servers are, if it is one.
    pub fn srv_name(&self) -> Option<&str> {
        match &self.address {
            Address::Srv(name) => Some(name),
            Address::Tcp { .. } | Address::Unix(_) => None,
        }
    }

    /// The servers that these records name, to be reached as this one says.
    pub fn at(&self, records: &[SrvRecord]) -> Vec<Self> {
        let of_priority =
            |priority: u16| records.iter().filter(move |one| one.priority == priority);
        let scheme = if self.is_secure { "https" } else { "http" };
        let server = |record: &SrvRecord| {
            let url = format!("{scheme}://{}:{}", record.target, record.port);
            // A weight of 0 beside others is for "a very small chance" (RFC 2782).
            let mut weights = of_priority(record.priority).map(|one| u32::from(one.weight));
            let unit = match weights.clone().any(|weight| weight == 0) {
                true if weights.any(|weight| weight != 0) => 100,
                _ => 1,
            };
            let server: Self = url.parse().ok()?;
            Some(Self {
                tls: self.tls.clone(),
                protocol: self.protocol,
                proxy_protocol: self.proxy_protocol,
                weight: (u32::from(record.weight) * unit).max(1),
                priority: record.priority,
                ..server
            })
        };
        records.iter().filter_map(server).collect()
    }

    /// Whether it is reached by a name, which may come to mean another address.
    pub(super) fn is_named(&self) -> bool {
        match &self.address {
            Address::Tcp { host, .. } => host.parse::<IpAddr>().is_err(),
            Address::Unix(_) | Address::Srv(_) => false,
        }
    }

    /// Whether its URI asks for TLS.
    pub fn is_secure(&self) -> bool {
        self.is_secure
    }

    /// Sets TLS, if the server's URI asks for it.
    #[must_use]
    pub fn with_tls(self, tls: &UpstreamTls) -> Self {
        Self {
            tls: self.is_secure.then(|| tls.clone()),
            ..self
        }
    }

    /// Sets the protocol; HTTP/1.1 by default.
    #[must_use]
    pub fn with_protocol(self, protocol: Protocol) -> Self {
        Self { protocol, ..self }
    }

    /// Sends PROXY headers to the server.
    #[must_use]
    pub fn with_proxy_protocol(self, proxy_protocol: Option<ProxyProtocol>) -> Self {
        Self {
            proxy_protocol,
            ..self
        }
    }

    /// The version of the PROXY header that the server gets, if any.
    pub fn proxy_protocol(&self) -> Option<ProxyProtocol> {
        self.proxy_protocol
    }

    /// The protocol.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    pub(super) fn tls(&self) -> Option<&UpstreamTls> {
        self.tls.as_ref()
    }

    /// Sets the weight; 1 by default.
    #[must_use]
    pub fn with_weight(self, weight: u32) -> Self {
        Self { weight, ..self }
    }

    /// Its share of the requests, beside the weights of the others.
    pub(super) fn weight(&self) -> u32 {
        self.weight
    }

    /// Whether it is the same server, perhaps with another share of the requests.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.name == other.name && self.clone().with_share_of(other) == *other
    }

    fn with_share_of(self, other: &Self) -> Self {
        Self {
            weight: other.weight,
            priority: other.priority,
            ..self
        }
    }

    /// Servers with a higher number get requests only while no other is available.
    pub(super) fn priority(&self) -> u16 {
        self.priority
    }

    /// The `Host` of the server's own URI.
    pub(super) fn host_header(&self) -> &HeaderValue {
        &self.host_header
    }

    fn srv(scheme: &str, name: &str) -> Result<Self, ServerError> {
        let server: Self = format!("{scheme}://{name}").parse()?;
        let name = name.trim_end_matches('/');
        match server.endpoint() {
            Some((host, _)) if host == name && is_dns_name(name) && server.is_named() => Ok(Self {
                address: Address::Srv(name.into()),
                name: format!("{scheme}+srv://{name}").into(),
                ..server
            }),
            _ => Err(ServerError::Srv),
        }
    }

    /// A server behind a socket, which every client calls by a host of its own choice.
    fn socket(path: &str) -> Result<Self, ServerError> {
        if !path.starts_with('/') || path.ends_with('/') {
            return Err(ServerError::Socket);
        }
        Ok(Self {
            address: Address::Unix(Path::new(path).into()),
            is_secure: false,
            tls: None,
            protocol: Protocol::Http1,
            proxy_protocol: None,
            name: format!("unix:{path}").into(),
            host_header: HeaderValue::from_static("localhost"),
            weight: 1,
            priority: 0,
        })
    }
}

impl From<SocketAddr> for Server {
    fn from(address: SocketAddr) -> Self {
        let name = address.to_string();
        Self {
            address: Address::Tcp {
                host: address.ip().to_string().into(),
                port: address.port(),
            },
            is_secure: false,
            tls: None,
            protocol: Protocol::Http1,
            proxy_protocol: None,
            host_header: HeaderValue::try_from(&name)
                .unwrap_or_else(|_| HeaderValue::from_static("")),
            name: name.into(),
            weight: 1,
            priority: 0,
        }
    }
}

impl FromStr for Server {
    type Err = ServerError;

    fn from_str(text: &str) -> Result<Self, ServerError> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").ok_or(ServerError::Socket)?;
            return Self::socket(path);
        }
        if let Some((scheme, name)) = text.split_once("+srv://") {
            return Self::srv(scheme, name);
        }
        let uri: Uri = text.parse().map_err(|_| ServerError::Syntax)?;
        let is_secure = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => false,
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            _ => return Err(ServerError::Scheme),
        };
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
        let port = port.unwrap_or(if is_secure { HTTPS_PORT } else { HTTP_PORT });
        Ok(Self {
            address: Address::Tcp {
                host: host.trim_matches(['[', ']']).into(),
                port,
            },
            is_secure,
            tls: None,
            protocol: Protocol::Http1,
            proxy_protocol: None,
            name: format!("{host}:{port}").into(),
            host_header: HeaderValue::from_str(authority.as_str())
                .map_err(|_| ServerError::Host)?,
            weight: 1,
            priority: 0,
        })
    }
}

fn is_dns_name(name: &str) -> bool {
    Name::vec_from_str(name).is_ok()
}

/// The port of a server, if one is given. `http::uri` lets anything stand in its place.
fn port(authority: &Authority, host: &str) -> Result<Option<u16>, ServerError> {
    let rest = authority.as_str().strip_prefix(host).unwrap_or_default();
    if rest.is_empty() {
        return Ok(None);
    }
    let digits = rest.strip_prefix(':').ok_or(ServerError::Port)?;
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(ServerError::Port);
    }
    let port = digits.parse().ok().filter(|port| *port != 0);
    port.map(Some).ok_or(ServerError::Port)
}

/// The time-outs of an upstream, or of a route that says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// How long a request may take to get a new connection, to any of the servers.
    pub connect: Duration,
    /// How long the upstream may keep a request waiting for the head of the response, or an
    /// unfinished request body waiting to be taken further. Waiting for the client does not count.
    pub response: Duration,
    /// How long the upstream may keep a request waiting for more of the response's body.
    pub body: Duration,
    /// How long all of it may take, retries and the client's part included; as long as it likes
    /// without a bound.
    pub total: Option<Duration>,
}

impl Default for Timeouts {
    /// 5 s to connect, 60 s until the response's head, and 5 min between two pieces of its body, as
    /// events may be rare.
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            response: Duration::from_secs(60),
            body: Duration::from_secs(300),
            total: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(uri: &str) -> Result<Server, ServerError> {
        uri.parse()
    }

    #[test]
    fn a_server_is_its_host_and_port() {
        let server = server("http://app.internal:3000").unwrap();
        assert_eq!(server.endpoint(), Some(("app.internal", 3000)));
        assert_eq!(&**server.name(), "app.internal:3000");
        assert_eq!(server.host_header(), "app.internal:3000");
    }

    #[test]
    fn the_port_is_that_of_the_scheme_if_none_is_given() {
        for (uri, port) in [("http://app.internal/", 80), ("https://app.internal", 443)] {
            let server = server(uri).unwrap();
            assert_eq!(server.endpoint(), Some(("app.internal", port)));
            assert_eq!(server.host_header(), "app.internal");
            assert_eq!(server.is_secure(), port == 443);
        }
    }

    #[test]
    fn a_socket_is_named_by_its_absolute_path() {
        let server = server("unix:///run/the app.sock").unwrap();
        let path = Path::new("/run/the app.sock").into();
        assert_eq!(*server.address(), Address::Unix(path));
        assert_eq!(&**server.name(), "unix:/run/the app.sock");
        assert_eq!(server.endpoint(), None);
        for uri in ["unix://", "unix:///", "unix://run/app.sock"] {
            assert_eq!(uri.parse::<Server>(), Err(ServerError::Socket), "{uri}");
        }
    }

    #[test]
    fn an_srv_name_has_no_port_and_is_no_address() {
        let secure = server("https+srv://_http._tcp.app.internal/").unwrap();
        assert_eq!(secure.srv_name(), Some("_http._tcp.app.internal"));
        assert_eq!(&**secure.name(), "https+srv://_http._tcp.app.internal");
        assert!(secure.is_secure());
        for name in ["app:80", "10.0.0.1", "[::1]"] {
            assert_eq!(
                server(&format!("http+srv://{name}")),
                Err(ServerError::Srv),
                "{name}"
            );
        }
        assert_eq!(server("http+srv://u@app"), Err(ServerError::UserInfo));
        assert_eq!(server("ftp+srv://app"), Err(ServerError::Scheme));
    }

    #[test]
    fn a_weight_of_zero_is_a_small_chance_beside_others_and_an_equal_one_beside_its_like() {
        let template = server("https+srv://_http._tcp.app.internal").unwrap();
        let weights = |records: &[(u16, u16)]| {
            let record = |(priority, weight): &(u16, u16)| SrvRecord {
                target: "a.test".to_owned(),
                port: 8443,
                priority: *priority,
                weight: *weight,
            };
            let records: Vec<_> = records.iter().map(record).collect();
            let servers = template.at(&records);
            assert!(servers.iter().all(Server::is_secure));
            let shares = servers
                .iter()
                .map(|server| (server.priority(), server.weight()));
            shares.collect::<Vec<_>>()
        };
        assert_eq!(
            weights(&[(1, 0), (1, 0), (2, 0), (2, 3)]),
            [(1, 1), (1, 1), (2, 1), (2, 300)]
        );
        assert_eq!(weights(&[(0, 2), (0, u16::MAX)]), [(0, 2), (0, 65_535)]);
        assert_eq!(weights(&[(0, 0), (0, u16::MAX)]), [(0, 1), (0, 6_553_500)]);
    }

    #[test]
    fn only_a_name_may_come_to_mean_another_address() {
        for (uri, is_named) in [
            ("http://app.internal:3000", true),
            ("http://localhost", true),
            ("http://10.0.0.1:3000", false),
            ("http://[::1]:3000", false),
            ("unix:///run/app.sock", false),
        ] {
            assert_eq!(server(uri).unwrap().is_named(), is_named, "{uri}");
        }
    }

    #[test]
    fn an_ipv6_address_is_connected_to_without_its_brackets() {
        let server = server("http://[::1]:3000").unwrap();
        assert_eq!(server.endpoint(), Some(("::1", 3000)));
        assert_eq!(&**server.name(), "[::1]:3000");
    }

    /// It went to port 80, whatever was meant.
    #[test]
    fn what_is_not_a_port_is_refused() {
        for port in ["8o80", "70000", "-1", "0", "12ab", "", "+80", "80 "] {
            for host in ["127.0.0.1", "h", "[::1]"] {
                let uri = format!("http://{host}:{port}");
                let server = server(&uri);
                let wrong = [ServerError::Port, ServerError::Syntax].map(Err);
                assert!(wrong.contains(&server), "{uri}: {server:?}");
            }
        }
        assert!(server("http://h:065535").is_ok());
    }

    #[test]
    fn what_would_be_ignored_is_refused() {
        assert_eq!(server("ftp://app:1"), Err(ServerError::Scheme));
        assert_eq!(server("/app"), Err(ServerError::Scheme));
        assert_eq!(server("http://u:p@app:1"), Err(ServerError::UserInfo));
        assert_eq!(server("http://app:1/base"), Err(ServerError::Path));
        assert_eq!(server("http://app:1/?q"), Err(ServerError::Path));
    }
}
