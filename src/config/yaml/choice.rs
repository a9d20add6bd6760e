//! A choice of one word from several, as serde sees it.

use serde::de::value::{StrDeserializer, UnitDeserializer};
use serde::de::{DeserializeSeed, EnumAccess, IntoDeserializer, VariantAccess, Visitor};

use super::deserializer::Reader;
use super::document::Span;
use super::error::Error;

/// A word that was chosen from several, with its value if it has one.
pub(super) struct Choice<'d> {
    word: &'d str,
    /// The value, and the place of the word before it.
    value: Option<(Reader<'d>, Span)>,
}

impl<'d> Choice<'d> {
    /// A word by itself.
    pub(super) fn bare(word: &'d str) -> Self {
        Self { word, value: None }
    }

    /// A word as the key of a value.
    pub(super) fn with(word: &'d str, place: Span, value: Reader<'d>) -> Self {
        Self {
            word,
            value: Some((value, place)),
        }
    }
}

impl<'d> EnumAccess<'d> for Choice<'d> {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'d>>(self, seed: S) -> Result<(S::Value, Self), Error> {
        let word: StrDeserializer<'d, Error> = self.word.into_deserializer();
        match (seed.deserialize(word), &self.value) {
            (Ok(variant), _) => Ok((variant, self)),
            (Err(error), Some((_, place))) => Err(error.at(*place)),
            (Err(error), None) => Err(error),
        }
    }
}

impl<'d> VariantAccess<'d> for Choice<'d> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        match self.value {
            Some((reader, _)) if !reader.is_null() => {
                Err(Error::new(format!("\"{}\" takes no value", self.word)))
            }
            _ => Ok(()),
        }
    }

    /// A variant whose value is optional may be written as the bare word, or as a key without one.
    fn newtype_variant_seed<S: DeserializeSeed<'d>>(self, seed: S) -> Result<S::Value, Error> {
        match self.value {
            Some((reader, _)) if !reader.is_null() => reader.seeded(seed),
            _ => seed
                .deserialize(UnitDeserializer::new())
                .map_err(|_: Error| {
                    Error::new(format!("\"{}\" needs a value", self.word))
                        .remedy(format!("write {{{}: ...}}", self.word))
                }),
        }
    }

    fn tuple_variant<V: Visitor<'d>>(self, _len: usize, _visitor: V) -> Result<V::Value, Error> {
        Err(Error::new("the schema has no variants with several values"))
    }

    fn struct_variant<V: Visitor<'d>>(
        self,
        _fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, Error> {
        Err(Error::new("the schema has no variants with several values"))
    }
}
