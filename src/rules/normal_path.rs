//! Paths as routes see them, so that another spelling of a path does not slip past its limits.
//!
//! An upstream may take `/%6cogin`, `//login`, `/x/../login`, `/login/` and `/login;v=1` for
//! `/login`, so all of them are that here. The upstream still gets the path as it was sent.
//!
//! - Percent-encoded bytes are decoded, as far as they are text (UTF-8).
//! - Empty segments and `.` are left out, `..` takes the segment before it away, and a slash at the
//!   end means nothing.
//! - What follows `;` in a segment is left out: servlet containers read parameters there.
//! - A backslash counts as a slash. RFC 3986 has no use for one, and URL parsers of the WHATWG kind
//!   read it so.
//! - `%2F`, `%5C`, `%3B`, `%25` and control characters stay encoded, in upper case. They are data
//!   within a segment; a decoded `%2F` would make two segments of one, and a decoded `%25` could
//!   be decoded once more.
//!
//! An upstream that decodes `%2F` before it routes is a gap that only a limit on a path above it
//! closes, such as `/*`.

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

/// Whether a path leads upward somewhere, by a segment that is `..` however it is spelled.
///
/// Such a path leaves a prefix that an upstream may still go by: `/search/../x` is no `/search/*`
/// here, but is to whoever compares the start of the path as it was sent. Clients resolve such
/// segments before they send them (RFC 3986, section 5.2.4), so no honest request has any.
pub fn leads_upward(path: &str) -> bool {
    !is_normal(path)
        && path
            .split(['/', '\\'])
            .any(|segment| normal_segment(segment) == "..")
}

/// Whether nothing but a slash at the end is to be changed. Dot segments are looked for where any
/// segment starts with a dot, which is rare enough.
fn is_normal(path: &str) -> bool {
    let mut previous = 0;
    let plain = path.bytes().all(|byte| {
        let broken = matches!((previous, byte), (b'/', b'/' | b'.'))
            || matches!(byte, b'%' | b';' | b'\\' | 0..0x20 | 0x7f);
        previous = byte;
        !broken
    });
    plain && path.starts_with('/')
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
        Cow::Borrowed(name)
    } else {
        Cow::Owned(decode(name))
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
        ] {
            assert!(leads_upward(path), "{path}");
        }
        for path in [
            "/",
            "/a/./b",
            "/a..b",
            "/...",
            "/.well-known/x",
            "/a/%252e%252e/b",
            "//a",
        ] {
            assert!(!leads_upward(path), "{path}");
        }
    }

    #[test]
    fn the_root_is_a_slash() {
        for path in ["", "/", "//", "/.", "/..", "/a/..", "/;x", "/%2e"] {
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
        assert_eq!(normal_path("/..a/...//b."), "/..a/.../b.");
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
            path in "([/.;%\\\\a]|%2e|%2f|%5c|%3b|%25|%c3|%a9|%00|\u{e9}|\\PC){0,30}"
        ) {
            let once = normal_path(&path).into_owned();
            prop_assert_eq!(&normal_path(&once), &once);
            prop_assert!(once.starts_with('/') && (once == "/" || !once.ends_with('/')));
            let dots = once.split('/').any(|segment| segment == "." || segment == "..");
            prop_assert!(!dots && !once.contains("//") && !once.contains('\\'));
        }
    }
}
