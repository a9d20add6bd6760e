use bytes::Bytes;
use http::Request;
use http_body_util::BodyExt;

use super::support::*;
use crate::proxy::{Proxy, ProxyBody};

async fn next(body: &mut ProxyBody) -> Bytes {
    body.frame().await.unwrap().unwrap().into_data().unwrap()
}

#[tokio::test]
async fn a_piece_of_a_response_arrives_before_the_next_is_sent() {
    let (listener, server) = listen().await;
    let proxy: Proxy = proxy(settings(&[server]));
    let upstream = async {
        let mut wire = Wire::accept(&listener).await;
        wire.head().await;
        wire.write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n")
            .await;
        wire
    };
    let (response, mut wire) = tokio::join!(send(&proxy, get("/")), upstream);
    let mut body = response.into_body();
    assert_eq!(next(&mut body).await, "one");
    wire.write("3\r\ntwo\r\n0\r\n\r\n").await;
    assert_eq!(next(&mut body).await, "two");
    assert!(body.frame().await.is_none());
}

#[tokio::test]
async fn a_piece_of_a_request_arrives_before_the_next_is_sent() {
    let (listener, server) = listen().await;
    let proxy = proxy(settings(&[server]));
    let (body, chunks) = chunks();
    let request = Request::post("/").header("host", "app.example.com");
    let request = request.body(chunks).unwrap();
    let upstream = async {
        let mut wire = Wire::accept(&listener).await;
        wire.head().await;
        body.send(data("one")).unwrap();
        assert_eq!(wire.read_to("\r\none\r\n").await, "3\r\none\r\n");
        body.send(data("two")).unwrap();
        assert_eq!(wire.read_to("\r\ntwo\r\n").await, "3\r\ntwo\r\n");
        drop(body);
        wire.read_to("0\r\n\r\n").await;
        wire.write(OK).await;
    };
    let (response, ()) = tokio::join!(send(&proxy, request), upstream);
    assert_eq!(text(response).await, "ok");
}

#[tokio::test]
async fn a_response_may_begin_before_the_request_has_ended() {
    let (listener, server) = listen().await;
    let proxy = proxy(settings(&[server]));
    let (body, chunks) = chunks();
    let request = Request::post("/").header("host", "app.example.com");
    let request = request.body(chunks).unwrap();
    let upstream = async {
        let mut wire = Wire::accept(&listener).await;
        wire.head().await;
        wire.write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            .await;
        wire
    };
    let (response, mut wire) = tokio::join!(send(&proxy, request), upstream);
    let mut answer = response.into_body();
    for piece in ["ping", "pong"] {
        body.send(data(piece)).unwrap();
        let line = format!("4\r\n{piece}\r\n");
        assert_eq!(wire.read_to(&format!("{piece}\r\n")).await, line);
        wire.write(&line).await;
        assert_eq!(next(&mut answer).await, piece);
    }
}
