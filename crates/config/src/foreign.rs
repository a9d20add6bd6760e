//! Values of types of other crates, which know nothing of YAML.

use std::fmt;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer};
use weir_logging::{Template, TemplateError};
use weir_yaml::parsed;

use crate::routes::schema::steps::LOG_FIELDS;

/// A text that a type of another module reads, whose errors say what is wrong and, behind a
/// semicolon, what to do about it.
#[derive(Clone, Debug)]
pub(crate) struct Parsed<T>(pub(crate) T);

impl<T> AsRef<T> for Parsed<T> {
    fn as_ref(&self) -> &T {
        &self.0
    }
}

impl<T: FromStr> FromStr for Parsed<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, T::Err> {
        text.parse().map(Self)
    }
}

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for Parsed<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        parsed(deserializer, "a text")
    }
}

/// The form of lines of the access log: it may name the fields of all lines, and those of steps on
/// responses.
#[derive(Clone, Debug)]
pub(crate) struct AccessFormat(pub(crate) Template);

impl FromStr for AccessFormat {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, TemplateError> {
        Template::parse(text, LOG_FIELDS).map(Self)
    }
}

/// Who gives words to types of other crates: this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Config {}

/// A value that is written as one of the words of its type.
pub(crate) type Word<T> = weir_yaml::Word<T, Config>;
