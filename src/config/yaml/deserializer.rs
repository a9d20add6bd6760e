//! A node of a document as serde sees it.

use serde::de::value::{StrDeserializer, UnitDeserializer};
use serde::de::{
    self, Deserialize, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess,
    SeqAccess, Unexpected, VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use super::document::{Content, Document, Node, NodeId, Place};
use super::error::Error;
use super::placed::PLACED;
use super::shapes::ONE_OR_MANY;

/// One node, to be deserialised.
#[derive(Clone, Copy)]
pub(super) struct Reader<'d> {
    document: &'d Document,
    id: NodeId,
    node: &'d Node,
}

impl<'d> Reader<'d> {
    /// The root of a document; none when there is nothing in it.
    pub(super) fn root(document: &'d Document) -> Option<Self> {
        Self::of(document, document.root?)
    }

    /// Reads the node as a `T`; an error knows its place.
    pub(super) fn read<T: Deserialize<'d>>(self) -> Result<T, Error> {
        self.seeded(std::marker::PhantomData)
    }

    fn of(document: &'d Document, id: NodeId) -> Option<Self> {
        let node = document.node(id).filter(|node| !node.pruned)?;
        Some(Self { document, id, node })
    }

    fn seeded<S: DeserializeSeed<'d>>(self, seed: S) -> Result<S::Value, Error> {
        seed.deserialize(self)
            .map_err(|error| error.at(self.document.place(self.id)))
    }

    fn text(&self) -> Option<(&'d str, bool)> {
        match &self.node.content {
            Content::Scalar { text, plain } => Some((text, *plain)),
            _ => None,
        }
    }

    fn is_null(&self) -> bool {
        matches!(self.text(), Some(("" | "~" | "null", true)))
    }

    fn found(&self) -> Unexpected<'d> {
        match &self.node.content {
            _ if self.is_null() => Unexpected::Unit,
            Content::Scalar { text, .. } => Unexpected::Str(text),
            Content::Sequence(_) => Unexpected::Seq,
            Content::Mapping(_) => Unexpected::Map,
        }
    }

    fn live_children(&self) -> Children<'d> {
        Children {
            document: self.document,
            ids: self
                .document
                .children(self.id)
                .collect::<Vec<_>>()
                .into_iter(),
            value: None,
        }
    }

    fn number<V: Visitor<'d>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.text() {
            Some((text, true)) => match text.parse() {
                Ok(number) => visitor.visit_u64(number),
                Err(_) => Err(de::Error::invalid_type(self.found(), &"a whole number")),
            },
            _ => Err(de::Error::invalid_type(self.found(), &"a whole number")),
        }
    }
}

impl<'d> Deserializer<'d> for Reader<'d> {
    type Error = Error;

    /// Scalars are text, whatever they look like: see the module above.
    fn deserialize_any<V: Visitor<'d>>(self, visitor: V) -> Result<V::Value, Error> {
        match &self.node.content {
            _ if self.is_null() => visitor.visit_unit(),
            Content::Scalar { text, .. } => visitor.visit_borrowed_str(text),
            Content::Sequence(_) => visitor.visit_seq(self.live_children()),
            Content::Mapping(_) => visitor.visit_map(self.live_children()),
        }
    }

    fn deserialize_bool<V: Visitor<'d>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.text() {
            Some(("true", true)) => visitor.visit_bool(true),
            Some(("false", true)) => visitor.visit_bool(false),
            _ => Err(de::Error::invalid_type(self.found(), &"true or false")),
        }
    }

    fn deserialize_u8<V: Visitor<'d>>(self, visitor: V) -> Result<V::Value, Error> {
        self.number(visitor)
    }

    fn deserialize_u16<V: Visitor<'d>>(self, visitor: V) -> Result<V::Value, Error> {
        self.number(visitor)
    }

    fn deserialize_u32<V: Visitor<'d>>(self, visitor: V) -> Result<V::Value, Error> {
        self.number(visitor)
    }

    fn deserialize_u64<V: Visitor<'d>>(self, visitor: V) -> Result<V::Value, Error> {
        self.number(visitor)
    }

    fn deserialize_option<V: Visitor<'d>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.is_null() {
            visitor.visit_none()
        } else {
            visitor.visit_some(self)
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'d>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    /// A struct of the name [`PLACED`] gets the place, and then the value itself.
    fn deserialize_struct<V: Visitor<'d>>(
        self,
        name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        if name == PLACED {
            let place = self.document.place(self.id);
            visitor.visit_seq(PlaceThenValue::new(place, self))
        } else {
            self.deserialize_any(visitor)
        }
    }

    /// A tuple struct of the name [`ONE_OR_MANY`] gets a list, of one value when there is just one.
    fn deserialize_tuple_struct<V: Visitor<'d>>(
        self,
        name: &'static str,
        _len: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        match &self.node.content {
            Content::Scalar { .. } if name == ONE_OR_MANY => visitor.visit_seq(Children {
                document: self.document,
                ids: vec![self.id].into_iter(),
                value: None,
            }),
            _ => self.deserialize_any(visitor),
        }
    }

    /// A word, or one key with a value: `reject` or `shadow: NAME`.
    fn deserialize_enum<V: Visitor<'d>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        if let (Some((word, _)), false) = (self.text(), self.is_null()) {
            return visitor.visit_enum(Choice {
                word,
                value: None,
                word_place: None,
            });
        }
        let children: Vec<NodeId> = self.document.all_children(self.id).collect();
        let choice = match children.as_slice() {
            [only] => self.document.key(*only).map(|word| Choice {
                word,
                value: Self::of(self.document, *only),
                word_place: Some(self.document.key_place(*only)),
            }),
            _ => None,
        };
        match choice {
            Some(choice) if choice.value.is_some() => visitor.visit_enum(choice),
            Some(_) => Err(Error::silent()),
            None => Err(Error::new(format!(
                "expected one of: {}",
                variants.join(", ")
            ))),
        }
    }

    forward_to_deserialize_any! {
        <V: Visitor<'d>>
        i8 i16 i32 i64 i128 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        map identifier ignored_any
    }
}

/// The children of a mapping or sequence, one after the other.
struct Children<'d> {
    document: &'d Document,
    ids: std::vec::IntoIter<NodeId>,
    value: Option<Reader<'d>>,
}

impl<'d> SeqAccess<'d> for Children<'d> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'d>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Error> {
        let next = self.ids.next().and_then(|id| Reader::of(self.document, id));
        next.map(|reader| reader.seeded(seed)).transpose()
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
            Some(reader) => reader.seeded(seed),
            None => Err(Error::silent()),
        }
    }
}

/// The key of a mapping.
struct Key<'d> {
    word: &'d str,
    place: Place,
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

/// What [`super::Placed`] is read from.
struct PlaceThenValue<D> {
    place: Option<Place>,
    value: Option<D>,
}

impl<D> PlaceThenValue<D> {
    fn new(place: Place, value: D) -> Self {
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

/// A word that was chosen from several, with its value if it has one.
struct Choice<'d> {
    word: &'d str,
    value: Option<Reader<'d>>,
    word_place: Option<Place>,
}

impl<'d> EnumAccess<'d> for Choice<'d> {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'d>>(self, seed: S) -> Result<(S::Value, Self), Error> {
        let word: StrDeserializer<'d, Error> = self.word.into_deserializer();
        match seed.deserialize(word) {
            Ok(variant) => Ok((variant, self)),
            Err(error) => Err(match self.word_place {
                Some(place) => error.at(place),
                None => error,
            }),
        }
    }
}

impl<'d> VariantAccess<'d> for Choice<'d> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        match self.value {
            Some(reader) if !reader.is_null() => {
                Err(Error::new(format!("\"{}\" takes no value", self.word)))
            }
            _ => Ok(()),
        }
    }

    /// A variant whose value is optional may be written as the bare word.
    fn newtype_variant_seed<S: DeserializeSeed<'d>>(self, seed: S) -> Result<S::Value, Error> {
        match self.value {
            Some(reader) => reader.seeded(seed),
            None => seed
                .deserialize(UnitDeserializer::new())
                .map_err(|_: Error| Error::new(format!("\"{}\" needs a value", self.word))),
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
