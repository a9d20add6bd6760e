//! How much of request bodies is read before they are sent on, by an upstream or a route.

use std::sync::Arc;

use serde::Deserialize;
use weir_proxy::RequestBuffering;
use weir_yaml::{ByteSize, Lowered, Lowering, PositiveSize, Spanned, WordOr, keys_or_off};

/// How much is kept of all bodies together, unless told otherwise.
const TOTAL_BUFFERED: u64 = 64 * 1024 * 1024;

/// The most that may be kept of one body.
const MAX_BUFFERED: u64 = 1024 * 1024 * 1024;

/// How much of request bodies is read before they are sent on.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename = "RequestBuffering"))]
#[serde(deny_unknown_fields)]
pub(crate) struct RequestBufferingKeys {
    /// How much of one body is kept in memory, at most `1GiB`.
    pub(crate) max: Spanned<PositiveSize>,
    /// How much of all these bodies may be kept at the same time, in the whole process. Default:
    /// `64MiB`, or `max`.
    pub(crate) total: Option<Spanned<PositiveSize>>,
}

/// How much of request bodies is read before they are sent on; none if this says nothing, and none
/// within if it is turned off.
#[expect(
    clippy::option_option,
    reason = "a route that turns it off differs from one that says nothing"
)]
pub(super) fn request_buffering(
    cx: &mut Lowering<'_>,
    written: Option<&Spanned<WordOr<RequestBufferingKeys>>>,
) -> Lowered<Option<Option<Arc<RequestBuffering>>>> {
    let Some(written) = written else {
        return Ok(None);
    };
    let Some(keys) = keys_or_off(cx, written, "request_buffering")? else {
        return Ok(Some(None));
    };
    let max = keys.max.value.0;
    if max > MAX_BUFFERED {
        let message = format!("more than {} of one body", ByteSize(MAX_BUFFERED));
        let error = cx.error(keys.max.span, message);
        return Err(error.help("bodies are kept in memory; longer ones are sent on as they come"));
    }
    let total = keys
        .total
        .map_or(TOTAL_BUFFERED.max(max), |size| size.value.0);
    if total < max {
        let span = keys.total.map_or(written.span, |size| size.span);
        let error = cx.error(span, "there is no room for one body of `max` bytes");
        return Err(error.help("raise `total`, or lower `max`"));
    }
    let bytes = |size: u64| usize::try_from(size).unwrap_or(usize::MAX);
    let buffering = RequestBuffering::new(bytes(max), bytes(total));
    Ok(Some(Some(Arc::new(buffering))))
}
