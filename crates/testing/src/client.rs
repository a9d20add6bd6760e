//! A client of HTTP/1.1 that sends what it is told to, byte by byte, and shows what it gets as it
//! came: field lines in their order, chunks and trailers.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};

use socket2::{Domain, Socket, Type};

use crate::{PATIENCE, uninterrupted};

/// One connection, kept alive.
pub struct Client<S = TcpStream> {
    stream: BufReader<S>,
}

/// A request. `host` is added unless it is there.
#[derive(Clone, Debug)]
pub struct Request {
    method: String,
    target: String,
    fields: Vec<(String, String)>,
    body: Vec<u8>,
}

/// A response as it came.
#[derive(Clone, Debug)]
pub struct Response {
    pub status: u16,
    /// The field lines with names as they were written.
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub trailers: Vec<(String, String)>,
}

pub fn get(target: &str) -> Request {
    request("GET", target)
}

pub fn post(target: &str, body: &str) -> Request {
    let mut request = request("POST", target);
    request.body = body.as_bytes().to_vec();
    request
}

pub fn put(target: &str, body: &str) -> Request {
    let mut request = request("PUT", target);
    request.body = body.as_bytes().to_vec();
    request
}

pub fn request(method: &str, target: &str) -> Request {
    Request {
        method: method.to_owned(),
        target: target.to_owned(),
        fields: Vec::new(),
        body: Vec::new(),
    }
}

impl Request {
    /// The same with one field line more.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.fields.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Whether it has such a field.
    pub fn has(&self, name: &str) -> bool {
        self.fields
            .iter()
            .any(|(other, _)| other.eq_ignore_ascii_case(name))
    }

    /// The request as it is sent.
    pub fn bytes(&self) -> Vec<u8> {
        let mut text = format!("{} {} HTTP/1.1\r\n", self.method, self.target);
        if !self.has("host") {
            text.push_str("host: app.example.com\r\n");
        }
        for (name, value) in &self.fields {
            write!(text, "{name}: {value}\r\n").unwrap();
        }
        if !self.body.is_empty() {
            write!(text, "content-length: {}\r\n", self.body.len()).unwrap();
        }
        text.push_str("\r\n");
        let mut bytes = text.into_bytes();
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

impl Client {
    pub fn connect(to: SocketAddr) -> Self {
        Self::try_connect(to).expect("a connection")
    }

    pub fn try_connect(to: SocketAddr) -> io::Result<Self> {
        Self::of(TcpStream::connect_timeout(&to, PATIENCE)?)
    }

    /// Connects from another of the loopback addresses.
    pub fn connect_from(source: Ipv4Addr, to: SocketAddr) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let source = SocketAddr::new(IpAddr::V4(source), 0);
        socket.bind(&source.into()).unwrap();
        socket.connect(&to.into()).unwrap();
        Self::of(socket.into()).unwrap()
    }

    fn of(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self::over(stream))
    }
}

impl<S: Read + Write> Client<S> {
    /// Speaks over a stream that is there.
    pub fn over(stream: S) -> Self {
        Self {
            stream: BufReader::new(stream),
        }
    }

    pub fn stream(&self) -> &S {
        self.stream.get_ref()
    }

    pub fn send(&mut self, request: &Request) -> Response {
        self.try_send(request).expect("a response")
    }

    pub fn try_send(&mut self, request: &Request) -> io::Result<Response> {
        self.write(&request.bytes())?;
        self.read(&request.method)
    }

    /// Sends all of these before it reads the first response.
    pub fn send_all(&mut self, requests: &[Request]) -> Vec<Response> {
        let bytes: Vec<_> = requests.iter().flat_map(Request::bytes).collect();
        self.write(&bytes).expect("a connection");
        let responses = requests.iter().map(|request| self.read(&request.method));
        responses
            .map(|response| response.expect("a response"))
            .collect()
    }

    /// Sends bytes as they are.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// Reads bytes as they are.
    pub fn read_exact(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.stream.read_exact(bytes)
    }

    /// Reads the response to a request of this method.
    pub fn read(&mut self, method: &str) -> io::Result<Response> {
        let mut response = self.read_head()?;
        if method != "HEAD" && !matches!(response.status, 204 | 304) {
            self.read_body(&mut response)?;
        }
        Ok(response)
    }

    /// Reads a response up to its body.
    pub fn read_head(&mut self) -> io::Result<Response> {
        let status_line = self.line()?;
        let mut words = status_line.split(' ');
        let status = words.nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| io::Error::other(format!("{status_line:?}")))?;
        let fields = self.fields()?;
        if status == 100 {
            return self.read_head();
        }
        Ok(Response {
            status,
            fields,
            body: Vec::new(),
            trailers: Vec::new(),
        })
    }

    fn read_body(&mut self, response: &mut Response) -> io::Result<()> {
        if response.field("transfer-encoding") == Some("chunked") {
            while let Some(chunk) = self.read_chunk()? {
                response.body.extend(chunk);
            }
            response.trailers = self.fields()?;
        } else if let Some(length) = response.field("content-length") {
            response.body = vec![0; length.parse().unwrap()];
            self.stream.read_exact(&mut response.body)?;
        } else {
            self.stream.read_to_end(&mut response.body)?;
        }
        Ok(())
    }

    /// Reads one chunk; after the last one the trailers follow.
    pub fn read_chunk(&mut self) -> io::Result<Option<Vec<u8>>> {
        let size = self.line()?;
        let size = usize::from_str_radix(&size, 16).map_err(io::Error::other)?;
        if size == 0 {
            return Ok(None);
        }
        let mut chunk = vec![0; size];
        self.stream.read_exact(&mut chunk)?;
        assert_eq!(self.line()?, "", "a chunk ends with a line end");
        Ok(Some(chunk))
    }

    /// All that comes until the other end closes the connection, in whatever way.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        let _ = self.stream.read_to_end(&mut rest);
        rest
    }

    /// Whether the other end closes the connection and sends nothing more.
    pub fn is_closed(&mut self) -> bool {
        matches!(uninterrupted(|| self.stream.read(&mut [0])), Ok(0))
    }

    fn fields(&mut self) -> io::Result<Vec<(String, String)>> {
        let mut fields = Vec::new();
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(':') else {
                return Ok(fields);
            };
            fields.push((name.to_owned(), value.trim().to_owned()));
        }
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end_matches(['\r', '\n']).to_owned())
    }
}

impl Response {
    /// The value of the first line of a field.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.lines(name).first().copied()
    }

    /// The values of all lines of a field.
    pub fn lines(&self, name: &str) -> Vec<&str> {
        self.fields
            .iter()
            .filter(|(other, _)| other.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
            .collect()
    }

    /// The names of the field lines, in their order.
    pub fn names(&self) -> Vec<&str> {
        self.fields.iter().map(|(name, _)| name.as_str()).collect()
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("a body of text")
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error} in {}", self.text()))
    }

    /// Whether this is the last response on its connection.
    pub fn closes(&self) -> bool {
        self.field("connection") == Some("close")
    }
}
