//! A value of JSON that is a text, a number or nothing: what one server logs as a number, another logs
//! as a text.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// A text or a number as it would be written; anything else is nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Scalar<'l>(Option<Cow<'l, str>>);

impl Scalar<'_> {
    /// The text, unless it is empty or a dash, which stands for nothing.
    pub(super) fn text(&self) -> Option<&str> {
        self.0.as_deref().filter(|text| !matches!(*text, "" | "-"))
    }

    /// The number.
    pub(super) fn number<T: std::str::FromStr>(&self) -> Option<T> {
        self.text()?.parse().ok()
    }
}

impl<'de: 'l, 'l> Deserialize<'de> for Scalar<'l> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Reader)
    }
}

struct Reader;

impl<'l> Visitor<'l> for Reader {
    type Value = Scalar<'l>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'l str) -> Result<Scalar<'l>, E> {
        Ok(Scalar(Some(Cow::Borrowed(text))))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Scalar<'l>, E> {
        Ok(Scalar(Some(Cow::Owned(text.to_owned()))))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Scalar<'l>, E> {
        Ok(Scalar(Some(Cow::Owned(number.to_string()))))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Scalar<'l>, E> {
        Ok(Scalar(Some(Cow::Owned(number.to_string()))))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Scalar<'l>, E> {
        Ok(Scalar(Some(Cow::Owned(number.to_string()))))
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Scalar<'l>, E> {
        Ok(Scalar(None))
    }

    fn visit_unit<E: Error>(self) -> Result<Scalar<'l>, E> {
        Ok(Scalar(None))
    }

    /// Of several values, as caddy has for a header, the first.
    fn visit_seq<A: SeqAccess<'l>>(self, mut list: A) -> Result<Scalar<'l>, A::Error> {
        let first = list.next_element()?.unwrap_or_default();
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(first)
    }

    fn visit_map<A: MapAccess<'l>>(self, mut map: A) -> Result<Scalar<'l>, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Scalar(None))
    }
}
