//! Parses chunks of a log into lines for the partitions.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

use parking_lot::Mutex;
use serde::Serialize;

use super::format::{Format, Parsed};
use super::input::Chunk;
use super::line::{Line, Names, Wants};
use super::ruleset::Partitioning;
use crate::time::Timestamp;

/// How many malformed lines are shown.
const SHOWN: usize = 5;

/// As much of a malformed line as is shown.
const SHOWN_CHARS: usize = 120;

/// How a log is read.
#[derive(Clone, Copy, Debug)]
pub struct Reading<'n> {
    pub format: Format,
    pub names: &'n Names,
    pub wants: Wants,
    /// The first moment that counts.
    pub from: Timestamp,
    /// The first moment after it that does not.
    pub to: Timestamp,
    pub partitioning: Partitioning,
    pub partitions: usize,
}

/// What a log holds.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LogCounts {
    /// All lines.
    pub lines: u64,
    /// Those of requests that are replayed.
    pub requests: u64,
    /// Those of requests before `--from` or after `--to`.
    pub outside: u64,
    /// Those that are not about requests.
    pub other: u64,
    /// Those that cannot be read.
    pub malformed: u64,
    /// The first of these.
    pub examples: Vec<Malformed>,
    /// Requests with the status 429 in a log that is not Weir's: something in front denied them.
    pub denied_elsewhere: u64,
    /// The time of the first and the last request.
    #[serde(skip)]
    pub span: Option<(Timestamp, Timestamp)>,
}

/// A line that cannot be read.
#[derive(Clone, Debug, Serialize)]
pub struct Malformed {
    /// Its file.
    pub file: String,
    /// Its number.
    pub line: u64,
    /// Why not.
    pub why: &'static str,
    /// How it begins.
    pub text: String,
}

/// A chunk whose lines are parsed.
#[derive(Debug, Default)]
pub struct ParsedChunk {
    /// By partition, in the order of the log.
    pub lines: Vec<Mutex<Vec<Line>>>,
    pub counts: LogCounts,
    /// When the last of its requests was over.
    pub last: Timestamp,
}

impl Reading<'_> {
    /// Parses all lines of a chunk.
    pub fn parse(&self, chunk: &Chunk) -> ParsedChunk {
        let mut parser = self.format.parser(self.names, self.wants);
        let mut lines: Vec<Vec<Line>> = (0..self.partitions).map(|_| Vec::new()).collect();
        let mut counts = LogCounts::default();
        let mut last = Timestamp::default();
        let mut start = 0;
        let ends = memchr::memchr_iter(b'\n', &chunk.bytes).chain([chunk.bytes.len()]);
        for (number, end) in (chunk.first_line..).zip(ends) {
            let text = chunk.bytes.get(start..end).unwrap_or_default();
            start = end + 1;
            if text.is_empty() {
                continue;
            }
            counts.lines += 1;
            match parser.parse(text.strip_suffix(b"\r").unwrap_or(text)) {
                Parsed::Request(line) => {
                    last = last.max(line.ended);
                    if line.at < self.from || line.at >= self.to {
                        counts.outside += 1;
                        continue;
                    }
                    counts.request(&line);
                    if let Some(lines) = lines.get_mut(self.partition(&line)) {
                        lines.push(line);
                    }
                }
                Parsed::Other => counts.other += 1,
                Parsed::Malformed(why) => counts.malformed(|| Malformed {
                    file: chunk.file.display().to_string(),
                    line: number,
                    why,
                    text: beginning(text),
                }),
            }
        }
        ParsedChunk {
            lines: lines.into_iter().map(Mutex::new).collect(),
            counts,
            last,
        }
    }

    /// The partition of a request.
    fn partition(&self, line: &Line) -> usize {
        let mut hasher = DefaultHasher::new();
        match self.partitioning {
            Partitioning::One => return 0,
            Partitioning::Address {
                v4_prefix,
                v6_prefix,
            } => match line.client {
                IpAddr::V4(address) => {
                    let cut = 32_u32.saturating_sub(v4_prefix.into());
                    address.to_bits().checked_shr(cut).hash(&mut hasher);
                }
                IpAddr::V6(address) => {
                    let cut = 128_u32.saturating_sub(v6_prefix.into());
                    address.to_bits().checked_shr(cut).hash(&mut hasher);
                }
            },
            Partitioning::Account => {
                let details = line.details.as_ref();
                details
                    .and_then(|details| details.account.as_ref())
                    .hash(&mut hasher);
            }
        }
        let partitions = self.partitions as u64;
        usize::try_from(hasher.finish() % partitions).unwrap_or_default()
    }
}

/// As much of a line as is shown, without what would disturb a terminal.
fn beginning(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    text.chars()
        .take(SHOWN_CHARS)
        .flat_map(char::escape_debug)
        .collect()
}

impl LogCounts {
    fn request(&mut self, line: &Line) {
        self.requests += 1;
        let denied = line.status.is_some_and(|status| status.as_u16() == 429);
        self.denied_elsewhere += u64::from(denied && line.recorded.is_none());
        self.span = match self.span {
            None => Some((line.at, line.at)),
            Some((first, last)) => Some((first.min(line.at), last.max(line.at))),
        };
    }

    fn malformed(&mut self, example: impl FnOnce() -> Malformed) {
        self.malformed += 1;
        if self.examples.len() < SHOWN {
            self.examples.push(example());
        }
    }

    /// Adds those of a later chunk.
    pub fn add(&mut self, later: Self) {
        self.lines += later.lines;
        self.requests += later.requests;
        self.outside += later.outside;
        self.other += later.other;
        self.malformed += later.malformed;
        self.denied_elsewhere += later.denied_elsewhere;
        self.examples.extend(later.examples);
        self.examples.truncate(SHOWN);
        self.span = match (self.span, later.span) {
            (Some((first, last)), Some((other_first, other_last))) => {
                Some((first.min(other_first), last.max(other_last)))
            }
            (span, later) => span.or(later),
        };
    }
}
