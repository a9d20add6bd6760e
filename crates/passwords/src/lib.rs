//! Accounts by names and passwords of HTTP's Basic scheme (RFC 7617), verified by a file.

#![forbid(unsafe_code)]

#[cfg(test)]
mod tests;

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::mem;
use std::sync::Arc;

use argon2::Argon2;
use argon2::password_hash::PasswordVerifier;
use argon2::password_hash::phc::PasswordHash;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use parking_lot::Mutex;
use thiserror::Error;
use weir_rules::{
    AccountSource, Credentials, HashKey, SecretHash, Verification, basic_credentials,
};

const MAX_CREDENTIAL_BYTES: usize = 1024;

/// Upper bound on wrong credentials of one generation, of which there are two.
const MAX_WRONG: usize = 4096;

/// The users of a file. Clones remember the same verified passwords.
///
/// To verify a password takes a fraction of a second, which is what protects it. So results are
/// remembered, by a hash of the credentials with a key of this process.
#[derive(Clone)]
pub struct BasicAuth(Arc<Users>);

struct Users {
    hashes: HashMap<String, Hash>,
    /// Stands in for the hash of a name that is not in the file, so that the time of a response
    /// does not tell which names are.
    other: Hash,
    key: HashKey,
    verified: Mutex<VerifiedCredentials>,
}

#[derive(Clone, PartialEq, Eq)]
enum Hash {
    Bcrypt(String),
    Argon2(String),
}

#[derive(Default)]
struct VerifiedCredentials {
    /// By user.
    right: HashMap<String, SecretHash>,
    /// The younger generation, and the older one, which goes when the younger is full.
    wrong: [HashSet<SecretHash>; 2],
}

/// Why a file of users cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BasicAuthError {
    /// There is no user in it.
    #[error("there is no user; `htpasswd -B -c FILE NAME` adds one")]
    Empty,
    /// A line is not `NAME:HASH`.
    #[error("line {0} is not NAME:HASH; `htpasswd -B FILE NAME` writes such lines")]
    Malformed(usize),
    /// A hash is not one of bcrypt or Argon2.
    #[error(
        "the hash in line {0} is not one of bcrypt or Argon2, and others are too weak; \
         `htpasswd -B FILE NAME` replaces it"
    )]
    Unsupported(usize),
    /// Two lines have one name.
    #[error("line {0} has the name of an earlier one; remove one of them")]
    Twice(usize),
}

impl BasicAuth {
    /// Takes the users of a file of `htpasswd`: a name, a colon, and a hash of bcrypt or, in PHC's
    /// form, of Argon2 on each line. Empty lines and those that begin with `#` are comments.
    ///
    /// # Errors
    /// When a line is something else, or there is none.
    pub fn from_htpasswd(text: &str) -> Result<Self, BasicAuthError> {
        let mut hashes = HashMap::new();
        let mut other = None;
        let lines = (1..).zip(text.lines().map(str::trim));
        for (number, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
            let pair = line.split_once(':').filter(|(name, _)| !name.is_empty());
            let (name, hash) = pair.ok_or(BasicAuthError::Malformed(number))?;
            let hash = Hash::parse(hash).ok_or(BasicAuthError::Unsupported(number))?;
            other.get_or_insert_with(|| hash.clone());
            if hashes.insert(name.to_owned(), hash).is_some() {
                return Err(BasicAuthError::Twice(number));
            }
        }
        Ok(Self(Arc::new(Users {
            hashes,
            other: other.ok_or(BasicAuthError::Empty)?,
            key: HashKey::random(),
            verified: Mutex::default(),
        })))
    }

    /// These users with the results of `earlier` that hold for them too. Without it a reload would
    /// verify the passwords of all users again at the same time.
    fn inheriting(&self, earlier: &Self) -> Self {
        let (now, before) = (&*self.0, &*earlier.0);
        let verified = before.verified.lock();
        let is_same = |name: &String| now.hashes.get(name) == before.hashes.get(name);
        let right = verified.right.iter().filter(|(name, _)| is_same(name));
        let right = right.map(|(name, hash)| (name.clone(), *hash)).collect();
        // What was wrong may be right for a user who has changed.
        let wrong = match now.hashes == before.hashes {
            true => verified.wrong.clone(),
            false => Default::default(),
        };
        drop(verified);
        Self(Arc::new(Users {
            hashes: now.hashes.clone(),
            other: now.other.clone(),
            key: before.key.clone(),
            verified: Mutex::new(VerifiedCredentials { right, wrong }),
        }))
    }
}

impl Credentials for BasicAuth {
    fn name(&self, headers: &HeaderMap) -> Option<String> {
        let credentials = NameAndPassword::from_headers(headers)?;
        let hash = self.0.key.hash(&credentials.text);
        let name = credentials.name()?;
        let is_right = self.0.verified.lock().right.get(name) == Some(&hash);
        is_right.then(|| name.to_owned())
    }

    fn unverified(&self, headers: &HeaderMap) -> Option<Verification> {
        let credentials = NameAndPassword::from_headers(headers)?;
        let expected = self.0.hashes.get(credentials.name()?);
        let is_known = expected.is_some();
        let expected = expected.unwrap_or(&self.0.other).clone();
        let hash = self.0.key.hash(&credentials.text);
        if self.0.verified.lock().contains(credentials.name()?, hash) {
            return None;
        }
        let users = Arc::clone(&self.0);
        Some(Box::new(move || {
            // Another request with the same credentials may have been first.
            if let (Some(name), Some(password)) = (credentials.name(), credentials.password())
                && !users.verified.lock().contains(name, hash)
            {
                let is_right = expected.verify(password) && is_known;
                users.verified.lock().remember(name, hash, is_right);
            }
        }))
    }

    fn with_results_of(&self, earlier: &dyn Credentials) -> Option<Arc<dyn Credentials>> {
        let earlier: &Self = (earlier as &dyn Any).downcast_ref()?;
        Some(Arc::new(self.inheriting(earlier)))
    }
}

impl From<BasicAuth> for AccountSource {
    fn from(users: BasicAuth) -> Self {
        Self::Verified(Arc::new(users))
    }
}

/// What is verified.
impl fmt::Display for BasicAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("password")
    }
}

/// Shows no hash.
impl fmt::Debug for BasicAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.hashes.keys()).finish()
    }
}

impl VerifiedCredentials {
    fn contains(&self, name: &str, hash: SecretHash) -> bool {
        let is_right = self.right.get(name) == Some(&hash);
        is_right || self.wrong.iter().any(|wrong| wrong.contains(&hash))
    }

    fn remember(&mut self, name: &str, hash: SecretHash, is_right: bool) {
        if is_right {
            self.right.insert(name.to_owned(), hash);
            return;
        }
        let [young, old] = &mut self.wrong;
        if young.len() >= MAX_WRONG {
            *old = mem::take(young);
        }
        young.insert(hash);
    }
}

impl Hash {
    fn parse(text: &str) -> Option<Self> {
        if text.starts_with("$2") {
            // The cost, the salt and the hash are all there.
            text.parse::<bcrypt::HashParts>().ok()?;
            return Some(Self::Bcrypt(text.to_owned()));
        }
        let is_argon2 = text.starts_with("$argon2") && PasswordHash::new(text).is_ok();
        is_argon2.then(|| Self::Argon2(text.to_owned()))
    }

    fn verify(&self, password: &[u8]) -> bool {
        match self {
            Self::Bcrypt(hash) => bcrypt::verify(password, hash).unwrap_or(false),
            Self::Argon2(hash) => PasswordHash::new(hash)
                .is_ok_and(|hash| Argon2::default().verify_password(password, &hash).is_ok()),
        }
    }
}

/// A name and a password with a colon between them.
struct NameAndPassword {
    text: Vec<u8>,
    colon: usize,
}

impl NameAndPassword {
    fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let encoded = basic_credentials(headers)?;
        let text = STANDARD.decode(encoded).ok();
        let text = text.filter(|text| text.len() <= MAX_CREDENTIAL_BYTES)?;
        let colon = text.iter().position(|&byte| byte == b':')?;
        Some(Self { text, colon })
    }

    fn name(&self) -> Option<&str> {
        str::from_utf8(self.text.get(..self.colon)?).ok()
    }

    fn password(&self) -> Option<&[u8]> {
        self.text.get(self.colon + 1..)
    }
}
