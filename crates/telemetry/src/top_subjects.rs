//! Which subjects of a limit send most, and which are near it or over it: a sketch of bounded size.
//!
//! It is Space-Saving (Metwally, Agrawal and El Abbadi, 2005) in sets, as a processor's cache is: a
//! subject's hash says in which set it may stand, and a new subject takes the place of the one
//! there with the least weight, whose weight it inherits. So a subject that has more than an eighth
//! of the weight of its set is never lost, whatever else arrives, and an update looks at eight
//! hashes. Weights halve every few minutes. What is told of a subject counts from when it got its
//! place: it may be too little, and is never too much.
//!
//! A set counts the requests of the subjects that lost their places. No subject has sent more than
//! those beyond its own count.
//!
//! Each thread has a sketch of its own, so that none waits for another; they are merged when they
//! are asked for.

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use siphasher::sip::SipHasher13;
use smallvec::SmallVec;
use tokio::time::Instant;
use weir_runtime::sync::Mutex;

use crate::striped::Striped;

const SETS: usize = 16;
const WAYS: usize = 8;

/// The weight of a decision that denied, or that left little.
const HEAVY: u32 = 4;

/// A subject is near its limit from this share of the burst on.
const NEAR_PERCENT: u8 = 80;

/// In seconds.
const HALF_LIFE: u32 = 256;

const MAX_NAME_BYTES: usize = 64;

const RECENT: u32 = 3;
const MINUTE: u32 = 60;
const HOUR: u32 = 3600;

/// Over how long a subject's requests are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Period {
    /// The running three seconds, and the three before them: what rates are taken of. All of them
    /// have begun within the last six.
    Recent,
    /// The last minute.
    #[default]
    Minute,
    /// The last hour.
    Hour,
}

impl Period {
    /// Its seconds, at most.
    pub const fn seconds(self) -> u32 {
        match self {
            Self::Recent => 2 * RECENT,
            Self::Minute => MINUTE,
            Self::Hour => HOUR,
        }
    }
}

/// The activity of a subject within a period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubjectActivity {
    /// The key of its bucket.
    pub key: String,
    /// The name of its account, where one was known when the subject got its place.
    pub name: Option<String>,
    /// Requests that the limit applied to.
    pub requests: u64,
    /// Requests that were denied, or would be without the dry run.
    pub denied: u64,
    /// The most of its bucket that was taken, in percent of the burst.
    pub used_percent: u8,
}

impl SubjectActivity {
    /// Whether it was denied, or near to it.
    pub fn is_near_limit(&self) -> bool {
        self.denied > 0 || self.used_percent >= NEAR_PERCENT
    }
}

#[derive(Clone)]
pub(super) struct TopSubjects(Arc<Shards>);

struct Shards {
    hasher: SipHasher13,
    since: Instant,
    /// A thread that finds its sketch locked by another does not count. A sketch is made when its
    /// thread first counts.
    sketches: Striped<Mutex<Option<Box<Sketch>>>>,
}

impl TopSubjects {
    pub(super) fn new() -> Self {
        Self(Arc::new(Shards {
            hasher: SipHasher13::new_with_key(&rand::random()),
            since: Instant::now(),
            sketches: Striped::default(),
        }))
    }

    /// Counts a request of the subject with this bucket key, at a time in seconds. `name` is called
    /// if the subject gets a place. Returns the id of the subject for [`decided`](Self::decided).
    pub(super) fn request<'n>(
        &self,
        key: &[u8],
        now: u64,
        name: impl FnOnce() -> Option<&'n str>,
    ) -> Option<NonZeroU64> {
        let hash = self.hash(key);
        let mut sketch = self.0.sketches.own()?.try_lock()?;
        let entry = sketch
            .get_or_insert_default()
            .admit(hash, key, seconds(now), name)?;
        entry.counts.recent.current(seconds(now)).requests += 1;
        entry
            .counts
            .count(seconds(now), |counts| counts.requests += 1);
        Some(hash)
    }

    /// The id of the subject with this bucket key, which no client can choose.
    pub(super) fn hash(&self, key: &[u8]) -> NonZeroU64 {
        NonZeroU64::MIN.saturating_add(self.0.hasher.hash(key) >> 1)
    }

    pub(super) fn decided(&self, subject: NonZeroU64, denied: bool, used_percent: u8, now: u64) {
        let sketch = self.0.sketches.own().and_then(|sketch| sketch.try_lock());
        let Some(mut sketch) = sketch else { return };
        let entry = sketch.as_mut().and_then(|sketch| sketch.find(subject));
        let Some(entry) = entry else { return };
        if denied || used_percent >= NEAR_PERCENT {
            entry.weight = entry.weight.saturating_add(HEAVY - 1);
        }
        entry.counts.count(seconds(now), |counts| {
            counts.denied += u32::from(denied);
            counts.used_percent = counts.used_percent.max(used_percent);
        });
    }

    /// The activity of all threads' subjects, in no order.
    pub(super) fn activity(&self, period: Period, now: u64) -> Vec<SubjectActivity> {
        let mut merged: HashMap<NonZeroU64, SubjectActivity> = HashMap::new();
        for sketch in self.0.sketches.all() {
            let sketch = sketch.lock();
            let sets = sketch.iter().flat_map(|sketch| &sketch.sets);
            let entries = sets.flat_map(|set| set.hashes.iter().zip(&set.entries));
            for (hash, entry) in entries {
                let counts = entry.counts.estimate(period, seconds(now));
                let Some(hash) = hash.filter(|_| counts.requests > 0) else {
                    continue;
                };
                let merged = merged.entry(hash).or_insert_with(|| SubjectActivity {
                    key: String::from_utf8_lossy(&entry.key).into_owned(),
                    name: None,
                    requests: 0,
                    denied: 0,
                    used_percent: 0,
                });
                // A thread may have met the subject when its name was not known.
                let name = || entry.name.as_deref().map(str::to_owned);
                merged.name = merged.name.take().or_else(name);
                merged.requests += u64::from(counts.requests);
                merged.denied += u64::from(counts.denied);
                merged.used_percent = merged.used_percent.max(counts.used_percent);
            }
        }
        merged.into_values().collect()
    }

    /// How many requests of a subject may be missing from its count, at most: as many as those of
    /// the subjects that lost their places in one set of each thread.
    pub(super) fn uncounted(&self, period: Period, now: u64) -> u64 {
        let sketches = self.0.sketches.all().map(|sketch| {
            let sketch = sketch.lock();
            let sets = sketch.iter().flat_map(|sketch| &sketch.sets);
            let lost = sets.map(|set| set.lost.estimate(period, seconds(now)).requests);
            u64::from(lost.max().unwrap_or_default())
        });
        sketches.sum()
    }

    /// Seconds of a period, at a time since the Unix epoch, for which subjects have been counted:
    /// one at least.
    pub(super) fn counted_seconds(&self, period: Period, now: Duration) -> f64 {
        let seconds = match period {
            Period::Recent => f64::from(RECENT) + now.as_secs_f64() % f64::from(RECENT),
            period => f64::from(period.seconds()),
        };
        self.0.since.elapsed().as_secs_f64().max(1.0).min(seconds)
    }
}

impl fmt::Debug for TopSubjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TopSubjects").finish_non_exhaustive()
    }
}

/// Seconds since 1970, which are few enough until 2106.
fn seconds(now: u64) -> u32 {
    u32::try_from(now).unwrap_or(u32::MAX)
}

/// The subjects of one thread.
#[derive(Default)]
struct Sketch {
    sets: [Set; SETS],
}

#[derive(Default)]
struct Set {
    /// Apart from the entries, as most reads are of hashes alone.
    hashes: [Option<NonZeroU64>; WAYS],
    entries: [Entry; WAYS],
    /// The requests of subjects that lost their places here.
    lost: Windows,
}

/// A subject; without one, all is zero.
#[derive(Default)]
struct Entry {
    /// As of `weighed`, with the weight of the subject that it replaced.
    weight: u32,
    /// When the weight was halved last, in half-lives since 1970.
    weighed: u32,
    counts: Windows,
    key: SmallVec<[u8; 64]>,
    name: Option<Box<str>>,
}

impl Sketch {
    fn set(&mut self, hash: NonZeroU64) -> Option<&mut Set> {
        // The highest bit of a hash is not used.
        let index = usize::try_from(hash.get() >> 59).unwrap_or_default();
        self.sets.get_mut(index % SETS)
    }

    fn find(&mut self, hash: NonZeroU64) -> Option<&mut Entry> {
        let set = self.set(hash)?;
        let index = set.position(hash)?;
        set.entries.get_mut(index)
    }

    /// Finds or makes the entry of a subject, and adds 1 to its weight.
    fn admit<'n>(
        &mut self,
        hash: NonZeroU64,
        key: &[u8],
        now: u32,
        name: impl FnOnce() -> Option<&'n str>,
    ) -> Option<&mut Entry> {
        let set = self.set(hash)?;
        let known = set.position(hash);
        let index = known.unwrap_or_else(|| set.replace_lightest(hash, key, now));
        let entry = set.entries.get_mut(index)?;
        if known.is_none() {
            entry.name = name().map(shortened);
        }
        entry.age(now);
        entry.weight = entry.weight.saturating_add(1);
        Some(entry)
    }
}

impl Set {
    fn position(&self, hash: NonZeroU64) -> Option<usize> {
        self.hashes.iter().position(|known| *known == Some(hash))
    }

    /// Replaces the lightest entry by one of this subject, and returns its index.
    fn replace_lightest(&mut self, hash: NonZeroU64, key: &[u8], now: u32) -> usize {
        let mut lightest = (u32::MAX, 0);
        for (index, entry) in self.entries.iter_mut().enumerate() {
            entry.age(now);
            lightest = lightest.min((entry.weight, index));
        }
        let (weight, index) = lightest;
        let place = self.hashes.get_mut(index).zip(self.entries.get_mut(index));
        if let Some((place, entry)) = place {
            self.lost.add_lost(&entry.counts, now);
            *place = Some(hash);
            *entry = Entry {
                weight,
                weighed: now / HALF_LIFE,
                key: SmallVec::from_slice(key),
                ..Entry::default()
            };
        }
        index
    }
}

impl Entry {
    fn age(&mut self, now: u32) {
        let age = (now / HALF_LIFE).saturating_sub(self.weighed);
        if age > 0 {
            self.weight = self.weight.checked_shr(age).unwrap_or_default();
            self.weighed = now / HALF_LIFE;
        }
    }
}

fn shortened(name: &str) -> Box<str> {
    const ELLIPSIS: char = '\u{2026}';
    if name.len() <= MAX_NAME_BYTES {
        return name.into();
    }
    let end = name.floor_char_boundary(MAX_NAME_BYTES - ELLIPSIS.len_utf8());
    let mut kept = name.get(..end).unwrap_or_default().to_owned();
    kept.push(ELLIPSIS);
    kept.into()
}

/// The counts of each period.
#[derive(Default)]
struct Windows {
    /// Requests alone.
    recent: Window<RECENT>,
    minute: Window<MINUTE>,
    hour: Window<HOUR>,
}

impl Windows {
    fn count(&mut self, now: u32, change: impl Fn(&mut Counts)) {
        change(self.minute.current(now));
        change(self.hour.current(now));
    }

    fn estimate(&self, period: Period, now: u32) -> Counts {
        match period {
            Period::Recent => self.recent.with_previous(now, RECENT),
            Period::Minute => self.minute.estimate(now),
            Period::Hour => self.hour.estimate(now),
        }
    }

    /// Adds the requests of a subject that loses its place. They count from now on, so for longer
    /// than they would have counted there.
    fn add_lost(&mut self, counts: &Self, now: u32) {
        let add = |lost: &mut Counts, period| {
            let requests = counts.estimate(period, now).requests;
            lost.requests = lost.requests.saturating_add(requests);
        };
        add(self.recent.current(now), Period::Recent);
        add(self.minute.current(now), Period::Minute);
        add(self.hour.current(now), Period::Hour);
    }
}

/// A sliding window: the counts of the current fixed window, and of the one before it.
#[derive(Default)]
struct Window<const SECONDS: u32> {
    index: u32,
    current: Counts,
    previous: Counts,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    requests: u32,
    denied: u32,
    used_percent: u8,
}

impl<const SECONDS: u32> Window<SECONDS> {
    /// The counts of the window of `now`, or of the latest one after a step of the clock back.
    fn current(&mut self, now: u32) -> &mut Counts {
        let index = now / SECONDS;
        if index > self.index {
            let current = std::mem::take(&mut self.current);
            self.previous = match index - self.index {
                1 => current,
                _ => Counts::default(),
            };
            self.index = index;
        }
        &mut self.current
    }

    /// The counts of the last `SECONDS`, taking those of the previous window to be spread evenly.
    fn estimate(&self, now: u32) -> Counts {
        self.with_previous(now, SECONDS - now % SECONDS)
    }

    /// The counts of the current window, and of so many seconds of the previous one.
    fn with_previous(&self, now: u32, left: u32) -> Counts {
        let (current, previous) = match (now / SECONDS).saturating_sub(self.index) {
            0 => (self.current, self.previous),
            1 => (Counts::default(), self.current),
            _ => return Counts::default(),
        };
        let share = |count: u32| {
            let share = u64::from(count) * u64::from(left) / u64::from(SECONDS);
            u32::try_from(share).unwrap_or(u32::MAX)
        };
        let requests = share(previous.requests);
        let is_over = requests == 0;
        Counts {
            requests: current.requests.saturating_add(requests),
            denied: current.denied.saturating_add(share(previous.denied)),
            used_percent: match is_over {
                true => current.used_percent,
                false => current.used_percent.max(previous.used_percent),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn ask(top: &TopSubjects, key: &str, times: u32, now: u64) {
        for _ in 0..times {
            let subject = top.request(key.as_bytes(), now, || None).unwrap();
            top.decided(subject, false, 10, now);
        }
    }

    fn known(top: &TopSubjects, period: Period, now: u64) -> Vec<(String, u64)> {
        let mut known: Vec<_> = top
            .activity(period, now)
            .into_iter()
            .map(|subject| (subject.key, subject.requests))
            .collect();
        known.sort();
        known
    }

    #[test]
    fn what_a_subject_did_is_counted_exactly_while_there_is_room() {
        let top = TopSubjects::new();
        ask(&top, "L:a", 5, NOW);
        ask(&top, "L:b", 2, NOW);
        let b = top.request(b"L:b", NOW, || None).unwrap();
        top.decided(b, true, 100, NOW);
        let mut all = top.activity(Period::Minute, NOW);
        all.sort_by(|one, other| one.key.cmp(&other.key));
        let subject = |key: &str, requests, denied, used_percent| SubjectActivity {
            key: key.to_owned(),
            name: None,
            requests,
            denied,
            used_percent,
        };
        assert_eq!(all, [subject("L:a", 5, 0, 10), subject("L:b", 3, 1, 100)]);
        assert!(!all[0].is_near_limit() && all[1].is_near_limit());
    }

    #[test]
    fn a_subject_is_asked_for_its_name_when_it_gets_a_place_and_then_no_more() {
        let top = TopSubjects::new();
        let long = "\u{e9}".repeat(MAX_NAME_BYTES);
        top.request(b"L:a", NOW, || Some("acme")).unwrap();
        top.request(b"L:b", NOW, || Some(&long)).unwrap();
        for _ in 0..5 {
            let again = || unreachable!("the name is known");
            top.request(b"L:a", NOW, again).unwrap();
        }
        let mut all = top.activity(Period::Minute, NOW);
        all.sort_by(|one, other| one.key.cmp(&other.key));
        assert_eq!(all[0].name.as_deref(), Some("acme"));
        let kept = all[1].name.as_deref().unwrap();
        assert!(
            kept.len() <= MAX_NAME_BYTES
                && long.starts_with(kept.strip_suffix('\u{2026}').unwrap()),
            "{kept}"
        );
        // Who takes its place does not inherit the name.
        for light in 0..20_000 {
            ask(&top, &format!("L:{light}"), 1, NOW);
        }
        let known = top.activity(Period::Minute, NOW);
        let named = known.iter().filter(|subject| subject.name.is_some());
        let mut names = named.map(|subject| (&*subject.key, subject.name.as_deref()));
        assert!(
            names.all(|(key, _)| ["L:a", "L:b"].contains(&key)),
            "{known:?}"
        );
    }

    #[test]
    fn requests_leave_the_minute_and_stay_in_the_hour() {
        let top = TopSubjects::new();
        // A minute and an hour begin.
        let start = NOW - NOW % 3600;
        ask(&top, "L:a", 60, start);
        let a = |requests| vec![("L:a".to_owned(), requests)];
        assert_eq!(known(&top, Period::Minute, start + 59), a(60));
        assert_eq!(known(&top, Period::Minute, start + 90), a(30));
        assert_eq!(known(&top, Period::Minute, start + 120), []);
        assert_eq!(known(&top, Period::Hour, start + 3599), a(60));
        assert_eq!(known(&top, Period::Hour, start + 5400), a(30));
        assert_eq!(known(&top, Period::Hour, start + 7200), []);
        ask(&top, "L:a", 1, start + 90);
        assert_eq!(known(&top, Period::Minute, start + 90), a(31));
        assert_eq!(known(&top, Period::Hour, start + 90), a(61));
    }

    /// A minute's average showed a sixth of it after ten seconds.
    #[tokio::test(start_paused = true)]
    async fn the_rate_of_a_subject_is_never_that_of_the_time_before_it_began() {
        let top = TopSubjects::new();
        tokio::time::advance(Duration::from_secs(3600)).await;
        let rate = |tenths: u64| {
            let now = Duration::from_secs(NOW) + Duration::from_millis(100 * tenths);
            let known = known(&top, Period::Recent, now.as_secs());
            let requests = known.first().map_or(0, |(_, requests)| *requests);
            requests as f64 / top.counted_seconds(Period::Recent, now)
        };
        // It begins in the middle of a window, and sends ten a second for ten seconds.
        for tenths in 20..120 {
            ask(&top, "L:a", 1, NOW + tenths / 10);
            if tenths >= 80 {
                let rate = rate(tenths + 1);
                assert!((9.7..=10.3).contains(&rate), "{rate} at {tenths}");
            }
        }
        assert_eq!(rate(180), 0.0);
        let minute = known(&top, Period::Minute, NOW + 18);
        assert_eq!(minute, [("L:a".to_owned(), 100)]);
    }

    #[test]
    fn a_flood_of_other_subjects_does_not_push_out_the_heaviest() {
        let top = TopSubjects::new();
        for round in 0..5_000 {
            ask(&top, "L:abuser", 1, NOW);
            for light in 0..9 {
                ask(&top, &format!("L:{round}-{light}"), 1, NOW);
            }
        }
        let known = known(&top, Period::Minute, NOW);
        let abuser = known.iter().find(|(key, _)| key == "L:abuser").unwrap();
        // A tenth of all requests, which is more than an eighth of those of its set.
        assert!(abuser.1 > 4_900, "{abuser:?}");
        assert!(known.len() <= SETS * WAYS);
    }

    /// The law that lets sketches of several gateways be added up.
    #[test]
    fn no_subject_has_sent_more_than_its_count_and_what_is_said_to_be_uncounted() {
        let top = TopSubjects::new();
        ask(&top, "L:a", 3, NOW);
        assert_eq!(top.uncounted(Period::Minute, NOW), 0);
        assert_eq!(top.uncounted(Period::Recent, NOW), 0);
        let mut sent = HashMap::new();
        for round in 0..3_000_u32 {
            let key = match round % 3 {
                0 => format!("L:{}", round % 600),
                _ => format!("L:once-{round}"),
            };
            ask(&top, &key, 1, NOW + u64::from(round / 100));
            *sent.entry(key).or_insert(0) += 1;
        }
        let now = NOW + 30;
        for period in [Period::Minute, Period::Hour] {
            let uncounted = top.uncounted(period, now);
            let known: HashMap<_, _> = known(&top, period, now).into_iter().collect();
            for (key, sent) in &sent {
                let counted = known.get(key).copied().unwrap_or_default();
                assert!(counted + uncounted >= *sent, "{key}: {counted} of {sent}");
            }
            // Each set has lost about a sixteenth of all.
            assert!((100..400).contains(&uncounted), "{uncounted}");
        }
        assert_eq!(top.uncounted(Period::Minute, now + 120), 0);
    }

    #[test]
    fn a_subject_of_few_requests_that_is_denied_outweighs_others() {
        let top = TopSubjects::new();
        let denied = |times: u32| {
            for _ in 0..times {
                let subject = top.request(b"L:denied", NOW, || None).unwrap();
                top.decided(subject, true, 100, NOW);
            }
        };
        denied(200);
        for light in 0..2_000 {
            ask(&top, &format!("L:{light}"), 1, NOW);
        }
        let known = top.activity(Period::Minute, NOW);
        let kept = known.iter().find(|subject| subject.key == "L:denied");
        assert_eq!(kept.unwrap().denied, 200);
    }

    #[test]
    fn a_weight_of_long_ago_gives_way() {
        let top = TopSubjects::new();
        ask(&top, "L:old", 1_000, NOW);
        let later = NOW + 3 * 3600;
        for light in 0..2_000 {
            ask(&top, &format!("L:{light}"), 1, later);
        }
        let mut sketch = top.0.sketches.own().unwrap().lock();
        let hash = NonZeroU64::MIN.saturating_add(top.0.hasher.hash(b"L:old") >> 1);
        assert!(sketch.as_mut().unwrap().find(hash).is_none());
    }

    #[test]
    fn a_decision_about_a_subject_that_lost_its_place_counts_for_nobody() {
        let top = TopSubjects::new();
        let gone = top.request(b"L:gone", NOW, || None).unwrap();
        for light in 0..2_000 {
            ask(&top, &format!("L:{light}"), 1, NOW);
        }
        top.decided(gone, true, 100, NOW);
        let denied: u64 = top
            .activity(Period::Minute, NOW)
            .iter()
            .map(|it| it.denied)
            .sum();
        assert_eq!(denied, 0);
    }

    #[test]
    fn a_clock_that_goes_back_loses_nothing() {
        let top = TopSubjects::new();
        ask(&top, "L:a", 3, NOW);
        ask(&top, "L:a", 2, NOW - 7200);
        assert_eq!(known(&top, Period::Hour, NOW), [("L:a".to_owned(), 5)]);
        assert_eq!(
            known(&top, Period::Hour, NOW - 7200),
            [("L:a".to_owned(), 5)]
        );
    }

    #[test]
    fn a_name_that_one_thread_knows_is_never_lost_to_another_that_does_not() {
        for names in [[None, Some("acme")], [Some("acme"), None]] {
            let top = TopSubjects(Arc::new(Shards {
                since: Instant::now(),
                hasher: SipHasher13::new(),
                sketches: names.iter().map(|_| Mutex::default()).collect(),
            }));
            for (sketch, name) in top.0.sketches.all().zip(names) {
                let mut sketch = sketch.lock();
                let sketch = sketch.get_or_insert_default();
                let entry = sketch.admit(NonZeroU64::MIN, b"L:a", seconds(NOW), || name);
                entry
                    .unwrap()
                    .counts
                    .count(seconds(NOW), |counts| counts.requests += 1);
            }
            let found = top.activity(Period::Minute, NOW);
            assert_eq!((found.len(), found[0].requests), (1, 2));
            assert_eq!(found[0].name.as_deref(), Some("acme"), "{names:?}");
        }
    }

    #[test]
    fn threads_count_by_themselves_and_are_added_up() {
        let top = TopSubjects::new();
        ask(&top, "L:a", 3, NOW);
        let other = top.clone();
        std::thread::spawn(move || ask(&other, "L:a", 4, NOW))
            .join()
            .unwrap();
        assert_eq!(known(&top, Period::Minute, NOW), [("L:a".to_owned(), 7)]);
    }
}

#[cfg(all(test, feature = "interleavings"))]
mod interleavings {
    use shuttle::thread;
    use weir_runtime::sync::in_random_orders;

    use super::*;

    const NOW: u64 = 1_700_000_000;

    /// Threads that meet at one sketch: one of them does not count.
    #[test]
    fn no_subject_is_ever_shown_more_requests_than_it_sent() {
        let law = || {
            let top = TopSubjects::new();
            let threads: Vec<_> = ["L:a", "L:b", "L:a"]
                .into_iter()
                .map(|key| {
                    let top = top.clone();
                    thread::spawn(move || {
                        for _ in 0..3 {
                            if let Some(subject) = top.request(key.as_bytes(), NOW, || None) {
                                top.decided(subject, true, 100, NOW);
                            }
                        }
                    })
                })
                .collect();
            let meanwhile = top.activity(Period::Minute, NOW);
            threads
                .into_iter()
                .for_each(|thread| thread.join().unwrap());
            for known in [meanwhile, top.activity(Period::Minute, NOW)] {
                for subject in known {
                    let sent = if subject.key == "L:a" { 6 } else { 3 };
                    assert!(subject.requests <= sent && subject.denied <= subject.requests);
                }
            }
        };
        in_random_orders(law, 3_000);
    }
}
