//! Where Redis is, in which of its deployments, and what its keys begin with.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use weir_store::{ClockSource, DecisionClock, Observer};

use super::access::{Access, Authorities, LoginPart, RedisLogin, Trust, authorities, unusable_ca};
#[cfg(feature = "internals")]
use super::dialer::Connect;
use super::dialer::Network;
use super::endpoint::{Address, Endpoint, HostPort, MAX_DATABASE, RedisNodes, RedisUrlError};
use super::needed_commands::UsedAlgorithms;
use super::sentinel::{PrimaryWatch, SentinelSettings};

const DEFAULT_PREFIX: &str = "weir";

const DEFAULT_LEASE: Duration = Duration::from_secs(30);

/// Where Redis is, how to log in there, and what its keys begin with.
///
/// Shown for debugging, it leaves out the password.
#[derive(Clone)]
pub struct RedisSettings {
    pub(super) deployment: Deployment,
    /// For the servers that hold buckets.
    pub(super) access: Access,
    pub(super) network: Network,
    /// The knowledge of all stores of these settings about the primary that Sentinels name.
    pub(super) primary: Option<Arc<PrimaryWatch>>,
    /// The clock by which requests are decided: this machine's, unless it is one that follows
    /// Redis's.
    pub clock: DecisionClock,
    /// The beginning of every key, followed by a colon.
    pub prefix: String,
    /// How long a request in flight is counted without a word from its gateway.
    pub lease: Duration,
    /// Which algorithms' commands the servers have to carry out.
    pub algorithms: UsedAlgorithms,
    pub(super) cluster_times: ClusterTimes,
}

/// How long a Redis Cluster may take to say which node serves what.
#[derive(Clone, Copy)]
pub(super) struct ClusterTimes {
    /// How long one node may take to tell the map.
    pub(super) map_answer: Duration,
    /// How long after a node that was out of reach has been replaced others may still name it: they
    /// learn of the one in its place one after the other.
    pub(super) gone_for: Duration,
}

impl Default for ClusterTimes {
    fn default() -> Self {
        Self {
            map_answer: Duration::from_millis(250),
            gone_for: Duration::from_secs(10),
        }
    }
}

/// The servers, and how they are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Deployment {
    /// One server, which holds all keys.
    Single(Address),
    /// A Redis Cluster, by some of its nodes.
    Cluster(Vec<HostPort>),
    /// One primary, which Sentinels name.
    Sentinel(SentinelSettings),
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
        let endpoint = Endpoint::parse(url)?;
        let of_url = &endpoint.login;
        let of_url = login(of_url.username(), of_url.password());
        let beside = login(username.as_deref(), password.as_deref());
        let settings = Self::with_deployment(Deployment::Single(endpoint.address), endpoint.is_tls);
        let mut settings = settings.with_login(beside.or(of_url));
        settings.access.database = endpoint.login.db();
        Ok(settings)
    }

    /// A Redis Cluster. The nodes that are named tell where the others are.
    ///
    /// # Errors
    /// [`RedisUrlError::NoNodes`] when none is named.
    pub fn cluster(nodes: RedisNodes) -> Result<Self, RedisUrlError> {
        let (nodes, is_tls) = nodes.into_parts()?;
        Ok(Self::with_deployment(Deployment::Cluster(nodes), is_tls))
    }

    /// The primary that these Sentinels know by a name. The primary and the Sentinels use TLS
    /// alike, and have a login each.
    ///
    /// # Errors
    /// When no Sentinel is named, or when the name of the primary or the database cannot be one.
    pub fn sentinel(
        nodes: RedisNodes,
        sentinel_login: RedisLogin,
        primary: &str,
        database: u64,
    ) -> Result<Self, RedisUrlError> {
        let (nodes, is_tls) = nodes.into_parts()?;
        if primary.is_empty() || primary.contains(|letter: char| letter.is_whitespace()) {
            return Err(RedisUrlError::PrimaryName);
        }
        let sentinel = SentinelSettings {
            nodes,
            primary: primary.to_owned(),
            login: sentinel_login,
        };
        Self::with_deployment(Deployment::Sentinel(sentinel), is_tls).with_database(database)
    }

    fn with_deployment(deployment: Deployment, is_tls: bool) -> Self {
        Self {
            deployment,
            access: Access {
                login: RedisLogin::default(),
                database: 0,
                tls: is_tls.then(Trust::default),
            },
            network: Network::default(),
            primary: None,
            clock: DecisionClock::new(ClockSource::Local),
            prefix: DEFAULT_PREFIX.to_owned(),
            lease: DEFAULT_LEASE,
            algorithms: UsedAlgorithms::default(),
            cluster_times: ClusterTimes::default(),
        }
    }

    /// The same in this database. A Cluster has database 0 alone, but for Valkey from 9.0 on with
    /// `cluster-databases`.
    ///
    /// # Errors
    /// [`RedisUrlError::Database`] when no server has so many.
    pub fn with_database(mut self, database: u64) -> Result<Self, RedisUrlError> {
        let database = i64::try_from(database).ok();
        let database = database.filter(|database| *database <= MAX_DATABASE);
        self.access.database = database.ok_or(RedisUrlError::Database)?;
        Ok(self)
    }

    /// Logs in like this to the servers that hold buckets. What is not given stays as it was.
    #[must_use]
    pub fn with_login(mut self, login: RedisLogin) -> Self {
        self.access.login = login.or(self.access.login);
        self
    }

    /// Trusts the certificates of this PEM file, and no others, to sign the servers'.
    ///
    /// # Errors
    /// [`RedisUrlError::Ca`] when the file holds no certificate, or there is no TLS.
    pub fn with_ca(mut self, pem: &[u8]) -> Result<Self, RedisUrlError> {
        let Some(tls) = &mut self.access.tls else {
            return Err(unusable_ca(&"they are of use with a rediss:// URL only"));
        };
        tls.authorities = Authorities::Given(Arc::new(authorities(pem)?));
        Ok(self)
    }

    /// Trusts the certificates that this PEM file holds when a connection is made, in place of
    /// those that were given before. Without TLS it changes nothing.
    #[must_use]
    pub fn with_ca_file(mut self, path: PathBuf) -> Self {
        if let Some(tls) = &mut self.access.tls {
            tls.authorities = Authorities::File(path);
        }
        self
    }

    /// Expects this name in the certificates of all servers, in place of the host that is connected
    /// to: nodes and Sentinels may announce IP addresses that no certificate states.
    ///
    /// # Errors
    /// [`RedisUrlError::TlsName`] when it is not a name, or there is no TLS.
    pub fn with_tls_name(mut self, name: &str) -> Result<Self, RedisUrlError> {
        let unusable = |why: &dyn fmt::Display| RedisUrlError::TlsName(why.to_string());
        let Some(tls) = &mut self.access.tls else {
            return Err(unusable(&"it is of use with a rediss:// URL only"));
        };
        let name = ServerName::try_from(name.to_owned()).map_err(|error| unusable(&error))?;
        tls.name = Some(name);
        Ok(self)
    }

    /// The same with another key prefix. One with a colon in it may share keys with one that ends
    /// before the colon.
    #[must_use]
    pub fn with_prefix(self, prefix: &str) -> Self {
        Self {
            prefix: prefix.to_owned(),
            ..self
        }
    }

    /// Begins to follow what Sentinels say, once for all stores that are made of the result.
    /// Without this, each store does so for itself. It changes nothing where there are no
    /// Sentinels.
    ///
    /// Must be called on a tokio runtime.
    #[must_use]
    pub fn shared(mut self, observer: &Arc<dyn Observer>) -> Self {
        if let Deployment::Sentinel(sentinel) = &self.deployment
            && self.primary.is_none()
        {
            let watch = PrimaryWatch::spawn(sentinel, &self.access, &self.network, observer);
            self.primary = Some(Arc::new(watch));
        }
        self
    }

    /// The same over connections that `connect` makes in place of the operating system.
    #[cfg(feature = "internals")]
    #[must_use]
    pub fn with_connect(mut self, connect: Connect) -> Self {
        self.network.connect = connect;
        self
    }

    pub(super) fn is_tls(&self) -> bool {
        self.access.tls.is_some()
    }

    /// Whether these lead to the same keys in the same way. Clocks are not compared.
    pub fn is_same_as(&self, other: &Self) -> bool {
        let (here, there) = (&self.access, &other.access);
        self.deployment == other.deployment
            && here.login == there.login
            && here.database == there.database
            && here.tls == there.tls
            && self.prefix == other.prefix
            && self.lease == other.lease
    }
}

/// A login by texts.
fn login(username: Option<&str>, password: Option<&str>) -> RedisLogin {
    let part = |text: &str| LoginPart::Text(text.to_owned());
    RedisLogin {
        username: username.map(part),
        password: password.map(part),
    }
}

/// Where it is, for people.
impl fmt::Display for RedisSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.deployment {
            Deployment::Single(address) => write!(f, "Redis at {address}"),
            Deployment::Cluster(nodes) => write!(f, "the Redis Cluster at {}", list(nodes)),
            Deployment::Sentinel(sentinel) => {
                let nodes = list(&sentinel.nodes);
                write!(f, "Redis \"{}\" by Sentinels at {nodes}", sentinel.primary)
            }
        }
    }
}

fn list(nodes: &[HostPort]) -> String {
    let nodes: Vec<_> = nodes.iter().map(HostPort::to_string).collect();
    nodes.join(", ")
}

impl fmt::Debug for RedisSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisSettings")
            .field("deployment", &self.deployment)
            .field("tls", &self.is_tls())
            .field("database", &self.access.database)
            .field("login", &self.access.login)
            .field("prefix", &self.prefix)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::super::login::Login;
    use super::*;

    fn parse(url: &str) -> Result<RedisSettings, RedisUrlError> {
        RedisSettings::parse(url, None, None)
    }

    fn nodes(urls: &[&str]) -> RedisNodes {
        let mut nodes = RedisNodes::default();
        for url in urls {
            nodes.add(url).unwrap();
        }
        nodes
    }

    fn sentinel(primary: &str, database: u64) -> Result<RedisSettings, RedisUrlError> {
        let nodes = nodes(&["redis://a:1", "redis://b:2"]);
        RedisSettings::sentinel(nodes, login(None, Some("hunter2")), primary, database)
    }

    #[test]
    fn what_is_given_beside_the_url_takes_the_place_of_the_urls() {
        let own = |text: &str| Some(text.to_owned());
        let url = "redis://ann:old@localhost/4?protocol=resp3";
        let settings = RedisSettings::parse(url, own("bob"), own("new")).unwrap();
        let told = settings.access.read_login().unwrap();
        let expected = Login {
            username: own("bob"),
            password: own("new"),
            database: 4,
        };
        assert_eq!(told, expected);
        let settings = settings.with_login(login(None, Some("newer")));
        let told = settings.access.read_login().unwrap();
        assert_eq!(told.username, own("bob"));
        assert_eq!(told.password, own("newer"));
    }

    #[test]
    fn people_are_told_which_redis_it_is() {
        let told = |settings: RedisSettings| settings.to_string();
        assert_eq!(told(parse("redis://a").unwrap()), "Redis at a:6379");
        let cluster = RedisSettings::cluster(nodes(&["redis://a:1", "redis://[::1]:2"])).unwrap();
        assert_eq!(told(cluster), "the Redis Cluster at a:1, [::1]:2");
        let sentinel = sentinel("main", 0).unwrap();
        assert_eq!(told(sentinel), "Redis \"main\" by Sentinels at a:1, b:2");
    }

    #[test]
    fn sentinels_know_a_primary_by_a_name() {
        for name in ["", "two words", "a\nb"] {
            let refused = sentinel(name, 0);
            assert!(matches!(refused, Err(RedisUrlError::PrimaryName)), "{name}");
        }
        let refused = sentinel("main", 1 << 40);
        assert!(matches!(refused, Err(RedisUrlError::Database)));
        assert_eq!(sentinel("main", 7).unwrap().access.database, 7);
    }

    #[test]
    fn settings_are_the_same_only_if_everything_about_the_servers_is() {
        let sentinel = || sentinel("main", 0).unwrap();
        assert!(sentinel().is_same_as(&sentinel()));
        for other in [
            sentinel().with_prefix("other"),
            sentinel().with_login(login(Some("ann"), None)),
            sentinel().with_database(1).unwrap(),
            parse("redis://a:1").unwrap(),
            parse("rediss://a:1").unwrap(),
            RedisSettings::cluster(nodes(&["redis://a:1"])).unwrap(),
        ] {
            assert!(!sentinel().is_same_as(&other), "{other:?}");
        }
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
            let error = parse(url).err().unwrap();
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
        for settings in [
            parse("redis://ann:hunter2@localhost").unwrap(),
            sentinel("main", 0).unwrap(),
        ] {
            assert!(!format!("{settings:?} {settings}").contains("hunter2"));
        }
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

    #[test]
    fn a_name_in_certificates_must_be_one_and_be_of_use() {
        let named = |url: &str, name: &str| parse(url).unwrap().with_tls_name(name);
        let settings = named("rediss://10.0.0.1", "redis.internal").unwrap();
        let expected = ServerName::try_from("redis.internal").unwrap();
        assert_eq!(settings.access.server_name("10.0.0.1").unwrap(), expected);
        for (url, name) in [
            ("rediss://10.0.0.1", "not a name"),
            ("redis://10.0.0.1", "redis.internal"),
        ] {
            let refused = named(url, name);
            assert!(matches!(refused, Err(RedisUrlError::TlsName(_))), "{url}");
        }
    }
}
