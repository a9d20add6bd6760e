//! The URLs of servers: of one by itself, or of nodes that tell where the others are.

use std::fmt;
use std::path::PathBuf;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo, RedisError};
use thiserror::Error;

/// Redis counts its databases in an `int` of C.
pub(super) const MAX_DATABASE: i64 = i32::MAX as i64 - 1;

/// Why a URL names no Redis. No message contains the URL, which may contain a password.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RedisUrlError {
    /// There is no scheme, or one that is not for Redis.
    #[error(
        "not the URL of a Redis: write redis://HOST:PORT/DATABASE, rediss://HOST:PORT/DATABASE \
         for TLS, or unix:///PATH/OF/THE.SOCK?db=DATABASE"
    )]
    Scheme,
    /// The host is missing.
    #[error("the URL names no host: write redis://HOST:PORT")]
    NoHost,
    /// The path of the socket is missing.
    #[error("the URL names no socket: write unix:///PATH/OF/THE.SOCK, with three slashes")]
    NoSocket,
    /// The port is 0, at which nothing can listen, or there is none behind its colon.
    #[error("the port must be a number from 1 to 65535, such as 6379")]
    Port,
    /// The database is not a number, or none that a Redis can have.
    #[error(
        "the database must be a number from 0 to {MAX_DATABASE}, such as 0 in redis://HOST:PORT/0"
    )]
    Database,
    /// Something follows a `#`.
    #[error(
        "the URL ends in a #fragment, which means nothing here: write # as %23 in a password, \
         and name a CA file for a server whose certificate is not publicly trusted"
    )]
    Fragment,
    /// The URL cannot be used for another reason.
    #[error("the URL cannot be used: {0}")]
    Other(String),
    /// The CA file does not hold certificates, or the connection has no use for them.
    #[error("the CA certificates cannot be used: {0}")]
    Ca(String),
    /// The text that certificates are to state is not a name, or the connection has no use for it.
    #[error("the name in certificates cannot be used: {0}")]
    TlsName(String),
    /// A list without nodes.
    #[error("at least one node must be named; write its URL: redis://HOST:PORT")]
    NoNodes,
    /// A node that is named by a socket.
    #[error("a node cannot be named by a socket; write redis://HOST:PORT")]
    NodeSocket,
    /// Servers and Sentinels listen on different ports.
    #[error("the URL of a node must name its port; write redis://HOST:PORT")]
    NodePort,
    /// A user or a password in the URL of one node, although there is one login for all.
    #[error(
        "the URL of a node must not contain a user or a password; write `username` and \
         `password` once for all nodes"
    )]
    NodeLogin,
    /// A database in the URL of a node.
    #[error(
        "the URL of a node must not name a database: all nodes of a Cluster have the same, and a \
         Sentinel has none; leave it out, and write `cluster.database` or `sentinel.database`"
    )]
    NodeDatabase,
    /// Parameters in the URL of a node.
    #[error("the URL of a node must not contain parameters; end it after the port")]
    NodeParameters,
    /// A node that is named before.
    #[error("the same node is named twice; leave one of them out")]
    SameNode,
    /// Nodes with and without TLS.
    #[error("some nodes are named with TLS and some without; write rediss:// for all or for none")]
    MixedTls,
    /// Sentinels know no primary of such a name.
    #[error(
        "not the name of a primary; write the name that stands behind `sentinel monitor` in the \
         configuration of the Sentinels"
    )]
    PrimaryName,
}

/// A host, by its name or IP address, and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct HostPort {
    pub(super) host: String,
    pub(super) port: u16,
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Address {
    Tcp(HostPort),
    Unix(PathBuf),
}

impl Address {
    /// None for a socket.
    pub(super) fn tcp(&self) -> Option<&HostPort> {
        match self {
            Self::Tcp(address) => Some(address),
            Self::Unix(_) => None,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// The parts of a URL.
pub(super) struct Endpoint {
    pub(super) address: Address,
    pub(super) is_tls: bool,
    pub(super) login: RedisConnectionInfo,
}

impl Endpoint {
    pub(super) fn parse(text: &str) -> Result<Self, RedisUrlError> {
        let (endpoint, is_tls) = parse_url(text)?;
        let address = match endpoint.addr().clone() {
            ConnectionAddr::Tcp(host, port) => Address::Tcp(HostPort { host, port }),
            ConnectionAddr::Unix(path) => Address::Unix(path),
            _ => return Err(RedisUrlError::Scheme),
        };
        Ok(Self {
            address,
            is_tls,
            login: endpoint.redis_settings().clone(),
        })
    }
}

/// Nodes of a Redis Cluster, or Sentinels: any one of them tells where the data is.
///
/// They have one login, and all of them use TLS or none does.
#[derive(Clone, Debug, Default)]
pub struct RedisNodes {
    nodes: Vec<HostPort>,
    is_tls: bool,
}

impl RedisNodes {
    /// Adds a node by its URL, `redis://HOST:PORT`, or with `rediss` for TLS.
    ///
    /// # Errors
    /// When the URL says anything else, or does not go with those before.
    pub fn add(&mut self, url: &str) -> Result<(), RedisUrlError> {
        let endpoint = Endpoint::parse(url)?;
        let Address::Tcp(node) = endpoint.address else {
            return Err(RedisUrlError::NodeSocket);
        };
        // It was parsed just now.
        let url = redis::parse_redis_url(url).ok_or(RedisUrlError::Scheme)?;
        if url.port().is_none() {
            return Err(RedisUrlError::NodePort);
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(RedisUrlError::NodeLogin);
        }
        if endpoint.login.db() != 0 {
            return Err(RedisUrlError::NodeDatabase);
        }
        if url.query().is_some() {
            return Err(RedisUrlError::NodeParameters);
        }
        let is_same = |known: &HostPort| {
            known.port == node.port && known.host.eq_ignore_ascii_case(&node.host)
        };
        if self.nodes.iter().any(is_same) {
            return Err(RedisUrlError::SameNode);
        }
        if !self.nodes.is_empty() && self.is_tls != endpoint.is_tls {
            return Err(RedisUrlError::MixedTls);
        }
        self.is_tls = endpoint.is_tls;
        self.nodes.push(node);
        Ok(())
    }

    /// The nodes, and whether they use TLS. There must be one at least.
    pub(super) fn into_parts(self) -> Result<(Vec<HostPort>, bool), RedisUrlError> {
        match self.nodes.is_empty() {
            true => Err(RedisUrlError::NoNodes),
            false => Ok((self.nodes, self.is_tls)),
        }
    }
}

/// The parts of a URL, and whether it asks for TLS.
fn parse_url(text: &str) -> Result<(ConnectionInfo, bool), RedisUrlError> {
    let mut url = redis::parse_redis_url(text).ok_or_else(|| unparsable(text))?;
    let is_socket = url.scheme().ends_with("unix");
    if url.fragment().is_some() {
        return Err(RedisUrlError::Fragment);
    }
    if !is_socket && url.host_str().is_none_or(str::is_empty) {
        return Err(RedisUrlError::NoHost);
    }
    if is_socket && (url.host_str().is_some() || url.path().trim_matches('/').is_empty()) {
        return Err(RedisUrlError::NoSocket);
    }
    if url.port() == Some(0) || has_empty_port(text) {
        return Err(RedisUrlError::Port);
    }
    let plain = match url.scheme() {
        "rediss" => Some("redis"),
        "valkeys" => Some("valkey"),
        _ => None,
    };
    // The crate has no TLS here: `dialer` has.
    let is_tls = plain.is_some_and(|plain| url.set_scheme(plain).is_ok());
    let endpoint = url.into_connection_info().map_err(refused)?;
    if !(0..=MAX_DATABASE).contains(&endpoint.redis_settings().db()) {
        return Err(RedisUrlError::Database);
    }
    Ok((endpoint, is_tls))
}

/// Whether a colon ends what a URL says of its server, where its port would be.
fn has_empty_port(url: &str) -> bool {
    let (_, rest) = url.trim().split_once("://").unwrap_or_default();
    let server = rest.split(['/', '?', '#']).next().unwrap_or_default();
    server.ends_with(':')
}

fn unparsable(text: &str) -> RedisUrlError {
    match text.split_once("://") {
        Some(("redis" | "rediss", "")) => RedisUrlError::NoHost,
        Some(("redis" | "rediss" | "unix" | "redis+unix", _)) => {
            RedisUrlError::Other("check its host, its port, and that / @ : and # are written as %2F %40 %3A and %23 in a password".to_owned())
        }
        _ => RedisUrlError::Scheme,
    }
}

fn refused(error: RedisError) -> RedisUrlError {
    let message = error.to_string();
    if message.contains("database") {
        RedisUrlError::Database
    } else {
        RedisUrlError::Other(message)
    }
}

#[cfg(test)]
mod tests {
    use RedisUrlError as E;

    use super::*;

    fn parse(url: &str) -> Result<Endpoint, RedisUrlError> {
        Endpoint::parse(url)
    }

    fn refusal(urls: &[&str]) -> Option<RedisUrlError> {
        let mut nodes = RedisNodes::default();
        urls.iter().find_map(|url| nodes.add(url).err())
    }

    #[test]
    fn a_url_names_host_user_password_and_database() {
        let endpoint = parse("redis://ann:se%3Acret@cache.example.com:6380/3").unwrap();
        assert_eq!(endpoint.address.to_string(), "cache.example.com:6380");
        let login = endpoint.login;
        let found = (login.username(), login.password(), login.db());
        assert_eq!(found, (Some("ann"), Some("se:cret"), 3));
        assert!(!endpoint.is_tls);
    }

    #[test]
    fn tls_and_ipv6_and_defaults_are_understood() {
        let endpoint = parse("rediss://[::1]").unwrap();
        assert!(endpoint.is_tls);
        assert_eq!(endpoint.address.to_string(), "[::1]:6379");
        let login = endpoint.login;
        let found = (login.username(), login.password(), login.db());
        assert_eq!(found, (None, None, 0));
    }

    #[test]
    fn a_socket_is_named_in_two_ways() {
        for scheme in ["unix", "redis+unix"] {
            let endpoint = parse(&format!("{scheme}:///run/redis.sock?db=2&pass=x")).unwrap();
            assert_eq!(endpoint.address.to_string(), "/run/redis.sock");
            let login = endpoint.login;
            let found = (login.username(), login.password(), login.db());
            assert_eq!(found, (None, Some("x"), 2));
        }
    }

    #[test]
    fn a_bad_url_is_refused_with_what_to_write() {
        assert!(matches!(parse("localhost:6379"), Err(E::Scheme)));
        assert!(matches!(parse("http://localhost"), Err(E::Scheme)));
        assert!(matches!(parse(""), Err(E::Scheme)));
        assert!(matches!(parse("redis://"), Err(E::NoHost)));
        assert!(matches!(parse("unix://"), Err(E::NoSocket)));
        assert!(matches!(parse("unix://run/redis.sock"), Err(E::NoSocket)));
        assert!(matches!(parse("redis://localhost/main"), Err(E::Database)));
        assert!(matches!(parse("redis://localhost/-1"), Err(E::Database)));
        for port in ["0", "00", ""] {
            for host in ["localhost", "ann:secret@localhost", "[::1]"] {
                for database in ["/1", "/", "", "?protocol=resp3"] {
                    let url = format!("redis://{host}:{port}{database}");
                    assert!(matches!(parse(&url), Err(E::Port)), "{url}");
                }
            }
        }
        for url in ["redis://[::1]", "redis://ann:@localhost/1", "unix:///a:"] {
            assert!(parse(url).is_ok(), "{url}");
        }
        for database in ["2147483647", "99999999999", "99999999999999999999"] {
            for url in [
                format!("redis://localhost/{database}"),
                format!("unix:///run/redis.sock?db={database}"),
            ] {
                assert!(matches!(parse(&url), Err(E::Database)), "{url}");
            }
        }
        assert!(parse("redis://localhost/2147483646").is_ok());
        assert!(matches!(parse("rediss://host#insecure"), Err(E::Fragment)));
        assert!(matches!(parse("redis://localhost:port"), Err(E::Other(_))));
    }

    #[test]
    fn nodes_are_named_by_host_and_port() {
        let urls = ["redis://a:1", "redis://a:2/", "redis://[::1]:1/0"];
        let mut nodes = RedisNodes::default();
        for url in urls {
            nodes.add(url).unwrap();
        }
        let (nodes, is_tls) = nodes.into_parts().unwrap();
        let nodes: Vec<_> = nodes.iter().map(HostPort::to_string).collect();
        assert_eq!(nodes, ["a:1", "a:2", "[::1]:1"]);
        assert!(!is_tls);
        let mut nodes = RedisNodes::default();
        nodes.add("rediss://a:1").unwrap();
        assert!(nodes.into_parts().unwrap().1);
        let none = RedisNodes::default().into_parts();
        assert!(matches!(none, Err(E::NoNodes)));
    }

    #[test]
    fn what_cannot_hold_for_nodes_is_refused() {
        assert!(matches!(refusal(&["unix:///a"]), Some(E::NodeSocket)));
        assert!(matches!(refusal(&["redis://a"]), Some(E::NodePort)));
        for login in ["ann@", "ann:b@", ":b@"] {
            let url = format!("redis://{login}a:1");
            assert!(matches!(refusal(&[&url]), Some(E::NodeLogin)), "{url}");
        }
        assert!(matches!(refusal(&["redis://a:1/1"]), Some(E::NodeDatabase)));
        let parameters = refusal(&["redis://a:1?protocol=resp3"]);
        assert!(matches!(parameters, Some(E::NodeParameters)));
        let same = refusal(&["redis://a:1", "redis://A:1/0"]);
        assert!(matches!(same, Some(E::SameNode)));
        let mixed = refusal(&["redis://a:1", "rediss://a:2"]);
        assert!(matches!(mixed, Some(E::MixedTls)));
        assert!(matches!(refusal(&["a:1"]), Some(E::Scheme)));
    }
}
