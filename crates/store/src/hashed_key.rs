//! Bucket keys as keyed hashes, for tables that a client, who picks the keys, must not steer.

use siphasher::sip::SipHasher13;
use weir_limit::BucketKey;

/// Hashes bucket keys with SipHash-1-3 under a random key, so that a client cannot find subjects
/// that collide.
pub struct KeyHasher(SipHasher13);

/// Stands for a bucket key: 64 bits, of which tables take the lowest for a place or a shard, and
/// compare the highest.
///
/// Two keys are taken for one when those bits are the same: in the memory store, which keeps 55
/// bits beside those of the shard, with a chance of less than one in 180,000 among ten million
/// keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashedKey {
    /// Picks a shard or a place by its lowest bits.
    pub shard: u64,
    /// Identifies the key there; never zero, which means "empty" in the tables.
    pub tag: u64,
}

impl KeyHasher {
    /// A hasher with a key of its own.
    pub fn random() -> Self {
        Self(SipHasher13::new_with_key(&rand::random()))
    }

    /// Stands for a key as long as this hasher is used.
    pub fn hash(&self, key: &BucketKey) -> HashedKey {
        let hash = self.0.hash(key.as_bytes());
        HashedKey {
            shard: hash,
            tag: hash.max(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_hashes_alike_every_time_and_unlike_under_another_hasher() {
        let hasher = KeyHasher::random();
        let key = BucketKey::from("L:203.0.113.9");
        assert_eq!(hasher.hash(&key), hasher.hash(&key));
        assert_ne!(hasher.hash(&key), KeyHasher::random().hash(&key));
        assert_ne!(hasher.hash(&key), hasher.hash(&"L:203.0.113.8".into()));
    }
}
