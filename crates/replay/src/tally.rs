//! What a replay counts. Each partition counts for itself, and all are added up in the end.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::AddAssign;

use serde::{Serialize, Serializer};
use weir_limit::time::Timestamp;
use weir_telemetry::Disposition;

use super::format::{Name, Names};
use super::need::{Gauge, LevelsByRate, Need};
use super::ruleset::AccessTally;
use super::{percent, shown};

/// Subjects that are remembered of each limit, in all partitions together. Further ones are decided
/// about, but nothing is known of their needs.
pub const MAX_SUBJECTS: usize = 1_000_000;

/// What became of a request, as far as two replays are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub kind: OutcomeKind,
    pub by: Option<Name>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OutcomeKind {
    /// It was let through.
    Passes,
    /// It was let through, and would not have been, were all limits and bans enforced.
    WouldDeny,
    /// It was denied, by a limit, a ban or a list.
    Denied,
}

impl Outcome {
    pub const PASSES: Self = Self {
        kind: OutcomeKind::Passes,
        by: None,
    };

    /// The outcome that a decision of a limit or ban of this name comes to.
    pub fn new(decision: Disposition, by: Option<Name>) -> Self {
        let kind = match decision {
            denied if denied.is_denied() => OutcomeKind::Denied,
            Disposition::WouldDeny => OutcomeKind::WouldDeny,
            _ => return Self::PASSES,
        };
        Self { kind, by }
    }

    pub fn is_denied(self) -> bool {
        self.kind == OutcomeKind::Denied
    }

    pub fn shown(self, names: &Names) -> String {
        let kind = match self.kind {
            OutcomeKind::Passes => return "passes".to_owned(),
            OutcomeKind::WouldDeny => "would be denied",
            OutcomeKind::Denied => "denied",
        };
        match self.by {
            Some(name) => format!("{kind} by {}", names.name(name)),
            None => kind.to_owned(),
        }
    }
}

/// How many requests had which outcome.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Totals {
    pub total: u64,
    pub allowed: u64,
    /// The part of `allowed` that was delayed.
    pub delayed: u64,
    /// Let through, because the limit or ban that would deny them is not enforced.
    pub would_deny: u64,
    /// Denied by limits, bans and lists.
    pub denied: u64,
    /// The share of `denied`, in percent; 0 before the replay is over.
    pub denied_percent: f64,
    pub unlimited: u64,
    pub unrouted: u64,
    /// Refused before any limit was asked.
    pub refused: u64,
    /// Of clients on the block list.
    pub blocked: u64,
    /// Denied at the time by a limit that cannot be replayed, and so here.
    pub carried_over: u64,
}

/// The counts of one replay.
#[derive(Debug, Default)]
pub struct Tally {
    pub totals: Totals,
    /// Decisions of each limit, by its number.
    pub limits: Vec<LimitTally>,
    pub access: AccessTally,
    /// Buckets that were evicted before they were full.
    pub evicted: u64,
}

/// The decisions of one limit.
#[derive(Debug, Default)]
pub struct LimitTally {
    pub requests: u64,
    pub allowed: u64,
    pub denied: u64,
    /// Denials of a limit that is not enforced.
    pub would_deny: u64,
    /// The first denial.
    pub first: Option<Timestamp>,
    /// The last denial.
    pub last: Option<Timestamp>,
    /// Of those that it denied as the strictest, how many passed in the baseline.
    pub newly_denied: u64,
    /// Of those that it denied in the baseline as the strictest, how many pass.
    pub no_longer_denied: u64,
    /// How the needs of its subjects are measured; none where they are not.
    pub gauge: Option<Gauge>,
    /// How many requests found which level, by rate.
    pub levels: Option<LevelsByRate>,
    subjects: Subjects,
    /// The subjects of other partitions. None is in two of them, and to put all into one map would
    /// take the memory of both.
    others: Vec<Subjects>,
    /// Requests of subjects that are not remembered, as there were too many.
    pub untracked: u64,
    most_subjects: usize,
}

/// By hashes of the subjects' keys.
type Subjects = HashMap<u64, Subject, BuildHasherDefault<Hashed>>;

/// From this many requests on that were refused, and more than half of all, a subject's needs are no
/// measure of what is normal: it guesses passwords, or is under a ban.
const MIN_REFUSED: u32 = 5;

#[derive(Debug)]
pub struct Subject {
    pub requests: u64,
    /// Requests that were refused, denied or kept out at the time.
    pub refused: u32,
    /// Denials, enforced or not.
    pub denied: u64,
    /// The times of the first and the last denial.
    pub span: (Timestamp, Timestamp),
    /// Set by the first denial, or as many refusals as it takes to be left out.
    pub key: Option<Box<str>>,
    pub need: Option<Need>,
}

pub struct Decided<'k> {
    pub key: &'k str,
    pub hash: u64,
    pub cost: std::num::NonZeroU64,
    pub disposition: Disposition,
    pub at: Timestamp,
    pub ended: Timestamp,
    /// Whether the subject's needs are to be measured: it is not overridden, and the request
    /// counts.
    pub is_measured: bool,
    /// Whether it was refused, denied or kept out at the time.
    pub was_refused: bool,
}

impl Subject {
    /// Whether most of its requests were refused.
    pub fn is_left_out(&self) -> bool {
        self.refused >= MIN_REFUSED && u64::from(self.refused) * 2 > self.requests
    }
}

impl LimitTally {
    /// Nothing so far, of a limit whose subjects may be this many.
    pub fn new(gauge: Option<Gauge>, most_subjects: usize) -> Self {
        Self {
            levels: gauge.as_ref().map(Gauge::levels),
            gauge,
            most_subjects,
            ..Self::default()
        }
    }

    pub fn decided(&mut self, decided: &Decided<'_>) {
        self.requests += 1;
        match decided.disposition {
            Disposition::Denied => self.denied += 1,
            Disposition::WouldDeny => self.would_deny += 1,
            _ => self.allowed += 1,
        }
        let is_denied = matches!(
            decided.disposition,
            Disposition::Denied | Disposition::WouldDeny
        );
        if is_denied {
            self.first.get_or_insert(decided.at);
            self.last = Some(decided.at);
        }
        if self.subjects.len() >= self.most_subjects && !self.subjects.contains_key(&decided.hash) {
            self.untracked += 1;
            return;
        }
        let subject = self
            .subjects
            .entry(decided.hash)
            .or_insert_with(|| Subject {
                requests: 0,
                refused: 0,
                denied: 0,
                span: (decided.at, decided.at),
                key: None,
                need: None,
            });
        subject.requests += 1;
        subject.refused = subject.refused.saturating_add(decided.was_refused.into());
        let is_named = is_denied || subject.refused >= MIN_REFUSED;
        if is_named && subject.key.is_none() {
            subject.key = Some(decided.key.into());
        }
        if is_denied {
            if subject.denied == 0 {
                subject.span.0 = decided.at;
            }
            subject.denied += 1;
            subject.span.1 = decided.at;
        }
        if let (Some(gauge), Some(levels), true) =
            (&self.gauge, &mut self.levels, decided.is_measured)
        {
            let need = subject.need.get_or_insert_with(|| gauge.nothing());
            gauge.take(need, decided.cost, decided.at, decided.ended, levels);
        }
    }

    fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.allowed += other.allowed;
        self.denied += other.denied;
        self.would_deny += other.would_deny;
        self.newly_denied += other.newly_denied;
        self.no_longer_denied += other.no_longer_denied;
        self.untracked += other.untracked;
        self.first = [self.first, other.first].into_iter().flatten().min();
        self.last = self.last.max(other.last);
        if let (Some(levels), Some(more)) = (&mut self.levels, &other.levels) {
            levels.add(more);
        }
        self.others.push(other.subjects);
        self.others.extend(other.others);
    }

    pub fn subjects(&self) -> impl Iterator<Item = &Subject> {
        let all = std::iter::once(&self.subjects).chain(&self.others);
        all.flat_map(Subjects::values)
    }
}

impl Totals {
    /// The totals with the share of denials.
    pub fn with_percent(&self) -> Self {
        Self {
            denied_percent: percent(self.denied, self.total),
            ..self.clone()
        }
    }

    /// Counts a request by its final decision.
    pub fn decided(&mut self, decision: Disposition) {
        self.total += 1;
        match decision {
            Disposition::Allowed => self.allowed += 1,
            Disposition::Delayed => {
                self.allowed += 1;
                self.delayed += 1;
            }
            Disposition::WouldDeny => self.would_deny += 1,
            Disposition::Unrouted => self.unrouted += 1,
            Disposition::Unlimited => self.unlimited += 1,
            _ => self.denied += 1,
        }
    }

    fn add(&mut self, other: &Self) {
        self.total += other.total;
        self.allowed += other.allowed;
        self.delayed += other.delayed;
        self.would_deny += other.would_deny;
        self.denied += other.denied;
        self.unlimited += other.unlimited;
        self.unrouted += other.unrouted;
        self.refused += other.refused;
        self.blocked += other.blocked;
        self.carried_over += other.carried_over;
    }
}

impl Tally {
    pub fn add(&mut self, other: Self) {
        self.totals.add(&other.totals);
        self.evicted += other.evicted;
        self.access.add(other.access);
        if self.limits.is_empty() {
            self.limits = other.limits;
            return;
        }
        for (limit, more) in self.limits.iter_mut().zip(other.limits) {
            limit.add(more);
        }
    }
}

/// How two outcomes of the same requests differ.
#[derive(Debug, Default, Serialize)]
pub struct Changes {
    pub compared: u64,
    /// The same outcome, by the same limit or ban.
    pub same: u64,
    pub newly_denied: u64,
    pub no_longer_denied: u64,
    /// Those that are denied as they were, by another limit or ban.
    pub denied_by_another: u64,
    /// What the log does not say the outcome of, or not one that can be compared.
    pub not_compared: u64,
    /// The first requests that differ.
    pub examples: Vec<Example>,
}

/// A request whose outcomes differ.
#[derive(Debug, Serialize)]
pub struct Example {
    #[serde(serialize_with = "as_shown")]
    pub at: Timestamp,
    pub client: std::net::IpAddr,
    /// Method and path.
    pub request: String,
    /// The outcome before.
    pub was: String,
    /// The outcome now.
    pub is: String,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn as_shown<S: Serializer>(time: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&shown(*time))
}

const EXAMPLES: usize = 10;

impl Changes {
    /// Compares two outcomes; `example` describes the request.
    pub fn compare(&mut self, was: Outcome, is: Outcome, example: impl FnOnce() -> Example) {
        self.compared += 1;
        if was == is {
            self.same += 1;
            return;
        }
        match (was.is_denied(), is.is_denied()) {
            (false, true) => self.newly_denied += 1,
            (true, false) => self.no_longer_denied += 1,
            (true, true) => self.denied_by_another += 1,
            (false, false) => {}
        }
        if self.examples.len() < EXAMPLES {
            self.examples.push(example());
        }
    }

    pub fn add(&mut self, other: Self) {
        self.compared += other.compared;
        self.same += other.same;
        self.newly_denied += other.newly_denied;
        self.no_longer_denied += other.no_longer_denied;
        self.denied_by_another += other.denied_by_another;
        self.not_compared += other.not_compared;
        self.examples.extend(other.examples);
        self.examples.sort_by_key(|example| example.at);
        self.examples.truncate(EXAMPLES);
    }
}

/// Requests and denials in a minute.
#[derive(Clone, Copy, Debug, Default)]
pub struct Minute {
    pub requests: u64,
    pub denied: u64,
    /// Denied in the baseline.
    pub denied_before: u64,
}

impl AddAssign for Minute {
    fn add_assign(&mut self, other: Self) {
        self.requests += other.requests;
        self.denied += other.denied;
        self.denied_before += other.denied_before;
    }
}

/// The hasher of keys that are hashes already.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}
