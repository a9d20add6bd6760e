//! Reading YAML in such a way that every value knows its place, and that one error does not hide
//! the next.
//!
//! A [`Document`] is a tree of nodes with their positions, made from the parser's events. It is
//! deserialised by what the schema asks for: scalars are text until a type wants a number, so
//! an id like `0123` keeps its zero and a country code `NO` is not false. What does not fit is
//! reported, cut out of the tree, and the rest is tried again.

mod access;
mod alias;
mod build;
mod choice;
mod deserializer;
mod document;
mod error;
mod placed;
mod read;
mod shapes;
mod sources;
#[cfg(test)]
mod tests;

pub(super) use document::{Document, FileId, Span};
pub(super) use placed::Spanned;
pub(super) use shapes::{Entries, Note, OneOrMany, WordOr};
pub(super) use sources::Sources;
