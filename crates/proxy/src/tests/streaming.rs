use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use super::support::*;
use crate::{Proxy, ProxyBody};

async fn next(body: &mut ProxyBody) -> Bytes {
    body.frame().await.unwrap().unwrap().into_data().unwrap()
}

/// What a slow client is sent next is in memory as a whole.
#[tokio::test]
async fn no_piece_of_a_response_is_large() {
    let (listener, server) = listen().await;
    let proxy: Proxy = proxy(settings(&[server]));
    const LENGTH: usize = 4 << 20;
    let upstream = async {
        let mut peer = RawConnection::accept(&listener).await;
        peer.head().await;
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {LENGTH}\r\n\r\n");
        peer.write(&(head + &"x".repeat(LENGTH))).await;
    };
    let download = async {
        let mut body = send(&proxy, get("/")).await.into_body();
        let mut whole = 0;
        while whole < LENGTH {
            let piece = next(&mut body).await;
            assert!(piece.len() <= 64 * 1024, "{} bytes", piece.len());
            whole += piece.len();
        }
        whole
    };
    let (whole, ()) = tokio::join!(download, upstream);
    assert_eq!(whole, LENGTH);
}

#[tokio::test]
async fn a_response_may_begin_before_the_request_has_ended() {
    let (listener, server) = listen().await;
    let proxy = proxy(settings(&[server]));
    let (body, chunks) = chunks();
    let request = Request::post("/").header("host", "app.example.com");
    let request = request.body(chunks).unwrap();
    let upstream = async {
        let mut peer = RawConnection::accept(&listener).await;
        peer.head().await;
        peer.write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            .await;
        peer
    };
    let (response, mut peer) = tokio::join!(send(&proxy, request), upstream);
    let mut answer = response.into_body();
    for piece in ["ping", "pong"] {
        body.send(data(piece)).unwrap();
        let line = format!("4\r\n{piece}\r\n");
        assert_eq!(peer.read_to(&format!("{piece}\r\n")).await, line);
        peer.write(&line).await;
        assert_eq!(next(&mut answer).await, piece);
    }
}

/// An upstream that sends back what it gets while it still gets it.
async fn echo(listener: TcpListener) {
    async fn back(request: Request<Incoming>) -> Result<Response<Incoming>, Infallible> {
        Ok(Response::new(request.into_body()))
    }
    while let Ok((stream, _)) = listener.accept().await {
        let serving = hyper::server::conn::http1::Builder::new();
        tokio::spawn(serving.serve_connection(TokioIo::new(stream), service_fn(back)));
    }
}

/// A request with a body of this length; an odd one comes without a `Content-Length`.
fn upload(gateway: SocketAddr, bytes: &[u8]) -> Request<BoxBody<Bytes, Infallible>> {
    let pieces: Vec<_> = bytes.chunks(10_007).map(Bytes::copy_from_slice).collect();
    let body = match bytes.len() % 2 {
        1 => StreamBody::new(stream::iter(pieces.into_iter().map(Frame::data).map(Ok))).boxed(),
        _ => Full::from(bytes.to_vec()).boxed(),
    };
    let request = Request::post(format!("http://{gateway}/")).header("host", "app");
    request.body(body).unwrap()
}

async fn by_http_1(
    gateway: SocketAddr,
    request: Request<BoxBody<Bytes, Infallible>>,
) -> Response<Incoming> {
    let stream = TokioIo::new(TcpStream::connect(gateway).await.unwrap());
    let (mut client, connection) = http1::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    client.send_request(request).await.unwrap()
}

async fn by_http_2(
    gateway: SocketAddr,
    request: Request<BoxBody<Bytes, Infallible>>,
) -> Response<Incoming> {
    let stream = TokioIo::new(TcpStream::connect(gateway).await.unwrap());
    let handshake = http2::handshake(TokioExecutor::new(), stream);
    let (mut client, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    client.send_request(request).await.unwrap()
}

#[tokio::test]
async fn what_is_sent_comes_back_while_it_is_sent_whatever_its_size() {
    let (listener, server) = listen().await;
    tokio::spawn(echo(listener));
    let gateway = gateway(settings(&[server])).await;
    for size in [
        0, 1, 2, 8_191, 8_192, 65_537, 262_144, 262_145, 3_000_001, 3_000_002,
    ] {
        let sent: Vec<u8> = (0..size)
            .map(|at: u32| at.to_le_bytes()[at as usize % 3])
            .collect();
        let by_1 = by_http_1(gateway, upload(gateway, &sent)).await;
        let by_2 = by_http_2(gateway, upload(gateway, &sent)).await;
        for response in [by_1, by_2] {
            let back = response.into_body().collect().await.unwrap().to_bytes();
            assert!(back == sent, "{size} bytes, {} came back", back.len());
        }
    }
}

#[tokio::test]
async fn a_client_of_http_2_that_cancels_a_request_closes_its_connection_upstream() {
    let (gateway, listener) = gateway_and_upstream().await;
    let stream = TokioIo::new(TcpStream::connect(gateway).await.unwrap());
    let handshake = http2::handshake(TokioExecutor::new(), stream);
    let (mut client, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    for answer in ["", "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf"] {
        let call = tokio::spawn(client.send_request(upload(gateway, b"")));
        let mut peer = RawConnection::accept(&listener).await;
        peer.head().await;
        peer.write(answer).await;
        match answer {
            "" => call.abort(),
            _ => drop(call.await.unwrap().unwrap()),
        }
        assert_eq!(peer.rest().await, "");
    }
}

#[tokio::test]
async fn a_body_that_stops_in_the_middle_is_given_up_and_a_slow_client_is_not() {
    let (listener, server) = listen().await;
    let mut settings = settings(&[server]);
    settings.timeouts.body = Duration::from_secs(60);
    let proxy: Proxy = proxy(settings);
    let upstream = async {
        let mut peer = RawConnection::accept(&listener).await;
        peer.head().await;
        peer.write("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n")
            .await;
        peer.write("one").await;
        peer
    };
    let (response, mut peer) = tokio::join!(send(&proxy, get("/")), upstream);
    let mut body = response.into_body();
    tokio::time::pause();
    // The client takes its time, and the server has done its part.
    tokio::time::advance(Duration::from_secs(600)).await;
    assert_eq!(next(&mut body).await, "one");
    for (piece, wait) in [("two", 59), ("three", 61)] {
        let start = Instant::now();
        let write = async {
            tokio::time::sleep(Duration::from_secs(wait)).await;
            peer.write(piece).await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            frame = body.frame() => match piece {
                "two" => assert_eq!(frame.unwrap().unwrap().into_data().unwrap(), "two"),
                _ => {
                    let error = frame.unwrap().unwrap_err().to_string();
                    assert!(error.contains("stopped before its end"), "{error}");
                    assert_eq!(start.elapsed().as_secs(), 60);
                }
            },
            () = write => {}
        }
    }
    assert_eq!(peer.rest().await, "", "the connection is closed");
}
