//! Deserialising a document with all of its errors.

use serde::de::DeserializeOwned;

use super::deserializer::Reader;
use super::document::{Document, NodeId};
use super::error::Error;
use crate::config::diagnostics::{Diagnostic, Diagnostics, Location};

/// A file with more errors than this is of another form than it should be; going on would take
/// a time that grows with their square.
const MAX_ERRORS: usize = 200;

impl Document {
    /// Reads the document as a `T`. Every error is added to `found`, and what is in error is left
    /// out of the result; there is no result when too much is.
    pub(in crate::config) fn read<T: DeserializeOwned>(
        &mut self,
        found: &mut Diagnostics,
    ) -> Option<T> {
        for _ in 0..MAX_ERRORS {
            match Reader::root(self)?.read() {
                Ok(value) => return Some(value),
                Err(error) => self.cut_out(error, found)?,
            }
        }
        let location = Location {
            file: self.file.clone(),
            ..Location::default()
        };
        found
            .push(Diagnostic::error(location, "the file has more errors"))
            .remedy("mend these first");
        None
    }

    /// Reports an error and cuts its node out of the tree, so that the next try gets further.
    fn cut_out(&mut self, error: Error, found: &mut Diagnostics) -> Option<()> {
        let place = error.place?;
        if !error.silent && !self.follows(place.node, &error) {
            let location = self.location(place);
            found
                .push(Diagnostic::error(location, error.message))
                .remedy = error.remedy;
        }
        self.node_mut(place.node)?.pruned = true;
        Some(())
    }

    /// Whether a key is missing only because it was cut out.
    fn follows(&self, node: NodeId, error: &Error) -> bool {
        error.missing.is_some_and(|missing| {
            self.all_children(node)
                .any(|child| self.key(child) == Some(missing))
        })
    }
}
