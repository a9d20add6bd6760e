//! How a client's socket is read ahead, held up, and closed.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWriteExt, BufWriter, DuplexStream, copy_bidirectional, duplex,
};
use tokio::time::{Instant, sleep};
use weir_telemetry::StripedGauge;

use super::super::client_io::*;
use super::super::connection_state::{ClientBounds, ConnectionState};
use super::super::drain::Draining;

const STALL: Duration = Duration::from_secs(60);

fn client_io<IO: AsyncRead>(io: IO) -> ClientIo<IO, ()> {
    ClientIo::new(io, state(), ())
}

fn state() -> Arc<ConnectionState> {
    let bounds = ClientBounds {
        max_head_bytes: 65_536,
        stall_timeout: STALL,
        max_headers: 100,
    };
    ConnectionState::new(Draining::never(), StripedGauge::default(), bounds)
}

/// A socket that has something to say when it is shut, as one with TLS has, and its other end,
/// which takes a byte at most.
fn talkative() -> (ClientIo<BufWriter<DuplexStream>, ()>, DuplexStream) {
    let (near, far) = duplex(1);
    (client_io(BufWriter::new(near)), far)
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_take_the_last_word_is_not_waited_for() {
    let (mut io, _far) = talkative();
    io.write_all(b"bye").await.unwrap();
    let start = Instant::now();
    let refused = io.shutdown().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::TimedOut);
    assert_eq!(start.elapsed(), STALL);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_takes_the_last_word_late_gets_all_of_it() {
    let (mut io, mut far) = talkative();
    io.write_all(b"bye").await.unwrap();
    let reader = async {
        sleep(STALL / 2).await;
        let mut word = Vec::new();
        far.read_to_end(&mut word).await.unwrap();
        drop(far);
        word
    };
    let (shut, word) = tokio::join!(io.shutdown(), reader);
    shut.unwrap();
    assert_eq!(word, b"bye");
}

#[tokio::test(start_paused = true)]
async fn a_tunnel_does_not_wait_for_a_client_that_does_not_close() {
    let (near, mut far) = duplex(64);
    let (mut to_upstream, mut upstream) = duplex(64);
    upstream.write_all(b"bye").await.unwrap();
    upstream.shutdown().await.unwrap();
    far.write_all(b"early").await.unwrap();
    let start = Instant::now();
    let tunnel = copy_bidirectional(&mut client_io(near), &mut to_upstream).await;
    assert_eq!(tunnel.unwrap(), (5, 3));
    assert_eq!(start.elapsed(), LINGER);
    let mut word = [0; 3];
    far.read_exact(&mut word).await.unwrap();
    assert_eq!(&word, b"bye");
}

#[tokio::test]
async fn a_long_body_is_read_in_pieces_and_none_of_it_is_lost() {
    const SENT: usize = 100_000;
    let (near, mut far) = duplex(SENT);
    far.write_all(&[b'x'; SENT]).await.unwrap();
    let mut io = client_io(near);
    let mut buffer = vec![0; SENT];
    let mut pieces = Vec::new();
    while pieces.iter().sum::<usize>() < SENT {
        pieces.push(io.read(&mut buffer).await.unwrap());
    }
    let longest = usize::try_from(MAX_READ).unwrap();
    assert_eq!(pieces, [longest, longest, longest, SENT - 3 * longest]);
}

#[tokio::test]
async fn frames_of_a_tunnel_are_not_taken_for_a_request_with_two_lengths() {
    let both = b"POST / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n";
    for is_upgraded in [false, true] {
        let (near, mut far) = duplex(1024);
        let state = state();
        if is_upgraded {
            state.request().upgrades();
        }
        far.write_all(both).await.unwrap();
        let mut io = ClientIo::new(near, Arc::clone(&state), ());
        io.read_exact(&mut vec![0; both.len()]).await.unwrap();
        assert_eq!(state.is_suspect(), !is_upgraded);
    }
}

#[test]
fn nothing_that_has_arrived_changes_when_more_arrives_in_the_same_memory() {
    let arrived: Vec<_> = (0..500_usize)
        .map(|number| format!("{number} ").repeat(number % 300).into_bytes())
        .collect();
    let mut held = VecDeque::new();
    for bytes in &arrived {
        held.push_back((kept(bytes), bytes));
        if held.len() > 20 {
            held.pop_front();
        }
        assert!(held.iter().all(|(kept, bytes)| *kept == **bytes));
    }
}
