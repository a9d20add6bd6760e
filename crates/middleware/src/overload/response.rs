//! What clients are told whose requests are shed.

use std::ops::RangeInclusive;

use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use weir_limit::time::Nanos;

use crate::Shed;
use crate::rejection::{retry_after, try_again};

/// When a request that is shed may come back: overload rarely ends within a second.
const RETRY_SECS: RangeInclusive<u64> = 1..=10;

/// The response to a request that is shed. Where it is not known when it would be let in,
/// `Retry-After` differs from request to request.
pub(crate) fn shed_response(shed: Shed, retry_in: Option<Nanos>) -> Response<Full<Bytes>> {
    let detail = "There are more requests than can be served at the moment; see Retry-After.";
    let seconds = retry_in.and_then(retry_after);
    let seconds = seconds.unwrap_or_else(|| rand::random_range(RETRY_SECS));
    let mut response = try_again(detail, seconds);
    let headers = response.headers_mut();
    // RFC 9209. It also says that the request was not forwarded.
    let reason = format!(
        "weir; error=http_request_denied; details=\"shed by {}\"",
        shed.by
    );
    if let Ok(reason) = reason.parse() {
        headers.insert("proxy-status", reason);
    }
    response
}
