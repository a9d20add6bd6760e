//! As much of HTTP/1.1 as a load needs: one request at a time, responses with a Content-Length.

use std::rc::Rc;
use std::time::Instant;

use crate::options::Options;
use crate::response::Response;

pub struct Http1 {
    request: Rc<[u8]>,
    began: Option<Instant>,
    head: Vec<u8>,
    /// Of the response whose head was read.
    status: u16,
    /// Bytes of the body that are still to come, once the head was read.
    left: Option<u64>,
}

/// What every request of a load looks like.
pub fn request(options: &Options) -> Rc<[u8]> {
    let (method, length) = match options.upload {
        0 => ("GET", String::new()),
        bytes => ("POST", format!("content-length: {bytes}\r\n")),
    };
    let head = format!(
        "{method} {} HTTP/1.1\r\nhost: {}\r\nuser-agent: weir-load\r\naccept: */*\r\n{length}\r\n",
        options.path, options.target,
    );
    let mut request = head.into_bytes();
    request.resize(request.len() + options.upload, b'x');
    request.into()
}

impl Http1 {
    pub fn new(request: Rc<[u8]>) -> Self {
        Self {
            request,
            began: None,
            head: Vec::new(),
            status: 0,
            left: None,
        }
    }

    pub fn in_flight(&self) -> usize {
        usize::from(self.began.is_some())
    }

    pub fn send(&mut self, began: Instant, out: &mut Vec<u8>) {
        self.began = Some(began);
        out.extend_from_slice(&self.request);
    }

    pub fn receive(&mut self, bytes: &[u8], responses: &mut Vec<Response>) -> Result<(), String> {
        let body = match self.left {
            Some(_) => bytes.len(),
            None => self.read_head(bytes)?,
        };
        let Some(left) = self.left else { return Ok(()) };
        let left = left
            .checked_sub(body as u64)
            .ok_or("more bytes than the response has")?;
        self.left = Some(left);
        if left == 0 {
            self.left = None;
            let began = self.began.take().ok_or("a response to no request")?;
            responses.push(Response {
                began,
                status: self.status,
            });
        }
        Ok(())
    }

    /// How many of these bytes belong to the body.
    fn read_head(&mut self, bytes: &[u8]) -> Result<usize, String> {
        self.head.extend_from_slice(bytes);
        let Some(at) = self.head.windows(4).position(|four| four == b"\r\n\r\n") else {
            return Ok(0);
        };
        let body = self.head.len() - at - 4;
        let text = String::from_utf8_lossy(&self.head[..at]);
        let parsed = parse(&text).ok_or_else(|| format!("a response not understood: {text}"))?;
        (self.status, self.left) = (parsed.0, Some(parsed.1));
        self.head.clear();
        Ok(body)
    }
}

/// Status and length of the body.
fn parse(head: &str) -> Option<(u16, u64)> {
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let length = lines
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))?;
    Some((status, length.1.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_read_whole_and_in_pieces() {
        let text = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 5\r\n\r\nhello";
        for size in [1, 7, 30, text.len()] {
            let mut http = Http1::new(Rc::from(*b"GET"));
            http.send(Instant::now(), &mut Vec::new());
            let mut responses = Vec::new();
            for piece in text.chunks(size) {
                http.receive(piece, &mut responses).unwrap();
            }
            assert_eq!(responses.len(), 1);
            assert_eq!(responses[0].status, 429);
            assert_eq!(http.in_flight(), 0);
        }
    }

    #[test]
    fn a_response_without_a_length_is_refused() {
        let mut http = Http1::new(Rc::from(*b"GET"));
        let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        assert!(http.receive(head, &mut Vec::new()).is_err());
    }
}
