//! What clients may do: timeouts and bounds. `config` has the keys.

mod config;

use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper_util::rt::TokioTimer;

use crate::connection::Protocols;
use crate::connection_state::{ClientBounds, Timeouts};
use crate::http1::HeadBounds;
use crate::stream_tasks::StreamExecutor;
pub use config::HttpSettings;

/// How many header lines hyper allows by default.
const HYPER_MAX_HEADERS: usize = 100;

/// How many bytes are buffered for an HTTP/2 stream whose client does not read. hyper's default of
/// 400 KB would allow 80 MB for one connection.
const SEND_BUFFER: usize = 32 * 1024;

/// How many times larger a head of HTTP/2 may be than one that is served, to get a response.
const HTTP2_HEAD_FACTOR: usize = 4;

/// The resolution of the runtime's timers.
const MILLISECOND: Duration = Duration::from_millis(1);

impl HttpSettings {
    pub(crate) fn timeouts(&self) -> Timeouts {
        Timeouts {
            head: self.header_timeout,
            idle: self.idle_timeout,
            // The driver of a connection that is not parked checks its head as often.
            park: self.park_after.min(self.header_timeout).max(MILLISECOND),
        }
    }

    pub(crate) fn client_bounds(&self) -> ClientBounds {
        ClientBounds {
            stall_timeout: self.stall_timeout,
            max_headers: self.max_headers,
            max_head_bytes: u32::try_from(self.head_bytes()).unwrap_or(u32::MAX),
        }
    }

    /// How large a head may be; hyper allows no smaller bound.
    fn head_bytes(&self) -> usize {
        self.max_header_bytes.max(8192)
    }

    /// hyper's own settings.
    pub(crate) fn protocols(&self) -> Protocols {
        let head = self.head_bytes();
        Protocols {
            plain: HeadBounds {
                bytes: head,
                headers: self.max_headers,
            },
            http1: self.http1(head),
            http2: self.http2(head),
        }
    }

    fn http1(&self, head: usize) -> http1::Builder {
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            // The driver's timeouts do this, also for connections that have sent nothing yet.
            .header_read_timeout(None)
            // This also bounds what is buffered for a client that does not read.
            .max_buf_size(head)
            .max_header_size(head);
        // Given a bound, even its default, hyper allocates the header indices on the heap.
        if self.max_headers != HYPER_MAX_HEADERS {
            builder.max_headers(self.max_headers);
        }
        builder
    }

    /// The service refuses a head above its bound with 431. h2 would do so as well, but ends the
    /// connection for a head of more frames than 5/4 of its bound would fill, so its bound is a
    /// multiple.
    fn http2(&self, head: usize) -> http2::Builder<StreamExecutor> {
        let most = head.saturating_mul(HTTP2_HEAD_FACTOR);
        let mut builder = http2::Builder::new(StreamExecutor);
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(self.max_streams)
            .max_header_list_size(u32::try_from(most).unwrap_or(u32::MAX))
            .max_send_buf_size(SEND_BUFFER)
            // For WebSockets (RFC 8441).
            .enable_connect_protocol()
            // Detects clients that are gone without closing.
            .keep_alive_interval(Duration::from_secs(20))
            .keep_alive_timeout(Duration::from_secs(20));
        builder
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use bytes::Bytes;
    use futures_util::stream;
    use http::Response;
    use http_body::Frame;
    use http_body_util::StreamBody;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::timeout;

    use super::*;

    /// As much as the proxy forwards at a time.
    static PIECE: [u8; 32 * 1024] = [b'x'; 32 * 1024];

    /// How much hyper takes of an endless response while the client, which has sent this, reads
    /// nothing.
    async fn taken(request: &[u8], is_http2: bool) -> usize {
        let (mut client, server) = duplex(4096);
        client.write_all(request).await.unwrap();
        let taken = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&taken);
        let service = service_fn(move |_| {
            let count = Arc::clone(&count);
            let pieces = stream::repeat_with(move || {
                count.fetch_add(PIECE.len(), Relaxed);
                Ok::<_, Infallible>(Frame::data(Bytes::from_static(&PIECE)))
            });
            async { Ok::<_, Infallible>(Response::new(StreamBody::new(pieces))) }
        });
        let (protocols, io) = (HttpSettings::default().protocols(), TokioIo::new(server));
        let a_while = Duration::from_secs(5);
        if is_http2 {
            let connection = protocols.http2.serve_connection(io, service);
            assert!(timeout(a_while, connection).await.is_err());
        } else {
            let connection = protocols.http1.serve_connection(io, service);
            assert!(timeout(a_while, connection).await.is_err());
        }
        taken.load(Relaxed)
    }

    #[test]
    fn a_connection_is_parked_after_a_millisecond_at_least_and_the_time_for_a_head_at_most() {
        let parks_after = |park_after| {
            let settings = HttpSettings {
                park_after,
                header_timeout: Duration::from_secs(2),
                ..HttpSettings::default()
            };
            settings.timeouts().park
        };
        let second = Duration::from_secs(1);
        assert_eq!(parks_after(Duration::ZERO), MILLISECOND);
        assert_eq!(parks_after(second), second);
        assert_eq!(parks_after(3 * second), 2 * second);
    }

    #[tokio::test]
    async fn clients_of_http2_are_told_their_bounds() {
        let (mut client, server) = duplex(4096);
        let settings = HttpSettings {
            max_streams: 7,
            max_header_bytes: 10_000,
            ..HttpSettings::default()
        };
        let service = service_fn(async |_| Ok::<_, Infallible>(Response::new(String::new())));
        let connection = settings.protocols().http2;
        tokio::spawn(connection.serve_connection(TokioIo::new(server), service));
        let mut length = [0; 9];
        client.read_exact(&mut length).await.unwrap();
        let mut frames = vec![0; usize::from(length[2])];
        client.read_exact(&mut frames).await.unwrap();
        let frames: Vec<_> = frames.chunks(6).collect();
        // SETTINGS_MAX_CONCURRENT_STREAMS and SETTINGS_MAX_HEADER_LIST_SIZE: up to there a head
        // gets a response.
        assert!(frames.contains(&&[0, 3, 0, 0, 0, 7][..]), "{frames:?}");
        assert!(
            frames.contains(&&[0, 6, 0, 0, 0x9c, 0x40][..]),
            "{frames:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn little_of_an_answer_waits_for_a_client_that_does_not_read() {
        let http1 = taken(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", false).await;
        // The preface, and windows as large as they can be, for streams and for the connection.
        let mut request = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        request.extend([0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0x7f, 0xff, 0xff, 0xff]);
        request.extend([0, 0, 4, 8, 0, 0, 0, 0, 0, 0x7f, 0xff, 0, 0]);
        request.extend([0, 0, 6, 1, 5, 0, 0, 0, 1, 0x82, 0x86, 0x84, 0x41, 1, b'a']);
        let http2 = taken(&request, true).await;
        for taken in [http1, http2] {
            assert!(
                (1..=128 * 1024).contains(&taken),
                "{http1} and {http2} bytes"
            );
        }
    }
}
