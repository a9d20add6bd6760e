//! Where clients may speak HTTP/3, and what they are told of it.

use std::num::NonZeroU16;
use std::time::Duration;

use serde::Deserialize;
use weir_server::AltService;
use weir_yaml::{HumanDuration, Lowered, Lowering, Spanned, WordOr};

/// As without a word of it (RFC 7838, section 3.1).
const DEFAULT_MAX_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// What clients are told of HTTP/3.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Http3 {
    /// The port of UDP that clients reach, if it is another outside than here. Default: the
    /// listener's.
    pub(crate) port: Option<NonZeroU16>,
    /// For how long clients remember it. Default: `1d`.
    pub(crate) max_age: Option<HumanDuration>,
    /// Whether clients that return may send [requests before the handshake
    /// ends](HTTP3.md#early-data), which takes a round trip less. Default: `false`.
    pub(crate) early_data: Option<bool>,
}

/// What the listener has beside it.
pub(super) struct Beside {
    pub(super) tls: bool,
    pub(super) proxy_protocol: bool,
    pub(super) client_auth: bool,
}

/// HTTP/3 on a listener, if there is a word of it.
pub(super) fn http3(
    cx: &mut Lowering<'_>,
    written: Option<&Spanned<WordOr<Http3>>>,
    beside: &Beside,
) -> Lowered<Option<AltService>> {
    let Some(written) = written else {
        return Ok(None);
    };
    let (port, max_age, early_data) = match &written.value {
        WordOr::Word(word) if word == "false" => return Ok(Some(AltService::Withdrawn)),
        WordOr::Word(word) if word == "true" => (None, DEFAULT_MAX_AGE, false),
        WordOr::Word(word) => {
            let message = format!("expected true, false or keys, found `{word}`");
            let help = "write `http3: true`, or `{max_age: 1h}`";
            return Err(cx.error(written.span, message).help(help));
        }
        WordOr::More(more) => {
            let max_age = more.max_age.as_ref();
            let max_age = max_age.map_or(DEFAULT_MAX_AGE, |age| age.0);
            (more.port, max_age, more.early_data.unwrap_or(false))
        }
    };
    let refused = if !beside.tls {
        let help = "add `tls` to this listener, or leave `http3` out";
        Some(("HTTP/3 is always encrypted", help))
    } else if beside.proxy_protocol {
        let help = "leave one of them out, or give HTTP/3 a listener of its own";
        Some((
            "the PROXY protocol does not say who a client of HTTP/3 is",
            help,
        ))
    } else if early_data && beside.client_auth {
        let help = "leave one of them out";
        Some((
            "early data comes before the certificate of its client",
            help,
        ))
    } else if !cfg!(feature = "http3") {
        let help = "build it with `cargo install --path . --features http3`, or leave `http3` out";
        Some(("this build of weir has no HTTP/3", help))
    } else {
        None
    };
    match refused {
        Some((message, help)) => Err(cx.error(written.span, message).help(help)),
        None => Ok(Some(AltService::Announced {
            port,
            max_age,
            early_data,
        })),
    }
}
