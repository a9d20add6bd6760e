//! What a request holds while the inner service has it.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Response;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use smallvec::SmallVec;
use weir_limit::Batch;

use super::decisions::QueriedLimits;
use crate::Verdict;
use crate::backend::PendingTasks;
use crate::response_body::BodyReader;

/// Something that a request holds while the inner service has it, of one feature. Whatever becomes
/// of the request, it is dropped in the end; if its client leaves, nothing else is called.
pub(crate) trait Held: Send {
    /// Goes on while there is no response. Ready when the request has to be looked at again, or
    /// refused after all.
    fn poll(&mut self, _: &mut Context<'_>, _: &mut Verdict) -> Poll<Result<(), Box<Refused>>> {
        Poll::Pending
    }

    /// There is a response, which has all the fields that it came with.
    fn responded(&mut self, _: &mut HeldResponse) {}

    /// The response of the inner service has the fields that are for clients, and none of Weir's.
    fn concealed(&mut self, _: &mut HeldResponse) {}

    /// Weir responds, and the inner service never gets the request. Returns what the client waits
    /// for.
    fn answered_here(&mut self) -> PendingTasks {
        PendingTasks::new()
    }

    /// The inner service failed.
    fn failed(&mut self) {}

    /// The request is refused while the inner service has it, and its limits have got back what
    /// they took.
    fn refused(&mut self) {}
}

/// A request that is refused while the inner service has it.
pub(crate) struct Refused {
    /// What is decided now. What the request has been told of the store is added.
    pub(crate) verdict: Verdict,
    /// What limits have got back: what they were asked; empty where none was.
    pub(crate) batch: Batch,
    /// What its client gets.
    pub(crate) response: Response<Full<Bytes>>,
}

/// What one request holds, in the order in which it learns of the response.
pub(crate) type HeldByRequest = SmallVec<[Box<dyn Held>; 2]>;

/// Who responds to a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Responder {
    Service,
    /// Something that has to look like the service.
    StandIn,
}

/// A response, for what its request holds.
pub(crate) struct HeldResponse {
    pub(crate) by: Responder,
    pub(crate) head: Response<BodySize>,
    /// Where the client stands, which the response may change.
    pub(super) queried: Option<QueriedLimits>,
    /// What the client waits for before it gets the response.
    pub(crate) tasks: PendingTasks,
    /// What reads the body on its way to the client.
    pub(crate) reader: Option<Box<dyn BodyReader>>,
}

/// A body of which only the size is there.
pub(crate) struct BodySize {
    is_over: bool,
    hint: SizeHint,
}

impl BodySize {
    pub(crate) fn new<B: Body>(body: &B) -> Self {
        Self {
            is_over: body.is_end_stream(),
            hint: body.size_hint(),
        }
    }
}

impl Body for BodySize {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        self.is_over
    }

    fn size_hint(&self) -> SizeHint {
        self.hint
    }
}
