//! The token that the admin listener asks for.

use crate::rules::{HashKey, SecretHash};

/// Fewer bytes could be guessed.
const MIN_BYTES: usize = 16;

/// What an operator has to show to see and change buckets.
///
/// Only its hash under a key of this process is kept and compared, so that neither memory nor
/// the time that a comparison takes tells anything of the token.
#[derive(Clone, Debug)]
pub struct AdminToken {
    key: HashKey,
    hash: SecretHash,
}

impl AdminToken {
    /// None when the token has fewer than 16 bytes.
    pub fn new(token: &str) -> Option<Self> {
        let key = HashKey::random();
        let hash = key.hash(token.as_bytes());
        (token.len() >= MIN_BYTES).then_some(Self { key, hash })
    }

    /// Whether somebody who offers this knows the token.
    pub fn is(&self, offered: &[u8]) -> bool {
        self.key.hash(offered) == self.hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_itself_and_no_other() {
        let token = AdminToken::new("0123456789abcdef").unwrap();
        assert!(token.is(b"0123456789abcdef"));
        for other in ["", "0123456789abcde", "0123456789abcdeF"] {
            assert!(!token.is(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn a_token_of_fewer_than_16_bytes_is_none() {
        assert!(AdminToken::new("0123456789abcde").is_none());
    }
}
