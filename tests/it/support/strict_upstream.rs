//! An upstream that reads requests by the letter of RFC 9112, and complains about any that another
//! server could read differently.

use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// A server that answers 200 to each request, and remembers what it read.
pub(crate) struct StrictUpstream {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
}

/// A request, byte by byte.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Method and target.
    pub(crate) line: Vec<u8>,
    /// Names in lower case, and values.
    pub(crate) headers: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
    /// Lines without their ends.
    pub(crate) trailers: Vec<Vec<u8>>,
    /// Why the request is not one that RFC 9112 allows a client to send.
    pub(crate) complaint: Option<String>,
}

/// The target that is answered before the request's body.
const EARLY: &[u8] = b" /early";

impl StrictUpstream {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().unwrap();
        let seen = Arc::<Mutex<Vec<Seen>>>::default();
        let all = Arc::clone(&seen);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let all = Arc::clone(&all);
                thread::spawn(move || serve(stream, &all));
            }
        });
        Self { address, seen }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The requests since it was asked the last time.
    pub(crate) fn take(&self) -> Vec<Seen> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }
}

impl Seen {
    pub(crate) fn has_header(&self, name: &[u8]) -> bool {
        self.values(name).next().is_some()
    }

    pub(crate) fn values(&self, name: &[u8]) -> impl Iterator<Item = &[u8]> {
        let lines = self.headers.iter().filter(move |(other, _)| other == name);
        lines.map(|(_, value)| value.as_slice())
    }
}

/// Serves a connection until a request is incomplete or wrong.
fn serve(stream: TcpStream, all: &Mutex<Vec<Seen>>) {
    let mut input = BufReader::new(stream.try_clone().unwrap());
    loop {
        let mut seen = Seen::default();
        let read = read_request(&mut input, &mut seen, &stream, all);
        match read {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                seen.complaint = Some(error.to_string());
                all.lock().unwrap().push(seen);
                return;
            }
            // The gateway broke off.
            Err(_) => return,
        }
    }
}

fn read_request(
    input: &mut BufReader<TcpStream>,
    seen: &mut Seen,
    output: &TcpStream,
    all: &Mutex<Vec<Seen>>,
) -> io::Result<()> {
    read_head(input, seen)?;
    let is_early = seen.line.ends_with(EARLY);
    if is_early {
        all.lock().unwrap().push(seen.clone());
        respond(output, seen)?;
    }
    read_body(input, seen)?;
    if !is_early {
        all.lock().unwrap().push(seen.clone());
        respond(output, seen)?;
    }
    Ok(())
}

fn respond(mut output: &TcpStream, seen: &Seen) -> io::Result<()> {
    let body = if seen.line.starts_with(b"HEAD ") {
        ""
    } else {
        "ok"
    };
    let response = format!("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{body}");
    output.write_all(response.as_bytes())
}

fn read_head(input: &mut impl BufRead, seen: &mut Seen) -> io::Result<()> {
    let line = read_line(input)?;
    let words: Vec<_> = line.split(|byte| *byte == b' ').collect();
    let [method, target, b"HTTP/1.1"] = words[..] else {
        return Err(complaint("a request line", &line));
    };
    if !is_token(method) || target.is_empty() || !target.iter().all(u8::is_ascii_graphic) {
        return Err(complaint("a method or a target", &line));
    }
    seen.line = [method, b" ", target].concat();
    loop {
        let line = read_line(input)?;
        if line.is_empty() {
            break;
        }
        seen.headers.push(header(&line)?);
    }
    if seen.values(b"host").count() != 1 {
        return Err(complaint("not one Host", &seen.line));
    }
    Ok(())
}

fn read_body(input: &mut impl BufRead, seen: &mut Seen) -> io::Result<()> {
    let lengths: Vec<_> = seen.values(b"content-length").collect();
    let codings: Vec<_> = seen.values(b"transfer-encoding").collect();
    match (&lengths[..], &codings[..]) {
        ([], []) => Ok(()),
        ([length], []) => {
            let length = number(length, 10)?;
            seen.body = read_exactly(input, length)?;
            Ok(())
        }
        ([], [b"chunked"]) => read_chunks(input, seen),
        _ => Err(complaint("not one framing", &seen.line)),
    }
}

fn read_chunks(input: &mut impl BufRead, seen: &mut Seen) -> io::Result<()> {
    loop {
        let size = number(&read_line(input)?, 16)?;
        if size == 0 {
            break;
        }
        seen.body.extend(read_exactly(input, size)?);
        let end = read_line(input)?;
        if !end.is_empty() {
            return Err(complaint("data behind a chunk", &end));
        }
    }
    loop {
        let line = read_line(input)?;
        if line.is_empty() {
            return Ok(());
        }
        header(&line)?;
        seen.trailers.push(line);
    }
}

/// A line without its end, which is CR LF and nothing else.
fn read_line(input: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    if input.read_until(b'\n', &mut line)? == 0 {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    let Some(line) = line.strip_suffix(b"\r\n") else {
        return Err(complaint("the end of a line", &line));
    };
    Ok(line.to_vec())
}

fn read_exactly(input: &mut impl BufRead, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn header(line: &[u8]) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let colon = line.iter().position(|byte| *byte == b':');
    let (name, value) = line.split_at(colon.unwrap_or_default());
    let value = value.strip_prefix(b": ").unwrap_or_default();
    let is_allowed = |byte: &u8| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f);
    if !is_token(name) || !value.iter().all(is_allowed) {
        return Err(complaint("a header", line));
    }
    Ok((name.to_ascii_lowercase(), value.to_vec()))
}

fn is_token(text: &[u8]) -> bool {
    let is_allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !text.is_empty() && text.iter().all(is_allowed)
}

fn number(text: &[u8], radix: u32) -> io::Result<usize> {
    let digits = std::str::from_utf8(text).ok();
    let digits = digits.filter(|digits| digits.chars().all(|digit| digit.is_digit(radix)));
    digits
        .and_then(|digits| usize::from_str_radix(digits, radix).ok())
        .ok_or_else(|| complaint("a length", text))
}

fn complaint(what: &str, bytes: &[u8]) -> io::Error {
    let text = format!("{what}: {}", bytes.escape_ascii());
    io::Error::new(ErrorKind::InvalidData, text)
}
