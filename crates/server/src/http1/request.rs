//! The head of a plain request.

use std::mem::MaybeUninit;

use bytes::Bytes;
use http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderValue, TE, TRANSFER_ENCODING,
    UPGRADE,
};
use http::{Method, Uri};
use httparse::Status;
use weir_http::header_name;
use weir_http::request::BoxedRequest;

use super::{HeadBounds, length};
use crate::request_body::RequestBody;

/// How many header lines a plain request has at most.
const MAX_HEADERS: usize = 48;

/// Room for what the gateway adds on the request's way, so that the map need not grow again.
const ADDED_HEADERS: usize = 5;

/// The longest target that hyper takes.
const MAX_TARGET: usize = u16::MAX as usize - 1;

/// A request that has arrived as a whole.
pub(crate) struct PlainRequest {
    pub(crate) request: BoxedRequest<RequestBody>,
    /// What arrived behind it.
    pub(crate) rest: Bytes,
    /// Whether the client sends no other on this connection.
    pub(crate) closes: bool,
}

/// Takes a request from the beginning of `input`; none if anything about it is not plain, or a part
/// of it has not arrived.
///
/// httparse, which hyper uses as well, finds the lines, so both find the same. `headers` is empty;
/// its memory is used again.
pub(crate) fn take(
    input: &Bytes,
    bounds: HeadBounds,
    mut headers: HeaderMap,
) -> Option<PlainRequest> {
    let mut lines = [const { MaybeUninit::uninit() }; MAX_HEADERS];
    let mut head = httparse::Request::new(&mut []);
    let parsed = head.parse_with_uninit_headers(input, &mut lines);
    let Ok(Status::Complete(head_length)) = parsed else {
        return None;
    };
    let (method, target) = (head.method?, head.path?);
    let is_plain = head.version == Some(1)
        && target.starts_with('/')
        && target.len() <= MAX_TARGET
        && head_length <= bounds.bytes
        && head.headers.len() <= bounds.headers;
    let method = Method::from_bytes(method.as_bytes()).ok()?;
    if !is_plain || method == Method::CONNECT {
        return None;
    }
    let uri = Uri::from_maybe_shared(part(input, target.as_bytes())).ok()?;
    let (mut hosts, mut closes, mut has_connection, mut content_length) = (0, false, false, None);
    let room = head.headers.len() + ADDED_HEADERS;
    if headers.capacity() < room {
        // To grow it would cost more.
        headers = HeaderMap::with_capacity(room);
    }
    for line in &*head.headers {
        let name = header_name::parse(line.name.as_bytes()).ok()?;
        match name {
            HOST => hosts += 1,
            CONTENT_LENGTH if content_length.is_none() => {
                content_length = Some(usize::try_from(length(line.value)?).ok()?);
            }
            CONNECTION if !has_connection => {
                has_connection = true;
                closes = line.value.eq_ignore_ascii_case(b"close");
                if !closes && !line.value.eq_ignore_ascii_case(b"keep-alive") {
                    return None;
                }
            }
            CONTENT_LENGTH | CONNECTION | TRANSFER_ENCODING | UPGRADE | EXPECT | TE => return None,
            _ => {}
        }
        let value = HeaderValue::from_maybe_shared(part(input, line.value)).ok()?;
        headers.append(name, value);
    }
    let end = head_length.checked_add(content_length.unwrap_or_default())?;
    if hosts != 1 || end > input.len() {
        return None;
    }
    let body = RequestBody::plain(input.slice(head_length..end));
    let mut request = BoxedRequest::new(body);
    request.head.method = method;
    request.head.uri = uri;
    request.head.headers = headers;
    Some(PlainRequest {
        request,
        rest: input.slice(end..),
        closes,
    })
}

/// A part of the input, which shares its memory.
fn part(input: &Bytes, part: &[u8]) -> Bytes {
    // httparse's own empty slices are nowhere in the input.
    if part.is_empty() {
        return Bytes::new();
    }
    let start = part.as_ptr().addr() - input.as_ptr().addr();
    input.slice(start..start + part.len())
}
