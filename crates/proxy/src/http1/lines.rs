//! The lines of heads and trailer sections, as httparse finds them.

use std::mem::MaybeUninit;

use http::{StatusCode, Version};
use httparse::{Header, ParserConfig, Status};
use smallvec::SmallVec;

use super::malformed::Malformed;
use crate::response_bounds::MAX_LINES;

/// How many lines are parsed without an allocation.
const FEW_LINES: usize = 100;

/// Where in the buffer a name or a value is. httparse lends slices of the buffer, which has to be
/// cut before values can share it.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub(super) start: usize,
    pub(super) end: usize,
}

/// Name and value of each line.
pub(super) type Spans = SmallVec<[[Span; 2]; 24]>;

impl Span {
    fn new(part: &[u8], whole: &[u8]) -> Self {
        let start = part.as_ptr().addr() - whole.as_ptr().addr();
        let end = start + part.len();
        Self { start, end }
    }

    pub(super) fn slice(self, whole: &[u8]) -> &[u8] {
        whole.get(self.start..self.end).unwrap_or_default()
    }
}

/// The first line of a head, and how long the head is.
pub(super) struct StatusLine {
    pub(super) length: usize,
    pub(super) version: Version,
    pub(super) status: StatusCode,
    pub(super) reason: Option<Span>,
}

/// Why no lines are found.
pub(super) enum LineError {
    TooMany,
    Malformed(Malformed),
}

impl From<httparse::Error> for LineError {
    fn from(error: httparse::Error) -> Self {
        match error {
            httparse::Error::TooManyHeaders => Self::TooMany,
            error => Self::Malformed(error.into()),
        }
    }
}

/// Finds the lines of the head that `buffer` begins with, and appends them to `spans`; none before
/// the head is there as a whole.
///
/// A blank between a name and its colon is left out, as a proxy must remove it from a response
/// (RFC 9112 section 5.1). One within a name, before it, or where a line is folded is an error.
pub(super) fn find(buffer: &[u8], spans: &mut Spans) -> Result<Option<StatusLine>, LineError> {
    let mut few = [const { MaybeUninit::uninit() }; FEW_LINES];
    match find_at_most(&mut few, buffer, spans) {
        Err(LineError::TooMany) => {
            let mut many = vec![MaybeUninit::uninit(); MAX_LINES];
            find_at_most(&mut many, buffer, spans)
        }
        found => found,
    }
}

fn find_at_most<'b>(
    lines: &mut [MaybeUninit<Header<'b>>],
    buffer: &'b [u8],
    spans: &mut Spans,
) -> Result<Option<StatusLine>, LineError> {
    let mut parsed = httparse::Response::new(&mut []);
    let status = ParserConfig::default()
        .allow_spaces_after_header_name_in_responses(true)
        .parse_response_with_uninit_headers(&mut parsed, buffer, lines)?;
    let Status::Complete(length) = status else {
        return Ok(None);
    };
    spans.extend(
        parsed
            .headers
            .iter()
            .map(|line| [line.name.as_bytes(), line.value].map(|part| Span::new(part, buffer))),
    );
    // An empty one, which also stands for one that is not ASCII, is not in the buffer.
    let reason = parsed.reason.filter(|reason| !reason.is_empty());
    Ok(Some(StatusLine {
        length,
        version: match parsed.version {
            Some(1) => Version::HTTP_11,
            _ => Version::HTTP_10,
        },
        status: StatusCode::from_u16(parsed.code.unwrap_or_default())
            .map_err(|error| LineError::Malformed(Malformed::Field(error.into())))?,
        reason: reason.map(|reason| Span::new(reason.as_bytes(), buffer)),
    }))
}

/// The status of a head that is not there as a whole, or has too many lines.
pub(super) fn status_of(buffer: &[u8]) -> Option<StatusCode> {
    let mut parsed = httparse::Response::new(&mut []);
    // The status comes before what fails.
    let _ = parsed.parse(buffer);
    StatusCode::from_u16(parsed.code?).ok()
}
