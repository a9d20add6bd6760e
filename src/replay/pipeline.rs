//! Reads, parses and replays at the same time, on all cores.
//!
//! Each round has the chunks of the last round replayed, a task for each partition, and the next
//! ones parsed, a task for each chunk. Threads take the tasks one by one. The partitions are as many
//! on every machine, so a replay has the same result on one core and on a hundred.
//!
//! Logs are written when requests end, so a long request stands behind short ones that came later.
//! Lines wait in their partition until the log is a while ahead of them; those that come later still
//! are decided at once.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::format::{Line, Names};
use super::input::{Chunk, Input, InputError, LogCounts, ParsedChunk, Reading};
use super::replayer::{PastLine, Replayer};
use super::tally::{Changes, Example, Kind, Minute, Outcome, Tally};
use crate::time::{Nanos, Timestamp};

const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;

/// Lines are put in order only when there are as many new ones as old ones, or this many.
const FEW: usize = 1024;

/// Chunks of a round, for each thread.
const CHUNKS: usize = 4;

/// What replays a log.
pub struct Pipeline<'r> {
    pub reading: Reading<'r>,
    pub partitions: Vec<Mutex<Partition<'r>>>,
    pub threads: usize,
    /// How long a line waits for those that belong before it.
    pub window: Nanos,
    /// Charges and strikes need an entered runtime.
    pub runtime: Handle,
}

/// What came of a log.
pub struct Replayed {
    pub log: LogCounts,
    pub counted: Counted,
}

impl Pipeline<'_> {
    /// Replays the whole log.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn run(self, mut input: Input) -> Result<Replayed, InputError> {
        let mut log = LogCounts::default();
        let (to, chunks) = sync_channel(2 * CHUNKS * self.threads);
        let counted = thread::scope(|scope| {
            let reader = scope.spawn(move || {
                while let Some(chunk) = input.next()? {
                    // Nobody receives any more when the replay has panicked.
                    if to.send(chunk).is_err() {
                        break;
                    }
                }
                Ok(())
            });
            self.rounds(&chunks, &mut log);
            // Otherwise the reader would wait for a reader of its own.
            drop(chunks);
            match reader.join() {
                Ok(read) => read,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        });
        counted?;
        Ok(Replayed {
            log,
            counted: self.finish(),
        })
    }

    fn rounds(&self, chunks: &Receiver<Chunk>, log: &mut LogCounts) {
        let mut parsed: Vec<ParsedChunk> = Vec::new();
        let mut last = Timestamp::default();
        loop {
            let fresh = self.receive(chunks);
            if fresh.is_empty() && parsed.is_empty() {
                return;
            }
            let until = last.before(self.window);
            let next = self.round(&parsed, &fresh, until);
            for chunk in &next {
                last = last.max(chunk.until);
                log.add(chunk.counts.clone());
            }
            parsed = next;
        }
    }

    /// The chunks of a round: at least one, and what else is there already.
    fn receive(&self, chunks: &Receiver<Chunk>) -> Vec<Chunk> {
        let mut fresh: Vec<Chunk> = chunks.recv().into_iter().collect();
        let more = chunks.try_iter().take(CHUNKS * self.threads - fresh.len());
        fresh.extend(more);
        fresh
    }

    /// Replays what was parsed, and parses what comes next.
    fn round(&self, parsed: &[ParsedChunk], fresh: &[Chunk], until: Timestamp) -> Vec<ParsedChunk> {
        let results: Vec<Mutex<ParsedChunk>> = fresh.iter().map(|_| Mutex::default()).collect();
        let replays = if parsed.is_empty() {
            0
        } else {
            self.partitions.len()
        };
        let next = AtomicUsize::new(0);
        let work = || {
            let _runtime = self.runtime.enter();
            loop {
                let task = next.fetch_add(1, Ordering::Relaxed);
                if let Some(partition) = self.partitions.get(task).filter(|_| task < replays) {
                    let mut partition = partition.lock();
                    for chunk in parsed {
                        if let Some(lines) = chunk.lines.get(task) {
                            partition.push(std::mem::take(&mut lines.lock()));
                        }
                    }
                    partition.replay_until(until);
                } else if let Some(chunk) = task.checked_sub(replays).and_then(|at| fresh.get(at)) {
                    let result = task.checked_sub(replays).and_then(|at| results.get(at));
                    if let Some(result) = result {
                        *result.lock() = self.reading.parse(chunk);
                    }
                } else {
                    return;
                }
            }
        };
        thread::scope(|scope| {
            for _ in 1..self.threads {
                scope.spawn(work);
            }
            work();
        });
        results.into_iter().map(Mutex::into_inner).collect()
    }

    /// Replays what still waits, and adds up what all partitions have counted.
    fn finish(self) -> Counted {
        let waiting = Mutex::new(self.partitions.into_iter());
        let counted = Mutex::new(Vec::new());
        let work = || {
            let _runtime = self.runtime.enter();
            loop {
                let Some(partition) = waiting.lock().next() else {
                    return;
                };
                let done = partition.into_inner().finish();
                counted.lock().push(done);
            }
        };
        thread::scope(|scope| {
            for _ in 1..self.threads {
                scope.spawn(work);
            }
            work();
        });
        let mut parts = counted.into_inner().into_iter();
        let mut all = parts.next().unwrap_or_default();
        parts.for_each(|part| all.add(part));
        all
    }
}

/// A part of all subjects: their lines in order, and what is replayed over them.
pub struct Partition<'r> {
    window: Window,
    replays: Replays<'r>,
}

/// All configurations that are replayed over the lines of a part of all subjects.
struct Replays<'r> {
    replayer: Replayer<'r>,
    baseline: Option<Replayer<'r>>,
    variants: Vec<Replayer<'r>>,
    changes: Changes,
    fidelity: Changes,
    minutes: HashMap<u64, Minute>,
}

/// What was counted.
#[derive(Debug, Default)]
pub struct Counted {
    /// By the configuration.
    pub tally: Tally,
    /// By the baseline, if there is one.
    pub baseline: Option<Tally>,
    /// By each variant of the configuration.
    pub variants: Vec<Tally>,
    /// How the configuration differs from the baseline, or from what Weir's log says.
    pub changes: Changes,
    /// How the baseline differs from what Weir's log says.
    pub fidelity: Changes,
    /// Requests and denials, by minutes since 1970.
    pub minutes: HashMap<u64, Minute>,
    /// Lines that came too late to be put in order.
    pub late: u64,
}

impl<'r> Partition<'r> {
    /// Nothing so far.
    pub fn new(
        window: Window,
        replayer: Replayer<'r>,
        baseline: Option<Replayer<'r>>,
        variants: Vec<Replayer<'r>>,
    ) -> Self {
        let replays = Replays {
            replayer,
            baseline,
            variants,
            changes: Changes::default(),
            fidelity: Changes::default(),
            minutes: HashMap::new(),
        };
        Self { window, replays }
    }

    /// Adds lines in the order of the log.
    fn push(&mut self, lines: Vec<Line>) {
        self.window.push(lines);
    }

    /// Replays the lines that came before `until`, if enough wait to be worth it.
    fn replay_until(&mut self, until: Timestamp) {
        if self.window.is_worth_it() {
            self.window.take(until, |line| self.replays.replay(line));
        }
    }

    /// Replays what is left.
    fn finish(mut self) -> Counted {
        let replays = &mut self.replays;
        self.window
            .take(Timestamp::MAX, |line| replays.replay(line));
        let finish = |mut replayer: Replayer<'r>| {
            replayer.finish();
            replayer.tally
        };
        let replays = self.replays;
        Counted {
            tally: finish(replays.replayer),
            baseline: replays.baseline.map(finish),
            variants: replays.variants.into_iter().map(finish).collect(),
            changes: replays.changes,
            fidelity: replays.fidelity,
            minutes: replays.minutes,
            late: self.window.late,
        }
    }
}

impl Replays<'_> {
    fn replay(&mut self, line: Line) {
        let past = PastLine::new(line);
        let is = self.replayer.arrive(&past);
        for variant in &mut self.variants {
            variant.arrive(&past);
        }
        let recorded = past.recorded.filter(|recorded| recorded.is_comparable);
        let recorded = recorded.map(|recorded| Outcome::of(recorded.decision, recorded.by));
        let names = self.replayer.names();
        let was = match &mut self.baseline {
            Some(baseline) => {
                let was = baseline.arrive(&past);
                match recorded {
                    Some(recorded) => {
                        let example = || example(&past, recorded, was, names);
                        self.fidelity.compare(recorded, was, example);
                    }
                    None => self.fidelity.not_compared += 1,
                }
                Some(was)
            }
            None => recorded,
        };
        match was {
            Some(was) => {
                let example = || example(&past, was, is, names);
                self.changes.compare(was, is, example);
                self.count_change(was, is);
            }
            None => self.changes.not_compared += 1,
        }
        let minute = self.minutes.entry(past.at.as_nanos() / MINUTE).or_default();
        minute.requests += 1;
        minute.denied += u64::from(is.kind == Kind::Denied);
        minute.denied_before += u64::from(was.is_some_and(|was| was.kind == Kind::Denied));
    }

    /// Counts a change for the limit that denies, or denied.
    fn count_change(&mut self, was: Outcome, is: Outcome) {
        let limit = match (was.kind == Kind::Denied, is.kind == Kind::Denied) {
            (false, true) => is.by,
            (true, false) => was.by,
            _ => return,
        };
        if let Some(limit) = limit.and_then(|name| self.replayer.limit_named(name)) {
            match is.kind {
                Kind::Denied => limit.newly_denied += 1,
                _ => limit.no_longer_denied += 1,
            }
        }
    }
}

impl Counted {
    /// Adds what another partition has counted.
    pub fn add(&mut self, other: Self) {
        self.tally.add(other.tally);
        match (&mut self.baseline, other.baseline) {
            (Some(baseline), Some(more)) => baseline.add(more),
            (baseline, more) => *baseline = more.or(baseline.take()),
        }
        if self.variants.is_empty() {
            self.variants = other.variants;
        } else {
            for (variant, more) in self.variants.iter_mut().zip(other.variants) {
                variant.add(more);
            }
        }
        self.changes.add(other.changes);
        self.fidelity.add(other.fidelity);
        for (minute, more) in other.minutes {
            let minute = self.minutes.entry(minute).or_default();
            minute.requests += more.requests;
            minute.denied += more.denied;
            minute.denied_before += more.denied_before;
        }
        self.late += other.late;
    }
}

/// A request whose outcomes differ.
fn example(past: &PastLine, was: Outcome, is: Outcome, names: &Names) -> Example {
    Example {
        at: past.at,
        client: past.client,
        request: format!("{} {}", past.request.method(), past.request.uri().path()),
        was: was.shown(names),
        is: is.shown(names),
    }
}

/// Lines that wait for those that belong before them.
#[derive(Debug)]
pub struct Window {
    waiting: Vec<Option<Line>>,
    /// The times of those that wait, and their places, when they are put in order.
    order: Vec<(Timestamp, usize)>,
    /// They are put in order when there are more.
    sort_at: usize,
    /// How many may wait.
    most: usize,
    /// When the last line was decided.
    decided: Timestamp,
    /// Whether times are of whole seconds, over which their lines are to be spread.
    is_coarse: bool,
    /// Lines that came too late to be put in order.
    late: u64,
}

impl Window {
    /// A window of no more than `most` lines.
    pub const fn new(most: usize, is_coarse: bool) -> Self {
        Self {
            waiting: Vec::new(),
            order: Vec::new(),
            sort_at: FEW,
            most,
            decided: Timestamp::from_nanos(0),
            is_coarse,
            late: 0,
        }
    }

    /// Adds lines in the order of the log.
    fn push(&mut self, mut lines: Vec<Line>) {
        if self.is_coarse {
            lines.iter_mut().for_each(|line| line.at = second(line.at));
        }
        self.waiting.extend(lines.into_iter().map(Some));
    }

    /// Whether enough lines wait to be put in order.
    const fn is_worth_it(&self) -> bool {
        self.waiting.len() >= self.sort_at
    }

    /// Passes on the lines of before `until`, in order.
    fn take(&mut self, until: Timestamp, mut pass: impl FnMut(Line)) {
        let until = match self.is_coarse {
            true if until != Timestamp::MAX => second(until),
            _ => until,
        };
        let waiting = self.waiting.iter().flatten();
        self.order.clear();
        // Of two lines at the same time the first of the log comes first.
        self.order.extend(waiting.map(|line| line.at).zip(0..));
        self.order.sort_unstable();
        let before =
            |order: &[(Timestamp, usize)], until| order.partition_point(|(at, _)| *at < until);
        let mut count = before(&self.order, until);
        let spared = self.order.len() - count;
        if spared > self.most {
            let half = self.order.get(count + spared / 2);
            count = half.map_or(count, |(at, _)| before(&self.order, *at));
        }
        let (taken, spared) = self.order.split_at_mut(count);
        for (at, _) in &mut *taken {
            self.late += u64::from(*at < self.decided);
            *at = self.decided.max(*at);
        }
        if let Some((last, _)) = taken.last() {
            self.decided = *last;
        }
        if self.is_coarse {
            spread(taken);
        }
        let mut take = |place: usize| self.waiting.get_mut(place).and_then(Option::take);
        for (at, place) in taken {
            if let Some(mut line) = take(*place) {
                line.shift(at.since(line.at));
                pass(line);
            }
        }
        let rest: Vec<_> = spared.iter().map(|(_, place)| take(*place)).collect();
        self.waiting = rest;
        self.sort_at = FEW.max(2 * self.waiting.len()).min(self.most.max(1));
    }
}

/// The second that a time is in.
const fn second(time: Timestamp) -> Timestamp {
    Timestamp::from_nanos(time.as_nanos() / SECOND * SECOND)
}

/// Spreads the lines of each second evenly over it: a client that sends one request each 100 ms
/// would seem to send ten at once.
fn spread(times: &mut [(Timestamp, usize)]) {
    for second in times.chunk_by_mut(|one, next| one.0 == next.0) {
        let count = second.len() as u64;
        for (index, (at, _)) in (0_u64..).zip(second) {
            *at = *at + Nanos::new(index * SECOND / count);
        }
    }
}

impl Line {
    fn shift(&mut self, by: Nanos) {
        self.at = self.at + by;
        self.answered = self.answered + by;
        self.ended = self.ended + by;
    }
}
