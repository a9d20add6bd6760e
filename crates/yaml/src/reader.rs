//! Reading a document with all of its errors, and its nodes as serde sees them.

use serde::de::value::{SeqAccessDeserializer, StrDeserializer, UnitDeserializer};
use serde::de::{
    self, Deserialize, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess,
    IntoDeserializer, MapAccess, SeqAccess, Unexpected, VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use super::document::{Content, Document, Node, NodeId, PrunedNode, Span, Step};
use super::errors::{Error, RATE, rate};
use super::shapes::{FILLED, MAY_BE_EMPTY, ONE_OR_MANY, REQUIRED, SECRET, SPANNED, WORD_OR};
use crate::diagnostics::{Diagnostics, Location, Lowered, Reported};
use crate::redaction::may_show_secret;
use crate::suggestions::best_match;

/// A file with more errors than this is of another form than it should be; going on would take
/// a time that grows with their square.
const MAX_ERRORS: usize = 99;

/// The keys of texts that are passed on as they are.
const TEXTS: [&str; 2] = ["body", "comment"];

impl Document {
    /// Reads the document as a `T`; none when there is nothing in it. Every error is added to
    /// `diagnostics`, and what is in error is left out of the result; there is no result when too much
    /// is.
    pub fn read<T: DeserializeOwned>(
        &mut self,
        diagnostics: &mut Diagnostics,
    ) -> Lowered<Option<T>> {
        let Some(root) = self.root.filter(|_| self.broken.is_none()) else {
            return self.broken.map_or(Ok(None), Err);
        };
        self.refuse_variables(root, diagnostics);
        for _ in 0..MAX_ERRORS {
            let error = match Reader::of(self, root) {
                None => return Ok(None),
                Some(root) => match root?.read() {
                    Ok(value) => return Ok(Some(value)),
                    Err(error) => error,
                },
            };
            self.prune(root, error, diagnostics);
        }
        let location = Location {
            file: self.file.clone(),
            ..Location::default()
        };
        let more = diagnostics.error(location, "the file has more errors");
        Err(more.help("fix these first"))
    }

    /// Reports values in which a variable of the environment stands. Text that nobody parses, such
    /// as a name or a header, would be served with the variable in it.
    fn refuse_variables(&mut self, root: NodeId, diagnostics: &mut Diagnostics) {
        let found: Vec<(NodeId, String)> = (0..)
            .zip(&self.nodes)
            .filter_map(|(id, node)| Some((id, variable(node)?.to_owned())))
            .take(MAX_ERRORS)
            .collect();
        for (id, name) in found {
            let error = Error::new(format!("the variable ${{{name}}} is not filled in here"));
            let error = error.at(self.span(id));
            self.prune(root, error, diagnostics);
        }
    }

    /// Reports an error and cuts its node out of the tree, so that the next try gets further.
    fn prune(&mut self, root: NodeId, error: Error, diagnostics: &mut Diagnostics) {
        let span = error.span.unwrap_or(self.span(root));
        let (rate, keys) = (rate(self, span.node, &error), error.outdented_keys());
        let mut stands_for: Vec<&str> = self.best_match(span.node, &error).into_iter().collect();
        if rate.is_some() {
            stands_for = RATE.to_vec();
        }
        let reported = self.cause(span, &error).unwrap_or_else(|| {
            let location = self.location(span);
            let error = match may_show_secret(&location.path, "") {
                true => error.without_text(),
                false => error,
            };
            diagnostics
                .error(location, error.message)
                .first_help(self.variable_help(span))
                .maybe_help(rate.or(error.help))
        });
        let outdented: Vec<NodeId> = self.outdented(span.node, keys).collect();
        for node in outdented {
            self.cut(node, reported, Vec::new());
        }
        self.cut(span.node, reported, stands_for);
    }

    fn cut(&mut self, node: NodeId, reported: Reported, stands_for: Vec<&'static str>) {
        if let Some(node) = self.node_mut(node) {
            node.pruned = Some(reported);
        }
        self.pruned_nodes.push(PrunedNode { node, stands_for });
    }

    /// What stands right behind a key, in its column, and was meant to stand below it.
    fn outdented<'d>(&'d self, id: NodeId, keys: &'d [&str]) -> impl Iterator<Item = NodeId> + 'd {
        let parent = self.node(id).and_then(|node| node.parent);
        let siblings = parent.into_iter().flat_map(|it| self.all_children(it));
        let behind = siblings.skip_while(move |it| *it != id).skip(1);
        behind.take_while(|it| self.key(*it).is_some_and(|key| keys.contains(&key)))
    }

    /// The known key that an unknown one was most likely written for.
    fn best_match(&self, node: NodeId, error: &Error) -> Option<&'static str> {
        best_match(self.key(node)?, error.unknown_among())
    }

    /// The reported error that this one follows from: a key is missing only because it was cut out.
    fn cause(&self, span: Span, error: &Error) -> Option<Reported> {
        let missing = || self.key_in_error(span, &[error.missing?]);
        error.follows.or_else(missing)
    }
}

/// The name of the first variable of the environment in a value, as shells and compose files have
/// them. Bodies are scripts and pages, which have such marks of their own, and notes are for people.
fn variable(node: &Node) -> Option<&str> {
    let Content::Scalar { text, .. } = &node.content else {
        return None;
    };
    if matches!(&node.step, Step::Key(key, _) if TEXTS.contains(&key.as_str())) {
        return None;
    }
    text.split("${").skip(1).find_map(|rest| {
        let end = rest.find(|char: char| {
            !(char.is_ascii_uppercase() || char.is_ascii_digit() || char == '_')
        })?;
        let (name, rest) = rest.split_at(end);
        (!name.is_empty() && rest.starts_with(['}', ':', '-', '?'])).then_some(name)
    })
}

/// One node, to be deserialised.
#[derive(Clone, Copy)]
pub(super) struct Reader<'d> {
    document: &'d Document,
    id: NodeId,
    node: &'d Node,
}

impl<'d> Reader<'d> {
    /// Reads the node as a `T`; an error knows its span.
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
            .map_err(|error| error.at(self.document.span(self.id)))
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

    /// Why nothing cannot stand for these keys. Where they stand beside the key instead of below it,
    /// the remedy is to move them.
    fn lacks_indented_keys(&self, fields: &'static [&'static str]) -> Error {
        let error: Error = de::Error::invalid_type(self.found(), &"keys and values");
        let is_beside = self.document.outdented(self.id, fields).next().is_some();
        match self.document.key(self.id).filter(|_| is_beside) {
            Some(key) => {
                let help = format!("indent its keys deeper than `{key}`");
                error.help(help).outdented(fields)
            }
            None => error.help(format!("its keys are {}", fields.join(", "))),
        }
    }

    /// Why nothing cannot stand here, where `read` is what came of reading it as a value.
    fn no_value<T>(read: Result<T, Error>, help: &str) -> Error {
        match read {
            Err(error) if !error.outdented_keys().is_empty() => error,
            _ => Error::new("there is no value").help(help),
        }
    }

    /// Why a text cannot stand for these keys, and how to write it instead.
    fn lacks_keys(&self, fields: &[&str]) -> Option<Error> {
        let (text, _) = self.text().filter(|_| !self.is_null())?;
        let help = match fields {
            [] => "write {}".to_owned(),
            [only] => format!("write {{{only}: {text}}}"),
            _ if fields.contains(&"servers") && text.contains("://") && !text.contains('@') => {
                format!("write {{servers: [\"{text}\"]}}")
            }
            _ => format!("its keys are {}", fields.join(", ")),
        };
        let error: Error = de::Error::invalid_type(self.found(), &"keys and values");
        Some(error.help(help))
    }

    /// The proof that a list is empty only because all its items are in error, if it is.
    fn lost_items(&self) -> Option<Reported> {
        let is_empty = self.document.children(self.id).next().is_none();
        let span = self.document.span(self.id);
        is_empty.then(|| self.document.child_in_error(span))?
    }

    fn children(&self) -> Children<'d> {
        Children::new(self.document, self.document.children(self.id).collect())
    }

    /// The children, and those in error that stand under known keys.
    fn fields(&self, known: &[&str]) -> Children<'d> {
        let key = |id| self.document.key(id);
        let mut ids: Vec<NodeId> = self.document.children(self.id).collect();
        for id in self.document.all_children(self.id) {
            let is_new = ids.iter().all(|other| key(*other) != key(id));
            if is_new && key(id).is_some_and(|key| known.contains(&key)) {
                ids.push(id);
            }
        }
        Children::new(self.document, ids)
    }

    fn number<V: Visitor<'d>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.meaning().and_then(|value| value.as_u64()) {
            Some(number) if self.is_decimal() => visitor.visit_u64(number),
            Some(number) => {
                let error: Error = de::Error::invalid_type(self.found(), &"a whole number");
                Err(error.help(format!("write it in decimal digits: {number}")))
            }
            None => Err(self.is_not("a whole number", serde_yaml::Value::is_u64)),
        }
    }

    /// Whether a number is written as people read it. YAML has `0x10`, `0o10` and `+5` as well, which
    /// other readers of YAML take for texts, or for other numbers.
    fn is_decimal(&self) -> bool {
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        self.text().is_some_and(|(text, _)| digits(text))
    }

    /// What is something else than was expected, perhaps only because it stands in quotes.
    fn is_not(&self, expected: &str, fits: impl Fn(&serde_yaml::Value) -> bool) -> Error {
        let Some((text, false)) = self.text() else {
            return de::Error::invalid_type(self.found(), &expected);
        };
        let error = Error::new(format!("expected {expected}, found \"{text}\""));
        match serde_yaml::from_str(text) {
            Ok(value) if fits(&value) => error.help(format!("leave the quotes out: {text}")),
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
            let help = "write one, or leave the key out";
            Err(Self::no_value(visitor.visit_some(self), help))
        } else {
            visitor.visit_some(self)
        }
    }

    /// [`ONE_OR_MANY`] and [`FILLED`] get a list, of one value when there is just one;
    /// [`MAY_BE_EMPTY`] may be null; [`WORD_OR`] gets a word as it is.
    fn deserialize_newtype_struct<V: Visitor<'d>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        if name == FILLED
            && let Some(reported) = self.lost_items()
        {
            return Err(Error::following(reported));
        }
        let is_list = name == ONE_OR_MANY || name == FILLED;
        if is_list && !matches!(self.node.content, Content::Sequence(_)) {
            let only = Children::new(self.document, vec![self.id]);
            visitor.visit_newtype_struct(SeqAccessDeserializer::new(only))
        } else if name == MAY_BE_EMPTY && self.is_null() {
            visitor.visit_newtype_struct(UnitDeserializer::new())
        } else if name == REQUIRED && self.is_null() {
            Err(Self::no_value(
                visitor.visit_newtype_struct(self),
                "write one",
            ))
        } else if name == WORD_OR && !matches!(self.node.content, Content::Mapping(_)) {
            self.deserialize_any(visitor)
        } else {
            visitor.visit_newtype_struct(self)
        }
    }

    /// A struct of the name [`SPANNED`] gets the span, and then the value itself.
    fn deserialize_struct<V: Visitor<'d>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        if name == SPANNED {
            let span = self.document.span(self.id);
            visitor.visit_seq(SpanThenValue::new(span, self))
        } else if let Some(error) = self.lacks_keys(fields) {
            Err(error)
        } else if self.is_null() && !fields.is_empty() {
            Err(self.lacks_indented_keys(fields))
        } else if let Content::Sequence(_) = self.node.content {
            // Serde would take its items for the values of the keys.
            let error: Error = de::Error::invalid_type(self.found(), &"keys and values");
            Err(match fields.contains(&"addresses") {
                true => error.help("write {addresses: [...]}, or {accounts: [...]}"),
                false => error,
            })
        } else if let Content::Mapping(_) = self.node.content {
            visitor.visit_map(self.fields(fields))
        } else {
            self.deserialize_any(visitor)
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
                    .help("write {file: PATH} or {env: NAME}"));
            }
            return visitor.visit_enum(VariantReader::bare(word));
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
        let span = self.document.key_span(value.id);
        visitor.visit_enum(VariantReader::with(word, span, value))
    }

    forward_to_deserialize_any! {
        <V: Visitor<'d>>
        i8 i16 i32 i64 i128 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}

/// The children of a mapping or sequence, one after the other.
struct Children<'d> {
    document: &'d Document,
    ids: std::vec::IntoIter<NodeId>,
    value: Option<(NodeId, Lowered<Reader<'d>>)>,
}

impl<'d> Children<'d> {
    fn new(document: &'d Document, ids: Vec<NodeId>) -> Self {
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
        self.value = Reader::of(self.document, id).map(|reader| (id, reader));
        let span = self.document.key_span(id);
        let word = self.document.key(id).unwrap_or_default();
        seed.deserialize(KeyReader { word, span })
            .map(Some)
            .map_err(|error| error.at(span))
    }

    fn next_value_seed<S: DeserializeSeed<'d>>(&mut self, seed: S) -> Result<S::Value, Error> {
        match self.value.take() {
            Some((_, Ok(reader))) => reader.seeded(seed),
            Some((id, Err(reported))) => seed.deserialize(InError {
                span: self.document.span(id),
                reported,
            }),
            None => Err(Error::new("a key without a value")),
        }
    }
}

struct KeyReader<'d> {
    word: &'d str,
    span: Span,
}

impl<'d> Deserializer<'d> for KeyReader<'d> {
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
        if name == SPANNED {
            let word: StrDeserializer<'d, Error> = self.word.into_deserializer();
            visitor.visit_seq(SpanThenValue::new(self.span, word))
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

/// What stands in the place of a value in error: nothing, where the schema can do without it.
struct InError {
    span: Span,
    reported: Reported,
}

impl<'d> Deserializer<'d> for InError {
    type Error = Error;

    fn deserialize_any<V: Visitor<'d>>(self, _visitor: V) -> Result<V::Value, Error> {
        Err(Error::following(self.reported))
    }

    fn deserialize_option<V: Visitor<'d>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_none()
    }

    fn deserialize_struct<V: Visitor<'d>>(
        self,
        name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match name {
            SPANNED => visitor.visit_seq(SpanThenValue::new(self.span, self)),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'d>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        match name {
            REQUIRED => visitor.visit_newtype_struct(self),
            _ => self.deserialize_any(visitor),
        }
    }

    forward_to_deserialize_any! {
        <V: Visitor<'d>>
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// What [`crate::Spanned`] is read from: the span as a number, and then the value.
struct SpanThenValue<D> {
    span: Option<Span>,
    value: Option<D>,
}

impl<D> SpanThenValue<D> {
    fn new(span: Span, value: D) -> Self {
        Self {
            span: Some(span),
            value: Some(value),
        }
    }
}

impl<'d, D: Deserializer<'d, Error = Error>> SeqAccess<'d> for SpanThenValue<D> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'d>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Error> {
        if let Some(span) = self.span.take() {
            return seed
                .deserialize(span.to_bits().into_deserializer())
                .map(Some);
        }
        let value = self.value.take();
        value.map(|value| seed.deserialize(value)).transpose()
    }
}

/// A word that was chosen from several, with its value if it has one.
struct VariantReader<'d> {
    word: &'d str,
    /// The value, and the span of the word before it.
    value: Option<(Reader<'d>, Span)>,
}

impl<'d> VariantReader<'d> {
    fn bare(word: &'d str) -> Self {
        Self { word, value: None }
    }

    fn with(word: &'d str, span: Span, value: Reader<'d>) -> Self {
        Self {
            word,
            value: Some((value, span)),
        }
    }
}

impl<'d> EnumAccess<'d> for VariantReader<'d> {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'d>>(self, seed: S) -> Result<(S::Value, Self), Error> {
        let word: StrDeserializer<'d, Error> = self.word.into_deserializer();
        match (seed.deserialize(word), &self.value) {
            (Ok(variant), _) => Ok((variant, self)),
            (Err(error), Some((_, span))) => Err(error.at(*span)),
            (Err(error), None) => Err(error),
        }
    }
}

impl<'d> VariantAccess<'d> for VariantReader<'d> {
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
                        .help(format!("write {{{}: ...}}", self.word))
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
