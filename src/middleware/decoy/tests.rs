use std::convert::Infallible;

use http::Request;
use http_body_util::{Full, StreamBody};

use super::*;

fn shadow(content_type: &'static str, body: &str) -> Arc<Shadow> {
    let headers = [(CONTENT_TYPE, HeaderValue::from_static(content_type))]
        .into_iter()
        .collect();
    let decoy = Decoy::new("sent", StatusCode::OK, headers, body).unwrap();
    Arc::new(Shadow::new(Arc::new(decoy)))
}

fn real(fields: &[(&'static str, &'static str)]) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from("real"));
    for &(name, value) in fields {
        response
            .headers_mut()
            .append(name, HeaderValue::from_static(value));
    }
    response
}

async fn answer(shadow: &Arc<Shadow>, body: &'static str) -> Response<Answer<Full<Bytes>>> {
    let request = Request::builder()
        .header(CONTENT_TYPE, "application/json")
        .body(())
        .unwrap();
    let (head, ()) = request.into_parts();
    Arc::clone(shadow)
        .answer(head, Full::<Bytes>::from(body))
        .await
}

#[tokio::test(start_paused = true)]
async fn a_decoy_takes_as_long_as_one_of_the_recent_real_answers() {
    let shadow = shadow("text/plain", "sent");
    shadow.learn(&real(&[]), 1, Some(Duration::from_millis(700)));
    let since = Instant::now();
    answer(&shadow, "").await;
    assert!(
        since.elapsed() >= Duration::from_millis(697),
        "{:?}",
        since.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn an_answer_of_another_status_teaches_nothing() {
    let shadow = shadow("text/plain", "sent");
    let mut failed = real(&[("x-failed", "1")]);
    *failed.status_mut() = StatusCode::BAD_GATEWAY;
    shadow.learn(&failed, 1, Some(Duration::from_secs(60)));
    let since = Instant::now();
    let decoy = answer(&shadow, "").await;
    assert!(since.elapsed() < Duration::from_secs(1));
    assert!(!decoy.headers().contains_key("x-failed"));
}

#[tokio::test(start_paused = true)]
async fn a_decoy_has_the_fields_of_real_answers_and_the_body_of_its_own() {
    let shadow = shadow("application/json", r#"{"to":"{{ body.to }}"}"#);
    for client in [1, 2] {
        let fields = [
            ("server", "app"),
            ("content-type", "x/y"),
            ("content-length", "4"),
        ];
        shadow.learn(&real(&fields), client, Some(Duration::ZERO));
    }
    let decoy = answer(&shadow, r#"{"to":"ann"}"#).await;
    let names: Vec<_> = decoy
        .headers()
        .keys()
        .map(http::HeaderName::as_str)
        .collect();
    assert_eq!(names, ["server", "content-type", "content-length"]);
    assert_eq!(decoy.headers()["content-type"], "application/json");
    assert_eq!(decoy.headers()["content-length"], "12");
    let body = decoy.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, r#"{"to":"ann"}"#);
}

#[tokio::test(start_paused = true)]
async fn a_decoy_is_sent_in_chunks_where_real_answers_are() {
    let shadow = shadow("text/plain", "sent");
    assert_eq!(
        answer(&shadow, "").await.body().size_hint().exact(),
        Some(4)
    );
    shadow.learn(&real(&[("server", "app")]), 1, Some(Duration::ZERO));
    let decoy = answer(&shadow, "").await;
    assert_eq!(decoy.body().size_hint().exact(), None);
    assert!(!decoy.headers().contains_key("content-length"));
}

#[tokio::test(start_paused = true)]
async fn a_requests_body_is_read_to_its_end_before_the_decoy_answers() {
    let (mut sender, receiver) = tokio::sync::mpsc::channel::<Bytes>(1);
    let frames = futures_util::stream::unfold(receiver, |mut receiver| async {
        let data = receiver.recv().await?;
        Some((Ok::<_, Infallible>(http_body::Frame::data(data)), receiver))
    });
    let (head, ()) = Request::new(()).into_parts();
    let shadow = shadow("text/plain", "sent");
    let decoy = tokio::spawn(shadow.answer::<_, Full<Bytes>>(head, StreamBody::new(frames)));
    for _ in 0..100 {
        sender.send(Bytes::from_static(&[0; 4096])).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(!decoy.is_finished());
    // The body ends with its sender.
    sender = tokio::sync::mpsc::channel(1).0;
    assert_eq!(decoy.await.unwrap().status(), StatusCode::OK);
    drop(sender);
}

#[tokio::test]
async fn of_a_body_no_more_than_the_start_is_kept() {
    let body = Full::new(Bytes::from(vec![b'x'; 2 * BODY_KEPT]));
    let kept = read_to_end(body, BODY_KEPT).await.unwrap();
    assert_eq!(kept.len(), BODY_KEPT);
}

#[test]
fn a_decoy_knows_which_captured_segments_it_needs() {
    let decoy = Decoy::new("sent", StatusCode::OK, HeaderMap::new(), "{{ path.team }}").unwrap();
    assert_eq!(decoy.captures_used(), ["team"]);
}

/// The proxy answers such a body with 400; a decoy told a client that it was banned.
#[tokio::test(start_paused = true)]
async fn a_body_that_breaks_off_gets_the_answer_that_the_proxy_gives() {
    let broken = futures_util::stream::iter([Err::<http_body::Frame<Bytes>, _>("no chunk")]);
    let (head, ()) = Request::new(()).into_parts();
    let shadow = shadow("text/plain", "sent");
    let answer = shadow.answer::<_, Full<Bytes>>(head, StreamBody::new(broken));
    assert_eq!(answer.await.status(), StatusCode::BAD_REQUEST);
}

/// After a reload decoys were as bare and as slow as before the first real answer.
#[tokio::test(start_paused = true)]
async fn what_was_learnt_is_inherited() {
    let (earlier, later) = (shadow("text/plain", "sent"), shadow("text/plain", "sent!"));
    let learnt = Some(Duration::from_millis(700));
    earlier.learn(&real(&[("server", "app")]), 1, learnt);
    later.inherit(&earlier);
    let since = Instant::now();
    let decoy = answer(&later, "").await;
    assert_eq!(decoy.headers()["server"], "app");
    assert!(since.elapsed() >= Duration::from_millis(697));
}
