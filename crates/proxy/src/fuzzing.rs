//! What passes through the proxy in both directions, for the fuzz targets.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a broken invariant has to show"
)]

use std::convert::Infallible;

use bytes::{Bytes, BytesMut};
use futures_util::{FutureExt, future, stream};
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Version};
use http_body::Frame;
use http_body_util::{Either, Full, StreamBody};
use weir_http::request::HttpRequest;

use super::hop_by_hop;
use super::http1::{Decoder, Malformed, Piece, ResponseHead, number};
use super::request::Outbound;

/// A client's request, head and body, with a bar between the pieces of the body and lines that are
/// trailers after the last one. What is sent to an upstream is one request, and the same one.
pub fn request(input: &[u8]) {
    for version in [Version::HTTP_11, Version::HTTP_10, Version::HTTP_2] {
        if let Some((request, body)) = received(input, version)
            && let Ok(outbound) = Outbound::from_request(request.into_boxed(), false)
        {
            sent(*outbound, &body);
        }
    }
}

/// Lines of fields, `name: value`, of a head or of trailers.
pub fn hop_by_hop(input: &[u8]) {
    let before = fields(input);
    let named = |name: &HeaderName| hop_by_hop::has_token(&before, CONNECTION, name.as_str());
    let mut after = before.clone();
    hop_by_hop::strip(&mut after);
    assert!(
        !hop_by_hop::has_any(&after),
        "only the connection's own: {after:?}"
    );
    let expected = before
        .iter()
        .filter(|(name, _)| match hop_by_hop::is_kept(name) {
            true => true,
            false => after.contains_key(*name) || !(named(name) || hop_by_hop::is_hop_by_hop(name)),
        });
    let in_order = expected.collect::<Vec<_>>();
    assert_eq!(after.iter().collect::<Vec<_>>(), in_order, "of {before:?}");
    let again = after.clone();
    hop_by_hop::strip(&mut after);
    assert_eq!(after, again, "nothing is left to strip");
    let mut trailers = before.clone();
    hop_by_hop::strip_trailers(&mut trailers);
    let smuggled = trailers.keys().find(|name| hop_by_hop::is_kept(name));
    assert_eq!(smuggled, None, "trailers hold no field of a head");
}

type ClientBody = Either<Full<Bytes>, StreamBody<stream::Iter<Frames>>>;
type Frames = std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>;

/// A request as hyper hands it over, and its body.
fn received(input: &[u8], version: Version) -> Option<(Request<ClientBody>, Vec<u8>)> {
    let mut lines = [httparse::EMPTY_HEADER; 64];
    let mut parsed = httparse::Request::new(&mut lines);
    let httparse::Status::Complete(length) = parsed.parse(input).ok()? else {
        return None;
    };
    let mut request = Request::builder()
        .method(parsed.method?)
        .uri(parsed.path?)
        .version(version);
    for line in &*parsed.headers {
        request = request.header(line.name, line.value);
    }
    let pieces = input.get(length..)?.split(|&byte| byte == b'|');
    let mut pieces: Vec<_> = pieces.map(Bytes::copy_from_slice).collect();
    let chunked = request.headers_ref()?.contains_key(TRANSFER_ENCODING);
    let (body, data) = if chunked {
        let trailers = pieces.pop().map(|last| Frame::trailers(fields(&last)));
        let data = pieces.concat();
        let frames = pieces.into_iter().map(Frame::data).chain(trailers);
        let frames: Vec<_> = frames.map(Ok).collect();
        (Either::Right(StreamBody::new(stream::iter(frames))), data)
    } else {
        let data = pieces.concat();
        (Either::Left(Full::from(data.clone())), data)
    };
    Some((request.body(body).ok()?, data))
}

/// What a server gets must be one request with this head and this body, and nothing after it.
fn sent(mut outbound: Outbound<ClientBody>, body: &[u8]) {
    let head = outbound.head.clone();
    let mut bytes = Vec::new();
    outbound.writer.begin(&head, tokio::time::Instant::now());
    let all = future::poll_fn(|cx| outbound.writer.poll(cx, &mut bytes));
    assert!(
        matches!(all.now_or_never(), Some(Ok(()))),
        "it is all there"
    );
    let mut lines = [httparse::EMPTY_HEADER; 128];
    let mut parsed = httparse::Request::new(&mut lines);
    let end = parsed
        .parse(&bytes)
        .map(|end| end.is_complete().then(|| end.unwrap()));
    let Ok(Some(end)) = end else {
        panic!("no head: {}", bytes.escape_ascii());
    };
    assert_eq!(parsed.method, Some(head.method.as_str()));
    let path = parsed.path.unwrap_or_default();
    let target = head.uri.path_and_query().map_or("/", PathAndQuery::as_str);
    assert_eq!(path.trim_start_matches('/'), target.trim_start_matches('/'));
    assert!(path.starts_with('/') || path == "*", "{path:?}");
    let mut headers = HeaderMap::new();
    for line in &*parsed.headers {
        let name = HeaderName::from_bytes(line.name.as_bytes());
        let value = HeaderValue::from_bytes(line.value);
        headers.append(name.unwrap(), value.unwrap());
    }
    assert_eq!(headers, head.headers, "as it was meant");
    let rest = bytes.get(end..).unwrap_or_default();
    assert_eq!(received_by_server(&headers, rest), body);
}

/// The body that a server finds behind these fields; there is nothing after it.
fn received_by_server(headers: &HeaderMap, rest: &[u8]) -> Vec<u8> {
    let lines = |name| headers.get_all(name).iter().count();
    assert!(lines(HOST) <= 1, "one host: {headers:?}");
    assert!(
        lines(CONTENT_LENGTH) + lines(TRANSFER_ENCODING) <= 1,
        "one length: {headers:?}"
    );
    let mut decoder = match headers.get(CONTENT_LENGTH) {
        Some(length) => Decoder::Length(number(length.as_bytes()).unwrap()),
        None if headers.contains_key(TRANSFER_ENCODING) => Decoder::chunked(),
        None => Decoder::Length(0),
    };
    let (mut buffer, mut body) = (BytesMut::from(rest), Vec::new());
    loop {
        match decoder.next(&mut buffer).unwrap() {
            Some(Piece::Data(data)) => body.extend_from_slice(&data),
            Some(Piece::Trailers(trailers)) => {
                assert!(!trailers.keys().any(hop_by_hop::is_kept), "{trailers:?}");
            }
            Some(Piece::End) => break,
            None => panic!("the body breaks off"),
        }
    }
    assert_eq!(buffer, b""[..], "nothing follows the request");
    body
}

/// Lines of `name: value`; others are left out.
fn fields(input: &[u8]) -> HeaderMap {
    let field = |line: &[u8]| {
        let colon = line.iter().position(|&byte| byte == b':')?;
        let (name, value) = line.split_at_checked(colon)?;
        let value = value.get(1..)?.trim_ascii();
        let name = HeaderName::from_bytes(name).ok()?;
        Some((name, HeaderValue::from_bytes(value).ok()?))
    };
    let mut headers = HeaderMap::new();
    for (name, value) in input.split(|&byte| byte == b'\n').filter_map(field) {
        headers.append(name, value);
    }
    headers
}

/// What a server sends after a request, and what it may send unasked after that.
pub fn response(input: &[u8]) {
    for method in [Method::GET, Method::HEAD] {
        let whole = Read::from_input(input, input.len().max(1), &method);
        for size in [1, 2, 7] {
            let read = Read::from_input(input, size, &method);
            assert_eq!(read, whole, "in pieces of {size}, after {method}");
        }
        at_once(input, &method, &whole);
    }
}

/// A body of a known length that is there as a whole is taken by another path than one that comes
/// in pieces, and is the same.
fn at_once(input: &[u8], method: &Method, whole: &Read) {
    let mut buffer = BytesMut::from(input);
    let head = Read::head(&mut std::iter::empty(), &mut buffer, method);
    let Ok(Some(ResponseHead { mut body, .. })) = head else {
        return;
    };
    if let Some(data) = body.whole(&mut buffer) {
        assert!(body.is_at_end() && whole.ended, "it is all there");
        assert_eq!((&*data, &*buffer), (&*whole.body, &*whole.rest));
    }
}

/// What becomes of a response.
#[derive(Debug, Default, PartialEq)]
struct Read {
    /// The status and the fields; none before the head has arrived.
    head: Option<(StatusCode, HeaderMap)>,
    body: Vec<u8>,
    trailers: Option<HeaderMap>,
    /// What comes after the body.
    rest: Vec<u8>,
    ended: bool,
    refused: bool,
    keep_alive: bool,
}

impl Read {
    /// What comes of `input` when it arrives in pieces of `size`, up to the end of the connection.
    fn from_input(input: &[u8], size: usize, method: &Method) -> Self {
        let mut read = Self::default();
        let mut pieces = input.chunks(size);
        let mut buffer = BytesMut::new();
        match read.all(&mut pieces, &mut buffer, method) {
            Ok(()) => {
                read.rest = buffer.to_vec();
                pieces.for_each(|piece| read.rest.extend_from_slice(piece));
            }
            Err(_) => read.refused = true,
        }
        read
    }

    fn all<'i>(
        &mut self,
        pieces: &mut impl Iterator<Item = &'i [u8]>,
        buffer: &mut BytesMut,
        method: &Method,
    ) -> Result<(), Malformed> {
        let Some(ResponseHead {
            response,
            mut body,
            keep_alive,
            ..
        }) = Self::head(pieces, buffer, method)?
        else {
            return Ok(());
        };
        check(response.headers(), &body, keep_alive);
        self.keep_alive = keep_alive;
        self.head = Some((response.status(), response.headers().clone()));
        loop {
            match body.next(buffer)? {
                Some(Piece::Data(data)) => self.body.extend_from_slice(&data),
                Some(Piece::Trailers(trailers)) => self.trailers = Some(trailers),
                Some(Piece::End) => break,
                None if !fill(pieces, buffer) => return Ok(()),
                None => {}
            }
        }
        self.ended = true;
        Ok(())
    }

    fn head<'i>(
        pieces: &mut impl Iterator<Item = &'i [u8]>,
        buffer: &mut BytesMut,
        method: &Method,
    ) -> Result<Option<ResponseHead>, Malformed> {
        loop {
            match ResponseHead::take(buffer, method, &mut HeaderMap::new())? {
                Some(head) if head.is_interim() => {}
                Some(head) => return Ok(Some(head)),
                None if !fill(pieces, buffer) => return Ok(None),
                None => {}
            }
        }
    }
}

fn fill<'i>(pieces: &mut impl Iterator<Item = &'i [u8]>, buffer: &mut BytesMut) -> bool {
    let piece = pieces.next();
    buffer.extend_from_slice(piece.unwrap_or_default());
    piece.is_some()
}

fn check(headers: &HeaderMap, body: &Decoder, keep_alive: bool) {
    assert!(
        !keep_alive || !body.ends_with_connection(),
        "what ends with the connection is not followed by anything"
    );
    let lengths = headers.get_all(CONTENT_LENGTH).iter().count();
    let codings = headers.get_all(TRANSFER_ENCODING).iter().count();
    assert!(
        lengths + codings <= 1,
        "a length is told in one way: {headers:?}"
    );
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, Empty};
    use hyper::client::conn::http1;
    use hyper_util::rt::TokioIo;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    /// What responses consist of, and what must not be among it.
    const PARTS: &[&str] = &[
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.0 200 OK\r\n",
        "HTTP/1.1 204 No Content\r\n",
        "HTTP/1.1 304 \r\n",
        "HTTP/1.1 100 Continue\r\n\r\n",
        "HTTP/1.1 404 Not Here\n",
        "HTTP/1.1 200\r\n",
        "HTTP/1.1 200 d\u{e9}j\u{e0} vu\r\n",
        "content-length: 4\r\n",
        "Content-Length:4 \r\n",
        "content-length: 04\r\n",
        "content-length : 4\r\n",
        "content-length: 5\r\n",
        "content-length: 4, 4\r\n",
        "content-length: +4\r\n",
        "transfer-encoding: chunked\r\n",
        "Transfer-Encoding:\tCHUNKED \r\n",
        "transfer-encoding: gzip, chunked\r\n",
        "transfer-encoding: chunked, identity\r\n",
        "connection: close\r\n",
        "connection: keep-alive\r\n",
        "trailer: sum\r\n",
        "x: y\r\n",
        "x: \u{e9}\r\n",
        "x:\r\n",
        " folded\r\n",
        "\r\n",
        "\r\n",
        "\n",
        "\r",
        "body",
        "4\r\nbody\r\n",
        "4;x=\"y\"\r\nbody\r\n",
        "2 \r\nbo\r\n",
        "4\nbody\n",
        "004\r\nbody\r\n",
        "0\r\n",
        "0\r\n\r\n",
        "000\r\n",
        "sum: 1\r\n",
        "fffffffffffffffff\r\n",
        "\0",
    ];

    fn responses() -> impl Strategy<Value = Vec<u8>> {
        let head = prop::sample::select(&PARTS[..9]);
        let fields = vec(prop::sample::select(&PARTS[9..26]), 0..3);
        let rest = vec(prop::sample::select(PARTS), 0..6);
        (head, fields, any::<bool>(), rest).prop_map(|(head, fields, ends, rest)| {
            let end = if ends { "\r\n" } else { "" };
            let parts = [vec![head], fields, vec![end], rest].concat();
            parts.concat().into_bytes()
        })
    }

    /// What hyper's client makes of a response: the status, the body and the trailers.
    async fn by_hyper(input: Vec<u8>) -> Option<(StatusCode, Vec<u8>, Option<HeaderMap>)> {
        let (near, mut far) = duplex(64 * 1024);
        let (mut client, connection) = http1::Builder::new()
            .allow_spaces_after_header_name_in_responses(true)
            .handshake(TokioIo::new(near))
            .await
            .ok()?;
        tokio::spawn(connection);
        let answer = async {
            let mut request = [0; 64];
            let _ = far.read(&mut request).await;
            let _ = far.write_all(&input).await;
            drop(far);
        };
        let request = Request::get("/").body(Empty::<Bytes>::new());
        let (response, ()) = tokio::join!(client.send_request(request.unwrap()), answer);
        let response = response.ok()?;
        let status = response.status();
        let body = response.into_body().collect().await.ok()?;
        let trailers = body.trailers().cloned();
        Some((status, body.to_bytes().to_vec(), trailers))
    }

    proptest! {
        #[test]
        fn arbitrary_responses_are_survived(
            bytes in vec(any::<u8>(), 0..80), likely in responses()
        ) {
            response(&bytes);
            response(&likely);
        }

        #[test]
        fn what_is_not_refused_is_what_hyper_takes_it_for(input in responses()) {
            let read = Read::from_input(&input, input.len(), &Method::GET);
            let ends_with_connection = !read.keep_alive && !read.refused && !read.ended;
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let by_hyper = runtime.block_on(by_hyper(input));
            if let Some((status, _)) = read.head.filter(|_| read.ended) {
                prop_assert_eq!(by_hyper, Some((status, read.body, read.trailers)));
            } else if let Some((_, body, _)) = by_hyper && !read.refused {
                prop_assert!(ends_with_connection);
                prop_assert_eq!(body, read.body);
            }
        }

        #[test]
        fn a_body_is_what_its_chunks_are(
            chunks in vec(("[a-z\r\n]{1,40}", "(;[a-z]{1,3}(=[a-z\"; ]{0,5})?)?"), 0..6),
            size in 1_usize..50,
        ) {
            let mut text = String::from("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
            for (data, extension) in &chunks {
                text += &format!("{:X}{extension}\r\n{data}\r\n", data.len());
            }
            text += "0\r\nsum: 1\r\n\r\nrest";
            let read = Read::from_input(text.as_bytes(), size, &Method::GET);
            let body: String = chunks.into_iter().map(|(data, _)| data).collect();
            prop_assert_eq!(read.body, body.into_bytes());
            prop_assert_eq!(&read.trailers.unwrap()["sum"], "1");
            prop_assert!(read.ended && read.keep_alive);
            prop_assert_eq!(read.rest, b"rest");
        }
    }
}
