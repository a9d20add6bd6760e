//! What a replay has found, to be written as text, JSON, CSV or HTML, and held to conditions.

mod coverage;
mod html;
mod text;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

use serde::Serialize;
use weir_limit::time::Timestamp;

use super::format::{Format, Names};
use super::input::LogCounts;
use super::need::{LeftOut, Measured, Need, NeedReport};
use super::pipeline::Counted;
use super::ruleset::{AccessReport, Gap, Ruleset};
use super::tally::{Changes, LimitTally, Minute, Subject, Tally, Totals};
use super::{SweepValue, percent, shown};

pub use html::html;
pub use text::{csv, write_text};

/// The result of a replay.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The configuration.
    pub config: String,
    /// What it is compared with: a configuration, `recorded` for what Weir's log says, or nothing.
    pub baseline: Option<String>,
    /// The log.
    pub log: LogReport,
    /// Outcomes of requests.
    pub requests: Totals,
    /// Requests that a limit, a ban or a list decided about.
    pub judged: u64,
    /// Whether bans or lists judge requests that no limit applies to.
    #[serde(skip)]
    judged_without_limits: bool,
    /// What routes are found by that the log does not have, and the remedy; none if it has all.
    #[serde(skip)]
    unlogged_matches: Option<String>,
    /// Outcomes in the baseline.
    pub baseline_requests: Option<Totals>,
    /// How requests fare otherwise than in the baseline.
    pub changes: Option<Changes>,
    /// How the baseline differs from what Weir's log says.
    pub fidelity: Option<Changes>,
    /// Each limit.
    pub limits: Vec<LimitReport>,
    /// The limit whose parameter was swept, by its values.
    pub sweep: Vec<SweepReport>,
    /// What bans came to.
    #[serde(flatten)]
    access: AccessReport,
    /// Rules that were not replayed, or not exactly, and why.
    pub not_replayed: Vec<Gap>,
    /// What limits the result.
    pub caveats: Vec<String>,
    /// Requests and denials over time.
    pub timeline: Vec<TimelineSpan>,
}

#[derive(Debug, Serialize)]
pub struct LogReport {
    pub format: String,
    #[serde(flatten)]
    pub counts: LogCounts,
    /// The time of the first request.
    pub from: Option<String>,
    /// The time of the last request.
    pub to: Option<String>,
    /// Lines that came too late to be put in order.
    pub late: u64,
}

#[derive(Debug, Serialize)]
pub struct LimitReport {
    pub name: String,
    pub per: Vec<String>,
    pub routes: Vec<String>,
    pub requests: u64,
    pub allowed: u64,
    pub denied: u64,
    /// Denials of a limit that is not enforced.
    pub would_deny: u64,
    /// The share of both kinds of denials, in percent.
    pub denied_percent: f64,
    /// Those that the limit of this name denied, or would have, in the baseline configuration.
    pub baseline_denied: Option<u64>,
    /// Denied by it, and not denied in the baseline; none without a baseline.
    pub newly_denied: Option<u64>,
    /// Denied by it in the baseline, and not denied.
    pub no_longer_denied: Option<u64>,
    pub subjects: u64,
    /// Those of which a request was denied, or would have been.
    pub denied_subjects: u64,
    /// The first denial, enforced or not.
    pub first_denied: Option<String>,
    /// The last denial.
    pub last_denied: Option<String>,
    pub top: Vec<SubjectReport>,
    pub need: Option<NeedReport>,
    /// Requests of subjects that were too many to be remembered.
    pub untracked: u64,
}

/// A limit with another value of a parameter.
#[derive(Debug, Serialize)]
pub struct SweepReport {
    pub parameter: &'static str,
    pub value: String,
    /// All requests that were denied, by whichever limit or ban.
    pub requests: Totals,
    pub limit: LimitReport,
}

#[derive(Debug, Serialize)]
pub struct SubjectReport {
    /// As bucket keys show it.
    pub subject: String,
    pub requests: u64,
    /// Denials, enforced or not.
    pub denied: u64,
    /// The first denial.
    pub first: String,
    /// The last denial.
    pub last: String,
}

#[derive(Clone, Debug, Serialize)]
pub struct TimelineSpan {
    pub at: String,
    pub seconds: u64,
    pub requests: u64,
    pub denied: u64,
    /// Denied in the baseline.
    pub denied_before: u64,
}

/// The input of a report.
pub struct ReportInput<'f> {
    pub config: &'f Path,
    pub baseline: Option<&'f Path>,
    pub format: &'f Format,
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
    /// What the configuration is compared with, in words.
    fn baseline_name(&self) -> &str {
        match self.baseline.as_deref() {
            Some("recorded") => "what the log says was decided",
            baseline => baseline.unwrap_or_default(),
        }
    }

    /// The report of these findings.
    pub fn new(findings: ReportInput<'_>) -> Self {
        let ReportInput {
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
        let mut not_replayed = rules.gaps.clone();
        not_replayed.extend(operator_changes(&log));
        let timeline = timeline(&counted);
        let limits = rules.limits().iter().zip(&counted.tally.limits);
        let limits = limits.map(|(limit, tally)| {
            let options = (findings.top, findings.target);
            let before = findings.baseline_rules.zip(counted.baseline.as_ref());
            LimitReport {
                baseline_denied: before
                    .and_then(|(rules, tally)| denied_by(rules, tally, limit.limit.name())),
                newly_denied: baseline.is_some().then_some(tally.newly_denied),
                no_longer_denied: baseline.is_some().then_some(tally.no_longer_denied),
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
                requests: tally.totals.with_percent(),
                limit: limit_report(limit, of_limit, options),
            })
        });
        let limits: Vec<_> = limits.collect();
        let caveats = caveats(&log, &counted, findings.is_coarse, rules, &limits);
        let judged_without_limits = rules.judges_by_access_alone();
        let totals = &counted.tally.totals;
        let unlimited = if judged_without_limits {
            0
        } else {
            totals.unlimited
        };
        Self {
            judged: totals.total - totals.unrouted - totals.refused - unlimited,
            judged_without_limits,
            unlogged_matches: rules.unlogged_matches.clone(),
            config: findings.config.display().to_string(),
            log: LogReport {
                format: findings.format.to_string(),
                from: log.span.map(|(first, _)| shown(first)),
                to: log.span.map(|(_, last)| shown(last)),
                counts: log,
                late: counted.late,
            },
            requests: counted.tally.totals.with_percent(),
            baseline_requests: counted
                .baseline
                .as_ref()
                .map(|tally| tally.totals.with_percent()),
            changes: baseline.is_some().then_some(counted.changes),
            fidelity: (counted.fidelity.compared > 0).then_some(counted.fidelity),
            baseline,
            limits,
            sweep: sweep.collect(),
            access: counted.tally.access.report(names),
            not_replayed,
            caveats,
            timeline,
        }
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
        .subjects()
        .filter(|subject| subject.denied > 0)
        .collect();
    denied.sort_by(|one, other| (other.denied, &one.key).cmp(&(one.denied, &other.key)));
    let denied_subjects = denied.len() as u64;
    let top = denied.iter().take(top).map(|subject| SubjectReport {
        subject: shown_subject(subject),
        requests: subject.requests,
        denied: subject.denied,
        first: shown(subject.span.0),
        last: shown(subject.span.1),
    });
    let would_deny = tally.denied + tally.would_deny;
    let measured = tally.gauge.as_ref().zip(tally.levels.as_ref());
    let measured = measured.map(|(gauge, levels)| Measured {
        name: limit.limit.name(),
        per,
        own: limit.limit.quota().map_or(0, |quota| quota.burst().get()),
        gauge,
        levels,
        needs: needs(tally, false),
        left_out_needs: needs(tally, true),
        left_out: left_out(tally),
        target,
    });
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
        newly_denied: None,
        no_longer_denied: None,
        subjects: tally.subjects().count() as u64,
        denied_subjects,
        first_denied: tally.first.map(shown),
        last_denied: tally.last.map(shown),
        top: top.collect(),
        need: measured.and_then(|measured| measured.report()),
        untracked: tally.untracked,
    }
}

/// A subject as its bucket's key shows it, behind the name of the limit.
fn shown_subject(subject: &Subject) -> String {
    let key = subject.key.as_deref().unwrap_or_default();
    let subject = key.split_once(':').map_or(key, |(_, subject)| subject);
    subject.to_owned()
}

/// The needs of those subjects that are left out, or of the others.
fn needs(tally: &LimitTally, are_left_out: bool) -> Vec<&Need> {
    let subjects = tally.subjects();
    let subjects = subjects.filter(|subject| subject.is_left_out() == are_left_out);
    subjects
        .filter_map(|subject| subject.need.as_ref())
        .collect()
}

/// The subjects that are left out with the most refusals.
fn left_out(tally: &LimitTally) -> Vec<LeftOut> {
    let mut all: Vec<_> = tally
        .subjects()
        .filter(|subject| subject.is_left_out())
        .collect();
    all.sort_by(|one, other| (other.refused, &one.key).cmp(&(one.refused, &other.key)));
    let shown = all.iter().take(MAX_LEFT_OUT).map(|subject| LeftOut {
        subject: shown_subject(subject),
        requests: subject.requests,
        refused: subject.refused,
    });
    shown.collect()
}

/// How many subjects that are left out are named.
const MAX_LEFT_OUT: usize = 10;

fn operator_changes(log: &LogCounts) -> Option<Gap> {
    let changes = log.operator_changes.iter();
    let changes: Vec<_> = changes
        .map(|(change, count)| format!("{change} ({count})"))
        .collect();
    (!changes.is_empty()).then(|| Gap {
        what: "changes by operators".to_owned(),
        why: format!(
            "the log has {}; a replay makes none of them, so requests of these subjects may be \
             decided otherwise than they were",
            changes.join(", ")
        ),
    })
}

/// What limits the result.
fn caveats(
    log: &LogCounts,
    counted: &Counted,
    is_coarse: bool,
    rules: &Ruleset,
    limits: &[LimitReport],
) -> Vec<String> {
    let mut all = vec![
        "Denied clients would have behaved otherwise: some wait, some try again at once. The log \
         holds what they did when they were not denied."
            .to_owned(),
        "All buckets are full when the log begins.".to_owned(),
    ];
    all.extend(client_caveats(log));
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
    let mut needs = limits.iter().filter_map(|limit| limit.need.as_ref());
    add(
        needs.any(NeedReport::has_bound),
        "\"At most\" is an upper bound of what the smallest or the suggested definition alone would \
         deny, as if denied requests took units as well; it may exceed what is denied now. Replay \
         the definition to know the number."
            .to_owned(),
    );
    all
}

/// What to keep in mind of who the clients of a log are.
pub fn client_caveats(log: &LogCounts) -> Vec<String> {
    let mut all = Vec::new();
    if log.of_proxies > 0 {
        all.push(format!(
            "{} of {} requests have one of `trusted_proxies` for a client, as their lines do not say \
             who was behind it: these count as one client for each proxy.",
            log.of_proxies, log.requests
        ));
    }
    if log.leftmost > 0 {
        all.push(format!(
            "{} requests have a list of addresses for a client, and the configuration trusts no \
             proxy: the leftmost counts, which a client can make up. With \
             `client_address.trusted_proxies` it is the one that the gateway would find.",
            log.leftmost
        ));
    }
    all
}

fn timeline(counted: &Counted) -> Vec<TimelineSpan> {
    let minutes = &counted.minutes;
    let (Some(first), Some(last)) = (minutes.keys().min(), minutes.keys().max()) else {
        return Vec::new();
    };
    let length = (last - first + 1).div_ceil(SPANS).max(1);
    let mut spans: BTreeMap<u64, Minute> = BTreeMap::new();
    for (minute, counts) in minutes {
        *spans.entry((minute - first) / length).or_default() += *counts;
    }
    let spans = (0..=(last - first) / length).map(|index| {
        let counts = spans.get(&index).copied().unwrap_or_default();
        let begin = (first + index * length).saturating_mul(60_000_000_000);
        TimelineSpan {
            at: shown(Timestamp::from_nanos(begin)),
            seconds: length * 60,
            requests: counts.requests,
            denied: counts.denied,
            denied_before: counts.denied_before,
        }
    });
    spans.collect()
}

/// Something that a replay must not come to.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    text: String,
    /// The limit whose count it is; that of all requests if there is none.
    limit: Option<String>,
    metric: Metric,
    or_equal: bool,
    threshold: f64,
    is_percent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Metric {
    Denied,
    WouldDeny,
    NewlyDenied,
    NoLongerDenied,
    Malformed,
}

const METRICS: [(&str, Metric); 5] = [
    ("denied", Metric::Denied),
    ("would_deny", Metric::WouldDeny),
    ("newly_denied", Metric::NewlyDenied),
    ("no_longer_denied", Metric::NoLongerDenied),
    ("malformed", Metric::Malformed),
];

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let malformed = || {
            let names: Vec<&str> = METRICS.iter().map(|(name, _)| *name).collect();
            format!(
                "write a count, > or >=, and a number or a percentage, such as denied>0.5% or \
                 LoginsPerAddress.denied>=10; counts are {}",
                names.join(", ")
            )
        };
        let (count, threshold) = text.split_once('>').ok_or_else(malformed)?;
        let greater = threshold.strip_prefix('=');
        let or_equal = greater.is_some();
        let threshold = greater.unwrap_or(threshold).trim();
        let percent = threshold.strip_suffix('%');
        let is_percent = percent.is_some();
        let number = percent.unwrap_or(threshold).trim_end().parse().ok();
        // A share cannot exceed 100%, so such a condition would never be met.
        let most = if is_percent { 100.0 } else { f64::MAX };
        let threshold = number.filter(|number: &f64| (0.0..=most).contains(number));
        let (limit, metric) = match count.trim().rsplit_once('.') {
            Some((limit, metric)) => (Some(limit.to_owned()), metric),
            None => (None, count.trim()),
        };
        let mut metrics = METRICS.iter();
        let metric = metrics
            .find(|(name, _)| *name == metric)
            .map(|(_, metric)| *metric);
        match (metric, threshold) {
            (Some(Metric::Malformed), _) if limit.is_some() => Err(malformed()),
            (Some(metric), Some(threshold)) => Ok(Self {
                text: text.to_owned(),
                limit,
                metric,
                or_equal,
                threshold,
                is_percent,
            }),
            _ => Err(malformed()),
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Condition {
    /// The limit whose count it is about; none if it is about all requests.
    pub fn limit(&self) -> Option<&str> {
        self.limit.as_deref()
    }

    /// What the count is, if the report has come to it.
    ///
    /// # Errors
    /// When the report has no such limit, or there is no baseline that the count needs.
    pub fn met_by(&self, report: &Report) -> Result<Option<String>, String> {
        let (count, whole) = match &self.limit {
            Some(name) => {
                let mut limits = report.limits.iter();
                let limit = limits.find(|limit| limit.name == *name);
                let limit = limit
                    .ok_or_else(|| format!("--fail-if {self}: no limit {name} is replayed"))?;
                let count = match self.metric {
                    Metric::Denied => Some(limit.denied),
                    Metric::WouldDeny => Some(limit.would_deny),
                    Metric::NewlyDenied => limit.newly_denied,
                    Metric::NoLongerDenied => limit.no_longer_denied,
                    Metric::Malformed => Some(0),
                };
                (count, limit.requests)
            }
            None => {
                let changes = report.changes.as_ref();
                let compared = changes.map_or(0, |changes| changes.compared);
                let (requests, counts) = (&report.requests, &report.log.counts);
                match self.metric {
                    Metric::Denied => (Some(requests.denied), requests.total),
                    Metric::WouldDeny => (Some(requests.would_deny), requests.total),
                    Metric::NewlyDenied => (changes.map(|changes| changes.newly_denied), compared),
                    Metric::NoLongerDenied => {
                        (changes.map(|changes| changes.no_longer_denied), compared)
                    }
                    Metric::Malformed => (Some(counts.malformed), counts.lines),
                }
            }
        };
        let count = count.ok_or_else(|| {
            format!(
                "--fail-if {self}: unknown, as the log does not say what was denied at the time; \
                 name a configuration to compare with by --baseline"
            )
        })?;
        #[expect(clippy::cast_precision_loss, reason = "a threshold is not that exact")]
        let value = match self.is_percent {
            true => percent(count, whole),
            false => count as f64,
        };
        let is_met = value > self.threshold || self.or_equal && value >= self.threshold;
        let unit = if self.is_percent { "%" } else { "" };
        Ok(is_met.then(|| format!("{self}: it is {value}{unit}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_read_and_anything_else_says_what_to_write() {
        let read: Condition = "Logins.denied >= 0.5%".parse().unwrap();
        assert_eq!(read.limit.as_deref(), Some("Logins"));
        assert_eq!(
            (read.threshold, read.is_percent, read.or_equal),
            (0.5, true, true)
        );
        for text in [
            "",
            "denied",
            "denied>",
            "denied<1",
            "denie>1",
            "denied>x%",
            "L.malformed>1",
            "denied>-1",
            "denied>==1",
            "denied>5%%",
            "denied>101%",
            "denied>inf",
            "denied>NaN",
        ] {
            let error = text.parse::<Condition>().unwrap_err();
            assert!(error.contains("denied>0.5%"), "{text}: {error}");
        }
    }
}
