//! Finds the frames of HTTP/2 that h2 takes for errors of the protocol in general, although RFC
//! 9113 has codes of their own for them.
//!
//! A client is disconnected either way, but the code is what its author has to go by. Each frame is
//! scanned on its way to hyper, by its head, and `SETTINGS` by their values.
//!
//! h2 decodes all heads that have arrived before hyper takes the first of them, which the service
//! may refuse. So the scanner also says when heads enough have passed for one poll.

/// The preface of every HTTP/2 connection (RFC 9113, section 3.4). No HTTP/1.1 request begins like
/// this.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The length of a frame's head (RFC 9113, section 4.1).
const HEAD: usize = 9;

/// The length of a setting (section 6.5.1).
const SETTING: usize = 6;

/// From how many bytes of heads on no more are read in the same poll. Decoded, they may be some 70
/// times as many, if they refer to the shortest field that there can be.
const HEADS_IN_A_POLL: usize = 16 * 1024;

/// How many of the streams that the client has ended are remembered.
const MAX_ENDED: usize = 16;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 0x1;
const ACK: u8 = 0x1;
const END_HEADERS: u8 = 0x4;

/// An error of a connection, with its code (RFC 9113, section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum FrameError {
    FlowControl = 3,
    StreamClosed = 5,
    FrameSize = 6,
}

/// Follows what a client sends from frame to frame.
#[derive(Debug)]
pub(super) struct FrameScanner {
    /// The part of a frame's head that has arrived.
    head: [u8; HEAD],
    head_length: usize,
    /// How much of the preface or of a payload is still to come.
    left: usize,
    /// Whether the payload consists of settings, and what has arrived of one.
    is_settings: bool,
    setting: [u8; SETTING],
    setting_length: usize,
    /// Whether nothing but CONTINUATION may come. h2 reports anything else as it should.
    in_headers: bool,
    /// Streams that the client has ended, the last ones of them.
    ended: [u32; MAX_ENDED],
    next_ended: usize,
    highest: u32,
    /// The highest stream that hyper may have seen.
    passed: u32,
    /// The number of the last poll, and how many bytes of heads have begun in it.
    poll: u64,
    heads: usize,
}

impl Default for FrameScanner {
    fn default() -> Self {
        Self {
            head: [0; HEAD],
            head_length: 0,
            left: PREFACE.len(),
            is_settings: false,
            setting: [0; SETTING],
            setting_length: 0,
            in_headers: false,
            ended: [0; MAX_ENDED],
            next_ended: 0,
            highest: 0,
            passed: 0,
            poll: 0,
            heads: 0,
        }
    }
}

impl FrameScanner {
    /// Whether heads enough have passed in the poll with this number.
    pub(super) fn is_full(&mut self, poll: u64) -> bool {
        if self.poll != poll {
            (self.poll, self.heads) = (poll, 0);
        }
        self.heads >= HEADS_IN_A_POLL
    }

    /// Scans the next bytes. If there is an error in them, hyper must not see them.
    pub(super) fn scan(&mut self, mut bytes: &[u8]) -> Result<(), FrameError> {
        while !bytes.is_empty() {
            let wanted = match self.left {
                0 => HEAD - self.head_length,
                left => left,
            };
            let (some, rest) = bytes.split_at(wanted.min(bytes.len()));
            bytes = rest;
            if self.left > 0 {
                self.left -= some.len();
                if self.is_settings {
                    self.scan_settings(some)?;
                }
            } else if append(&mut self.head, &mut self.head_length, some) {
                self.begin_frame()?;
            }
        }
        self.passed = self.highest;
        Ok(())
    }

    /// The last frame of a connection that ends with this error.
    pub(super) fn go_away(&self, error: FrameError) -> [u8; HEAD + 8] {
        let [a, b, c, d] = self.passed.to_be_bytes();
        let code = error as u8;
        [0, 0, 8, GOAWAY, 0, 0, 0, 0, 0, a, b, c, d, 0, 0, 0, code]
    }

    fn begin_frame(&mut self) -> Result<(), FrameError> {
        self.head_length = 0;
        let [a, b, c, kind, flags, stream @ ..] = self.head;
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        let stream = u32::from_be_bytes(stream) & (u32::MAX >> 1);
        self.left = length;
        if matches!(kind, HEADERS | CONTINUATION) {
            self.heads += HEAD + length;
        }
        self.is_settings = kind == SETTINGS;
        self.setting_length = 0;
        if self.in_headers {
            self.in_headers = kind == CONTINUATION && flags & END_HEADERS == 0;
            return Ok(());
        }
        let is_wrong_size = match kind {
            PRIORITY => length != 5,
            RST_STREAM | WINDOW_UPDATE => length != 4,
            PING => length != 8,
            SETTINGS if flags & ACK != 0 => length != 0,
            SETTINGS => !length.is_multiple_of(SETTING),
            _ => false,
        };
        if is_wrong_size {
            return Err(FrameError::FrameSize);
        }
        if matches!(kind, DATA | HEADERS) && stream != 0 {
            if self.ended.contains(&stream) {
                return Err(FrameError::StreamClosed);
            }
            self.highest = self.highest.max(stream);
        }
        self.in_headers = kind == HEADERS && flags & END_HEADERS == 0;
        let ends = match kind {
            DATA | HEADERS => flags & END_STREAM != 0,
            kind => kind == RST_STREAM,
        };
        // The streams of frames that are errors by themselves do not matter.
        if ends && let Some(ended) = self.ended.get_mut(self.next_ended) {
            *ended = stream;
            self.next_ended = (self.next_ended + 1) % MAX_ENDED;
        }
        Ok(())
    }

    /// Looks for windows that are larger than windows can be (section 6.5.2).
    fn scan_settings(&mut self, mut bytes: &[u8]) -> Result<(), FrameError> {
        while !bytes.is_empty() {
            let wanted = SETTING - self.setting_length;
            let (some, rest) = bytes.split_at(wanted.min(bytes.len()));
            bytes = rest;
            if append(&mut self.setting, &mut self.setting_length, some) {
                self.setting_length = 0;
                // SETTINGS_INITIAL_WINDOW_SIZE
                if let [0, 4, 0x80..=0xff, ..] = self.setting {
                    return Err(FrameError::FlowControl);
                }
            }
        }
        Ok(())
    }
}

/// Appends to what has arrived, and returns whether it is complete.
fn append(to: &mut [u8], length: &mut usize, bytes: &[u8]) -> bool {
    for (to, byte) in to.iter_mut().skip(*length).zip(bytes) {
        *to = *byte;
    }
    *length += bytes.len();
    *length == to.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).unwrap();
        let head = [0, 0, length, kind, flags, 0, 0, 0, stream];
        [&head, payload].concat()
    }

    /// What is found in these frames behind a preface, in pieces of `size` bytes.
    fn scan(frames: &[Vec<u8>], size: usize) -> Result<(), FrameError> {
        let mut scanner = FrameScanner::default();
        let bytes = [PREFACE.to_vec(), frames.concat()].concat();
        bytes.chunks(size).try_for_each(|piece| scanner.scan(piece))
    }

    fn window(size: u32) -> Vec<u8> {
        [&[0, 3, 0, 0, 0, 9, 0, 4], &size.to_be_bytes()[..]].concat()
    }

    #[test]
    fn each_error_is_found_however_it_arrives() {
        let settings = frame(SETTINGS, 0, 0, &window(65_535));
        let request = frame(HEADERS, END_HEADERS | END_STREAM, 1, b"abc");
        let cases = [
            (frame(PING, 0, 0, b"1234567"), FrameError::FrameSize),
            (frame(PRIORITY, 0, 1, b"1234"), FrameError::FrameSize),
            (frame(RST_STREAM, 0, 1, b"12345"), FrameError::FrameSize),
            (frame(WINDOW_UPDATE, 0, 0, b"123"), FrameError::FrameSize),
            (frame(SETTINGS, 0, 0, b"1234567"), FrameError::FrameSize),
            (frame(SETTINGS, ACK, 0, b"123456"), FrameError::FrameSize),
            (
                frame(SETTINGS, 0, 0, &window(1 << 31)),
                FrameError::FlowControl,
            ),
            (frame(DATA, 0, 1, b"x"), FrameError::StreamClosed),
            (
                frame(HEADERS, END_HEADERS, 1, b"x"),
                FrameError::StreamClosed,
            ),
        ];
        for (wrong, error) in cases {
            let frames = [settings.clone(), request.clone(), wrong];
            for size in [1, 7, 1000] {
                assert_eq!(scan(&frames, size), Err(error), "{frames:?} by {size}");
            }
        }
    }

    #[test]
    fn what_a_client_may_send_is_no_error() {
        let frames = [
            frame(SETTINGS, 0, 0, &window((1 << 31) - 1)),
            frame(SETTINGS, ACK, 0, b""),
            frame(WINDOW_UPDATE, 0, 0, &[0, 0, 1, 0]),
            frame(HEADERS, END_HEADERS, 1, b"abc"),
            frame(HEADERS, END_STREAM, 3, b"abc"),
            frame(CONTINUATION, END_HEADERS, 3, b"abc"),
            frame(
                DATA,
                0,
                1,
                b"body that looks like \0\0\x01\x06\0\0\0\0\0 frames",
            ),
            frame(WINDOW_UPDATE, 0, 3, &[0, 0, 1, 0]),
            frame(PRIORITY, 0, 3, &[0, 0, 0, 0, 1]),
            // Trailers.
            frame(HEADERS, END_HEADERS | END_STREAM, 1, b"abc"),
            frame(RST_STREAM, 0, 3, &[0, 0, 0, 8]),
            frame(PING, 0, 0, b"12345678"),
            frame(0x55, 0xff, 1, b"unknown"),
        ];
        for size in [1, 7, 1000] {
            assert_eq!(scan(&frames, size), Ok(()));
        }
    }

    #[test]
    fn heads_wait_for_the_next_poll_when_enough_have_passed_and_bodies_do_not() {
        let mut scanner = FrameScanner::default();
        scanner.scan(PREFACE).unwrap();
        let passes = |scanner: &mut FrameScanner, kind| {
            let payload = [0; 255];
            scanner
                .scan(&frame(kind, END_HEADERS, 1, &payload))
                .unwrap();
        };
        for _ in 0..100 {
            assert!(!scanner.is_full(1));
            passes(&mut scanner, DATA);
        }
        for _ in 0..HEADS_IN_A_POLL.div_ceil(HEAD + 255) {
            assert!(!scanner.is_full(1));
            passes(&mut scanner, HEADERS);
        }
        assert!(scanner.is_full(1));
        assert!(!scanner.is_full(2));
    }

    #[test]
    fn the_last_frame_names_the_last_stream_that_was_passed_on() {
        let mut scanner = FrameScanner::default();
        scanner.scan(PREFACE).unwrap();
        let request = |stream| frame(HEADERS, END_HEADERS, stream, b"abc");
        scanner.scan(&request(5)).unwrap();
        let wrong = [request(7), frame(PING, 0, 0, b"1")].concat();
        let error = scanner.scan(&wrong).unwrap_err();
        let last = scanner.go_away(error);
        assert_eq!(last[..HEAD], [0, 0, 8, GOAWAY, 0, 0, 0, 0, 0]);
        assert_eq!(last[HEAD..], [0, 0, 0, 5, 0, 0, 0, 6]);
    }
}
