//! Cookies that lead clients back to their servers.

use std::sync::Arc;

use http::HeaderName;
use serde::Deserialize;
use weir_proxy::Sticky;
use weir_yaml::{Lowered, Lowering, OneOrMany, PositiveDuration, Secret, Spanned};

use crate::secret::secret;

/// The least length of the key that signs cookies.
const MIN_KEY_BYTES: usize = 16;

/// How clients stay on their servers.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename = "Sticky"))]
#[serde(deny_unknown_fields)]
pub(crate) struct StickyKeys {
    /// The cookie's name.
    pub(crate) cookie: Spanned<String>,
    /// Signs the cookie: at least 16 bytes, the same on all gateways. In a list, the first one
    /// signs, and cookies of the others are valid too. Type: secret, or list of secrets.
    pub(crate) key: Spanned<OneOrMany<Spanned<Secret>>>,
    /// How long clients keep the cookie. Default: the browser's session.
    pub(crate) max_age: Option<PositiveDuration>,
}

pub(super) fn sticky(cx: &mut Lowering<'_>, written: &StickyKeys) -> Lowered<Sticky> {
    let name = &written.cookie;
    // Cookies are named by tokens, as fields are.
    if HeaderName::from_bytes(name.value.as_bytes()).is_err() {
        let message = format!("`{}` is not the name of a cookie", name.value);
        let error = cx.error(name.span, message);
        return Err(error.help("write letters, digits, `-` and `_`, such as app_server"));
    }
    let help = "make one with `openssl rand -hex 32 > sticky.key`";
    let keys = cx.filled(&written.key, "there is no key to sign cookies with", help)?;
    let keys = keys.iter().map(|written| {
        let key = secret(cx, written, written.span)?;
        if key.len() < MIN_KEY_BYTES {
            let message = format!("the key has fewer than {MIN_KEY_BYTES} bytes");
            return Err(cx.error(written.span, message).help(help));
        }
        Ok(Arc::from(key.as_bytes()))
    });
    // All of them, as each may have an error of its own.
    let keys: Vec<Lowered<_>> = keys.collect();
    Ok(Sticky {
        cookie: name.value.as_str().into(),
        keys: keys.into_iter().collect::<Lowered<_>>()?,
        max_age: written.max_age.map(|time| time.0),
    })
}
