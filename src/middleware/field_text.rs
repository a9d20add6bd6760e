//! A header field's value while it is being written: on the stack, so that the finished value is
//! the only allocation.

use http::HeaderValue;
use smallvec::SmallVec;

/// Room for most values.
const INLINE_BYTES: usize = 160;

/// Bytes that will be a header field's value.
#[derive(Default)]
pub(super) struct FieldText(SmallVec<[u8; INLINE_BYTES]>);

impl FieldText {
    /// Appends text.
    pub(super) fn push(&mut self, text: &str) {
        self.push_bytes(text.as_bytes());
    }

    /// Appends what came from another field.
    pub(super) fn push_bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Appends a number.
    pub(super) fn push_integer(&mut self, number: u64) {
        self.push(itoa::Buffer::new().format(number));
    }

    /// Whether nothing was appended yet.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value; none when it holds what no field may hold.
    pub(super) fn into_value(self) -> Option<HeaderValue> {
        HeaderValue::from_bytes(&self.0).ok()
    }
}
