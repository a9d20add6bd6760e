//! Time-outs and bounds of requests, which an upstream has and a route may have in their place.

use std::sync::Arc;

use weir_proxy::{RequestBuffering, Timeouts};

use super::balancing::keys_or_off;
use super::schema;
use crate::diagnostics::Lowered;
use crate::lowering::Lowering;
use crate::values::{ByteSize, HumanDuration};
use crate::yaml::{Spanned, WordOr};

/// How much is kept of all bodies together, unless told otherwise.
const TOTAL_BUFFERED: u64 = 64 * 1024 * 1024;

/// The most that may be kept of one body.
const MAX_BUFFERED: u64 = 1024 * 1024 * 1024;

/// Time-outs as they are written.
#[derive(Clone, Copy)]
pub(super) struct WrittenTimeouts {
    connect: Option<Spanned<HumanDuration>>,
    response: Option<Spanned<HumanDuration>>,
    body: Option<Spanned<HumanDuration>>,
    total: Option<Spanned<HumanDuration>>,
}

impl WrittenTimeouts {
    pub(super) fn of_upstream(written: &schema::Upstream) -> Self {
        Self {
            connect: written.connect_timeout,
            response: written.response_timeout,
            body: written.body_timeout,
            total: written.total_timeout,
        }
    }

    pub(super) fn of_route(written: &schema::Route) -> Self {
        Self {
            connect: written.connect_timeout,
            response: written.response_timeout,
            body: written.body_timeout,
            total: written.total_timeout,
        }
    }
}

/// These time-outs, and those of `others` where nothing is written.
pub(super) fn timeouts(
    cx: &mut Lowering<'_>,
    written: WrittenTimeouts,
    others: Timeouts,
) -> Timeouts {
    let mut lower = |time: Option<Spanned<HumanDuration>>| time.map(|time| cx.positive(time));
    Timeouts {
        connect: lower(written.connect).unwrap_or(others.connect),
        response: lower(written.response).unwrap_or(others.response),
        body: lower(written.body).unwrap_or(others.body),
        total: lower(written.total).or(others.total),
    }
}

/// How long request bodies may be.
pub(super) fn max_body_bytes(
    cx: &mut Lowering<'_>,
    written: Option<Spanned<ByteSize>>,
) -> Lowered<Option<u64>> {
    written.map(|size| positive_size(cx, size)).transpose()
}

/// How much of request bodies is read before they are sent on; none if this says nothing, and none
/// within if it is turned off.
#[expect(
    clippy::option_option,
    reason = "a route that turns it off differs from one that says nothing"
)]
pub(super) fn request_buffering(
    cx: &mut Lowering<'_>,
    written: Option<&Spanned<WordOr<schema::RequestBuffering>>>,
) -> Lowered<Option<Option<Arc<RequestBuffering>>>> {
    let Some(written) = written else {
        return Ok(None);
    };
    let Some(keys) = keys_or_off(cx, written, "request_buffering")? else {
        return Ok(Some(None));
    };
    let max = positive_size(cx, keys.max)?;
    if max > MAX_BUFFERED {
        let message = format!("more than {} of one body", ByteSize(MAX_BUFFERED));
        let error = cx.error(keys.max.span, message);
        return Err(error.help("bodies are kept in memory; longer ones are sent on as they come"));
    }
    let total = keys.total.map(|size| positive_size(cx, size));
    let total = total.transpose()?.unwrap_or(TOTAL_BUFFERED.max(max));
    if total < max {
        let span = keys.total.map_or(written.span, |size| size.span);
        let error = cx.error(span, "there is no room for one body of `max` bytes");
        return Err(error.help("raise `total`, or lower `max`"));
    }
    let bytes = |size: u64| usize::try_from(size).unwrap_or(usize::MAX);
    let buffering = RequestBuffering::new(bytes(max), bytes(total));
    Ok(Some(Some(Arc::new(buffering))))
}

fn positive_size(cx: &mut Lowering<'_>, size: Spanned<ByteSize>) -> Lowered<u64> {
    let ByteSize(bytes) = size.value;
    if bytes == 0 {
        let error = cx.error(size.span, "a size of zero leaves no room at all");
        return Err(error.help("leave it out, or write it like 64KiB or 10MiB"));
    }
    Ok(bytes)
}
