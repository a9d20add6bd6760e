//! How an upstream's servers share its requests, and what happens when one fails.

use std::sync::Arc;

use http::HeaderName;
use http::uri::PathAndQuery;
use weir_proxy::{Balance, Ejection, HealthCheck, Retries, Sticky, UpstreamSettings};
use weir_rules::SubjectHash;
use weir_yaml::{Lowered, Lowering, SpanOf, Spanned, WordOr, keys_or_off};

use super::schema::{self, RetryReason, Upstream};
use crate::gateway::lacks_accounts;
use crate::gateway::schema::Gateway;
use crate::limits::{key_sources, status_set};
use crate::secret::secret;

/// The greatest weight: with more, a server beside it gets too few requests to be of use.
const MAX_WEIGHT: u32 = 1000;

/// The least length of the key that signs cookies.
const MIN_KEY_BYTES: usize = 16;

/// The source that needs something to find it by.
const ACCOUNT: &str = "account";

/// Sets how requests are shared, and returns what the servers are chosen by, if that is a hash.
pub(super) fn balancing(
    cx: &mut Lowering<'_>,
    settings: &mut UpstreamSettings,
    written: &Spanned<Upstream>,
    ipv6_prefix: u8,
) -> Lowered<Option<SubjectHash>> {
    let hash = balance(cx, settings, written, ipv6_prefix);
    let sticky = written.sticky.as_ref();
    let sticky = sticky.map(|sticky| self::sticky(cx, sticky)).transpose();
    let ejection = ejection(cx, written.ejection.as_ref());
    let retries = retries(cx, written.retries.as_ref());
    if let Some(slow_start) = written.slow_start {
        settings.slow_start = slow_start.value.0;
    }
    warn_of_one_server(cx, settings, written);
    let health_check = written.health_check.as_ref();
    settings.health_check = health_check
        .map(|check| self::health_check(cx, check))
        .transpose()?;
    settings.sticky = sticky?;
    settings.ejection = ejection?;
    settings.retries = retries?;
    hash
}

fn balance(
    cx: &mut Lowering<'_>,
    settings: &mut UpstreamSettings,
    written: &Upstream,
    ipv6_prefix: u8,
) -> Lowered<Option<SubjectHash>> {
    let Some(balance) = &written.balance else {
        return Ok(None);
    };
    settings.balance = match &balance.value {
        schema::Balance::RoundRobin => Balance::RoundRobin,
        schema::Balance::LeastRequests => Balance::LeastRequests,
        schema::Balance::Hash(_) => Balance::Hash,
    };
    let schema::Balance::Hash(sources) = &balance.value else {
        return Ok(None);
    };
    if let Some(slow_start) = written.slow_start.span() {
        let message = "`slow_start` and `balance: {hash: ...}` do not go together";
        let help = "a hash sends each subject to one server, whatever its share; leave one out";
        return Err(cx.error(slow_start, message).help(help));
    }
    let sources = key_sources(cx, sources, balance.span, ipv6_prefix)?;
    Ok(Some(SubjectHash::new(sources)))
}

fn sticky(cx: &mut Lowering<'_>, written: &schema::Sticky) -> Lowered<Sticky> {
    let name = &written.cookie;
    // Cookies are named by tokens, as fields are.
    if HeaderName::from_bytes(name.value.as_bytes()).is_err() {
        let message = format!("`{}` is not the name of a cookie", name.value);
        let error = cx.error(name.span, message);
        return Err(error.help("write letters, digits, `-` and `_`, such as app_server"));
    }
    let help = "make one with `openssl rand -hex 32 > sticky.key`";
    let keys = cx.filled(&written.key, "there is no key to sign cookies with", help)?;
    let keys = keys.iter().map(|written| {
        let key = secret(cx, written, written.span)?;
        if key.len() < MIN_KEY_BYTES {
            let message = format!("the key has fewer than {MIN_KEY_BYTES} bytes");
            return Err(cx.error(written.span, message).help(help));
        }
        Ok(Arc::from(key.as_bytes()))
    });
    // All of them, as each may have an error of its own.
    let keys: Vec<Lowered<_>> = keys.collect();
    Ok(Sticky {
        cookie: name.value.as_str().into(),
        keys: keys.into_iter().collect::<Lowered<_>>()?,
        max_age: written.max_age.map(|time| time.0),
    })
}

/// Makes sure that requests name accounts where servers are chosen by them.
pub(super) fn require_accounts(
    cx: &mut Lowering<'_>,
    gateway: &Spanned<Gateway>,
    written: &Upstream,
) {
    let Some(balance) = &written.balance else {
        return;
    };
    let schema::Balance::Hash(sources) = &balance.value else {
        return;
    };
    let mut sources = sources.0.iter();
    if sources.any(|source| source.as_str() == ACCOUNT) && lacks_accounts(cx, gateway) {
        cx.error(
            balance.span,
            "the servers are chosen by a hash of the account, which is never there",
        )
        .help("say under `account` where requests name their account");
    }
}

fn ejection(
    cx: &mut Lowering<'_>,
    written: Option<&Spanned<WordOr<schema::Ejection>>>,
) -> Lowered<Option<Ejection>> {
    let Some(written) = written else {
        return Ok(Some(Ejection::default()));
    };
    let Some(keys) = keys_or_off(cx, written, "ejection")? else {
        return Ok(None);
    };
    let mut ejection = Ejection::default();
    if let Some(failures) = keys.failures {
        if failures.value == 0 {
            let error = cx.error(failures.span, "no failures eject no server");
            return Err(error.help("say `ejection: off`, or at least 1"));
        }
        ejection.failures = failures.value;
    }
    if let Some(status) = &keys.status {
        ejection.status = status_set(cx, status)?;
    }
    if let Some(base_time) = keys.base_time {
        ejection.base_time = base_time.value.0;
    }
    let longest = ejection.max_time.max(ejection.base_time);
    ejection.max_time = keys.max_time.map_or(longest, |time| time.0);
    if let Some(base_time) = keys.base_time
        && ejection.base_time > ejection.max_time
    {
        let error = cx.error(base_time.span, "`base_time` exceeds `max_time`");
        return Err(error.help("the first ejection is the shortest; raise `max_time`"));
    }
    if let Some(most) = keys.max_ejected {
        ejection.max_ejected = most.0;
    }
    Ok(Some(ejection))
}

fn retries(
    cx: &mut Lowering<'_>,
    written: Option<&Spanned<WordOr<schema::Retries>>>,
) -> Lowered<Option<Retries>> {
    let Some(written) = written else {
        return Ok(Some(Retries::default()));
    };
    let Some(keys) = keys_or_off(cx, written, "retries")? else {
        return Ok(None);
    };
    let mut retries = Retries::default();
    if let Some(budget) = keys.budget {
        retries.budget = budget.0;
    }
    if let Some(on) = &keys.on {
        let reasons = cx.filled(
            on,
            "there is nothing to retry on",
            "say `retries: off`, or name reasons such as [closed, timeout, 503]",
        )?;
        (retries.on_closed, retries.on_timeout) = (false, false);
        let mut statuses = Vec::new();
        for reason in reasons {
            match &reason.value.0 {
                RetryReason::Closed => retries.on_closed = true,
                RetryReason::Timeout => retries.on_timeout = true,
                RetryReason::Status(status) => statuses.push(status.clone()),
            }
        }
        retries.on_status = statuses.into_iter().collect();
    }
    Ok(Some(retries))
}

fn health_check(
    cx: &mut Lowering<'_>,
    written: &Spanned<schema::HealthCheck>,
) -> Lowered<HealthCheck> {
    let path = &written.path;
    let is_target = path.value.parse::<PathAndQuery>().is_ok();
    if !is_target || !path.value.starts_with('/') {
        let message = format!("`{}` is not a path", path.value);
        let error = cx.error(path.span, message);
        return Err(error.help("write it like /health, as the server knows it"));
    }
    let mut check = HealthCheck::new(path.value.as_str().into());
    check.interval = written.interval.map_or(check.interval, |time| time.0);
    check.timeout = written.timeout.map_or(check.timeout, |time| time.0);
    let counts = [
        (&mut check.healthy_after, written.healthy_after),
        (&mut check.unhealthy_after, written.unhealthy_after),
    ];
    for (count, written) in counts {
        let Some(written) = written else { continue };
        if written.value == 0 {
            let error = cx.error(written.span, "no checks decide nothing");
            return Err(error.help("say at least 1"));
        }
        *count = written.value;
    }
    if let Some(expect) = &written.expect {
        check.expect = status_set(cx, expect)?;
    }
    Ok(check)
}

pub(super) fn weight(cx: &mut Lowering<'_>, weight: Spanned<u32>) -> Lowered<u32> {
    if !(1..=MAX_WEIGHT).contains(&weight.value) {
        let message = format!("a weight is a number from 1 to {MAX_WEIGHT}");
        let error = cx.error(weight.span, message);
        return Err(error.help("leave a server out that should get no requests"));
    }
    Ok(weight.value)
}

fn warn_of_one_server(
    cx: &mut Lowering<'_>,
    settings: &UpstreamSettings,
    written: &Spanned<Upstream>,
) {
    // A file and SRV records may name more tomorrow.
    let by_srv = settings
        .servers
        .iter()
        .any(|server| server.srv_name().is_some());
    if settings.servers.len() != 1 || by_srv || written.servers_file.is_some() {
        return;
    }
    let keys = [
        (written.balance.span(), "balance"),
        (written.sticky.span(), "sticky"),
        (written.slow_start.span(), "slow_start"),
        (written.ejection.span(), "ejection"),
    ];
    for (span, key) in keys {
        if let Some(span) = span {
            let message = format!("`{key}` changes nothing, as the upstream has one server");
            cx.warn(span, message);
        }
    }
}
