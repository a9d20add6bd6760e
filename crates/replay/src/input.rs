//! Log files, one after the other or at once, packed or not, in chunks of whole lines; and the
//! lines of a chunk, parsed and divided among the partitions.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io::{self, BufRead, BufReader, Read};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flate2::bufread::MultiGzDecoder;
use indicatif::ProgressBar;
use parking_lot::Mutex;
use serde::Serialize;
use weir_limit::time::Timestamp;
use weir_rules::ClientRules;
use weir_telemetry::printable;

use super::format::{
    DetailSet, Format, HEADER, LogLine, LogNeeds, MAX_LINE_BYTES, Names, ParseOptions, Parsed,
    Parser, Seen,
};
use super::ruleset::Partitioning;

/// The bytes of a chunk, but for its last line.
const CHUNK_BYTES: usize = 1 << 20;

/// The bytes that are read to see what a file is, and when it begins.
const SNIFFED_BYTES: usize = 1 << 16;

/// The most chunks that are looked at to find out what lines have.
const LOOKED_AT_CHUNKS: usize = 16;

/// How files begin that are packed by something that is not read here, and its name.
const UNREAD: [(&[u8], &str); 4] = [
    (b"\xfd7zXZ\0", "xz"),
    (b"BZh", "bzip2"),
    (b"PK\x03\x04", "zip"),
    (b"\x04\x22\x4d\x18", "lz4"),
];

/// The bytes of a usual line, to make room for as many lines as a chunk may have.
const LINE_BYTES: usize = 256;

/// Spreads numbers that are near each other over the whole range: 2^64 divided by the golden ratio.
const SPREADING: u64 = 0x9e37_79b9_7f4a_7c15;

/// How many malformed lines are shown.
const SHOWN: usize = 5;

/// As much of a malformed line as is shown.
const SHOWN_CHARS: usize = 120;

/// A chunk of whole lines.
#[derive(Debug)]
pub struct Chunk {
    /// The lines, each with its break but perhaps the last.
    pub bytes: Vec<u8>,
    /// The file that they are of.
    pub file: Arc<Path>,
    /// The number of the first of them in their file, from 1.
    pub first_line: u64,
    /// The line before them that names columns.
    pub header: Option<Arc<str>>,
}

struct LogFile {
    path: Arc<Path>,
    reader: Box<dyn Read + Send>,
    packed: Option<&'static str>,
    /// The chunk that comes next, and the time of its first request.
    next: Option<(Chunk, Option<Timestamp>)>,
    /// Bytes behind the last whole line.
    rest: Vec<u8>,
    next_line: u64,
    /// The last line that names columns, in a file that begins with comments.
    header: Option<Arc<str>>,
}

/// All files of a log.
pub struct Input {
    files: Vec<LogFile>,
    /// Chunks that were looked at, and come first.
    sample: VecDeque<Chunk>,
    format: Format,
    is_coarse: bool,
}

/// Why a log cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {cause}", path.display())]
pub struct InputError {
    path: PathBuf,
    cause: io::Error,
}

impl Input {
    /// Opens all files; `-` is standard input. What is read of them is added to `progress`.
    ///
    /// # Errors
    /// When one cannot be read, or the form of the log is not known.
    pub fn open(
        paths: &[PathBuf],
        format: Option<Format>,
        progress: &ProgressBar,
    ) -> Result<Self, InputError> {
        let is_same = |one: &Path, other: &Path| {
            let same_file = || one.canonicalize().ok() == other.canonicalize().ok();
            one == other || one.exists() && same_file()
        };
        for (index, path) in paths.iter().enumerate() {
            if paths.iter().take(index).any(|other| is_same(path, other)) {
                return Err(InputError {
                    path: path.clone(),
                    cause: io::Error::other(
                        "it is given twice, and its requests would count twice",
                    ),
                });
            }
        }
        let open = |path: &PathBuf| {
            LogFile::open(path, progress).map_err(|cause| InputError {
                path: path.clone(),
                cause,
            })
        };
        let mut files = paths.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let failed = |cause: &str| InputError {
            path: paths.first().cloned().unwrap_or_default(),
            cause: io::Error::other(cause),
        };
        let chunks = || files.iter().filter_map(|file| file.next.as_ref());
        let mut chunks = chunks().map(|(chunk, _)| &*chunk.bytes);
        let with_lines = chunks.find(|bytes| !bytes.trim_ascii().is_empty());
        let first =
            with_lines.ok_or_else(|| failed("it has no lines, so nothing can be replayed"))?;
        let format = Format::detect(first, format.as_ref()).ok_or_else(|| {
            failed(
                "its first lines are of no form that is known; say by --format which one it is, or \
                 describe it by a pattern: --format '$remote_addr [$time_local] \"$request\" $status'",
            )
        })?;
        let mut parser = format.parser(ParseOptions::default());
        let mut is_coarse = true;
        for file in &mut files {
            if let Some((chunk, time)) = &mut file.next {
                *time = parser.first_time(&chunk.bytes);
                is_coarse &= parser.is_coarse(&chunk.bytes);
            }
        }
        drop(parser);
        refuse_copies(&files)?;
        Ok(Self {
            files,
            sample: VecDeque::new(),
            format,
            is_coarse,
        })
    }

    pub fn format(&self) -> Format {
        self.format.clone()
    }

    /// What the first lines have: as many as it takes to find what rules ask for.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn look(&mut self, needs: &LogNeeds) -> Result<Seen, InputError> {
        let format = self.format();
        let mut parser = format.parser(ParseOptions {
            detail_set: DetailSet::ALL,
            ..ParseOptions::default()
        });
        let mut seen = Seen::new(&format);
        for chunks in 1..=LOOKED_AT_CHUNKS {
            let Some(chunk) = self.sample(chunks)?.get(chunks - 1) else {
                break;
            };
            parser.header(chunk.header.as_deref().unwrap_or_default());
            for line in chunk.bytes.split(|byte| *byte == b'\n') {
                if let Parsed::Request(line) = parser.parse(line) {
                    seen.note(&line);
                }
            }
            seen.note_form(&parser);
            if seen.is_enough(needs) {
                break;
            }
        }
        Ok(seen)
    }

    /// Whether its times are of whole seconds.
    pub const fn is_coarse(&self) -> bool {
        self.is_coarse
    }

    /// The first chunks, up to this many, which still are the next ones: standard input and pipes
    /// cannot be read twice.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn sample(&mut self, chunks: usize) -> Result<&VecDeque<Chunk>, InputError> {
        while self.sample.len() < chunks {
            let Some(chunk) = self.read()? else { break };
            self.sample.push_back(chunk);
        }
        Ok(&self.sample)
    }

    /// The next chunk.
    ///
    /// # Errors
    /// When its file cannot be read.
    pub fn next(&mut self) -> Result<Option<Chunk>, InputError> {
        match self.sample.pop_front() {
            Some(chunk) => Ok(Some(chunk)),
            None => self.read(),
        }
    }

    /// Of the chunks that come next in all files, that which begins first.
    fn read(&mut self) -> Result<Option<Chunk>, InputError> {
        let waiting = self.files.iter_mut().filter(|file| file.next.is_some());
        let time = |file: &&mut LogFile| file.next.as_ref().and_then(|(_, time)| *time);
        let Some(file) = waiting.min_by_key(time) else {
            return Ok(None);
        };
        let chunk = file.next.take().map(|(chunk, _)| chunk);
        let mut parser = self.format.parser(ParseOptions::default());
        file.advance(CHUNK_BYTES, Some(&mut parser))
            .map_err(|cause| InputError {
                path: file.path.to_path_buf(),
                cause,
            })?;
        Ok(chunk)
    }
}

/// Refuses files that begin alike: one under two names, beside its packed copy, or before more was
/// written.
fn refuse_copies(files: &[LogFile]) -> Result<(), InputError> {
    let mut known: Vec<(&[u8], &Path)> = Vec::new();
    // Files without a request may have the same comments.
    let begun = |file: &'_ LogFile| file.next.as_ref().is_some_and(|(_, time)| time.is_some());
    for file in files.iter().filter(|file| begun(file)) {
        let Some((Chunk { bytes, .. }, _)) = &file.next else {
            continue;
        };
        let is_same = |other: &[u8]| {
            let shared = bytes.len().min(other.len());
            bytes.get(..shared) == other.get(..shared)
        };
        if let Some((_, other)) = known.iter().find(|(other, _)| is_same(other)) {
            return Err(InputError {
                path: file.path.to_path_buf(),
                cause: io::Error::other(format!(
                    "it begins as {} does, and requests of the same log would count twice",
                    other.display()
                )),
            });
        }
        known.push((bytes, &file.path));
    }
    Ok(())
}

impl LogFile {
    fn open(path: &Path, progress: &ProgressBar) -> io::Result<Self> {
        let raw: Box<dyn Read + Send> = match path.as_os_str() == "-" {
            true => Box::new(io::stdin()),
            false => {
                let file = File::open(path)?;
                let metadata = file.metadata()?;
                if metadata.is_dir() {
                    return Err(io::Error::other("it is a directory; name the files in it"));
                }
                progress.inc_length(metadata.len());
                Box::new(file)
            }
        };
        let mut raw = BufReader::with_capacity(CHUNK_BYTES, progress.wrap_read(raw));
        let magic = raw.fill_buf()?;
        let is_packed_by = |start: &[u8]| magic.starts_with(start);
        if let Some((_, packer)) = UNREAD.iter().find(|(start, _)| is_packed_by(start)) {
            return Err(io::Error::other(format!(
                "it is packed by {packer}; unpack it, and replay `--log -` or the unpacked file"
            )));
        }
        let (reader, packed): (Box<dyn Read + Send>, _) = if is_packed_by(&[0x1f, 0x8b]) {
            (Box::new(MultiGzDecoder::new(raw)), Some("gzip"))
        } else if is_packed_by(&[0x28, 0xb5, 0x2f, 0xfd]) {
            (Box::new(zstd::Decoder::with_buffer(raw)?), Some("zstd"))
        } else {
            (Box::new(raw), None)
        };
        let mut file = Self {
            path: path.into(),
            reader,
            packed,
            next: None,
            rest: Vec::new(),
            next_line: 1,
            header: None,
        };
        file.advance(SNIFFED_BYTES, None)?;
        Ok(file)
    }

    fn advance(&mut self, bytes: usize, parser: Option<&mut Parser<'_>>) -> io::Result<()> {
        let mut read = Vec::with_capacity(bytes + SNIFFED_BYTES);
        read.append(&mut self.rest);
        loop {
            let wanted = bytes.saturating_sub(read.len()).max(SNIFFED_BYTES) as u64;
            if self.read(wanted, &mut read)? == 0 {
                break;
            }
            let end = memchr::memrchr(b'\n', &read).map(|last| last + 1);
            match end {
                Some(end) if read.len() >= bytes => {
                    self.rest = read.split_off(end);
                    break;
                }
                // As much of the line is kept as it takes to see that it is too long.
                None if read.len() > bytes + MAX_LINE_BYTES => {
                    self.rest = self.skip_line()?;
                    read.truncate(MAX_LINE_BYTES + 1);
                    read.push(b'\n');
                    break;
                }
                _ => {}
            }
        }
        if read.is_empty() {
            self.next = None;
            return Ok(());
        }
        let first_line = self.next_line;
        self.next_line += memchr::memchr_iter(b'\n', &read).count() as u64;
        let time = parser.and_then(|parser| {
            parser.header(self.header.as_deref().unwrap_or_default());
            parser.first_time(&read)
        });
        let is_commented = first_line == 1 && read.starts_with(b"#") || self.header.is_some();
        let header = self.header.clone();
        if let Some(last) = is_commented.then(|| last_header(&read)).flatten() {
            self.header = Some(last);
        }
        let chunk = Chunk {
            bytes: read,
            file: Arc::clone(&self.path),
            first_line,
            header,
        };
        self.next = Some((chunk, time));
        Ok(())
    }

    /// Reads as many bytes, if there are.
    fn read(&mut self, wanted: u64, to: &mut Vec<u8>) -> io::Result<usize> {
        let read = (&mut self.reader).take(wanted).read_to_end(to);
        read.map_err(|error| match self.packed {
            Some(packer) => io::Error::other(format!(
                "it is packed by {packer}, and cut off or damaged ({error})"
            )),
            None => error,
        })
    }

    /// Skips the rest of a line, and returns what was read behind it.
    fn skip_line(&mut self) -> io::Result<Vec<u8>> {
        let mut read = Vec::with_capacity(SNIFFED_BYTES);
        loop {
            read.clear();
            if self.read(SNIFFED_BYTES as u64, &mut read)? == 0 {
                return Ok(read);
            }
            if let Some(end) = memchr::memchr(b'\n', &read) {
                return Ok(read.split_off(end + 1));
            }
        }
    }
}

/// The last line that names columns.
fn last_header(lines: &[u8]) -> Option<Arc<str>> {
    let start = memchr::memmem::rfind(lines, HEADER.as_bytes())?;
    let line = lines.get(start..)?.split(|byte| *byte == b'\n').next()?;
    str::from_utf8(line).ok().map(Into::into)
}

#[derive(Clone, Debug)]
pub struct Reading<'n> {
    pub format: Format,
    pub names: &'n Names,
    pub detail_set: DetailSet,
    /// Who the trusted proxies are.
    pub clients: &'n ClientRules,
    /// The host of requests that the log has none of.
    pub host: Option<&'n str>,
    /// The first moment that counts.
    pub from: Timestamp,
    /// The first moment after it that does not.
    pub to: Timestamp,
    pub partitioning: Partitioning,
    pub partitions: usize,
}

/// Counts of a log's lines.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LogCounts {
    pub lines: u64,
    /// Requests that are replayed.
    pub requests: u64,
    /// Requests before `--from` or after `--to`.
    pub outside: u64,
    /// Lines that are not about requests.
    pub other: u64,
    /// Of these, how many say that an operator changed buckets, bans or overrides before `--to`.
    pub operator_changes: BTreeMap<&'static str, u64>,
    /// Lines that cannot be read.
    pub malformed: u64,
    /// The first lines that cannot be read.
    pub examples: Vec<Malformed>,
    /// Requests whose client is one of `trusted_proxies`.
    pub of_proxies: u64,
    /// Requests with a list of addresses for a client, of which the leftmost was taken, as no proxy
    /// is trusted.
    pub leftmost: u64,
    /// Requests with the status 429 in a log that is not Weir's: something in front denied them.
    pub denied_elsewhere: u64,
    /// The time of the first and the last request.
    #[serde(skip)]
    pub span: Option<(Timestamp, Timestamp)>,
}

/// A line that cannot be read.
#[derive(Clone, Debug, Serialize)]
pub struct Malformed {
    pub file: String,
    pub line: u64,
    /// Why it cannot be read.
    pub why: &'static str,
    /// The beginning of the line.
    pub text: String,
}

/// A chunk whose lines are parsed.
#[derive(Debug, Default)]
pub struct ParsedChunk {
    /// By partition, in the order of the log.
    pub lines: Vec<Mutex<Vec<LogLine>>>,
    pub counts: LogCounts,
    /// When half of its requests were over: a few lines of a clock that was wrong do not move it.
    pub until: Timestamp,
}

impl Reading<'_> {
    pub fn parse(&self, chunk: &Chunk) -> ParsedChunk {
        let has_proxies = self.clients.has_trusted_proxies();
        let mut parser = self.format.parser(ParseOptions {
            names: Some(self.names),
            detail_set: self.detail_set,
            clients: has_proxies.then_some(self.clients),
            host: self.host,
        });
        parser.header(chunk.header.as_deref().unwrap_or_default());
        let looks_for_proxies = has_proxies && !self.format.knows_client();
        let few = chunk.bytes.len() / LINE_BYTES / self.partitions;
        let mut lines: Vec<Vec<LogLine>> = Vec::new();
        lines.resize_with(self.partitions, || Vec::with_capacity(few));
        let mut counts = LogCounts::default();
        let mut ends = Vec::with_capacity(chunk.bytes.len() / LINE_BYTES);
        let mut start = 0;
        let breaks = memchr::memchr_iter(b'\n', &chunk.bytes).chain([chunk.bytes.len()]);
        for (number, end) in (chunk.first_line..).zip(breaks) {
            let text = chunk.bytes.get(start..end).unwrap_or_default();
            start = end + 1;
            if text.is_empty() {
                continue;
            }
            counts.lines += 1;
            match parser.parse(text.strip_suffix(b"\r").unwrap_or(text)) {
                Parsed::Request(line) => {
                    ends.push(line.ended);
                    if line.at < self.from || line.at >= self.to {
                        counts.outside += 1;
                        continue;
                    }
                    counts.request(&line);
                    let is_proxy = looks_for_proxies && self.clients.trusts(line.client);
                    counts.of_proxies += u64::from(is_proxy);
                    if let Some(lines) = lines.get_mut(self.partition(&line)) {
                        lines.push(line);
                    }
                }
                Parsed::OperatorChange(change, at) => {
                    counts.other += 1;
                    if at < self.to {
                        *counts.operator_changes.entry(change).or_default() += 1;
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
        counts.leftmost = parser.leftmost();
        ParsedChunk {
            lines: lines.into_iter().map(Mutex::new).collect(),
            counts,
            until: middle(&mut ends),
        }
    }

    fn partition(&self, line: &LogLine) -> usize {
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        let hash = match self.partitioning {
            Partitioning::One => return 0,
            Partitioning::Address {
                v4_prefix,
                v6_prefix,
            } => match line.client {
                IpAddr::V4(address) => {
                    let cut = 32_u32.saturating_sub(v4_prefix.into());
                    let network = address.to_bits().checked_shr(cut).unwrap_or_default();
                    u64::from(network).wrapping_mul(SPREADING)
                }
                IpAddr::V6(address) => {
                    let cut = 128_u32.saturating_sub(v6_prefix.into());
                    hasher.hash_one(address.to_bits().checked_shr(cut))
                }
            },
            Partitioning::Account => {
                let details = line.details.as_ref();
                hasher.hash_one(details.and_then(|details| details.account.as_ref()))
            }
        };
        let scaled = u128::from(hash) * self.partitions as u128;
        usize::try_from(scaled >> 64).unwrap_or_default()
    }
}

/// The median.
fn middle(times: &mut [Timestamp]) -> Timestamp {
    match times.len() {
        0 => Timestamp::default(),
        count => *times.select_nth_unstable(count / 2).1,
    }
}

/// As much of a line as is shown, without what would disturb a terminal.
fn beginning(line: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(line)
        .chars()
        .take(SHOWN_CHARS)
        .collect();
    printable(&text).into_owned()
}

impl LogCounts {
    fn request(&mut self, line: &LogLine) {
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
        self.of_proxies += later.of_proxies;
        self.leftmost += later.leftmost;
        self.denied_elsewhere += later.denied_elsewhere;
        for (change, count) in later.operator_changes {
            *self.operator_changes.entry(change).or_default() += count;
        }
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
