//! What becomes of a request that is kept out.

use http::{Request, Response, StatusCode};
use http_body::Body;
use tower::Service;

use super::{Gate, PreparedTreatment};
use crate::middleware::rate_limit::Metered;
use crate::middleware::rate_limit::future::State;
use crate::middleware::rate_limit::passage::ResponseContext;
use crate::middleware::rate_limit::reject;
use crate::middleware::route::no_route;
use crate::middleware::{Answer, Diversion, Rejection, Tarpit, Treatment};
use crate::problem::NoAnswer;
use crate::telemetry::Disposition;
use crate::time::Nanos;

/// What the log says of a request that got no answer, as nginx's does.
const NO_RESPONSE: u16 = 444;

/// Whom a request is kept out by.
pub(in crate::middleware::rate_limit) struct TreatmentContext<'g> {
    pub(in crate::middleware::rate_limit) gate: &'g Gate,
    pub(in crate::middleware::rate_limit) sentence: &'g PreparedTreatment,
    pub(in crate::middleware::rate_limit) route: Option<usize>,
    /// When it would be let in again.
    pub(in crate::middleware::rate_limit) retry_in: Nanos,
}

/// Gives a request what its sender has earned. Only an answer that has to look real tells of limits,
/// which have no say in this.
pub(in crate::middleware::rate_limit) fn treat<S, B, R>(
    treating: &TreatmentContext<'_>,
    mut inner: S,
    request: Request<B>,
    mut passage: ResponseContext,
) -> State<S::Future, R>
where
    S: Service<Request<Metered<B>>, Response = Response<R>>,
    B: Body + Send + 'static,
    B::Data: Send,
    R: Send + 'static,
{
    let looks_real = matches!(
        treating.sentence.treatment(),
        Treatment::Shadow(_) | Treatment::Divert(_)
    );
    if !looks_real {
        passage.standing = None;
    }
    let verdict = &mut passage.verdict.disposition;
    match treating.sentence.treatment() {
        Treatment::Reject(rejection) => {
            *verdict = Disposition::Denied;
            treating.answer(rejection, &passage)
        }
        Treatment::Shadow(_) => {
            *verdict = Disposition::Shadowed;
            treating.shadow(request, passage)
        }
        Treatment::Divert(diversion) => {
            *verdict = Disposition::Diverted;
            let request = diverted(request, *diversion);
            State::Forwarding {
                future: inner.call(request.map(Metered::unmetered)),
                passage,
            }
        }
        Treatment::Tarpit(tarpit) => treating.hold(tarpit, passage),
        Treatment::Drop => {
            *verdict = Disposition::Dropped;
            State::answered(no_answer(&passage))
        }
    }
}

impl TreatmentContext<'_> {
    fn answer<F, R>(&self, rejection: &Rejection, passage: &ResponseContext) -> State<F, R> {
        let mut response = self.honest(rejection);
        passage.mark(&mut response);
        State::answered(response)
    }

    fn honest<R>(&self, rejection: &Rejection) -> Response<Answer<R>> {
        reject::answer(rejection, self.sentence.document(), self.retry_in)
    }

    fn shadow<B, F, R>(&self, request: Request<B>, passage: ResponseContext) -> State<F, R>
    where
        B: Body + Send + 'static,
        B::Data: Send,
        R: Send + 'static,
    {
        match self.sentence.shadow(self.route) {
            Some(shadow) => {
                let (head, body) = request.into_parts();
                State::Answering {
                    future: Box::pin(shadow.clone().answer(head, body)),
                    passage,
                }
            }
            // Without a route there is nothing to be had for anybody, and a decoy would tell.
            None => {
                let mut response = no_route();
                passage.mark(&mut response);
                State::answered(response)
            }
        }
    }

    fn hold<F, R: Send + 'static>(
        &self,
        tarpit: &Tarpit,
        mut passage: ResponseContext,
    ) -> State<F, R> {
        let Some(held) = self.gate.pit().enter(tarpit.most) else {
            passage.verdict.disposition = Disposition::Denied;
            return self.answer(&tarpit.rejection, &passage);
        };
        passage.verdict.disposition = Disposition::Tarpitted;
        let (hold, response) = (tarpit.hold, self.honest(&tarpit.rejection));
        let future = Box::pin(async move {
            held.wait(hold).await;
            response
        });
        State::Answering { future, passage }
    }
}

fn diverted<B>(mut request: Request<B>, diversion: Diversion) -> Request<B> {
    request.extensions_mut().insert(diversion);
    request
}

fn no_answer<R>(passage: &ResponseContext) -> Response<Answer<R>> {
    let mut response = Response::new(Answer::full(""));
    *response.status_mut() = StatusCode::from_u16(NO_RESPONSE).unwrap_or_default();
    response.extensions_mut().insert(NoAnswer);
    passage.mark(&mut response);
    response
}
