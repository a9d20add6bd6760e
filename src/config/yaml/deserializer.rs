//! A node of a document as serde sees it.

use serde::de::{self, Deserialize, DeserializeSeed, Deserializer, Unexpected, Visitor};
use serde::forward_to_deserialize_any;

use super::access::{Children, PlaceThenValue};
use super::choice::Choice;
use super::document::{Content, Document, Node, NodeId};
use super::error::Error;
use super::placed::PLACED;
use super::shapes::{ONE_OR_MANY, SECRET};
use crate::config::diagnostics::Lowered;

/// One node, to be deserialised.
#[derive(Clone, Copy)]
pub(super) struct Reader<'d> {
    document: &'d Document,
    id: NodeId,
    node: &'d Node,
}

impl<'d> Reader<'d> {
    /// Reads the node as a `T`; an error knows its place.
    pub(super) fn read<T: Deserialize<'d>>(self) -> Result<T, Error> {
        self.seeded(std::marker::PhantomData)
    }

    /// A node that is there, unless it is in error.
    pub(super) fn of(document: &'d Document, id: NodeId) -> Option<Lowered<Self>> {
        let node = document.node(id)?;
        Some(match node.pruned {
            Some(reported) => Err(reported),
            None => Ok(Self { document, id, node }),
        })
    }

    pub(super) fn seeded<S: DeserializeSeed<'d>>(self, seed: S) -> Result<S::Value, Error> {
        seed.deserialize(self)
            .map_err(|error| error.at(self.document.place(self.id)))
    }

    fn text(&self) -> Option<(&'d str, bool)> {
        match &self.node.content {
            Content::Scalar { text, plain } => Some((text, *plain)),
            _ => None,
        }
    }

    /// What a plain scalar means in YAML, by the word of `serde_yaml`.
    fn meaning(&self) -> Option<serde_yaml::Value> {
        let (text, _) = self.text().filter(|(_, plain)| *plain)?;
        serde_yaml::from_str(text).ok()
    }

    pub(super) fn is_null(&self) -> bool {
        // Nothing that means null is longer; most texts need not be looked at.
        let may_be = matches!(self.text(), Some((text, true)) if text.len() <= "null".len());
        may_be && self.meaning().is_some_and(|value| value.is_null())
    }

    fn found(&self) -> Unexpected<'d> {
        match &self.node.content {
            _ if self.is_null() => Unexpected::Unit,
            Content::Scalar { text, .. } => Unexpected::Str(text),
            Content::Sequence(_) => Unexpected::Seq,
            Content::Mapping(_) => Unexpected::Map,
        }
    }

    /// Why a text cannot stand for these keys, and how to write it instead.
    fn lacks_keys(&self, fields: &[&str]) -> Option<Error> {
        let (text, _) = self.text().filter(|_| !self.is_null())?;
        let remedy = match fields {
            [] => "write {}".to_owned(),
            [only] => format!("write {{{only}: {text}}}"),
            _ => format!("its keys are {}", fields.join(", ")),
        };
        let error: Error = de::Error::invalid_type(self.found(), &"keys and values");
        Some(error.remedy(remedy))
    }

    fn children(&self) -> Children<'d> {
        Children::new(self.document, self.document.children(self.id).collect())
    }

    fn number<V: Visitor<'d>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.meaning().and_then(|value| value.as_u64()) {
            Some(number) => visitor.visit_u64(number),
            None => Err(self.is_not("a whole number", serde_yaml::Value::is_u64)),
        }
    }

    /// What is something else than was expected, perhaps only because it stands in quotes.
    fn is_not(&self, expected: &str, fits: impl Fn(&serde_yaml::Value) -> bool) -> Error {
        let Some((text, false)) = self.text() else {
            return de::Error::invalid_type(self.found(), &expected);
        };
        let error = Error::new(format!("expected {expected}, found \"{text}\""));
        match serde_yaml::from_str(text) {
            Ok(value) if fits(&value) => error.remedy(format!("leave the quotes out: {text}")),
            _ => error,
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
            Content::Sequence(_) => visitor.visit_seq(self.children()),
            Content::Mapping(_) => visitor.visit_map(self.children()),
        }
    }

    fn deserialize_bool<V: Visitor<'d>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.meaning().and_then(|value| value.as_bool()) {
            Some(meant) => visitor.visit_bool(meant),
            None => Err(self.is_not("true or false", serde_yaml::Value::is_bool)),
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

    /// A key that is there says something: what is left empty by mistake, or by a template, must
    /// not pass for the default.
    fn deserialize_option<V: Visitor<'d>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.is_null() {
            Err(Error::new("there is no value").remedy("write one, or leave the key out"))
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
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        if name == PLACED {
            let place = self.document.place(self.id);
            visitor.visit_seq(PlaceThenValue::new(place, self))
        } else if let Some(error) = self.lacks_keys(fields) {
            Err(error)
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
            Content::Scalar { .. } | Content::Mapping(_) if name == ONE_OR_MANY => {
                visitor.visit_seq(Children::new(self.document, vec![self.id]))
            }
            _ => self.deserialize_any(visitor),
        }
    }

    /// A word, or one key with a value: `reject` or `shadow: NAME`.
    fn deserialize_enum<V: Visitor<'d>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        if let (Some((word, _)), false) = (self.text(), self.is_null()) {
            if name == SECRET {
                return Err(Error::new("a secret is not written into the configuration")
                    .remedy("write {file: PATH} or {env: NAME}"));
            }
            return visitor.visit_enum(Choice::bare(word));
        }
        let all: Vec<NodeId> = self.document.all_children(self.id).collect();
        let only = match all.as_slice() {
            [only] => self.document.key(*only).zip(Self::of(self.document, *only)),
            _ => None,
        };
        let Some((word, value)) = only else {
            let words = variants.join(", ");
            return Err(Error::new(format!("expected one of: {words}")));
        };
        let value = value.map_err(Error::following)?;
        let place = self.document.key_place(value.id);
        visitor.visit_enum(Choice::with(word, place, value))
    }

    forward_to_deserialize_any! {
        <V: Visitor<'d>>
        i8 i16 i32 i64 i128 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        map identifier ignored_any
    }
}
