//! How an upstream's servers share its requests, and what happens when one fails.

pub(super) mod ejection;
pub(super) mod health_check;
pub(crate) mod retries;
pub(super) mod sticky;

use weir_proxy::{Balance, UpstreamSettings};
use weir_rules::SubjectHash;
use weir_yaml::{Lowered, Lowering, SpanOf, Spanned};

use self::ejection::ejection;
use self::health_check::health_check;
use self::retries::retries;
use self::sticky::sticky;
use super::schema::{self, Upstream};
use crate::gateway::lacks_accounts;
use crate::gateway::schema::Gateway;
use crate::limits::key_sources;

/// The greatest weight: with more, a server beside it gets too few requests to be of use.
const MAX_WEIGHT: u32 = 1000;

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
    let keys = written.sticky.as_ref();
    let sticky = keys.map(|keys| sticky(cx, keys)).transpose();
    let ejection = ejection(cx, written.ejection.as_ref());
    let retries = retries(cx, written.retries.as_ref());
    if let Some(slow_start) = written.slow_start {
        settings.slow_start = slow_start.value.0;
    }
    warn_of_one_server(cx, settings, written);
    let keys = written.health_check.as_ref();
    settings.health_check = keys.map(|keys| health_check(cx, keys)).transpose()?;
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
