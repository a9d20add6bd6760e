//! What remembers buckets.

use std::num::NonZeroUsize;
use std::time::Duration;

use weir_redis::{LoginPart, RedisLogin, RedisNodes, RedisSettings, RedisUrlError};
use weir_store::{ClockSource, GuardSettings, MemorySettings};
use weir_yaml::{HumanDuration, Lowered, Lowering, Secret, Span, SpanOf, Spanned, WordOr};

use super::schema;
use super::secrets::secret;
use crate::settings::{RedisStore, StoreSettings};

/// As many buckets as the memory store keeps unless told otherwise: some 32 MB.
const DEFAULT_MAX_BUCKETS: NonZeroUsize = NonZeroUsize::new(1_000_000).unwrap();

/// A shorter lease could expire between two renewals on a gateway with much to do.
const SHORTEST_LEASE: Duration = Duration::from_secs(1);

pub(super) fn store(
    cx: &mut Lowering<'_>,
    written: Option<&Spanned<schema::Store>>,
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

fn memory(cx: &mut Lowering<'_>, written: Option<&schema::Memory>) -> Lowered<MemorySettings> {
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
    written: &Spanned<schema::Redis>,
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
fn deployment(cx: &mut Lowering<'_>, written: &Spanned<schema::Redis>) -> Lowered<RedisSettings> {
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

fn behind_sentinels(
    cx: &mut Lowering<'_>,
    written: &Spanned<schema::Sentinel>,
) -> Lowered<RedisSettings> {
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

fn guard(written: &schema::Redis) -> GuardSettings {
    let mut guard = GuardSettings::default();
    if let Some(timeout) = written.timeout {
        guard.timeout = timeout.0;
    }
    if let Some(on_failure) = written.on_failure {
        guard.on_failure = on_failure.0;
    }
    guard
}
