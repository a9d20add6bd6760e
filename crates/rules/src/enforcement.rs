//! Whether a decision is acted upon, or only logged and counted: the dry run.

use std::fmt;
use std::str::FromStr;

use siphasher::sip::SipHasher13;
use thiserror::Error;
use weir_limit::BucketKey;

/// Shares are counted in hundredths of a percent.
const ALL: u16 = 10_000;

/// On which subjects decisions are acted upon: on all, on none, or on a stable share of them.
///
/// The order is by how many subjects that is. Where several say it, the least of them holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Enforcement(u16);

/// Why a text says nothing about enforcement, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EnforcementError {
    /// It is a number without its unit.
    #[error("`{0}` has no unit; write `{0}%`")]
    NoUnit(String),
    /// It exceeds all subjects.
    #[error("`{0}` exceeds 100%; write true for all")]
    TooMuch(String),
    /// It is something else.
    #[error("`{0}` is not a share of subjects; write true, false, or a percentage such as 10%")]
    Malformed(String),
}

impl Enforcement {
    /// Decisions about all subjects are enforced.
    pub const FULL: Self = Self(ALL);

    /// No decision is acted upon.
    pub const NONE: Self = Self(0);

    /// Whether a decision about this bucket is acted upon.
    ///
    /// It is the same for every gateway and after every restart, as long as the key is: that of an
    /// account has a hash, so it takes the same [`HashKey`](crate::HashKey). A subject that a share
    /// includes, a greater share includes as well.
    pub fn acts_on(self, key: &BucketKey) -> bool {
        match self {
            Self::FULL => true,
            Self::NONE => false,
            Self(share) => position(key) < u64::from(share),
        }
    }

    /// The same for a client by its number, where there is no bucket.
    pub fn acts_on_client(self, client: u64) -> bool {
        client % u64::from(ALL) < u64::from(self.0)
    }

    /// Whether decisions are acted upon for some subjects, and not for others.
    pub fn is_share(self) -> bool {
        self != Self::FULL && self != Self::NONE
    }

    /// Whether there is a subject that decisions are not acted upon for.
    pub fn is_partial(self) -> bool {
        self != Self::FULL
    }
}

/// The position of a bucket among all, from 0 to 9,999. Gateways agree on it by a key that is not
/// secret: a client that can choose its subject can choose one that is not acted upon.
fn position(key: &BucketKey) -> u64 {
    SipHasher13::new().hash(key.as_bytes()) % u64::from(ALL)
}

impl Default for Enforcement {
    fn default() -> Self {
        Self::FULL
    }
}

impl FromStr for Enforcement {
    type Err = EnforcementError;

    /// `true`, `false`, or a percentage of at most two decimals.
    fn from_str(text: &str) -> Result<Self, EnforcementError> {
        let number = match text {
            "true" => return Ok(Self::FULL),
            "false" => return Ok(Self::NONE),
            _ => text.strip_suffix('%'),
        };
        match number.map(hundredths) {
            Some(Some(share)) => u16::try_from(share)
                .ok()
                .filter(|share| *share <= ALL)
                .map(Self)
                .ok_or_else(|| EnforcementError::TooMuch(text.to_owned())),
            None if hundredths(text).is_some() => Err(EnforcementError::NoUnit(text.to_owned())),
            _ => Err(EnforcementError::Malformed(text.to_owned())),
        }
    }
}

#[cfg(feature = "config")]
weir_yaml::read_from_text! {
    Enforcement: "a text",
}

#[cfg(feature = "schema")]
weir_yaml::named_schemas! {
    Enforcement, "Enforce": {
        "title": "`true`, `false` or a percentage",
        "type": ["boolean", "string"],
        "pattern": "^(true|false|\\d+(\\.\\d{1,2})?%)$",
    }
}

/// A decimal number in hundredths; none where it is not a number, or has more than two decimals.
pub fn hundredths(text: &str) -> Option<u64> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let is_number =
        |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(decimals) || decimals.len() > 2 {
        return None;
    }
    let scale = if decimals.len() == 1 { 10 } else { 1 };
    // What is too long to be read is too much in any case.
    let whole = whole.parse().unwrap_or(u64::MAX);
    let decimals: u64 = decimals.parse().ok()?;
    Some(whole.saturating_mul(100).saturating_add(decimals * scale))
}

impl fmt::Display for Enforcement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0 / 100, self.0 % 100) {
            (100, _) => f.write_str("true"),
            (0, 0) => f.write_str("false"),
            (whole, 0) => write!(f, "{whole}%"),
            (whole, rest) if rest % 10 == 0 => write!(f, "{whole}.{}%", rest / 10),
            (whole, rest) => write!(f, "{whole}.{rest:02}%"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Enforcement, String> {
        text.parse()
            .map_err(|error: EnforcementError| error.to_string())
    }

    fn key(number: u32) -> BucketKey {
        format!("RequestsPerAddress:{number}").as_str().into()
    }

    #[test]
    fn all_none_and_shares_are_read_and_shown() {
        for text in ["true", "false", "10%", "0.5%", "12.25%", "99.05%"] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
        assert_eq!(parse("100%"), Ok(Enforcement::FULL));
        assert_eq!(parse("0%"), Ok(Enforcement::NONE));
    }

    #[test]
    fn what_is_neither_is_told_what_to_write() {
        insta::assert_snapshot!(parse("10").unwrap_err(), @"`10` has no unit; write `10%`");
        insta::assert_snapshot!(parse("100.01%").unwrap_err(), @"`100.01%` exceeds 100%; write true for all");
        insta::assert_snapshot!(parse("99999999999999999999999%").unwrap_err(), @"`99999999999999999999999%` exceeds 100%; write true for all");
        for text in ["", "yes", "%", "-1%", "1.%", ".5%", "1.234%", "1 %", "1e1%"] {
            assert!(parse(text).unwrap_err().contains("such as 10%"), "{text}");
        }
    }

    #[test]
    fn a_share_holds_for_its_part_and_a_greater_one_for_the_same_and_more() {
        let acted_on = |share: &str| -> Vec<u32> {
            let share: Enforcement = share.parse().unwrap();
            (0..10_000)
                .filter(|number| share.acts_on(&key(*number)))
                .collect()
        };
        let (few, more) = (acted_on("10%"), acted_on("25%"));
        assert!((900..1100).contains(&few.len()), "{}", few.len());
        assert!((2300..2700).contains(&more.len()), "{}", more.len());
        assert!(few.iter().all(|number| more.contains(number)));
        assert_eq!(acted_on("true").len(), 10_000);
        assert_eq!(acted_on("false").len(), 0);
    }

    #[test]
    fn a_share_holds_up_to_its_edge_and_not_at_it() {
        for number in 0..100 {
            let key = key(number);
            let position = u16::try_from(position(&key)).unwrap();
            assert!(!Enforcement(position).acts_on(&key), "{position}");
            assert!(Enforcement(position + 1).acts_on(&key), "{position}");
        }
    }

    #[test]
    fn whom_a_share_holds_for_stays_the_same_from_version_to_version() {
        // Gateways of two versions share a store during an upgrade.
        let tenth: Enforcement = "10%".parse().unwrap();
        let acted_on: Vec<u32> = (0..60)
            .filter(|number| tenth.acts_on(&key(*number)))
            .collect();
        assert_eq!(acted_on, [6, 11, 14, 34, 37, 50, 59]);
    }
}
