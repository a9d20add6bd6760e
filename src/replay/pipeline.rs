//! Reads, parses and replays at the same time, on all cores.
//!
//! Each round has the chunks of the last round replayed, a task for each partition, and the next
//! ones parsed, a task for each chunk. Threads take the tasks one by one. The partitions are as many
//! on every machine, so a replay has the same result on one core and on a hundred.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::input::{Chunk, Input, InputError};
use super::partition::{Counted, Partition};
use super::reading::{LogCounts, ParsedChunk, Reading};
use crate::time::{Nanos, Timestamp};

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
                last = last.max(chunk.last);
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
                            partition.window.push(std::mem::take(&mut lines.lock()));
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
