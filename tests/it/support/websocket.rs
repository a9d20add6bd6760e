//! An app that switches to another protocol.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread::{self, JoinHandle};

/// Takes one request, switches protocols, and sends back what it gets until there is no more.
pub(crate) struct WebSocket {
    address: SocketAddr,
    served: JoinHandle<String>,
}

impl WebSocket {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let served = thread::spawn(move || serve(&listener));
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

fn serve(listener: &TcpListener) -> String {
    let (mut stream, _) = listener.accept().unwrap();
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(char::from(byte[0]));
    }
    let switch = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\n\
                  upgrade: websocket\r\nsec-websocket-accept: xyz\r\n\r\n";
    stream.write_all(switch.as_bytes()).unwrap();
    io::copy(&mut stream.try_clone().unwrap(), &mut stream).unwrap();
    head
}
