//! One connection to the proxy.

use std::io::{self, ErrorKind, Read, Write};
use std::rc::Rc;
use std::time::Instant;

use crate::http1::{self, Http1};
use crate::http2::{self, Http2};
use crate::options::Options;
use crate::response::Response;
use crate::wire::{Dialler, Wire};

/// Idle connections that are opened at once: fewer than a backlog holds.
const BATCH: usize = 64;

/// What every request looks like, shared by all links.
pub enum Pattern {
    Http1(Rc<[u8]>),
    Http2(Rc<http2::Request>),
}

impl Pattern {
    pub fn new(options: &Options) -> Self {
        match options.streams {
            0 => Self::Http1(http1::request(options)),
            _ => Self::Http2(http2::Request::new(options)),
        }
    }
}

enum Protocol {
    Http1(Http1),
    Http2(Http2),
}

pub struct Link {
    pub wire: Wire,
    protocol: Protocol,
    out: Vec<u8>,
    written: usize,
    /// Whether a request was sent.
    pub is_used: bool,
}

impl Link {
    pub fn new(wire: Wire, pattern: &Pattern) -> io::Result<Self> {
        wire.set_nonblocking()?;
        let mut out = Vec::new();
        let protocol = match pattern {
            Pattern::Http1(request) => Protocol::Http1(Http1::new(Rc::clone(request))),
            Pattern::Http2(request) => Protocol::Http2(Http2::new(Rc::clone(request), &mut out)),
        };
        Ok(Self {
            wire,
            protocol,
            out,
            written: 0,
            is_used: false,
        })
    }

    pub fn in_flight(&self) -> usize {
        match &self.protocol {
            Protocol::Http1(http) => http.in_flight(),
            Protocol::Http2(http) => http.in_flight(),
        }
    }

    pub fn send(&mut self, began: Instant) {
        self.is_used = true;
        match &mut self.protocol {
            Protocol::Http1(http) => http.send(began, &mut self.out),
            Protocol::Http2(http) => http.send(began, &mut self.out),
        }
    }

    /// Whether there is something that the socket did not take yet. During a handshake that is
    /// the handshake's alone: the request waits for the server's answer.
    pub fn is_blocked(&self) -> bool {
        if self.wire.is_handshaking() {
            return self.wire.is_holding();
        }
        self.written < self.out.len() || self.wire.is_holding()
    }

    pub fn flush(&mut self) -> io::Result<()> {
        match self.write_out() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            written => written,
        }
    }

    fn write_out(&mut self) -> io::Result<()> {
        while self.written < self.out.len() {
            self.written += self.wire.write(&self.out[self.written..])?;
        }
        self.out.clear();
        self.written = 0;
        self.wire.flush()
    }

    pub fn receive(&mut self, buffer: &mut [u8], responses: &mut Vec<Response>) -> io::Result<()> {
        let bytes = match self.wire.read(buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => &buffer[..bytes],
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        let read = match &mut self.protocol {
            Protocol::Http1(http) => http.receive(bytes, responses),
            Protocol::Http2(http) => http.receive(bytes, &mut self.out, responses),
        };
        read.map_err(io::Error::other)
    }
}

/// Opens the connections that stay idle, after one request on each.
pub fn open_idle(options: &Options, dialler: &Dialler) -> io::Result<Vec<Wire>> {
    let request = http1::request(options);
    let mut idle = Vec::with_capacity(options.idle);
    while idle.len() < options.idle {
        let from = idle.len();
        for _ in 0..BATCH.min(options.idle - from) {
            idle.push(dialler.dial(0)?);
        }
        exchange(&mut idle[from..], &request)?;
    }
    Ok(idle)
}

fn exchange(wires: &mut [Wire], request: &Rc<[u8]>) -> io::Result<()> {
    for wire in &mut *wires {
        wire.write_all(request)?;
        wire.flush()?;
    }
    let mut buffer = vec![0; 4096];
    for wire in wires {
        let mut http = Http1::new(Rc::clone(request));
        http.send(Instant::now(), &mut Vec::new());
        while http.in_flight() > 0 {
            let bytes = wire.read(&mut buffer)?;
            if bytes == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            http.receive(&buffer[..bytes], &mut Vec::new())
                .map_err(io::Error::other)?;
        }
    }
    Ok(())
}
