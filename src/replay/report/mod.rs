//! What a replay has found, to be written as text, JSON, CSV or HTML.

mod csv;
mod html;
mod text;

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use super::definition::Definition;
use super::line::Names;
use super::need::{Gauge, exceeded_by};
use super::partition::Counted;
use super::reading::LogCounts;
use super::ruleset::{Gap, Ruleset};
use super::sweep::SweepValue;
use super::tally::{Changes, Kind, LimitTally, Outcome, Tally};
use crate::rules::KeySource;
use crate::time::Timestamp;

pub use csv::csv;
pub use html::html;
pub use text::write_text;

/// What a replay has found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The configuration.
    pub config: String,
    /// What it is compared with: a configuration, `recorded` for what Weir's log says, or nothing.
    pub baseline: Option<String>,
    /// What the log holds.
    pub log: LogReport,
    /// What became of requests.
    pub requests: Totals,
    /// The same in the baseline.
    pub baseline_requests: Option<Totals>,
    /// How requests fare otherwise than in the baseline.
    pub changes: Option<ChangesReport>,
    /// How the baseline differs from what Weir's log says.
    pub fidelity: Option<ChangesReport>,
    /// Each limit.
    pub limits: Vec<LimitReport>,
    /// The limit whose parameter was swept, by its values.
    pub sweep: Vec<SweepReport>,
    /// Each ban that held, or would have.
    pub bans: BTreeMap<String, u64>,
    /// What was not replayed, or not exactly, and why.
    pub not_replayed: Vec<Gap>,
    /// What to keep in mind.
    pub caveats: Vec<String>,
    /// Requests and denials over time.
    pub timeline: Vec<Moment>,
}

/// What a log holds.
#[derive(Debug, Serialize)]
pub struct LogReport {
    /// Its form.
    pub format: &'static str,
    /// Its lines.
    #[serde(flatten)]
    pub counts: LogCounts,
    /// When its first request came.
    pub from: Option<String>,
    /// When its last one did.
    pub to: Option<String>,
    /// Lines that came too late to be put in order.
    pub late: u64,
}

/// What became of requests.
#[derive(Clone, Debug, Serialize)]
pub struct Totals {
    /// All.
    pub total: u64,
    /// Let through by limits and bans.
    pub allowed: u64,
    /// Of these, those that waited for their turn.
    pub delayed: u64,
    /// Let through, because the limit or ban that would deny them is not enforced.
    pub would_deny: u64,
    /// Denied by limits, bans and lists.
    pub denied: u64,
    /// The share of these, in percent.
    pub denied_percent: f64,
    /// No limit applied.
    pub unlimited: u64,
    /// No route matched.
    pub unrouted: u64,
    /// Refused before any limit was asked.
    pub refused: u64,
    /// Of clients on the block list.
    pub blocked: u64,
    /// Denied at the time by a limit that cannot be replayed, and so here.
    pub carried_over: u64,
}

/// How requests fare otherwise.
#[derive(Debug, Serialize)]
pub struct ChangesReport {
    /// Requests that were compared.
    pub compared: u64,
    /// Those with the same outcome.
    pub same: u64,
    /// Denied, and were not.
    pub newly_denied: u64,
    /// Not denied, and were.
    pub no_longer_denied: u64,
    /// Denied by another limit or ban.
    pub denied_by_another: u64,
    /// What cannot be compared.
    pub not_compared: u64,
    /// The first that differ.
    pub examples: Vec<Example>,
}

/// A request that fares otherwise.
#[derive(Debug, Serialize)]
pub struct Example {
    /// When.
    pub at: String,
    /// Of which client.
    pub client: String,
    /// Its method and path.
    pub request: String,
    /// What became of it.
    pub was: String,
    /// What becomes of it.
    pub is: String,
}

/// One limit.
#[derive(Debug, Serialize)]
pub struct LimitReport {
    /// Its name.
    pub name: String,
    /// What it is counted per.
    pub per: Vec<String>,
    /// The routes that use it.
    pub routes: Vec<String>,
    /// Requests that it was asked about.
    pub requests: u64,
    /// Those that it allowed.
    pub allowed: u64,
    /// Those that it denied.
    pub denied: u64,
    /// Those that it would have denied, were it enforced.
    pub would_deny: u64,
    /// The share of both, in percent.
    pub denied_percent: f64,
    /// Those that the limit of this name denied, or would have, in the baseline configuration.
    pub baseline_denied: Option<u64>,
    /// Denied by it, and not denied in the baseline.
    pub newly_denied: u64,
    /// Denied by it in the baseline, and not denied.
    pub no_longer_denied: u64,
    /// Its subjects.
    pub subjects: u64,
    /// Those of which a request was denied, or would have been.
    pub denied_subjects: u64,
    /// When it first denied one, or would have.
    pub first_denied: Option<String>,
    /// When it last did.
    pub last_denied: Option<String>,
    /// The subjects with the most denials.
    pub top: Vec<SubjectReport>,
    /// What its subjects need.
    pub need: Option<NeedReport>,
    /// Requests of subjects that were too many to be remembered.
    pub untracked: u64,
}

/// A limit with another value of a parameter.
#[derive(Debug, Serialize)]
pub struct SweepReport {
    /// The parameter.
    pub parameter: &'static str,
    /// Its value.
    pub value: String,
    /// All requests that were denied, by whichever limit or ban.
    pub requests: Totals,
    /// The limit.
    pub limit: LimitReport,
}

/// A subject.
#[derive(Debug, Serialize)]
pub struct SubjectReport {
    /// As bucket keys show it.
    pub subject: String,
    /// Its requests.
    pub requests: u64,
    /// Those that were denied, or would have been.
    pub denied: u64,
    /// The first of these.
    pub first: String,
    /// The last.
    pub last: String,
}

/// What the subjects of a limit need.
#[derive(Debug, Serialize)]
pub struct NeedReport {
    /// What is needed: `burst` at the limit's rate, `count` of its windows, or requests `in_flight`.
    pub of: &'static str,
    /// The subjects that were measured.
    pub subjects: u64,
    /// What half of them can do with.
    pub p50: u64,
    /// What 99 of 100 can do with.
    pub p99: u64,
    /// What the most demanding one needs.
    pub max: u64,
    /// The smallest that denies no more subjects than the target says.
    pub smallest: Promise,
    /// The target, in percent of the subjects.
    pub target_percent: f64,
    /// The suggestion.
    pub suggested: Option<Suggestion>,
}

/// A limit that would deny no more subjects than wanted.
#[derive(Clone, Debug, Serialize)]
pub struct Suggestion {
    /// Its line in `defaults.yaml`.
    pub yaml: String,
    /// Whom it denies.
    #[serde(flatten)]
    pub promise: Promise,
}

/// Whom a limit would have denied, were it the only one.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Promise {
    /// Its burst, count of windows, or requests in flight.
    pub value: u64,
    /// How many subjects it would have denied a request or more.
    pub denied_subjects: u64,
    /// The most requests that it would have denied.
    pub denied_at_most: u64,
    /// In percent of the limit's requests.
    pub denied_at_most_percent: f64,
}

/// A span of the timeline.
#[derive(Clone, Debug, Serialize)]
pub struct Moment {
    /// When it begins.
    pub at: String,
    /// Its length in seconds.
    pub seconds: u64,
    /// Requests.
    pub requests: u64,
    /// Those that were denied.
    pub denied: u64,
    /// The same in the baseline.
    pub denied_before: u64,
}

/// What a report is made of.
pub struct Findings<'f> {
    pub config: &'f Path,
    pub baseline: Option<&'f Path>,
    pub format: &'static str,
    pub rules: &'f Ruleset,
    pub baseline_rules: Option<&'f Ruleset>,
    pub names: &'f Names,
    pub log: LogCounts,
    pub counted: Counted,
    /// The rules of each variant, and the value that makes it.
    pub variants: &'f [(SweepValue, Ruleset)],
    /// The limit that they are of.
    pub swept: Option<&'f str>,
    /// How many subjects of each limit are listed.
    pub top: usize,
    /// The share of a limit's subjects that a suggestion may deny.
    pub target: f64,
    /// Whether times of the log are of whole seconds.
    pub is_coarse: bool,
}

/// The most spans of a timeline.
const SPANS: u64 = 120;

impl Report {
    /// The report of these findings.
    pub fn new(findings: Findings<'_>) -> Self {
        let Findings {
            rules,
            names,
            log,
            counted,
            ..
        } = findings;
        let has_recorded = counted.changes.compared > 0;
        let baseline = match findings.baseline {
            Some(path) => Some(path.display().to_string()),
            None => has_recorded.then(|| "recorded".to_owned()),
        };
        let caveats = caveats(&log, &counted, findings.is_coarse, rules);
        let timeline = timeline(&counted);
        let changes = baseline
            .is_some()
            .then(|| ChangesReport::new(&counted.changes, names));
        let fidelity =
            (counted.fidelity.compared > 0).then(|| ChangesReport::new(&counted.fidelity, names));
        let limits = rules.limits().iter().zip(&counted.tally.limits);
        let limits = limits.map(|(limit, tally)| {
            let options = (findings.top, findings.target);
            let before = findings.baseline_rules.zip(counted.baseline.as_ref());
            LimitReport {
                baseline_denied: before
                    .and_then(|(rules, tally)| denied_by(rules, tally, limit.limit.name())),
                ..limit_report(limit, tally, options)
            }
        });
        let options = (findings.top, findings.target);
        let variants = findings.variants.iter().zip(&counted.variants);
        let sweep = variants.filter_map(|((value, rules), tally)| {
            let name = findings.swept?;
            let mut limits = rules.limits().iter().zip(&tally.limits);
            let (limit, of_limit) = limits.find(|(limit, _)| limit.limit.name() == name)?;
            Some(SweepReport {
                parameter: value.parameter(),
                value: value.shown(),
                requests: Totals::new(tally),
                limit: limit_report(limit, of_limit, options),
            })
        });
        let bans = counted.tally.bans.iter();
        let bans = bans.map(|(ban, held)| (names.name(*ban).to_owned(), *held));
        Self {
            config: findings.config.display().to_string(),
            baseline,
            log: LogReport {
                format: findings.format,
                from: log.span.map(|(first, _)| shown(first)),
                to: log.span.map(|(_, last)| shown(last)),
                counts: log,
                late: counted.late,
            },
            requests: Totals::new(&counted.tally),
            baseline_requests: counted.baseline.as_ref().map(Totals::new),
            changes,
            fidelity,
            limits: limits.collect(),
            sweep: sweep.collect(),
            bans: bans.collect(),
            not_replayed: rules.gaps.clone(),
            caveats,
            timeline,
        }
    }
}

impl Totals {
    fn new(tally: &Tally) -> Self {
        Self {
            total: tally.requests,
            allowed: tally.allowed,
            delayed: tally.delayed,
            would_deny: tally.would_deny,
            denied: tally.denied,
            denied_percent: percent(tally.denied, tally.requests),
            unlimited: tally.unlimited,
            unrouted: tally.unrouted,
            refused: tally.refused,
            blocked: tally.blocked,
            carried_over: tally.carried_over,
        }
    }
}

impl ChangesReport {
    fn new(changes: &Changes, names: &Names) -> Self {
        let examples = changes.examples.iter().map(|difference| Example {
            at: shown(difference.at),
            client: difference.client.to_string(),
            request: difference.request.clone(),
            was: outcome(difference.was, names),
            is: outcome(difference.is, names),
        });
        Self {
            compared: changes.compared,
            same: changes.same,
            newly_denied: changes.newly_denied,
            no_longer_denied: changes.no_longer_denied,
            denied_by_another: changes.denied_by_another,
            not_compared: changes.not_compared,
            examples: examples.collect(),
        }
    }
}

fn outcome(outcome: Outcome, names: &Names) -> String {
    let kind = match outcome.kind {
        Kind::Passes => return "passes".to_owned(),
        Kind::WouldDeny => "would be denied",
        Kind::Denied => "denied",
    };
    match outcome.by {
        Some(name) => format!("{kind} by {}", names.name(name)),
        None => kind.to_owned(),
    }
}

/// What the limit of this name denied, or would have.
fn denied_by(rules: &Ruleset, tally: &Tally, name: &str) -> Option<u64> {
    let mut limits = rules.limits().iter();
    let number = limits.position(|limit| limit.limit.name() == name)?;
    let tally = tally.limits.get(number)?;
    Some(tally.denied + tally.would_deny)
}

fn limit_report(
    limit: &super::ruleset::ReplayedLimit,
    tally: &LimitTally,
    (top, target): (usize, f64),
) -> LimitReport {
    let per = limit.limit.per();
    let mut denied: Vec<_> = tally
        .subjects
        .values()
        .filter(|subject| subject.denied > 0)
        .collect();
    denied.sort_by(|one, other| (other.denied, &one.key).cmp(&(one.denied, &other.key)));
    let denied_subjects = denied.len() as u64;
    let prefix = |key: &str| {
        let subject = key.split_once(':').map_or(key, |(_, subject)| subject);
        subject.to_owned()
    };
    let top = denied.iter().take(top).map(|subject| SubjectReport {
        subject: subject.key.as_deref().map(prefix).unwrap_or_default(),
        requests: subject.requests,
        denied: subject.denied,
        first: shown(subject.span.0),
        last: shown(subject.span.1),
    });
    let would_deny = tally.denied + tally.would_deny;
    LimitReport {
        name: limit.limit.name().to_owned(),
        per: per.iter().map(ToString::to_string).collect(),
        routes: limit.routes.iter().map(ToString::to_string).collect(),
        requests: tally.requests,
        allowed: tally.allowed,
        denied: tally.denied,
        would_deny: tally.would_deny,
        denied_percent: percent(would_deny, tally.requests),
        baseline_denied: None,
        newly_denied: tally.newly_denied,
        no_longer_denied: tally.no_longer_denied,
        subjects: tally.subjects.len() as u64,
        denied_subjects,
        first_denied: tally.first.map(shown),
        last_denied: tally.last.map(shown),
        top: top.collect(),
        need: need_report(limit.limit.name(), per, tally, target),
        untracked: tally.untracked,
    }
}

/// What the subjects of a limit need; none where nothing was measured.
pub fn need_report(
    name: &str,
    per: &[KeySource],
    tally: &LimitTally,
    target: f64,
) -> Option<NeedReport> {
    let gauge = tally.gauge.as_ref()?;
    let own = gauge.own();
    let needs = needs(tally, own);
    if needs.is_empty() {
        return None;
    }
    Some(NeedReport {
        of: match gauge {
            Gauge::Rates(..) => "burst",
            Gauge::Windows(_) => "count",
            Gauge::InFlight => "in_flight",
        },
        subjects: needs.len() as u64,
        p50: exceeded_by(&needs, 0.5).0,
        p99: exceeded_by(&needs, 0.01).0,
        max: exceeded_by(&needs, 0.0).0,
        smallest: promise(tally, own, target)?,
        target_percent: target * 100.0,
        suggested: suggestion(name, per, tally, gauge, target),
    })
}

/// What each subject needs at a rate, in order.
fn needs(tally: &LimitTally, rate: usize) -> Vec<u64> {
    let subjects = tally.subjects.values();
    let needs = subjects.filter_map(|subject| Some(subject.need.as_ref()?.most(rate)));
    let mut needs: Vec<u64> = needs.collect();
    needs.sort_unstable();
    needs
}

/// The smallest burst or count that denies no more than this share of the subjects, at a rate.
fn promise(tally: &LimitTally, rate: usize, target: f64) -> Option<Promise> {
    let (value, denied_subjects) = exceeded_by(&needs(tally, rate), target);
    let value = value.max(1);
    let levels = tally.levels.get(rate)?;
    let denied_at_most = if denied_subjects == 0 {
        0
    } else {
        levels.above(value)
    };
    Some(Promise {
        value,
        denied_subjects: denied_subjects as u64,
        denied_at_most,
        denied_at_most_percent: percent(denied_at_most, levels.requests()),
    })
}

/// The smallest rate at which the burst that is needed comes back within its period.
fn suggestion(
    name: &str,
    per: &[KeySource],
    tally: &LimitTally,
    gauge: &Gauge,
    target: f64,
) -> Option<Suggestion> {
    let (definition, promise) = match gauge {
        Gauge::Rates(rates, _) => {
            let all = rates.iter().enumerate();
            let mut all = all.filter_map(|(index, (rate, _))| {
                let promise = promise(tally, index, target)?;
                Some((*rate, promise))
            });
            let mut last = all.next()?;
            while last.1.value > last.0.count {
                let Some(next) = all.next() else { break };
                last = next;
            }
            let (rate, promise) = last;
            let burst = promise.value;
            (Definition::Rate { burst, rate }, promise)
        }
        Gauge::Windows(wide) => {
            let promise = promise(tally, 0, target)?;
            let (count, like) = (promise.value, wide.quota);
            (Definition::Windows { count, like }, promise)
        }
        Gauge::InFlight => {
            let promise = promise(tally, 0, target)?;
            (Definition::InFlight(promise.value), promise)
        }
    };
    Some(Suggestion {
        yaml: definition.yaml(name, per),
        promise,
    })
}

/// What to keep in mind.
fn caveats(log: &LogCounts, counted: &Counted, is_coarse: bool, rules: &Ruleset) -> Vec<String> {
    let mut all = vec![
        "Denied clients would have behaved otherwise: some wait, some try again at once. The log \
         holds what they did when they were not denied."
            .to_owned(),
        "All buckets are full when the log begins.".to_owned(),
    ];
    let mut add = |is_so: bool, text: String| all.extend(is_so.then_some(text));
    add(
        is_coarse,
        "The times of this log are of whole seconds. The requests of a second are spread evenly over \
         it, so bursts within a second are not seen."
            .to_owned(),
    );
    add(
        log.denied_elsewhere > 0,
        format!(
            "{} requests have the status 429: something else denied them, and they count as if an \
             upstream had answered so.",
            log.denied_elsewhere
        ),
    );
    add(
        counted.late > 0,
        format!(
            "{} lines stood too far behind requests that came later, and were replayed late; a \
             longer --window puts more of them in order.",
            counted.late
        ),
    );
    add(
        counted.tally.evicted > 0,
        format!(
            "{} buckets were evicted before they were full, as there were more subjects than \
             store.memory.max_buckets allows.",
            counted.tally.evicted
        ),
    );
    let store = &rules.settings().process.store;
    add(
        store.is_shared(),
        "The configuration's store is Redis. Buckets are replayed as if it were always in reach, and \
         no units were prefetched."
            .to_owned(),
    );
    all
}

fn timeline(counted: &Counted) -> Vec<Moment> {
    let minutes = &counted.minutes;
    let (Some(first), Some(last)) = (minutes.keys().min(), minutes.keys().max()) else {
        return Vec::new();
    };
    let length = (last - first + 1).div_ceil(SPANS).max(1);
    let mut spans: BTreeMap<u64, super::tally::Minute> = BTreeMap::new();
    for (minute, counts) in minutes {
        let span = spans.entry((minute - first) / length).or_default();
        span.requests += counts.requests;
        span.denied += counts.denied;
        span.denied_before += counts.denied_before;
    }
    let spans = (0..=(last - first) / length).map(|index| {
        let counts = spans.get(&index).copied().unwrap_or_default();
        let begin = (first + index * length).saturating_mul(60_000_000_000);
        Moment {
            at: shown(Timestamp::from_nanos(begin)),
            seconds: length * 60,
            requests: counts.requests,
            denied: counts.denied,
            denied_before: counts.denied_before,
        }
    });
    spans.collect()
}

/// A time, to the millisecond.
pub fn shown(time: Timestamp) -> String {
    let nanos = i128::from(time.as_nanos());
    let time = jiff::Timestamp::from_nanosecond(nanos).unwrap_or_default();
    format!("{time:.3}")
}

/// A part of a whole in percent, to a thousandth.
pub fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    #[expect(clippy::cast_precision_loss, reason = "it is rounded anyhow")]
    let percent = part as f64 * 100.0 / whole as f64;
    (percent * 1000.0).round() / 1000.0
}
