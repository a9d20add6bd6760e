//! Fields that concern one connection only (RFC 9110 section 7.6.1) end here, on requests,
//! responses and trailers alike.
//!
//! `Connection` names further fields to remove. It comes from strangers, so it is obeyed only for
//! fields that nothing relies on: a client that sends `Connection: x-forwarded-for` must not take
//! away what says who it is, nor `content-length` what says where its request ends, nor
//! `authorization` what its limits were counted by. RFC 9110 allows no sender to name such fields,
//! as they are meant for the recipient of the content.

use std::mem;

use http::HeaderMap;
use http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE,
    CONTENT_TYPE, COOKIE, DATE, EXPECT, FORWARDED, HOST, HeaderName, MAX_FORWARDS, ORIGIN,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, RETRY_AFTER, SET_COOKIE, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE, VIA,
};
use smallvec::SmallVec;
use weir_http::list::members;

/// Removes the fields that concern only the connection that `headers` came by, and keeps the others
/// in their order.
pub(super) fn strip(headers: &mut HeaderMap) {
    // `Connection` is one of them, so without any none is named either.
    if !has_any(headers) {
        return;
    }
    let named = named_by_connection(headers);
    remove_in_order(headers, |name| is_hop_by_hop(name) || named.contains(name));
}

/// Removes from trailers what concerns only the connection that they came by, and the fields that
/// are meant for heads alone. A recipient that merges trailers with the head would take client
/// address, host and body length from a stranger (RFC 9110 section 6.5.1).
pub(super) fn strip_trailers(trailers: &mut HeaderMap) {
    strip(trailers);
    remove_in_order(trailers, is_kept);
}

/// Whether there is any field that concerns only the connection that `headers` came by.
pub(super) fn has_any(headers: &HeaderMap) -> bool {
    headers.keys().any(is_hop_by_hop)
}

/// Whether one of the field's lines lists `token`, in any case.
pub(super) fn has_token(headers: &HeaderMap, name: HeaderName, token: &str) -> bool {
    headers
        .get_all(name)
        .iter()
        .flat_map(members)
        .any(|member| member.eq_ignore_ascii_case(token.as_bytes()))
}

/// Whether a field always concerns one connection only.
pub(super) fn is_hop_by_hop(name: &HeaderName) -> bool {
    matches!(
        *name,
        CONNECTION | PROXY_AUTHENTICATE | PROXY_AUTHORIZATION | TE | TRANSFER_ENCODING | UPGRADE
    ) || matches!(
        name.as_str(),
        "keep-alive" | "proxy-connection" | "http2-settings"
    )
}

/// Whether a field stays even if `Connection` names it. It is of no use in trailers.
pub(super) fn is_kept(name: &HeaderName) -> bool {
    matches!(
        *name,
        AUTHORIZATION
            | CACHE_CONTROL
            | CONTENT_ENCODING
            | CONTENT_LENGTH
            | CONTENT_RANGE
            | CONTENT_TYPE
            | COOKIE
            | DATE
            | EXPECT
            | FORWARDED
            | HOST
            | MAX_FORWARDS
            | ORIGIN
            | RETRY_AFTER
            | SET_COOKIE
            | TRAILER
            | VIA
    ) || matches!(
        name.as_str(),
        "traceparent" | "tracestate" | "x-real-ip" | "x-request-id"
    ) || name.as_str().starts_with("x-forwarded-")
}

/// The names that `Connection` lists, but for those that are removed anyway or kept in any case.
fn named_by_connection(headers: &HeaderMap) -> SmallVec<[HeaderName; 2]> {
    headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(members)
        .filter(|option| !is_ordinary(option))
        // Absent fields need no removal: a stranger may name thousands.
        .filter_map(|option| str::from_utf8(option).ok())
        .filter(|option| headers.contains_key(*option))
        .filter_map(|option| HeaderName::try_from(option).ok())
        .filter(|name| !is_kept(name))
        .fold(SmallVec::new(), |mut named, name| {
            if !named.contains(&name) {
                named.push(name);
            }
            named
        })
}

/// The connection options that nearly all messages make do with. None names a field that
/// `is_hop_by_hop` does not know.
fn is_ordinary(option: &[u8]) -> bool {
    [&b"keep-alive"[..], b"close", b"upgrade", b"te"]
        .iter()
        .any(|ordinary| option.eq_ignore_ascii_case(ordinary))
}

/// `HeaderMap::remove` puts the last field in the place of the removed one, so only fields at the
/// end can be removed with it, last one first. Otherwise the map is built anew.
fn remove_in_order(headers: &mut HeaderMap, doomed: impl Fn(&HeaderName) -> bool) {
    let Some(first) = headers.keys().position(&doomed) else {
        return;
    };
    let tail: SmallVec<[HeaderName; 4]> = headers.keys().skip(first).cloned().collect();
    if tail.iter().all(&doomed) {
        for name in tail.iter().rev() {
            headers.remove(name);
        }
    } else {
        retain(headers, |name| !doomed(name));
    }
}

fn retain(headers: &mut HeaderMap, keep: impl Fn(&HeaderName) -> bool) {
    let room = HeaderMap::with_capacity(headers.len());
    let mut last = None;
    for (name, value) in mem::replace(headers, room) {
        // A field with several lines yields its name with the first of them only.
        last = name.or(last);
        if let Some(name) = last.as_ref().filter(|name| keep(name)) {
            headers.append(name.clone(), value);
        }
    }
}

#[cfg(test)]
mod tests;
