//! Weir's own commands, as its store sends them: read off a connection to the server.

use std::io::{self, Read, Write};
use std::num::NonZeroU64;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Builder;
use weir::limit::{Batch, Quota, Transaction};
use weir::store::{Redis, RedisSettings, Store, Unobserved};
use weir::time::{Clock, SystemClock};

use weir_testing::RedisServer;

/// What Weir sends to decide about each key: the first time, with the expiry, and later, when the
/// bucket's note tells that it lasts.
#[derive(Default)]
pub(crate) struct Recorded {
    pub(crate) first: Vec<Vec<u8>>,
    pub(crate) later: Vec<Vec<u8>>,
}

/// Lets Weir's store decide twice about each key, through a connection that is listened to.
pub(crate) fn record(server: &RedisServer, quota: Quota, keys: &[String]) -> Recorded {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recorder.sock");
    let written = listen(UnixListener::bind(&path).unwrap(), server);
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let url = format!("unix://{}", path.display());
        let settings = RedisSettings::parse(&url, None, None).unwrap();
        let redis = Redis::spawn(settings, Arc::new(Unobserved)).unwrap();
        redis.connected(Duration::from_secs(20)).await.unwrap();
        let ask = async |key: &String| {
            let transaction = Transaction::new(key.as_str().into(), quota, NonZeroU64::MIN);
            let batch = Batch::from_iter([transaction]);
            written.lock().clear();
            redis.decide(&batch, SystemClock.now()).await.unwrap();
            std::mem::take(&mut *written.lock())
        };
        let mut recorded = Recorded::default();
        for key in keys {
            recorded.first.push(ask(key).await);
            recorded.later.push(ask(key).await);
        }
        recorded
    })
}

/// Passes one connection on to the server, and keeps what is written on it.
fn listen(listener: UnixListener, server: &RedisServer) -> Arc<Mutex<Vec<u8>>> {
    let written = Arc::<Mutex<Vec<u8>>>::default();
    let kept = Arc::clone(&written);
    let socket = server.socket();
    thread::spawn(move || -> io::Result<()> {
        let (mut weir, _) = listener.accept()?;
        let mut redis = UnixStream::connect(socket)?;
        let (mut replies, mut back) = (redis.try_clone()?, weir.try_clone()?);
        thread::spawn(move || io::copy(&mut replies, &mut back));
        let mut memory = [0; 4096];
        loop {
            let length = weir.read(&mut memory)?;
            let Some(bytes @ [_, ..]) = memory.get(..length) else {
                return Ok(());
            };
            kept.lock().extend_from_slice(bytes);
            redis.write_all(bytes)?;
        }
    });
    written
}
