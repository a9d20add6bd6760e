//! A value that knows its place.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};

use super::document::Span;

/// The name by which the deserializer recognises [`Spanned`].
pub(super) const PLACED: &str = "$weir::Placed";

/// A value, and where it was written. Only the reader of this module can make one.
#[derive(Clone, Copy, Debug)]
pub(in crate::config) struct Spanned<T> {
    /// Where it was written.
    pub(in crate::config) place: Span,
    /// What was written.
    pub(in crate::config) value: T,
}

impl<T> Deref for Spanned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Spanned<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_struct(PLACED, &["place", "value"], PlacedVisitor(PhantomData))
    }
}

struct PlacedVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for PlacedVisitor<T> {
    type Value = Spanned<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value with its place")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Spanned<T>, A::Error> {
        let place = parts.next_element()?.map(Span::from_bits);
        let value = parts.next_element()?;
        place
            .zip(value)
            .map(|(place, value)| Spanned { place, value })
            .ok_or_else(|| A::Error::custom("expected a value with its place"))
    }
}
