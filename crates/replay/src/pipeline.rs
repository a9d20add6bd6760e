//! Reads, parses and replays at the same time, on all cores.
//!
//! Each round has the chunks of the last round replayed, a task for each partition, and the next
//! ones parsed, a task for each chunk. Threads take the tasks one by one. The partitions are as
//! many on every machine, so a replay has the same result on one core and on a hundred.
//!
//! Logs are written when requests end, so a long request stands behind short ones that came later.
//! Lines wait in their partition until the log is a while ahead of them; those that come later
//! still are decided at once.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use http::request::Parts;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use weir_limit::time::{Nanos, Timestamp};

use super::format::{LogLine, Names, Recorded};
use super::input::{Chunk, Input, InputError, LogCounts, ParsedChunk, Reading};
use super::replayer::{PastRequest, Replayer, RequestMaker};
use super::tally::{Changes, Example, Hashed, Minute, Outcome, Tally};

const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;

/// Lines are put in order only when there are as many new ones as old ones, or this many.
const MIN_BATCH: usize = 1024;

/// Chunks of a round, for each thread.
const CHUNKS: usize = 4;

/// Replays a log.
pub struct Pipeline<'r> {
    pub reading: Reading<'r>,
    pub partitions: Vec<Mutex<Partition<'r>>>,
    pub threads: usize,
    /// How long a line waits for those that belong before it.
    pub window: Nanos,
    /// Charges and strikes need an entered runtime.
    pub runtime: Handle,
}

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
            let until = last.saturating_sub(self.window);
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

    /// Replays the parsed chunks, and parses the fresh ones.
    fn round(&self, parsed: &[ParsedChunk], fresh: &[Chunk], until: Timestamp) -> Vec<ParsedChunk> {
        let results: Vec<Mutex<ParsedChunk>> = fresh.iter().map(|_| Mutex::default()).collect();
        let replays = if parsed.is_empty() {
            0
        } else {
            self.partitions.len()
        };
        let next = AtomicUsize::new(0);
        self.on_all_threads(|| {
            loop {
                let task = next.fetch_add(1, Ordering::Relaxed);
                if let Some(partition) = self.partitions.get(task).filter(|_| task < replays) {
                    let mut partition = partition.lock();
                    for chunk in parsed {
                        if let Some(lines) = chunk.lines.get(task) {
                            partition.push(mem::take(&mut lines.lock()));
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
        });
        results.into_iter().map(Mutex::into_inner).collect()
    }

    /// Replays what still waits, and adds up what all partitions have counted.
    fn finish(mut self) -> Counted {
        let waiting = Mutex::new(mem::take(&mut self.partitions).into_iter());
        let counted = Mutex::new(Vec::new());
        self.on_all_threads(|| {
            loop {
                let Some(partition) = waiting.lock().next() else {
                    return;
                };
                let done = partition.into_inner().finish();
                counted.lock().push(done);
            }
        });
        let mut parts = counted.into_inner().into_iter();
        let mut all = parts.next().unwrap_or_default();
        parts.for_each(|part| all.add(part));
        all
    }

    fn on_all_threads(&self, work: impl Fn() + Sync) {
        let work = || {
            let _runtime = self.runtime.enter();
            work();
        };
        thread::scope(|scope| {
            for _ in 1..self.threads {
                scope.spawn(work);
            }
            work();
        });
    }
}

/// A part of all subjects: their lines in order, and what is replayed over them.
pub struct Partition<'r> {
    window: Window<'r>,
    replays: Replays<'r>,
}

/// All configurations that are replayed over the lines of a part of all subjects.
struct Replays<'r> {
    replayer: Replayer<'r>,
    baseline: Option<Replayer<'r>>,
    variants: Vec<Replayer<'r>>,
    changes: Changes,
    fidelity: Changes,
    minutes: Minutes,
    requests: RequestMaker,
}

/// Requests and denials, by minutes since 1970.
type Minutes = HashMap<u64, Minute, BuildHasherDefault<Hashed>>;

/// The counts of all partitions.
#[derive(Debug, Default)]
pub struct Counted {
    /// For the configuration.
    pub tally: Tally,
    /// For the baseline.
    pub baseline: Option<Tally>,
    /// For each variant of the configuration.
    pub variants: Vec<Tally>,
    /// How the configuration differs from the baseline, or from what Weir's log says.
    pub changes: Changes,
    /// How the baseline differs from what Weir's log says.
    pub fidelity: Changes,
    pub minutes: Minutes,
    /// Lines that came too late to be put in order.
    pub late: u64,
}

impl<'r> Partition<'r> {
    pub fn new(
        window: Window<'r>,
        replayer: Replayer<'r>,
        baseline: Option<Replayer<'r>>,
        variants: Vec<Replayer<'r>>,
        is_refused: fn(&Parts) -> bool,
    ) -> Self {
        let replays = Replays {
            replayer,
            baseline,
            variants,
            changes: Changes::default(),
            fidelity: Changes::default(),
            minutes: Minutes::default(),
            requests: RequestMaker::new(is_refused),
        };
        Self { window, replays }
    }

    /// Adds lines in the order of the log.
    fn push(&mut self, lines: Vec<LogLine>) {
        self.window.push(lines);
    }

    /// Replays the lines that came before `until`, if enough wait to be worth it.
    fn replay_until(&mut self, until: Timestamp) {
        if self.window.is_worth_it() {
            self.window.take(until, |line| self.replays.replay(line));
        }
    }

    /// Replays the rest.
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
    fn replay(&mut self, line: &mut LogLine) {
        let past = self.requests.request(line);
        let is = self.replayer.arrive(past);
        for variant in &mut self.variants {
            variant.arrive(past);
        }
        let is_comparable = |recorded: &Recorded| recorded.decision.is_reproducible();
        let recorded = past.line.recorded.filter(is_comparable);
        let recorded = recorded.map(|recorded| Outcome::new(recorded.decision, recorded.by));
        let names = self.replayer.names();
        let was = match &mut self.baseline {
            Some(baseline) => {
                let was = baseline.arrive(past);
                match recorded {
                    Some(recorded) => {
                        let example = || example(past, recorded, was, names);
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
                let example = || example(past, was, is, names);
                self.changes.compare(was, is, example);
            }
            None => self.changes.not_compared += 1,
        }
        let minute = self
            .minutes
            .entry(past.line.at.as_nanos() / MINUTE)
            .or_default();
        *minute += Minute {
            requests: 1,
            denied: is.is_denied().into(),
            denied_before: was.is_some_and(Outcome::is_denied).into(),
        };
        if let Some(was) = was {
            self.count_change(was, is);
        }
    }

    /// Counts a change for the limit that denies, or denied.
    fn count_change(&mut self, was: Outcome, is: Outcome) {
        let limit = match (was.is_denied(), is.is_denied()) {
            (false, true) => is.by,
            (true, false) => was.by,
            _ => return,
        };
        if let Some(limit) = limit.and_then(|name| self.replayer.limit_named(name)) {
            match is.is_denied() {
                true => limit.newly_denied += 1,
                false => limit.no_longer_denied += 1,
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
            *self.minutes.entry(minute).or_default() += more;
        }
        self.late += other.late;
    }
}

/// A request whose outcomes differ.
fn example(past: PastRequest<'_>, was: Outcome, is: Outcome, names: &Names) -> Example {
    Example {
        at: past.line.at,
        client: past.line.client,
        request: format!("{} {}", past.request.method(), past.request.uri().path()),
        was: was.shown(names),
        is: is.shown(names),
    }
}

/// The memory for the lines that wait in all partitions. One of them may take what the others
/// leave, as one client may send nearly all requests.
#[derive(Debug)]
pub struct WaitingBytes {
    most: usize,
    /// What each partition may take in any case.
    share: usize,
    taken: AtomicUsize,
}

impl WaitingBytes {
    /// At most these bytes, in this many partitions.
    pub fn new(most: usize, partitions: usize) -> Self {
        Self {
            most,
            share: most / partitions.max(1),
            taken: AtomicUsize::new(0),
        }
    }

    fn is_exceeded(&self) -> bool {
        self.taken.load(Ordering::Relaxed) > self.most
    }
}

/// Lines that wait for those that belong before them.
#[derive(Debug)]
pub struct Window<'r> {
    waiting: Vec<LogLine>,
    /// The times of those that wait, and their indices, when they are put in order.
    order: Vec<(Timestamp, usize)>,
    /// They are put in order when there are more.
    sort_at: usize,
    /// The bytes that they take.
    bytes: usize,
    /// Those of all partitions.
    in_all: &'r WaitingBytes,
    /// When the last line was decided.
    decided: Timestamp,
    /// Whether times are of whole seconds, over which their lines are to be spread.
    is_coarse: bool,
    /// Lines that came too late to be put in order.
    late: u64,
}

impl<'r> Window<'r> {
    /// A window of lines that take their part of this memory.
    pub const fn new(in_all: &'r WaitingBytes, is_coarse: bool) -> Self {
        Self {
            waiting: Vec::new(),
            order: Vec::new(),
            sort_at: MIN_BATCH,
            bytes: 0,
            in_all,
            decided: Timestamp::from_nanos(0),
            is_coarse,
            late: 0,
        }
    }

    /// Adds lines in the order of the log.
    fn push(&mut self, mut lines: Vec<LogLine>) {
        if self.is_coarse {
            lines.iter_mut().for_each(|line| line.at = second(line.at));
        }
        let bytes = lines.iter().map(LogLine::bytes).sum();
        self.bytes += bytes;
        self.in_all.taken.fetch_add(bytes, Ordering::Relaxed);
        self.waiting.append(&mut lines);
    }

    /// Whether enough lines wait to be put in order.
    fn is_worth_it(&self) -> bool {
        self.waiting.len() >= self.sort_at || self.takes_too_much()
    }

    fn takes_too_much(&self) -> bool {
        self.bytes > self.in_all.share && self.in_all.is_exceeded()
    }

    /// Passes on the lines of before `until`, in order.
    fn take(&mut self, until: Timestamp, mut pass: impl FnMut(&mut LogLine)) {
        let until = match self.is_coarse {
            true if until != Timestamp::MAX => second(until),
            _ => until,
        };
        let waiting = self.waiting.iter();
        self.order.clear();
        // Of two lines at the same time the first of the log comes first.
        self.order.extend(waiting.map(|line| line.at).zip(0..));
        self.order.sort_unstable();
        let mut count = self.order.partition_point(|(at, _)| *at < until);
        while self.takes_too_much() && self.bytes_from(count) > self.in_all.share {
            count += (self.order.len() - count).div_ceil(2);
        }
        if let Some((last, _)) = count.checked_sub(1).and_then(|last| self.order.get(last))
            && self.is_coarse
        {
            // The rest of a second would be spread from its beginning again.
            let last = self.decided.max(*last);
            count = self.order.partition_point(|(at, _)| *at <= last);
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
        let mut freed = 0;
        for (at, index) in taken {
            if let Some(line) = self.waiting.get_mut(*index) {
                freed += line.bytes();
                line.shift(at.since(line.at));
                pass(line);
            }
        }
        self.bytes -= freed;
        self.in_all.taken.fetch_sub(freed, Ordering::Relaxed);
        // Those that are spared stay in the order of the log.
        let mut spared: Vec<usize> = spared.iter().map(|(_, index)| *index).collect();
        spared.sort_unstable();
        for (to, index) in spared.into_iter().enumerate() {
            self.waiting.swap(to, index);
        }
        self.waiting.truncate(self.order.len() - count);
        self.sort_at = MIN_BATCH.max(2 * self.waiting.len());
    }

    /// The bytes of the lines from this one on, in their order.
    fn bytes_from(&self, first: usize) -> usize {
        let lines = self.order.iter().skip(first);
        let lines = lines.filter_map(|(_, index)| self.waiting.get(*index));
        lines.map(LogLine::bytes).sum()
    }
}

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

impl LogLine {
    fn shift(&mut self, by: Nanos) {
        self.at = self.at + by;
        self.answered = self.answered + by;
        self.ended = self.ended + by;
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use http::Method;

    use super::*;

    fn line(at: u64, target: &str) -> LogLine {
        let at = Timestamp::from_nanos(at);
        LogLine {
            at,
            answered: at,
            ended: at,
            client: Ipv4Addr::LOCALHOST.into(),
            method: Method::GET,
            target: target.as_bytes().into(),
            status: None,
            details: None,
            recorded: None,
        }
    }

    /// Passes lines through a window that none of them is old enough to leave, and returns their
    /// times in the order in which they did.
    fn passed(lines: impl Iterator<Item = LogLine>, window: &mut Window<'_>) -> Vec<Timestamp> {
        let mut passed = Vec::new();
        let mut lines = lines.peekable();
        while lines.peek().is_some() {
            window.push(lines.by_ref().take(30).collect());
            if window.is_worth_it() {
                window.take(Timestamp::default(), |line| passed.push(line.at));
            }
            let bytes: usize = window.waiting.iter().map(LogLine::bytes).sum();
            assert_eq!(window.bytes, bytes);
            assert!(bytes <= window.in_all.most, "{bytes}");
        }
        window.take(Timestamp::MAX, |line| passed.push(line.at));
        assert_eq!(window.in_all.taken.load(Ordering::Relaxed), 0);
        passed
    }

    #[test]
    fn lines_that_wait_take_no_more_than_they_may_and_leave_in_order() {
        let in_all = WaitingBytes::new(100 * line(0, "/").bytes(), 1);
        let mut window = Window::new(&in_all, false);
        // Each line stands behind the one that came after it.
        let lines = (0..1500).map(|number| line(1000 + (number ^ 1), "/"));
        let times = passed(lines, &mut window);
        assert_eq!((times.len(), window.late), (1500, 0));
        assert!(times.is_sorted());
        // Long lines are fewer, and those of one moment are not kept until it is over.
        let long = format!("/{}", "a".repeat(2000));
        let lines = (0..300).map(|number| line(5000 + number / 200, &long));
        assert_eq!(passed(lines, &mut window).len(), 300);
    }

    #[test]
    fn time_never_goes_back_because_there_is_no_room_for_a_whole_second() {
        let in_all = WaitingBytes::new(100 * line(0, "/").bytes(), 1);
        let mut window = Window::new(&in_all, true);
        let seconds = [1; 60].into_iter().chain([2; 140]);
        window.push(seconds.map(|at| line(at * SECOND, "/")).collect());
        let mut times = Vec::new();
        window.take(Timestamp::default(), |line| times.push(line.at));
        window.push(vec![line(3 * SECOND, "/")]);
        window.take(Timestamp::MAX, |line| times.push(line.at));
        assert_eq!((times.len(), window.late), (201, 0));
        assert!(times.is_sorted(), "{times:?}");
    }

    #[test]
    fn one_partition_takes_what_others_leave_until_they_need_it() {
        let in_all = WaitingBytes::new(100 * line(0, "/").bytes(), 10);
        let mut all: Vec<Window<'_>> = (0..10).map(|_| Window::new(&in_all, false)).collect();
        let lines = |count| (0..count).map(|number| line(1000 + number, "/")).collect();
        all[0].push(lines(90));
        assert!(!all[0].is_worth_it());
        all[1..9]
            .iter_mut()
            .for_each(|window| window.push(lines(2)));
        assert!(all[1..].iter().all(|window| !window.is_worth_it()));
        assert!(all[0].is_worth_it());
        let mut passed = 0;
        all[0].take(Timestamp::default(), |_| passed += 1);
        assert!((80..90).contains(&passed), "{passed}");
        assert!(!in_all.is_exceeded());
    }
}
