//! Why an id cannot be overridden.

use thiserror::Error;

/// Why an id may not stand for the subject that is meant.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum IdDoubt {
    /// A name looks as if a hash were meant.
    #[error("{0:?} is taken for a name, but looks like a hash; for the hash, write \"hash:{0}\"")]
    LooksHashed(String),
    /// There are overrides by wildcard, and a hash does not tell the name that they are for.
    #[error("overrides by wildcard are not applied here; a hash does not tell which it matches")]
    Wildcards,
}

/// Why an id cannot be overridden, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum IdError {
    /// The id, or a part of it, is empty.
    #[error("the id is empty; write it as {0}")]
    Empty(String),
    /// The id has too many or too few parts.
    #[error("{id:?} does not have the form of the limit's ids; write it as {form}")]
    WrongForm {
        /// The id as it is written.
        id: String,
        /// The form that the limit's sources ask for.
        form: String,
    },
    /// There is one way to write this, and this is another.
    #[error("{id:?} is not in canonical form; write {canonical:?}")]
    NotCanonical {
        /// The part as it is written.
        id: String,
        /// The same in canonical form.
        canonical: String,
    },
    /// The part is no address.
    #[error("{0:?} is no address; write one such as {1}")]
    NotAnAddress(String, String),
    /// A network of another size than the limit counts, or, for an override, a smaller one.
    #[error(
        "{id:?} has a prefix of {prefix} bits, but the limit counts {per}; write {canonical:?}"
    )]
    WrongPrefix {
        /// The part as it is written.
        id: String,
        /// Its prefix length.
        prefix: u8,
        /// The source.
        per: String,
        /// The network of the right size.
        canonical: String,
    },
    /// The part is no host.
    #[error("{0:?} is no host; write it as app.example.com, without scheme, port and final dot")]
    NotAHost(String),
    /// The host is below a registrable domain.
    #[error("{0:?} is below the registrable domain that is counted; write {1:?}")]
    NotADomain(String, String),
    /// The part is no method that is told apart.
    #[error("{0:?} is no method that is counted by itself; write one such as GET, or other")]
    NotAMethod(String),
    /// The part says that it is a hash, and is none.
    #[error("{0:?} is no hash; write hash: and the 32 hex digits that the log shows")]
    NotAHash(String),
    /// There is more than one `*` in a part.
    #[error(
        "{0:?} has more than one `*`; write one, and `\\*` where the character itself is meant"
    )]
    SeveralStars(String),
    /// The limit has only one subject.
    #[error("all requests are one subject, which {0:?} is not; change the limit itself")]
    OnlySubject(String),
    /// The same subject is overridden already.
    #[error("{id:?} is overridden already, by {earlier:?}; remove one of them")]
    Duplicate {
        /// The id as it is written.
        id: String,
        /// The earlier id.
        earlier: String,
    },
}
