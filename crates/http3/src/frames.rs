//! Bounds the frames that h3 buffers.
//!
//! h3 waits for the whole of a frame that is not DATA, however long it is, takes a stream that ends
//! within DATA for complete, and DATA without a payload for the end of a body. So frames are
//! followed as they arrive, and what HEADERS have is looked at before h3 does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use h3::error::Code;

use crate::field_lines::are_in_order;

/// DATA (RFC 9114, section 7.2.1), which h3 passes on as it arrives.
const DATA: u64 = 0;

/// HEADERS (RFC 9114, section 7.2.2).
const HEADERS: u64 = 1;

/// How many frames without a payload a stream may have. They are allowed, and cost their reader
/// more than their sender.
const MAX_EMPTY: u32 = 1000;

/// The type of the control stream (RFC 9114, section 6.2.1), which has frames as well.
const CONTROL: u64 = 0;

/// What a connection may have of incomplete frames.
#[derive(Clone, Debug)]
pub(crate) struct FrameBudget {
    /// The largest frame.
    largest: u64,
    /// All streams together.
    most: u32,
    held: Arc<AtomicU32>,
}

impl FrameBudget {
    pub(crate) fn new(largest: u32, most: u32) -> Self {
        Self {
            largest: u64::from(largest),
            most,
            held: Arc::default(),
        }
    }

    fn hold(&self, bytes: u32) -> bool {
        let before = self.held.fetch_add(bytes, Relaxed);
        before.saturating_add(bytes) <= self.most
    }
}

/// What comes next on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    StreamType,
    FrameType,
    Length {
        of: Kind,
    },
    Payload {
        left: u64,
        of: Kind,
    },
    /// No frames follow.
    Unframed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Data,
    Headers,
    Other,
}

/// What is wrong with a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The connection ends by this code.
    Connection(Code),
    /// The request is malformed.
    Request,
}

const EXCESSIVE: Fault = Fault::Connection(Code::H3_EXCESSIVE_LOAD);

/// Follows the frames of one stream.
#[derive(Debug)]
pub(crate) struct Frames {
    part: Part,
    number: PartialNumber,
    budget: FrameBudget,
    /// The bytes of the incomplete frame.
    held: u32,
    /// What has arrived of incomplete HEADERS.
    section: Vec<u8>,
    /// The next HEADERS are trailers.
    had_headers: bool,
    /// No DATA and HEADERS follow.
    had_trailers: bool,
    /// Frames without a payload.
    empty: u32,
    /// Those of them that are DATA.
    empty_data: EmptyData,
}

/// How many DATA frames without a payload have arrived on a stream, for who reads it by h3.
#[derive(Clone, Debug, Default)]
pub(crate) struct EmptyData(Arc<AtomicU32>);

impl EmptyData {
    pub(crate) fn count(&self) -> u32 {
        self.0.load(Relaxed)
    }
}

impl Frames {
    /// Of a request.
    pub(crate) fn of_request(budget: FrameBudget) -> Self {
        Self::beginning(Part::FrameType, budget)
    }

    /// Of a stream that begins with its type.
    pub(crate) fn of_other(budget: FrameBudget) -> Self {
        Self::beginning(Part::StreamType, budget)
    }

    fn beginning(part: Part, budget: FrameBudget) -> Self {
        Self {
            part,
            number: PartialNumber::default(),
            budget,
            held: 0,
            section: Vec::new(),
            had_headers: false,
            had_trailers: false,
            empty: 0,
            empty_data: EmptyData::default(),
        }
    }

    pub(crate) fn empty_data(&self) -> EmptyData {
        self.empty_data.clone()
    }

    /// Follows the next bytes.
    ///
    /// # Errors
    /// When a frame is too long or all are, or the request is malformed.
    pub(crate) fn follow(&mut self, mut bytes: &[u8]) -> Result<(), Fault> {
        while let Some((first, rest)) = bytes.split_first() {
            if let Part::Unframed = self.part {
                return Ok(());
            }
            if let Part::Payload { left, of } = self.part {
                let here = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                let (payload, behind) = bytes.split_at_checked(here).unwrap_or((bytes, &[]));
                bytes = behind;
                self.take(left, payload, of)?;
                continue;
            }
            bytes = rest;
            if let Some(number) = self.number.push(*first) {
                self.begin(number)?;
            }
        }
        Ok(())
    }

    /// Whether the stream may not end here.
    pub(crate) fn is_cut(&self) -> bool {
        let has_begun = self.number.has_begun();
        match self.part {
            Part::StreamType | Part::Unframed => false,
            Part::FrameType => has_begun,
            Part::Length { .. } | Part::Payload { .. } => true,
        }
    }

    /// A number of the stream is complete.
    fn begin(&mut self, number: u64) -> Result<(), Fault> {
        self.part = match self.part {
            Part::StreamType if number == CONTROL => Part::FrameType,
            Part::StreamType | Part::Unframed => Part::Unframed,
            Part::FrameType => Part::Length {
                of: match number {
                    DATA => Kind::Data,
                    HEADERS => Kind::Headers,
                    _ => Kind::Other,
                },
            },
            Part::Length { of } if self.had_trailers && of != Kind::Other => {
                return Err(Fault::Connection(Code::H3_FRAME_UNEXPECTED));
            }
            Part::Length { of } if number == 0 => return self.end_empty(of),
            Part::Length { of } if of != Kind::Data && number > self.budget.largest => {
                return Err(EXCESSIVE);
            }
            Part::Length { of } => Part::Payload { left: number, of },
            part @ Part::Payload { .. } => part,
        };
        Ok(())
    }

    /// Takes a part of a payload.
    fn take(&mut self, left: u64, payload: &[u8], of: Kind) -> Result<(), Fault> {
        if of != Kind::Data {
            let here = u32::try_from(payload.len()).unwrap_or(u32::MAX);
            self.held = self.held.saturating_add(here);
            if !self.budget.hold(here) {
                return Err(EXCESSIVE);
            }
        }
        if of == Kind::Headers {
            self.section.extend_from_slice(payload);
        }
        match left.saturating_sub(payload.len() as u64) {
            0 => self.end(of),
            left => {
                self.part = Part::Payload { left, of };
                Ok(())
            }
        }
    }

    /// A frame without a payload is complete.
    fn end_empty(&mut self, of: Kind) -> Result<(), Fault> {
        self.empty = self.empty.saturating_add(1);
        if self.empty > MAX_EMPTY {
            return Err(EXCESSIVE);
        }
        if of == Kind::Data {
            self.empty_data.0.fetch_add(1, Relaxed);
        }
        self.end(of)
    }

    /// A frame is complete.
    fn end(&mut self, of: Kind) -> Result<(), Fault> {
        self.part = Part::FrameType;
        self.release();
        if of != Kind::Headers {
            return Ok(());
        }
        let section = std::mem::take(&mut self.section);
        let is_trailers = std::mem::replace(&mut self.had_headers, true);
        self.had_trailers = is_trailers;
        match are_in_order(&section, is_trailers) {
            true => Ok(()),
            false => Err(Fault::Request),
        }
    }

    fn release(&mut self) {
        self.budget.held.fetch_sub(self.held, Relaxed);
        self.held = 0;
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        self.release();
    }
}

/// A number of variable length (RFC 9000, section 16) that arrives byte by byte.
#[derive(Debug, Default)]
struct PartialNumber {
    value: u64,
    /// How many bytes of it are missing, once it has begun.
    missing: Option<u8>,
}

impl PartialNumber {
    fn has_begun(&self) -> bool {
        self.missing.is_some()
    }

    /// Adds a byte; the number once it is complete.
    fn push(&mut self, byte: u8) -> Option<u64> {
        let missing = match self.missing {
            Some(missing) => {
                self.value = (self.value << 8) | u64::from(byte);
                missing.saturating_sub(1)
            }
            None => {
                self.value = u64::from(byte & 0x3f);
                (1 << (byte >> 6)) - 1
            }
        };
        self.missing = Some(missing).filter(|missing| *missing > 0);
        self.missing.is_none().then_some(self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame with a length of four bytes.
    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap() | 0x8000_0000;
        [&[kind], &length.to_be_bytes()[..], payload].concat()
    }

    fn budget() -> FrameBudget {
        FrameBudget::new(100, 250)
    }

    #[test]
    fn frames_within_their_bounds_pass_however_they_arrive() {
        let stream = [
            frame(1, &[b'x'; 100]),
            frame(0, &[b'x'; 1000]),
            frame(0, b""),
            frame(0x21, &[b'x'; 100]),
            frame(1, b"trailers"),
        ]
        .concat();
        for size in [1, 7, stream.len()] {
            let mut frames = Frames::of_request(budget());
            for piece in stream.chunks(size) {
                assert_eq!(frames.follow(piece), Ok(()), "by {size}");
            }
            assert!(!frames.is_cut());
            assert_eq!(frames.budget.held.load(Relaxed), 0);
        }
    }

    #[test]
    fn a_frame_that_would_be_buffered_without_end_ends_the_connection_at_its_header() {
        for kind in [1, 4, 0x21] {
            let header = &frame(kind, &[b'x'; 101])[..5];
            let mut frames = Frames::of_request(budget());
            assert_eq!(frames.follow(header), Err(EXCESSIVE));
            let mut frames = Frames::of_other(budget());
            let control = [&[0], header].concat();
            assert_eq!(frames.follow(&control), Err(EXCESSIVE));
        }
        // These are no frames.
        let mut frames = Frames::of_other(budget());
        assert_eq!(frames.follow(&[2, 1, 0xff, 0xff, 0xff]), Ok(()));
    }

    #[test]
    fn the_incomplete_frames_of_all_streams_together_have_a_bound() {
        let budget = budget();
        let begun = &frame(1, &[b'x'; 100])[..104];
        let mut streams: Vec<_> = (0..3).map(|_| Frames::of_request(budget.clone())).collect();
        assert_eq!(streams[0].follow(begun), Ok(()));
        assert_eq!(streams[1].follow(begun), Ok(()));
        assert_eq!(streams[2].follow(begun), Err(EXCESSIVE));
        drop(streams);
        assert_eq!(budget.held.load(Relaxed), 0);
    }

    #[test]
    fn frames_without_a_payload_have_a_bound_and_those_of_data_are_told() {
        for one_more in [[0, 0], [0x21, 0]] {
            let mut frames = Frames::of_request(budget());
            let told = frames.empty_data();
            for _ in 0..MAX_EMPTY / 2 {
                assert_eq!(frames.follow(&[0, 0, 0x21, 0]), Ok(()));
            }
            assert_eq!(told.count(), MAX_EMPTY / 2);
            assert_eq!(frames.follow(&one_more), Err(EXCESSIVE));
        }
    }

    #[test]
    fn nothing_of_a_request_follows_its_trailers() {
        let whole = [frame(1, b"head"), frame(0, b"data"), frame(1, b"trailers")].concat();
        for behind in [&[0, 0], &[0, 1], &[1, 1]] {
            let mut frames = Frames::of_request(budget());
            assert_eq!(frames.follow(&whole), Ok(()));
            assert_eq!(frames.follow(&[0x21, 0]), Ok(()));
            let unexpected = Fault::Connection(Code::H3_FRAME_UNEXPECTED);
            assert_eq!(frames.follow(behind), Err(unexpected), "{behind:?}");
        }
    }

    #[test]
    fn a_stream_that_ends_within_a_frame_is_cut() {
        let stream = frame(0, b"data");
        for end in 1..stream.len() {
            let mut frames = Frames::of_request(budget());
            frames.follow(&stream[..end]).unwrap();
            assert!(frames.is_cut(), "after {end} bytes");
        }
    }
}
