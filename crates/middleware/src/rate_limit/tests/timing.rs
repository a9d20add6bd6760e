//! How long decoys take, next to real answers: two samples in a time of ours, which nobody who
//! measures whole milliseconds can tell apart.

use std::collections::VecDeque;

use http_body::Frame;
use http_body_util::StreamBody;
use http_body_util::combinators::UnsyncBoxBody;
use tokio::time::{Instant, sleep};

use super::*;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// What the app takes, in milliseconds. To be later by one of them is to be seen.
const APP: [u64; 10] = [3, 3, 3, 4, 4, 4, 4, 5, 5, 40];

/// As many as a shadow remembers, and as many decoys.
const SAMPLE: usize = 256;

/// Two samples of this size from one distribution lie as far apart as this once in 10^9 times.
const FAR: f64 = 0.29;

type Ended = Arc<Mutex<Option<Instant>>>;

/// A body that takes so many milliseconds, and notes when it has ended.
fn upload(millis: u64, ended: &Ended) -> Body {
    let ended = Arc::clone(ended);
    let frames = futures_util::stream::unfold(0, move |sent| {
        let ended = Arc::clone(&ended);
        async move {
            if sent == 2 {
                *ended.lock() = Some(Instant::now());
                return None;
            }
            sleep(Duration::from_millis(millis / 2)).await;
            Some((Ok(Frame::data(Bytes::from_static(b"part"))), sent + 1))
        }
    });
    StreamBody::new(frames).boxed_unsync()
}

/// The service that reads a request to its end, and then takes its time.
async fn app(
    request: Request<Metered<Body>>,
    turn: Arc<AtomicUsize>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    request.into_body().collect().await?;
    let turn = turn.fetch_add(1, Ordering::Relaxed);
    sleep(Duration::from_millis(APP[turn % APP.len()])).await;
    let mut response = Response::new(Full::from("real"));
    *response.status_mut() = StatusCode::CREATED;
    Ok(response)
}

/// How long after the end of its body each request was answered, in milliseconds.
async fn sample(layer: &RateLimitLayer, uploads: &[u64]) -> Vec<u128> {
    let turn = Arc::new(AtomicUsize::new(0));
    let service = layer.layer(service_fn(move |it| app(it, Arc::clone(&turn))));
    let mut took = Vec::new();
    for at in 0..SAMPLE {
        let ended = Ended::default();
        let body = match uploads[at % uploads.len()] {
            0 => Full::from("whole").boxed_unsync(),
            millis => upload(millis, &ended),
        };
        let sent = Instant::now();
        let response = service.clone().oneshot(Request::new(body)).await.unwrap();
        assert_eq!(response.status(), StatusCode::CREATED);
        let since = ended.lock().unwrap_or(sent);
        took.push(since.elapsed().as_millis());
    }
    took
}

/// The Kolmogorov-Smirnov statistic: how far apart the two samples' distribution functions are.
fn distance(one: &[u128], other: &[u128]) -> f64 {
    let share = |sample: &[u128], most: u128| {
        let below = sample.iter().filter(|it| **it <= most).count();
        below as f64 / sample.len() as f64
    };
    let values = one.iter().chain(other);
    let apart = values.map(|value| (share(one, *value) - share(other, *value)).abs());
    apart.fold(0.0, f64::max)
}

/// The real answers to these uploads, and then the decoys.
async fn samples(uploads: &[u64]) -> (Vec<u128>, Vec<u128>) {
    let answers = |decision| std::iter::repeat_with(move || outcome([decision])).take(SAMPLE);
    let store = Scripted {
        answers: Mutex::new(
            answers(allowed(5))
                .chain(answers(denied(7)))
                .collect::<VecDeque<_>>(),
        ),
        ..Scripted::default()
    };
    let layer = RateLimitLayer::new(Arc::new(store), shadow(HeaderForms::NONE), &Metrics::new());
    let real = sample(&layer, uploads).await;
    (real, sample(&layer, &[0, 10]).await)
}

#[tokio::test(start_paused = true)]
async fn nobody_can_tell_decoys_from_real_answers_by_their_timing() {
    let (real, decoys) = samples(&[0]).await;
    let apart = distance(&real, &decoys);
    assert!(apart < FAR, "{apart}");
    // The test would see a millisecond.
    let later: Vec<_> = decoys.iter().map(|took| took + 1).collect();
    assert!(distance(&real, &later) > FAR);
}

/// A decoy took as long as somebody's upload and the answer together: 512 ms in place of 15.
#[tokio::test(start_paused = true)]
async fn a_slow_upload_of_one_client_does_not_make_decoys_slow_for_others() {
    let (real, decoys) = samples(&[500, 0, 2000, 20]).await;
    let apart = distance(&real, &decoys);
    assert!(apart < FAR, "{apart}");
}

/// Such an answer says nothing of how long an app takes when it has read all.
#[tokio::test(start_paused = true)]
async fn an_answer_before_the_end_of_the_body_teaches_no_latency() {
    let store = Scripted {
        answers: Mutex::new([outcome([allowed(5)]), outcome([denied(7)])].into()),
        ..Scripted::default()
    };
    let layer = RateLimitLayer::new(Arc::new(store), shadow(HeaderForms::NONE), &Metrics::new());
    let hasty = service_fn(|mut request: Request<Metered<Body>>| async move {
        request.body_mut().frame().await;
        let mut response = Response::new(Full::<Bytes>::from("real"));
        *response.status_mut() = StatusCode::CREATED;
        Ok::<_, Infallible>(response)
    });
    let service = layer.layer(hasty);
    let slow = Request::new(upload(1000, &Ended::default()));
    service.clone().oneshot(slow).await.unwrap();
    let sent = Instant::now();
    let body = Full::from("whole").boxed_unsync();
    service.oneshot(Request::new(body)).await.unwrap();
    // As before the first real answer.
    assert!(
        (5..=50).contains(&sent.elapsed().as_millis()),
        "{:?}",
        sent.elapsed()
    );
}
