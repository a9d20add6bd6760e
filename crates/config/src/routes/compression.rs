//! Which responses are compressed.

use weir_middleware::Compression;
use weir_yaml::{Lowered, Lowering, keys_or_off};

use super::schema::{self, RouteDefaults};

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
        let types = cx.items(types)?.iter();
        compression.types = types.map(|media_type| media_type.0.clone()).collect();
    }
    if let Some(size) = &keys.min_bytes {
        compression.min_bytes = size.value.0;
    }
    Ok(Some(compression))
}
