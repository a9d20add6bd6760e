//! Conditions of a route on headers and query parameters.

use std::fmt;
use std::str;

use crate::AnchoredRegex;

/// A condition on the values that a request has under one name, which may be several.
#[derive(Clone, Debug)]
pub enum ValuePattern {
    /// One of the values is equal.
    Exact(Box<[u8]>),
    /// One of the values is text, and the expression matches it.
    Regex(AnchoredRegex),
    /// There is a value.
    Present,
    /// There is none.
    Absent,
}

impl ValuePattern {
    /// Whether these values meet the condition. A client may send several: which of them the
    /// upstream goes by is not known, so that one is enough.
    pub fn accepts<V: AsRef<[u8]>>(&self, mut values: impl Iterator<Item = V>) -> bool {
        match self {
            Self::Exact(exact) => values.any(|value| value.as_ref() == &**exact),
            Self::Regex(regex) => values.any(|value| {
                let text = str::from_utf8(value.as_ref());
                text.is_ok_and(|text| regex.is_match(text))
            }),
            Self::Present => values.next().is_some(),
            Self::Absent => values.next().is_none(),
        }
    }
}

/// As it follows the name in the description of a route.
impl fmt::Display for ValuePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(exact) => write!(f, ": {}", String::from_utf8_lossy(exact)),
            Self::Regex(regex) => write!(f, " matching {}", regex.as_str()),
            Self::Present => f.write_str(" present"),
            Self::Absent => f.write_str(" absent"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_several_values_is_enough() {
        let accepts = |pattern: &ValuePattern, values: &[&str]| pattern.accepts(values.iter());
        let exact = ValuePattern::Exact(b"2"[..].into());
        assert!(accepts(&exact, &["1", "2"]) && !accepts(&exact, &["1", "22"]));
        assert!(accepts(&ValuePattern::Present, &[""]) && !accepts(&ValuePattern::Present, &[]));
        assert!(accepts(&ValuePattern::Absent, &[]) && !accepts(&ValuePattern::Absent, &[""]));
    }
}
