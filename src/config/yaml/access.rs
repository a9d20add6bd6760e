//! What serde walks over: the children of a node, and a value with its place.

use serde::de::value::StrDeserializer;
use serde::de::{DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;

use super::deserializer::Reader;
use super::document::{Document, NodeId, Span};
use super::error::Error;
use super::placed::PLACED;
use crate::config::diagnostics::Lowered;

/// The children of a mapping or sequence, one after the other.
pub(super) struct Children<'d> {
    document: &'d Document,
    ids: std::vec::IntoIter<NodeId>,
    value: Option<Lowered<Reader<'d>>>,
}

impl<'d> Children<'d> {
    pub(super) fn new(document: &'d Document, ids: Vec<NodeId>) -> Self {
        Self {
            document,
            ids: ids.into_iter(),
            value: None,
        }
    }
}

impl<'d> SeqAccess<'d> for Children<'d> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'d>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Error> {
        let next = self.ids.next().and_then(|id| Reader::of(self.document, id));
        next.map(|reader| reader.map_err(Error::following)?.seeded(seed))
            .transpose()
    }
}

impl<'d> MapAccess<'d> for Children<'d> {
    type Error = Error;

    fn next_key_seed<S: DeserializeSeed<'d>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Error> {
        let Some(id) = self.ids.next() else {
            return Ok(None);
        };
        self.value = Reader::of(self.document, id);
        let place = self.document.key_place(id);
        let word = self.document.key(id).unwrap_or_default();
        seed.deserialize(Key { word, place })
            .map(Some)
            .map_err(|error| error.at(place))
    }

    fn next_value_seed<S: DeserializeSeed<'d>>(&mut self, seed: S) -> Result<S::Value, Error> {
        match self.value.take() {
            Some(reader) => reader.map_err(Error::following)?.seeded(seed),
            None => Err(Error::new("a key without a value")),
        }
    }
}

/// The key of a mapping.
struct Key<'d> {
    word: &'d str,
    place: Span,
}

impl<'d> Deserializer<'d> for Key<'d> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'d>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_borrowed_str(self.word)
    }

    fn deserialize_struct<V: Visitor<'d>>(
        self,
        name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        if name == PLACED {
            let word: StrDeserializer<'d, Error> = self.word.into_deserializer();
            visitor.visit_seq(PlaceThenValue::new(self.place, word))
        } else {
            self.deserialize_any(visitor)
        }
    }

    forward_to_deserialize_any! {
        <V: Visitor<'d>>
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// What [`super::Spanned`] is read from.
pub(super) struct PlaceThenValue<D> {
    place: Option<Span>,
    value: Option<D>,
}

impl<D> PlaceThenValue<D> {
    pub(super) fn new(place: Span, value: D) -> Self {
        Self {
            place: Some(place),
            value: Some(value),
        }
    }
}

impl<'d, D: Deserializer<'d, Error = Error>> SeqAccess<'d> for PlaceThenValue<D> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'d>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Error> {
        if let Some(place) = self.place.take() {
            return seed
                .deserialize(place.to_bits().into_deserializer())
                .map(Some);
        }
        let value = self.value.take();
        value.map(|value| seed.deserialize(value)).transpose()
    }
}
