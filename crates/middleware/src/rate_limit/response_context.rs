//! What goes with a request through the inner service, and what is added to its response on the way
//! out.

use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Response;
use http_body::Body;
use weir_telemetry::{Strictest, is_logged};

use super::ResponseState;
use super::decisions::QueriedLimits;
use super::header_fields::{self, HeaderForms, LimitStatus};
use super::held::{BodySize, Held, HeldByRequest, HeldResponse, Refused, Responder};
use super::in_flight::InFlight;
use super::policy::{PreparedLimit, RoutePolicy};
use crate::Verdict;
use crate::backend::PendingTasks;
use crate::header_text::append_to;
use crate::response_body::{BodyReader, ResponseBody};
use crate::route::RouteState;

/// What is to be added to a response on its way out.
pub(super) struct ResponseContext {
    pub(super) verdict: Verdict,
    /// The route whose policy the request was held to, if any.
    pub(super) route: Option<Arc<RouteState>>,
    /// Where the client stands, where a limit applied.
    pub(super) status: Option<QueriedLimits>,
    /// What features hold until there is a response; most requests hold nothing.
    pub(super) held: HeldByRequest,
    /// What the request holds until its response is over.
    pub(super) in_flight: Option<InFlight>,
}

impl ResponseContext {
    #[inline]
    pub(super) fn new(verdict: Verdict, route: Option<Arc<RouteState>>) -> Self {
        Self {
            verdict,
            route,
            status: None,
            held: HeldByRequest::new(),
            in_flight: None,
        }
    }

    /// Holds something more, which learns of the response after all else.
    pub(super) fn hold(&mut self, held: Option<Box<impl Held + 'static>>) {
        self.held.extend(held.map(|held| held as Box<dyn Held>));
    }

    /// Makes the inner service's response one for the client, which is to get it when these tasks
    /// are done.
    #[inline]
    pub(super) fn pass<R>(
        &mut self,
        mut response: Response<R>,
    ) -> (Response<ResponseBody<R>>, PendingTasks)
    where
        R: Body<Data = Bytes>,
    {
        let (mut tasks, mut reader) = (PendingTasks::new(), None);
        if self.held.is_empty() {
            self.conceal(&mut response);
        } else {
            (response, tasks, reader) = self.tell_held(response, Responder::Service);
        }
        self.add_verdict_and_headers(&mut response);
        let in_flight = self.in_flight.take();
        let response = response.map(|body| {
            let body = ResponseBody::forwarded(body).holding(in_flight);
            match reader {
                Some(reader) => body.read_by(reader),
                None => body,
            }
        });
        (response, tasks)
    }

    /// The same for the response of what stands in for the service, and shows what a real one would.
    pub(super) fn pass_stand_in<B: Body>(
        &mut self,
        response: Response<B>,
    ) -> (Response<B>, PendingTasks) {
        let (mut response, tasks, _) = self.tell_held(response, Responder::StandIn);
        self.add_verdict_and_headers(&mut response);
        (response, tasks)
    }

    /// Tells all that the request holds of its response. Returns the response with what its client
    /// waits for, and what reads its body.
    #[inline(never)]
    pub(super) fn tell_held<B: Body>(
        &mut self,
        response: Response<B>,
        by: Responder,
    ) -> (Response<B>, PendingTasks, Option<Box<dyn BodyReader>>) {
        let (head, body) = response.into_parts();
        let mut told = HeldResponse {
            by,
            head: Response::from_parts(head, BodySize::new(&body)),
            queried: self.status.take(),
            tasks: PendingTasks::new(),
            reader: None,
        };
        let mut held = mem::take(&mut self.held);
        held.iter_mut().for_each(|held| held.responded(&mut told));
        if by == Responder::Service {
            self.conceal(&mut told.head);
            held.iter_mut().for_each(|held| held.concealed(&mut told));
        }
        self.status = told.queried;
        let (head, _) = told.head.into_parts();
        (Response::from_parts(head, body), told.tasks, told.reader)
    }

    fn conceal<B>(&self, response: &mut Response<B>) {
        if let Some(route) = &self.route {
            route.conceal(response.headers_mut());
        }
    }

    /// Goes on with what the request holds while there is no response. Ready when the inner service
    /// has to be polled again, or the request is refused.
    #[inline]
    pub(super) fn poll_held(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Box<Refused>>> {
        for held in &mut self.held {
            if let Poll::Ready(done) = held.poll(cx, &mut self.verdict) {
                return Poll::Ready(done);
            }
        }
        Poll::Pending
    }

    /// Responds to a request that is refused by what it holds. Its limits have got back what they
    /// took, and it counts for no ban.
    #[cold]
    pub(super) fn refuse<F, R>(&mut self, refused: Refused) -> ResponseState<F, R> {
        self.held.iter_mut().for_each(|held| held.refused());
        let mut status = self.status.take();
        if let Some(queried) = &mut status {
            queried.take_off(&refused.batch);
        }
        let verdict = Verdict {
            store: self.verdict.store,
            decided_by: self.verdict.decided_by,
            decided_at: self.verdict.decided_at,
            ..refused.verdict
        };
        let mut response = ResponseBody::whole(refused.response);
        let context = Self {
            status,
            ..Self::new(verdict, self.route.take())
        };
        let tasks = context.complete(&mut response);
        ResponseState::answered(response, tasks)
    }

    /// Learns that there will be no response.
    pub(super) fn fail(&mut self) {
        self.held.iter_mut().for_each(|held| held.failed());
    }

    /// Adds the verdict, and the headers that show where the client stands. A verdict that is there
    /// already, from the router without a route, takes precedence.
    pub(super) fn add_verdict_and_headers<B>(&self, response: &mut Response<B>) {
        self.show_limits(response);
        let verdict = response.extensions_mut().get_or_insert_with(|| Verdict {
            strictest: self.strictest(),
            ..self.verdict.clone()
        });
        verdict.take_mark(&self.verdict);
    }

    /// The same for a response that is made here, with which all of this ends. Returns the tasks
    /// that it waits for.
    pub(super) fn complete<B>(mut self, response: &mut Response<B>) -> PendingTasks {
        self.show_limits(response);
        let tasks = self.held.iter_mut().flat_map(|held| held.answered_here());
        let tasks = tasks.collect();
        let strictest = self.strictest();
        let verdict = self.verdict;
        response.extensions_mut().insert(Verdict {
            strictest,
            ..verdict
        });
        tasks
    }

    fn show_limits<B>(&self, response: &mut Response<B>) {
        if let (Some(route), Some(queried)) = (&self.route, &self.status) {
            show_limits(route, queried, Shown::Admission, response);
        }
    }

    /// What is there for the log alone; nothing where it is not read.
    fn strictest(&self) -> Option<Strictest> {
        if self.verdict.is_of_access() || !is_logged() {
            return None;
        }
        let queried = self.status.as_ref()?;
        self.route.as_ref()?.policy.strictest(queried)
    }
}

/// What a response lets its client know.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    /// That a limit denied the request.
    Denial,
    /// No denial. A decoy shows the limits as an answer of the app does.
    Admission,
}

/// Adds the headers that show where the client stands, if the route has them sent; after the edits
/// of the route, which concern the fields of the app.
pub(super) fn show_limits<B>(
    route: &Arc<RouteState>,
    queried: &QueriedLimits,
    shown: Shown,
    response: &mut Response<B>,
) {
    if route.policy.header_forms == HeaderForms::NONE {
        return;
    }
    if route.edits_app_fields {
        let (route, queried) = (Arc::clone(route), queried.clone());
        response.extensions_mut().insert(PendingFields {
            route,
            queried,
            shown,
        });
        return;
    }
    append_fields(&route.policy, queried, shown, response);
}

/// The headers that show where a client stands, while the route's edits of the response are still
/// to come.
#[derive(Clone)]
pub struct PendingFields {
    route: Arc<RouteState>,
    queried: QueriedLimits,
    shown: Shown,
}

impl PendingFields {
    /// Adds them to a response whose headers have been edited.
    pub fn add<B>(&self, response: &mut Response<B>) {
        let (policy, queried) = (&self.route.policy, &self.queried);
        append_fields(policy, queried, self.shown, response);
    }
}

fn append_fields<B>(
    policy: &RoutePolicy<PreparedLimit>,
    queried: &QueriedLimits,
    shown: Shown,
    response: &mut Response<B>,
) {
    let mut statuses = policy.statuses(queried);
    if shown == Shown::Admission {
        statuses.iter_mut().for_each(LimitStatus::conceal_denial);
    }
    append_to(response, |fields| {
        header_fields::append(fields, policy.header_forms, &mut statuses);
    });
    if let Some(hook) = &policy.hook {
        hook.limits_shown(response.headers_mut());
    }
}
