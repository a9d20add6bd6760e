//! Requests that tell where their body ends in two ways, by `Content-Length` and by
//! `Transfer-Encoding`.
//!
//! A server may go by the latter alone if it closes the connection afterwards (RFC 9112 section
//! 6.3). hyper does, and has dropped the former before a service sees the request. But no honest
//! client sends both, and whatever smuggles requests past another proxy does, so the bytes of a head
//! are looked at on their way to hyper.

/// The longest of the two names, with its colon.
const LONGEST: usize = CODING.len();

const LENGTH: &[u8] = b"content-length:";
const CODING: &[u8] = b"transfer-encoding:";

/// Looks for heads with both fields in what a connection receives.
///
/// It follows requests that have no body from head to head. Behind one with a body it would have to
/// read as hyper does to know where the next head begins, so it stops there until the connection has
/// been without a request.
#[derive(Debug, Default)]
pub(super) struct HeadScanner {
    /// The beginning of the line that is not complete yet.
    line: [u8; LONGEST],
    kept: usize,
    has_length: bool,
    has_coding: bool,
    is_over: bool,
}

impl HeadScanner {
    /// Expects the beginning of a head.
    pub(super) fn begin(&mut self) {
        *self = Self::default();
    }

    /// Looks at what comes next. Returns whether the head that it is part of has both fields.
    pub(super) fn scan(&mut self, mut bytes: &[u8]) -> bool {
        while !self.is_over
            && let Some(end) = memchr::memchr(b'\n', bytes)
        {
            let (line, rest) = bytes.split_at(end);
            self.keep(line);
            self.end_line();
            bytes = rest.get(1..).unwrap_or_default();
        }
        if !self.is_over {
            self.keep(bytes);
        }
        self.has_length && self.has_coding
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = self.line.get_mut(self.kept..).unwrap_or_default();
        let some = room.len().min(bytes.len());
        for (to, byte) in room.iter_mut().zip(bytes) {
            *to = byte.to_ascii_lowercase();
        }
        self.kept += some;
    }

    fn end_line(&mut self) {
        let line = self.line.get(..self.kept).unwrap_or_default();
        if matches!(line, b"" | b"\r") {
            // Before a head, where empty lines are allowed too, neither field has been seen yet.
            self.is_over = self.has_length || self.has_coding;
        }
        self.has_length |= line.starts_with(LENGTH);
        self.has_coding |= line.starts_with(CODING);
        self.kept = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: &str = "POST / HTTP/1.1\r\nhost: a\r\nContent-Length: 4\r\n\
                        x: y\r\nTRANSFER-encoding: chunked\r\n\r\n";

    fn scan(text: &str, size: usize) -> bool {
        let mut scanner = HeadScanner::default();
        let mut pieces = text.as_bytes().chunks(size);
        pieces.any(|piece| scanner.scan(piece))
    }

    #[test]
    fn a_head_with_both_fields_is_found_however_it_arrives_and_whatever_comes_before_it() {
        let get = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        let lines = BOTH.replace("\r\n", "\n");
        for text in [
            BOTH,
            &format!("\r\n{BOTH}"),
            &format!("{get}{get}{BOTH}"),
            &lines,
        ] {
            for size in [1, 7, text.len()] {
                assert!(scan(text, size), "{text:?} in pieces of {size}");
            }
        }
    }

    #[test]
    fn fields_of_different_requests_or_bodies_are_not_taken_for_one_head() {
        let length = "POST / HTTP/1.1\r\ncontent-length: 4\r\n\r\nbody";
        let coding = "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n";
        for text in [
            format!("{length}{coding}"),
            format!("{coding}{length}"),
            format!("{length}\r\ntransfer-encoding: chunked\r\n"),
            BOTH.replace("Content-Length", "X-Content-Length"),
            BOTH.replace("Content-Length", "Content-Length-X"),
        ] {
            for size in [1, text.len()] {
                assert!(!scan(&text, size), "{text:?} in pieces of {size}");
            }
        }
    }

    #[test]
    fn it_begins_anew_when_it_is_told_to() {
        let mut scanner = HeadScanner::default();
        assert!(!scanner.scan(b"POST / HTTP/1.1\r\ncontent-length: 4\r\n\r\n"));
        assert!(!scanner.scan(BOTH.as_bytes()), "that may be the body");
        scanner.begin();
        assert!(scanner.scan(BOTH.as_bytes()));
    }
}
