//! Reads request bodies before they are sent on, so that a server does not wait for a client that
//! sends slowly.

use std::collections::VecDeque;
use std::error::Error as StdError;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http::header::{CONTENT_TYPE, UPGRADE};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};
use weir_http::request::{BoxedRequest, HttpRequest};

use super::request::Replay;

/// Bytes for each permit of the semaphore.
const UNIT: usize = 1024;

/// The pieces in which a body is kept. One buffer for all of it would be copied as it grows, and
/// take twice what `total` counts.
const PIECE: usize = 64 * 1024;

/// How long a body may take to arrive, beside a second for each `UNIT` of it. A client that is
/// slower would keep its room from others at next to no cost to itself.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// How much is read ahead of a body, for how long, and of all bodies together. As much as most forms
/// and calls of APIs have.
const READ_AHEAD: usize = 16 * 1024;
const READ_AHEAD_TIMEOUT: Duration = Duration::from_secs(1);
const ALL_READ_AHEAD: usize = 16 * 1024 * 1024;

type BoxError = Box<dyn StdError + Send + Sync>;

/// How much is kept of a request body, and of all of them. All workers share it.
#[derive(Debug)]
pub struct RequestBuffering {
    max: usize,
    /// Whether a body that is late is sent on as it comes, and none is kept to be sent again.
    only_reads_ahead: bool,
    /// The bytes that all bodies may take together, in units.
    total: Arc<Semaphore>,
}

impl RequestBuffering {
    /// At most `max` bytes of a body, and `total` bytes of all of them. Longer bodies are sent on
    /// as they come, and so are those for which there is no room.
    pub fn new(max: usize, total: usize) -> Self {
        let units = total.div_ceil(UNIT).min(Semaphore::MAX_PERMITS);
        Self {
            max,
            only_reads_ahead: false,
            total: Arc::new(Semaphore::new(units)),
        }
    }

    /// Reads the beginning of bodies, which is all of most, while their clients do not keep it
    /// waiting: requests that have their bodies keep no server waiting either.
    pub fn read_ahead() -> Self {
        Self {
            only_reads_ahead: true,
            ..Self::new(READ_AHEAD, ALL_READ_AHEAD)
        }
    }

    /// Reads the body of a request, as far as `buffering` goes. If all of it is kept, it can be
    /// made once more.
    pub(super) async fn read<B>(
        buffering: Option<&Self>,
        request: BoxedRequest<B>,
    ) -> Result<(BoxedRequest<Buffered<B>>, Option<Replay<Buffered<B>>>), BoxError>
    where
        B: Body<Data = Bytes> + Unpin + 'static,
        B::Error: Into<BoxError>,
    {
        let buffering = buffering.filter(|_| !is_conversation(&request));
        let room = buffering.and_then(|buffering| buffering.room(request.body()));
        let BoxedRequest { head, body } = request;
        let body = match room {
            None => Buffered::streamed(body),
            Some(room) => room.fill(body).await?,
        };
        let keeps = buffering.is_some_and(|buffering| !buffering.only_reads_ahead);
        let replay = body.replay().filter(|_| keeps);
        Ok((BoxedRequest { head, body }, replay))
    }

    /// The room for a body; none for one that is not kept. Room is taken as the body arrives, or a
    /// client could take it by announcing a length.
    fn room(&self, body: &impl Body) -> Option<Room> {
        let hint = body.size_hint();
        let mut least = usize::try_from(hint.lower()).unwrap_or(usize::MAX);
        if self.only_reads_ahead {
            least = least.min(self.max);
        }
        if body.is_end_stream() || least > self.max {
            return None;
        }
        let permit = Arc::clone(&self.total).try_acquire_owned().ok()?;
        let room = Room {
            max: self.max,
            only_reads_ahead: self.only_reads_ahead,
            permit,
        };
        (units(least) <= 1 + self.total.available_permits()).then_some(room)
    }
}

fn units(bytes: usize) -> usize {
    bytes.div_ceil(UNIT)
}

/// Whether the client may wait for the response before it sends the rest.
fn is_conversation<B>(request: &BoxedRequest<B>) -> bool {
    let of_grpc = |value: &http::HeaderValue| value.as_bytes().starts_with(b"application/grpc");
    request.headers().contains_key(UPGRADE)
        || request.extensions().get::<hyper::ext::Protocol>().is_some()
        || request.headers().get(CONTENT_TYPE).is_some_and(of_grpc)
}

struct Room {
    max: usize,
    only_reads_ahead: bool,
    permit: OwnedSemaphorePermit,
}

impl Room {
    /// Reads a body to its end, or until there is no more room. What is kept is copied, as a small
    /// frame may hold on to a large buffer.
    async fn fill<B>(mut self, mut body: B) -> Result<Buffered<B>, BoxError>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: Into<BoxError>,
    {
        let start = Instant::now();
        let mut kept = Pieces::default();
        let mut trailers = None;
        let (mut next, mut is_whole) = (None, true);
        loop {
            let Ok(frame) = timeout_at(start + self.patience(kept.bytes), body.frame()).await
            else {
                if !self.only_reads_ahead {
                    return Err(too_slow().into());
                }
                is_whole = false;
                break;
            };
            let Some(frame) = frame else {
                break;
            };
            match frame.map_err(Into::into)?.into_data() {
                Ok(data) if kept.bytes + data.len() > self.max => {
                    (next, is_whole) = (Some(data), false);
                    break;
                }
                Ok(data) => {
                    kept.push(&data);
                    is_whole = self.grow(kept.allocated());
                }
                Err(frame) => trailers = frame.into_trailers().ok(),
            }
            if !is_whole || body.is_end_stream() {
                break;
            }
        }
        Ok(Buffered {
            kept: kept.finish().into_iter().chain(next).collect(),
            trailers,
            rest: (!is_whole).then_some(body),
            is_whole,
            room: Some(Arc::new(self.permit)),
        })
    }

    /// How long a body may take of which so many bytes have arrived.
    fn patience(&self, arrived: usize) -> Duration {
        match self.only_reads_ahead {
            true => READ_AHEAD_TIMEOUT,
            false => READ_TIMEOUT + Duration::from_secs(units(arrived) as u64),
        }
    }

    /// Takes room for so many bytes in all, if there is enough left.
    fn grow(&mut self, bytes: usize) -> bool {
        let missing = units(bytes).saturating_sub(self.permit.num_permits());
        let missing = u32::try_from(missing).unwrap_or(u32::MAX);
        let more = Arc::clone(self.permit.semaphore()).try_acquire_many_owned(missing);
        more.map(|more| self.permit.merge(more)).is_ok()
    }
}

fn too_slow() -> io::Error {
    io::Error::new(
        io::ErrorKind::TimedOut,
        "the client sends the body too slowly",
    )
}

/// What has been read, in pieces.
#[derive(Default)]
struct Pieces {
    full: VecDeque<Bytes>,
    last: Vec<u8>,
    bytes: usize,
}

impl Pieces {
    fn push(&mut self, mut data: &[u8]) {
        self.bytes += data.len();
        while !data.is_empty() {
            if self.last.len() >= PIECE {
                self.full.push_back(std::mem::take(&mut self.last).into());
            }
            let (now, later) = data.split_at(data.len().min(PIECE - self.last.len()));
            let needed = self.last.len() + now.len();
            if needed > self.last.capacity() {
                let target = needed.max(2 * self.last.capacity()).min(PIECE);
                self.last.reserve_exact(target - self.last.len());
            }
            self.last.extend_from_slice(now);
            data = later;
        }
    }

    /// How much memory it takes, in bytes.
    fn allocated(&self) -> usize {
        self.full.len() * PIECE + self.last.capacity()
    }

    fn finish(mut self) -> VecDeque<Bytes> {
        if !self.last.is_empty() {
            self.full.push_back(self.last.into());
        }
        self.full
    }
}

/// A body of which the beginning, or all of it, has been read.
pub(super) struct Buffered<B> {
    kept: VecDeque<Bytes>,
    trailers: Option<HeaderMap>,
    /// The part that is still to come.
    rest: Option<B>,
    is_whole: bool,
    room: Option<Arc<OwnedSemaphorePermit>>,
}

impl<B> Buffered<B> {
    fn streamed(body: B) -> Self {
        Self {
            kept: VecDeque::new(),
            trailers: None,
            rest: Some(body),
            is_whole: false,
            room: None,
        }
    }

    /// What makes the body once more, if it is there as a whole.
    fn replay(&self) -> Option<Replay<Self>>
    where
        B: 'static,
    {
        if !self.is_whole || self.trailers.is_some() {
            return None;
        }
        let (kept, room) = (self.kept.clone(), self.room.clone());
        Some(Box::new(move || Self {
            kept: kept.clone(),
            trailers: None,
            rest: None,
            is_whole: true,
            room: room.clone(),
        }))
    }
}

impl<B> Body for Buffered<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if let Some(read) = this.kept.pop_front() {
            if this.kept.is_empty() && !this.is_whole {
                this.room = None;
            }
            return Poll::Ready(Some(Ok(Frame::data(read))));
        }
        if let Some(rest) = &mut this.rest {
            let frame = Pin::new(rest).poll_frame(cx);
            return frame.map(|frame| frame.map(|frame| frame.map_err(Into::into)));
        }
        let trailers = this.trailers.take();
        Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        let is_read = self.kept.is_empty() && self.trailers.is_none();
        is_read && self.rest.as_ref().is_none_or(Body::is_end_stream)
    }

    /// Trailers need chunks, so the length of a body that has them is not told.
    fn size_hint(&self) -> SizeHint {
        if self.trailers.is_some() {
            return SizeHint::default();
        }
        let read: u64 = self.kept.iter().map(|piece| piece.len() as u64).sum();
        let rest = self.rest.as_ref().map(Body::size_hint);
        let mut hint = rest.unwrap_or_else(|| SizeHint::with_exact(0));
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + read);
        }
        hint.set_lower(hint.lower() + read);
        hint
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{StreamExt, stream};
    use http_body_util::{Full, StreamBody};
    use tokio::time::sleep;

    use http::Request;

    use super::*;

    fn data(text: &'static str) -> Frame<Bytes> {
        Frame::data(Bytes::from_static(text.as_bytes()))
    }

    fn chunked(
        frames: Vec<Frame<Bytes>>,
    ) -> impl Body<Data = Bytes, Error = io::Error> + Unpin + 'static {
        StreamBody::new(stream::iter(frames.into_iter().map(Ok)))
    }

    async fn read<B>(buffering: &RequestBuffering, body: B) -> (Buffered<B>, bool)
    where
        B: Body<Data = Bytes> + Unpin + 'static,
        B::Error: Into<BoxError>,
    {
        let read = RequestBuffering::read(Some(buffering), Request::new(body).into_boxed()).await;
        let (request, replay) = read.unwrap();
        (request.body, replay.is_some())
    }

    async fn text<B>(body: Buffered<B>) -> String
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: Into<BoxError>,
    {
        let bytes = body.collect().await.unwrap().to_bytes();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn a_body_that_is_read_to_its_end_has_a_length_and_can_be_made_again() {
        let buffering = RequestBuffering::new(8, 1024);
        let (body, replays) = read(&buffering, chunked(vec![data("four"), data("four")])).await;
        assert!(replays);
        assert_eq!(body.size_hint().exact(), Some(8));
        assert_eq!(text(body).await, "fourfour");
    }

    #[tokio::test]
    async fn a_body_beyond_the_bound_is_sent_on_in_order() {
        let buffering = RequestBuffering::new(7, 1024);
        let frames = vec![data("four"), data("five5"), data("more")];
        let (body, replays) = read(&buffering, chunked(frames)).await;
        assert!(!replays);
        assert_eq!(body.size_hint().exact(), None);
        assert_eq!(text(body).await, "fourfive5more");
        let (body, _) = read(&buffering, Full::from("longer than that")).await;
        assert!(body.kept.is_empty(), "its length told beforehand");
        assert_eq!(body.size_hint().exact(), Some(16));
    }

    #[test]
    fn what_is_kept_does_not_take_more_memory_than_it_has_bytes() {
        for frame in [1_000, 300_000] {
            let mut pieces = Pieces::default();
            let frame = vec![b'x'; frame];
            for _ in 0..1_000_000 / frame.len() {
                pieces.push(&frame);
                assert!(pieces.last.capacity() <= PIECE);
                assert!(pieces.allocated() < 2 * pieces.bytes.max(UNIT));
                assert!(pieces.full.iter().all(|piece| piece.len() == PIECE));
            }
            let bytes = pieces.bytes;
            let kept = pieces.finish();
            assert_eq!(kept.iter().map(Bytes::len).sum::<usize>(), bytes);
        }
    }

    #[tokio::test]
    async fn what_has_no_room_is_sent_on_as_it_comes() {
        let buffering = RequestBuffering::new(1024, 1024);
        let (first, _) = read(&buffering, Full::from("first")).await;
        let (second, replays) = read(&buffering, Full::from("second")).await;
        assert!(!replays && second.kept.is_empty());
        drop(first);
        let (third, replays) = read(&buffering, Full::from("third")).await;
        assert!(replays, "the room of the first is free again");
        assert_eq!(text(third).await, "third");
    }

    /// A body that announces a length, of which a byte comes each second, until it is dropped.
    fn drip(length: u64) -> impl Body<Data = Bytes, Error = io::Error> + Unpin + 'static {
        let frames = stream::unfold((), |()| async {
            sleep(Duration::from_secs(1)).await;
            Some((Ok(data("x")), ()))
        });
        Announced(Box::pin(StreamBody::new(frames)), length)
    }

    struct Announced<B>(Pin<Box<B>>, u64);

    impl<B: Body> Body for Announced<B> {
        type Data = B::Data;
        type Error = B::Error;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
            self.0.as_mut().poll_frame(cx)
        }

        fn size_hint(&self) -> SizeHint {
            SizeHint::with_exact(self.1)
        }
    }

    /// Two of them took all of the room for as long as they liked.
    #[tokio::test(start_paused = true)]
    async fn clients_that_drip_neither_take_the_room_that_they_announce_nor_stay() {
        let buffering = RequestBuffering::new(1024 * 1024, 2 * 1024 * 1024);
        let free = || buffering.total.available_permits();
        let before = free();
        let start = Instant::now();
        let dripped = || {
            let request = Request::new(drip(1024 * 1024)).into_boxed();
            RequestBuffering::read(Some(&buffering), request)
        };
        let honest = async {
            sleep(Duration::from_secs(20)).await;
            assert_eq!(free(), before - 2, "a unit each");
            let (body, replays) = read(&buffering, Full::from("honest")).await;
            assert!(replays);
            drop(body);
        };
        let (first, second, ()) = tokio::join!(dripped(), dripped(), honest);
        assert!(first.is_err() && second.is_err());
        assert_eq!(start.elapsed(), READ_TIMEOUT + Duration::from_secs(1));
        assert_eq!(free(), before);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_but_steady_upload_is_read_to_its_end() {
        let buffering = RequestBuffering::new(1024 * 1024, 1024 * 1024);
        let frames = stream::iter(0..100).then(async |_| {
            sleep(Duration::from_secs(3)).await;
            Ok::<_, io::Error>(Frame::data(Bytes::from(vec![b'x'; 4 * UNIT])))
        });
        let (body, replays) = read(&buffering, Box::pin(StreamBody::new(frames))).await;
        assert!(replays);
        assert_eq!(body.size_hint().exact(), Some(100 * 4 * UNIT as u64));
    }

    #[tokio::test]
    async fn what_is_sent_on_as_it_comes_gives_its_room_back() {
        let buffering = RequestBuffering::new(7, 1024);
        let frames = vec![data("four"), data("five5"), data("more")];
        let (mut body, _) = read(&buffering, chunked(frames)).await;
        assert_eq!(buffering.total.available_permits(), 0);
        for _ in 0..2 {
            body.frame().await.unwrap().unwrap();
        }
        assert_eq!(buffering.total.available_permits(), 1);
        assert_eq!(text(body).await, "more");
    }

    #[tokio::test]
    async fn trailers_are_kept_and_a_conversation_is_not_held_up() {
        let buffering = RequestBuffering::new(1024, 4096);
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", "1".parse().unwrap());
        let frames = vec![data("body"), Frame::trailers(trailers.clone())];
        let (body, replays) = read(&buffering, chunked(frames)).await;
        assert!(!replays);
        assert_eq!(body.size_hint().exact(), None);
        assert_eq!(body.collect().await.unwrap().trailers(), Some(&trailers));
        let call = Request::post("/").header("content-type", "application/grpc+proto");
        let call = call.body(Full::from("message")).unwrap();
        let (call, _) = RequestBuffering::read(Some(&buffering), call.into_boxed())
            .await
            .unwrap();
        assert!(call.body().kept.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_is_late_is_read_ahead_for_a_second_and_then_sent_on_as_it_comes() {
        let ahead = RequestBuffering::read_ahead();
        let frames = stream::iter(["one ", "two ", "three"]).then(|text| async move {
            sleep(Duration::from_millis(700)).await;
            Ok::<_, io::Error>(data(text))
        });
        let start = Instant::now();
        let (body, replays) = read(&ahead, Box::pin(StreamBody::new(frames))).await;
        assert_eq!(start.elapsed(), READ_AHEAD_TIMEOUT);
        assert!(!replays && !body.is_whole);
        assert_eq!(text(body).await, "one two three");
    }

    /// It took a slot with its head, and kept it.
    #[tokio::test(start_paused = true)]
    async fn the_beginning_of_a_body_is_read_ahead_however_long_it_says_that_it_is() {
        let ahead = RequestBuffering::read_ahead();
        let start = Instant::now();
        let pending =
            stream::iter([Ok::<_, io::Error>(data("beginning"))]).chain(stream::pending());
        let long = Announced(Box::pin(StreamBody::new(pending)), 1 << 40);
        let (body, _) = read(&ahead, long).await;
        assert_eq!(start.elapsed(), READ_AHEAD_TIMEOUT);
        assert_eq!(body.kept.iter().map(Bytes::len).sum::<usize>(), 9);
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_is_read_ahead_than_the_bound_and_nothing_is_kept_to_be_sent_again() {
        let ahead = RequestBuffering::read_ahead();
        let piece = || Ok::<_, io::Error>(Frame::data(Bytes::from_static(&[b'x'; 1024])));
        let frames = stream::iter((0..100).map(move |_| piece()));
        let (body, _) = read(&ahead, Box::pin(StreamBody::new(frames))).await;
        let kept: usize = body.kept.iter().map(Bytes::len).sum();
        assert_eq!(kept, READ_AHEAD + 1024, "with the frame that is too much");
        assert_eq!(text(body).await.len(), 100 * 1024);
        let (whole, replays) = read(&ahead, Full::from("short")).await;
        assert!(whole.is_whole && !replays);
    }
}
