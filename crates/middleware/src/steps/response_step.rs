//! What features do with responses on their way to clients: steps, listed when the configuration is
//! loaded, of which each request takes those that concern its response.
//!
//! A step sees the head of a response and the length of its body. It may put another body in the
//! place of Weir's own, or have a body coded as it passes, and never reads one. It may add fields of
//! its own to the line of the request in the access log.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use http::header::CONTENT_TYPE;
use http_body::Body;
use smallvec::SmallVec;
use weir_http::problem::{CustomResponse, ProblemResponse};
use weir_telemetry::{LogField, LogValue, Notes, UpstreamOutcome};

use crate::response_body::{BodyCoder, ResponseBody};
use crate::{RequestHead, Verdict};

/// The media type of errors that are configured for programs.
pub(crate) const JSON: &str = "application/json";

/// When a step has its turn. Those of the same phase follow each other as they are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Fields of the app are edited, before Weir adds those of its limits.
    AppFields,
    /// Fields of Weir's own are added.
    OwnFields,
    /// Weir's own responses get the form that the client reads.
    Form,
    /// The body is coded.
    Coding,
}

impl Phase {
    pub(crate) const ALL: [Self; 4] = [Self::AppFields, Self::OwnFields, Self::Form, Self::Coding];
}

/// What a feature does with responses: those of a route, or all.
pub trait ResponseStep: Any + fmt::Debug + Send + Sync {
    /// When it has its turn.
    fn phase(&self) -> Phase;

    /// What it does with the response to this request; none if nothing. It is asked in the poll in
    /// which the request began, by the reading of the clock that the log's `duration_ms` counts from
    /// (`weir_runtime::loop_time`).
    fn prepare(&self, request: &RequestHead<'_>) -> Option<Box<dyn PreparedStep>>;

    /// Whether it is for the responses, too, by which a listener decides for another proxy, which
    /// shows them to the client.
    fn is_for_decisions(&self) -> bool {
        false
    }
}

/// What a step does with the response to one request.
pub trait PreparedStep: fmt::Debug + Send + Sync {
    /// Changes the response.
    fn apply(self: Box<Self>, response: &mut Outgoing);
}

/// The steps of a route, or of all responses, in the order of their phases.
#[derive(Clone, Debug, Default)]
pub struct ResponseSteps(Arc<[Arc<dyn ResponseStep>]>);

impl FromIterator<Arc<dyn ResponseStep>> for ResponseSteps {
    fn from_iter<I: IntoIterator<Item = Arc<dyn ResponseStep>>>(steps: I) -> Self {
        let mut steps: Vec<_> = steps.into_iter().collect();
        steps.sort_by_key(|step| step.phase());
        Self(steps.into())
    }
}

impl ResponseSteps {
    /// The same steps and this one, if there is one.
    #[must_use]
    pub fn with(&self, step: Option<impl ResponseStep>) -> Self {
        let step = step.map(|step| Arc::new(step) as Arc<dyn ResponseStep>);
        self.0.iter().cloned().chain(step).collect()
    }

    /// The same steps, and those of all responses behind them in each phase.
    #[must_use]
    pub fn and(&self, of_all: &Self) -> Self {
        self.0.iter().chain(&*of_all.0).cloned().collect()
    }

    /// Those that are for decisions, too.
    #[must_use]
    pub fn of_decisions(&self) -> Self {
        let steps = self.0.iter().filter(|step| step.is_for_decisions());
        steps.cloned().collect()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The step of this type, if there is one.
    pub fn find<S: ResponseStep>(&self) -> Option<&S> {
        let mut steps = self.0.iter();
        steps.find_map(|step| (&**step as &dyn Any).downcast_ref())
    }

    /// Whether fields of the app are edited.
    pub(crate) fn edit_app_fields(&self) -> bool {
        let first = self.0.first();
        first.is_some_and(|step| step.phase() == Phase::AppFields)
    }

    /// What they do with the response to a request; none if nothing.
    pub(crate) fn prepare(&self, request: &RequestHead<'_>) -> Option<Box<PreparedSteps>> {
        let mut prepared = None;
        for step in &*self.0 {
            if let Some(of_request) = step.prepare(request) {
                let prepared: &mut Box<PreparedSteps> = prepared.get_or_insert_default();
                prepared.steps.push((step.phase(), of_request));
            }
        }
        prepared
    }
}

/// What is done with the response to one request. Most requests have none, whose futures a box keeps
/// small.
#[derive(Debug, Default)]
pub(crate) struct PreparedSteps {
    /// In this order.
    pub(crate) steps: SmallVec<[(Phase, Box<dyn PreparedStep>); 1]>,
    /// What they add to the log, once they are done.
    pub(crate) notes: Option<Box<Notes>>,
}

/// Who made a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The upstream, a decoy that has to look like it, or what a route answers itself (a redirect, a
    /// preflight). [`Outgoing::is_of_app`] tells them apart.
    Upstream,
    /// Weir, as the configuration says.
    Weir,
    /// Weir: a problem document.
    Problem,
}

/// A response on its way through the steps.
pub struct Outgoing {
    /// Its status, headers and extensions.
    pub head: Response<()>,
    pub(crate) origin: Origin,
    body: OutgoingBody,
    coder: Option<Box<dyn BodyCoder>>,
    pub(crate) notes: Option<Box<Notes>>,
}

enum OutgoingBody {
    /// As it came, and its length if that is known.
    Kept(Option<u64>),
    Replaced(Bytes),
}

impl fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut outgoing = f.debug_struct("Outgoing");
        outgoing.field("head", &self.head).finish_non_exhaustive()
    }
}

impl Outgoing {
    /// The response, apart from its body.
    pub fn new<R>(response: Response<ResponseBody<R>>) -> (Self, ResponseBody<R>)
    where
        R: Body<Data = Bytes>,
    {
        let (head, body) = response.into_parts();
        let mut head = Response::from_parts(head, ());
        let extensions = head.extensions_mut();
        let is_problem = extensions.remove::<ProblemResponse>().is_some();
        let is_made = extensions.remove::<CustomResponse>().is_some();
        let outgoing = Self {
            head,
            origin: match (is_problem, is_made) {
                (true, _) => Origin::Problem,
                (false, true) => Origin::Weir,
                (false, false) => Origin::Upstream,
            },
            body: OutgoingBody::Kept(body.size_hint().exact()),
            coder: None,
            notes: None,
        };
        (outgoing, body)
    }

    /// The response, with the body that came unless it was replaced.
    pub fn with_body<R>(self, body: ResponseBody<R>) -> Response<ResponseBody<R>> {
        let (head, ()) = self.head.into_parts();
        let body = match self.body {
            OutgoingBody::Kept(_) => body,
            OutgoingBody::Replaced(whole) => ResponseBody::full(whole),
        };
        let body = match self.coder {
            Some(coder) => body.coded_by(coder),
            None => body,
        };
        Response::from_parts(head, body)
    }

    /// Whether Weir made it.
    pub fn is_made(&self) -> bool {
        self.origin != Origin::Upstream
    }

    /// Whether the app gave it: a server of the route's upstream, to a request that nothing kept from
    /// it. A decoy is none, nor what a route answers itself, nor what diverted clients get. It is for
    /// steps that learn from the app; one that changes responses goes by [`Self::is_made`], as what
    /// the app's responses get must not be missing from a decoy.
    pub fn is_of_app(&self) -> bool {
        let extensions = self.head.extensions();
        let verdict = extensions.get::<Verdict>();
        extensions.get::<UpstreamOutcome>().is_some()
            && verdict.is_none_or(|verdict| verdict.disposition.lets_through())
    }

    /// Whether it says to a program why there is none of the upstream: a problem document, or an
    /// error in JSON that is configured in its place.
    pub(crate) fn is_error_for_programs(&self) -> bool {
        let is_error = || is_json_error(&self.head);
        self.origin == Origin::Problem || self.origin == Origin::Weir && is_error()
    }

    /// The length of the body, if it is known.
    pub fn length(&self) -> Option<u64> {
        match &self.body {
            OutgoingBody::Kept(length) => *length,
            OutgoingBody::Replaced(whole) => Some(whole.len() as u64),
        }
    }

    /// Puts this body in the place of the one that came.
    pub fn replace_body(&mut self, whole: impl Into<Bytes>) {
        self.body = OutgoingBody::Replaced(whole.into());
    }

    /// Adds a field of the step's own to the line of the request in the access log.
    pub fn note<V: Into<LogValue>>(&mut self, field: &'static LogField<V>, value: V) {
        self.notes.get_or_insert_default().set(field, value);
    }

    /// Has the body coded as it passes.
    pub fn code_by(&mut self, coder: Box<dyn BodyCoder>) {
        self.coder = Some(coder);
    }
}

/// Whether a response is an error in JSON.
pub(crate) fn is_json_error<B>(response: &Response<B>) -> bool {
    let status = response.status();
    let content_type = response.headers().get(CONTENT_TYPE);
    let media_type = content_type.and_then(|value| value.to_str().ok()?.split(';').next());
    (status.is_client_error() || status.is_server_error())
        && media_type.is_some_and(|it| it.trim().eq_ignore_ascii_case(JSON))
}

#[cfg(test)]
pub(crate) mod tests {
    use http::{Method, Request};

    use super::*;

    /// What a step that was prepared makes of a response.
    pub(crate) fn applied<R: Body<Data = Bytes>>(
        step: impl PreparedStep,
        response: Response<ResponseBody<R>>,
    ) -> Response<ResponseBody<R>> {
        let (mut outgoing, body) = Outgoing::new(response);
        Box::new(step).apply(&mut outgoing);
        outgoing.with_body(body)
    }

    /// Marks the methods of its phase's requests.
    #[derive(Debug)]
    struct Marking(Phase, &'static str, Method);

    impl ResponseStep for Marking {
        fn phase(&self) -> Phase {
            self.0
        }

        fn prepare(&self, request: &RequestHead<'_>) -> Option<Box<dyn PreparedStep>> {
            let concerns = *request.method == self.2;
            concerns.then(|| Box::new(Mark(self.1)) as Box<dyn PreparedStep>)
        }

        fn is_for_decisions(&self) -> bool {
            self.0 == Phase::Form
        }
    }

    #[derive(Debug)]
    struct Mark(&'static str);

    impl PreparedStep for Mark {
        fn apply(self: Box<Self>, response: &mut Outgoing) {
            let mark = http::HeaderValue::from_static(self.0);
            response.head.headers_mut().append("x-mark", mark);
        }
    }

    fn steps(listed: &[(Phase, &'static str, Method)]) -> ResponseSteps {
        let listed = listed.iter().cloned();
        let steps = listed.map(|(phase, name, method)| Marking(phase, name, method));
        steps.fold(ResponseSteps::default(), |steps, step| {
            steps.with(Some(step))
        })
    }

    fn marks(steps: &ResponseSteps) -> Vec<String> {
        let request = Request::get("/").body(()).unwrap();
        let prepared = steps.prepare(&RequestHead::new(&request));
        let response = Response::new(ResponseBody::<http_body_util::Empty<Bytes>>::full("x"));
        let (mut outgoing, _) = Outgoing::new(response);
        for (_, step) in prepared.unwrap_or_default().steps {
            step.apply(&mut outgoing);
        }
        let marks = outgoing.head.headers().get_all("x-mark").iter();
        marks
            .map(|mark| mark.to_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn steps_follow_their_phases_and_then_their_list() {
        let of_route = steps(&[
            (Phase::Coding, "codes", Method::GET),
            (Phase::OwnFields, "adds", Method::GET),
            (Phase::OwnFields, "is for another", Method::PUT),
            (Phase::AppFields, "edits", Method::GET),
        ]);
        let of_all = steps(&[
            (Phase::Form, "forms", Method::GET),
            (Phase::OwnFields, "adds more", Method::GET),
        ]);
        let both = of_route.and(&of_all);
        assert_eq!(
            marks(&both),
            ["edits", "adds", "adds more", "forms", "codes"]
        );
        assert!(both.edit_app_fields() && !of_all.edit_app_fields());
        assert_eq!(marks(&both.of_decisions()), ["forms"]);
    }

    #[test]
    fn what_a_step_notes_is_there_for_the_log_when_the_response_is() {
        weir_telemetry::log_field! {
            /// whether it was marked
            static MARKED: &'static str = "marked";
        }
        let response = Response::new(ResponseBody::<http_body_util::Empty<Bytes>>::full("x"));
        let (mut outgoing, _) = Outgoing::new(response);
        assert!(outgoing.notes.is_none());
        outgoing.note(&MARKED, "yes");
        let mut noted = Notes::default();
        noted.set(&MARKED, "yes");
        assert_eq!(outgoing.notes.as_deref(), Some(&noted));
    }

    #[test]
    fn a_step_sees_the_length_of_the_body_that_is_sent() {
        let request = Request::get("/").body(()).unwrap();
        assert_eq!(RequestHead::new(&request).version, request.version());
        let response = Response::new(ResponseBody::<http_body_util::Empty<Bytes>>::full("abc"));
        let (mut outgoing, body) = Outgoing::new(response);
        assert_eq!(outgoing.length(), Some(3));
        outgoing.replace_body("abcde");
        assert_eq!(outgoing.length(), Some(5));
        assert_eq!(outgoing.with_body(body).body().size_hint().exact(), Some(5));
    }
}
