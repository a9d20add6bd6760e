//! Stands between a gateway and a Redis, and writes down what the gateway writes.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;

use tempfile::TempDir;

use super::RedisServer;

/// A socket that passes everything on to a Redis.
pub(crate) struct Tap {
    folder: TempDir,
    writes: Arc<Mutex<Vec<String>>>,
}

impl Tap {
    pub(crate) fn before(redis: &RedisServer) -> Self {
        let folder = TempDir::with_prefix("weir-tap-").expect("a temporary folder");
        let listener = UnixListener::bind(folder.path().join("tap.sock")).expect("a socket");
        let writes = Arc::<Mutex<Vec<String>>>::default();
        let (seen, to) = (Arc::clone(&writes), redis.socket());
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let redis = UnixStream::connect(&to).expect("a connection to Redis");
                let (back, forth) = (redis.try_clone().unwrap(), stream.try_clone().unwrap());
                let seen = Arc::clone(&seen);
                thread::spawn(move || pass(stream, redis, |text| seen.lock().unwrap().push(text)));
                thread::spawn(move || pass(back, forth, drop));
            }
        });
        Self { folder, writes }
    }

    pub(crate) fn url(&self) -> String {
        let socket: PathBuf = self.folder.path().join("tap.sock");
        format!("unix://{}", socket.display())
    }

    /// What was written so far that contains `word`, a text for each write.
    pub(crate) fn writes_with(&self, word: &str) -> Vec<String> {
        let mut writes = self.writes.lock().unwrap().clone();
        writes.retain(|text| text.contains(word));
        writes
    }
}

fn pass(mut from: UnixStream, mut to: UnixStream, mut see: impl FnMut(String)) {
    let mut bytes = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut bytes) {
        see(String::from_utf8_lossy(&bytes[..length]).into_owned());
        if to.write_all(&bytes[..length]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
