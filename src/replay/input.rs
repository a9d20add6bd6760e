//! Log files, one after the other or at once, packed or not, in chunks of whole lines.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flate2::bufread::MultiGzDecoder;
use indicatif::ProgressBar;

use super::format::{Format, Parser};
use super::line::{Names, Wants};
use crate::time::Timestamp;

/// The bytes of a chunk, but for its last line.
const CHUNK_BYTES: usize = 1 << 20;

/// The bytes that are read to see what a file is, and when it begins.
const FIRST_BYTES: usize = 1 << 16;

/// The longest line. What is longer is a line that is malformed.
const LONGEST_LINE: usize = 1 << 18;

/// A chunk of whole lines.
#[derive(Debug)]
pub struct Chunk {
    /// The lines, each with its break but perhaps the last.
    pub bytes: Vec<u8>,
    /// The file that they are of.
    pub file: Arc<Path>,
    /// The number of the first of them in their file, from 1.
    pub first_line: u64,
}

/// One open file.
struct LogFile {
    path: Arc<Path>,
    reader: Box<dyn Read + Send>,
    /// The chunk that comes next, and the time of its first request.
    next: Option<(Chunk, Option<Timestamp>)>,
    /// What was read behind the last whole line.
    rest: Vec<u8>,
    next_line: u64,
}

/// All files of a log.
pub struct Input {
    files: Vec<LogFile>,
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
        let open = |path: &PathBuf| {
            LogFile::open(path, progress).map_err(|cause| InputError {
                path: path.clone(),
                cause,
            })
        };
        let mut files = paths.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let guessed = || {
            match files.iter().find_map(|file| file.next.as_ref()) {
                Some((chunk, _)) => guess(&chunk.bytes),
                // There is nothing to be read wrongly.
                None => Some(Format::Weir),
            }
        };
        let format = format.or_else(guessed).ok_or_else(|| InputError {
            path: paths.first().cloned().unwrap_or_default(),
            cause: io::Error::other(
                "its first lines are of no form that is known; say by --format which one it is",
            ),
        })?;
        let names = Names::default();
        let mut parser = format.parser(&names, Wants::default());
        let mut is_coarse = true;
        for file in &mut files {
            if let Some((chunk, time)) = &mut file.next {
                *time = parser.first_time(&chunk.bytes);
                is_coarse &= parser.is_coarse(&chunk.bytes);
            }
        }
        Ok(Self {
            files,
            format,
            is_coarse,
        })
    }

    /// The form of the log.
    pub const fn format(&self) -> Format {
        self.format
    }

    /// Whether its times are of whole seconds.
    pub const fn is_coarse(&self) -> bool {
        self.is_coarse
    }

    /// The next chunk: of all files, that which begins first.
    ///
    /// # Errors
    /// When its file cannot be read.
    pub fn next(&mut self) -> Result<Option<Chunk>, InputError> {
        let waiting = self.files.iter_mut().filter(|file| file.next.is_some());
        let time = |file: &&mut LogFile| file.next.as_ref().and_then(|(_, time)| *time);
        let Some(file) = waiting.min_by_key(time) else {
            return Ok(None);
        };
        let chunk = file.next.take().map(|(chunk, _)| chunk);
        let names = Names::default();
        let mut parser = self.format.parser(&names, Wants::default());
        file.advance(CHUNK_BYTES, Some(&mut parser))
            .map_err(|cause| InputError {
                path: file.path.to_path_buf(),
                cause,
            })?;
        Ok(chunk)
    }
}

/// The form that one of the first lines is of.
fn guess(lines: &[u8]) -> Option<Format> {
    let mut lines = lines.split(|byte| *byte == b'\n').take(20);
    lines.find_map(|line| (!line.is_empty()).then(|| Format::guess(line))?)
}

impl LogFile {
    fn open(path: &Path, progress: &ProgressBar) -> io::Result<Self> {
        let raw: Box<dyn Read + Send> = match path.as_os_str() == "-" {
            true => Box::new(io::stdin()),
            false => {
                let file = File::open(path)?;
                progress.inc_length(file.metadata()?.len());
                Box::new(file)
            }
        };
        let mut raw = BufReader::with_capacity(CHUNK_BYTES, progress.wrap_read(raw));
        let magic = raw.fill_buf()?;
        let reader: Box<dyn Read + Send> = if magic.starts_with(&[0x1f, 0x8b]) {
            Box::new(MultiGzDecoder::new(raw))
        } else if magic.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
            Box::new(zstd::Decoder::with_buffer(raw)?)
        } else {
            Box::new(raw)
        };
        let mut file = Self {
            path: path.into(),
            reader,
            next: None,
            rest: Vec::new(),
            next_line: 1,
        };
        file.advance(FIRST_BYTES, None)?;
        Ok(file)
    }

    /// Reads the next chunk.
    fn advance(&mut self, bytes: usize, parser: Option<&mut Parser<'_>>) -> io::Result<()> {
        let mut read = std::mem::take(&mut self.rest);
        loop {
            let wanted = bytes.saturating_sub(read.len()).max(FIRST_BYTES) as u64;
            let more = (&mut self.reader).take(wanted).read_to_end(&mut read)?;
            if more == 0 {
                break;
            }
            let end = memchr::memrchr(b'\n', &read).map(|last| last + 1);
            match end {
                Some(end) if read.len() >= bytes => {
                    self.rest = read.split_off(end);
                    break;
                }
                // A line without an end is cut, and what is left of it is malformed too.
                None if read.len() > bytes + LONGEST_LINE => break,
                _ => {}
            }
        }
        if read.is_empty() {
            self.next = None;
            return Ok(());
        }
        let first_line = self.next_line;
        self.next_line += memchr::memchr_iter(b'\n', &read).count() as u64;
        let time = parser.and_then(|parser| parser.first_time(&read));
        let chunk = Chunk {
            bytes: read,
            file: Arc::clone(&self.path),
            first_line,
        };
        self.next = Some((chunk, time));
        Ok(())
    }
}
