//! The parameters of a request's query.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

/// A parameter that there is not, and those that there are.
#[derive(Debug, PartialEq, Eq)]
pub struct RefusedParameter {
    /// As it is written.
    pub pair: String,
    /// In words.
    pub known: &'static str,
}

impl RefusedParameter {
    /// Refuses this pair.
    pub fn new(pair: &str, known: &'static str) -> Self {
        Self {
            pair: pair.to_owned(),
            known,
        }
    }
}

/// The parameters of a query, each as it is written, and as its name and its decoded value.
pub fn parameters(query: Option<&str>) -> impl Iterator<Item = (&str, (&str, Cow<'_, str>))> {
    let pairs = query.unwrap_or_default().split('&');
    pairs.filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = percent_decode_str(value).decode_utf8_lossy();
        (pair, (name, value))
    })
}
