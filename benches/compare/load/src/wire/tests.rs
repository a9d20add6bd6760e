//! Against a server in the same process.

use std::fs;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc;
use std::thread;

use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection};

use super::*;

/// A folder with a certificate and its key.
pub struct Own(PathBuf);

impl Own {
    pub fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("weir-load-{}-{name}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let own = Self(folder);
        let words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=load \
            -addext subjectAltName=DNS:localhost -addext basicConstraints=critical,CA:FALSE";
        let made = Command::new("openssl")
            .args(words.split_whitespace())
            .arg("-out")
            .arg(own.certificate())
            .arg("-keyout")
            .arg(own.key())
            .output()
            .unwrap();
        assert!(made.status.success());
        own
    }

    pub fn certificate(&self) -> PathBuf {
        self.0.join("certificate.pem")
    }

    fn key(&self) -> PathBuf {
        self.0.join("key.pem")
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Of a server that shows this certificate.
pub fn server_config(own: &Own) -> ServerConfig {
    let chain = vec![CertificateDer::from_pem_file(own.certificate()).unwrap()];
    let key = PrivateKeyDer::from_pem_file(own.key()).unwrap();
    ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap()
}

/// The server's side of the next connection.
fn accept(listener: &TcpListener, own: &Own) -> StreamOwned<ServerConnection, TcpStream> {
    let session = ServerConnection::new(Arc::new(server_config(own))).unwrap();
    StreamOwned::new(session, listener.accept().unwrap().0)
}

fn dialler(listener: &TcpListener, trusted: &Own) -> Dialler {
    Dialler {
        target: listener.local_addr().unwrap(),
        tls: vec![Arc::new(trusting(&trusted.certificate()).unwrap())],
    }
}

#[test]
fn what_a_full_socket_does_not_take_is_held_and_flushed_later() {
    let own = Own::new("held");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let dialler = dialler(&listener, &own);
    let (begin, begun) = mpsc::channel();
    let server = thread::spawn(move || {
        let mut stream = accept(&listener, &own);
        stream.conn.complete_io(&mut stream.sock).unwrap();
        let mut bytes = vec![0; begun.recv().unwrap()];
        stream.read_exact(&mut bytes).unwrap();
        bytes.iter().all(|byte| *byte == b'x')
    });
    let mut wire = dialler.dial(0).unwrap();
    wire.set_nonblocking().unwrap();
    let mut sent = 0;
    let full = loop {
        match wire.write(&[b'x'; 4096]) {
            Ok(bytes) => sent += bytes,
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
    assert!(wire.is_holding());
    begin.send(sent).unwrap();
    while let Err(error) = wire.flush() {
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        thread::yield_now();
    }
    assert!(!wire.is_holding());
    assert!(server.join().unwrap());
}

#[test]
fn another_certificate_than_the_one_trusted_is_refused() {
    let (own, other) = (Own::new("own"), Own::new("other"));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let dialler = dialler(&listener, &own);
    let server = thread::spawn(move || {
        let mut stream = accept(&listener, &other);
        stream.conn.complete_io(&mut stream.sock).is_err()
    });
    let refusal = dialler.dial(0).err().unwrap();
    assert_eq!(refusal.kind(), ErrorKind::InvalidData);
    assert!(server.join().unwrap());
}
