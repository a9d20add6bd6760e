//! Words of the configuration that stand for values of types that know nothing of YAML.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeSeed, Deserializer, EnumAccess, Error, VariantAccess, Visitor};

/// A type some of whose values have words, which [`words`] lists.
pub(crate) trait Words: Sized + 'static {
    const WORDS: &'static [&'static str];

    fn from_word(word: &str) -> Option<Self>;
}

/// Lists the words of a type, and the value that each stands for.
macro_rules! words {
    ($type:ty: $($word:literal => $value:expr),+ $(,)?) => {
        impl crate::words::Words for $type {
            const WORDS: &'static [&'static str] = &[$($word),+];

            fn from_word(word: &str) -> Option<Self> {
                match word {
                    $($word => Some($value),)+
                    _ => None,
                }
            }
        }
    };
}

pub(crate) use words;

/// A value that is written as one of the words of its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word<T>(pub(crate) T);

impl<'de, T: Words> serde::Deserialize<'de> for Word<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let visitor = WordVisitor(PhantomData);
        deserializer
            .deserialize_enum("", T::WORDS, visitor)
            .map(Self)
    }
}

/// Finds the value of a word, whether the word stands alone or as a key without a value.
struct WordVisitor<T>(PhantomData<T>);

impl<'de, T: Words> Visitor<'de> for WordVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a word")
    }

    fn visit_enum<A: EnumAccess<'de>>(self, access: A) -> Result<T, A::Error> {
        let (value, rest) = access.variant_seed(self)?;
        rest.unit_variant()?;
        Ok(value)
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<T, E> {
        T::from_word(word).ok_or_else(|| E::unknown_variant(word, T::WORDS))
    }
}

impl<'de, T: Words> DeserializeSeed<'de> for WordVisitor<T> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        deserializer.deserialize_str(self)
    }
}
