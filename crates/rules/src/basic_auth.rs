//! Names and passwords of HTTP's Basic scheme (RFC 7617), verified by a file.

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

use crate::{HashKey, SecretHash, request_values};

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

    /// Takes over the results of `earlier` that hold for these users too. Without it a reload would
    /// verify the passwords of all users again at the same time.
    pub(super) fn inherit(&mut self, earlier: &Self) {
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
        let users = Users {
            hashes: now.hashes.clone(),
            other: now.other.clone(),
            key: before.key.clone(),
            verified: Mutex::new(VerifiedCredentials { right, wrong }),
        };
        drop(verified);
        self.0 = Arc::new(users);
    }

    /// The user of a request, if the credentials were verified before.
    pub(super) fn user(&self, headers: &HeaderMap) -> Option<String> {
        let credentials = Credentials::from_headers(headers)?;
        let hash = self.0.key.hash(&credentials.text);
        let name = credentials.name()?;
        let is_right = self.0.verified.lock().right.get(name) == Some(&hash);
        is_right.then(|| name.to_owned())
    }

    /// The work to do before [`user`](Self::user) knows the request's credentials.
    pub(super) fn unverified(&self, headers: &HeaderMap) -> Option<Box<dyn FnOnce() + Send>> {
        let credentials = Credentials::from_headers(headers)?;
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
struct Credentials {
    text: Vec<u8>,
    colon: usize,
}

impl Credentials {
    fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let encoded = request_values::basic(headers)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// `secret` by bcrypt and by Argon2, as cheap as they can be.
    fn users() -> BasicAuth {
        let bcrypt = bcrypt::hash("secret", 4).unwrap();
        let argon2 = "$argon2id$v=19$m=8,t=1,p=1$c2FsdHNhbHQ$";
        let salt = b"saltsalt";
        let mut hash = [0; 32];
        let params = argon2::Params::new(8, 1, 1, Some(32)).unwrap();
        let hasher = Argon2::new(argon2::Algorithm::Argon2id, argon2::Version::V0x13, params);
        hasher
            .hash_password_into(b"secret", salt, &mut hash)
            .unwrap();
        let hash = base64::engine::general_purpose::STANDARD_NO_PAD.encode(hash);
        let text = format!("# users\nred:{bcrypt}\n\nblue:{argon2}{hash}\n");
        BasicAuth::from_htpasswd(&text).unwrap()
    }

    fn headers(credentials: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let value = format!("basic {}", STANDARD.encode(credentials));
        headers.insert("authorization", value.parse().unwrap());
        headers
    }

    /// The user, once what has to be done was done; and whether anything had to be.
    fn user(users: &BasicAuth, credentials: &str) -> (Option<String>, bool) {
        let headers = headers(credentials);
        let unverified = users.unverified(&headers);
        let was_slow = unverified.is_some();
        if let Some(verification) = unverified {
            assert_eq!(users.user(&headers), None);
            verification();
        }
        (users.user(&headers), was_slow)
    }

    #[test]
    fn a_right_password_names_the_user_and_is_verified_once() {
        let users = users();
        for name in ["red", "blue"] {
            let credentials = format!("{name}:secret");
            assert_eq!(user(&users, &credentials), (Some(name.to_owned()), true));
            assert_eq!(user(&users, &credentials), (Some(name.to_owned()), false));
        }
        assert_eq!(user(&users, "red:wrong"), (None, true));
        assert_eq!(user(&users, "red:wrong"), (None, false));
        assert_eq!(user(&users, "red:secret"), (Some("red".to_owned()), false));
    }

    #[test]
    fn what_was_verified_is_known_of_the_same_users_and_of_no_others() {
        let earlier = users();
        for credentials in ["red:secret", "blue:secret", "red:wrong"] {
            user(&earlier, credentials);
        }
        let again = |text: &str| {
            let mut users = BasicAuth::from_htpasswd(text).unwrap();
            users.inherit(&earlier);
            users
        };
        let line = |name| match &earlier.0.hashes[name] {
            Hash::Bcrypt(hash) | Hash::Argon2(hash) => format!("{name}:{hash}\n"),
        };
        let same = again(&format!("{}{}", line("red"), line("blue")));
        assert_eq!(user(&same, "red:secret"), (Some("red".to_owned()), false));
        assert_eq!(user(&same, "red:wrong"), (None, false));
        let changed = bcrypt::hash("wrong", 4).unwrap();
        let changed = again(&format!("red:{changed}\n{}", line("blue")));
        assert_eq!(user(&changed, "red:secret"), (None, true));
        assert_eq!(user(&changed, "red:wrong"), (Some("red".to_owned()), true));
        assert_eq!(
            user(&changed, "blue:secret"),
            (Some("blue".to_owned()), false)
        );
        let without = again(&line("blue"));
        assert_eq!(user(&without, "red:secret"), (None, true));
    }

    #[test]
    fn nothing_is_verified_for_credentials_that_cannot_be_right() {
        let users = users();
        let long = format!("red:{}", "x".repeat(MAX_CREDENTIAL_BYTES));
        for credentials in ["red", "", &long] {
            assert_eq!(user(&users, credentials), (None, false), "{credentials}");
        }
        let mut two = headers("red:secret");
        let other = headers("blue:secret").remove("authorization").unwrap();
        two.append("authorization", other);
        assert!(users.unverified(&two).is_none());
    }

    #[test]
    fn a_name_that_is_not_in_the_file_takes_as_long_as_one_that_is() {
        let users = users();
        for credentials in ["green:secret", ":secret"] {
            assert_eq!(user(&users, credentials), (None, true), "{credentials}");
            assert_eq!(user(&users, credentials), (None, false), "{credentials}");
        }
    }

    #[test]
    fn wrong_passwords_take_bounded_memory_and_displace_no_right_one() {
        let mut verified = VerifiedCredentials::default();
        let key = HashKey::random();
        verified.remember("red", key.hash(b"red:secret"), true);
        for number in 0..3 * MAX_WRONG {
            verified.remember("red", key.hash(&number.to_le_bytes()), false);
        }
        let remembered: usize = verified.wrong.iter().map(HashSet::len).sum();
        assert!(remembered <= 2 * MAX_WRONG);
        assert_eq!(verified.right.len(), 1);
    }

    #[test]
    fn a_line_that_is_not_understood_is_told() {
        let error = |text: &str| BasicAuth::from_htpasswd(text).unwrap_err();
        let bcrypt = bcrypt::hash("secret", 4).unwrap();
        assert_eq!(error("# nobody\n"), BasicAuthError::Empty);
        assert_eq!(error("\nred\n"), BasicAuthError::Malformed(2));
        assert_eq!(error(&format!(":{bcrypt}")), BasicAuthError::Malformed(1));
        for weak in [
            "{SHA}x",
            "$apr1$x$y",
            "secret",
            "$2y$05$short",
            "$argon2id$x",
        ] {
            assert_eq!(
                error(&format!("red:{weak}")),
                BasicAuthError::Unsupported(1)
            );
        }
        let twice = format!("red:{bcrypt}\nred:{bcrypt}");
        assert_eq!(error(&twice), BasicAuthError::Twice(2));
    }
}
