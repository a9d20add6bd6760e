//! The head of a response, and what it says of the body and of the connection.

use std::mem;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Version};
use hyper::ext::ReasonPhrase;
use memchr::memchr_iter;
use weir_http::header_name;

use super::lines::{self, LineError, Spans};
use super::malformed::Malformed;
use super::{Decoder, keep_alive, number};
use crate::hop_by_hop;
use crate::response_bounds::{MAX_HEAD_BYTES, ResponseBound};

pub(crate) struct ResponseHead {
    pub(crate) response: Response<()>,
    pub(crate) body: Decoder,
    /// Whether the connection can serve another request after the body.
    pub(crate) keep_alive: bool,
    /// How long the server keeps the connection open without a request, if it says so.
    pub(crate) idle_timeout: Option<Duration>,
    /// Whether any field concerns the connection only, but for a `Connection: keep-alive` that is
    /// left out.
    pub(crate) has_hop_by_hop: bool,
}

impl ResponseHead {
    /// Takes the head of the answer to a request with `method` out of `buffer`; none before it is
    /// there as a whole. It takes the memory of `headers`, which are empty.
    pub(crate) fn take(
        buffer: &mut BytesMut,
        method: &Method,
        headers: &mut HeaderMap,
    ) -> Result<Option<Self>, Malformed> {
        let Some((mut response, framing)) = parse(buffer, headers)? else {
            return Ok(None);
        };
        let body = framing.body(&mut response, method)?;
        let idle_timeout = framing.idle_timeout(&response);
        let keep_alive = framing.keep_alive(&response)
            && !body.ends_with_connection()
            && idle_timeout != Some(Duration::ZERO);
        Ok(Some(Self {
            response,
            body,
            keep_alive,
            idle_timeout,
            has_hop_by_hop: framing.hop_by_hop,
        }))
    }

    /// Whether more of a head, which was not there as a whole when `parsed` bytes of `buffer` were,
    /// may have completed it. Parsing it at each read would take quadratic time.
    pub(crate) fn may_be_whole(buffer: &[u8], parsed: usize) -> Result<bool, Malformed> {
        // The empty line may have begun before.
        let new = buffer.get(parsed.saturating_sub(2)..).unwrap_or_default();
        let ends = |line_feed: usize| {
            let rest = new.get(line_feed + 1..).unwrap_or_default();
            rest.starts_with(b"\n") || rest.starts_with(b"\r\n")
        };
        if memchr_iter(b'\n', new).any(ends) {
            return Ok(true);
        }
        check_length(buffer, buffer.len()).map(|()| false)
    }

    /// Whether another head follows this one.
    pub(crate) fn is_interim(&self) -> bool {
        let status = self.response.status();
        status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS
    }
}

fn parse(
    buffer: &mut BytesMut,
    headers: &mut HeaderMap,
) -> Result<Option<(Response<()>, Framing)>, Malformed> {
    let mut spans = Spans::new();
    let found = lines::find(buffer, &mut spans).map_err(|error| match error {
        LineError::TooMany => too_large(buffer, ResponseBound::HeadLines),
        LineError::Malformed(malformed) => malformed,
    })?;
    let Some(line) = found else {
        return check_length(buffer, buffer.len()).map(|()| None);
    };
    check_length(buffer, line.length)?;
    let mut response = Response::new(());
    *response.version_mut() = line.version;
    *response.status_mut() = line.status;
    let head = buffer.split_to(line.length).freeze();
    if let Some(reason) = line.reason {
        keep_reason(&mut response, reason.slice(&head));
    }
    *response.headers_mut() = mem::take(headers);
    let framing = append_all(response.headers_mut(), &spans, &head, line.version)?;
    Ok(Some((response, framing)))
}

/// Checks the length of the head that `buffer` begins with, or of as much of it as is there.
/// Whether a head is too long must not depend on how much of it came at once.
fn check_length(buffer: &[u8], length: usize) -> Result<(), Malformed> {
    if length > MAX_HEAD_BYTES {
        return Err(too_large(buffer, ResponseBound::HeadBytes));
    }
    Ok(())
}

fn too_large(buffer: &[u8], bound: ResponseBound) -> Malformed {
    let status = lines::status_of(buffer);
    Malformed::TooLarge { status, bound }
}

/// A reason phrase of the server's own is passed on; the usual ones need not be.
fn keep_reason(response: &mut Response<()>, phrase: &[u8]) {
    let usual = response.status().canonical_reason().unwrap_or_default();
    if phrase != usual.as_bytes()
        && let Ok(phrase) = ReasonPhrase::try_from(phrase)
    {
        response.extensions_mut().insert(phrase);
    }
}

/// Room for what the gateway adds on the response's way, so that the map need not grow again.
const ADDED_FIELDS: usize = 3;

/// The values share the memory of the head.
fn append_all(
    to: &mut HeaderMap,
    spans: &Spans,
    head: &Bytes,
    version: Version,
) -> Result<Framing, Malformed> {
    to.reserve(spans.len() + ADDED_FIELDS);
    let mut framing = Framing {
        is_old: version != Version::HTTP_11,
        ..Framing::default()
    };
    for [name, value] in spans {
        let name = header_name::parse(name.slice(head)).map_err(http::Error::from)?;
        let value = HeaderValue::from_maybe_shared(head.slice(value.start..value.end))
            .map_err(http::Error::from)?;
        // Most servers send it, and it says nothing that HTTP/1.1 does not say anyway.
        if name == CONNECTION && value == "keep-alive" && !framing.is_old {
            continue;
        }
        framing.take_note(&name, &value)?;
        framing.hop_by_hop |= hop_by_hop::is_hop_by_hop(&name);
        to.append(name, value);
    }
    Ok(framing)
}

/// The fields that decide where the body ends, collected while the head is parsed.
#[derive(Default)]
struct Framing {
    length: Option<u64>,
    lengths: usize,
    codings: usize,
    chunked: bool,
    connection: bool,
    hop_by_hop: bool,
    is_old: bool,
}

impl Framing {
    fn take_note(&mut self, name: &HeaderName, value: &HeaderValue) -> Result<(), Malformed> {
        match *name {
            CONTENT_LENGTH => {
                let length = number(value.as_bytes()).ok_or(Malformed::ContentLength)?;
                if self.length.is_some_and(|told| told != length) {
                    return Err(Malformed::ContentLength);
                }
                self.length = Some(length);
                self.lengths += 1;
            }
            TRANSFER_ENCODING => {
                self.chunked = value.as_bytes().eq_ignore_ascii_case(b"chunked");
                self.codings += 1;
            }
            CONNECTION => self.connection = true,
            _ => {}
        }
        Ok(())
    }

    /// How the body ends. A length that does not count is taken away, so that nothing further on
    /// goes by it.
    fn body(&self, response: &mut Response<()>, method: &Method) -> Result<Decoder, Malformed> {
        let chunked = self.is_chunked(response.version())?;
        let headers = response.headers_mut();
        match self.length {
            Some(_) if chunked => drop(headers.remove(CONTENT_LENGTH)),
            Some(length) if self.lengths > 1 => {
                headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
            }
            _ => {}
        }
        let status = response.status();
        let none = method == Method::HEAD
            || status.is_informational()
            || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        Ok(match self.length {
            // What follows is not HTTP any more.
            _ if status == StatusCode::SWITCHING_PROTOCOLS => Decoder::CloseDelimited,
            _ if none => Decoder::Length(0),
            _ if chunked => Decoder::chunked(),
            Some(length) => Decoder::Length(length),
            None => Decoder::CloseDelimited,
        })
    }

    /// No other coding was asked for, so none but chunked may come.
    fn is_chunked(&self, version: Version) -> Result<bool, Malformed> {
        match self.codings {
            0 => Ok(false),
            1 if self.chunked && version == Version::HTTP_11 => Ok(true),
            _ => Err(Malformed::TransferEncoding),
        }
    }

    /// How long the server keeps the connection open without a request, if it says so.
    fn idle_timeout(&self, response: &Response<()>) -> Option<Duration> {
        let headers = self.hop_by_hop.then(|| response.headers());
        headers.and_then(keep_alive::idle_timeout)
    }

    /// Whether the server keeps the connection open (RFC 9112 section 9.3).
    fn keep_alive(&self, response: &Response<()>) -> bool {
        let says =
            |token| self.connection && hop_by_hop::has_token(response.headers(), CONNECTION, token);
        // Two ways to tell the body's end are one too many to trust what follows (section 6.3).
        let is_doubtful = self.codings > 0 && self.lengths > 0;
        match response.version() {
            _ if is_doubtful => false,
            Version::HTTP_11 => !says("close"),
            _ => says("keep-alive") && !says("close"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(text: &str, method: &Method) -> Result<Option<ResponseHead>, Malformed> {
        ResponseHead::take(&mut BytesMut::from(text), method, &mut HeaderMap::new())
    }

    fn got(fields: &str) -> ResponseHead {
        let text = format!("HTTP/1.1 200 OK\r\n{fields}\r\n");
        take(&text, &Method::GET).unwrap().unwrap()
    }

    #[test]
    fn a_head_is_taken_when_it_is_there_as_a_whole_and_nothing_after_it() {
        let text = "HTTP/1.1 404 Not Here\r\nA: 1\r\nb: 2\r\nA: 3\r\n\r\n";
        for length in 0..text.len() {
            assert!(take(&text[..length], &Method::GET).unwrap().is_none());
        }
        let mut buffer = BytesMut::from(format!("{text}body").as_str());
        let head = ResponseHead::take(&mut buffer, &Method::GET, &mut HeaderMap::new())
            .unwrap()
            .unwrap();
        assert_eq!(buffer, "body");
        let response = head.response;
        assert_eq!(response.status(), 404);
        let phrase = response.extensions().get::<ReasonPhrase>().unwrap();
        assert_eq!(phrase.as_bytes(), b"Not Here");
        let fields: Vec<_> = response.headers().get_all("a").iter().collect();
        assert_eq!(fields, ["1", "3"]);
        assert_eq!(response.headers()["b"], "2");
    }

    #[test]
    fn a_head_that_never_ends_is_refused_as_soon_as_it_is_too_long() {
        let begun = |length: usize| {
            let begin = "HTTP/1.1 200 OK\r\nx: ";
            format!("{begin}{}", "x".repeat(length - begin.len()))
        };
        assert!(
            take(&begun(MAX_HEAD_BYTES), &Method::GET)
                .unwrap()
                .is_none()
        );
        let is_too_long = |taken: Result<_, Malformed>| {
            let told = taken.err().map(|error| error.to_string());
            told.as_deref() == Some("its head is longer than 256 KiB")
        };
        assert!(is_too_long(take(&begun(MAX_HEAD_BYTES + 1), &Method::GET)));
        let whole = |length: usize| begun(length - 4) + "\r\n\r\n";
        assert!(
            take(&whole(MAX_HEAD_BYTES), &Method::GET)
                .unwrap()
                .is_some()
        );
        assert!(is_too_long(take(&whole(MAX_HEAD_BYTES + 1), &Method::GET)));
    }

    /// More than 100 used to be an error of syntax.
    #[test]
    fn a_head_may_have_a_thousand_lines_and_the_status_of_a_larger_one_is_known() {
        let with = |lines: usize| {
            let lines = "set-cookie: a=1\r\n".repeat(lines);
            take(&format!("HTTP/1.1 404 X\r\n{lines}\r\n"), &Method::GET)
        };
        for lines in [1, 100, 101, 1000] {
            let head = with(lines).unwrap().unwrap();
            assert_eq!(head.response.headers().len(), lines);
        }
        let (too_many, long) = (with(1001), "x".repeat(MAX_HEAD_BYTES));
        let too_long = take(&format!("HTTP/1.1 404 X\r\nx: {long}"), &Method::GET);
        for (taken, told) in [
            (too_many, "its head has more than 1000 header lines"),
            (too_long, "its head is longer than 256 KiB"),
        ] {
            let error = taken.err().unwrap();
            assert_eq!(error.to_string(), told);
            assert!(
                matches!(error, Malformed::TooLarge { status: Some(status), .. } if status == 404)
            );
        }
    }

    /// RFC 9112 section 5.1: a proxy must remove it from a response.
    #[test]
    fn a_blank_before_a_colon_is_left_out_and_the_field_counts() {
        let head = got("content-length : 5\r\nX-Tab\t: 1\r\nx-both \t :2\r\n");
        assert!(matches!(head.body, Decoder::Length(5)));
        let lines: Vec<_> = head.response.headers().iter().collect();
        let lines = lines
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_bytes()));
        assert_eq!(
            lines.collect::<Vec<_>>(),
            [
                ("content-length", &b"5"[..]),
                ("x-tab", b"1"),
                ("x-both", b"2")
            ]
        );
        let body = |fields| format!("{:?}", got(fields).body);
        assert_eq!(body("transfer-encoding : chunked\r\n"), "Chunked(Line)");
    }

    #[test]
    fn what_a_server_says_of_idle_connections_is_known() {
        let of = |fields: &str| {
            let head = got(&format!("content-length: 0\r\n{fields}"));
            (head.keep_alive, head.idle_timeout)
        };
        assert_eq!(of(""), (true, None));
        let four = Some(Duration::from_secs(4));
        assert_eq!(of("Keep-Alive: timeout=5\r\n"), (true, four));
        assert_eq!(
            of("connection: close\r\nkeep-alive: timeout=5\r\n"),
            (false, four)
        );
        assert!(!of("keep-alive: timeout=5, max=0\r\n").0);
    }

    #[test]
    fn a_head_that_comes_in_pieces_is_looked_at_again_where_an_empty_line_may_end_it() {
        let text = b"HTTP/1.1 200 OK\r\na: 1\r\n\r\n";
        for parsed in 1..text.len() {
            for length in parsed + 1..=text.len() {
                let may_be = ResponseHead::may_be_whole(&text[..length], parsed).unwrap();
                assert_eq!(may_be, length == text.len(), "{parsed} and {length}");
            }
        }
        let feeds = b"HTTP/1.1 200 OK\na: 1\n\n";
        assert!(ResponseHead::may_be_whole(feeds, feeds.len() - 1).unwrap());
        let long = vec![b'x'; MAX_HEAD_BYTES + 1];
        assert!(ResponseHead::may_be_whole(&long, MAX_HEAD_BYTES).is_err());
    }

    #[test]
    fn a_reason_phrase_may_be_missing_or_be_no_ascii() {
        for line in [
            "HTTP/1.1 200",
            "HTTP/1.1 200 ",
            "HTTP/1.1 200 d\u{e9}j\u{e0} vu",
        ] {
            let text = format!("{line}\r\nempty:\r\n\r\n");
            let response = take(&text, &Method::GET).unwrap().unwrap().response;
            assert_eq!(response.status(), 200, "{line}");
            assert_eq!(response.headers()["empty"], "");
            assert!(response.extensions().get::<ReasonPhrase>().is_none());
        }
    }

    #[test]
    fn the_body_ends_as_the_head_says() {
        let body = |fields| format!("{:?}", got(fields).body);
        assert_eq!(body("content-length: 5\r\n"), "Length(5)");
        assert_eq!(
            body("content-length: 5\r\ncontent-length: 5\r\n"),
            "Length(5)"
        );
        assert_eq!(body("transfer-encoding: Chunked\r\n"), "Chunked(Line)");
        assert_eq!(body(""), "CloseDelimited");
    }

    #[test]
    fn what_can_have_no_body_has_none() {
        let chunked = "transfer-encoding: chunked\r\n\r\n";
        for (status, method) in [
            ("200", Method::HEAD),
            ("204", Method::GET),
            ("304", Method::GET),
        ] {
            let text = format!("HTTP/1.1 {status} X\r\n{chunked}");
            let head = take(&text, &method).unwrap().unwrap();
            assert!(head.body.is_at_end(), "{status}");
        }
    }

    #[test]
    fn a_head_that_could_be_read_in_two_ways_is_refused() {
        for fields in [
            "content-length: 1\r\ncontent-length: 2\r\n",
            "content-length: 1, 1\r\n",
            "content-length: +1\r\n",
            "content-length: \r\n",
            "content-length: 18446744073709551616\r\n",
            "transfer-encoding: gzip, chunked\r\n",
            "transfer-encoding: identity\r\n",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
            "content-length : 1\r\ncontent-length: 2\r\n",
            "content-length: 1\r\ntransfer-encoding : gzip\r\n",
            "a: 1\r\n b: folded\r\n",
            " a: 1\r\n",
            "a b: 1\r\n",
            "a \r\n: 1\r\n",
            "a\u{b}: 1\r\n",
            " : 1\r\n",
        ] {
            let text = format!("HTTP/1.1 200 OK\r\n{fields}\r\n");
            assert!(take(&text, &Method::GET).is_err(), "{fields:?}");
        }
        let old = "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        assert!(take(old, &Method::GET).is_err());
    }

    #[test]
    fn a_connection_is_used_again_where_nothing_speaks_against_it() {
        let length = "content-length: 0\r\n";
        let keep_alive = |fields: &str| got(&format!("{length}{fields}")).keep_alive;
        assert!(keep_alive(""));
        assert!(!keep_alive("connection: Close\r\n"));
        assert!(!keep_alive("transfer-encoding: chunked\r\n"), "two lengths");
        assert!(!got("").keep_alive, "the body ends with the connection");
        let old = |field| format!("HTTP/1.0 200 OK\r\n{length}{field}\r\n");
        let keep_alive = |text: String| take(&text, &Method::GET).unwrap().unwrap().keep_alive;
        assert!(!keep_alive(old("")));
        assert!(keep_alive(old("connection: keep-alive\r\n")));
    }
}
