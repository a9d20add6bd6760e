//! Logs in columns that a line of `#Fields:` names (W3C): those of IIS and AWS CloudFront.

use std::borrow::Cow;

use super::fields::{Field, FieldNames, Texts};

const COLUMNS: FieldNames = &[
    (Field::Date, &["date"]),
    (Field::Clock, &["time"]),
    (Field::Client, &["c-ip"]),
    (Field::Method, &["cs-method"]),
    (Field::Target, &["cs-uri-stem"]),
    (Field::Query, &["cs-uri-query"]),
    (Field::Status, &["sc-status"]),
    (Field::Host, &["x-host-header", "cs-host", "cs(Host)"]),
    (Field::UserAgent, &["cs(User-Agent)"]),
    (Field::Referer, &["cs(Referer)"]),
    (Field::User, &["cs-username"]),
    (Field::TookMillis, &["time-taken"]),
    (Field::Forwarded, &["x-forwarded-for", "X-Forwarded-For"]),
];

/// The beginning of the line that names the columns.
pub const HEADER: &str = "#Fields:";

/// The columns of the lines behind a header.
#[derive(Debug, Default)]
pub struct Columns {
    fields: Vec<Option<Field>>,
    is_encoded: bool,
}

impl Columns {
    /// The columns that a header names; none if it is another line.
    pub fn new(header: &str) -> Option<Self> {
        let names: Vec<&str> = header
            .strip_prefix(HEADER)?
            .split_ascii_whitespace()
            .collect();
        // CloudFront encodes texts, and counts seconds where IIS counts milliseconds.
        let is_cloudfront = names.contains(&"x-edge-location");
        let is_best = |known: &[&str], name: &str| {
            let best = known.iter().find(|known| names.contains(known));
            best.is_some_and(|best| *best == name)
        };
        let field = |name: &&str| {
            let mut all = COLUMNS.iter();
            let (field, _) = all.find(|(_, known)| is_best(known, name))?;
            match field {
                Field::TookMillis if is_cloudfront => Some(Field::TookSeconds),
                // The name of the distribution, whichever host was asked for.
                Field::Host if is_cloudfront && *name == "cs(Host)" => None,
                field => Some(*field),
            }
        };
        Some(Self {
            fields: names.iter().map(field).collect(),
            is_encoded: is_cloudfront,
        })
    }

    /// Whether lines have the query of a request that has one.
    pub fn tells_query(&self) -> bool {
        self.fields.contains(&Some(Field::Query))
    }

    /// The fields of a line.
    ///
    /// # Errors
    /// When it has not as many columns as the header.
    pub fn fields<'l>(&self, line: &'l str) -> Result<Texts<'l>, &'static str> {
        if self.fields.is_empty() {
            return Err("no line before it names its columns (#Fields:)");
        }
        let separator = if line.contains('\t') { '\t' } else { ' ' };
        let mut texts = Texts::default();
        let mut values = line.split(separator);
        for field in &self.fields {
            let value = values.next().ok_or("it has too few columns")?;
            if let Some(field) = field {
                texts.set(*field, self.decoded(*field, value));
            }
        }
        match values.next() {
            None => Ok(texts),
            Some(_) => Err("it has too many columns"),
        }
    }

    fn decoded<'l>(&self, field: Field, value: &'l str) -> Cow<'l, str> {
        match (field, self.is_encoded) {
            (Field::UserAgent | Field::Referer | Field::Forwarded, true) => decoded(value),
            (Field::Target | Field::Query, true) => as_sent(value).into(),
            // IIS writes blanks so.
            (Field::UserAgent | Field::Forwarded, false) => value.replace('+', " ").into(),
            _ => value.into(),
        }
    }
}

/// A target as the client sent it. CloudFront encodes characters that targets may have, the percent
/// sign among them: of `/a%20b` it makes `/a%2520b`.
fn as_sent(target: &str) -> String {
    const ENCODED: [(&str, char); 5] = [
        ("25", '%'),
        ("27", '\''),
        ("5B", '['),
        ("5D", ']'),
        ("7E", '~'),
    ];
    let mut parts = target.split('%');
    let mut sent = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let known = ENCODED
            .iter()
            .find_map(|(code, character)| Some((*character, part.strip_prefix(code)?)));
        let (character, rest) = known.unwrap_or(('%', part));
        sent.push(character);
        sent.push_str(rest);
    }
    sent
}

/// A text whose characters are encoded by percent signs.
fn decoded(text: &str) -> Cow<'_, str> {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let byte = part
            .get(..2)
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match byte {
            Some(byte) => {
                bytes.push(byte);
                bytes.extend_from_slice(part.get(2..).unwrap_or_default().as_bytes());
            }
            None => {
                bytes.push(b'%');
                bytes.extend_from_slice(part.as_bytes());
            }
        }
    }
    String::from_utf8(bytes).map_or(Cow::Borrowed(text), Cow::Owned)
}
