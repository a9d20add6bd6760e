//! Shapes of YAML that serde has no type for.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::Spanned;

/// The name by which the deserializer recognises [`OneOrMany`].
pub(super) const ONE_OR_MANY: &str = "$weir::OneOrMany";

/// The name of an enum whose bare words are never repeated: people write secrets there.
pub(super) const SECRET: &str = "$weir::Secret";

/// A mapping with free keys, in the order in which it is written.
#[derive(Clone, Debug)]
pub(in crate::config) struct Entries<T>(pub(in crate::config) Vec<(Spanned<String>, T)>);

impl<T> Default for Entries<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Entries<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EntriesVisitor(PhantomData))
    }
}

struct EntriesVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for EntriesVisitor<T> {
    type Value = Entries<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("names and values")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries<T>, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Entries(entries))
    }
}

/// One value, or a list of them.
#[derive(Clone, Debug)]
pub(in crate::config) struct OneOrMany<T>(pub(in crate::config) Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_tuple_struct(ONE_OR_MANY, 1, OneOrManyVisitor(PhantomData))
    }
}

struct OneOrManyVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for OneOrManyVisitor<T> {
    type Value = OneOrMany<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("one value or a list of them")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<OneOrMany<T>, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(list)).map(OneOrMany)
    }
}

/// A word, or keys and values that say more than the word could.
#[derive(Clone, Debug)]
pub(in crate::config) enum WordOr<T> {
    Word(String),
    More(T),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for WordOr<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WordOrVisitor(PhantomData))
    }
}

struct WordOrVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for WordOrVisitor<T> {
    type Value = WordOr<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, or keys and values")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<WordOr<T>, E> {
        Ok(WordOr::Word(text.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<WordOr<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(WordOr::More)
    }
}

/// A text for people, which may be empty.
#[derive(Clone, Debug, Default)]
pub(in crate::config) struct Note(pub(in crate::config) Option<String>);

impl<'de> Deserialize<'de> for Note {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NoteVisitor)
    }
}

struct NoteVisitor;

impl Visitor<'_> for NoteVisitor {
    type Value = Note;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Note, E> {
        Ok(Note(Some(text.to_owned())))
    }

    fn visit_unit<E: Error>(self) -> Result<Note, E> {
        Ok(Note(None))
    }
}
