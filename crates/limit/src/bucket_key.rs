//! The key by which a bucket is found.

use std::fmt;
use std::str;

use smallvec::SmallVec;

/// Room for most keys without an allocation: a limit's name and a 128-bit hash in hex.
const INLINE_BYTES: usize = 64;

/// Names one bucket: the limit's name, a colon, and the subject, such as
/// `RequestsPerAddress:203.0.113.9`.
///
/// It is built in place, part by part, and is always UTF-8.
#[derive(Default, PartialEq, Eq, Hash)]
pub struct BucketKey(SmallVec<[u8; INLINE_BYTES]>);

/// The purpose of a bucket, by the beginning of its key.
///
/// Keys of a ban's buckets, and of those who are kept out, begin with a colon and a word; no
/// limit's key does, as its name is not empty. A store that has to evict something evicts by class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketClass {
    /// Counts units for a limit.
    Limit,
    /// Counts strikes, or units for subjects that are kept out, or says which gateway begins a ban.
    Strikes,
    /// Remembers offences, which make the next ban longer.
    Offences,
    /// Is a ban, which is in force as long as anything is owed.
    Ban,
}

/// How long a store that has to evict something keeps a bucket that owes something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// The longer, the more of its units are spent.
    BySpending,
    /// Like one that denies, whatever it owes.
    WhileOwing,
    /// Longer than all others, as nothing would deny in its place.
    Last,
}

impl BucketClass {
    /// Whether the bucket stands for a term that was set, rather than for units that were spent. It
    /// denies until the term is over, and what is asked behind it decides nothing then. Only its own
    /// check changes it, and a term is cut to the longest that there is now.
    #[inline]
    pub const fn is_term(self) -> bool {
        matches!(self, Self::Ban)
    }

    /// How long it is kept.
    #[inline]
    pub const fn kept(self) -> Kept {
        match self {
            Self::Ban => Kept::Last,
            // Evicting one shortens the next ban.
            Self::Offences => Kept::WhileOwing,
            Self::Limit | Self::Strikes => Kept::BySpending,
        }
    }
}

impl BucketKey {
    /// The purpose of the bucket.
    pub fn class(&self) -> BucketClass {
        match self.as_bytes() {
            [b':', b'b', ..] => BucketClass::Ban,
            [b':', b'o', ..] => BucketClass::Offences,
            [b':', ..] => BucketClass::Strikes,
            _ => BucketClass::Limit,
        }
    }

    /// The bucket that counts for this limit and subject the requests that are kept out.
    #[must_use]
    pub fn for_kept_out(&self) -> Self {
        let mut key = Self::from(":kept-out:");
        key.push_str(self.as_str());
        key
    }

    /// Appends `part` as it is.
    pub fn push_str(&mut self, part: &str) {
        self.0.extend_from_slice(part.as_bytes());
    }

    /// The key as bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        // Only whole `str`s are ever appended.
        str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// Copies the bytes at once; a derived clone would push them one by one.
impl Clone for BucketKey {
    fn clone(&self) -> Self {
        Self(SmallVec::from_slice(&self.0))
    }
}

impl From<&str> for BucketKey {
    fn from(key: &str) -> Self {
        Self(SmallVec::from_slice(key.as_bytes()))
    }
}

/// Several buckets; nearly always one.
pub type BucketKeys = SmallVec<[BucketKey; 1]>;

/// Formatting into a key appends to it.
impl fmt::Write for BucketKey {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        self.push_str(part);
        Ok(())
    }
}

impl fmt::Display for BucketKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for BucketKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BucketKey({:?})", self.as_str())
    }
}
