//! A number for the subject of a request, by which an upstream's server can be chosen.

use std::fmt;

use siphasher::sip::SipHasher24;
use weir_limit::BucketKey;

use super::key_parts::KeySchema;
use super::{HashKey, KeySource, RequestAttributes};

/// Hashes what is not an account. The number must be the same on all gateways, and is shown to
/// none.
const KEY: &[u8] = b"weir consistent hashing";

/// The sources that a request is hashed by.
#[derive(Clone)]
pub struct SubjectHash(KeySchema);

impl SubjectHash {
    /// Subjects that `per` makes up, in the words of limits.
    pub fn new(per: Vec<KeySource>) -> Self {
        let key = HashKey::from_bytes(KEY).unwrap_or_else(HashKey::random);
        Self(KeySchema::new(per, key))
    }

    /// The sources that it hashes.
    pub fn sources(&self) -> &[KeySource] {
        &self.0.per
    }

    /// The number of a request's subject; none if the request lacks one of the sources.
    pub fn hash(&self, attributes: &RequestAttributes<'_>) -> Option<u64> {
        let mut subject = BucketKey::default();
        self.0.write(attributes, &mut subject).ok()?;
        Some(SipHasher24::new().hash(subject.as_bytes()))
    }
}

impl fmt::Debug for SubjectHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SubjectHash").field(&self.0.per).finish()
    }
}
