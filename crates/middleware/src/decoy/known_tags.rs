//! The entity tags of real responses, by what was asked for.
//!
//! A client that was shown a tag comes back with it. A decoy that knows nothing of it answers 200 where
//! real responses are 304, and so tells the client that it is banned. So a decoy has the real tag of
//! what is asked for, as long as that stays the same: but only one that the client itself got, or that
//! two clients have got, as a tag may be made for one client.

use std::hash::{BuildHasher, RandomState};

use http::HeaderValue;
use parking_lot::Mutex;

use super::negotiation::FullResponse;

/// How many tags are known at the most. What is asked for besides takes the place of another.
const MOST: usize = 256;

type Asked = (u64, FullResponse);

/// The last tags of real responses.
#[derive(Debug)]
pub(super) struct KnownTags {
    places: Vec<Mutex<Option<KnownTag>>>,
    hasher: RandomState,
}

#[derive(Clone, Debug)]
struct KnownTag {
    asked: Asked,
    tag: HeaderValue,
    /// The only client that got it; none where several did.
    only_client: Option<u64>,
    /// Whether no other tag came before it, or it came twice.
    is_constant: bool,
}

impl Default for KnownTags {
    fn default() -> Self {
        Self {
            places: (0..MOST).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
        }
    }
}

impl KnownTags {
    /// Learns that a client got this tag, unless the place is being looked at: no response waits for
    /// that.
    pub(super) fn learn(&self, asked: Asked, tag: &HeaderValue, client: u64) {
        let Some(mut place) = self.place(asked).and_then(Mutex::try_lock) else {
            return;
        };
        match &mut *place {
            Some(known) if known.asked == asked && known.tag == tag => {
                known.only_client = known.only_client.filter(|only| *only == client);
                known.is_constant = true;
            }
            other => {
                let is_first = other.as_ref().is_none_or(|known| known.asked != asked);
                *other = Some(KnownTag {
                    asked,
                    tag: tag.clone(),
                    only_client: Some(client),
                    is_constant: is_first,
                });
            }
        }
    }

    pub(super) fn shown(&self, asked: Asked, client: u64) -> Option<HeaderValue> {
        let place = self.place(asked)?.lock();
        let known = place.as_ref().filter(|known| {
            let is_own = known.only_client.is_none_or(|only| only == client);
            known.asked == asked && known.is_constant && is_own
        });
        known.map(|known| known.tag.clone())
    }

    /// Takes over what another has learnt.
    pub(super) fn inherit(&self, earlier: &Self) {
        for place in &earlier.places {
            let Some(known) = place.lock().clone() else {
                continue;
            };
            if let Some(place) = self.place(known.asked) {
                *place.lock() = Some(known);
            }
        }
    }

    fn place(&self, asked: Asked) -> Option<&Mutex<Option<KnownTag>>> {
        let hash = self.hasher.hash_one(asked);
        let index = usize::try_from(hash % MOST as u64).ok()?;
        self.places.get(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: FullResponse = FullResponse {
        is_read: true,
        is_compressed: false,
    };

    fn learn(tags: &KnownTags, target: u64, tag: &'static str, client: u64) {
        tags.learn((target, FULL), &HeaderValue::from_static(tag), client);
    }

    fn shown(tags: &KnownTags, target: u64, client: u64) -> Option<String> {
        let tag = tags.shown((target, FULL), client)?;
        Some(tag.to_str().unwrap().to_owned())
    }

    #[test]
    fn a_tag_is_shown_to_its_own_client_and_to_others_once_two_have_got_it() {
        let tags = KnownTags::default();
        learn(&tags, 7, "\"a\"", 1);
        assert_eq!(shown(&tags, 7, 1).as_deref(), Some("\"a\""));
        assert_eq!(shown(&tags, 7, 3), None, "it may be made for the client");
        assert_eq!(shown(&tags, 8, 1), None, "something else was asked for");
        learn(&tags, 7, "\"a\"", 2);
        assert_eq!(shown(&tags, 7, 3).as_deref(), Some("\"a\""));
        let later = KnownTags::default();
        later.inherit(&tags);
        assert_eq!(shown(&later, 7, 3).as_deref(), Some("\"a\""));
    }

    #[test]
    fn a_tag_that_changes_with_each_response_is_not_shown() {
        let tags = KnownTags::default();
        for tag in ["\"a\"", "\"b\"", "\"c\""] {
            learn(&tags, 7, tag, 1);
        }
        assert_eq!(shown(&tags, 7, 1), None);
        learn(&tags, 7, "\"c\"", 1);
        assert_eq!(shown(&tags, 7, 1).as_deref(), Some("\"c\""));
    }
}
