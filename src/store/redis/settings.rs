//! Where Redis is and how to log in there.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, fs, io};

use futures_util::future::BoxFuture;
use redis::{
    ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo,
    RedisError,
};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use thiserror::Error;
use tokio::net::lookup_host;

use crate::time::{Clock, SystemClock};

const DEFAULT_PREFIX: &str = "weir";

const DEFAULT_LEASE: Duration = Duration::from_secs(30);

/// Finds the addresses of a host; a test says what they are.
pub(super) type Resolve =
    Arc<dyn Fn(String, u16) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> + Send + Sync>;

/// Asks the operating system, as everything else on the machine does.
fn system_resolver() -> Resolve {
    Arc::new(|host, port| {
        Box::pin(async move { Ok(lookup_host((host, port)).await?.collect::<Vec<_>>()) })
    })
}

/// Where Redis is, how to log in there, and what its keys begin with.
///
/// Shown for debugging, it leaves out the password.
#[derive(Clone)]
pub struct RedisSettings {
    pub(super) endpoint: ConnectionInfo,
    /// The authorities to trust in place of the public ones.
    pub(super) ca: Option<Arc<RootCertStore>>,
    pub(super) resolve: Resolve,
    /// What these files hold may change while the gateway runs.
    pub(super) username_file: Option<PathBuf>,
    pub(super) password_file: Option<PathBuf>,
    pub(super) ca_file: Option<PathBuf>,
    /// The clock by which requests are decided. How far it is off is measured by Redis's.
    pub clock: Arc<dyn Clock>,
    /// What every key begins with, followed by a colon.
    pub prefix: String,
    /// How long a request in flight is counted without a word from its gateway.
    pub lease: Duration,
}

/// Redis counts its databases in an `int` of C.
const MAX_DATABASE: i64 = i32::MAX as i64 - 1;

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
}

impl RedisSettings {
    /// Reads a URL: `redis://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE]`, the same with `rediss` for
    /// TLS, or `unix:///PATH[?db=DATABASE&user=USER&pass=PASSWORD]`, also written `redis+unix`.
    /// A user name or password given beside the URL takes the place of the URL's.
    ///
    /// # Errors
    /// See [`RedisUrlError`].
    pub fn parse(
        url: &str,
        username: Option<String>,
        password: Option<String>,
    ) -> Result<Self, RedisUrlError> {
        let endpoint = parse_url(url)?;
        // Replies are read in this form, whatever the URL says.
        let protocol = ProtocolVersion::RESP2;
        let mut login = endpoint.redis_settings().clone().set_protocol(protocol);
        if let Some(username) = username {
            login = login.set_username(username);
        }
        if let Some(password) = password {
            login = login.set_password(password);
        }
        Ok(Self {
            endpoint: endpoint.set_redis_settings(login),
            ca: None,
            resolve: system_resolver(),
            username_file: None,
            password_file: None,
            ca_file: None,
            clock: Arc::new(SystemClock),
            prefix: DEFAULT_PREFIX.to_owned(),
            lease: DEFAULT_LEASE,
        })
    }

    /// Trusts the certificates of this PEM file, and no others, to sign the server's.
    ///
    /// # Errors
    /// [`RedisUrlError::Ca`] when the file holds no certificate, or the URL is not `rediss://`.
    pub fn with_ca(self, pem: &[u8]) -> Result<Self, RedisUrlError> {
        if !self.is_tls() {
            return Err(unusable_ca(&"they are of use with a rediss:// URL only"));
        }
        Ok(Self {
            ca: Some(Arc::new(authorities(pem)?)),
            ..self
        })
    }

    /// Trusts the certificates that this PEM file holds when a connection is made, in place of
    /// those that were given before.
    #[must_use]
    pub fn with_ca_file(self, path: PathBuf) -> Self {
        Self {
            ca_file: Some(path),
            ..self
        }
    }

    /// Reads the user name from this file for each connection.
    #[must_use]
    pub fn with_username_file(self, path: PathBuf) -> Self {
        Self {
            username_file: Some(path),
            ..self
        }
    }

    /// Reads the password from this file for each connection.
    #[must_use]
    pub fn with_password_file(self, path: PathBuf) -> Self {
        Self {
            password_file: Some(path),
            ..self
        }
    }

    /// How to log in now.
    pub(super) fn login(&self) -> io::Result<RedisConnectionInfo> {
        let mut login = self.endpoint.redis_settings().clone();
        if let Some(path) = &self.username_file {
            login = login.set_username(read_line("user name", path)?);
        }
        if let Some(path) = &self.password_file {
            login = login.set_password(read_line("password", path)?);
        }
        Ok(login)
    }

    /// The authorities to trust now.
    pub(super) fn authorities(&self) -> io::Result<Arc<RootCertStore>> {
        if let Some(path) = &self.ca_file {
            let found = authorities(read_file("CA", path)?.as_bytes());
            return found.map(Arc::new).map_err(io::Error::other);
        }
        let public = || Arc::new(webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect());
        Ok(self.ca.clone().unwrap_or_else(public))
    }

    /// The same with another key prefix.
    #[must_use]
    pub fn with_prefix(self, prefix: &str) -> Self {
        Self {
            prefix: prefix.to_owned(),
            ..self
        }
    }

    /// Where Redis is, for logs: `HOST:PORT`, or the path of its socket.
    pub fn address(&self) -> String {
        self.endpoint.addr().to_string()
    }

    pub(super) fn is_tls(&self) -> bool {
        matches!(self.endpoint.addr(), ConnectionAddr::TcpTls { .. })
    }
}

/// The text of a file without the line end that editors put after it.
fn read_line(what: &str, path: &Path) -> io::Result<String> {
    match read_file(what, path)?.trim_end_matches(['\r', '\n']) {
        "" => Err(io::Error::other(format!(
            "the {what} file {} is empty",
            path.display()
        ))),
        line => Ok(line.to_owned()),
    }
}

fn read_file(what: &str, path: &Path) -> io::Result<String> {
    let read = || match fs::metadata(path)?.is_file() {
        true => fs::read_to_string(path),
        false => Err(io::Error::other("not a regular file")),
    };
    read().map_err(|error| {
        let why = format!("the {what} file {} cannot be read: {error}", path.display());
        io::Error::new(error.kind(), why)
    })
}

/// The certificates of a PEM file, of which there must be one at least.
fn authorities(pem: &[u8]) -> Result<RootCertStore, RedisUrlError> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| unusable_ca(&error))?;
        roots
            .add(certificate)
            .map_err(|error| unusable_ca(&error))?;
    }
    if roots.is_empty() {
        return Err(unusable_ca(&"the file holds no PEM certificate"));
    }
    Ok(roots)
}

fn unusable_ca(error: &dyn fmt::Display) -> RedisUrlError {
    RedisUrlError::Ca(error.to_string())
}

fn parse_url(text: &str) -> Result<ConnectionInfo, RedisUrlError> {
    let url = redis::parse_redis_url(text).ok_or_else(|| unparsable(text))?;
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
    let endpoint = url.into_connection_info().map_err(refused)?;
    if !(0..=MAX_DATABASE).contains(&endpoint.redis_settings().db()) {
        return Err(RedisUrlError::Database);
    }
    Ok(endpoint)
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

impl fmt::Debug for RedisSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let login = self.endpoint.redis_settings();
        f.debug_struct("RedisSettings")
            .field("address", &self.address())
            .field("tls", &self.is_tls())
            .field("database", &login.db())
            .field("username", &login.username())
            .field("password", &login.password().map(|_| "***"))
            .field("prefix", &self.prefix)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<RedisSettings, RedisUrlError> {
        RedisSettings::parse(url, None, None)
    }

    fn login(settings: &RedisSettings) -> (Option<&str>, Option<&str>, i64) {
        let login = settings.endpoint.redis_settings();
        (login.username(), login.password(), login.db())
    }

    #[test]
    fn a_url_names_host_user_password_and_database() {
        let settings = parse("redis://ann:se%3Acret@cache.example.com:6380/3").unwrap();
        assert_eq!(settings.address(), "cache.example.com:6380");
        assert_eq!(login(&settings), (Some("ann"), Some("se:cret"), 3));
        assert!(!settings.is_tls());
    }

    #[test]
    fn tls_and_ipv6_and_defaults_are_understood() {
        let settings = parse("rediss://[::1]").unwrap();
        assert!(settings.is_tls());
        assert_eq!(settings.address(), "::1:6379");
        assert_eq!(login(&settings), (None, None, 0));
        assert_eq!(settings.prefix, "weir");
    }

    #[test]
    fn a_socket_is_named_in_two_ways() {
        for scheme in ["unix", "redis+unix"] {
            let settings = parse(&format!("{scheme}:///run/redis.sock?db=2&pass=x")).unwrap();
            assert_eq!(settings.address(), "/run/redis.sock");
            assert_eq!(login(&settings), (None, Some("x"), 2));
        }
    }

    #[test]
    fn what_is_given_beside_the_url_takes_the_place_of_the_urls() {
        let own = |text: &str| Some(text.to_owned());
        let url = "redis://ann:old@localhost";
        let settings = RedisSettings::parse(url, own("bob"), own("new")).unwrap();
        assert_eq!(login(&settings), (Some("bob"), Some("new"), 0));
    }

    #[test]
    fn a_bad_url_is_refused_with_what_to_write() {
        use RedisUrlError as E;
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
    fn no_message_and_no_debug_output_shows_the_password() {
        for url in [
            "redis://ann:hunter2@localhost:port",
            "redis://ann:hunter2@localhost/main",
            "redis://ann:hunter2@",
            "http://ann:hunter2@localhost",
            "redis://localhost/hunter2",
        ] {
            let error = parse(url).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
        let settings = parse("redis://ann:hunter2@localhost").unwrap();
        assert!(!format!("{settings:?}").contains("hunter2"));
    }

    #[test]
    fn a_ca_file_must_hold_a_certificate_and_be_of_use() {
        let ca = |url: &str| parse(url).unwrap().with_ca(b"nonsense");
        assert!(matches!(
            ca("rediss://localhost"),
            Err(RedisUrlError::Ca(_))
        ));
        assert!(matches!(ca("redis://localhost"), Err(RedisUrlError::Ca(_))));
    }
}
