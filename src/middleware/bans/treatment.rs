//! What the banned and the blocked get.

use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Body;

use super::tarpit::TarpitSlots;
use crate::middleware::decoy::{Decoy, Shadow};
use crate::middleware::rejection::{self, Rejection, no_route};
use crate::middleware::{ResponseBody, UpstreamId};
use crate::problem::NoAnswer;
use crate::telemetry::Disposition;
use crate::time::Nanos;

/// What the log says of a request that got no answer, as nginx's does.
const NO_RESPONSE: u16 = 444;

/// What a request gets whose sender is banned or blocked. In no case does its route's upstream see
/// it.
#[derive(Clone, Debug)]
pub enum Treatment {
    /// An honest answer.
    Reject(Rejection),
    /// An invented one.
    Shadow(Arc<Decoy>),
    /// The answer of another upstream.
    Divert(UpstreamId),
    /// Nothing for a while, and an honest answer then.
    Tarpit(Tarpit),
    /// No answer: the connection is closed. Of a connection of HTTP/2, which other clients of the
    /// same proxy may share, only the stream is reset.
    Drop,
}

/// How requests are held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tarpit {
    /// For how long.
    pub hold: Duration,
    /// How many are held at the most, those of all tarpits together. One beyond that gets the
    /// answer at once.
    pub most: NonZeroU32,
    /// The answer that ends it.
    pub rejection: Rejection,
}

/// A treatment with all that can be prepared at load time.
pub(in crate::middleware) struct PreparedTreatment {
    /// The ban that it is of; none for the block list.
    pub(in crate::middleware) ban: Option<Arc<str>>,
    treatment: Treatment,
    /// The problem document of an honest answer.
    document: Bytes,
    tarpits: TarpitSlots,
}

/// What becomes of a request that is kept out.
pub(in crate::middleware) struct Treated<B, R> {
    pub(in crate::middleware) disposition: Disposition,
    pub(in crate::middleware) answer: TreatedBy<B, R>,
}

/// Where the answer to a request comes from that is kept out.
pub(in crate::middleware) enum TreatedBy<B, R> {
    /// It is there.
    Response(Response<ResponseBody<R>>),
    /// It is there after a while.
    Later(Pin<Box<dyn Future<Output = Response<ResponseBody<R>>> + Send>>),
    /// Another upstream has it.
    Upstream(UpstreamId, Request<B>),
}

impl PreparedTreatment {
    /// The treatment of a ban's subjects.
    pub(super) fn of_ban(ban: &Arc<str>, treatment: Treatment, tarpits: &TarpitSlots) -> Self {
        let detail = "The client is banned for a while; see Retry-After.";
        Self::new(Some(Arc::clone(ban)), treatment, tarpits, detail)
    }

    /// The treatment of those on the block list.
    pub(super) fn of_blocked(treatment: Treatment, tarpits: &TarpitSlots) -> Self {
        let detail = "Requests of this client are not accepted.";
        Self::new(None, treatment, tarpits, detail)
    }

    fn new(
        ban: Option<Arc<str>>,
        treatment: Treatment,
        tarpits: &TarpitSlots,
        detail: &str,
    ) -> Self {
        let status = match &treatment {
            Treatment::Reject(rejection) => rejection.status,
            Treatment::Tarpit(tarpit) => tarpit.rejection.status,
            _ => Rejection::default().status,
        };
        Self {
            ban,
            treatment,
            document: rejection::kept_out(status, detail),
            tarpits: tarpits.clone(),
        }
    }

    /// A decoy that learns from one route's answers, where there is to be one.
    pub(in crate::middleware) fn shadow(&self) -> Option<Shadow> {
        match &self.treatment {
            Treatment::Shadow(decoy) => Some(Shadow::new(Arc::clone(decoy))),
            _ => None,
        }
    }

    /// Whether the answer has to look real. Only such an answer tells of limits, which have no say in
    /// this.
    pub(in crate::middleware) fn looks_real(&self) -> bool {
        matches!(self.treatment, Treatment::Shadow(_) | Treatment::Divert(_))
    }

    /// Gives a request what its sender has earned: by its route's decoy where it gets one, and with
    /// the time after which it would be let in again.
    pub(in crate::middleware) fn treat<B, R>(
        &self,
        request: Request<B>,
        shadow: Option<&Arc<Shadow>>,
        retry_in: Nanos,
    ) -> Treated<B, R>
    where
        B: Body + Send + 'static,
        B::Data: Send,
        R: Send + 'static,
    {
        let honest = |rejection| rejection::answer(rejection, self.document.clone(), retry_in);
        let (disposition, answer) = match &self.treatment {
            Treatment::Reject(rejection) => {
                let answer = TreatedBy::Response(honest(rejection));
                (Disposition::Denied, answer)
            }
            Treatment::Shadow(_) => (
                Disposition::Shadowed,
                match shadow {
                    Some(shadow) => {
                        let (head, body) = request.into_parts();
                        TreatedBy::Later(Box::pin(Arc::clone(shadow).answer(head, body)))
                    }
                    // Without a route there is nothing to be had for anybody, and a decoy would tell.
                    None => TreatedBy::Response(no_route()),
                },
            ),
            Treatment::Divert(upstream) => {
                let answer = TreatedBy::Upstream(*upstream, request);
                (Disposition::Diverted, answer)
            }
            Treatment::Tarpit(tarpit) => {
                let response = honest(&tarpit.rejection);
                match self.tarpits.enter(tarpit.most) {
                    Some(slot) => {
                        let hold = tarpit.hold;
                        let held = async move {
                            slot.wait(hold).await;
                            response
                        };
                        (Disposition::Tarpitted, TreatedBy::Later(Box::pin(held)))
                    }
                    None => (Disposition::Denied, TreatedBy::Response(response)),
                }
            }
            Treatment::Drop => (Disposition::Dropped, TreatedBy::Response(no_answer())),
        };
        Treated {
            disposition,
            answer,
        }
    }
}

fn no_answer<R>() -> Response<ResponseBody<R>> {
    let mut response = Response::new(ResponseBody::full(""));
    *response.status_mut() = StatusCode::from_u16(NO_RESPONSE).unwrap_or_default();
    response.extensions_mut().insert(NoAnswer);
    response
}
