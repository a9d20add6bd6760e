//! Where clients may speak HTTP/3, and what they are told of it.

use std::time::Duration;

use weir_server::AltService;
use weir_yaml::{Lowered, Lowering, WordOr};

use super::schema;

/// As without a word of it (RFC 7838, section 3.1).
const DEFAULT_MAX_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// HTTP/3 on a listener, if there is a word of it.
pub(super) fn http3(
    cx: &mut Lowering<'_>,
    listener: &schema::Listener,
) -> Lowered<Option<AltService>> {
    let Some(written) = &listener.http3 else {
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
    let refused = if listener.tls.is_none() {
        let help = "add `tls` to this listener, or leave `http3` out";
        Some(("HTTP/3 is always encrypted", help))
    } else if listener.proxy_protocol.is_some() {
        let help = "leave one of them out, or give HTTP/3 a listener of its own";
        Some((
            "the PROXY protocol does not say who a client of HTTP/3 is",
            help,
        ))
    } else if early_data && listener.client_auth.is_some() {
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
