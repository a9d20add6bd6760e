//! What must not reach a terminal, a log or a page as it is, because a stranger may have chosen it.

use std::borrow::Cow;
use std::fmt::{self, Write};

/// A text with escapes as Rust has them (`\u{1b}`) in place of deceptive characters, line ends among
/// them.
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, |character, text| {
        write!(text, "{}", character.escape_default())
    })
}

/// The same for text of several lines, which keeps its line ends.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |character, text| match character {
        '\n' => text.write_char('\n'),
        other => write!(text, "{}", other.escape_default()),
    })
}

/// JSON of the same value, with the escapes that JSON has. Line ends stay, as they stand between
/// values.
pub fn printable_json(json: &str) -> Cow<'_, str> {
    escaped(json, |character, text| match character {
        '\n' => text.write_char('\n'),
        other => write_json_escape(other, text),
    })
}

/// Writes a character by its UTF-16 units (RFC 8259, section 7).
///
/// # Errors
/// Those of `to`.
pub fn write_json_escape<W: Write>(character: char, to: &mut W) -> fmt::Result {
    let mut units = [0; 2];
    let mut units = character.encode_utf16(&mut units).iter();
    units.try_for_each(|unit| write!(to, "\\u{unit:04x}"))
}

fn escaped(text: &str, write: impl Fn(char, &mut String) -> fmt::Result) -> Cow<'_, str> {
    if is_plain(text.as_bytes()) || !text.contains(is_deceptive) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len());
    // Writing to a string never fails.
    let _ = escape(text, &mut shown, write);
    shown.into()
}

/// Whether text is printable ASCII, as nearly all is.
#[inline]
pub fn is_plain(text: &[u8]) -> bool {
    text.iter().all(|byte| matches!(byte, b' '..=b'~'))
}

/// Writes text, calling `escaped` for deceptive characters.
///
/// # Errors
/// Those of `to`.
pub fn escape<W: Write>(
    text: &str,
    to: &mut W,
    escaped: impl Fn(char, &mut W) -> fmt::Result,
) -> fmt::Result {
    for run in text.split_inclusive(is_deceptive) {
        match run.chars().next_back() {
            Some(last) if is_deceptive(last) => {
                let plain = run.len() - last.len_utf8();
                to.write_str(run.get(..plain).unwrap_or_default())?;
                escaped(last, to)?;
            }
            _ => to.write_str(run)?,
        }
    }
    Ok(())
}

/// Whether a terminal obeys this character rather than showing it (C0, DEL, C1), or whether the
/// character is invisible, breaks the line, looks like the end of a field, or reorders its
/// neighbours (Unicode's bidi controls, blanks, fillers, zero-width characters and tags).
pub fn is_deceptive(character: char) -> bool {
    character.is_control()
        || character != ' ' && character.is_whitespace()
        || matches!(
            character,
            '\u{ad}' | '\u{115f}' | '\u{1160}' | '\u{2800}' | '\u{3164}' | '\u{ffa0}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_or_that_deceives_a_reader_is_left_in_a_text() {
        let text = "a\u{1b}[2J \u{9b}c\u{202e}cod\u{2069}\n\u{e0041}\u{200b}\u{7f} \"q\" \\ é 漢";
        let shown = printable(text);
        let plain =
            "a\\u{1b}[2J \\u{9b}c\\u{202e}cod\\u{2069}\\n\\u{e0041}\\u{200b}\\u{7f} \"q\" \\ é 漢";
        assert_eq!(shown, plain);
        assert_eq!(printable_lines(text), plain.replacen("\\n", "\n", 1));
        assert!(matches!(printable("as it is"), Cow::Borrowed(_)));
    }

    #[test]
    fn json_keeps_its_value_when_it_is_made_printable() {
        let value = serde_json::json!({"a\u{202e}": ["\u{1b}\u{9b}\u{e0041}\n", 7]});
        for json in [value.to_string(), format!("{value:#}")] {
            let shown = printable_json(&json);
            assert!(
                !shown.contains(|it: char| it != '\n' && is_deceptive(it)),
                "{shown}"
            );
            let read: serde_json::Value = serde_json::from_str(&shown).unwrap();
            assert_eq!(read, value);
        }
    }
}
