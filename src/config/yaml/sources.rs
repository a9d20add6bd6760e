//! The files of a configuration, to ask them where something stands.

use super::document::{Document, FileId, Span};
use crate::config::diagnostics::{Location, Reported};

/// All documents that were read, by their ids.
#[derive(Default)]
pub(in crate::config) struct Sources(Vec<Document>);

impl Sources {
    /// The id that the next document must have.
    pub(in crate::config) fn next_id(&self) -> FileId {
        FileId::try_from(self.0.len()).unwrap_or(FileId::MAX)
    }

    /// Keeps a document, whose id must be the number of those before it.
    pub(in crate::config) fn add(&mut self, document: Document) {
        self.0.push(document);
    }

    /// Where a place is.
    pub(in crate::config) fn location(&self, place: Span) -> Location {
        self.document(place)
            .map(|document| document.location(place))
            .unwrap_or_default()
    }

    /// The keys that a mapping has in its file, those included whose values are in error.
    pub(in crate::config) fn keys_at(&self, place: Span) -> impl Iterator<Item = &str> {
        self.document(place)
            .into_iter()
            .flat_map(move |document| document.keys_at(place))
    }

    /// The proof that what stands under one of some keys of a mapping is in error, if it is.
    pub(in crate::config) fn key_in_error(&self, place: Span, keys: &[&str]) -> Option<Reported> {
        self.document(place)?.key_in_error(place, keys)
    }

    /// The proof that a key of an item of a list is in error, if it is.
    pub(in crate::config) fn key_of_item_in_error(
        &self,
        list: Span,
        key: &str,
    ) -> Option<Reported> {
        self.document(list)?.key_of_item_in_error(list, key)
    }

    /// The proof that something right within a list or mapping is in error, if anything is.
    pub(in crate::config) fn child_in_error(&self, place: Span) -> Option<Reported> {
        self.document(place)?.child_in_error(place)
    }

    fn document(&self, place: Span) -> Option<&Document> {
        self.0.get(usize::from(place.file))
    }
}
