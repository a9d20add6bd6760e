//! Words of the configuration that stand for values of types that know nothing of YAML.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize as _;
use serde::de::{DeserializeSeed, Deserializer, EnumAccess, Error, VariantAccess, Visitor};

/// A type some of whose values have words, which [`words!`](crate::words!) lists.
///
/// `By` is who gives it its words: `()` for the crate that has the type, and a type of its own for
/// a crate that takes it from another one, as Rust wants.
pub trait Words<By = ()>: Sized + 'static {
    /// The words, in the order in which they are listed to people.
    const WORDS: &'static [&'static str];

    /// The value that a word stands for.
    fn from_word(word: &str) -> Option<Self>;
}

/// Lists the words of a type, and the value that each stands for. A type of the crate itself is read
/// by them, and has a JSON Schema with the crate's feature `schema`.
#[macro_export]
macro_rules! words {
    ($type:ty: $($word:literal => $value:expr),+ $(,)?) => {
        $crate::words!($type, by (): $($word => $value),+);

        impl<'de> ::serde::Deserialize<'de> for $type {
            fn deserialize<D: ::serde::Deserializer<'de>>(
                deserializer: D,
            ) -> ::std::result::Result<Self, D::Error> {
                $crate::read_word(deserializer)
            }
        }

        #[cfg(feature = "schema")]
        impl ::schemars::JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> ::std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(
                generator: &mut ::schemars::SchemaGenerator,
            ) -> ::schemars::Schema {
                generator.subschema_for::<$crate::Word<$type>>()
            }
        }
    };
    ($type:ty, by $by:ty: $($word:literal => $value:expr),+ $(,)?) => {
        impl $crate::Words<$by> for $type {
            const WORDS: &'static [&'static str] = &[$($word),+];

            fn from_word(word: &str) -> ::std::option::Option<Self> {
                match word {
                    $($word => ::std::option::Option::Some($value),)+
                    _ => ::std::option::Option::None,
                }
            }
        }
    };
}

/// Reads a value by the words of its type.
///
/// # Errors
/// When there is no such word.
pub fn read_word<'de, T: Words, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    Word::<T>::deserialize(deserializer).map(|word| word.0)
}

/// A value that is written as one of the words of its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word<T, By = ()>(pub T, PhantomData<By>);

impl<'de, T: Words<By>, By: 'static> serde::Deserialize<'de> for Word<T, By> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let visitor = WordVisitor::<T, By>(PhantomData);
        deserializer
            .deserialize_enum("", T::WORDS, visitor)
            .map(|value| Self(value, PhantomData))
    }
}

/// Finds the value of a word, whether the word stands alone or as a key without a value.
struct WordVisitor<T, By>(PhantomData<(T, By)>);

impl<'de, T: Words<By>, By> Visitor<'de> for WordVisitor<T, By> {
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

impl<'de, T: Words<By>, By> DeserializeSeed<'de> for WordVisitor<T, By> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        deserializer.deserialize_str(self)
    }
}
