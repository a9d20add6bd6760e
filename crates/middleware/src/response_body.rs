//! A response's body, and a response, which come from the inner service or are made here.

use std::fmt;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use http::{HeaderMap, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use pin_project_lite::pin_project;
use tokio::task::yield_now;
use weir_http::problem::Problem;

use super::backend::PendingTasks;
use super::{HasVerdict, InFlight, Verdict};

pin_project! {
    /// A response's body.
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        origin: Origin<B>,
        in_flight: Option<InFlight>,
        reading: Option<Box<Reading>>,
        coding: Option<Box<Coding>>,
    }
}

/// Codes a response's body as it passes.
pub trait BodyCoder: Send + Sync {
    /// What there is to send after this data; nothing if it is held back.
    fn code(&mut self, data: &[u8]) -> Bytes;

    /// What was held back.
    fn flush(&mut self) -> Bytes;

    /// What is left to send at the end of the body.
    fn finish(&mut self) -> Bytes;
}

/// How much of a body is coded before other connections have their turn: a codec takes up to a
/// millisecond for it, and an upstream may send faster than a codec is.
const CODED_AT_ONCE: usize = 16 * 1024;

/// What codes a body, and its trailers, which come after the end of what is coded.
struct Coding {
    /// None after the end.
    coder: Option<Box<dyn BodyCoder>>,
    uncoded: Bytes,
    /// How much was coded since others had their turn.
    coded_in_turn: usize,
    trailers: Option<Frame<Bytes>>,
}

impl fmt::Debug for Coding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coding").finish_non_exhaustive()
    }
}

impl Coding {
    /// The next frame. `poll` polls the body that is coded. What is held back is sent as soon as
    /// the body has nothing ready, so that events are not late.
    fn poll<E>(
        &mut self,
        cx: &mut Context<'_>,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, E>>>,
    ) -> Poll<Option<Result<Frame<Bytes>, E>>> {
        loop {
            let Some(coder) = &mut self.coder else {
                return Poll::Ready(self.trailers.take().map(Ok));
            };
            let coded = if self.uncoded.is_empty() {
                match poll(cx) {
                    Poll::Pending => {
                        self.coded_in_turn = 0;
                        let coded = coder.flush();
                        if coded.is_empty() {
                            return Poll::Pending;
                        }
                        coded
                    }
                    Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                    Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                        Ok(data) => {
                            self.uncoded = data;
                            continue;
                        }
                        Err(trailers) => {
                            self.trailers = Some(trailers);
                            let end = coder.finish();
                            self.coder = None;
                            end
                        }
                    },
                    Poll::Ready(None) => {
                        let end = coder.finish();
                        self.coder = None;
                        end
                    }
                }
            } else if self.coded_in_turn < CODED_AT_ONCE {
                let left = CODED_AT_ONCE - self.coded_in_turn;
                let piece = self.uncoded.split_to(left.min(self.uncoded.len()));
                self.coded_in_turn += piece.len();
                coder.code(&piece)
            } else {
                self.coded_in_turn = 0;
                // This has the runtime look at all sockets before it polls the connection again.
                let _ = pin!(yield_now()).poll(cx);
                return Poll::Pending;
            };
            if !coded.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(coded))));
            }
        }
    }

    fn is_over(&self) -> bool {
        self.coder.is_none() && self.trailers.is_none()
    }
}

/// Reads a response's body as it passes.
pub(super) trait BodyReader: Send + Sync {
    /// Reads a frame, and may take from its trailers.
    fn read(&mut self, frame: &mut Frame<Bytes>);

    /// The body is over. Returns what its end waits for.
    fn end(self: Box<Self>) -> PendingTasks;
}

/// What reads a body, and what its end waits for.
struct Reading {
    /// None when the body is over.
    reader: Option<Box<dyn BodyReader>>,
    pending: PendingTasks,
    /// The last frame, which waits too: a client that has it all does not wait for the end.
    last: Option<Frame<Bytes>>,
}

impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reading").finish_non_exhaustive()
    }
}

pin_project! {
    #[project = OriginProjection]
    #[derive(Debug)]
    enum Origin<B> {
        /// The inner service's.
        Forwarded {
            #[pin]
            body: B,
        },
        /// Made by a layer, in one piece. Its length is shown, unless it has to look like one that
        /// was not known beforehand.
        Made {
            body: Option<Bytes>,
            shows_length: bool,
        },
        /// A message of gRPC, and the trailers after it.
        Reply {
            message: Option<Bytes>,
            trailers: Option<Box<HeaderMap>>,
        },
    }
}

impl<B> ResponseBody<B> {
    /// The inner service's body.
    pub fn forwarded(body: B) -> Self {
        Self {
            origin: Origin::Forwarded { body },
            in_flight: None,
            reading: None,
            coding: None,
        }
    }

    /// The same body, coded as it passes.
    pub fn coded_by(mut self, coder: Box<dyn BodyCoder>) -> Self {
        self.coding = Some(Box::new(Coding {
            coder: Some(coder),
            uncoded: Bytes::new(),
            coded_in_turn: 0,
            trailers: None,
        }));
        self
    }

    /// The same body, with what the request holds until the last of the body is passed on, or the body
    /// is dropped. That is before the client has it, which may then ask again at once.
    #[inline]
    pub(crate) fn holding(mut self, in_flight: Option<InFlight>) -> Self
    where
        B: Body<Data = Bytes>,
    {
        if in_flight.is_some() && !self.is_end_stream() {
            self.in_flight = in_flight;
        }
        self
    }

    /// The same body, read by `reader` as it passes.
    pub(super) fn read_by(mut self, reader: Box<dyn BodyReader>) -> Self {
        self.reading = Some(Box::new(Reading {
            reader: Some(reader),
            pending: PendingTasks::new(),
            last: None,
        }));
        self
    }

    /// The response that this problem is told by.
    pub fn problem(problem: Problem) -> Response<Self> {
        Self::whole(problem.into_response())
    }

    /// A response whose body is there as a whole.
    pub(super) fn whole(response: Response<Full<Bytes>>) -> Response<Self> {
        response.map(|body| Self::full(body.into_inner().unwrap_or_default()))
    }

    /// The message of a call of gRPC, which ends with trailers.
    pub fn reply(message: Bytes, trailers: HeaderMap) -> Self {
        Self {
            origin: Origin::Reply {
                message: Some(message),
                trailers: Some(Box::new(trailers)),
            },
            in_flight: None,
            reading: None,
            coding: None,
        }
    }

    /// A body made here, sent with its length.
    pub fn full(body: impl Into<Bytes>) -> Self {
        Self::made(body.into(), true)
    }

    /// A body made here, sent as one whose length was not known beforehand.
    pub fn chunked(body: impl Into<Bytes>) -> Self {
        Self::made(body.into(), false)
    }

    /// The same body after `map`, of a response that was made by Weir, here or further inside. Such
    /// a body is there as a whole.
    #[must_use]
    pub fn map_whole(self, map: impl FnOnce(Bytes) -> Bytes) -> Self
    where
        B: Body<Data = Bytes>,
    {
        let whole = match self.origin {
            Origin::Made { body, .. } => body,
            Origin::Reply { message, .. } => message,
            Origin::Forwarded { body } => whole(body),
        };
        Self::full(map(whole.unwrap_or_default())).holding(self.in_flight)
    }

    fn made(body: Bytes, shows_length: bool) -> Self {
        Self {
            origin: Origin::Made {
                body: Some(body),
                shows_length,
            },
            in_flight: None,
            reading: None,
            coding: None,
        }
    }
}

impl<B: Body<Data = Bytes>> ResponseBody<B> {
    /// What is sent next, coded if it is to be.
    #[inline(always)]
    fn poll_content(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let mut this = self.project();
        match this.coding {
            None => poll_origin(this.origin, this.reading, cx),
            Some(coding) => {
                coding.poll(cx, |cx| poll_origin(this.origin.as_mut(), this.reading, cx))
            }
        }
    }
}

impl<B: Body<Data = Bytes>> Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if self.in_flight.is_none() {
            return self.poll_content(cx);
        }
        let polled = self.as_mut().poll_content(cx);
        let is_over = match &polled {
            Poll::Pending => false,
            Poll::Ready(Some(Ok(_))) => self.is_end_stream(),
            Poll::Ready(None | Some(Err(_))) => true,
        };
        if is_over {
            *self.project().in_flight = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        if let Some(coding) = &self.coding {
            return coding.is_over();
        }
        match &self.origin {
            Origin::Forwarded { body } => self.reading.is_none() && body.is_end_stream(),
            Origin::Made { body, shows_length } => {
                *shows_length && body.as_ref().is_none_or(Bytes::is_empty)
            }
            Origin::Reply { message, trailers } => message.is_none() && trailers.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        if self.coding.is_some() {
            return SizeHint::default();
        }
        match &self.origin {
            Origin::Forwarded { body } => body.size_hint(),
            Origin::Made {
                shows_length: false,
                ..
            }
            | Origin::Reply { .. } => SizeHint::default(),
            Origin::Made { body, .. } => {
                SizeHint::with_exact(body.as_ref().map_or(0, |body| body.len() as u64))
            }
        }
    }
}

fn whole<B: Body<Data = Bytes>>(body: B) -> Option<Bytes> {
    match pin!(body).poll_frame(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Some(Ok(frame))) => frame.into_data().ok(),
        _ => None,
    }
}

/// Polls a body before it is coded.
fn poll_origin<B: Body<Data = Bytes>>(
    origin: Pin<&mut Origin<B>>,
    reading: &mut Option<Box<Reading>>,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
    match origin.project() {
        OriginProjection::Forwarded { body } => match reading {
            None => body.poll_frame(cx),
            Some(_) => poll_read(reading, body, cx),
        },
        OriginProjection::Made { body, .. } => {
            let whole = body.take().filter(|body| !body.is_empty());
            Poll::Ready(whole.map(|body| Ok(Frame::data(body))))
        }
        OriginProjection::Reply { message, trailers } => {
            let message = message.take().map(Frame::data);
            let trailers = || trailers.take().map(|trailers| Frame::trailers(*trailers));
            Poll::Ready(message.or_else(trailers).map(Ok))
        }
    }
}

/// Polls a body that is read. What the reader waits for at the end holds up the last frame.
fn poll_read<B: Body<Data = Bytes>>(
    slot: &mut Option<Box<Reading>>,
    mut body: Pin<&mut B>,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
    let Some(reading) = slot else {
        return body.poll_frame(cx);
    };
    if let Some(reader) = &mut reading.reader {
        let frame = match ready!(body.as_mut().poll_frame(cx)) {
            Some(Ok(mut frame)) => {
                reader.read(&mut frame);
                if frame.is_data() && !body.is_end_stream() {
                    return Poll::Ready(Some(Ok(frame)));
                }
                Some(frame)
            }
            Some(Err(error)) => {
                *slot = None;
                return Poll::Ready(Some(Err(error)));
            }
            None => None,
        };
        reading.last = frame;
        let ended = reading.reader.take();
        reading.pending = ended.map_or_else(PendingTasks::new, BodyReader::end);
    }
    reading
        .pending
        .retain(|task| Pin::new(task).poll(cx).is_pending());
    if !reading.pending.is_empty() {
        return Poll::Pending;
    }
    let last = reading.last.take();
    *slot = None;
    Poll::Ready(last.map(Ok))
}

pin_project! {
    /// The response of a layer that responds to some requests itself, and passes all others on.
    #[project = InnerOrLocalProjection]
    pub enum InnerOrLocal<F, R> {
        /// The service below responds.
        Inner {
            #[pin]
            future: F,
        },
        /// The response is there already.
        Local { response: Option<Box<Response<ResponseBody<R>>>> },
    }
}

impl<F, R> InnerOrLocal<F, R> {
    // A call of its own would move the future once more.
    #[inline(always)]
    pub(super) fn inner(future: F) -> Self {
        Self::Inner { future }
    }

    pub(super) fn local(response: Response<ResponseBody<R>>) -> Self {
        Self::Local {
            response: Some(Box::new(response)),
        }
    }
}

impl<F, R, E> Future for InnerOrLocal<F, R>
where
    F: Future<Output = Result<Response<ResponseBody<R>>, E>>,
{
    type Output = Result<Response<ResponseBody<R>>, E>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            InnerOrLocalProjection::Inner { future } => future.poll(cx),
            // A future that has responded is not polled again; if it is, it waits.
            InnerOrLocalProjection::Local { response } => match response.take() {
                Some(response) => Poll::Ready(Ok(*response)),
                None => Poll::Pending,
            },
        }
    }
}

impl<F: HasVerdict, R> HasVerdict for InnerOrLocal<F, R> {
    fn verdict(&self) -> Option<&Verdict> {
        match self {
            Self::Inner { future } => future.verdict(),
            Self::Local { .. } => None,
        }
    }
}
