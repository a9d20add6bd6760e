//! As much of HTTP/2 as a load needs: GET without a body or calls of gRPC, prior knowledge, generous
//! windows.

use std::borrow::Cow;
use std::rc::Rc;
use std::time::Instant;

use loona_hpack::Decoder;

use crate::options::Options;
use crate::response::Response;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEAD: usize = 9;
const END_STREAM: u8 = 0x1;
const ACK: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// Bytes of bodies after which the connection's window is opened again.
const REFILL: u32 = 1 << 24;
const MAX_WINDOW: u32 = (1 << 31) - 1;
const INITIAL_WINDOW: u32 = 65_535;

pub struct Http2 {
    request: Rc<Request>,
    next_stream: u32,
    streams: Vec<Stream>,
    pending: Vec<u8>,
    received: u32,
    /// None where the expected status is in HPACK's static table: other header fields need no look.
    decoder: Option<Decoder<'static>>,
}

/// What every request consists of.
pub struct Request {
    /// The header block, without dynamic table, so that it is always the same.
    block: Vec<u8>,
    /// The body; none for GET. It is so short that all of those in flight fit into a server's window.
    body: Option<Vec<u8>>,
    /// The status of its response.
    expect: u16,
}

struct Stream {
    id: u32,
    began: Instant,
    status: u16,
}

struct Frame<'a> {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: &'a [u8],
}

impl Request {
    pub fn new(options: &Options) -> Rc<Self> {
        let method = if options.grpc.is_some() { 0x83 } else { 0x82 };
        let mut block = vec![method, 0x86]; // :method POST or GET, :scheme http
        literal(&mut block, &[0x04], &options.path); // :path
        literal(&mut block, &[0x01], &options.target.to_string()); // :authority
        literal(&mut block, &[0x0f, 0x2b], "weir-load"); // user-agent
        if options.grpc.is_some() {
            literal(&mut block, &[0x0f, 0x10], "application/grpc"); // content-type
            literal(&mut block, &[0x00, 2, b't', b'e'], "trailers");
        }
        let body = options.grpc.as_ref().map(|message| {
            let length = (message.len() as u32).to_be_bytes();
            [&[0], &length[..], message].concat()
        });
        let expect = options.expect;
        Rc::new(Self {
            block,
            body,
            expect,
        })
    }
}

fn literal(block: &mut Vec<u8>, name: &[u8], value: &str) {
    assert!(value.len() < 127, "too long for a length of one byte");
    block.extend_from_slice(name);
    block.push(value.len() as u8);
    block.extend_from_slice(value.as_bytes());
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

impl Http2 {
    pub fn new(request: Rc<Request>, out: &mut Vec<u8>) -> Self {
        out.extend_from_slice(PREFACE);
        let window = MAX_WINDOW.to_be_bytes();
        // No push, and windows of streams that never fill.
        let settings = [&[0, 2, 0, 0, 0, 0, 0, 4][..], &window].concat();
        frame(out, 4, 0, 0, &settings);
        frame(out, 8, 0, 0, &(MAX_WINDOW - INITIAL_WINDOW).to_be_bytes());
        let is_static = STATIC_STATUSES.contains(&request.expect);
        Self {
            request,
            next_stream: 1,
            streams: Vec::new(),
            pending: Vec::new(),
            received: 0,
            decoder: (!is_static).then(Decoder::new),
        }
    }

    pub fn in_flight(&self) -> usize {
        self.streams.len()
    }

    pub fn send(&mut self, began: Instant, out: &mut Vec<u8>) {
        let id = self.next_stream;
        self.next_stream += 2;
        let stream = Stream {
            id,
            began,
            status: 0,
        };
        self.streams.push(stream);
        let Request { block, body, .. } = &*self.request;
        let end = if body.is_some() { 0 } else { END_STREAM };
        frame(out, 1, end | END_HEADERS, id, block);
        if let Some(body) = body {
            frame(out, 0, END_STREAM, id, body);
        }
    }

    pub fn receive(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
        responses: &mut Vec<Response>,
    ) -> Result<(), String> {
        let mut pending = std::mem::take(&mut self.pending);
        pending.extend_from_slice(bytes);
        let mut rest = pending.as_slice();
        while let Some((frame, after)) = split(rest) {
            self.take(&frame, out, responses)?;
            rest = after;
        }
        let used = pending.len() - rest.len();
        pending.drain(..used);
        self.pending = pending;
        Ok(())
    }

    fn take(
        &mut self,
        frame: &Frame<'_>,
        out: &mut Vec<u8>,
        responses: &mut Vec<Response>,
    ) -> Result<(), String> {
        match frame.kind {
            0 => self.data(frame, out, responses),
            1 => self.headers(frame, responses)?,
            3 => self.end(frame.stream, responses),
            4 if frame.flags & ACK == 0 => self::frame(out, 4, ACK, 0, &[]),
            6 if frame.flags & ACK == 0 => self::frame(out, 6, ACK, 0, frame.payload),
            7 => return Err("GOAWAY".into()),
            _ => {}
        }
        Ok(())
    }

    fn data(&mut self, frame: &Frame<'_>, out: &mut Vec<u8>, responses: &mut Vec<Response>) {
        self.received += frame.payload.len() as u32;
        if self.received >= REFILL {
            self::frame(out, 8, 0, 0, &self.received.to_be_bytes());
            self.received = 0;
        }
        if frame.flags & END_STREAM != 0 {
            self.end(frame.stream, responses);
        }
    }

    fn headers(&mut self, frame: &Frame<'_>, responses: &mut Vec<Response>) -> Result<(), String> {
        if frame.flags & END_HEADERS == 0 {
            return Err("header fields in several frames".to_owned());
        }
        let (prefix, padding) = match frame.payload.first() {
            Some(padding) if frame.flags & PADDED != 0 => (1, usize::from(*padding)),
            _ => (0, 0),
        };
        let priority = if frame.flags & PRIORITY != 0 { 5 } else { 0 };
        let end = frame.payload.len().saturating_sub(padding);
        let block = frame.payload.get(prefix + priority..end).unwrap_or(&[]);
        let stream = self.streams.iter_mut().find(|own| own.id == frame.stream);
        let stream = stream.ok_or("a response to no request")?;
        // Trailers, too, may change the dynamic table.
        let status = match &mut self.decoder {
            Some(decoder) => decoded_status(decoder, block)?,
            None => static_status(block),
        };
        // They come after the status.
        if stream.status == 0 {
            stream.status = status.unwrap_or(OTHER);
        }
        if frame.flags & END_STREAM != 0 {
            self.end(frame.stream, responses);
        }
        Ok(())
    }

    fn end(&mut self, id: u32, responses: &mut Vec<Response>) {
        if let Some(at) = self.streams.iter().position(|stream| stream.id == id) {
            let Stream { began, status, .. } = self.streams.swap_remove(at);
            responses.push(Response { began, status });
        }
    }
}

fn split(bytes: &[u8]) -> Option<(Frame<'_>, &[u8])> {
    let (head, rest) = bytes.split_at_checked(FRAME_HEAD)?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let (payload, rest) = rest.split_at_checked(length as usize)?;
    let frame = Frame {
        kind: head[3],
        flags: head[4],
        stream: u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]),
        payload,
    };
    Some((frame, rest))
}

/// The statuses in HPACK's static table, from its entry 8 on.
const STATIC_STATUSES: [u16; 7] = [200, 204, 206, 304, 400, 404, 500];

/// Stands for any status that is not looked up.
const OTHER: u16 = 1;

/// The status, which is always the first field, if it is in HPACK's static table.
fn static_status(block: &[u8]) -> Option<u16> {
    // An update of the dynamic table's size may stand before it.
    let first = block.iter().find(|byte| *byte & 0xe0 != 0x20)?;
    let place = first.checked_sub(0x88)?;
    STATIC_STATUSES.get(usize::from(place)).copied()
}

/// The status of a block, which has to be decoded like all before it on the connection.
fn decoded_status(decoder: &mut Decoder<'_>, block: &[u8]) -> Result<Option<u16>, String> {
    let mut status = None;
    let field = |name: Cow<'_, [u8]>, value: Cow<'_, [u8]>| {
        if *name == *b":status" {
            status = String::from_utf8_lossy(&value).parse().ok();
        }
    };
    let decoded = decoder.decode_with_cb(block, field);
    decoded.map_err(|error| format!("an invalid header block: {error:?}"))?;
    Ok(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_read_from_the_static_table() {
        assert_eq!(static_status(&[0x88, 1, 2]), Some(200));
        assert_eq!(static_status(&[0x20, 0x8e]), Some(500));
        assert_eq!(static_status(b"\x48\x03429"), None);
        assert_eq!(static_status(&[]), None);
    }

    #[test]
    fn no_status_that_a_server_has_indexed_is_taken_for_another() {
        let mut decoder = Decoder::new();
        // By Huffman's code into the dynamic table, with a field behind it, and from there.
        let first = b"\x48\x83\x68\x4f\xff\x40\x01a\x01b";
        for block in [&first[..], b"\xbf\xbe", b"\xbf"] {
            assert_eq!(decoded_status(&mut decoder, block), Ok(Some(429)));
        }
        assert_eq!(decoded_status(&mut decoder, b"\xbe"), Ok(None));
        assert!(decoded_status(&mut decoder, b"\xc5").is_err());
    }

    #[test]
    fn a_response_is_read_whole_and_in_pieces() {
        let mut text = Vec::new();
        frame(&mut text, 4, 0, 0, &[]);
        frame(&mut text, 1, END_HEADERS, 1, &[0x88]);
        frame(&mut text, 0, END_STREAM, 1, b"hello");
        for size in [1, 5, text.len()] {
            let request = Request {
                block: Vec::new(),
                body: None,
                expect: 200,
            };
            let mut http = Http2::new(Rc::new(request), &mut Vec::new());
            http.send(Instant::now(), &mut Vec::new());
            let (mut out, mut responses) = (Vec::new(), Vec::new());
            for piece in text.chunks(size) {
                http.receive(piece, &mut out, &mut responses).unwrap();
            }
            assert_eq!((responses.len(), responses[0].status), (1, 200));
            assert_eq!(out.len(), FRAME_HEAD, "settings are acknowledged");
        }
    }

    #[test]
    fn a_call_of_grpc_is_a_post_with_its_message_behind_a_prefix() {
        let words = "--target 127.0.0.1:80 --http2 1 --path /call --grpc 0a00";
        let options = Options::parse(words.split_whitespace().map(String::from)).unwrap();
        let mut http = Http2::new(Request::new(&options), &mut Vec::new());
        let mut out = Vec::new();
        http.send(Instant::now(), &mut out);
        let (head, rest) = split(&out).unwrap();
        assert_eq!((head.kind, head.flags), (1, END_HEADERS));
        assert_eq!(head.payload[0], 0x83);
        let (data, rest) = split(rest).unwrap();
        assert_eq!((data.kind, data.flags), (0, END_STREAM));
        assert_eq!(data.payload, [0, 0, 0, 0, 2, 0x0a, 0]);
        assert_eq!(rest, []);
    }
}
