//! RESP2, the protocol of Redis: commands as they are written, one after another into one piece of
//! memory, and replies as they are read: where each ends, and the numbers in those that are read in
//! place.

use redis::{RedisError, Value};

use super::eight_bytes;

/// Room for the takes of three limits.
const BYTES: usize = 1024;

/// Commands that travel together.
#[derive(Clone, Debug, Default)]
pub(super) struct Request {
    bytes: Vec<u8>,
    replies: usize,
}

impl Request {
    /// An empty request with room for a usual batch.
    pub(super) fn roomy() -> Self {
        Self {
            bytes: Vec::with_capacity(BYTES),
            ..Self::default()
        }
    }

    /// How many commands there are, and as many replies.
    pub(super) fn len(&self) -> usize {
        self.replies
    }

    pub(super) fn is_empty(&self) -> bool {
        self.replies == 0
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Begins a command by its header; its words have to follow.
    pub(super) fn begin(&mut self, words: &[u8]) -> &mut Self {
        self.replies += 1;
        self.words(words)
    }

    /// Begins a command of `words` words, of which its name is the first. The others have to
    /// follow.
    pub(super) fn command(&mut self, words: usize, name: &str) -> &mut Self {
        let mut digits = itoa::Buffer::new();
        self.begin(b"*").words(digits.format(words).as_bytes());
        self.words(b"\r\n").word(name.as_bytes())
    }

    /// Adds commands as they are written.
    pub(super) fn commands(&mut self, commands: usize, bytes: &[u8]) -> &mut Self {
        self.replies += commands;
        self.words(bytes)
    }

    /// Words in the form in which Redis reads them.
    pub(super) fn words(&mut self, words: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(words);
        self
    }

    /// A word.
    pub(super) fn word(&mut self, word: &[u8]) -> &mut Self {
        self.length(word.len()).words(word).words(b"\r\n")
    }

    /// What precedes a word. Most have less than a hundred bytes, so that its size is known.
    fn length(&mut self, length: usize) -> &mut Self {
        match u8::try_from(length) {
            Ok(length @ ..10) => self.words(&[b'$', b'0' + length, b'\r', b'\n']),
            Ok(length @ ..100) => {
                let (tens, ones) = (b'0' + length / 10, b'0' + length % 10);
                self.words(&[b'$', tens, ones, b'\r', b'\n'])
            }
            _ => {
                let mut digits = itoa::Buffer::new();
                let digits = digits.format(length).as_bytes();
                self.words(b"$").words(digits).words(b"\r\n")
            }
        }
    }

    /// A number as a word.
    pub(super) fn int(&mut self, number: impl itoa::Integer) -> &mut Self {
        let mut digits = itoa::Buffer::new();
        self.word(digits.format(number).as_bytes())
    }
}

/// Finds the end of a number of replies in bytes that come bit by bit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scan {
    /// How many values are still to come; an array's elements count as well.
    missing: usize,
    /// The position in the bytes.
    at: usize,
}

/// Bytes that are not a reply.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed;

impl Scan {
    pub(super) fn new(replies: usize) -> Self {
        Self {
            missing: replies,
            at: 0,
        }
    }

    /// Looks at what has come, which begins where it began the last time; where the replies end
    /// when they all are there.
    pub(super) fn advance(&mut self, bytes: &[u8]) -> Result<Option<usize>, Malformed> {
        while self.missing > 0 {
            let Some((kind, text, end)) = line(bytes, self.at) else {
                return Ok(None);
            };
            let (inside, elements) = extent(kind, text)?;
            if bytes.len() < end + inside {
                return Ok(None);
            }
            self.at = end + inside;
            self.missing += elements;
            self.missing -= 1;
        }
        Ok(Some(self.at))
    }
}

/// The line at this place: its first byte, what follows, and where the next begins.
fn line(bytes: &[u8], at: usize) -> Option<(u8, &[u8], usize)> {
    let (&kind, rest) = bytes.get(at..)?.split_first()?;
    let length = eight_bytes::find_newline(rest)?;
    let text = rest.get(..length)?.strip_suffix(b"\r")?;
    Some((kind, text, at + 1 + length + 1))
}

/// How many bytes belong to a value after its first line, and how many values are in it.
fn extent(kind: u8, text: &[u8]) -> Result<(usize, usize), Malformed> {
    match kind {
        b'+' | b'-' | b':' => Ok((0, 0)),
        b'$' => Ok((length(text)?.map_or(0, |bytes| bytes + 2), 0)),
        b'*' => Ok((0, length(text)?.unwrap_or(0))),
        _ => Err(Malformed),
    }
}

/// No reply to what is asked here has more bytes or values.
pub(super) const MAX_REPLY_BYTES: usize = 1 << 20;

/// None for a missing value.
fn length(text: &[u8]) -> Result<Option<usize>, Malformed> {
    match number(text).ok_or(Malformed)? {
        ..0 => Ok(None),
        length => match usize::try_from(length) {
            Ok(length) if length <= MAX_REPLY_BYTES => Ok(Some(length)),
            _ => Err(Malformed),
        },
    }
}

fn number(text: &[u8]) -> Option<i64> {
    leading_number(text).and_then(|(number, rest)| rest.is_empty().then_some(number))
}

/// The number that a text begins with, and the rest of it. The replies to a request have some two
/// hundred digits, which are looked at once each, and added up without a check.
fn leading_number(text: &[u8]) -> Option<(i64, &[u8])> {
    let (digits, is_negative) = match text.strip_prefix(b"-") {
        Some(digits) => (digits, true),
        None => (text, false),
    };
    let (magnitude, rest) = eight_bytes::leading_digits(digits);
    if !(1..=MAX_DIGITS).contains(&(digits.len() - rest.len())) {
        return None;
    }
    let number = match is_negative {
        true => 0_i64.checked_sub_unsigned(magnitude),
        false => i64::try_from(magnitude).ok(),
    };
    Some((number?, rest))
}

/// No number of 64 bits and a sign has more digits, and as many always fit into 64 bits.
const MAX_DIGITS: usize = 19;

/// The replies to a request, all of them and nothing else.
#[derive(Debug, Default)]
pub(super) struct Replies(Vec<u8>);

impl Replies {
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// The bytes as they came.
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Reads them one by one.
    pub(super) fn iter(&self) -> Cursor<'_> {
        Cursor {
            rest: self.as_bytes(),
        }
    }

    /// All of them as values; the first error among them otherwise.
    pub(super) fn values(&self) -> Result<Vec<Value>, RedisError> {
        self.iter().collect()
    }
}

/// Reads replies one by one, numbers and arrays of numbers in place. It stands still at a reply
/// that is not what it is asked for.
#[derive(Clone, Copy)]
pub(super) struct Cursor<'r> {
    rest: &'r [u8],
}

/// Yields values and errors.
impl Iterator for Cursor<'_> {
    type Item = Result<Value, RedisError>;

    fn next(&mut self) -> Option<Self::Item> {
        let (reply, rest) = split_first(self.rest)?;
        self.rest = rest;
        Some(value(reply))
    }
}

/// The bytes of the first reply or command, and what follows.
pub(super) fn split_first(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = Scan::new(1).advance(bytes).ok()??;
    bytes.split_at_checked(end)
}

/// The value of these bytes.
pub(super) fn value(bytes: &[u8]) -> Result<Value, RedisError> {
    redis::parse_redis_value(bytes).and_then(Value::extract_error)
}

impl Cursor<'_> {
    /// A number.
    pub(super) fn int(&mut self) -> Option<i64> {
        self.take(b':')
    }

    /// The head of an array of so many values, which follow.
    pub(super) fn array(&mut self, values: i64) -> Option<()> {
        (self.take(b'*')? == values).then_some(())
    }

    /// An array of numbers, of which some may be missing.
    pub(super) fn ints<const N: usize>(&mut self) -> Option<[Option<i64>; N]> {
        self.array(i64::try_from(N).ok()?)?;
        let mut ints = [None; N];
        for int in &mut ints {
            *int = match self.rest.first()? {
                b':' => Some(self.int()?),
                _ => self.nothing()?,
            };
        }
        Some(ints)
    }

    /// Whether there is a number, or it is missing. Which number it is stays unread.
    pub(super) fn has_int(&mut self) -> Option<bool> {
        let Some(number) = self.rest.strip_prefix(b":") else {
            self.nothing()?;
            return Some(false);
        };
        let end = eight_bytes::find_newline(number)?;
        self.rest = number.get(end + 1..)?;
        Some(true)
    }

    /// The next reply, unless it is an error.
    pub(super) fn value(&mut self) -> Option<Value> {
        self.next()?.ok()
    }

    fn nothing(&mut self) -> Option<Option<i64>> {
        self.rest = self.rest.strip_prefix(b"$-1\r\n")?;
        Some(None)
    }

    fn take(&mut self, kind: u8) -> Option<i64> {
        let (&found, text) = self.rest.split_first()?;
        let (number, rest) = leading_number(text).filter(|_| found == kind)?;
        self.rest = rest.strip_prefix(b"\r\n")?;
        Some(number)
    }
}

/// The commands in words, each in a line of its own. It reads them as Redis does.
#[cfg(test)]
pub(super) fn text(fill: impl FnOnce(&mut Request)) -> String {
    let mut request = Request::default();
    fill(&mut request);
    let commands = Replies::new(request.bytes).values().unwrap();
    assert_eq!(commands.len(), request.replies);
    let line = |command: Value| {
        let words: Vec<Vec<u8>> = redis::from_redis_value(command).unwrap();
        let words = words.iter().map(|word| word.escape_ascii().to_string());
        words.collect::<Vec<_>>().join(" ")
    };
    let lines: Vec<_> = commands.into_iter().map(line).collect();
    lines.join("\n")
}

/// The bytes that a Redis server, or any program in its place, sends; for [`crate::fuzzing`].
#[cfg(any(test, fuzzing, feature = "fuzzing"))]
pub mod fuzzing {
    use super::{MAX_REPLY_BYTES, Replies, Scan};

    /// Replies. However they come, they end in the same place, and reading them by whatever was
    /// asked ends.
    pub fn replies(input: &[u8]) {
        for expected in 1..4 {
            let at_once = Scan::new(expected).advance(input);
            let mut scan = Scan::new(expected);
            let piecemeal =
                (0..=input.len()).map(|come| scan.advance(input.get(..come).unwrap_or_default()));
            let first = piecemeal.into_iter().find(|found| *found != Ok(None));
            assert_eq!(first.unwrap_or(Ok(None)), at_once, "bit by bit");
            if let Ok(Some(end)) = at_once {
                assert!(end <= input.len() && end <= MAX_REPLY_BYTES * expected);
                whole(input.get(..end).unwrap_or_default(), expected);
            }
        }
    }

    fn whole(bytes: &[u8], expected: usize) {
        let replies = Replies::new(bytes.to_vec());
        if let Ok(values) = replies.values() {
            assert!(values.len() <= expected);
        }
        let mut cursor = replies.iter();
        while cursor.ints::<3>().is_some() || cursor.int().is_some() || cursor.value().is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    const REPLIES: &[u8] = b"*3\r\n:1\r\n$-1\r\n:-2\r\n:7\r\n$4\r\na\r\nb\r\n*-1\r\n+OK\r\n*0\r\n";

    #[test]
    fn replies_end_where_they_end_however_they_come() {
        for part in 1..REPLIES.len() {
            let mut scan = Scan::new(6);
            for come in (0..REPLIES.len()).step_by(part) {
                assert_eq!(scan.advance(&REPLIES[..come]), Ok(None), "{come}");
            }
            let more = [REPLIES, b":8\r\n"].concat();
            assert_eq!(scan.advance(&more), Ok(Some(REPLIES.len())));
        }
    }

    #[test]
    fn what_is_no_reply_is_not_waited_for() {
        for bytes in [
            b"HTTP/1.1 400\r\n".as_slice(),
            b"*x\r\n",
            b"$99999999999\r\n",
        ] {
            assert_eq!(Scan::new(1).advance(bytes), Err(Malformed));
        }
    }

    proptest! {
        /// Of the bytes that replies are made of, in any order.
        #[test]
        fn whatever_comes_is_told_apart_alike_however_it_comes(
            bytes in vec(select(b"*$:+-\r\n\r\n0123x".as_slice()), 0..80),
            replies in 1_usize..4,
        ) {
            let at_once = Scan::new(replies).advance(&bytes);
            let mut scan = Scan::new(replies);
            let mut piecemeal = Ok(None);
            for come in 0..=bytes.len() {
                piecemeal = scan.advance(&bytes[..come]);
                if piecemeal != Ok(None) {
                    break;
                }
            }
            prop_assert_eq!(&at_once, &piecemeal);
            let all = Replies::new(bytes);
            let mut cursor = all.iter();
            while cursor.ints::<2>().is_some() || cursor.int().is_some() || cursor.value().is_some() {}
            if let Ok(values) = all.values() {
                prop_assert!(at_once != Ok(None) || values.len() < replies);
            }
        }
    }

    #[test]
    fn numbers_are_read_in_place() {
        let replies = Replies::new(REPLIES.to_vec());
        let mut cursor = replies.iter();
        assert_eq!(cursor.ints(), Some([Some(1), None, Some(-2)]));
        assert_eq!(cursor.ints::<1>(), None);
        assert_eq!(cursor.int(), Some(7));
        assert_eq!(cursor.int(), None);
    }

    #[test]
    fn the_least_and_the_greatest_number_are_read() {
        for expected in [i64::MIN, i64::MAX, 0] {
            assert_eq!(number(expected.to_string().as_bytes()), Some(expected));
        }
        for strange in [
            "9223372036854775808",
            "-9223372036854775809",
            "9999999999999999999",
            "18446744073709551617",
            "-",
            "",
            "1x",
            "--1",
            "+1",
            " 1",
        ] {
            assert_eq!(number(strange.as_bytes()), None, "{strange}");
        }
    }

    #[test]
    fn other_replies_are_values_and_an_error_among_them_is_the_answer() {
        let values = Replies::new(REPLIES.to_vec()).values().unwrap();
        assert_eq!(values.len(), 6);
        assert_eq!(values[1], Value::Int(7));
        let failed = Replies::new(b":1\r\n-OOM no memory\r\n".to_vec());
        let error = failed.values().unwrap_err();
        assert_eq!(error.code(), Some("OOM"));
    }
}
