//! Deserialising a document with all of its errors.

use serde::de::DeserializeOwned;

use super::deserializer::Reader;
use super::document::{Document, NodeId, Place};
use super::error::Error;
use crate::config::diagnostics::{Diagnostics, Location, Lowered, Reported};

/// A file with more errors than this is of another form than it should be; going on would take
/// a time that grows with their square.
const MAX_ERRORS: usize = 200;

impl Document {
    /// Reads the document as a `T`; none when there is nothing in it. Every error is added to
    /// `found`, and what is in error is left out of the result; there is no result when too much is.
    pub(in crate::config) fn read<T: DeserializeOwned>(
        &mut self,
        found: &mut Diagnostics,
    ) -> Lowered<Option<T>> {
        let Some(root) = self.root.filter(|_| self.broken.is_none()) else {
            return self.broken.map_or(Ok(None), Err);
        };
        for _ in 0..MAX_ERRORS {
            let error = match Reader::of(self, root) {
                None => return Ok(None),
                Some(root) => match root?.read() {
                    Ok(value) => return Ok(Some(value)),
                    Err(error) => error,
                },
            };
            self.cut_out(root, error, found);
        }
        let location = Location {
            file: self.file.clone(),
            ..Location::default()
        };
        let more = found.error(location, "the file has more errors");
        Err(more.remedy("mend these first"))
    }

    /// Reports an error and cuts its node out of the tree, so that the next try gets further.
    fn cut_out(&mut self, root: NodeId, error: Error, found: &mut Diagnostics) {
        let place = error.place.unwrap_or(self.place(root));
        let reported = self.cause(place, &error).unwrap_or_else(|| {
            let location = self.location(place);
            found.error(location, error.message).perhaps(error.remedy)
        });
        if let Some(node) = self.node_mut(place.node) {
            node.pruned = Some(reported);
        }
    }

    /// The reported error that this one follows from: a key is missing only because it was cut out.
    fn cause(&self, place: Place, error: &Error) -> Option<Reported> {
        let missing = || self.key_in_error(place, &[error.missing?]);
        error.follows.or_else(missing)
    }
}
