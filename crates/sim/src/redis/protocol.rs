//! RESP as the server speaks it: commands as their bytes arrive, and replies in RESP2 or RESP3.

use bytes::{Buf, Bytes, BytesMut};

/// The longest line, and the longest inline command (`PROTO_INLINE_MAX_SIZE`).
const MAX_LINE: usize = 64 * 1024;

/// The longest word (`proto-max-bulk-len`).
pub(super) const MAX_WORD: i64 = 512 * 1024 * 1024;

/// How many words, and how long a word, a client may send that has not logged in.
const MAX_WORDS_BEFORE_LOGIN: i64 = 10;
const MAX_WORD_BEFORE_LOGIN: i64 = 16_384;

/// Splits what a client sends into commands.
#[derive(Debug, Default)]
pub(super) struct CommandReader {
    unread: BytesMut,
    words: Vec<Bytes>,
    /// How many words of the current command are still to come.
    missing: i64,
    /// The length of the next word, if its header was read.
    word: Option<i64>,
}

/// A command, or why the connection cannot be used any more.
pub(super) type ReadCommand = Result<Vec<Bytes>, String>;

impl CommandReader {
    pub(super) fn receive(&mut self, bytes: &[u8]) {
        self.unread.extend_from_slice(bytes);
    }

    /// The next command that is complete. One without words is to be skipped.
    pub(super) fn next(&mut self, is_logged_in: bool) -> Option<ReadCommand> {
        if self.missing == 0 {
            if self.unread.first()? != &b'*' {
                return self.inline();
            }
            let line = match self.line("too big mbulk count string") {
                Ok(line) => line?,
                Err(error) => return Some(Err(error)),
            };
            match integer(line.get(1..).unwrap_or_default()) {
                Some(count) if count <= i64::from(i32::MAX) => {
                    if count > MAX_WORDS_BEFORE_LOGIN && !is_logged_in {
                        return Some(Err("unauthenticated multibulk length".to_owned()));
                    }
                    self.missing = count.max(0);
                }
                _ => return Some(Err("invalid multibulk length".to_owned())),
            }
        }
        while self.missing > 0 {
            match self.next_word(is_logged_in) {
                Ok(word) => self.words.push(word?),
                Err(error) => return Some(Err(error)),
            }
            self.missing -= 1;
        }
        Some(Ok(std::mem::take(&mut self.words)))
    }

    fn next_word(&mut self, is_logged_in: bool) -> Result<Option<Bytes>, String> {
        let length = match self.word {
            Some(length) => length,
            None => {
                let Some(line) = self.line("too big bulk count string")? else {
                    return Ok(None);
                };
                let Some((b'$', digits)) = line.split_first() else {
                    let got = char::from(line.first().copied().unwrap_or(b'\r'));
                    return Err(format!("expected '$', got '{got}'"));
                };
                match integer(digits) {
                    Some(length @ 0..=MAX_WORD) => {
                        if length > MAX_WORD_BEFORE_LOGIN && !is_logged_in {
                            return Err("unauthenticated bulk length".to_owned());
                        }
                        *self.word.insert(length)
                    }
                    _ => return Err("invalid bulk length".to_owned()),
                }
            }
        };
        let length = usize::try_from(length).unwrap_or_default();
        if self.unread.len() < length + 2 {
            return Ok(None);
        }
        self.word = None;
        let word = self.unread.split_to(length).freeze();
        self.unread.advance(2);
        Ok(Some(word))
    }

    /// Takes a line off, up to a carriage return and the byte after it.
    fn line(&mut self, too_long: &str) -> Result<Option<Bytes>, String> {
        let Some(end) = self.unread.iter().position(|byte| *byte == b'\r') else {
            return match self.unread.len() > MAX_LINE {
                true => Err(too_long.to_owned()),
                false => Ok(None),
            };
        };
        if self.unread.len() < end + 2 {
            return Ok(None);
        }
        let line = self.unread.split_to(end).freeze();
        self.unread.advance(2);
        Ok(Some(line))
    }

    /// A command as people type it.
    fn inline(&mut self) -> Option<ReadCommand> {
        let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') else {
            let too_long = self.unread.len() > MAX_LINE;
            return too_long.then(|| Err("too big inline request".to_owned()));
        };
        let line = self.unread.split_to(end).freeze();
        self.unread.advance(1);
        let line = line.strip_suffix(b"\r").unwrap_or(&line);
        let words = split_quoted(line);
        Some(words.ok_or_else(|| "unbalanced quotes in request".to_owned()))
    }
}

/// Splits a line at its spaces, except within quotes; none when quotes are unbalanced.
fn split_quoted(line: &[u8]) -> Option<Vec<Bytes>> {
    let mut words = Vec::new();
    let mut rest = line.iter().copied().peekable();
    loop {
        while rest.next_if(u8::is_ascii_whitespace).is_some() {}
        if rest.peek().is_none() {
            return Some(words);
        }
        let mut word = Vec::new();
        let mut quote = None;
        while let Some(byte) = rest.next() {
            match (quote, byte) {
                (None, b'"' | b'\'') => quote = Some(byte),
                (None, byte) if byte.is_ascii_whitespace() => break,
                (Some(b'"'), b'\\') => word.push(match rest.next()? {
                    b'x' if let Some(byte) = hexadecimal(&rest) => {
                        rest.nth(1);
                        byte
                    }
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => other,
                }),
                (Some(b'\''), b'\\') if rest.peek() == Some(&b'\'') => {
                    word.extend(rest.next());
                }
                (Some(end), byte) if byte == end => {
                    // What follows a closing quote is a space, or the end.
                    if rest.peek().is_some_and(|next| !next.is_ascii_whitespace()) {
                        return None;
                    }
                    quote = None;
                    break;
                }
                (_, byte) => word.push(byte),
            }
        }
        if quote.is_some() {
            return None;
        }
        words.push(word.into());
    }
}

/// The byte that the next two digits stand for.
fn hexadecimal(rest: &(impl Iterator<Item = u8> + Clone)) -> Option<u8> {
    let digits: Vec<u8> = rest.clone().take(2).filter(u8::is_ascii_hexdigit).collect();
    let digits = std::str::from_utf8(&digits)
        .ok()
        .filter(|digits| digits.len() == 2)?;
    u8::from_str_radix(digits, 16).ok()
}

/// An integer as Redis takes one: no sign but a minus, no leading zero, no space.
pub(super) fn integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    match digits.first()? {
        b'0' if text != b"0" => None,
        b'0'..=b'9' => std::str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    }
}

/// A score as Redis takes one.
pub(super) fn double(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?;
    let number: f64 = text.parse().ok()?;
    let is_overflow = number.is_infinite() && text.contains(|char: char| char.is_ascii_digit());
    (!number.is_nan() && !is_overflow).then_some(number)
}

/// A double as C's `%.17g` writes it.
pub(super) fn format_double(number: f64) -> String {
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{number:.16e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if !(-4..17).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", trimmed(digits), exponent.abs());
    }
    let decimals = usize::try_from(16 - exponent).unwrap_or_default();
    trimmed(&format!("{number:.decimals$}")).to_owned()
}

fn trimmed(number: &str) -> &str {
    match number.contains('.') {
        true => number.trim_end_matches('0').trim_end_matches('.'),
        false => number,
    }
}

/// Replies, one after another.
#[derive(Debug)]
pub(super) struct Reply {
    bytes: Vec<u8>,
    is_resp3: bool,
}

impl Reply {
    pub(super) fn new(is_resp3: bool) -> Self {
        Self {
            bytes: Vec::new(),
            is_resp3,
        }
    }

    pub(super) fn is_resp3(&self) -> bool {
        self.is_resp3
    }

    pub(super) fn into_bytes(self) -> Bytes {
        self.bytes.into()
    }

    pub(super) fn set_resp3(&mut self, is_resp3: bool) {
        self.is_resp3 = is_resp3;
    }

    /// Replies that were made elsewhere.
    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn line(&mut self, kind: u8, text: &str) {
        self.bytes.push(kind);
        self.raw(text.as_bytes());
        self.raw(b"\r\n");
    }

    pub(super) fn simple(&mut self, text: &str) {
        self.line(b'+', text);
    }

    /// An error; a text without a code gets `ERR`. Line breaks in it become spaces.
    pub(super) fn error(&mut self, text: &[u8]) {
        match text.strip_prefix(b"-") {
            Some(coded) => self.raw_error(coded),
            None => self.raw_error(&[b"ERR ", text].concat()),
        }
    }

    fn raw_error(&mut self, text: &[u8]) {
        self.bytes.push(b'-');
        let spaced = text.iter().map(|byte| match byte {
            b'\r' | b'\n' => b' ',
            byte => *byte,
        });
        self.bytes.extend(spaced);
        self.raw(b"\r\n");
    }

    pub(super) fn int(&mut self, number: i64) {
        self.line(b':', &number.to_string());
    }

    pub(super) fn count(&mut self, count: usize) {
        self.int(i64::try_from(count).unwrap_or(i64::MAX));
    }

    pub(super) fn bulk(&mut self, bytes: &[u8]) {
        self.line(b'$', &bytes.len().to_string());
        self.raw(bytes);
        self.raw(b"\r\n");
    }

    pub(super) fn double(&mut self, number: f64) {
        let text = format_double(number);
        match self.is_resp3 {
            true => self.line(b',', &text),
            false => self.bulk(text.as_bytes()),
        }
    }

    pub(super) fn null(&mut self) {
        self.raw(if self.is_resp3 { b"_\r\n" } else { b"$-1\r\n" });
    }

    pub(super) fn null_array(&mut self) {
        self.raw(if self.is_resp3 { b"_\r\n" } else { b"*-1\r\n" });
    }

    pub(super) fn array(&mut self, length: usize) {
        self.line(b'*', &length.to_string());
    }

    /// A map of this many pairs, which RESP2 has as a flat array.
    pub(super) fn map(&mut self, pairs: usize) {
        match self.is_resp3 {
            true => self.line(b'%', &pairs.to_string()),
            false => self.array(2 * pairs),
        }
    }

    /// Something about a channel.
    pub(super) fn push(&mut self, length: usize) {
        match self.is_resp3 {
            true => self.line(b'>', &length.to_string()),
            false => self.array(length),
        }
    }

    /// A text for people, which RESP3 marks as such.
    pub(super) fn verbatim(&mut self, text: &str) {
        match self.is_resp3 {
            true => {
                self.line(b'=', &(text.len() + 4).to_string());
                self.raw(b"txt:");
                self.raw(text.as_bytes());
                self.raw(b"\r\n");
            }
            false => self.bulk(text.as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_are_written_as_c_writes_them() {
        for (number, text) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (-9_007_199_254_740_992.0, "-9007199254740992"),
            (1e17, "1e+17"),
            (123_456_789_012_345_680.0, "1.2345678901234568e+17"),
            (12_345_678_901_234_568.0, "12345678901234568"),
            (0.1, "0.10000000000000001"),
            (0.0001, "0.0001"),
            (0.00001, "1.0000000000000001e-05"),
            (1.5, "1.5"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(format_double(number), text);
        }
    }

    #[test]
    fn commands_are_read_however_their_bytes_are_cut() {
        let bytes = b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n*0\r\nPING \"a b\" 'c\\'d'\r\n*1\r\n$0\r\n\r\n";
        let all = [&["GET", "a"][..], &[], &["PING", "a b", "c'd"], &[""]];
        for size in 1..bytes.len() {
            let mut reader = CommandReader::default();
            let mut read = Vec::new();
            for piece in bytes.chunks(size) {
                reader.receive(piece);
                while let Some(command) = reader.next(true) {
                    read.push(command.unwrap());
                }
            }
            assert_eq!(read, all, "{size}");
        }
    }
}
