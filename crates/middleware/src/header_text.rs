//! A header field's value while it is being written: on the stack, so that the finished value is
//! the only allocation.

use std::fmt;

use bytes::Bytes;
use http::Response;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use weir_http::line;
use weir_http::problem::ProblemResponse;

/// The greatest integer of a structured field (RFC 9651, section 3.3.1).
const MAX_INTEGER: u64 = 999_999_999_999_999;

/// Room for most values.
const INLINE_BYTES: usize = 160;

/// The bytes of a header field's value.
pub(super) struct HeaderText {
    inline: [u8; INLINE_BYTES],
    used: usize,
    /// All of a value that outgrew `inline`.
    long: Vec<u8>,
}

impl Default for HeaderText {
    fn default() -> Self {
        Self {
            inline: [0; INLINE_BYTES],
            used: 0,
            long: Vec::new(),
        }
    }
}

impl HeaderText {
    pub(super) fn push(&mut self, text: &str) {
        self.push_bytes(text.as_bytes());
    }

    pub(super) fn push_bytes(&mut self, bytes: &[u8]) {
        let end = self.used + bytes.len();
        match self.inline.get_mut(self.used..end) {
            Some(room) if self.long.is_empty() => {
                room.copy_from_slice(bytes);
                self.used = end;
            }
            _ => self.push_beyond(bytes),
        }
    }

    #[cold]
    fn push_beyond(&mut self, bytes: &[u8]) {
        if self.long.is_empty() {
            let short = self.inline.get(..self.used).unwrap_or_default();
            self.long.extend_from_slice(short);
        }
        self.long.extend_from_slice(bytes);
    }

    pub(super) fn push_integer(&mut self, number: u64) {
        let number = number.min(MAX_INTEGER);
        self.push(itoa::Buffer::new().format(number));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.written().is_empty()
    }

    /// The value; `None` if it has bytes that no header may have.
    pub(super) fn into_value(self) -> Option<HeaderValue> {
        HeaderValue::from_bytes(self.written()).ok()
    }

    /// The bytes, also those that no header may have.
    pub(super) fn into_bytes(self) -> Bytes {
        Bytes::copy_from_slice(self.written())
    }

    pub(super) fn len(&self) -> usize {
        self.written().len()
    }

    fn written(&self) -> &[u8] {
        if self.long.is_empty() {
            self.inline.get(..self.used).unwrap_or_default()
        } else {
            &self.long
        }
    }
}

impl fmt::Write for HeaderText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text);
        Ok(())
    }
}

/// The header fields of a response that is made here: in its map, or as lines.
pub(super) enum Fields<'r> {
    Map(&'r mut HeaderMap),
    Lines(&'r mut Vec<u8>),
}

impl Fields<'_> {
    /// Returns whether there was such a field before.
    pub(super) fn append(&mut self, name: &HeaderName, value: &HeaderValue) -> bool {
        match self {
            Self::Map(map) => map.append(name, value.clone()),
            Self::Lines(lines) => {
                line::push(lines, name.as_str().as_bytes(), value.as_bytes());
                false
            }
        }
    }

    /// Appends a field, unless the text is empty. It is made of numbers and of names of limits,
    /// which have no bytes that a header may not have. Returns whether there was such a field
    /// before.
    pub(super) fn append_text(&mut self, name: &HeaderName, text: HeaderText) -> bool {
        match self {
            _ if text.is_empty() => false,
            Self::Map(map) => text
                .into_value()
                .is_some_and(|value| map.append(name, value)),
            Self::Lines(lines) => {
                line::push(lines, name.as_str().as_bytes(), text.written());
                false
            }
        }
    }

    pub(super) fn append_integer(&mut self, name: &HeaderName, number: u64) {
        match self {
            Self::Map(map) => _ = map.append(name, integer(number)),
            Self::Lines(lines) => {
                let number = number.min(MAX_INTEGER);
                line::push(
                    lines,
                    name.as_str().as_bytes(),
                    itoa::Buffer::new().format(number).as_bytes(),
                );
            }
        }
    }
}

/// Lets `append` append to the fields of a response.
pub(super) fn append_to<B>(response: &mut Response<B>, append: impl FnOnce(&mut Fields<'_>)) {
    let with_lines = response.extensions_mut().get_mut::<ProblemResponse>();
    match with_lines.filter(|problem| !problem.lines.is_empty()) {
        Some(problem) => append(&mut Fields::Lines(&mut problem.lines)),
        None => append(&mut Fields::Map(response.headers_mut())),
    }
}

/// Appends a number to a line of which more is written.
pub(super) fn push_integer(line: &mut Vec<u8>, number: u64) {
    let number = number.min(MAX_INTEGER);
    line.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// A number as a field's whole value.
pub(super) fn integer(number: u64) -> HeaderValue {
    HeaderValue::from(number.min(MAX_INTEGER))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_value_is_all_that_was_appended(pieces in prop::collection::vec("[a-z]{0,90}", 0..8)) {
            let mut text = HeaderText::default();
            for piece in &pieces {
                text.push(piece);
            }
            let whole = pieces.concat();
            prop_assert_eq!(text.is_empty(), whole.is_empty());
            prop_assert_eq!(text.into_value().unwrap(), whole);
        }
    }

    #[test]
    fn numbers_stay_within_what_a_structured_field_can_hold() {
        assert_eq!(integer(u64::MAX), "999999999999999");
        let mut text = HeaderText::default();
        text.push_integer(u64::MAX);
        assert_eq!(text.into_value().unwrap(), "999999999999999");
    }
}
