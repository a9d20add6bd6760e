//! Stands between a gateway and a Redis: writes down what the gateway writes, and sets the clock that
//! Redis tells it.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use tempfile::TempDir;

use super::RedisServer;

/// A socket that passes everything on to a Redis.
pub(crate) struct Tap {
    folder: TempDir,
    writes: Arc<Mutex<Vec<String>>>,
    /// By how many seconds Redis's clock is set forward.
    ahead: Arc<AtomicI64>,
}

impl Tap {
    pub(crate) fn before(redis: &RedisServer) -> Self {
        let folder = TempDir::with_prefix("weir-tap-").expect("a temporary folder");
        let listener = UnixListener::bind(folder.path().join("tap.sock")).expect("a socket");
        let writes = Arc::<Mutex<Vec<String>>>::default();
        let ahead = Arc::<AtomicI64>::default();
        let (seen, shift, to) = (Arc::clone(&writes), Arc::clone(&ahead), redis.socket());
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let redis = UnixStream::connect(&to).expect("a connection to Redis");
                let (back, forth) = (redis.try_clone().unwrap(), stream.try_clone().unwrap());
                let (seen, shift) = (Arc::clone(&seen), Arc::clone(&shift));
                thread::spawn(move || {
                    pass(stream, redis, |bytes| {
                        let text = String::from_utf8_lossy(bytes).into_owned();
                        seen.lock().unwrap().push(text);
                    });
                });
                thread::spawn(move || {
                    pass(back, forth, |bytes| {
                        set_forward(bytes, shift.load(Ordering::SeqCst));
                    });
                });
            }
        });
        Self {
            folder,
            writes,
            ahead,
        }
    }

    pub(crate) fn url(&self) -> String {
        let socket: PathBuf = self.folder.path().join("tap.sock");
        format!("unix://{}", socket.display())
    }

    /// Sets Redis's clock so many seconds ahead of the machine's, or behind.
    pub(crate) fn set_clock_ahead_by(&self, seconds: i64) {
        self.ahead.store(seconds, Ordering::SeqCst);
    }

    /// What was written so far that contains `word`, a text for each write.
    pub(crate) fn writes_with(&self, word: &str) -> Vec<String> {
        let mut writes = self.writes.lock().unwrap().clone();
        writes.retain(|text| text.contains(word));
        writes
    }

    /// The writes that decide by buckets, without the commands by which each connection tries what
    /// Redis carries out: the last of them may be in one write with the first decision.
    pub(crate) fn decisions(&self) -> Vec<String> {
        let without_trials = |text: &String| {
            let commands = text.split("\r\n*");
            let kept = commands.filter(|command| !command.contains("weir:commands"));
            kept.collect::<Vec<_>>().join("\r\n*")
        };
        let mut writes: Vec<_> = self.writes_with("").iter().map(without_trials).collect();
        writes.retain(|text| text.contains("BITFIELD"));
        writes
    }
}

fn pass(mut from: UnixStream, mut to: UnixStream, mut see: impl FnMut(&mut [u8])) {
    let mut bytes = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut bytes) {
        see(&mut bytes[..length]);
        if to.write_all(&bytes[..length]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// Moves the seconds in a reply to `TIME`. They have ten digits until the year 2286, and nothing else
/// that a gateway asks is answered like this.
fn set_forward(replies: &mut [u8], by: i64) {
    const START: &[u8] = b"*2\r\n$10\r\n";
    let Some(at) = replies.windows(START.len()).position(|here| here == START) else {
        return;
    };
    let digits = &mut replies[at + START.len()..][..10];
    let seconds: i64 = std::str::from_utf8(digits).unwrap().parse().unwrap();
    digits.copy_from_slice((seconds + by).to_string().as_bytes());
}
