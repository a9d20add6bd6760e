//! Keyed hashes that stand in for what may be a secret.
//!
//! API keys, tokens and cookies name accounts and subjects, and those travel into Redis, logs and
//! metrics. Only their SipHash-2-4 of 128 bits does: without the key it can be neither reversed by
//! guessing nor made to collide on purpose.

use std::fmt;
use std::str;

use siphasher::sip128::SipHasher24;

const KEY_BYTES: usize = 16;
const HASH_BYTES: usize = 16;
const HEX_DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Keeps a key that is derived for this purpose apart from others derived of the same bytes.
const DERIVATION: &[u8] = b"weir subject hash v1\0";

/// Keeps a fingerprint apart from the hash of anything that a client sends.
const FINGERPRINT: &[u8] = b"weir hash key fingerprint v1\0";

/// The beginning of the ids of hashes, so that none is taken for a name.
pub(super) const PREFIX: &str = "hash:";

/// The key of all hashes of a deployment. Gateways that share a store must share it.
#[derive(Clone, PartialEq, Eq)]
pub struct HashKey([u8; KEY_BYTES]);

impl HashKey {
    /// A random key, which the next process will not have.
    pub fn random() -> Self {
        Self(rand::random())
    }

    /// The key that these bytes stand for, by way of SHA-256; none when they are fewer than 16.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < KEY_BYTES {
            return None;
        }
        let mut sha256 = hmac_sha256::Hash::new();
        sha256.update(DERIVATION);
        sha256.update(bytes);
        sha256.finalize().first_chunk().copied().map(Self)
    }

    /// What gateways show each other, so that they notice different keys. It is an HMAC of a constant,
    /// which says nothing of a key that is random, as keys are to be. Of a key that can be guessed it
    /// says no more than the hashes of known names do, which are in the same Redis; and 32 bits leave
    /// many keys that fit.
    pub fn fingerprint(&self) -> u32 {
        let mac = hmac_sha256::HMAC::mac(FINGERPRINT, self.0);
        mac.first_chunk().copied().map_or(0, u32::from_be_bytes)
    }

    /// The hash of `secret` under this key.
    pub fn hash(&self, secret: &[u8]) -> SecretHash {
        let hash = SipHasher24::new_with_key(&self.0).hash(secret);
        SecretHash(u128::from(hash).to_be_bytes())
    }
}

/// Shows nothing of the key.
impl fmt::Debug for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashKey(..)")
    }
}

/// The hash of a secret: 128 bits, shown as 32 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SecretHash([u8; HASH_BYTES]);

impl SecretHash {
    /// Reads a hash as it is shown.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let lower = |digit: u8| digit.is_ascii_digit() || (b'a'..=b'f').contains(&digit);
        let whole = text.len() == 2 * HASH_BYTES && text.bytes().all(lower);
        let number = u128::from_str_radix(text, 16).ok().filter(|_| whole)?;
        Some(Self(number.to_be_bytes()))
    }

    fn hex(self) -> [u8; 2 * HASH_BYTES] {
        let mut hex = [0; 2 * HASH_BYTES];
        for (pair, byte) in hex.as_chunks_mut().0.iter_mut().zip(self.0) {
            *pair = [hex_digit(byte >> 4), hex_digit(byte & 0xf)];
        }
        hex
    }
}

/// Whether an id, which is taken for a name, looks as if a hash were meant.
pub fn looks_hashed(id: &str) -> bool {
    SecretHash::parse(&id.to_ascii_lowercase()).is_some()
}

/// The length of the id of a hash at the start of a text, if there is one.
pub(super) fn hash_at_start(text: &str) -> Option<usize> {
    let end = PREFIX.len() + 2 * HASH_BYTES;
    let hash = text.get(..end)?.strip_prefix(PREFIX)?;
    SecretHash::parse(hash).map(|_| end)
}

fn hex_digit(nibble: u8) -> u8 {
    HEX_DIGITS
        .get(usize::from(nibble))
        .copied()
        .unwrap_or_default()
}

impl fmt::Display for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(str::from_utf8(&self.hex()).unwrap_or_default())
    }
}

impl fmt::Debug for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretHash({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::IdError;

    #[test]
    fn a_fingerprint_tells_keys_apart_and_is_no_hash_of_anything_that_is_stored() {
        let [one, same, other] =
            [[1; 16], [1; 16], [2; 16]].map(|bytes| HashKey::from_bytes(&bytes));
        let [one, same, other] = [one, same, other].map(Option::unwrap);
        assert_eq!(one.fingerprint(), same.fingerprint());
        assert_ne!(one.fingerprint(), other.fingerprint());
        let shown = format!("{:08x}", one.fingerprint());
        for secret in [b"".as_slice(), FINGERPRINT] {
            assert!(!one.hash(secret).to_string().contains(&shown));
        }
        assert!(!format!("{:032x}", u128::from_be_bytes(one.0)).contains(&shown));
    }

    #[test]
    fn a_hash_shows_as_32_lower_case_hex_digits() {
        let shown = HashKey::random().hash(b"secret").to_string();
        assert_eq!(shown.len(), 32);
        assert!(
            shown
                .bytes()
                .all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
        );
    }

    #[test]
    fn the_same_bytes_give_the_same_key_and_others_another() {
        let key = |bytes| HashKey::from_bytes(bytes).unwrap();
        let secret = b"an API key";
        let hash = key(b"0123456789abcdef").hash(secret);
        assert_eq!(hash, key(b"0123456789abcdef").hash(secret));
        assert_ne!(hash, key(b"0123456789abcdefg").hash(secret));
        assert_ne!(hash, HashKey::random().hash(secret));
    }

    #[test]
    fn hashes_stay_the_same_from_version_to_version() {
        // Buckets in Redis outlive an upgrade, so this value may never change.
        let key = HashKey::from_bytes(b"0123456789abcdef").unwrap();
        assert_eq!(
            key.hash(b"acme").to_string(),
            "41dafd041fa88f6a2abda85bf3564aa2"
        );
    }

    #[test]
    fn a_hash_stands_for_itself_and_a_malformed_one_is_refused() {
        let key = HashKey::random();
        let hash = key.hash(b"acme");
        assert_eq!(key.hash_of("acme"), Ok(hash));
        assert_eq!(key.hash_of(&format!("hash:{hash}")), Ok(hash));
        // Without its prefix it is a name like all others, and looks like a slip.
        let bare = hash.to_string();
        assert_eq!(key.hash_of(&bare), Ok(key.hash(bare.as_bytes())));
        assert!(looks_hashed(&bare) && looks_hashed(&bare.to_uppercase()));
        assert!(!looks_hashed("acme") && !looks_hashed(&bare[1..]));
        for slip in [
            "",
            "510e",
            &bare[1..],
            &bare.to_uppercase(),
            "+".repeat(32).as_str(),
        ] {
            let id = format!("hash:{slip}");
            // A hash may have digits alone, and then has no upper case.
            if slip != bare {
                assert_eq!(key.hash_of(&id), Err(IdError::NotAHash(id.clone())));
            }
        }
    }

    #[test]
    fn fewer_than_16_bytes_make_no_key() {
        assert_eq!(HashKey::from_bytes(b"0123456789abcde"), None);
    }

    #[test]
    fn a_key_is_not_shown_by_debug() {
        assert_eq!(format!("{:?}", HashKey::random()), "HashKey(..)");
    }
}
