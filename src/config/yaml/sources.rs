//! The files of a configuration, to ask them where something stands.

use super::document::{Document, FileId, Place};
use crate::config::diagnostics::Location;

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
    pub(in crate::config) fn location(&self, place: Place) -> Location {
        self.document(place)
            .map(|document| document.location(place))
            .unwrap_or_default()
    }

    /// The keys that a mapping has in its file, those included whose values are in error.
    pub(in crate::config) fn keys_at(&self, place: Place) -> impl Iterator<Item = &str> {
        self.document(place)
            .into_iter()
            .flat_map(move |document| document.keys_at(place))
    }

    /// Whether a mapping has one of some keys in its file, even if the value is in error.
    pub(in crate::config) fn has_key(&self, place: Place, keys: &[&str]) -> bool {
        self.keys_at(place).any(|it| keys.contains(&it))
    }

    /// Whether a list has no items in its file, not even ones in error.
    pub(in crate::config) fn is_empty_at(&self, place: Place) -> bool {
        self.document(place)
            .is_none_or(|document| document.all_children(place.node).next().is_none())
    }

    fn document(&self, place: Place) -> Option<&Document> {
        self.0.get(usize::from(place.file))
    }
}
