//! Paths as routes see them, so that another spelling of a path does not slip past its limits.
//!
//! An upstream may take `/%6cogin`, `//login`, `/x/../login`, `/login/`, `/login.` and `/login;v=1`
//! for `/login`, so all of them are that here. The upstream still gets the path as it was sent.
//!
//! - Percent-encoded bytes are decoded, as far as they are text (UTF-8).
//! - Empty segments and `.` are left out, `..` takes the segment before it away, and a slash at the
//!   end means nothing.
//! - What follows `;` in a segment is left out: servlet containers read parameters there.
//! - Blanks (those of Unicode, too, as Python's `strip` does) and dots at the end of a segment are
//!   left out, as Windows does.
//! - A backslash counts as a slash. RFC 3986 has no use for one, and URL parsers of the WHATWG kind
//!   read it so.
//! - `%2F`, `%5C`, `%3B`, `%25` and control characters stay encoded, in upper case. They are data
//!   within a segment; a decoded `%2F` would make two segments of one, and a decoded `%25` could
//!   be decoded once more.
//!
//! An upstream may decode `%2F`, `%5C` and `%3B` before it routes, as WSGI does. So a path with one
//! of these has a second form ([`separated_path`]), and takes the more specific of the routes that
//! the two forms take. Control characters, and percent signs that encode nothing, are refused
//! ([`path_fault`]).

use std::borrow::Cow;
use std::fmt::Write;

use smallvec::SmallVec;

/// The normal form of a request's path. It starts with a slash and ends with none, unless it is
/// the root.
pub(super) fn normal_path(path: &str) -> Cow<'_, str> {
    if is_normal(path) {
        return Cow::Borrowed(without_end_slash(path));
    }
    let mut segments: SmallVec<[Cow<'_, str>; 8]> = SmallVec::new();
    for segment in path.split(['/', '\\']) {
        match normal_segment(segment) {
            segment if segment.is_empty() || segment == "." => {}
            segment if segment == ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    Cow::Owned(join(&segments, path.len()))
}

/// The normal form of a path for an upstream that decodes separators before it splits the path;
/// none where none is encoded.
pub(super) fn separated_path(path: &str) -> Option<String> {
    separated(path).map(|path| normal_path(&path).into_owned())
}

/// Why a path is not forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PathFault {
    /// It leads upward somewhere, by a segment that is `..` however it is spelled.
    ///
    /// Such a path leaves a prefix that an upstream may still go by: `/search/../x` is not in
    /// `/search/*` here, but is for an upstream that compares the start of the path as it was sent.
    /// Clients resolve such segments before they send them (RFC 3986, section 5.2.4), so no honest
    /// request has any.
    LeadsUpward,
    /// It has an encoded control character, at which an upstream may end it.
    Control,
    /// It has a percent sign that encodes no byte. An upstream may decode it nevertheless: IIS takes
    /// `/%u006cogin` for `/login`.
    Malformed,
}

/// The fault of a path, if it has one.
pub fn path_fault(path: &str) -> Option<PathFault> {
    if is_normal(path) {
        return None;
    }
    let encodes_control = |byte: u8| byte.is_ascii_control();
    if encoded_bytes(path).any(encodes_control) {
        Some(PathFault::Control)
    } else if has_parent_segments(path)
        || separated(path).is_some_and(|path| has_parent_segments(&path))
    {
        Some(PathFault::LeadsUpward)
    } else if encoded_parts(path).any(|part| encoded_byte(part).is_none()) {
        Some(PathFault::Malformed)
    } else {
        None
    }
}

fn has_parent_segments(path: &str) -> bool {
    let mut segments = path.split(['/', '\\']);
    segments.any(|segment| normal_segment(segment) == "..")
}

/// The path with its separators decoded; none where none is encoded.
fn separated(path: &str) -> Option<String> {
    let is_separator = |byte| matches!(byte, b'/' | b'\\' | b';');
    if !encoded_bytes(path).any(is_separator) {
        return None;
    }
    let mut decoded = String::with_capacity(path.len());
    let mut parts = path.split('%');
    decoded.extend(parts.next());
    for part in parts {
        let byte = encoded_byte(part).filter(|&byte| is_separator(byte));
        match (byte, part.get(2..)) {
            (Some(byte), Some(rest)) => {
                decoded.push(byte.into());
                decoded.push_str(rest);
            }
            _ => {
                decoded.push('%');
                decoded.push_str(part);
            }
        }
    }
    Some(decoded)
}

fn encoded_bytes(path: &str) -> impl Iterator<Item = u8> {
    encoded_parts(path).filter_map(encoded_byte)
}

/// The texts after percent signs.
fn encoded_parts(path: &str) -> impl Iterator<Item = &str> {
    path.split('%').skip(1)
}

/// The byte that the digits behind a percent sign encode.
fn encoded_byte(part: &str) -> Option<u8> {
    hex_pair(*part.as_bytes().first_chunk()?)
}

/// Whether only a slash at the end is to be changed. Dot segments are looked for where a segment
/// starts or ends with a dot, which is rare enough.
#[expect(clippy::indexing_slicing, reason = "there is a class for each byte")]
fn is_normal(path: &str) -> bool {
    let mut previous = 0;
    let mut is_ascii = true;
    let plain = path.bytes().all(|byte| {
        let before = std::mem::replace(&mut previous, byte);
        match BYTE_CLASSES[usize::from(byte)] {
            ByteClass::Plain => true,
            ByteClass::Slash => !matches!(before, b'/' | b'.' | b' '),
            ByteClass::Dot => before != b'/',
            ByteClass::Wide => {
                is_ascii = false;
                true
            }
            ByteClass::Special => false,
        }
    });
    let is_wide_blank = |char: char| !char.is_ascii() && char.is_whitespace();
    plain
        && path.starts_with('/')
        && !matches!(previous, b'.' | b' ')
        && (is_ascii || !path.contains(is_wide_blank))
}

/// The role of a byte in the normal form of a path.
#[derive(Clone, Copy)]
enum ByteClass {
    Plain,
    Slash,
    Dot,
    /// Part of a character beyond ASCII.
    Wide,
    /// It is never part of a normal form.
    Special,
}

/// Looked up for each byte of each path, twice.
static BYTE_CLASSES: [ByteClass; 256] = byte_classes();

#[expect(
    clippy::indexing_slicing,
    reason = "an index of one byte, at compile time"
)]
const fn byte_classes() -> [ByteClass; 256] {
    let mut byte_classes = [ByteClass::Plain; 256];
    let mut byte: u8 = 0;
    loop {
        byte_classes[byte as usize] = match byte {
            b'/' => ByteClass::Slash,
            b'.' => ByteClass::Dot,
            b'%' | b';' | b'\\' | 0..0x20 | 0x7f => ByteClass::Special,
            0x80.. => ByteClass::Wide,
            _ => ByteClass::Plain,
        };
        if byte == u8::MAX {
            return byte_classes;
        }
        byte += 1;
    }
}

fn without_end_slash(path: &str) -> &str {
    match path.strip_suffix('/') {
        None | Some("") => path,
        Some(rest) => rest,
    }
}

fn join(segments: &[Cow<'_, str>], len: usize) -> String {
    let mut path = String::with_capacity(len.max(1));
    for segment in segments {
        path.push('/');
        path.push_str(segment);
    }
    if path.is_empty() {
        path.push('/');
    }
    path
}

fn normal_segment(segment: &str) -> Cow<'_, str> {
    let name = segment.split_once(';').map_or(segment, |(name, _)| name);
    if name.bytes().all(|byte| !must_stay_encoded(byte)) {
        without_end(name)
    } else {
        Cow::Owned(without_end(&decode(name)).into_owned())
    }
}

/// A segment without the blanks and dots at its end. One that has nothing else keeps its dots: they
/// are a dot segment, or a name that looks like one.
fn without_end(segment: &str) -> Cow<'_, str> {
    let name = segment.trim_end_matches(|char: char| char == '.' || char.is_whitespace());
    if name.is_empty() && segment.contains(char::is_whitespace) {
        Cow::Owned(segment.replace(char::is_whitespace, ""))
    } else if name.is_empty() {
        Cow::Borrowed(segment)
    } else {
        Cow::Borrowed(name)
    }
}

/// Bytes that would mean something else, or break lines and keys, if they were decoded. `%` is one
/// of them, so a segment without any of these is decoded already.
fn must_stay_encoded(byte: u8) -> bool {
    matches!(byte, b'/' | b'\\' | b';' | b'%') || byte.is_ascii_control()
}

fn decode(segment: &str) -> String {
    let bytes = decode_bytes(segment.as_bytes());
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        chunk
            .invalid()
            .iter()
            .for_each(|&byte| push_encoded(&mut text, byte));
    }
    text
}

fn decode_bytes(mut rest: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(rest.len());
    while let Some((&first, others)) = rest.split_first() {
        let (byte, after) = match others.split_first_chunk() {
            // A percent sign that encodes nothing is one that should have been encoded.
            Some((pair, after)) if first == b'%' => match hex_pair(*pair) {
                Some(byte) => (byte, after),
                None => (first, others),
            },
            _ => (first, others),
        };
        push_byte(&mut decoded, byte);
        rest = after;
    }
    decoded
}

fn push_byte(decoded: &mut Vec<u8>, byte: u8) {
    if must_stay_encoded(byte) {
        let mut encoded = String::new();
        push_encoded(&mut encoded, byte);
        decoded.extend_from_slice(encoded.as_bytes());
    } else {
        decoded.push(byte);
    }
}

fn push_encoded(text: &mut String, byte: u8) {
    // Writing to a string cannot fail.
    let _ = write!(text, "%{byte:02X}");
}

fn hex_pair([high, low]: [u8; 2]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_normal_path_is_not_copied() {
        for path in ["/", "/login", "/a/b.c/d~e", "/caf\u{e9}", "/a:b@c", "/a/"] {
            assert!(matches!(normal_path(path), Cow::Borrowed(_)), "{path}");
        }
    }

    #[test]
    fn every_spelling_of_a_path_is_that_path() {
        for path in [
            "/login",
            "/%6cogin",
            "/%6Cogin",
            "//login",
            "/./login",
            "/x/../login",
            "/../login",
            "/x/%2e%2E/login",
            "/login/",
            "/login//",
            "/login/.",
            "/login;v=1",
            "/login;/",
            "/x/..;/login",
            "\\login",
            "/x\\..\\login",
            "/login;a=b/;c",
            "/login.",
            "/login%20",
            "/login%2e.%20",
            "/login./",
            "/login%20;v=1",
            "/.%20/login",
        ] {
            assert_eq!(normal_path(path), "/login", "{path}");
        }
    }

    #[test]
    fn a_path_that_leads_upward_is_known_in_every_spelling() {
        for path in [
            "/a/../b",
            "/..",
            "/a/%2e%2E/b",
            "/a/.%2e",
            "/x/..;v=1/y",
            "/x\\..\\y",
            "/x%2f..%2fy",
            "/x%5C..",
            "/x/..%3bv=1/y",
            "/x/..%20/y",
            "/x/.%20./y",
        ] {
            assert_eq!(path_fault(path), Some(PathFault::LeadsUpward), "{path}");
        }
        for path in [
            "/",
            "/a/./b",
            "/a..b",
            "/...",
            "/.well-known/x",
            "/a/%252e%252e/b",
            "/a/%2f%25",
            "/a%2fb%20c",
            "//a",
        ] {
            assert_eq!(path_fault(path), None, "{path}");
        }
    }

    #[test]
    fn an_encoded_control_character_is_a_fault() {
        for path in ["/login%00", "/login%0a", "/%1F", "/a%7f/b", "/x/../%09"] {
            assert_eq!(path_fault(path), Some(PathFault::Control), "{path}");
        }
        for path in ["/login%20", "/%80", "/%2500"] {
            assert_eq!(path_fault(path), None, "{path}");
        }
    }

    #[test]
    fn a_percent_sign_that_encodes_nothing_is_a_fault() {
        for path in [
            "/%",
            "/%0",
            "/a%zz",
            "/%u006cogin",
            "/%2f%",
            "/%+1",
            "/%\u{e9}",
        ] {
            assert_eq!(path_fault(path), Some(PathFault::Malformed), "{path}");
        }
        assert_eq!(path_fault("/100%25"), None);
    }

    #[test]
    fn a_path_with_encoded_separators_has_a_second_form() {
        for path in [
            "/login%2f",
            "/login%2F%2f",
            "/x/%2e%2e%2flogin",
            "/login%5c",
            "/login%3bv=1",
            "/login%3B",
            "%2flogin",
        ] {
            assert_eq!(separated_path(path).as_deref(), Some("/login"), "{path}");
        }
        assert_eq!(
            separated_path("/a%2fb%5cc%3bd%41").as_deref(),
            Some("/a/b/c")
        );
        for path in ["/login", "/login%20", "/a%252fb", "/%2", "/%"] {
            assert_eq!(separated_path(path), None, "{path}");
        }
    }

    #[test]
    fn the_root_is_a_slash() {
        for path in ["", "/", "//", "/.", "/..", "/a/..", "/;x", "/%2e", "/%20"] {
            assert_eq!(normal_path(path), "/", "{path:?}");
        }
        assert_eq!(normal_path("*"), "/*");
    }

    #[test]
    fn data_within_a_segment_stays_in_it() {
        assert_eq!(normal_path("/a%2fb/c%5Cd"), "/a%2Fb/c%5Cd");
        assert_eq!(normal_path("/a%3bb"), "/a%3Bb");
        assert_eq!(normal_path("/a%2541"), "/a%2541");
        assert_eq!(normal_path("/a%0a%00"), "/a%0A%00");
        assert_eq!(normal_path("/a%7fb\u{7f}"), "/a%7Fb%7F");
        assert_eq!(normal_path("/..a/...//.b"), "/..a/.../.b");
        assert_eq!(normal_path("/%20a/b.c"), "/ a/b.c");
    }

    #[test]
    fn text_is_decoded_and_other_bytes_are_not() {
        assert_eq!(normal_path("/caf%c3%a9%20x"), "/caf\u{e9} x");
        assert_eq!(normal_path("/%ff%C3"), "/%FF%C3");
    }

    #[test]
    fn a_percent_sign_that_encodes_nothing_is_encoded() {
        assert_eq!(normal_path("/100%"), "/100%25");
        assert_eq!(normal_path("/%%341"), "/%2541");
        assert_eq!(normal_path("/%+1%g1"), "/%25+1%25g1");
    }

    proptest! {
        #[test]
        fn a_normal_path_is_normal_already(
            path in "([/.;%\\\\a]|%2e|%2f|%5c|%3b|%25|%c3|%a9|%00|\u{e9}|\\PC| |%20){0,30}"
        ) {
            let once = normal_path(&path).into_owned();
            prop_assert_eq!(&normal_path(&once), &once);
            prop_assert!(once.starts_with('/') && (once == "/" || !once.ends_with('/')));
            let dots = once.split('/').any(|segment| segment == "." || segment == "..");
            prop_assert!(!dots && !once.contains("//") && !once.contains('\\'));
        }
    }
}
