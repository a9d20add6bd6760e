//! An app that switches to another protocol.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// Takes one request, switches protocols, and sends back what it gets until there is no more.
pub(crate) struct WebSocket {
    address: SocketAddr,
    served: JoinHandle<String>,
}

impl WebSocket {
    pub(crate) fn start() -> Self {
        Self::serving(serve)
    }

    /// The same over TLS.
    pub(crate) fn start_tls(config: Arc<ServerConfig>) -> Self {
        Self::serving(move |stream| {
            let session = ServerConnection::new(config).unwrap();
            serve(StreamOwned::new(session, stream))
        })
    }

    /// Answers the request with this head, and then does the same.
    pub(crate) fn answering(head: &'static str) -> Self {
        Self::serving(move |mut stream| {
            let request = read_head(&mut stream);
            stream.write_all(head.as_bytes()).unwrap();
            echo(stream);
            request
        })
    }

    /// Switches protocols, sends this, waits for an answer, and resets the connection.
    pub(crate) fn resetting_after(bytes: &'static [u8]) -> Self {
        Self::serving(move |mut stream| {
            let head = read_head(&mut stream);
            stream.write_all(switch(&head).as_bytes()).unwrap();
            stream.write_all(bytes).unwrap();
            // What is left unread when a socket is closed makes a reset of it.
            stream.peek(&mut [0]).unwrap();
            head
        })
    }

    fn serving(serve: impl FnOnce(TcpStream) -> String + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let served = thread::spawn(move || serve(listener.accept().unwrap().0));
        Self { address, served }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits for the end of the tunnel, and returns the head of the request.
    pub(crate) fn ended(self) -> String {
        self.served.join().unwrap()
    }
}

fn serve(mut stream: impl Read + Write) -> String {
    let head = read_head(&mut stream);
    stream.write_all(switch(&head).as_bytes()).unwrap();
    echo(stream);
    head
}

fn read_head(stream: &mut impl Read) -> String {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(char::from(byte[0]));
    }
    head
}

/// The head of the response to a request with this head (RFC 6455, section 4.2.2).
fn switch(head: &str) -> String {
    let key = |line: &str| Some(line.strip_prefix("sec-websocket-key: ")?.to_owned());
    let key = head.lines().find_map(key).unwrap_or_default();
    let key = format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    let accept = BASE64_STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, key.as_bytes()));
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-accept: {accept}\r\n\r\n"
    )
}

/// Sends back what it gets until there is no more.
fn echo(mut stream: impl Read + Write) {
    let mut bytes = [0; 4096];
    // A session that ends without saying so is an error.
    while let Ok(read @ 1..) = stream.read(&mut bytes) {
        stream.write_all(&bytes[..read]).unwrap();
        stream.flush().unwrap();
    }
}
