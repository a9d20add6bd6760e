//! Addresses, networks and URLs of servers, as they are written in a configuration. The first line
//! of an error says what is wrong, the second what to do.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use ipnet::{IpNet, Ipv6Net};
use thiserror::Error;
use weir_proxy::{Server, ServerError};
use weir_rules::{Nat64Prefixes, canonical_network};

weir_yaml::read_from_text! {
    DnsServer: "the address of a DNS server",
    ListenAddress: "an IP address and a port",
    Nat64Prefix: "a prefix of 96 bits",
    Network: "an address or a network",
    ServerUrl: "the URI of a server",
}

/// Where the gateway listens unless it is told.
pub(crate) const DEFAULT_LISTEN: SocketAddr =
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);

/// An address and a port to listen on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListenAddress(pub(crate) SocketAddr);

/// A text that is not an address and a port.
#[derive(Debug, Error)]
#[error("`{text}` is not an IP address and a port\n{help}")]
pub(crate) struct ListenAddressError {
    text: String,
    help: String,
}

impl FromStr for ListenAddress {
    type Err = ListenAddressError;

    fn from_str(text: &str) -> Result<Self, ListenAddressError> {
        text.parse().map(Self).map_err(|_| ListenAddressError {
            text: text.to_owned(),
            help: match full_address(text) {
                Some(address) => format!("write `\"{address}\"`"),
                None => "write one such as `0.0.0.0:8080` or `\"[::]:8080\"`".to_owned(),
            },
        })
    }
}

/// The address that is meant where a part of it is missing: nginx and Go listen on all of the
/// machine's when there is but a port.
pub(crate) fn full_address(text: &str) -> Option<SocketAddr> {
    let text = text.replace("localhost", "127.0.0.1").replace("*:", ":");
    let text = text.strip_prefix("http://").unwrap_or(&text);
    let port = text.strip_prefix(':').unwrap_or(text).parse();
    let everywhere = port.map(|port| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port));
    let ip = text
        .parse()
        .map(|ip| SocketAddr::new(ip, DEFAULT_LISTEN.port()));
    text.parse().or(everywhere).or(ip).ok()
}

/// A DNS server, by default at port 53.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DnsServer(pub(crate) SocketAddr);

/// A text that is not the address of a DNS server.
#[derive(Debug, Error)]
#[error(
    "`{0}` is not the address of a DNS server\nwrite one such as 10.0.0.2, or `\"127.0.0.1:8600\"`"
)]
pub(crate) struct DnsServerError(String);

impl FromStr for DnsServer {
    type Err = DnsServerError;

    fn from_str(text: &str) -> Result<Self, DnsServerError> {
        let ip = text.parse().map(|ip: IpAddr| SocketAddr::new(ip, 53));
        let address = ip.or_else(|_| text.parse::<SocketAddr>()).ok();
        let address = address.filter(|at| at.port() != 0 && !at.ip().is_unspecified());
        address
            .map(Self)
            .ok_or_else(|| DnsServerError(text.to_owned()))
    }
}

/// A network, or one address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Network(pub(crate) IpNet);

/// A text that is not a network.
#[derive(Debug, Error)]
pub(crate) enum NetworkError {
    #[error("`{0}` is not an address or a network, such as 10.0.0.0/8")]
    Malformed(String),
    #[error("`{0}` is an address within its network\nwrite `{1}`")]
    Within(String, IpNet),
    #[error(
        "`{0}` stands for all IPv4 addresses, and clients behind a translator count as those\n\
         write the IPv4 networks that are meant"
    )]
    AllOfIpv4(String),
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let address = text.parse::<IpAddr>().map(IpNet::from);
        let network = address
            .or_else(|_| text.parse::<IpNet>())
            .map_err(|_| NetworkError::Malformed(text.to_owned()))?;
        match network.trunc() {
            whole if whole != network => Err(NetworkError::Within(text.to_owned(), whole)),
            network => Self(network).known_to(&Nat64Prefixes::default()),
        }
    }
}

impl Network {
    /// The network that counts in its place where translators have these prefixes.
    ///
    /// # Errors
    /// When no client is in it.
    pub(crate) fn known_to(self, nat64: &Nat64Prefixes) -> Result<Self, NetworkError> {
        let Self(network) = self;
        match nat64.is_all_of_ipv4(network.addr(), network.prefix_len()) {
            true => Err(NetworkError::AllOfIpv4(network.to_string())),
            false => Ok(Self(canonical_network(nat64, network))),
        }
    }
}

/// The prefix of 96 bits that a translator puts before IPv4 addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nat64Prefix(pub(crate) Ipv6Addr);

/// A text that is not such a prefix.
#[derive(Debug, Error)]
#[error("`{0}` is not the prefix of a translator\nwrite one of 96 bits, such as 2001:db8:64::/96")]
pub(crate) struct Nat64PrefixError(String);

impl FromStr for Nat64Prefix {
    type Err = Nat64PrefixError;

    fn from_str(text: &str) -> Result<Self, Nat64PrefixError> {
        let network = text.parse::<Ipv6Net>().ok();
        let network = network.filter(|net| net.prefix_len() == 96 && net.trunc() == *net);
        let network = network.ok_or_else(|| Nat64PrefixError(text.to_owned()))?;
        Ok(Self(network.addr()))
    }
}

/// The URL of a server of an upstream.
#[derive(Clone, Debug)]
pub(crate) struct ServerUrl(pub(crate) Server);

/// A text that is not the URL of a server.
#[derive(Debug, Error)]
pub(crate) enum ServerUrlError {
    #[error("`{0}` lacks its scheme\nwrite `\"http://{0}\"`")]
    NoScheme(String),
    #[error(
        "`{0}` is a variable, which is not filled in here\nwrite the URL; or fill the file in before: \
         `envsubst < FILE | weir --config -`"
    )]
    Variable(String),
    #[error("`{0}` is not the URI of a server\nwrite it like http://127.0.0.1:3000")]
    Malformed(String),
    #[error("`{0}`: {error}\nwrite it like unix:///run/app.sock", error = ServerError::Socket)]
    Socket(String),
    #[error("`{0}`: {error}\nwrite it like http+srv://_http._tcp.app.internal", error = ServerError::Srv)]
    Srv(String),
    #[error("`{0}`: {1}\nwrite it like http://127.0.0.1:3000")]
    Server(String, ServerError),
    /// What has an `@` may have a password, so it is not repeated.
    #[error(
        "{0}\nwrite it without user name and password, like http://127.0.0.1:3000 or \
         unix:///run/app.sock"
    )]
    Login(ServerError),
}

impl FromStr for ServerUrl {
    type Err = ServerUrlError;

    fn from_str(text: &str) -> Result<Self, ServerUrlError> {
        let is_host = || format!("http://{text}").parse::<Server>().is_ok();
        if text.starts_with('$') {
            return Err(ServerUrlError::Variable(text.to_owned()));
        }
        if !text.contains("://") && is_host() {
            return Err(ServerUrlError::NoScheme(text.to_owned()));
        }
        text.parse().map(Self).map_err(|error| match error {
            error if text.contains('@') => ServerUrlError::Login(error),
            ServerError::Syntax => ServerUrlError::Malformed(text.to_owned()),
            ServerError::Socket => ServerUrlError::Socket(text.to_owned()),
            ServerError::Srv => ServerUrlError::Srv(text.to_owned()),
            error => ServerUrlError::Server(text.to_owned(), error),
        })
    }
}
