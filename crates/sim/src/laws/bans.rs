//! A ban holds on every gateway from its beginning until its end, and nobody is banned otherwise.

use std::collections::BTreeMap;
use std::time::Duration;

use super::history::{
    AROUND, Exchange, FOREVER, History, Jump, LIST_SPREADS, Loss, Operated, SERVERS_DIFFER, Span,
};
use super::{Failure, Law};
use crate::scenario::{Act, Ban, LimitKind, LimitUse, Strikes, Topology, subject};
use crate::trace::moment;

pub(super) const LAW: Law = Law {
    name: "bans",
    promises: &[
        NEXT_REQUEST,
        STANDING,
        LIFTED,
        FOR,
        STRIKES,
        EARNED,
        LONGEST,
    ],
    check,
};

const NEXT_REQUEST: &str = "docs/ADMIN_API.md: The change takes effect on this gateway at once, \
    and on others that share the Redis with their next request to it";
const STANDING: &str = "docs/ADMIN_API.md: They hold on this gateway at once, on others that \
    share the Redis within two seconds";
const LIFTED: &str = "docs/ADMIN_API.md: A ban that is lifted, or made shorter, holds there for up \
    to two seconds more.";
const FOR: &str = "docs/ADMIN_API.md: bans it from now on, for the duration in `{\"for\": \"2h\"}`";
const STRIKES: &str = "docs/config/bans.md: The number of strikes that cause a ban; it begins with the \
    last of them";
const EARNED: &str =
    "docs/config/bans.md: the ban applies from the next request on, through every gateway";
const LONGEST: &str = "docs/config/bans.md: A ban whose durations change keeps holding its subjects for \
    the time that was left, but no longer than its longest ban is now, counted from the reload. Up \
    to three seconds more are not cut.";

const BANNED: u16 = 410;

fn check(history: &History<'_>, failures: &mut Vec<Failure>) {
    let Some(configuration) = history.scenario.configurations.first() else {
        return;
    };
    for ban in &configuration.bans {
        for operated in &history.operations {
            failures.extend(passed(history, ban, operated));
            failures.extend(stayed(history, ban, operated));
        }
        failures.extend(unfounded(history, ban));
        failures.extend(too_long(history, ban));
        failures.extend(missed(history, ban));
    }
}

/// A request that passed although its subject was banned by an operator.
fn passed(history: &History<'_>, ban: &Ban, operated: &Operated<'_>) -> Option<Failure> {
    let Act::Ban {
        ban: name,
        subject: banned,
        length,
    } = &operated.operation.act
    else {
        return None;
    };
    let (begun, 200..=204, _) = operated.answer? else {
        return None;
    };
    let sent = operated.sent.filter(|_| *name == ban.name)?;
    let written = Span::new(sent, begun);
    let mut until = length.map_or(history.end, |length| sent + length);
    for other in history.operations.iter().filter(|other| {
        !std::ptr::eq(*other, operated)
            && matches!(&other.operation.act, Act::Lift { subject, .. } | Act::Ban { subject, .. }
                if subject == banned)
    }) {
        let is_later = other.sent.is_none_or(|at| at >= sent);
        let is_done = matches!(other.answer, Some((at, 200..=204, _)) if at < sent);
        if is_later {
            until = until.min(other.sent.unwrap_or(FOREVER));
        } else if !is_done {
            // Either may be the last.
            return None;
        }
    }
    // One that is longer than the longest, or for ever, is told from gateway to gateway. Another is
    // cut by gateways whose longest is shorter.
    let asked = operated.operation.gateway;
    let longest = longest_in(history, ban, asked, written);
    let is_longer = |longest: &(Duration, Duration)| length.is_none_or(|it| it > longest.1);
    let standing = longest.iter().any(is_longer);
    if standing != longest.iter().all(is_longer) {
        return None;
    }
    let memory = history.scenario.store.topology == Topology::Memory;
    for exchange in &history.exchanges {
        let gateway = exchange.request.gateway;
        let is_asked = gateway == asked || !memory;
        let theirs = subject(exchange.client, ban.per).as_ref() == Some(banned);
        let Some(reached) = exchange.reached.filter(|_| theirs && is_asked) else {
            continue;
        };
        let decided = Span::new(exchange.sent, reached);
        let store = memory.then_some(gateway);
        let lost = |loss: &Loss| loss.may_concern(store, written, reached);
        let known = if standing && !memory {
            history.listed((asked, gateway), written, exchange.sent)
        } else if history.losses.iter().any(lost)
            || history.is_outage(gateway, decided)
            || history.is_frozen(gateway, decided)
        {
            None
        } else {
            Some(begun)
        };
        let mut until = until;
        let gateways = 0..history.scenario.gateways.len();
        for gateway in gateways.filter(|_| !standing) {
            let all = longest_in(history, ban, gateway, Span::new(begun, reached));
            let cut = all
                .iter()
                .map(|(since, longest)| *longest + begun.max(*since));
            until = until.min(cut.min().unwrap_or(until));
        }
        let early = Duration::from_millis(20)
            + (reached - begun.min(reached)) / 1000
            + history.clocks_differ()
            + history.ends_earlier(written, reached);
        if known.is_some_and(|known| exchange.sent > known) && reached + early < until {
            let what = format!(
                "{} reached the app {:?} after {banned} had been banned by {name} until {}",
                exchange.request.name(),
                reached - begun,
                moment(until)
            );
            return Some(Failure {
                law: LAW.name,
                promise: if standing { STANDING } else { NEXT_REQUEST },
                at: reached,
                what,
            });
        }
    }
    None
}

/// The longest bans by the configurations that a gateway goes by at some time of a span, each with
/// since when.
fn longest_in(
    history: &History<'_>,
    ban: &Ban,
    gateway: usize,
    span: Span,
) -> Vec<(Duration, Duration)> {
    let all = history
        .configurations(gateway)
        .filter_map(|(during, configuration)| {
            let since = during.from.saturating_sub(AROUND);
            let own = configuration.bans.iter().find(|one| one.name == ban.name);
            let is_met = Span::new(since, during.until + AROUND).meets(span);
            is_met.then(|| (since, longest_of(own.unwrap_or(ban))))
        });
    all.collect()
}

fn longest_of(ban: &Ban) -> Duration {
    if ban.factor > 1 { ban.max } else { ban.length }
}

/// What a ban may last beyond its longest, unnoticed, and what Retry-After is rounded up by.
const NOT_CUT: Duration = Duration::from_secs(4);

/// For how long a gateway cuts nothing after its start.
const CUTS_AFTER: Duration = Duration::from_secs(7);

/// A response that names a longer ban than the configuration has that its gateway goes by.
fn too_long(history: &History<'_>, ban: &Ban) -> Option<Failure> {
    for exchange in &history.exchanges {
        let Some(answer) = exchange.answer.filter(|answer| answer.status == BANNED) else {
            continue;
        };
        let theirs = subject(exchange.client, ban.per);
        let banned = theirs.as_ref();
        let by_operator = history.operations.iter().any(|other| {
            matches!(&other.operation.act, Act::Ban { subject, .. } if Some(subject) == banned)
        });
        let gateway = exchange.request.gateway;
        let since = exchange.sent.saturating_sub(CUTS_AFTER);
        let mut runs = history.runs.get(gateway).into_iter().flatten();
        let started = runs.rfind(|run| run.from <= answer.at);
        let settled = started.is_some_and(|run| run.from <= since);
        if by_operator || !settled || history.is_disturbed(Span::new(since, answer.at)) {
            continue;
        }
        // What it went by just before may be remembered.
        let may_remember = exchange.sent.saturating_sub(LIST_SPREADS);
        let longest = longest_in(history, ban, gateway, Span::new(may_remember, answer.at));
        let Some(longest) = longest.iter().map(|(_, longest)| *longest).max() else {
            continue;
        };
        let told = Duration::from_secs(answer.retry_after().unwrap_or(0));
        if told > longest + NOT_CUT {
            let what = format!(
                "{} is banned for {told:?} more, where {longest:?} is the longest ban of \
                 {} now",
                exchange.request.name(),
                ban.name
            );
            return Some(Failure {
                law: LAW.name,
                promise: LONGEST,
                at: answer.at,
                what,
            });
        }
    }
    None
}

/// A client that is still banned when its ban is over or was lifted.
fn stayed(history: &History<'_>, ban: &Ban, operated: &Operated<'_>) -> Option<Failure> {
    let (begun, 200..=204, _) = operated.answer? else {
        return None;
    };
    let (promise, over, banned) = match &operated.operation.act {
        Act::Lift { ban: name, subject } if *name == ban.name => (LIFTED, begun, subject),
        Act::Ban {
            ban: name,
            subject,
            length,
        } if *name == ban.name => (FOR, begun + (*length)?, subject),
        _ => return None,
    };
    // Who is lifted has no ban and no strikes of before.
    let since = match operated.operation.act {
        Act::Lift { .. } => operated.sent?,
        _ => Duration::ZERO,
    };
    let memory = history.scenario.store.topology == Topology::Memory;
    for exchange in &history.exchanges {
        let Some(answer) = exchange.answer.filter(|answer| answer.status == BANNED) else {
            continue;
        };
        let late = over + LIST_SPREADS + (over - begun) / 1000 + history.clocks_differ();
        let theirs = subject(exchange.client, ban.per).as_ref() == Some(banned)
            && (!memory || exchange.request.gateway == operated.operation.gateway);
        if !theirs || exchange.sent < late || history.is_disturbed(Span::new(begun, answer.at)) {
            continue;
        }
        let again = history.operations.iter().any(|other| {
            let earlier = other.sent.is_some_and(|sent| sent < exchange.decided());
            let later = other.answer.is_none_or(|(at, ..)| at >= since);
            matches!(&other.operation.act, Act::Ban { subject, .. } if subject == banned)
                && earlier
                && later
                && !std::ptr::eq(other, operated)
        });
        if again || may_be_earned(history, ban, exchange, since) {
            continue;
        }
        let what = format!(
            "{} is banned {:?} after the ban {} of {banned} was over",
            exchange.request.name(),
            answer.at - over,
            ban.name
        );
        return Some(Failure {
            law: LAW.name,
            promise,
            at: answer.at,
            what,
        });
    }
    None
}

/// A client that is banned although neither an operator did it nor its strikes suffice.
fn unfounded(history: &History<'_>, ban: &Ban) -> Option<Failure> {
    for exchange in &history.exchanges {
        let Some(answer) = exchange.answer.filter(|answer| answer.status == BANNED) else {
            continue;
        };
        let theirs = subject(exchange.client, ban.per);
        let by_operator = history.operations.iter().any(|operated| {
            matches!(&operated.operation.act, Act::Ban { subject, .. } if Some(subject) == theirs.as_ref())
                && operated.sent.is_some_and(|at| at < answer.at)
        });
        if !by_operator && !may_be_earned(history, ban, exchange, Duration::ZERO) {
            let what = format!(
                "{} is banned, and its subject was not",
                exchange.request.name()
            );
            return Some(Failure {
                law: LAW.name,
                promise: STRIKES,
                at: answer.at,
                what,
            });
        }
    }
    None
}

/// A request that got to the app although its subject had earned a ban.
fn missed(history: &History<'_>, ban: &Ban) -> Option<Failure> {
    let configuration = history.only_configuration()?;
    let ban = configuration.bans.iter().find(|one| one.name == ban.name)?;
    // What was taken in advance is spent without a look at the store.
    if configuration
        .limits
        .iter()
        .any(|one| one.prefetch.is_some())
    {
        return None;
    }
    let memory = history.scenario.store.topology == Topology::Memory;
    // One strike more than causes a ban, so that what is forgotten meanwhile does not matter.
    let count = usize::try_from(ban.strikes.count).ok()? + 1;
    let forgets = ban.strikes.period / u32::try_from(ban.strikes.count).ok()?;
    let mut strikes: BTreeMap<String, Vec<&Exchange<'_>>> = BTreeMap::new();
    for exchange in &history.exchanges {
        if let Some(theirs) = subject(exchange.client, ban.per)
            && is_strike(history, ban, exchange)
        {
            strikes.entry(theirs).or_default().push(exchange);
        }
    }
    for exchange in &history.exchanges {
        let theirs = subject(exchange.client, ban.per).unwrap_or_default();
        let (Some(reached), Some(strikes)) = (exchange.reached, strikes.get(&theirs)) else {
            continue;
        };
        // Those that a ban may have ended of before are too old.
        let least = ban.length * 9 / 10;
        let gateway = exchange.request.gateway;
        let recent = strikes.partition_point(|other| other.sent + least <= reached);
        let before = strikes.iter().skip(recent).filter(|other| {
            let answered = other.answer.map_or(FOREVER, |answer| answer.at);
            answered < exchange.sent && (!memory || other.request.gateway == gateway)
        });
        let before: Vec<Duration> = before.map(|other| other.sent).collect();
        let is_earned = |some: &[Duration]| match some {
            [first, .., last] => *last + history.clocks_differ() < *first + forgets * 9 / 10,
            _ => false,
        };
        let Some(strikes) = before.windows(count).find(|some| is_earned(some)) else {
            continue;
        };
        let from = strikes.first().copied().unwrap_or_default();
        let operated = history.operations.iter().any(|other| {
            matches!(&other.operation.act, Act::Lift { subject, .. } | Act::Ban { subject, .. }
                if *subject == theirs)
        });
        if !operated && !history.is_disturbed(Span::new(from, reached)) {
            let what = format!(
                "{} reached the app although {theirs} had earned {count} strikes since \
                 {}, and {} cause a ban",
                exchange.request.name(),
                moment(from),
                ban.strikes.count
            );
            return Some(Failure {
                law: LAW.name,
                promise: EARNED,
                at: reached,
                what,
            });
        }
    }
    None
}

/// Whether a request certainly was a strike.
fn is_strike(history: &History<'_>, ban: &Ban, exchange: &Exchange<'_>) -> bool {
    let Some(answer) = exchange.answer else {
        return false;
    };
    if ban.strikes.on_5xx {
        return answer.status == 500 && exchange.reached.is_some();
    }
    let route = history.route(exchange);
    let denying = |one: &&LimitUse| one.kind != LimitKind::SpendOnly && one.enforce;
    answer.status == 429
        && route.is_some_and(|route| {
            let mut uses = route.limits.iter().filter(denying);
            uses.all(|one| ban.strikes.limits.contains(&one.limit))
        })
}

/// Whether a subject may have earned the ban that keeps a request out: after a moment, and no
/// longer ago than a ban lasts.
fn may_be_earned(history: &History<'_>, ban: &Ban, banned: &Exchange<'_>, after: Duration) -> bool {
    let Strikes { count, period, .. } = ban.strikes;
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    let theirs = subject(banned.client, ban.per);
    let memory = history.scenario.store.topology == Topology::Memory;
    let bans = history
        .scenario
        .configurations
        .iter()
        .flat_map(|one| &one.bans);
    let longest = bans.map(longest_of).max().unwrap_or_default();
    let lasts = longest + longest / 1000 + NOT_CUT;
    let at = banned.decided();
    // After a jump, any strike of a subject that has strikes may be the last.
    let jumps = history.jumps.iter().filter(|jump| jump.at < at);
    let is_last = |jump: &&Jump| {
        let back = Duration::from_nanos(jump.by.min(0).unsigned_abs());
        !jump.is_slewed() && at < jump.span().until + back + lasts
    };
    let any_is_last = jumps.clone().any(|jump| is_last(&jump));
    // What is forgotten by one clock may still count by another.
    let slewed = jumps.filter(|jump| jump.is_slewed());
    let slewed: Duration = slewed
        .map(|jump| Duration::from_nanos(jump.by.unsigned_abs()))
        .sum();
    let apart = history.clocks_differ() + slewed + SERVERS_DIFFER + history.jitter();
    let oldest = banned
        .sent
        .saturating_sub(lasts + history.set_back(Duration::ZERO));
    // Strikes are forgotten one by one: how long that lasts for those that count.
    let each = period / count;
    let spared = Duration::from_secs(1).min(each / 8);
    let (mut counted, mut number, mut last) = (Duration::ZERO, 0, after);
    for other in &history.exchanges {
        // Of requests of one moment, either may have come first.
        let is_before = other.request.id != banned.request.id && other.sent <= at;
        let is_theirs = theirs.is_some()
            && subject(other.client, ban.per) == theirs
            && (!memory || other.request.gateway == banned.request.gateway);
        if !is_before || !is_theirs || other.over() < after || !may_be_strike(history, ban, other) {
            continue;
        }
        let gateway = other.request.gateway;
        let over = match other.over().min(history.end) {
            over if history.is_outage(gateway, Span::new(other.sent, over)) => {
                history.undisturbed(gateway, over, Duration::ZERO)
            }
            over => over,
        };
        let passed = other.sent.saturating_sub(last);
        counted = counted.saturating_sub(passed - passed / 1000) + each;
        number += 1;
        last = last.max(over);
        let is_earned = counted + apart > each * (count - 1) + spared;
        if over >= oldest && (is_earned || any_is_last && number > 1) {
            return true;
        }
    }
    false
}

/// Whether a request may have been a strike.
fn may_be_strike(history: &History<'_>, ban: &Ban, exchange: &Exchange<'_>) -> bool {
    let status = exchange.answer.map(|answer| answer.status);
    if ban.strikes.on_5xx {
        let fails = exchange.request.status >= 500 || status.is_some_and(|status| status >= 500);
        return exchange.reached.is_some() && fails;
    }
    let mut uses = history
        .route(exchange)
        .into_iter()
        .flat_map(|route| &route.limits);
    let denies = |one: &LimitUse| {
        one.kind != LimitKind::SpendOnly && one.enforce && ban.strikes.limits.contains(&one.limit)
    };
    // Banned clients earn none.
    exchange.reached.is_none() && status != Some(BANNED) && uses.any(denies)
}
