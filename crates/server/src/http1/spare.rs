//! The maps of heads that are over, for the next ones of a worker. `weir_http::request` keeps the
//! boxes, which are free before the response is written.

use std::cell::RefCell;

use http::{Extensions, HeaderMap};

/// More are kept by no thread: a worker seldom has so many responses between two requests.
const MAX_KEPT: usize = 64;

/// A map that has grown beyond this is not used again.
const MAX_HEADERS: usize = 64;

thread_local! {
    static SPARE: RefCell<Vec<SpareMaps>> = const { RefCell::new(Vec::new()) };
}

/// The maps of a head, without entries.
///
/// They belong to the thread and not to a connection, so that a connection that waits for a request
/// takes none of this memory, which is more than all else that it has.
#[derive(Debug, Default)]
pub(super) struct SpareMaps {
    pub(super) headers: HeaderMap,
    pub(super) extensions: Extensions,
}

impl SpareMaps {
    /// The maps that were kept last, or new ones.
    pub(super) fn take() -> Self {
        SPARE.with_borrow_mut(Vec::pop).unwrap_or_default()
    }

    /// Keeps the memory of the maps for the next request of any connection.
    pub(super) fn keep(mut self) {
        if self.headers.capacity() > MAX_HEADERS {
            return;
        }
        // To clear an empty map goes over all of its places.
        if !self.headers.is_empty() {
            self.headers.clear();
        }
        self.extensions.clear();
        SPARE.with_borrow_mut(|spare| {
            if spare.len() < MAX_KEPT {
                spare.push(self);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::HOST;

    use super::*;

    fn used(headers: usize) -> SpareMaps {
        let mut maps = SpareMaps {
            headers: HeaderMap::with_capacity(headers),
            ..SpareMaps::default()
        };
        maps.headers
            .insert(HOST, HeaderValue::from_static("a.example"));
        maps.extensions.insert("left by a layer");
        maps
    }

    #[test]
    fn nothing_of_one_request_is_found_by_the_next() {
        used(8).keep();
        let next = SpareMaps::take();
        assert!(next.headers.capacity() >= 8);
        assert!(next.headers.is_empty());
        assert!(next.extensions.is_empty());
    }

    #[test]
    fn neither_large_maps_nor_many_are_kept() {
        used(MAX_HEADERS * 2).keep();
        assert_eq!(SpareMaps::take().headers.capacity(), 0);
        for _ in 0..=MAX_KEPT {
            used(8).keep();
        }
        assert_eq!(SPARE.with_borrow(Vec::len), MAX_KEPT);
    }
}
