//! Bans: what may be written of them, and what comes of it.

mod in_kernel;
mod obeying_clients;
pub(crate) mod schema;
mod silent_waits;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use weir_limit::{Quota, QuotaError};
use weir_middleware::{BanPolicy, Treatment};
use weir_rules::{Ban, BanSchedule, BanScheduleError, KeySource, PathPattern, PathSet, StatusSet};
use weir_yaml::{Lowered, Lowering, OneOrMany, SpanOf, Spanned, all};

use crate::access::as_rejection;
use crate::capability::Capability;
use crate::gateway::Share;
use crate::gateway::lacks_accounts;
use crate::gateway::schema::Gateway;
use crate::limits::{LimitTable, enforcement, key_sources, quota_remedy, status_set};
use crate::named::Named;
use crate::routes::LoweredRoute;

use obeying_clients::warn_of_obeying_clients;
use silent_waits::warn_of_silent_wait;

pub(super) use in_kernel::keep_to_peers;

/// The default for the longest ban where bans grow.
const DEFAULT_LONGEST: Duration = Duration::from_secs(24 * 3600);

/// How many workers of a subject may wait at once by default: those of a busy customer.
const DEFAULT_WORKERS: usize = 20;

/// Bounds what is remembered of one subject.
const MAX_WORKERS: usize = 1000;

/// All bans; none in the place of one in error.
pub(super) fn bans(
    cx: &mut Lowering<'_>,
    gateway: &Spanned<Gateway>,
    named: &Named<'_>,
    routes: &[LoweredRoute],
) -> Vec<Lowered<BanPolicy>> {
    let table = &named.table;
    let of_all = enforcement(gateway.enforce.as_ref());
    let refill = longest_refill(routes);
    let bans = gateway.bans.iter().flat_map(|bans| &bans.value.0);
    bans.map(|(name, written)| {
        let on_denied = written.on_denied.as_ref();
        let treatment = named.treatment(cx, on_denied, StatusCode::TOO_MANY_REQUESTS);
        let per = key_sources(cx, &written.per, name.span, table.ipv6_prefix);
        require_subjects(
            cx,
            name,
            per.as_deref().unwrap_or_default(),
            gateway,
            routes,
        );
        let lowered = ban(cx, name, written, per, table, refill);
        let strikes = written.strikes.as_ref();
        let causes = strikes.map(|strikes| strike_causes(cx, strikes, table, routes));
        warn_of_silent_wait(cx, written);
        let causes = causes.unwrap_or_else(|| Ok(StrikeCauses::default()));
        let (lowered, causes) = (lowered?, causes?);
        Ok(BanPolicy {
            ban: Arc::new(lowered),
            limits: causes.limits,
            workers: causes.workers,
            statuses: causes.statuses,
            paths: causes.paths,
            treatment: treatment?,
            enforcement: of_all.min(enforcement(written.enforce.as_ref())),
        })
    })
    .collect()
}

fn ban(
    cx: &mut Lowering<'_>,
    name: &Spanned<String>,
    written: &Spanned<schema::Ban>,
    per: Lowered<Vec<KeySource>>,
    table: &LimitTable,
    refill: Duration,
) -> Lowered<Ban> {
    let strikes = match &written.strikes {
        Some(strikes) => strike_quota(cx, strikes),
        // Nothing counts against it.
        None => cx.ok(name.span, Quota::new(1, 1, Duration::from_secs(1))),
    };
    let schedule = schedule(cx, written).map(|schedule| schedule.outliving(refill));
    if name.is_empty() {
        let error = cx.error(name.span, "a ban needs a name, such as scanners");
        return Err(error.into());
    }
    let ban = Ban::new(name, per?, table.key.clone(), strikes?, schedule?);
    cx.ok(name.span, ban)
        .map(|ban| ban.with_nat64_prefixes(table.nat64.clone()))
}

/// Refuses a ban per something that no request has.
fn require_subjects(
    cx: &mut Lowering<'_>,
    name: &Spanned<String>,
    per: &[KeySource],
    gateway: &Spanned<Gateway>,
    routes: &[LoweredRoute],
) {
    for source in per {
        let help = match source {
            KeySource::Account if lacks_accounts(cx, gateway) => {
                "say under `account` where requests name their account".to_owned()
            }
            KeySource::Path(segment) if !routes.iter().any(|route| route.may_capture(segment)) => {
                format!("capture it in a route's path as `{{{segment}}}`")
            }
            _ => continue,
        };
        let message = format!("\"{}\" bans per {source}, which is never there", name.value);
        cx.error(name.span, message).help(help);
    }
}

/// What earns a strike.
#[derive(Default)]
struct StrikeCauses {
    limits: Vec<Arc<str>>,
    workers: usize,
    statuses: StatusSet,
    paths: PathSet,
}

fn strike_causes(
    cx: &mut Lowering<'_>,
    written: &Spanned<schema::Strikes>,
    table: &LimitTable,
    routes: &[LoweredRoute],
) -> Lowered<StrikeCauses> {
    let limits = striking_limits(cx, written, table);
    let statuses = match &written.status {
        Some(statuses) => status_set(cx, statuses),
        None => Ok(StatusSet::default()),
    };
    let paths = striking_paths(cx, written);
    let workers = workers(cx, written);
    require_strikes(cx, written);
    warn_of_obeying_clients(cx, written, routes);
    Ok(StrikeCauses {
        limits: limits?,
        workers: workers?,
        statuses: statuses?,
        paths: paths?,
    })
}

fn strike_quota(cx: &mut Lowering<'_>, written: &schema::Strikes) -> Lowered<Quota> {
    let (count, period) = (cx.required(&written.count), cx.required(&written.period));
    let (count, period) = (count?, period?);
    let quota = Quota::new(count, count, period.0);
    let span = match quota {
        Err(QuotaError::ZeroPeriod | QuotaError::PeriodTooLong) => written.period.span,
        _ => written.count.span,
    };
    // Strikes have no burst of their own.
    let quota = quota.map_err(|error| match error {
        QuotaError::ZeroBurst => QuotaError::ZeroCount,
        error => error,
    });
    quota.map_err(|error| {
        let help = quota_remedy(error).map(str::to_owned);
        cx.error(span, error.to_string()).maybe_help(help)
    })
}

fn schedule(cx: &mut Lowering<'_>, written: &schema::Ban) -> Lowered<BanSchedule> {
    require_growth(cx, written);
    let first = cx.required(&written.length)?.0;
    let factor = written
        .factor
        .map_or(NonZeroU32::MIN, |factor| factor.value);
    let longest = written
        .max
        .map_or(DEFAULT_LONGEST.max(first), |max| max.value.0);
    let forget = written.forget.map_or(longest, |forget| forget.value.0);
    let schedule = BanSchedule::new(first, factor, longest, forget);
    let span = match schedule {
        Err(BanScheduleError::LongestTooShort | BanScheduleError::TooLong) => written.max.span(),
        Err(BanScheduleError::ForgottenTooSoon | BanScheduleError::Forgetting(_)) => {
            written.forget.or(written.max).span()
        }
        _ => None,
    };
    cx.ok(span.unwrap_or(written.length.span), schedule)
}

/// Refuses keys that say how bans grow where they do not.
fn require_growth(cx: &mut Lowering<'_>, written: &schema::Ban) {
    if let (Some(factor), None) = (written.factor, &written.strikes) {
        cx.error(factor.span, "`factor` does not apply to bans by hand")
            .help("say by `strikes` what bans by itself, or leave it out");
    }
    if written.factor.is_some_and(|factor| factor.value.get() > 1) {
        return;
    }
    for (key, span) in [("max", written.max), ("forget", written.forget)] {
        if let Some(span) = span {
            cx.error(
                span.span,
                format!("`{key}` does not apply to bans that do not grow"),
            )
            .help("say by how much they do, such as `factor: 4`, or leave it out");
        }
    }
}

/// The limits whose denials are strikes.
fn striking_limits(
    cx: &mut Lowering<'_>,
    written: &schema::Strikes,
    table: &LimitTable,
) -> Lowered<Vec<Arc<str>>> {
    all(
        items(written.limits.as_ref()).map(|name| match table.find(name) {
            Some(limit) => Ok(Arc::from(limit.name.as_str())),
            None => Err(table.unknown(cx, name)),
        }),
    )
}

/// How many workers may share a subject.
fn workers(cx: &mut Lowering<'_>, written: &schema::Strikes) -> Lowered<usize> {
    let Some(workers) = written.workers else {
        return Ok(DEFAULT_WORKERS);
    };
    if items(written.limits.as_ref()).next().is_none() {
        cx.error(workers.span, "`workers` does not apply without `limits`")
            .help("say whose denials are strikes, such as `limits: [NAME]`, or leave it out");
    }
    match usize::try_from(workers.value) {
        Ok(count) if count <= MAX_WORKERS => Ok(count),
        _ => {
            let message = format!("{} workers are too many to tell apart", workers.value);
            let help = format!("write {MAX_WORKERS} at most, or ban by a narrower `per`");
            Err(cx.error(workers.span, message).help(help))
        }
    }
}

/// The paths whose requests are strikes.
fn striking_paths(cx: &mut Lowering<'_>, written: &schema::Strikes) -> Lowered<PathSet> {
    all(items(written.paths.as_ref()).map(|path| cx.ok(path.span, PathPattern::parse(path))))
}

fn require_strikes(cx: &mut Lowering<'_>, written: &Spanned<schema::Strikes>) {
    let nothing = items(written.limits.as_ref()).next().is_none()
        && items(written.paths.as_ref()).next().is_none()
        && written.status.as_ref().is_none_or(|statuses| {
            statuses.value.0.is_empty() && cx.sources.child_in_error(statuses.span).is_none()
        });
    let keys = ["limits", "status", "paths"];
    // A list that is in error was told of.
    if nothing && cx.sources.key_in_error(written.span, &keys).is_none() {
        cx.error(written.span, "nothing is a strike").help(
            "say what is: denials by `limits: [NAME]`, a `status` such as 404, or `paths`; a ban by \
             hand needs no `strikes`",
        );
    }
}

fn items(list: Option<&OneOrMany<Spanned<String>>>) -> impl Iterator<Item = &Spanned<String>> {
    list.into_iter().flat_map(|list| &list.0)
}

/// How long a bucket of a limit may take to fill.
fn longest_refill(routes: &[LoweredRoute]) -> Duration {
    let limits = routes.iter().flat_map(LoweredRoute::limits);
    let quotas = limits.flat_map(|limit| {
        let overridden = limit.overrides().map(|overriding| overriding.quota);
        limit.quota().into_iter().chain(overridden)
    });
    let longest = quotas.map(|quota| quota.tolerance()).max();
    longest.unwrap_or_default().into()
}

fn of_ban(treatment: &Treatment) -> Capability<Treatment> {
    as_rejection(treatment, StatusCode::TOO_MANY_REQUESTS)
}

/// The statuses that are strikes of a ban.
fn strikes(statuses: &StatusSet) -> Capability<StatusSet> {
    match statuses.is_empty() {
        true => Capability::Full,
        false => Capability::Reduced(
            StatusSet::default(),
            "`decide` counts no strikes by status, as it sees no responses".to_owned(),
        ),
    }
}

/// Leaves of a ban what a listener can do that decides.
pub(super) fn reduce(ban: &mut BanPolicy) {
    strikes(&ban.statuses).replace(&mut ban.statuses);
    of_ban(&ban.treatment).replace(&mut ban.treatment);
}

/// Reports what of bans a listener that decides cannot do.
pub(super) fn warn_of_undecided(
    cx: &mut Lowering<'_>,
    gateway: &Gateway,
    bans: &[Lowered<BanPolicy>],
) {
    let written = gateway.bans.iter().flat_map(|bans| &bans.value.0);
    for ((_, written), ban) in written.zip(bans) {
        let Ok(ban) = ban else { continue };
        if let Some(on_denied) = &written.on_denied {
            of_ban(&ban.treatment).warn(cx, on_denied.span);
        }
        let written = written.strikes.as_ref();
        if let Some(span) = written.and_then(|strikes| strikes.status.span()) {
            strikes(&ban.statuses).warn(cx, span);
        }
    }
}

/// The first ban per a value that is known by its hash, as errors call it.
pub(super) fn hashed(bans: &[Lowered<BanPolicy>]) -> Option<String> {
    let mut bans = bans.iter().flatten().map(|ban| &ban.ban);
    let ban = bans.find(|ban| ban.per().iter().any(KeySource::is_hashed))?;
    Some(format!("ban \"{}\" is per", ban.name()))
}

/// The bans that are enforced on a part of those whom they know by their hash.
pub(super) fn shares<'b>(
    gateway: &'b Gateway,
    bans: &'b [Lowered<BanPolicy>],
) -> impl Iterator<Item = Share> {
    let hashed = |ban: &&BanPolicy| ban.ban.per().iter().any(KeySource::is_hashed);
    bans.iter().flatten().filter(hashed).filter_map(|policy| {
        let name = policy.ban.name();
        let mut written = gateway.bans.iter().flat_map(|bans| &bans.value.0);
        let (written, _) = written.find(|(written, _)| *written.value == **name)?;
        Some(Share {
            span: written.span,
            of: format!("ban \"{name}\""),
            enforcement: policy.enforcement,
        })
    })
}
