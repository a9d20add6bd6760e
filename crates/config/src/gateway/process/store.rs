//! What remembers buckets.

use std::num::NonZeroUsize;
use std::time::Duration;

use serde::Deserialize;
use weir_redis::{LoginPart, RedisLogin, RedisNodes, RedisSettings, RedisUrlError};
use weir_store::{ClockSource, GuardSettings, MemorySettings, OnFailure};
use weir_yaml::{
    HumanDuration, Lowered, Lowering, PositiveDuration, Secret, Span, SpanOf, Spanned, WordOr,
    words,
};

use crate::foreign::{Config, Word};
use crate::secret::secret;

/// As many buckets as the memory store keeps unless told otherwise: some 32 MB.
const DEFAULT_MAX_BUCKETS: NonZeroUsize = NonZeroUsize::new(1_000_000).unwrap();

/// A shorter lease could expire between two renewals on a gateway with much to do.
const SHORTEST_LEASE: Duration = Duration::from_secs(1);

/// What remembers buckets.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Store {
    /// The memory store; with `redis` and `on_failure: local`, the store to fall back to. Default:
    /// `{}`.
    pub(crate) memory: Option<Memory>,
    /// Redis 3.2 or later, or Valkey: [where it is](#where-redis-is), and how it is used. Default:
    /// none.
    pub(crate) redis: Option<Spanned<Redis>>,
    /// With `redis`: whose time limits and bans go by. `store`: Redis's, so gateways agree whatever
    /// their own clocks say. `local`: this machine's; Redis is not used while the two differ by
    /// more than 2 s. Default: `store`.
    pub(crate) clock: Option<Spanned<Word<ClockSource>>>,
}

#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Memory {
    /// The greatest number of buckets, at most about 32 bytes each; [bans](#bans) and their strikes
    /// may use as many again. Default: `1000000`.
    pub(crate) max_buckets: Option<Spanned<u64>>,
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Redis {
    /// One server that holds all keys: `redis://HOST:PORT/DATABASE`, `rediss://` for TLS,
    /// `unix:///PATH?db=DATABASE`. Type: URL. Default: one of the three is required.
    pub(crate) url: Option<Spanned<String>>,
    /// A Redis Cluster: `nodes` alone. Default: one of the three is required.
    pub(crate) cluster: Option<Spanned<Cluster>>,
    /// One primary and its replicas, watched by Sentinels, which name the primary. Default: one of
    /// the three is required.
    pub(crate) sentinel: Option<Spanned<Sentinel>>,
    /// The prefix of every key, which a colon follows. It neither begins nor ends with a colon, and
    /// has no `{` in a Cluster, where that would put all keys on one node.
    /// Default: `weir`.
    pub(crate) prefix: Option<Spanned<String>>,
    /// How long a call may take. Default: `20ms`.
    pub(crate) timeout: Option<PositiveDuration>,
    /// What happens when Redis cannot be reached: requests pass, get 503, or are counted by the
    /// memory store. Default: `local`.
    pub(crate) on_failure: Option<Word<OnFailure>>,
    /// How long a request in flight still counts when its gateway is gone; at least `1s`, and the
    /// same on all gateways. A lease is renewed three times during its length. Default: `30s`.
    pub(crate) lease: Option<Spanned<HumanDuration>>,
    /// Whether this gateway tells the others of the same Redis and prefix how it does, and shows
    /// [the fleet](ADMIN_API.md#the-fleet). Default: `true`.
    pub(crate) fleet: Option<bool>,
    /// The user to log in as, at every server that holds buckets; a file is read again for each
    /// connection. Default: the URL's.
    pub(crate) username: Option<Spanned<WordOr<Secret>>>,
    /// The password; a file is read again for each connection, so a changed one needs no restart.
    /// Default: the URL's.
    pub(crate) password: Option<Spanned<Secret>>,
    /// With `rediss://`: the certificate authorities (PEM) that may sign the servers' certificates;
    /// the file is read again for each connection. Type: path. Default: public authorities.
    pub(crate) ca: Option<Spanned<String>>,
    /// With `rediss://`: the name that the servers' certificates must state, for servers that are
    /// reached by, or announce, IP addresses that no certificate states. Type: name. Default: the
    /// host connected to.
    pub(crate) tls_name: Option<Spanned<String>>,
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Cluster {
    /// `redis://HOST:PORT`, or `rediss://` for TLS with all servers and Sentinels: some nodes of
    /// the Cluster, or all Sentinels. The URLs hold no user, password or database. Type: list of
    /// URLs.
    pub(crate) nodes: Spanned<Vec<Spanned<String>>>,
    /// The database. Only Valkey from 9.0 on, with `cluster-databases`, has others than the first
    /// in a Cluster. Default: `0`.
    pub(crate) database: Option<Spanned<u64>>,
}

/// Sentinels, and the primary that they watch.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Sentinel {
    /// `redis://HOST:PORT`, or `rediss://` for TLS with all servers and Sentinels: some nodes of
    /// the Cluster, or all Sentinels. The URLs hold no user, password or database. Type: list of
    /// URLs.
    pub(crate) nodes: Spanned<Vec<Spanned<String>>>,
    /// The name that the Sentinels know the primary by, as in `sentinel monitor NAME ...`.
    pub(crate) primary: Spanned<String>,
    /// The database of the primary. Default: `0`.
    pub(crate) database: Option<Spanned<u64>>,
    /// The user to log in as at the Sentinels; the `username` of `redis` is for the primary.
    pub(crate) username: Option<Spanned<WordOr<Secret>>>,
    /// The password for the Sentinels.
    pub(crate) password: Option<Spanned<Secret>>,
}

words!(ClockSource, by Config: "store" => Self::Store, "local" => Self::Local);

words!(OnFailure, by Config: "allow" => Self::Allow, "deny" => Self::Deny, "local" => Self::Local);

/// What remembers buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreSettings {
    /// The process itself.
    Memory(MemorySettings),
    /// Servers of Redis.
    Redis(Box<RedisStore>),
}

/// A Redis, and what happens without it.
#[derive(Clone, Debug)]
pub struct RedisStore {
    /// Where it is.
    pub redis: RedisSettings,
    /// Whose time decisions are taken in.
    pub clock: ClockSource,
    /// How long it may take, and what happens when it takes longer.
    pub guard: GuardSettings,
    /// The memory store that stands in for it with `on_failure: local`.
    pub local: MemorySettings,
    /// Whether gateways tell each other how they do.
    pub has_fleet: bool,
}

impl StoreSettings {
    /// Whether several gateways share the buckets.
    pub const fn is_shared(&self) -> bool {
        matches!(self, Self::Redis(_))
    }
}

/// The same Redis, reached with the same secrets, under the same guard.
impl PartialEq for RedisStore {
    fn eq(&self, other: &Self) -> bool {
        self.redis.is_same_as(&other.redis)
            && self.clock == other.clock
            && self.guard == other.guard
            && self.local == other.local
            && self.has_fleet == other.has_fleet
    }
}

impl Eq for RedisStore {}

pub(super) fn store(
    cx: &mut Lowering<'_>,
    written: Option<&Spanned<Store>>,
) -> Lowered<StoreSettings> {
    let memory = memory(cx, written.and_then(|written| written.memory.as_ref()));
    let clock_written = written.and_then(|written| written.clock);
    match written.and_then(|written| written.redis.as_ref()) {
        Some(written) => {
            let clock = clock_written.map(|clock| clock.value.0);
            let redis = redis(cx, written, clock.unwrap_or_default(), memory)?;
            Ok(StoreSettings::Redis(Box::new(redis)))
        }
        None => {
            if let Some(written) = clock_written {
                let message = "the memory store has no clock of its own";
                cx.error(written.span, message)
                    .help("remove `clock`; it is for `store.redis`");
            }
            memory.map(StoreSettings::Memory)
        }
    }
}

fn memory(cx: &mut Lowering<'_>, written: Option<&Memory>) -> Lowered<MemorySettings> {
    let Some(number) = written.and_then(|written| written.max_buckets) else {
        return Ok(MemorySettings {
            max_buckets: DEFAULT_MAX_BUCKETS,
        });
    };
    let max_buckets = usize::try_from(number.value)
        .ok()
        .and_then(NonZeroUsize::new);
    match max_buckets {
        Some(max_buckets) => Ok(MemorySettings { max_buckets }),
        None => {
            let message = "there must be room for at least one bucket";
            Err(cx.error(number.span, message).into())
        }
    }
}

fn redis(
    cx: &mut Lowering<'_>,
    written: &Spanned<Redis>,
    clock: ClockSource,
    local: Lowered<MemorySettings>,
) -> Lowered<RedisStore> {
    let login = login(cx, written.username.as_ref(), written.password.as_ref());
    let ca = written.ca.as_ref();
    let ca = ca.map(|path| (path, cx.read_file(path, path.span)));
    let guard = guard(written);
    let lease = lease(cx, written.lease);
    let settings = deployment(cx, written);
    let mut settings = settings?.with_login(login?);
    if let Some((path, pem)) = ca {
        settings = cx.ok(path.span, settings.with_ca(pem?.as_bytes()))?;
        // It is read again for each connection, so a change of it makes no other store.
        settings = settings.with_ca_file(cx.folder.join(&path.value));
    }
    if let Some(name) = &written.tls_name {
        settings = cx.ok(name.span, settings.with_tls_name(name))?;
    }
    if let Some(lease) = lease {
        settings.lease = lease;
    }
    if let Some(prefix) = &written.prefix {
        if written.cluster.is_some() && prefix.contains('{') {
            let message = "a `{` in the prefix may put all keys on one node of the Cluster";
            return Err(cx.error(prefix.span, message).help("leave it out"));
        }
        check_colons(cx, prefix)?;
        settings = settings.with_prefix(prefix);
    }
    Ok(RedisStore {
        redis: settings,
        clock,
        guard,
        local: local?,
        has_fleet: written.fleet.unwrap_or(true),
    })
}

/// Keeps the keys of two prefixes apart. A key is the prefix, a colon, and a limit's name; a ban's
/// has nothing but a further colon there. So `weir:` would share `weir::ban:...` with `weir`.
fn check_colons(cx: &mut Lowering<'_>, prefix: &Spanned<String>) -> Lowered<()> {
    if !prefix.contains(':') || !prefix.split(':').any(str::is_empty) {
        return Ok(());
    }
    let words: Vec<&str> = prefix.split(':').filter(|word| !word.is_empty()).collect();
    let message = format!(
        "keys with the prefix `{}` may be those of bans of another gateway: a colon follows each \
         prefix by itself",
        prefix.value
    );
    let instead = match words.as_slice() {
        [] => "a word, such as `weir`".to_owned(),
        words => format!("`{}`", words.join(":")),
    };
    let help = format!(
        "write {instead}: buckets, bans and overrides of operators begin anew under another prefix, \
         and gateways that still have the old one count apart"
    );
    Err(cx.error(prefix.span, message).help(help))
}

/// Where Redis is: `url`, `cluster` or `sentinel`, one of them.
fn deployment(cx: &mut Lowering<'_>, written: &Spanned<Redis>) -> Lowered<RedisSettings> {
    let ways = [
        ("url", written.url.span()),
        ("cluster", written.cluster.span()),
        ("sentinel", written.sentinel.span()),
    ];
    let mut ways = ways
        .into_iter()
        .filter_map(|(name, span)| Some((name, span?)));
    if let (Some((first, _)), Some((second, span))) = (ways.next(), ways.next()) {
        let message = format!("`{first}` and `{second}` both say where Redis is");
        return Err(cx.error(span, message).help("leave one of them out"));
    }
    if let Some(url) = &written.url {
        return cx.ok(url.span, RedisSettings::parse(url, None, None));
    }
    if let Some(cluster) = &written.cluster {
        let nodes = nodes(cx, &cluster.nodes)?;
        let settings = cx.ok(cluster.span, RedisSettings::cluster(nodes))?;
        let Some(database) = cluster.database else {
            return Ok(settings);
        };
        return cx.ok(database.span, settings.with_database(database.value));
    }
    if let Some(sentinel) = &written.sentinel {
        return behind_sentinels(cx, sentinel);
    }
    Err(cx.lacking(
        written.span,
        &["url", "cluster", "sentinel"],
        "nothing says where Redis is",
        "write `url: redis://HOST:PORT`, `cluster: {nodes: [...]}`, or `sentinel: {nodes: [...], \
         primary: NAME}`",
    ))
}

fn behind_sentinels(cx: &mut Lowering<'_>, written: &Spanned<Sentinel>) -> Lowered<RedisSettings> {
    let login = login(cx, written.username.as_ref(), written.password.as_ref());
    let nodes = nodes(cx, &written.nodes);
    let (login, nodes) = (login?, nodes?);
    let database = written.database.map_or(0, |database| database.value);
    let settings = RedisSettings::sentinel(nodes, login, &written.primary, database);
    let span = match (&settings, written.database) {
        (Err(RedisUrlError::Database), Some(database)) => database.span,
        _ => written.primary.span,
    };
    cx.ok(span, settings)
}

fn nodes(cx: &mut Lowering<'_>, written: &Spanned<Vec<Spanned<String>>>) -> Lowered<RedisNodes> {
    let help = "list the URLs of some: redis://HOST:PORT";
    let urls = cx.filled(written, "there must be at least one node", help)?;
    let mut nodes = RedisNodes::default();
    let mut in_error = None;
    for url in urls {
        let added = nodes.add(url);
        in_error = cx.ok(url.span, added).err().or(in_error);
    }
    in_error.map_or(Ok(nodes), Err)
}

/// Files are read to see that they can be, and again for each connection, so a change of what they
/// hold makes no other store.
fn login(
    cx: &mut Lowering<'_>,
    username: Option<&Spanned<WordOr<Secret>>>,
    password: Option<&Spanned<Secret>>,
) -> Lowered<RedisLogin> {
    // A user name is not secret, so it may be written as it is.
    let username = username.map(|written| match &written.value {
        WordOr::Word(name) => Ok(LoginPart::Text(name.clone())),
        WordOr::More(secret) => login_part(cx, secret, written.span),
    });
    let password = password.map(|written| login_part(cx, written, written.span));
    Ok(RedisLogin {
        username: username.transpose()?,
        password: password.transpose()?,
    })
}

fn login_part(cx: &mut Lowering<'_>, written: &Secret, span: Span) -> Lowered<LoginPart> {
    let text = secret(cx, written, span)?;
    Ok(match written {
        Secret::File(path) => LoginPart::File(cx.folder.join(path)),
        Secret::Env(_) => LoginPart::Text(text),
    })
}

/// How long a gateway that crashed goes on to take places among the requests in flight.
fn lease(cx: &mut Lowering<'_>, written: Option<Spanned<HumanDuration>>) -> Option<Duration> {
    let lease = written?;
    if lease.value.0 < SHORTEST_LEASE {
        cx.error(lease.span, "a lease must be at least 1s")
            .help("it is renewed three times in its length; leave it out for 30s");
    }
    Some(lease.value.0)
}

fn guard(written: &Redis) -> GuardSettings {
    let mut guard = GuardSettings::default();
    if let Some(timeout) = written.timeout {
        guard.timeout = timeout.0;
    }
    if let Some(on_failure) = written.on_failure {
        guard.on_failure = on_failure.0;
    }
    guard
}
