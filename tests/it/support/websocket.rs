//! An app that switches to another protocol.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

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
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(char::from(byte[0]));
    }
    let switch = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\n\
                  upgrade: websocket\r\nsec-websocket-accept: xyz\r\n\r\n";
    stream.write_all(switch.as_bytes()).unwrap();
    let mut bytes = [0; 4096];
    // A session that ends without saying so is an error.
    while let Ok(read @ 1..) = stream.read(&mut bytes) {
        stream.write_all(&bytes[..read]).unwrap();
        stream.flush().unwrap();
    }
    head
}
