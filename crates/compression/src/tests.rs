use std::convert::Infallible;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use compression_codecs::core::util::PartialBuffer;
use compression_codecs::{BrotliDecoder, Decode, GzipDecoder, ZstdDecoder};
use futures_util::stream;
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full, StreamBody};
use proptest::prelude::*;

use weir_middleware::{BodyCoder, ResponseBody};

use super::*;

/// What a step that was prepared makes of a response.
fn applied<R: Body<Data = Bytes>>(
    step: impl PreparedStep,
    response: Response<ResponseBody<R>>,
) -> Response<ResponseBody<R>> {
    let (mut outgoing, body) = Outgoing::new(response);
    Box::new(step).apply(&mut outgoing);
    outgoing.with_body(body)
}

fn compressor(method: &str, accepted: &'static str) -> Compressor {
    let request = Request::builder()
        .method(method)
        .header("accept-encoding", accepted);
    let request = request.body(()).unwrap();
    Compressor::new(
        &Arc::new(Compression::default()),
        &RequestHead::new(&request),
    )
}

static MANY: Semaphore = Semaphore::const_new(Semaphore::MAX_PERMITS);

fn coded_by<B>(coding: ContentCoding, body: B) -> ResponseBody<B> {
    let codec = Codec::new(coding, &MANY).unwrap();
    ResponseBody::forwarded(body).coded_by(Box::new(codec))
}

fn response(text: String) -> http::response::Builder {
    let length = text.len();
    Response::builder()
        .header("content-type", "text/plain")
        .header("content-length", length)
}

fn decoded(coding: ContentCoding, coded: &[u8]) -> Vec<u8> {
    fn all(mut decoder: impl Decode, coded: &[u8]) -> Vec<u8> {
        let (mut input, mut text) = (PartialBuffer::new(coded), Vec::new());
        loop {
            let mut output = PartialBuffer::new([0; 4096]);
            let is_over = decoder.decode(&mut input, &mut output).unwrap();
            text.extend_from_slice(output.written());
            if is_over {
                assert!(input.unwritten().is_empty(), "nothing follows the end");
                return text;
            }
            assert!(
                !input.unwritten().is_empty() || !output.written().is_empty(),
                "the end is there"
            );
        }
    }
    match coding {
        ContentCoding::Gzip => all(GzipDecoder::new(), coded),
        ContentCoding::Brotli => all(BrotliDecoder::new(), coded),
        ContentCoding::Zstd => all(ZstdDecoder::new(), coded),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Whatever the frames are, and wherever the body is not ready.
    #[test]
    fn what_is_decoded_is_what_came(
        frames in prop::collection::vec(
            prop::option::of(prop::collection::vec(any::<u8>(), 0..5000)), 0..8),
        coding in prop::sample::select(ContentCoding::ALL.to_vec()),
    ) {
        let text: Vec<u8> = frames.iter().flatten().flatten().copied().collect();
        let mut frames = frames.into_iter();
        // Before each missing frame, the body is not ready once.
        let body = StreamBody::new(stream::poll_fn(move |_| match frames.next() {
            None => Poll::Ready(None),
            Some(None) => Poll::Pending,
            Some(Some(data)) => Poll::Ready(Some(Ok::<_, Infallible>(Frame::data(data.into())))),
        }));
        let body = coded_by(coding, body);
        let mut body = pin!(body);
        let mut cx = Context::from_waker(Waker::noop());
        let mut coded = Vec::new();
        loop {
            match body.as_mut().poll_frame(&mut cx) {
                Poll::Pending => {}
                Poll::Ready(None) => break,
                Poll::Ready(Some(frame)) => {
                    let data = frame.unwrap().into_data().unwrap();
                    prop_assert!(!data.is_empty(), "an empty chunk would be the last");
                    coded.extend_from_slice(&data);
                }
            }
        }
        prop_assert!(body.is_end_stream());
        prop_assert_eq!(decoded(coding, &coded), text);
    }
}

/// Each poll stands for a turn of the connection. Where they had no end, 64 clients that fetched 10
/// MB kept another one waiting for 3 to 15 seconds.
#[test]
fn no_connection_codes_more_than_some_kilobytes_before_others_have_their_turn() {
    for coding in ContentCoding::ALL {
        let text = Bytes::from("some text ".repeat(100_000));
        let mut body = pin!(coded_by(coding, Full::new(text.clone())));
        let wakes = Arc::new(CountWakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let (mut coded, mut turns) = (Vec::new(), 0);
        loop {
            match body.as_mut().poll_frame(&mut Context::from_waker(&waker)) {
                Poll::Pending => turns += 1,
                Poll::Ready(None) => break,
                Poll::Ready(Some(frame)) => {
                    coded.extend_from_slice(&frame.unwrap().into_data().unwrap());
                }
            }
        }
        assert_eq!(turns, text.len() / (16 * 1024), "{coding:?}");
        let woken = wakes.0.load(Ordering::Relaxed);
        assert_eq!(woken, turns, "nobody else would go on with it");
        assert_eq!(decoded(coding, &coded), text);
    }
}

/// The window is most of what a codec holds for as long as its client reads.
#[test]
fn no_coded_response_looks_further_back_than_64_kib() {
    let coded = |coding| {
        let mut codec = Codec::new(coding, &MANY).unwrap();
        let text = "some text ".repeat(100_000);
        [codec.code(text.as_bytes()), codec.finish()].concat()
    };
    // RFC 7932, section 9.1: a window of 16 bits is a first bit of 0.
    assert_eq!(coded(ContentCoding::Brotli)[0] & 1, 0);
    // RFC 8878, section 3.1.1.1.2: the exponent above 10, and no mantissa.
    assert_eq!(coded(ContentCoding::Zstd)[5], (16 - 10) << 3);
}

#[derive(Default)]
struct CountWakes(AtomicUsize);

impl Wake for CountWakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_response_for_which_there_is_no_codec_is_sent_as_it_is() {
    static ONE: Semaphore = Semaphore::const_new(1);
    let compress = || {
        let compressor = Compressor {
            permits: &ONE,
            ..compressor("GET", "zstd")
        };
        let text = "x".repeat(2000);
        let made = response(text.clone())
            .header("etag", "\"v1\"")
            .body(ResponseBody::forwarded(Full::<Bytes>::from(text)));
        applied(compressor, made.unwrap())
    };
    let first = compress();
    assert_eq!(first.headers()["content-encoding"], "zstd");
    let second = compress();
    assert!(!second.headers().contains_key("content-encoding"));
    assert_eq!(second.headers()["content-length"], "2000");
    assert_eq!(second.headers()["etag"], "\"v1\"");
    assert_eq!(second.headers()["vary"], "accept-encoding");
    assert_eq!(second.body().size_hint().exact(), Some(2000));
    drop(first);
    assert_eq!(compress().headers()["content-encoding"], "zstd");
}

#[tokio::test]
async fn trailers_follow_what_is_coded() {
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", HeaderValue::from_static("1"));
    let frames = [
        Ok::<_, Infallible>(Frame::data(Bytes::from("text"))),
        Ok(Frame::trailers(trailers.clone())),
    ];
    let body = coded_by(ContentCoding::Gzip, StreamBody::new(stream::iter(frames)));
    let collected = body.collect().await.unwrap();
    assert_eq!(collected.trailers(), Some(&trailers));
    assert_eq!(decoded(ContentCoding::Gzip, &collected.to_bytes()), b"text");
}

#[tokio::test]
async fn a_body_that_breaks_off_has_no_end() {
    let frames = [
        Ok(Frame::data(Bytes::from("text"))),
        Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset)),
    ];
    let body = coded_by(ContentCoding::Gzip, StreamBody::new(stream::iter(frames)));
    assert!(body.collect().await.is_err());
}

#[test]
fn digests_of_the_plain_body_go_and_a_weak_tag_stays() {
    let text = "x".repeat(2000);
    let made = response(text.clone())
        .header("etag", "W/\"v1\"")
        .header("digest", "sha-256=x")
        .header("repr-digest", "sha-256=:x:")
        .body(ResponseBody::forwarded(Full::<Bytes>::from(text)));
    let coded = applied(compressor("GET", "gzip"), made.unwrap());
    assert_eq!(coded.headers()["etag"], "W/\"v1\"");
    for name in ["digest", "repr-digest", "content-length"] {
        assert!(!coded.headers().contains_key(name), "{name}");
    }
    assert_eq!(coded.headers()["vary"], "accept-encoding");
    assert_eq!(coded.body().size_hint().exact(), None);
}

#[test]
fn a_type_is_compared_without_its_parameters_and_in_any_case() {
    for (content_type, is_coded) in [
        ("text/html", true),
        ("TEXT/HTML;charset=utf-8", true),
        ("Application/JSON ; x=y", true),
        ("application/jsonp", false),
        ("textual/html", false),
        ("image/png", false),
        ("", false),
    ] {
        let text = "x".repeat(2000);
        let mut made = response(text.clone())
            .body(ResponseBody::forwarded(Full::<Bytes>::from(text)))
            .unwrap();
        let value = HeaderValue::from_static(content_type);
        made.headers_mut().insert("content-type", value);
        let coded = applied(compressor("GET", "gzip"), made);
        let found = coded.headers().contains_key("content-encoding");
        assert_eq!(found, is_coded, "{content_type}");
        assert_eq!(
            coded.headers().contains_key("vary"),
            is_coded,
            "{content_type}"
        );
    }
}

#[test]
fn caches_are_told_once_that_the_coding_varies() {
    for vary in ["Accept-Encoding, cookie", "*"] {
        let text = "x".repeat(2000);
        let made = response(text.clone())
            .header("vary", vary)
            .body(ResponseBody::forwarded(Full::<Bytes>::from(text)));
        let coded = applied(compressor("GET", "br"), made.unwrap());
        assert_eq!(coded.headers().get_all("vary").iter().count(), 1);
    }
}

/// A cache that revalidates would keep for all clients what was compressed for one.
#[test]
fn what_is_not_modified_varies_as_the_response_that_it_is_about() {
    let varies = |head: http::response::Builder| {
        let body = ResponseBody::<Full<Bytes>>::full("");
        let response = applied(compressor("GET", ""), head.status(304).body(body).unwrap());
        response.headers().contains_key("vary")
    };
    assert!(varies(Response::builder().header("etag", "W/\"v1\"")));
    assert!(varies(response(String::new())));
    assert!(!varies(
        Response::builder().header("content-type", "image/png")
    ));
    assert!(!varies(
        Response::builder().header("content-encoding", "br")
    ));
    assert!(!varies(
        Response::builder().header("cache-control", "no-transform")
    ));
}

/// RFC 9110 section 8.6: a length in a 304 is that of the response to the same request. It was the
/// plain one, beside a tag of the compressed one.
#[test]
fn what_is_not_modified_tells_nothing_of_the_plain_body_where_the_other_is_compressed() {
    let not_modified = |accepted: &'static str, content_type: &'static str| {
        let head = Response::builder()
            .status(304)
            .header("content-type", content_type)
            .header("content-length", "2000")
            .header("digest", "sha-256=x")
            .header("accept-ranges", "bytes")
            .header("etag", "\"v1\"");
        let body = ResponseBody::<Full<Bytes>>::full("");
        let response = applied(compressor("GET", accepted), head.body(body).unwrap());
        let names = ["content-length", "digest", "accept-ranges"];
        let plain = names.map(|name| response.headers().contains_key(name));
        (
            plain,
            response.headers()["etag"].to_str().unwrap().to_owned(),
        )
    };
    assert_eq!(
        not_modified("gzip", "text/html"),
        ([false; 3], "W/\"v1\"".into())
    );
    assert_eq!(not_modified("", "text/html"), ([true; 3], "\"v1\"".into()));
    assert_eq!(
        not_modified("gzip", "image/png"),
        ([true; 3], "\"v1\"".into())
    );
}
