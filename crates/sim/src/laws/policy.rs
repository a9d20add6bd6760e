//! `RateLimit-Policy` names what is in force: by the configuration, or by an override that an
//! operator has set, from when the docs promise that it is.

use std::time::Duration;

use super::history::{
    AROUND, Bucket, Exchange, FOREVER, History, LIST_SPREADS, Loss, Operated, Span, takes_or_denies,
};
use super::{Failure, Law};
use crate::scenario::{Act, Algorithm, OnDenied, OnFailure, Parameters, Topology};

pub(super) const LAW: Law = Law {
    name: "policy",
    promises: &[GCRA, OTHERS, OVERRIDES, TOLD],
    check,
};

const GCRA: &str = "docs/config/routes.md: In `RateLimit-Policy`, `q` is the `burst`, and `w` the number \
    of seconds, rounded up, in which an empty bucket fills";
const OTHERS: &str = "docs/config/limits.md: In `RateLimit-Policy`, `q` is then the count and `w` the \
    period in seconds";
const TOLD: &str = "docs/config/routes.md: The headers that tell a client where it stands; a route that \
    shadow-bans sends none unless it asks for them here.";
const OVERRIDES: &str = "docs/ADMIN_API.md: They are in force on the gateway that you ask when it \
    responds, and on all gateways that share the Redis within two seconds";

fn check(history: &History<'_>, failures: &mut Vec<Failure>) {
    for bucket in history.buckets() {
        let mut exchanges = bucket.exchanges.iter();
        failures.extend(exchanges.find_map(|exchange| wrong(history, &bucket, exchange)));
    }
}

fn wrong(history: &History<'_>, bucket: &Bucket<'_>, exchange: &Exchange<'_>) -> Option<Failure> {
    let answer = exchange.answer?;
    let name = &bucket.limit.name;
    let mut headers = ["ratelimit-policy", "ratelimit"].into_iter();
    if must_tell(history, bucket, exchange)
        && let Some(field) = headers.find(|header| !answer.names(header, name))
    {
        let what = format!(
            "{} passed, and {field} of its response has no {}",
            exchange.request.name(),
            bucket.name()
        );
        return Some(Failure {
            law: LAW.name,
            promise: TOLD,
            at: answer.at,
            what,
        });
    }
    let told = (
        answer.policy(name, "q")?,
        answer.policy(name, "w").unwrap_or(0),
    );
    let view = View {
        history,
        bucket,
        gateway: exchange.request.gateway,
        span: Span::new(exchange.sent, answer.at),
    };
    let due: Vec<(u64, u64)> = view
        .definitions()
        .into_iter()
        .map(|parameters| fields(bucket.limit.algorithm, parameters))
        .collect();
    let due_fields: Vec<String> = due.iter().map(|(q, w)| format!("q={q}, w={w}")).collect();
    let what = format!(
        "{} got q={}, w={} of {}, where {} is in force",
        exchange.request.name(),
        told.0,
        told.1,
        bucket.name(),
        due_fields.join(" or ")
    );
    let promise = match bucket.limit.algorithm {
        _ if !view.changes().is_empty() => OVERRIDES,
        Algorithm::Gcra => GCRA,
        _ => OTHERS,
    };
    (!due.contains(&told)).then_some(Failure {
        law: LAW.name,
        promise,
        at: answer.at,
        what,
    })
}

/// Whether the response to a request has to tell of a limit: its store has certainly let it pass.
fn must_tell(history: &History<'_>, bucket: &Bucket<'_>, exchange: &Exchange<'_>) -> bool {
    let gateway = exchange.request.gateway;
    let shows = history
        .route(exchange)
        .is_some_and(|route| route.on_denied != OnDenied::Shadow);
    let one = history.limit_use(exchange, &bucket.limit.name);
    // What takes nothing needs no store that answers.
    let takes = one.is_some_and(|one| exchange.cost(one) > 0);
    let undecided = (history.scenario.store.on_failure == OnFailure::Allow || !takes)
        && history.is_outage(gateway, exchange.span());
    let is_apps = exchange
        .answer
        .is_some_and(|answer| matches!(answer.status, 200 | 500));
    exchange.reached.is_some() && is_apps && shows && one.is_some_and(takes_or_denies) && !undecided
}

/// `q` and `w`.
fn fields(algorithm: Algorithm, parameters: Parameters) -> (u64, u64) {
    let Parameters {
        burst,
        count,
        period,
    } = parameters;
    let nanos = match algorithm {
        Algorithm::InFlight => return (count, 0),
        Algorithm::Gcra => period.as_nanos() * u128::from(burst) / u128::from(count.max(1)),
        _ => period.as_nanos(),
    };
    let seconds = nanos.div_ceil(1_000_000_000);
    (burst, u64::try_from(seconds).unwrap_or(u64::MAX))
}

/// A bucket as a gateway may see it at some time of a span.
struct View<'h> {
    history: &'h History<'h>,
    bucket: &'h Bucket<'h>,
    gateway: usize,
    span: Span,
}

impl<'h> View<'h> {
    /// What may be in force, overrides included.
    fn definitions(&self) -> Vec<Parameters> {
        let mut overrides: Vec<Option<Parameters>> = vec![None];
        let mut before = Duration::ZERO;
        for operated in self.changes() {
            let states = self.states(operated);
            let sent = operated.sent.unwrap_or(FOREVER);
            let answered = operated
                .answer
                .filter(|(_, status, _)| (200..300).contains(status));
            let answered = answered.map_or(FOREVER, |(at, ..)| at);
            // Of two that overlap, either may be the last.
            if before < sent
                && answered < FOREVER
                && self.is_known(operated, Span::new(sent, answered))
            {
                overrides.clear();
            }
            overrides.extend(states);
            before = before.max(answered);
        }
        let mut all: Vec<Parameters> = overrides.iter().copied().flatten().collect();
        if overrides.contains(&None) {
            all.extend(self.configured());
        }
        all
    }

    /// Whether the gateway knows of a change by the beginning of the span. A deletion that Redis
    /// has lost is forgotten.
    fn is_known(&self, operated: &Operated<'_>, written: Span) -> bool {
        let by = self.span.from;
        let lost = |loss: &Loss| loss.may_concern(None, written, by);
        let deletes = matches!(operated.operation.act, Act::DeleteOverride { .. });
        let asked = (operated.operation.gateway, self.gateway);
        let known = self.history.listed(asked, written, by);
        known.is_some_and(|known| known <= by) && !(deletes && self.history.losses.iter().any(lost))
    }

    /// What the operators asked for that may concern the gateway by the end of the span.
    fn changes(&self) -> Vec<&'h Operated<'h>> {
        let memory = self.history.scenario.store.topology == Topology::Memory;
        let mut changes: Vec<&Operated<'_>> = self
            .history
            .operations
            .iter()
            .filter(|operated| {
                let (Act::SetOverride { limit, subject, .. }
                | Act::DeleteOverride { limit, subject }) = &operated.operation.act
                else {
                    return false;
                };
                let sent = operated.sent.unwrap_or(FOREVER);
                // Without Redis, it is in a file that others do not read.
                let hears = !memory || operated.operation.gateway == self.gateway;
                *limit == self.bucket.limit.name
                    && *subject == self.bucket.subject
                    && hears
                    && sent <= self.span.until
            })
            .collect();
        changes.sort_by_key(|operated| operated.sent);
        changes
    }

    /// The overrides that an operation may have left at some time of the span; `None` is none.
    fn states(&self, operated: &Operated<'_>) -> Vec<Option<Parameters>> {
        let Act::SetOverride {
            parameters, length, ..
        } = &operated.operation.act
        else {
            return vec![None];
        };
        let (Some(length), Some(sent)) = (length, operated.sent) else {
            return vec![Some(*parameters)];
        };
        let history = self.history;
        let answered = operated.answer.map_or(history.end, |(at, ..)| at);
        let slack = *length / 1000 + AROUND + history.clocks_differ();
        let earlier = history.ends_earlier(Span::new(sent, answered), self.span.until);
        let may_be_over = self.span.until + slack + earlier >= sent + *length;
        let later = LIST_SPREADS + slack + history.set_back(sent);
        let follows = history
            .jumps
            .iter()
            .any(|jump| jump.span().meets(self.span));
        let is_over = self.span.from > answered + *length + later && !follows;
        match (may_be_over, is_over) {
            (_, true) => vec![None],
            (true, false) => vec![None, Some(*parameters)],
            (false, false) => vec![Some(*parameters)],
        }
    }

    /// What configurations say that may be in force.
    fn configured(&self) -> Vec<Parameters> {
        let configurations = self.history.configurations(self.gateway);
        let met = configurations.filter(|(during, _)| {
            let from = during.from.saturating_sub(AROUND);
            Span::new(from, during.until + AROUND).meets(self.span)
        });
        let limits = met.filter_map(|(_, one)| one.limit(&self.bucket.limit.name));
        limits
            .map(|limit| limit.parameters(&self.bucket.subject))
            .collect()
    }
}
