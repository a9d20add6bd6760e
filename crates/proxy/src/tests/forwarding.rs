use bytes::Bytes;
use http::{Request, StatusCode, Version};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::support::*;
use crate::{HostHeader, Proxy, demo};

type Sized = Proxy;

/// What an upstream of these settings gets of `request`, as the demo upstream tells it.
async fn echoed(host: HostHeader, request: Request<Full<Bytes>>) -> Value {
    let (listener, server) = listen().await;
    tokio::spawn(demo::serve(listener));
    let mut settings = settings(&[server]);
    settings.host = host;
    let response = send(&proxy(settings), request).await;
    assert_eq!(response.status(), StatusCode::OK);
    let mut echo: Value = serde_json::from_str(&text(response).await).unwrap();
    let server = server.to_string();
    for field in echo["headers"].as_array_mut().unwrap() {
        if field[1] == *server {
            field[1] = json!("SERVER");
        }
    }
    echo
}

#[tokio::test]
async fn a_request_arrives_as_it_was_sent() {
    let request = Request::put("/a%2Fb//c?q=1&q=%20")
        .header("host", "app.example.com")
        .header("x-two", "1")
        .header("x-two", "2")
        .header("content-length", "4")
        .body(Full::from("b\u{f6}y"))
        .unwrap();
    let expected = json!({
        "method": "PUT",
        "path": "/a%2Fb//c",
        "query": "q=1&q=%20",
        "version": "HTTP/1.1",
        "headers": [
            ["host", "app.example.com"],
            ["x-two", "1"],
            ["x-two", "2"],
            ["content-length", "4"],
            ["via", "1.1 weir"],
        ],
        "body": "b\u{f6}y",
    });
    assert_eq!(echoed(HostHeader::Preserve, request).await, expected);
}

#[tokio::test]
async fn a_response_arrives_as_it_was_sent_but_for_the_connections_own_fields() {
    let (listener, server) = listen().await;
    let proxy: Sized = proxy(settings(&[server]));
    let upstream = async {
        let mut peer = RawConnection::accept(&listener).await;
        peer.head().await;
        peer.write(
            "HTTP/1.1 418 Short And Stout\r\nServer: teapot\r\nConnection: keep-alive, x-hop\r\n\
             Set-Cookie: a=1\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nSet-Cookie: b=2\r\n\
             ETag: \"x\"\r\nContent-Length: 0\r\n\r\n",
        )
        .await;
    };
    let (response, ()) = tokio::join!(send(&proxy, get("/")), upstream);
    assert_eq!(response.status(), StatusCode::IM_A_TEAPOT);
    let fields: Vec<(&str, &str)> = response
        .headers()
        .iter()
        .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
        .collect();
    assert_eq!(
        fields,
        [
            ("server", "teapot"),
            ("set-cookie", "a=1"),
            ("set-cookie", "b=2"),
            ("etag", "\"x\""),
            ("content-length", "0"),
            ("via", "1.1 weir"),
        ],
    );
}

#[tokio::test]
async fn http_2_becomes_http_1_1() {
    let (listener, server) = listen().await;
    tokio::spawn(demo::serve(listener));
    let gateway = gateway(settings(&[server])).await;
    let stream = TcpStream::connect(gateway).await.unwrap();
    let (mut client, connection) = http2::Builder::new(TokioExecutor::new())
        .handshake(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    let request = Request::post("http://app.example.com/path?query")
        .version(Version::HTTP_2)
        .header("cookie", "a=1")
        .header("cookie", "b=2")
        .header("te", "trailers")
        .body(Full::<Bytes>::from("body"))
        .unwrap();
    let response = client.send_request(request).await.unwrap();
    assert_eq!(response.headers()["server"], "weir-demo");
    assert_eq!(response.headers()["via"], "1.1 weir");
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let echo: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(echo["path"], "/path");
    assert_eq!(echo["query"], "query");
    assert_eq!(echo["version"], "HTTP/1.1");
    assert_eq!(echo["body"], "body");
    let mut fields = echo["headers"].as_array().unwrap().clone();
    fields.sort_by_key(ToString::to_string);
    assert_eq!(
        Value::from(fields),
        json!([
            ["connection", "te"],
            ["content-length", "4"],
            ["cookie", "a=1; b=2"],
            ["host", "app.example.com"],
            ["te", "trailers"],
            ["via", "2 weir"],
        ]),
    );
}

#[tokio::test]
async fn the_target_of_an_absolute_form_names_the_host() {
    let (gateway, listener) = gateway_and_upstream().await;
    let mut client = RawConnection::connect(gateway).await;
    client
        .write("GET http://real.example.com/x HTTP/1.1\r\nhost: other.example.com\r\n\r\n")
        .await;
    let head = RawConnection::accept(&listener).await.head().await;
    assert!(has(&head, "GET /x HTTP/1.1"));
    assert!(has(&head, "host: real.example.com"));
    assert!(!head.contains("other"));
}

#[tokio::test]
async fn an_absolute_form_may_have_a_query_and_no_path() {
    let (gateway, listener) = gateway_and_upstream().await;
    let mut client = RawConnection::connect(gateway).await;
    client
        .write("GET http://app?q HTTP/1.1\r\nhost: app\r\n\r\n")
        .await;
    let head = RawConnection::accept(&listener).await.head().await;
    assert!(has(&head, "GET /?q HTTP/1.1"), "{head}");
}

#[tokio::test]
async fn a_request_without_exactly_one_proper_host_is_a_bad_request() {
    let (gateway, _listener) = gateway_and_upstream().await;
    for host in [
        "",
        "host: a\r\nhost: b\r\n",
        "host: a, b\r\n",
        "host: a/b\r\n",
        "host: a@b\r\n",
    ] {
        let mut client = RawConnection::connect(gateway).await;
        client.write(&format!("GET / HTTP/1.1\r\n{host}\r\n")).await;
        let head = client.head().await;
        assert!(has(&head, "HTTP/1.1 400 Bad Request"), "{host:?}: {head}");
    }
}

#[tokio::test]
async fn an_absolute_form_with_no_host_or_two_or_a_bad_one_is_a_bad_request() {
    let (gateway, _listener) = gateway_and_upstream().await;
    for host in [
        "",
        "host: app\r\nhost: app\r\n",
        "host: app\r\nhost: evil\r\n",
        "host: a, b\r\n",
        "host: a@b\r\n",
    ] {
        let mut client = RawConnection::connect(gateway).await;
        let request = format!("GET http://app/ HTTP/1.1\r\n{host}\r\n");
        client.write(&request).await;
        let head = client.head().await;
        assert!(has(&head, "HTTP/1.1 400 Bad Request"), "{host:?}: {head}");
    }
}

#[tokio::test]
async fn a_target_that_names_no_path_is_a_bad_request() {
    let (gateway, _listener) = gateway_and_upstream().await;
    for line in [
        "GET evil.internal",
        "GET evil.internal:80",
        "GET *",
        "POST *",
    ] {
        let mut client = RawConnection::connect(gateway).await;
        client
            .write(&format!("{line} HTTP/1.1\r\nhost: app\r\n\r\n"))
            .await;
        let head = client.head().await;
        assert!(has(&head, "HTTP/1.1 400 Bad Request"), "{line}: {head}");
    }
}

#[tokio::test]
async fn options_may_ask_about_the_server_as_a_whole() {
    let (gateway, listener) = gateway_and_upstream().await;
    let mut client = RawConnection::connect(gateway).await;
    client
        .write("OPTIONS * HTTP/1.1\r\nhost: app\r\n\r\n")
        .await;
    let head = RawConnection::accept(&listener).await.head().await;
    assert!(has(&head, "OPTIONS * HTTP/1.1"), "{head}");
}

#[tokio::test]
async fn an_http_1_0_client_need_not_name_a_host() {
    let (gateway, listener) = gateway_and_upstream().await;
    let server = listener.local_addr().unwrap();
    let mut client = RawConnection::connect(gateway).await;
    client.write("GET / HTTP/1.0\r\n\r\n").await;
    let mut upstream = RawConnection::accept(&listener).await;
    let head = upstream.head().await;
    assert!(has(&head, "GET / HTTP/1.1"));
    assert!(has(&head, &format!("host: {server}")));
    assert!(has(&head, "via: 1.0 weir"));
    upstream.write(OK).await;
    assert!(client.rest().await.ends_with("\r\n\r\nok"));
}

#[tokio::test]
async fn options_go_as_far_as_max_forwards_lets_them() {
    let request = |left: &str| {
        Request::options("/")
            .header("host", "app.example.com")
            .header("max-forwards", left)
            .body(Full::default())
            .unwrap()
    };
    let nowhere: Sized = proxy(settings(&[refusing_address()]));
    let response = send(&nowhere, request("0")).await;
    assert_eq!(response.status(), StatusCode::NO_CONTENT);
    let echo = echoed(HostHeader::Preserve, request("5")).await;
    assert_eq!(echo["headers"][1], json!(["max-forwards", "4"]));
}

#[tokio::test]
async fn the_demo_upstream_shows_binary_and_long_bodies_too() {
    let request = |body: Vec<u8>| {
        let request = Request::post("/").header("host", "app.example.com");
        request.body(Full::from(body)).unwrap()
    };
    let echo = echoed(HostHeader::Preserve, request(vec![0xff, 0])).await;
    assert_eq!(
        (&echo["body"], &echo["base64"]),
        (&json!("/wA="), &json!(true))
    );
    let long = format!("x{}", "\u{f6}".repeat(40_000));
    let echo = echoed(HostHeader::Preserve, request(long.clone().into_bytes())).await;
    assert_eq!(echo["truncated"], json!(true));
    assert_eq!(echo["body"].as_str().unwrap(), &long[..65_535]);
}
