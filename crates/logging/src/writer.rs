//! The thread that writes log lines, and the lines that wait for it.
//!
//! Lines wait in a buffer of the thread that they come from, in the order in which they came, and
//! the writing thread takes all of a buffer at once: a busy gateway's lines cost one write for many
//! of them, and seldom a wake-up, and no worker waits for another's line.

use std::io;
use std::iter;
use std::mem;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tracing_subscriber::fmt::MakeWriter;

use super::sleeper::Sleeper;
use weir_telemetry::Striped;

/// How many bytes may wait, in buffers of all threads. A line of the access log has about 400.
const MAX_WAITING: usize = 16 * 1024 * 1024;

/// A buffer that has grown beyond this is not used again.
const MAX_KEPT: usize = 256 * 1024;

/// A pipe takes as many bytes at once, without bytes of another process between them (Linux's
/// `PIPE_BUF`). Two processes share a pipe while one takes the place of the other.
const PIPE_BUF: usize = 4096;

/// How long the thread lets lines gather before it takes them.
const GATHERS_FOR: Duration = Duration::from_millis(1);

/// How long the process waits at its end for the reader of its log.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Takes log lines. Clones take them for the same thread.
#[derive(Clone, Debug)]
pub(super) struct LogWriter(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    waiting: Striped<Mutex<Waiting>>,
    /// How many bytes may wait in each of these buffers.
    max_waiting: usize,
    /// The thread, which sleeps while no line waits.
    thread: Sleeper,
    end: Mutex<End>,
    /// The thread has ended.
    ended: Condvar,
}

/// The lines of a thread.
#[derive(Debug, Default)]
struct Waiting {
    lines: Vec<u8>,
    dropped: u64,
}

#[derive(Debug, Default)]
struct End {
    is_asked_for: bool,
    is_there: bool,
}

impl LogWriter {
    /// Starts the thread, which writes to `to`.
    pub(super) fn start(to: impl io::Write + Send + 'static) -> io::Result<Self> {
        let mut shared = Shared::default();
        // The thread must not find buffers missing and sleep while another makes them.
        shared.waiting.own();
        shared.max_waiting = MAX_WAITING / shared.waiting.all().count().max(1);
        let writer = Self(Arc::new(shared));
        let shared = Arc::clone(&writer.0);
        let run = move || shared.write_all(to);
        thread::Builder::new().name("weir-log".into()).spawn(run)?;
        Ok(writer)
    }

    /// Takes a line; drops it if the reader of the log is too slow.
    pub(super) fn write_line(&self, line: &[u8]) {
        let Some(waiting) = self.0.waiting.own() else {
            return;
        };
        let mut waiting = waiting.lock();
        if waiting.lines.len() + line.len() > self.0.max_waiting {
            waiting.dropped += 1;
            return;
        }
        waiting.lines.extend_from_slice(line);
        drop(waiting);
        self.0.thread.wake();
    }

    /// How many lines were dropped so far.
    pub(super) fn dropped(&self) -> u64 {
        let waiting = self.0.waiting.all();
        waiting.map(|waiting| waiting.lock().dropped).sum()
    }

    /// Writes what waits, and ends the thread.
    pub(super) fn close(&self) {
        self.0.end.lock().is_asked_for = true;
        self.0.thread.wake();
        let until = Instant::now() + FLUSH_TIMEOUT;
        let goes_on = |end: &mut End| !end.is_there;
        let mut end = self.0.end.lock();
        let _ = self.0.ended.wait_while_until(&mut end, goes_on, until);
    }
}

impl Shared {
    fn write_all(&self, mut to: impl io::Write) {
        let mut lines = Vec::new();
        loop {
            let is_last = self.end.lock().is_asked_for;
            if self.write_waiting(&mut to, &mut lines) {
                thread::sleep(GATHERS_FOR);
            } else if is_last {
                break;
            } else {
                self.thread.sleep_unless(|| self.has_work());
            }
        }
        self.end.lock().is_there = true;
        self.ended.notify_all();
    }

    /// Writes the lines that wait. False if there are none. `lines` is empty before and after.
    fn write_waiting(&self, to: &mut impl io::Write, lines: &mut Vec<u8>) -> bool {
        let mut has_written = false;
        for waiting in self.waiting.all() {
            let mut waiting = waiting.lock();
            if waiting.lines.is_empty() {
                continue;
            }
            mem::swap(&mut waiting.lines, lines);
            drop(waiting);
            for run in runs_of_lines(lines) {
                // Nobody could be told that the log cannot be written.
                let _ = to.write_all(run);
                has_written = true;
            }
            lines.clear();
            lines.shrink_to(MAX_KEPT);
        }
        if has_written {
            let _ = to.flush();
        }
        has_written
    }

    /// Whether lines wait, or the log is to be closed.
    fn has_work(&self) -> bool {
        let mut waiting = self.waiting.all();
        self.end.lock().is_asked_for || waiting.any(|waiting| !waiting.lock().lines.is_empty())
    }
}

/// Splits lines into runs of whole ones that fit into [`PIPE_BUF`], and lines that do not fit.
fn runs_of_lines(mut lines: &[u8]) -> impl Iterator<Item = &[u8]> {
    iter::from_fn(move || {
        let is_end = |byte: &u8| *byte == b'\n';
        let fitting = lines.get(..PIPE_BUF).unwrap_or(lines);
        let end = fitting.iter().rposition(is_end);
        let end = end.or_else(|| lines.iter().position(is_end));
        let (run, others) = lines.split_at(end.map_or(lines.len(), |end| end + 1));
        lines = others;
        (!run.is_empty()).then_some(run)
    })
}

/// The formatter of events writes each line at once.
impl io::Write for &LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.write_line(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'w> MakeWriter<'w> for LogWriter {
    type Writer = &'w Self;

    fn make_writer(&'w self) -> &'w Self {
        self
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;
    use crate::tests::Written;

    /// Takes nothing before the other end of the channel is gone.
    struct Stuck(Receiver<()>);

    impl io::Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn no_line_is_lost_or_overtaken_when_the_process_ends() {
        let written = Written::default();
        let writer = LogWriter::start(written.clone()).unwrap();
        let lines: Vec<_> = (0..10_000).map(|number| format!("{number}\n")).collect();
        for line in &lines {
            writer.write_line(line.as_bytes());
        }
        writer.close();
        assert_eq!(written.0.lock().as_slice(), lines.concat().as_bytes());
        assert_eq!(writer.dropped(), 0);
    }

    #[test]
    fn no_line_of_any_thread_is_lost_or_overtaken_by_one_of_the_same_thread() {
        let written = Written::default();
        let writer = LogWriter::start(written.clone()).unwrap();
        let all = |thread: usize| (0..2_000).map(move |number| format!("{thread}: {number}"));
        thread::scope(|scope| {
            for thread in 0..4 {
                let writer = &writer;
                scope.spawn(move || {
                    for line in all(thread) {
                        writer.write_line(format!("{line}\n").as_bytes());
                    }
                });
            }
        });
        writer.close();
        let written = String::from_utf8(written.0.lock().clone()).unwrap();
        for thread in 0..4 {
            let prefix = format!("{thread}: ");
            let lines = written.lines().filter(|line| line.starts_with(&prefix));
            assert!(lines.eq(all(thread)), "{thread}");
        }
    }

    #[test]
    fn no_line_that_fits_into_a_pipe_at_once_is_written_in_two_pieces() {
        let line = |length: usize| format!("{}\n", "a".repeat(length - 1));
        let lengths = [1, 400, 4095, 1, 4096, 9000, 3, 2000, 2096, 4097, 4000, 96];
        let lines: Vec<_> = lengths.map(line).into();
        let text = lines.concat();
        let runs: Vec<_> = runs_of_lines(text.as_bytes()).collect();
        assert_eq!(runs.concat(), text.as_bytes());
        for run in &runs {
            assert!(run.ends_with(b"\n"));
            let lines = run.iter().filter(|byte| **byte == b'\n').count();
            assert!(run.len() <= PIPE_BUF || lines == 1, "{}", run.len());
        }
        let lengths: Vec<_> = runs.iter().map(|run| run.len()).collect();
        assert_eq!(lengths, [401, 4096, 4096, 9000, 2003, 2096, 4097, 4096]);
    }

    #[test]
    fn a_reader_that_is_stuck_holds_nothing_up_and_takes_no_memory_without_bound() {
        let (released, stuck) = channel();
        let writer = LogWriter::start(Stuck(stuck)).unwrap();
        let line = [b'a'; 1024];
        for _ in 0..3 * MAX_WAITING / line.len() {
            writer.write_line(&line);
        }
        let waiting = writer.0.waiting.own().unwrap();
        let most = writer.0.max_waiting;
        assert!(waiting.lock().lines.len() <= most && most <= MAX_WAITING);
        // The thread has taken what fits at most once.
        assert!(writer.dropped() >= ((3 * MAX_WAITING - 2 * most) / line.len()) as u64);
        writer.close();
        drop(released);
    }
}
