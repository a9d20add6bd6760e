//! The keys of `compression`.

use serde::Deserialize;
use weir_yaml::{ByteSize, Filled, MediaType, OneOrMany, read_as, words};

use super::ContentCoding;

/// Which responses are compressed, and how.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Compression {
    /// What is offered; of those that a client likes equally, the first is taken. Type: `zstd`,
    /// `br`, `gzip`, or a list of them. Default: `[zstd, br, gzip]`.
    #[serde(deserialize_with = "read_as::<Offered, _, _>")]
    #[cfg_attr(feature = "schema", schemars(with = "Filled<ContentCoding>"))]
    pub algorithms: Vec<ContentCoding>,
    /// What is compressed, such as `text/html`, or `text/*` for all of a kind. Type: media type or
    /// list of them. Default: `[text/*, application/atom+xml, application/javascript,
    /// application/json, application/ld+json, application/manifest+json, application/problem+json,
    /// application/rss+xml, application/wasm, application/xhtml+xml, application/xml,
    /// image/svg+xml]`.
    #[serde(deserialize_with = "read_as::<OneOrMany<MediaType>, _, _>")]
    #[cfg_attr(feature = "schema", schemars(with = "OneOrMany<MediaType>"))]
    pub types: Vec<String>,
    /// How long a response is at least; those of unknown length are compressed. Default: `1KiB`.
    #[serde(deserialize_with = "read_as::<ByteSize, _, _>")]
    #[cfg_attr(feature = "schema", schemars(with = "ByteSize"))]
    pub min_bytes: u64,
}

impl Default for Compression {
    /// Text and its like, of 1 KiB or more.
    fn default() -> Self {
        let types = [
            "text/*",
            "application/atom+xml",
            "application/javascript",
            "application/json",
            "application/ld+json",
            "application/manifest+json",
            "application/problem+json",
            "application/rss+xml",
            "application/wasm",
            "application/xhtml+xml",
            "application/xml",
            "image/svg+xml",
        ];
        Self {
            algorithms: ContentCoding::ALL.to_vec(),
            types: types.map(str::to_owned).to_vec(),
            min_bytes: 1024,
        }
    }
}

words!(ContentCoding: "zstd" => Self::Zstd, "br" => Self::Brotli, "gzip" => Self::Gzip);

/// One coding at least.
#[derive(Deserialize)]
#[serde(try_from = "Filled<ContentCoding>")]
struct Offered(Vec<ContentCoding>);

impl TryFrom<Filled<ContentCoding>> for Offered {
    type Error = &'static str;

    fn try_from(written: Filled<ContentCoding>) -> Result<Self, &'static str> {
        match written.0.is_empty() {
            true => Err(
                "no algorithm compresses nothing; say `compression: off`, or leave it out for all \
                 of them",
            ),
            false => Ok(Self(written.0)),
        }
    }
}

impl From<Offered> for Vec<ContentCoding> {
    fn from(offered: Offered) -> Self {
        offered.0
    }
}

#[cfg(test)]
mod tests {
    use weir_yaml::testing::read;

    use super::*;

    #[test]
    fn keys_that_are_left_out_have_their_defaults() {
        assert_eq!(read("{}"), Ok(Compression::default()));
        let written = read("{algorithms: [gzip, br], types: Text/HTML, min_bytes: 2KiB}");
        let expected = Compression {
            algorithms: vec![ContentCoding::Gzip, ContentCoding::Brotli],
            types: vec!["text/html".to_owned()],
            min_bytes: 2048,
        };
        assert_eq!(written, Ok(expected));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for (keys, message) in [
            ("{algorithms: []}", "no algorithm compresses nothing"),
            ("{algorithms: deflate}", "\"deflate\" is not known here"),
            ("{types: [text]}", "`text` is not a media type"),
            (
                "{types: [\"text/html; charset=utf-8\"]}",
                "is not a media type",
            ),
            ("{types: [\"*/*\"]}", "`*/*` is not a media type"),
            ("{min_bytes: few}", "is not a size"),
            ("{min_bytes: }", "there is no value"),
            ("{min_byte: 1}", "did you mean \"min_bytes\"?"),
        ] {
            let found = read::<Compression>(keys).unwrap_err();
            assert!(found.contains(message), "{keys}: {found}");
            assert!(found.contains("1 error, "), "{keys}: {found}");
        }
    }

    #[test]
    fn no_error_hides_another() {
        let found = read::<Compression>("{algorithms: [lz4], types: [text], min_bytes: few}");
        assert!(found.unwrap_err().contains("3 errors, "));
    }
}
