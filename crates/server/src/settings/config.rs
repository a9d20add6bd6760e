//! The keys of `connections`.

use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;
use thiserror::Error;
use weir_yaml::{ByteSize, PositiveDuration, Within, read_as, read_from_text};

use super::HYPER_MAX_HEADERS;
use crate::drain::DrainSettings;

/// How large the head of a request may be. HTTP/1.1 needs the least for its buffers.
const HEADER_BYTES: RangeInclusive<ByteSize> = ByteSize(8 * 1024)..=ByteSize(1024 * 1024);

/// What clients' connections may do, and for how long.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Connections"))]
#[serde(default, deny_unknown_fields)]
pub struct HttpSettings {
    /// How many may be open at the same time, over all listeners and workers; `auto` derives the
    /// number from the [limit of file descriptors](OPERATIONS.md#limits-of-connections). Type:
    /// `auto` or a number. Default: `auto`.
    // A new one beyond it evicts an idle one, or waits in the system's queue if there is none.
    #[serde(deserialize_with = "read_as::<MaxConnections, _, _>")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub max_connections: Option<NonZeroUsize>,
    /// How long a TLS handshake and the head of a request may each take. Default: `10s`.
    // From the first byte of a head on; enforced after twice the time at the latest.
    #[serde(deserialize_with = "read_as::<PositiveDuration, _, _>")]
    #[cfg_attr(feature = "schema", schemars(with = "PositiveDuration"))]
    pub header_timeout: Duration,
    /// How large the head of a request may be, from `8KiB` to `1MiB`. Default: `64KiB`.
    #[serde(deserialize_with = "read_as::<HeaderBytes, _, _>")]
    #[cfg_attr(feature = "schema", schemars(with = "ByteSize"))]
    pub max_header_bytes: usize,
    /// How many header lines a request may have. Default: `100`.
    #[serde(deserialize_with = "read_as::<Within<1, 1000>, _, _>")]
    #[cfg_attr(feature = "schema", schemars(with = "Within<1, 1000>"))]
    pub max_headers: usize,
    /// How many requests one HTTP/2 connection may have in flight. Default: `200`.
    #[serde(deserialize_with = "read_as::<Within<1, 10_000>, _, _>")]
    #[cfg_attr(feature = "schema", schemars(with = "Within<1, 10_000>"))]
    pub max_streams: u32,
    /// How long a connection may be idle; make it longer than the idle time-out of a load balancer
    /// in front. Default: `75s`.
    #[serde(deserialize_with = "read_as::<PositiveDuration, _, _>")]
    #[cfg_attr(feature = "schema", schemars(with = "PositiveDuration"))]
    pub idle_timeout: Duration,
    /// How long a client may neither send the next part of a request body nor read the next part of
    /// a response. Default: `60s`.
    #[serde(deserialize_with = "read_as::<PositiveDuration, _, _>")]
    #[cfg_attr(feature = "schema", schemars(with = "PositiveDuration"))]
    pub stall_timeout: Duration,
    /// How long an HTTP/1.1 connection may be without a request before it is parked, which frees
    /// its buffers; at least a millisecond, and at most `header_timeout`.
    #[serde(skip)]
    pub park_after: Duration,
    /// How long a drain may take.
    #[serde(skip)]
    pub drain: DrainSettings,
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self {
            max_connections: None,
            header_timeout: Duration::from_secs(10),
            max_header_bytes: 64 * 1024,
            max_headers: HYPER_MAX_HEADERS,
            max_streams: 200,
            // Longer than the usual 60 seconds of load balancers, so that they close first and
            // never send a request into a connection that is being closed.
            idle_timeout: Duration::from_secs(75),
            stall_timeout: Duration::from_secs(60),
            park_after: Duration::from_secs(1),
            drain: DrainSettings::default(),
        }
    }
}

read_from_text! {
    MaxConnections: "auto or a number from 1",
}

/// None where the process's limit of file descriptors says it.
struct MaxConnections(Option<NonZeroUsize>);

#[derive(Debug, Error)]
#[error("expected auto or a number from 1, found `{0}`")]
struct NotANumber(String);

impl FromStr for MaxConnections {
    type Err = NotANumber;

    fn from_str(text: &str) -> Result<Self, NotANumber> {
        match text {
            "auto" => Ok(Self(None)),
            number => match number.parse() {
                Ok(number) => Ok(Self(Some(number))),
                Err(_) => Err(NotANumber(number.to_owned())),
            },
        }
    }
}

impl From<MaxConnections> for Option<NonZeroUsize> {
    fn from(written: MaxConnections) -> Self {
        written.0
    }
}

#[derive(Deserialize)]
#[serde(try_from = "ByteSize")]
struct HeaderBytes(usize);

impl TryFrom<ByteSize> for HeaderBytes {
    type Error = String;

    fn try_from(size: ByteSize) -> Result<Self, String> {
        let bytes = usize::try_from(size.0).ok();
        let bytes = bytes.filter(|_| HEADER_BYTES.contains(&size));
        bytes.map(Self).ok_or_else(|| {
            let (least, most) = HEADER_BYTES.into_inner();
            format!("it must be from {least} to {most}; leave it out for the default")
        })
    }
}

impl From<HeaderBytes> for usize {
    fn from(bytes: HeaderBytes) -> Self {
        bytes.0
    }
}

#[cfg(test)]
mod tests {
    use weir_yaml::testing::read;

    use super::*;

    #[test]
    fn each_key_is_the_setting_of_its_name() {
        let written = read(
            "{max_connections: 7, header_timeout: 1s, max_header_bytes: 8KiB, max_headers: 1, \
             max_streams: 10000, idle_timeout: 2s, stall_timeout: 3s}",
        );
        let expected = HttpSettings {
            max_connections: NonZeroUsize::new(7),
            header_timeout: Duration::from_secs(1),
            max_header_bytes: 8192,
            max_headers: 1,
            max_streams: 10_000,
            idle_timeout: Duration::from_secs(2),
            stall_timeout: Duration::from_secs(3),
            ..HttpSettings::default()
        };
        assert_eq!(written, Ok(expected));
        assert_eq!(read("{max_connections: auto}"), Ok(HttpSettings::default()));
    }

    #[test]
    fn bounds_that_cannot_hold_are_refused() {
        for (keys, told) in [
            (
                "max_connections: 0",
                "expected auto or a number from 1, found `0`",
            ),
            ("header_timeout: 0s", "leaves no time at all"),
            ("max_header_bytes: 8191", "it must be from 8KiB to 1MiB"),
            ("max_header_bytes: 2MiB", "leave it out for the default"),
            ("max_headers: 1001", "it must be from 1 to 1000"),
            ("park_after: 1s", "unknown key"),
        ] {
            let found = read::<HttpSettings>(keys).unwrap_err();
            assert!(found.contains(told), "{keys}: {found}");
        }
    }
}
