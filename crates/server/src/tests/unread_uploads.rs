//! Uploads over HTTP/2 that get their response before their end.

use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, ready};

use bytes::Bytes;
use futures_util::FutureExt;
use h2::client::SendRequest;
use h2::{Reason, SendStream};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tokio::io::{DuplexStream, duplex};
use tokio::time::Instant;
use weir_telemetry::{Metrics, StripedGauge};

use super::super::client_io::{ClientIo, LINGER};
use super::super::connection::ServerConnection;
use super::super::connection_state::ConnectionState;
use super::super::drain::Draining;
use super::super::driver::Driver;
use super::super::request_body::RequestBody;
use super::super::serve::Http;
use super::super::service::{TrackRequests, service_fn};
use super::super::settings::HttpSettings;

const MIB: usize = 1024 * 1024;

/// A connection to a server that denies each request without reading its body.
fn connect() -> DuplexStream {
    let (stream, server) = duplex(64 * 1024);
    let settings = HttpSettings::default();
    let draining = Draining::never();
    let bounds = settings.client_bounds();
    let state = ConnectionState::new(draining, StripedGauge::default(), bounds);
    let service = TrackRequests {
        inner: service_fn(async |_: Request<RequestBody>| {
            let mut denied = Response::new(Full::from("denied"));
            *denied.status_mut() = StatusCode::TOO_MANY_REQUESTS;
            Ok::<_, Infallible>(denied)
        }),
        challenges: None,
        state: Arc::clone(&state),
    };
    let io = ClientIo::new(server, Arc::clone(&state), ());
    let protocols = Arc::new(settings.protocols());
    let mut connection = ServerConnection::new(io, service, protocols, None);
    let driver = Driver {
        state,
        context: Http::new(&settings, Metrics::new().server()).0,
    };
    tokio::spawn(async move { driver.drive(&mut connection).await });
    stream
}

async fn handshake() -> SendRequest<Bytes> {
    let (sender, connection) = h2::client::handshake(connect()).await.unwrap();
    tokio::spawn(connection);
    sender.ready().await.unwrap()
}

/// An upload that is denied, and has not ended.
async fn denied(sender: &mut SendRequest<Bytes>) -> SendStream<Bytes> {
    let upload = Request::post("http://a/").body(()).unwrap();
    let (response, body) = sender.send_request(upload, false).unwrap();
    let response = response.await.unwrap();
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    let mut content = response.into_body();
    assert_eq!(content.data().await.unwrap().unwrap(), "denied");
    assert!(content.data().await.is_none());
    body
}

/// Sends up to `most` bytes, and returns how many the server has taken or made room for, and the
/// reset that has ended it, if any.
async fn send(body: &mut SendStream<Bytes>, most: usize) -> (usize, Option<Reason>) {
    let mut sent = 0;
    while sent < most {
        body.reserve_capacity(16 * 1024);
        let room = poll_fn(|cx| {
            if let Poll::Ready(reason) = body.poll_reset(cx) {
                return Poll::Ready(Err(reason.unwrap()));
            }
            let room = ready!(body.poll_capacity(cx));
            Poll::Ready(Ok(room.unwrap().unwrap()))
        });
        match room.await {
            Ok(room) => {
                body.send_data(vec![0; room].into(), false).unwrap();
                sent += room;
            }
            Err(reason) => return (sent, Some(reason)),
        }
    }
    (sent, None)
}

/// curl took the reset for a failure, and showed no status.
#[tokio::test(start_paused = true)]
async fn an_upload_that_is_denied_is_not_reset_before_its_client_can_know() {
    let mut sender = handshake().await;
    for _ in 0..3 {
        let mut body = denied(&mut sender).await;
        assert_eq!(send(&mut body, 3 * MIB).await.1, None);
        assert!(poll_fn(|cx| body.poll_reset(cx)).now_or_never().is_none());
        body.send_data(Bytes::new(), true).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_stop_is_reset_when_it_has_sent_enough() {
    let mut sender = handshake().await;
    for _ in 0..3 {
        let mut body = denied(&mut sender).await;
        let (sent, reset) = send(&mut body, 100 * MIB).await;
        assert_eq!(reset, Some(Reason::NO_ERROR), "it has its response");
        // What is read, and the room that a client has in any case.
        assert!((4 * MIB..=5 * MIB).contains(&sent), "{sent}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_nothing_more_is_reset_after_a_moment() {
    let mut sender = handshake().await;
    let mut body = denied(&mut sender).await;
    let start = Instant::now();
    let reset = poll_fn(|cx| body.poll_reset(cx)).await;
    assert_eq!(
        (reset.unwrap(), start.elapsed()),
        (Reason::NO_ERROR, LINGER)
    );
}
