//! YAML read in such a way that every value knows its place, and that one error does not hide the
//! next; and what every reader of a configuration shares, whatever its keys are.
//!
//! A [`Document`] is a tree of nodes with their positions, made from the parser's events. It is
//! deserialised by what the schema asks for: scalars are text until a type wants a number, so
//! an id like `0123` keeps its zero and a country code `NO` is not false. What does not fit is
//! reported, cut out of the tree, and the rest is tried again.
//!
//! A feature's keys are a type that derives `Deserialize`, of [`Spanned`] values with types that
//! parse themselves, and a function that takes a [`Lowering`] and makes settings of them, with every
//! error in [`Diagnostics`]. This crate knows no feature, and no other crate of Weir.

#![forbid(unsafe_code)]

mod diagnostics;
mod document;
mod errors;
mod inputs;
mod lowering;
mod parse;
mod reader;
mod redaction;
#[cfg(feature = "schema")]
mod schema;
mod shapes;
mod suggestions;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod values;
mod words;
mod written;

pub use diagnostics::{
    Diagnostic, Diagnostics, ErrorBuilder, Location, Lowered, Reported, Severity, all, pluralized,
};
pub use document::{Document, FileId, Sources, Span};
pub use inputs::{Inputs, STANDARD_INPUT, Stamps, display_name, standard_input};
pub use lowering::{Lowering, is_of_connection, keys_or_off, message_and_help};
pub use redaction::{HIDDEN, SECRETS, VALUES, shown_part, without_passwords};
#[cfg(feature = "schema")]
pub use schema::KeySchema;
pub use shapes::{
    Entries, Filled, Note, OneOrMany, Required, Secret, SpanOf, Spanned, WordOr, parsed,
};
pub use suggestions::{Suggestions, suggest};
pub use values::{
    ByteSize, ByteSizeError, FieldName, HumanDuration, HumanDurationError, MediaType,
    MediaTypeError, MethodError, MethodName, NotAFieldName, Percent, PercentError,
    PositiveDuration, PositiveDurationError, PositiveSize, ResponseStatus, Within, whole_number,
};
pub use words::{Word, Words, read_word};
pub use written::read_as;
