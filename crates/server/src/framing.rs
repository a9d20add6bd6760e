//! Finds requests with both `Content-Length` and `Transfer-Encoding`.
//!
//! A server may use the latter alone if it closes the connection afterwards (RFC 9112, section
//! 6.3). hyper does that, and drops the former before a service sees the request. But no honest
//! client sends both, and request smuggling does, so the bytes of each head are scanned on their
//! way to hyper.

/// How many bytes are buffered of a line that arrives in pieces: enough for a `Content-Length` of
/// 20 digits, and for the longer of the two names.
const MAX_BUFFERED: usize = 40;

/// Stands for a length that is not a number, or exceeds what is buffered of its line.
const UNREADABLE: u64 = u64::MAX;

const LENGTH: &[u8] = b"content-length:";
const CODING: &[u8] = b"transfer-encoding:";

/// Follows the requests of an HTTP/1.1 connection from head to head, through the bodies in between,
/// as hyper reads them. What hyper refuses need not be followed, because it closes the connection.
#[derive(Debug)]
pub(super) struct FramingScanner {
    part: MessagePart,
    /// The beginning of an incomplete line.
    line: [u8; MAX_BUFFERED],
    buffered: usize,
    /// The last byte of an incomplete line, buffered or not.
    last: u8,
}

/// The part of a message that comes next.
#[derive(Clone, Copy, Debug)]
enum MessagePart {
    /// Lines of a head, and what the previous ones have declared.
    Head {
        is_begun: bool,
        length: Option<u64>,
        has_coding: bool,
    },
    Body {
        left: u64,
        is_chunk: bool,
    },
    ChunkSize,
    Trailers,
    /// No honest client gets here.
    Suspect,
}

/// The beginning of a head. Empty lines are allowed before it (RFC 9112 section 2.2).
const HEAD: MessagePart = MessagePart::Head {
    is_begun: false,
    length: None,
    has_coding: false,
};

impl Default for FramingScanner {
    fn default() -> Self {
        Self {
            part: HEAD,
            line: [0; MAX_BUFFERED],
            buffered: 0,
            last: 0,
        }
    }
}

impl FramingScanner {
    /// Scans the next bytes. Returns whether a request of this connection, now or before, had both
    /// headers or could not be followed.
    pub(super) fn scan(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            match self.part {
                MessagePart::Suspect => return true,
                MessagePart::Body { left, is_chunk } => {
                    let here = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                    bytes = bytes.get(here..).unwrap_or_default();
                    let left = left.saturating_sub(here as u64);
                    self.part = match (left, is_chunk) {
                        (0, false) => HEAD,
                        (0, true) => MessagePart::ChunkSize,
                        _ => MessagePart::Body { left, is_chunk },
                    };
                }
                MessagePart::Head { .. } | MessagePart::ChunkSize | MessagePart::Trailers => {
                    let Some(end) = memchr::memchr(b'\n', bytes) else {
                        self.buffer(bytes);
                        return false;
                    };
                    let (end_of_line, rest) = bytes.split_at(end);
                    bytes = rest.get(1..).unwrap_or_default();
                    self.end_line(end_of_line);
                }
            }
        }
        matches!(self.part, MessagePart::Suspect)
    }

    fn buffer(&mut self, bytes: &[u8]) {
        let room = self.line.get_mut(self.buffered..).unwrap_or_default();
        let some = room.len().min(bytes.len());
        for (to, byte) in room.iter_mut().zip(bytes) {
            *to = *byte;
        }
        self.buffered += some;
        self.last = bytes.last().copied().unwrap_or(self.last);
    }

    fn end_line(&mut self, end_of_line: &[u8]) {
        if self.buffered == 0 {
            self.last = end_of_line.last().copied().unwrap_or_default();
            self.part = self.next_part(end_of_line, false);
        } else {
            self.buffer(end_of_line);
            let line = self.line;
            let line = line.get(..self.buffered).unwrap_or_default();
            self.part = self.next_part(line, line.len() == MAX_BUFFERED);
            self.buffered = 0;
        }
    }

    /// The part that follows a line, of which the end is missing if `is_cut`.
    fn next_part(&self, line: &[u8], is_cut: bool) -> MessagePart {
        let is_empty = matches!(line, b"" | b"\r");
        match self.part {
            // Parking drops a carriage return that hyper has not used, and another may follow.
            MessagePart::Head {
                is_begun: false, ..
            } if line.iter().all(|&byte| byte == b'\r') => HEAD,
            MessagePart::Head {
                length, has_coding, ..
            } if is_empty => match (length, has_coding) {
                (Some(_), true) | (Some(UNREADABLE), false) => MessagePart::Suspect,
                (_, true) => MessagePart::ChunkSize,
                (None | Some(0), false) => HEAD,
                (Some(left), false) => MessagePart::Body {
                    left,
                    is_chunk: false,
                },
            },
            MessagePart::Head {
                mut length,
                mut has_coding,
                ..
            } => {
                // Most lines differ in their first letter.
                match line.first() {
                    Some(b'c' | b'C') => {
                        if let Some(value) = value_of(LENGTH, line) {
                            let declared = number(value).filter(|_| !is_cut);
                            length = Some(declared.unwrap_or(UNREADABLE));
                        }
                    }
                    Some(b't' | b'T') => has_coding |= value_of(CODING, line).is_some(),
                    _ => {}
                }
                MessagePart::Head {
                    is_begun: true,
                    length,
                    has_coding,
                }
            }
            MessagePart::ChunkSize if is_cut => MessagePart::Suspect,
            MessagePart::ChunkSize => match chunk_size(line) {
                None => MessagePart::Suspect,
                Some(0) => MessagePart::Trailers,
                // A line end follows each chunk.
                Some(size) => MessagePart::Body {
                    left: size.saturating_add(2),
                    is_chunk: true,
                },
            },
            MessagePart::Trailers if line == b"\r" => HEAD,
            // hyper ends a trailer at its carriage return, not at its line feed.
            MessagePart::Trailers if self.last != b'\r' => MessagePart::Suspect,
            part => part,
        }
    }
}

fn value_of<'l>(name: &[u8], line: &'l [u8]) -> Option<&'l [u8]> {
    let (start, value) = line.split_at_checked(name.len())?;
    start.eq_ignore_ascii_case(name).then_some(value)
}

fn number(value: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(value.trim_ascii()).ok()?;
    text.parse().ok()
}

fn chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit());
    let digits = line.get(..digits.count())?;
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: &str = "POST / HTTP/1.1\r\nhost: a\r\nContent-Length: 4\r\n\
                        x: y\r\nTRANSFER-encoding: chunked\r\n\r\n";
    const GET: &str = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
    const LENGTH: &str = "POST / HTTP/1.1\r\ncontent-length: 4\r\n\r\nbody";
    const CODING: &str = "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n\
                          4\r\nbody\r\nA;x=y\r\n0123456789\r\n0\r\nx: y\r\n\r\n";

    fn scan(text: &str, size: usize) -> bool {
        let mut scanner = FramingScanner::default();
        let mut pieces = text.as_bytes().chunks(size);
        pieces.any(|piece| scanner.scan(piece))
    }

    #[test]
    fn a_head_with_both_fields_is_found_however_it_arrives_and_behind_whatever_requests() {
        let swapped = "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length:0\r\n\r\n";
        let empty = LENGTH.replace(": 4", ":0").replace("body", "");
        let long_trailer = CODING.replace("x: y", &format!("x: {}", "y".repeat(2 * MAX_BUFFERED)));
        for before in [
            String::new(),
            "\r\n".to_owned(),
            "\r\r\n".to_owned(),
            format!("{GET}{GET}"),
            LENGTH.to_owned(),
            empty,
            CODING.to_owned(),
            long_trailer,
            format!("{LENGTH}\r\n{CODING}{GET}{CODING}"),
        ] {
            for both in [BOTH, swapped, &BOTH.replace("\r\n", "\n")] {
                let text = format!("{before}{both}");
                for size in [1, 7, text.len()] {
                    assert!(scan(&text, size), "{text:?} by {size}");
                    assert!(!scan(&before, size), "{before:?} by {size}");
                }
            }
        }
    }

    #[test]
    fn fields_of_different_requests_or_bodies_are_not_taken_for_one_head() {
        let fields = "content-length: 1\ntransfer-encoding: chunked\n\n";
        let upload = format!(
            "POST / HTTP/1.1\r\ncontent-length: {}\r\n\r\n{BOTH}{fields}",
            BOTH.len() + fields.len()
        );
        let chunk = format!("{:x}\r\n{BOTH}\r\n0\r\n\r\n", BOTH.len());
        let coding = "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n";
        for text in [
            format!("{LENGTH}{CODING}{LENGTH}{CODING}"),
            format!("{coding}{chunk}{LENGTH}"),
            format!("{upload}{CODING}"),
            BOTH.replace("Content-Length", "X-Content-Length"),
            BOTH.replace("Content-Length", "Content-Length-X"),
        ] {
            for size in [1, 7, text.len()] {
                assert!(!scan(&text, size), "{text:?} by {size}");
            }
        }
    }

    #[test]
    fn behind_what_cannot_be_followed_no_request_may_have_a_transfer_coding() {
        let blanks = " ".repeat(MAX_BUFFERED);
        let zeros = "0".repeat(MAX_BUFFERED);
        let long_trailer = "y".repeat(MAX_BUFFERED) + "\n";
        for text in [
            LENGTH.replace(": 4", &format!(":{blanks}4")),
            CODING.replace("x: y\r\n", "x: y\n"),
            CODING.replace("y\r\n", &long_trailer),
            CODING.replace("A;", &format!("{zeros}A;")),
        ] {
            let text = format!("{GET}{text}{CODING}{GET}");
            for size in [1, 7, text.len()] {
                // Without a line in pieces, nothing of it is cut.
                if size < text.len() || text.contains("y\n") {
                    assert!(scan(&text, size), "{text:?} by {size}");
                }
            }
        }
    }
}
