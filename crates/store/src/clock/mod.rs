//! The time by which decisions are taken.
//!
//! Gateways share buckets that hold points in time, so they have to agree on the time. A
//! [`StoreClock`] tells the time of the store: this machine's monotonic time and an offset that
//! every answer of the store to the question for its time corrects. The question and its answer
//! bound the offset: it cannot be off by more than half of what they took.
//!
//! A small correction is slewed: the clock runs a tenth faster or slower until it is made, so it
//! never steps back. A difference beyond [`CLOCK_BOUND`] is no drift: the store's clock was set, or
//! another server has taken over. Other gateways see the same, so the clock is set at once, as soon
//! as the difference has lasted for a second.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering, fence};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use weir_limit::CLOCK_BOUND;
use weir_limit::time::{Clock, SystemClock, Timestamp};
use weir_runtime::loop_time;

const SECOND: i64 = 1_000_000_000;

/// The slew rate: time runs faster or slower by a tenth of itself.
const SLEW: i64 = 10;

/// By what part of its age a measurement becomes less certain: 100 ppm, as much as two quartz
/// clocks may drift apart.
const DRIFT: i64 = 10_000;

/// How much two measurements of one clock may contradict each other: the store's answer has a
/// resolution, and its machine may slew its own clock.
const JITTER: i64 = SECOND / 1_000;

/// How long a difference beyond the bound has to last before the clock is set.
const CONFIRMED_AFTER: i64 = SECOND;

/// How long it may take until all gateways have noticed that the store's clock was set.
const SETTLED_AFTER: i64 = 5 * SECOND;

/// How many measurements are remembered. The best of them counts.
const SAMPLES: usize = 8;

/// Whose time decisions are taken in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ClockSource {
    /// The store's, which all gateways share.
    #[default]
    Store,
    /// This machine's.
    Local,
}

/// The clock by which a remote store's buckets are decided, as the connections to one of its
/// servers see it.
#[derive(Clone)]
pub struct DecisionClock {
    local: Arc<dyn Clock>,
    /// The store's, if that is the one.
    followed: Option<Arc<StoreClock>>,
    /// The server, if the store has several.
    node: Option<Arc<str>>,
}

impl DecisionClock {
    /// The clock of this machine, or one that follows the store's.
    pub fn new(source: ClockSource) -> Self {
        match source {
            ClockSource::Local => Self::local(Arc::new(SystemClock)),
            ClockSource::Store => Self::following(Arc::new(SystemClock)),
        }
    }

    /// A clock of this machine. A gateway does not use a store whose clock differs by more than two
    /// seconds.
    pub fn local(clock: Arc<dyn Clock>) -> Self {
        Self {
            local: clock,
            followed: None,
            node: None,
        }
    }

    /// The store's clock, where this machine has this one.
    pub fn following(local: Arc<dyn Clock>) -> Self {
        Self {
            followed: Some(Arc::new(StoreClock::new(Arc::clone(&local)))),
            local,
            node: None,
        }
    }

    /// The same clock, measured by this one of the store's servers.
    #[must_use]
    pub fn of_node(&self, name: Arc<str>) -> Self {
        Self {
            node: Some(name),
            ..self.clone()
        }
    }

    /// Follows this one of the store's servers from now on, and no other.
    pub fn refer_to(&self, name: &Arc<str>) {
        if let Some(clock) = &self.followed {
            let mut reference = clock.reference.lock();
            if reference.as_ref() != Some(name) {
                *reference = Some(Arc::clone(name));
            }
        }
    }

    /// The clock for those that do not measure it.
    pub fn to_shared(&self) -> Arc<dyn Clock> {
        match &self.followed {
            Some(clock) => Arc::clone(clock) as _,
            None => Arc::clone(&self.local),
        }
    }

    /// The server, if the store has several.
    pub fn node(&self) -> Option<&str> {
        self.node.as_deref()
    }

    /// Whether the store's clock is this server's.
    pub fn is_reference(&self) -> bool {
        let (Some(clock), Some(node)) = (&self.followed, &self.node) else {
            return true;
        };
        let reference = clock.reference.lock();
        reference.as_ref().is_none_or(|reference| reference == node)
    }

    /// Whether decisions are taken in the store's time.
    pub fn follows_store(&self) -> bool {
        self.followed.is_some()
    }

    /// What this machine takes the time for.
    pub fn local_now(&self) -> Timestamp {
        self.local.now()
    }

    /// The server had this time while it was asked: from `began` on, for as long as it took to
    /// answer. Returns by how many seconds the clock was set, if it was and not for the first time.
    pub fn measured(&self, began: Instant, took: Duration, store: Timestamp) -> Option<f64> {
        let clock = self.followed.as_ref().filter(|_| self.is_reference());
        clock.and_then(|clock| clock.measured(began, took, store))
    }

    /// The server does not tell its time: what was measured last stays, or this machine's stands in
    /// for it.
    pub fn unknown(&self) -> Option<f64> {
        let clock = self.followed.as_ref().filter(|_| self.is_reference());
        clock.and_then(|clock| clock.follow_local())
    }

    /// By how many seconds it is ahead of the store's clock because it is being slewed; negative
    /// when it is behind.
    pub fn slew(&self) -> f64 {
        self.followed.as_ref().map_or(0.0, |clock| clock.slew())
    }

    /// Whether all gateways tell the same time, for all this one knows: not when the clock was set,
    /// nor when it has just begun to follow the store's. Until they do, what one takes for a
    /// leftover may be another's debt.
    pub fn is_settled(&self) -> bool {
        self.followed
            .as_ref()
            .is_none_or(|clock| clock.is_settled())
    }
}

impl Clock for DecisionClock {
    fn now(&self) -> Timestamp {
        match &self.followed {
            Some(clock) => clock.now(),
            None => self.local.now(),
        }
    }
}

/// Tells the time of a store: one for all connections of a process.
///
/// Until the store's time was measured for the first time it tells the local time.
pub struct StoreClock {
    local: Arc<dyn Clock>,
    epoch: Instant,
    correction: SharedCorrection,
    sync: Mutex<ClockSync>,
    /// Whether the store has ever told its time.
    was_told: AtomicBool,
    /// Which of the store's servers is followed; none if it has one.
    reference: Mutex<Option<Arc<str>>>,
}

impl StoreClock {
    /// A clock that tells the time of `local` until the store's is known.
    pub fn new(local: Arc<dyn Clock>) -> Self {
        Self {
            local,
            epoch: Instant::now(),
            correction: SharedCorrection::default(),
            sync: Mutex::default(),
            was_told: AtomicBool::new(false),
            reference: Mutex::default(),
        }
    }

    /// The store had this time while it was asked: from `began` on, for as long as it took to
    /// answer. Returns by how many seconds the clock was set, if it was and not for the first time.
    pub fn measured(&self, began: Instant, took: Duration, store: Timestamp) -> Option<f64> {
        let uncertainty = nanos(took / 2);
        let at = nanos(began.saturating_duration_since(self.epoch)).saturating_add(uncertainty);
        self.was_told.store(true, Ordering::Relaxed);
        self.correct(at, uncertainty, store)
    }

    /// The store does not tell its time. One that did tell it has a time still, which gateways
    /// share; their local times they do not.
    pub fn follow_local(&self) -> Option<f64> {
        if self.was_told.load(Ordering::Relaxed) {
            return None;
        }
        let (at, local) = (self.reading(), self.local.now());
        self.correct(at, 0, local)
    }

    /// By how many seconds the clock is ahead of the store's by the last measurements, because it
    /// is being slewed; negative when it is behind.
    pub fn slew(&self) -> f64 {
        let slew = self.correction.load().map_or(0, |correction| {
            correction.at(self.reading()) - correction.offset
        });
        seconds(slew)
    }

    fn correct(&self, at: i64, uncertainty: i64, store: Timestamp) -> Option<f64> {
        let store = i64::try_from(store.as_nanos()).unwrap_or(i64::MAX);
        let sample = Sample {
            at,
            offset: store.saturating_sub(at),
            uncertainty,
        };
        let mut sync = self.sync.lock();
        let stepped = sync.measured(sample, self.reading());
        if let Some(correction) = sync.correction {
            self.correction.store(correction);
        }
        stepped.map(seconds)
    }

    fn is_settled(&self) -> bool {
        let stepped_at = self.sync.lock().stepped_at;
        stepped_at.is_none_or(|at| self.reading() - at >= SETTLED_AFTER)
    }

    /// Monotonic time: nanoseconds since the clock was made.
    fn reading(&self) -> i64 {
        nanos(self.epoch.elapsed())
    }
}

impl Clock for StoreClock {
    fn now(&self) -> Timestamp {
        let Some(correction) = self.correction.load() else {
            return self.local.now();
        };
        // Decisions within one poll share a reading.
        let since = loop_time::now().saturating_duration_since(self.epoch);
        let reading = nanos(since);
        let now = reading.saturating_add(correction.at(reading));
        // A store whose clock is set before 1970 has 1970.
        Timestamp::from_nanos(u64::try_from(now).unwrap_or(0))
    }
}

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

fn seconds(nanos: i64) -> f64 {
    let seconds = Duration::from_nanos(nanos.unsigned_abs()).as_secs_f64();
    if nanos < 0 { -seconds } else { seconds }
}

/// What is added to a monotonic reading: an offset, and what is left to slew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Correction {
    /// The store's time less the reading.
    offset: i64,
    /// The reading at which the clock has no more to slew; negative if it is behind until then.
    slewed_at: i64,
}

impl Correction {
    const fn at(self, reading: i64) -> i64 {
        let left = self.slewed_at.saturating_abs().saturating_sub(reading);
        let left = if left > 0 { left / SLEW } else { 0 };
        if self.slewed_at < 0 {
            self.offset.saturating_sub(left)
        } else {
            self.offset.saturating_add(left)
        }
    }

    /// A correction that equals this one at this reading, and slews to an offset from then on.
    const fn slewed_to(self, offset: i64, reading: i64) -> Self {
        let ahead = self.at(reading).saturating_sub(offset);
        let slewed_at = reading.saturating_add(ahead.saturating_abs().saturating_mul(SLEW));
        Self {
            offset,
            slewed_at: if ahead < 0 { -slewed_at } else { slewed_at },
        }
    }

    const fn set_to(offset: i64) -> Self {
        Self {
            offset,
            slewed_at: 0,
        }
    }
}

/// A correction that is read without a lock. The next one is written beside the one that is being
/// read, and a reader that was overtaken reads again.
#[derive(Debug, Default)]
struct SharedCorrection {
    /// How many corrections there were. The last is in the slot of its parity.
    version: AtomicU64,
    even: CorrectionSlot,
    odd: CorrectionSlot,
}

#[derive(Debug, Default)]
struct CorrectionSlot {
    offset: AtomicI64,
    slewed_at: AtomicI64,
}

impl SharedCorrection {
    const fn slot(&self, version: u64) -> &CorrectionSlot {
        if version.is_multiple_of(2) {
            &self.even
        } else {
            &self.odd
        }
    }

    /// The last correction; none if there was none.
    fn load(&self) -> Option<Correction> {
        loop {
            let version = self.version.load(Ordering::Acquire);
            if version == 0 {
                return None;
            }
            let slot = self.slot(version);
            let correction = Correction {
                offset: slot.offset.load(Ordering::Relaxed),
                slewed_at: slot.slewed_at.load(Ordering::Relaxed),
            };
            fence(Ordering::Acquire);
            if self.version.load(Ordering::Relaxed) == version {
                return Some(correction);
            }
        }
    }

    /// Only one thread at a time may do this.
    fn store(&self, correction: Correction) {
        let version = self.version.load(Ordering::Relaxed) + 1;
        fence(Ordering::Release);
        let slot = self.slot(version);
        slot.offset.store(correction.offset, Ordering::Relaxed);
        slot.slewed_at
            .store(correction.slewed_at, Ordering::Relaxed);
        self.version.store(version, Ordering::Release);
    }
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// The reading in the middle of the question.
    at: i64,
    /// The store's time less the reading.
    offset: i64,
    /// The uncertainty of the offset.
    uncertainty: i64,
}

impl Sample {
    /// The uncertainty of the offset by now.
    fn uncertainty_at(&self, reading: i64) -> i64 {
        let age = reading.saturating_sub(self.at).max(0);
        self.uncertainty.saturating_add(age / DRIFT)
    }

    /// Whether both can be measurements of one clock.
    fn agrees_with(&self, other: &Self, reading: i64) -> bool {
        let uncertainty = self.uncertainty_at(reading) + other.uncertainty_at(reading);
        self.is_within(other.offset, uncertainty.saturating_add(JITTER))
    }

    fn is_within(&self, offset: i64, bound: i64) -> bool {
        self.offset.saturating_sub(offset).saturating_abs() <= bound
    }

    /// Whether the offset is certainly more than the bound away from this one.
    fn is_beyond_bound(&self, offset: i64) -> bool {
        let bound = i64::try_from(CLOCK_BOUND.get()).unwrap_or(i64::MAX);
        !self.is_within(offset, bound.saturating_add(self.uncertainty))
    }
}

/// Makes a correction of measurements.
#[derive(Debug, Default)]
struct ClockSync {
    /// None before the first measurement.
    correction: Option<Correction>,
    /// The last measurements that agree with each other.
    samples: Vec<Sample>,
    /// The first measurement of a difference beyond the bound, if all others since then agree.
    suspect: Option<Sample>,
    /// The reading when the clock was set last, for the first time or by a jump.
    stepped_at: Option<i64>,
}

impl ClockSync {
    /// Returns by how much the clock was set, if it was and not for the first time.
    fn measured(&mut self, sample: Sample, reading: i64) -> Option<i64> {
        let Some(correction) = self.correction else {
            self.set_to(sample);
            // If the store's clock was set just now, others go by its old time for a moment.
            self.stepped_at = Some(reading);
            return None;
        };
        let offset = correction.at(reading);
        if sample.is_beyond_bound(offset) {
            let suspect = self
                .suspect
                .filter(|&suspect| !sample.is_beyond_bound(suspect.offset));
            let suspect = *self.suspect.insert(suspect.unwrap_or(sample));
            if sample.at - suspect.at < CONFIRMED_AFTER {
                return None;
            }
            self.set_to(sample);
            self.stepped_at = Some(reading);
            return Some(sample.offset - offset);
        }
        self.suspect = None;
        // What contradicts the present is past: the store's clock was set by a little.
        self.samples.retain(|old| sample.agrees_with(old, reading));
        if self.samples.len() == SAMPLES {
            self.samples.remove(0);
        }
        self.samples.push(sample);
        let best = self
            .samples
            .iter()
            .min_by_key(|sample| sample.uncertainty_at(reading));
        if let Some(best) = best {
            self.correction = Some(correction.slewed_to(best.offset, reading));
        }
        None
    }

    fn set_to(&mut self, sample: Sample) {
        self.correction = Some(Correction::set_to(sample.offset));
        self.samples = vec![sample];
        self.suspect = None;
    }
}

#[cfg(test)]
mod tests;
