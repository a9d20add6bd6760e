//! The body of a request, read as its upstream takes it.

use std::error::Error;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, Bytes};
use h3::error::Code;
use h3::server::RequestStream;
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http_body::{Body, Frame, SizeHint};

use crate::frames::EmptyData;
use crate::quic::RecvStream;

pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

type Stream = RequestStream<RecvStream, Bytes>;

/// The length that a request declares (RFC 9110, section 8.6).
///
/// # Errors
/// When it is no number, or there are several.
pub(crate) fn declared_length(headers: &HeaderMap) -> Result<Option<u64>, Malformed> {
    let mut lines = headers.get_all(CONTENT_LENGTH).iter();
    let Some(line) = lines.next() else {
        return Ok(None);
    };
    let text = line.to_str().map_err(|_| Malformed)?;
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match (lines.next(), is_number) {
        (None, true) => text.parse().map(Some).map_err(|_| Malformed),
        _ => Err(Malformed),
    }
}

/// A request that is malformed (RFC 9114, section 4.1.2).
#[derive(Debug)]
pub(crate) struct Malformed;

#[derive(Debug, PartialEq, Eq)]
enum Part {
    Data,
    Trailers,
    Over,
}

/// A body that must be as long as was declared.
pub(crate) struct RequestBody {
    stream: Stream,
    /// Read before they were asked for.
    first: Option<Frame<Bytes>>,
    /// How many bytes must still come, if a length was declared.
    left: Option<u64>,
    part: Part,
    /// How many DATA frames without a payload have arrived, and were passed over.
    empty: (EmptyData, u32),
}

impl RequestBody {
    pub(crate) fn new(stream: Stream, length: Option<u64>, empty: EmptyData) -> Self {
        Self {
            stream,
            first: None,
            left: length,
            part: Part::Data,
            empty: (empty, 0),
        }
    }

    /// Whether there is nothing more; waits until the client shows it.
    pub(crate) async fn is_empty(&mut self) -> Result<bool, BoxError> {
        let first = poll_fn(|cx| self.poll_next(cx)).await;
        self.set_first(first)
    }

    /// The same, without waiting.
    pub(crate) fn is_known_empty(&mut self) -> Result<bool, BoxError> {
        // Whoever reads it polls again.
        match self.poll_next(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(first) => self.set_first(first),
            Poll::Pending => Ok(false),
        }
    }

    fn set_first(
        &mut self,
        first: Option<Result<Frame<Bytes>, BoxError>>,
    ) -> Result<bool, BoxError> {
        self.first = first.transpose()?;
        Ok(self.first.is_none())
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match ready!(self.poll_data(cx)) {
            Ok(Some(data)) => return Poll::Ready(Some(Ok(Frame::data(data)))),
            Ok(None) => {}
            Err(error) => {
                self.part = Part::Over;
                return Poll::Ready(Some(Err(error)));
            }
        }
        let trailers = ready!(self.poll_trailers(cx));
        Poll::Ready(trailers.map(|it| it.map(Frame::trailers)).transpose())
    }

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, BoxError>> {
        if self.part != Part::Data {
            return Poll::Ready(Ok(None));
        }
        let mut data = loop {
            let (arrived, passed) = &mut self.empty;
            match ready!(self.stream.poll_recv_data(cx))? {
                Some(data) => break data,
                // h3 calls the body over at each of them.
                None if *passed < arrived.count() => *passed = passed.saturating_add(1),
                None => {
                    self.part = Part::Trailers;
                    return Poll::Ready(self.end().map(|()| None));
                }
            }
        };
        let data = data.copy_to_bytes(data.remaining());
        if let Some(left) = &mut self.left {
            match left.checked_sub(data.len() as u64) {
                Some(rest) => *left = rest,
                None => return Poll::Ready(Err(self.mismatch())),
            }
        }
        Poll::Ready(Ok(Some(data)))
    }

    fn end(&mut self) -> Result<(), BoxError> {
        match self.left {
            None | Some(0) => Ok(()),
            Some(_) => Err(self.mismatch()),
        }
    }

    fn mismatch(&mut self) -> BoxError {
        self.part = Part::Over;
        self.stream.stop_sending(Code::H3_MESSAGE_ERROR);
        "the body is not as long as its content-length says".into()
    }

    fn poll_trailers(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<HeaderMap>, BoxError>> {
        if self.part != Part::Trailers {
            return Poll::Ready(Ok(None));
        }
        let trailers = ready!(self.stream.poll_recv_trailers(cx));
        self.part = Part::Over;
        Poll::Ready(trailers.map_err(Into::into))
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.first.take() {
            Some(first) => Poll::Ready(Some(Ok(first))),
            None => self.poll_next(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.part == Part::Over && self.first.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let first = self.first.as_ref().and_then(Frame::data_ref);
        let first = first.map_or(0, |data| data.len() as u64);
        match self.left {
            Some(left) => SizeHint::with_exact(left.saturating_add(first)),
            None => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_declared_length_is_one_number_of_digits() {
        let declared = |lines: &[&str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(CONTENT_LENGTH, HeaderValue::from_str(line).unwrap());
            }
            declared_length(&headers).ok()
        };
        assert_eq!(declared(&[]), Some(None));
        assert_eq!(declared(&["0"]), Some(Some(0)));
        assert_eq!(declared(&["12"]), Some(Some(12)));
        for lines in [
            &["12", "12"][..],
            &["+1"],
            &["1, 1"],
            &[""],
            &["99999999999999999999"],
        ] {
            assert_eq!(declared(lines), None, "{lines:?}");
        }
    }
}
