//! Which responses are compressed.

use weir_middleware::Compression;

use super::balancing::keys_or_off;
use super::schema::{self, RouteDefaults};
use crate::diagnostics::{Lowered, all};
use crate::lowering::Lowering;
use crate::yaml::Spanned;

/// What the route says, or else the defaults; none where responses are not compressed.
pub(super) fn compression(
    cx: &mut Lowering<'_>,
    route: &schema::Route,
    defaults: Option<&RouteDefaults>,
) -> Lowered<Option<Compression>> {
    let inherited = || defaults.and_then(|defaults| defaults.compression.as_ref());
    let Some(written) = route.compression.as_ref().or_else(inherited) else {
        return Ok(None);
    };
    let Some(keys) = keys_or_off(cx, written, "compression")? else {
        return Ok(None);
    };
    let mut compression = Compression::default();
    if let Some(algorithms) = &keys.algorithms {
        let algorithms = cx.filled(
            algorithms,
            "no algorithm compresses nothing",
            "say `compression: off`, or leave it out for all of them",
        )?;
        let algorithms = algorithms.iter();
        compression.algorithms = algorithms.map(|coding| coding.value.0).collect();
    }
    if let Some(types) = &keys.types {
        let types = types.value.0.iter();
        compression.types = all(types.map(|media_type| self::media_type(cx, media_type)))?;
    }
    if let Some(size) = &keys.min_bytes {
        compression.min_bytes = size.value.0;
    }
    Ok(Some(compression))
}

/// A media type without parameters, or all of a kind.
fn media_type(cx: &mut Lowering<'_>, written: &Spanned<String>) -> Lowered<String> {
    let parts = written.value.split_once('/');
    let is_token = |text: &str| {
        let is_of_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&byte);
        !text.is_empty() && text.bytes().all(is_of_token)
    };
    let is_type = parts.is_some_and(|(kind, of)| is_token(kind) && (of == "*" || is_token(of)));
    if !is_type {
        let message = format!("`{}` is not a media type", written.value);
        let error = cx.error(written.span, message);
        return Err(error.help("write it like text/html, without parameters, or text/*"));
    }
    Ok(written.value.to_ascii_lowercase())
}
