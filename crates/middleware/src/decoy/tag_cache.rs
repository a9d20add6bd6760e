//! The entity tags of real responses, by target and by form of the response.
//!
//! A client comes back with the tag that it was shown. A decoy with another tag responds 200 where
//! a real response is 304, and so tells the client that it is banned. So a decoy has the real tag
//! of its target as long as that tag is constant. An app may make a tag for one client, so the tag
//! must be one that the client itself got, or that two clients got.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};

use http::HeaderValue;
use parking_lot::Mutex;

use super::negotiation::FullResponse;

/// Upper bound on tags. Beyond it a key replaces another.
const MAX_TAGS: usize = 256;

/// The hash of a target, and the form of its response.
type TagKey = (u64, FullResponse);

/// The last tags of real responses.
#[derive(Debug)]
pub(super) struct TagCache {
    slots: Vec<Mutex<Option<CachedTag>>>,
    hasher: RandomState,
    has_any: AtomicBool,
}

#[derive(Clone, Debug)]
struct CachedTag {
    key: TagKey,
    tag: HeaderValue,
    /// `None` once several clients got it.
    only_client: Option<u64>,
    /// Whether no other tag came before it, or it came twice.
    is_constant: bool,
}

impl Default for TagCache {
    fn default() -> Self {
        Self {
            slots: (0..MAX_TAGS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            has_any: AtomicBool::new(false),
        }
    }
}

impl TagCache {
    /// Whether no response had a tag, so that nothing has to be looked up.
    pub(super) fn is_empty(&self) -> bool {
        !self.has_any.load(Ordering::Relaxed)
    }

    /// Records that a client got this tag, unless the slot is locked: no response waits for a lock.
    pub(super) fn learn(&self, key: TagKey, tag: &HeaderValue, client: u64) {
        let Some(mut slot) = self.slot(key).and_then(Mutex::try_lock) else {
            return;
        };
        match &mut *slot {
            Some(cached) if cached.key == key && cached.tag == tag => {
                cached.only_client = cached.only_client.filter(|only| *only == client);
                cached.is_constant = true;
            }
            other => {
                let is_first = other.as_ref().is_none_or(|cached| cached.key != key);
                *other = Some(CachedTag {
                    key,
                    tag: tag.clone(),
                    only_client: Some(client),
                    is_constant: is_first,
                });
                self.has_any.store(true, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn get(&self, key: TagKey, client: u64) -> Option<HeaderValue> {
        let slot = self.slot(key)?.lock();
        let cached = slot.as_ref().filter(|cached| {
            let is_own = cached.only_client.is_none_or(|only| only == client);
            cached.key == key && cached.is_constant && is_own
        });
        cached.map(|cached| cached.tag.clone())
    }

    /// Takes over the tags of `earlier`.
    pub(super) fn inherit(&self, earlier: &Self) {
        for slot in &earlier.slots {
            let Some(cached) = slot.lock().clone() else {
                continue;
            };
            if let Some(slot) = self.slot(cached.key) {
                *slot.lock() = Some(cached);
                self.has_any.store(true, Ordering::Relaxed);
            }
        }
    }

    fn slot(&self, key: TagKey) -> Option<&Mutex<Option<CachedTag>>> {
        let hash = self.hasher.hash_one(key);
        let index = usize::try_from(hash % MAX_TAGS as u64).ok()?;
        self.slots.get(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: FullResponse = FullResponse {
        is_read: true,
        is_compressed: false,
    };

    fn learn(tags: &TagCache, target: u64, tag: &'static str, client: u64) {
        tags.learn((target, FULL), &HeaderValue::from_static(tag), client);
    }

    fn get(tags: &TagCache, target: u64, client: u64) -> Option<String> {
        let tag = tags.get((target, FULL), client)?;
        Some(tag.to_str().unwrap().to_owned())
    }

    #[test]
    fn a_tag_is_shown_to_its_own_client_and_to_others_once_two_have_got_it() {
        let tags = TagCache::default();
        assert!(tags.is_empty());
        learn(&tags, 7, "\"a\"", 1);
        assert_eq!(get(&tags, 7, 1).as_deref(), Some("\"a\""));
        assert_eq!(get(&tags, 7, 3), None, "it may be made for the client");
        assert_eq!(get(&tags, 8, 1), None, "another target");
        learn(&tags, 7, "\"a\"", 2);
        assert_eq!(get(&tags, 7, 3).as_deref(), Some("\"a\""));
        let later = TagCache::default();
        later.inherit(&tags);
        assert!(!tags.is_empty() && !later.is_empty());
        assert_eq!(get(&later, 7, 3).as_deref(), Some("\"a\""));
    }

    #[test]
    fn a_tag_that_changes_with_each_response_is_not_shown() {
        let tags = TagCache::default();
        for tag in ["\"a\"", "\"b\"", "\"c\""] {
            learn(&tags, 7, tag, 1);
        }
        assert_eq!(get(&tags, 7, 1), None);
        learn(&tags, 7, "\"c\"", 1);
        assert_eq!(get(&tags, 7, 1).as_deref(), Some("\"c\""));
    }
}
