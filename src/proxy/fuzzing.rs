//! What servers send, as the fuzz target feeds it in. Not part of the public interface.
//!
//! The function panics when an invariant breaks. `fuzz/` calls it with made-up input, and the tests
//! below with the corpus that is checked in.

use bytes::BytesMut;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, Method, StatusCode};

use super::http1::{Decoder, Malformed, Piece, ResponseHead};

/// What a server sends after a request, and what it may send unasked after that.
pub fn response(input: &[u8]) {
    for method in [Method::GET, Method::HEAD] {
        let whole = Read::of(input, input.len().max(1), &method);
        for size in [1, 2, 7] {
            let read = Read::of(input, size, &method);
            assert_eq!(read, whole, "in pieces of {size}, after {method}");
        }
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
    persists: bool,
}

impl Read {
    /// What comes of `input` when it arrives in pieces of `size`, up to the end of the connection.
    fn of(input: &[u8], size: usize, method: &Method) -> Self {
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
            persists,
        }) = Self::head(pieces, buffer, method)?
        else {
            return Ok(());
        };
        check(response.headers(), &body, persists);
        self.persists = persists;
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
            match ResponseHead::take(buffer, method)? {
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

fn check(headers: &HeaderMap, body: &Decoder, persists: bool) {
    assert!(
        !persists || !body.ends_with_connection(),
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
    use std::fs;
    use std::path::Path;

    use http_body_util::{BodyExt, Empty};
    use hyper::client::conn::http1;
    use hyper_util::rt::TokioIo;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[test]
    fn the_corpus_of_the_fuzz_target_is_survived() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/response");
        let inputs: Vec<_> = fs::read_dir(corpus).unwrap().collect();
        assert!(!inputs.is_empty());
        for input in inputs {
            response(&fs::read(input.unwrap().path()).unwrap());
        }
    }

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
        let (mut client, connection) = http1::handshake(TokioIo::new(near)).await.ok()?;
        tokio::spawn(connection);
        let answer = async {
            let mut request = [0; 64];
            let _ = far.read(&mut request).await;
            let _ = far.write_all(&input).await;
            drop(far);
        };
        let request = http::Request::get("/").body(Empty::<bytes::Bytes>::new());
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
            let read = Read::of(&input, input.len(), &Method::GET);
            let ends_with_connection = !read.persists && !read.refused && !read.ended;
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
            let read = Read::of(text.as_bytes(), size, &Method::GET);
            let body: String = chunks.into_iter().map(|(data, _)| data).collect();
            prop_assert_eq!(read.body, body.into_bytes());
            prop_assert_eq!(&read.trailers.unwrap()["sum"], "1");
            prop_assert!(read.ended && read.persists);
            prop_assert_eq!(read.rest, b"rest");
        }
    }
}
