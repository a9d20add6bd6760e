//! The shapes of YAML that serde has no type for. The reader knows them by their names.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::str::FromStr;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};

use super::document::Span;

/// The name of [`Spanned`].
pub(super) const SPANNED: &str = "$weir::Spanned";

/// The name of [`OneOrMany`].
pub(super) const ONE_OR_MANY: &str = "$weir::OneOrMany";

/// The name of [`Filled`].
pub(super) const FILLED: &str = "$weir::Filled";

/// The name of a newtype whose value may be left empty.
pub(super) const MAY_BE_EMPTY: &str = "$weir::MayBeEmpty";

/// The name of [`WordOr`].
pub(super) const WORD_OR: &str = "$weir::WordOr";

/// The name of [`Required`].
pub(super) const REQUIRED: &str = "$weir::Required";

/// The name of an enum whose bare words are never repeated: people write secrets there.
pub(super) const SECRET: &str = "$weir::Secret";

/// Something that is not written into the file itself.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(title = "secret", rename = "Secret"))]
#[serde(rename = "$weir::Secret", rename_all = "snake_case")]
pub enum Secret {
    #[expect(missing_docs, reason = "its comment would be shown to users")]
    File(String),
    #[expect(missing_docs, reason = "its comment would be shown to users")]
    Env(String),
}

/// A value, and where it was written. Only the reader of this module can make one.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename = "$weir::Spanned")]
pub struct Spanned<T> {
    /// Where it was written.
    pub span: Span,
    /// What was written.
    pub value: T,
}

impl<T> Deref for Spanned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

/// Where something was written, if it was.
pub trait SpanOf {
    /// Where it was written; none if it was not.
    fn span(&self) -> Option<Span>;
}

impl<T> SpanOf for Option<Spanned<T>> {
    fn span(&self) -> Option<Span> {
        Some(self.as_ref()?.span)
    }
}

/// One value, or a list of them.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename = "$weir::OneOrMany")]
pub struct OneOrMany<T>(pub Vec<T>);

impl<T> AsRef<[T]> for OneOrMany<T> {
    fn as_ref(&self) -> &[T] {
        &self.0
    }
}

/// One value, or a list of them. A list whose items are all in error is in error itself, and never
/// passes for an empty one.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename = "$weir::Filled")]
pub struct Filled<T>(pub Vec<T>);

impl<T, S: From<T>> From<OneOrMany<T>> for Vec<S> {
    fn from(written: OneOrMany<T>) -> Self {
        written.0.into_iter().map(S::from).collect()
    }
}

/// A text for people, which may be empty.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename = "$weir::MayBeEmpty")]
pub struct Note(pub Option<String>);

/// What must be there. If it is in error, the keys beside it are read all the same.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename = "$weir::Required")]
pub struct Required<T>(pub Option<T>);

/// A mapping with free keys, in the order in which it is written.
#[derive(Clone, Debug)]
pub struct Entries<T, K = String>(pub Vec<(Spanned<K>, T)>);

impl<T, K> AsRef<[(Spanned<K>, T)]> for Entries<T, K> {
    fn as_ref(&self) -> &[(Spanned<K>, T)] {
        &self.0
    }
}

impl<T, K> Default for Entries<T, K> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T, K> Deserialize<'de> for Entries<T, K>
where
    T: Deserialize<'de>,
    K: Deserialize<'de>,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EntriesVisitor(PhantomData))
    }
}

struct EntriesVisitor<T, K>(PhantomData<(T, K)>);

impl<'de, T: Deserialize<'de>, K: Deserialize<'de>> Visitor<'de> for EntriesVisitor<T, K> {
    type Value = Entries<T, K>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("names and values")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries<T, K>, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Entries(entries))
    }
}

/// A word, or keys and values that say more than the word could.
#[derive(Clone, Debug)]
pub enum WordOr<T, W = String> {
    /// The word.
    Word(W),
    /// The keys and values.
    More(T),
}

impl<'de, T, W> Deserialize<'de> for WordOr<T, W>
where
    T: Deserialize<'de>,
    W: FromStr<Err: fmt::Display>,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_newtype_struct(WORD_OR, WordOrVisitor(PhantomData))
    }
}

struct WordOrVisitor<T, W>(PhantomData<(T, W)>);

impl<'de, T, W> Visitor<'de> for WordOrVisitor<T, W>
where
    T: Deserialize<'de>,
    W: FromStr<Err: fmt::Display>,
{
    type Value = WordOr<T, W>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, or keys and values")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<WordOr<T, W>, E> {
        text.parse().map(WordOr::Word).map_err(E::custom)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> Result<WordOr<T, W>, D::Error> {
        T::deserialize(deserializer).map(WordOr::More)
    }
}

/// Reads a text as a `T`; `expected` says what should stand there.
pub fn parsed<'de, T, D>(deserializer: D, expected: &'static str) -> Result<T, D::Error>
where
    T: FromStr<Err: fmt::Display>,
    D: Deserializer<'de>,
{
    deserializer.deserialize_str(TextVisitor(expected, PhantomData))
}

struct TextVisitor<T>(&'static str, PhantomData<T>);

impl<T: FromStr<Err: fmt::Display>> Visitor<'_> for TextVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}
