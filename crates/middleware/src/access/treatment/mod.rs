//! The treatment of the banned and the blocked.

#[cfg(feature = "config")]
mod config;

use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use tokio::sync::watch;
use tokio::time::timeout;
use weir_http::problem::{NoResponse, Problem, types};
use weir_http::request::HttpRequest;
use weir_limit::time::Nanos;
use weir_telemetry::{Bans, Disposition, GaugeGuard};

use crate::ResponseBody;
use crate::decoy::Decoy;
use crate::rate_limit::LimitedRequest;
use crate::rejection::{self, Rejection};
use crate::route::RouteState;
#[cfg(feature = "config")]
pub use config::TreatmentKeys;

/// The status in the log for a request without a response, after nginx.
const NO_RESPONSE: u16 = 444;

/// The response to a request whose client is banned or blocked. The route's upstream never gets the
/// request.
#[derive(Clone, Debug)]
pub enum Treatment {
    /// An honest response.
    Reject(Rejection),
    /// A decoy.
    Shadow(Arc<Decoy>),
    /// The response of another upstream, which has this name.
    Divert(Arc<str>),
    /// An honest response after a while.
    Tarpit(Tarpit),
    /// No response: the connection is closed. Over HTTP/2, where other clients of the same proxy
    /// may share the connection, only the stream is reset.
    Drop {
        /// Whether further connections of the same peer are refused, by the kernel where it may be
        /// asked.
        in_kernel: bool,
    },
}

impl Treatment {
    /// What a listener that decides for other proxies cannot do of it, if anything.
    pub fn beyond_decisions(&self) -> Option<&'static str> {
        match self {
            Self::Shadow(_) => Some("send decoys"),
            Self::Divert(_) => Some("divert"),
            Self::Drop { .. } => Some("close connections of clients"),
            Self::Reject(_) | Self::Tarpit(_) => None,
        }
    }

    /// Whether the client gets an answer that is invented.
    pub fn is_invented(&self) -> bool {
        matches!(self, Self::Shadow(_))
    }

    /// What it is called in the log and in metrics, also where it holds too many requests.
    pub(super) fn dispositions(&self) -> impl Iterator<Item = Disposition> + use<> {
        let (usual, too_many) = match self {
            Self::Reject(_) => (Disposition::Denied, None),
            Self::Shadow(_) => (Disposition::Shadowed, None),
            Self::Divert(_) => (Disposition::Diverted, None),
            Self::Tarpit(_) => (Disposition::Tarpitted, Some(Disposition::Denied)),
            Self::Drop { .. } => (Disposition::Dropped, None),
        };
        [usual].into_iter().chain(too_many)
    }

    /// The honest response, if the treatment ends in one.
    fn rejection(&self) -> Rejection {
        match self {
            Self::Reject(rejection) => rejection.clone(),
            Self::Tarpit(tarpit) => tarpit.rejection.clone(),
            Self::Shadow(_) | Self::Divert(_) | Self::Drop { .. } => Rejection::default(),
        }
    }
}

/// The parameters of a tarpit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tarpit {
    /// For how long.
    pub hold: Duration,
    /// Upper bound on the requests held in all tarpits together. Further ones get the response at
    /// once.
    pub most: NonZeroU32,
    /// The response at the end.
    pub rejection: Rejection,
}

/// A treatment with all that can be prepared at load time.
pub struct PreparedTreatment {
    /// The ban; `None` for the block list.
    ban: Option<Arc<str>>,
    treatment: Treatment,
    /// The problem document of an honest response.
    document: Bytes,
    /// The same where no end is known.
    document_for_good: Bytes,
    tarpits: TarpitSlots,
}

/// The source of the response to a request of a banned or blocked client.
pub enum TreatmentAnswer<Q, R> {
    Response(Response<ResponseBody<R>>),
    /// After a while.
    Later(Pin<Box<dyn Future<Output = Response<ResponseBody<R>>> + Send>>),
    /// The upstream of this name.
    Upstream(Arc<str>, Q),
}

impl PreparedTreatment {
    pub(super) fn of_ban(ban: &Arc<str>, treatment: Treatment, tarpits: &TarpitSlots) -> Self {
        let rejection = treatment.rejection();
        let for_good = rejection.status_after(Nanos::NEVER);
        Self {
            ban: Some(Arc::clone(ban)),
            document: ban_document(rejection.status, false),
            document_for_good: ban_document(for_good, true),
            treatment,
            tarpits: tarpits.clone(),
        }
    }

    pub(super) fn of_blocked(treatment: Treatment, tarpits: &TarpitSlots) -> Self {
        let document = block_document(treatment.rejection().status);
        Self {
            ban: None,
            document: document.clone(),
            document_for_good: document,
            treatment,
            tarpits: tarpits.clone(),
        }
    }

    /// The honest response. The block list keeps the status that it is configured to have, although
    /// no wait helps.
    fn reject<R>(
        &self,
        request: impl HttpRequest,
        rejection: &Rejection,
        retry_in: Nanos,
    ) -> Response<ResponseBody<R>> {
        let empty = rejection::in_memory_of(request);
        let status = match self.ban {
            Some(_) => rejection.status_after(retry_in),
            None => rejection.status,
        };
        let document = match retry_in {
            Nanos::NEVER => &self.document_for_good,
            _ => &self.document,
        };
        rejection::reject(empty, rejection, status, document.clone(), retry_in)
    }

    /// The name of its ban; none for the block list.
    pub fn ban(&self) -> Option<&str> {
        self.ban.as_deref()
    }

    /// The decoy, if the treatment is one.
    pub fn decoy(&self) -> Option<&Arc<Decoy>> {
        match &self.treatment {
            Treatment::Shadow(decoy) => Some(decoy),
            _ => None,
        }
    }

    /// Whether further connections of the same peer are refused.
    pub(super) fn drops_in_kernel(&self) -> bool {
        matches!(self.treatment, Treatment::Drop { in_kernel: true })
    }

    /// Whether the response has to look real. Then limits count the request, and their headers are
    /// in the response.
    pub fn looks_real(&self) -> bool {
        matches!(self.treatment, Treatment::Shadow(_) | Treatment::Divert(_))
    }

    /// Treats a request of this route, whose client will be let in again after `retry_in`.
    pub fn treat<Q: LimitedRequest, R: Send + 'static>(
        &self,
        request: Q,
        retry_in: Nanos,
        route: &RouteState,
    ) -> (Disposition, TreatmentAnswer<Q, R>) {
        match &self.treatment {
            Treatment::Reject(rejection) => {
                let response = self.reject(request, rejection, retry_in);
                (Disposition::Denied, TreatmentAnswer::Response(response))
            }
            Treatment::Shadow(_) => {
                let answer = match route
                    .decoys
                    .as_ref()
                    .and_then(|decoys| decoys.of_kept_out(self.ban()))
                {
                    Some(shadow) => {
                        TreatmentAnswer::Later(Box::pin(Arc::clone(shadow).respond(request)))
                    }
                    // It took no route, as all routes are behind all bans and lists. Then every client
                    // gets 404, and a decoy would give the ban away.
                    None => TreatmentAnswer::Response(rejection::no_route()),
                };
                (Disposition::Shadowed, answer)
            }
            Treatment::Divert(upstream) => {
                let answer = TreatmentAnswer::Upstream(Arc::clone(upstream), request);
                (Disposition::Diverted, answer)
            }
            Treatment::Tarpit(tarpit) => {
                let response = self.reject(request, &tarpit.rejection, retry_in);
                let Some(slot) = self.tarpits.enter(tarpit.most) else {
                    return (Disposition::Denied, TreatmentAnswer::Response(response));
                };
                let hold = tarpit.hold;
                let held = async move {
                    slot.wait(hold).await;
                    response
                };
                (
                    Disposition::Tarpitted,
                    TreatmentAnswer::Later(Box::pin(held)),
                )
            }
            Treatment::Drop { .. } => (
                Disposition::Dropped,
                TreatmentAnswer::Response(no_response()),
            ),
        }
    }
}

/// The problem document for a client that is banned until a known time, or for good.
fn ban_document(status: StatusCode, is_for_good: bool) -> Bytes {
    let detail = match is_for_good {
        true => "The client is banned.",
        false => "The client is banned for a while; see Retry-After.",
    };
    let problem = Problem::new(status, detail).of_type(
        types::ABNORMAL_USAGE_DETECTED,
        "Request not satisfied due to detection of abnormal request pattern",
    );
    problem.into_bytes()
}

/// The problem document for blocked clients. It has no type: an operator put the client on a list,
/// and nothing was detected.
fn block_document(status: StatusCode) -> Bytes {
    Problem::new(status, "Requests of this client are not accepted.").into_bytes()
}

fn no_response<R>() -> Response<ResponseBody<R>> {
    let mut response = Response::new(ResponseBody::full(""));
    *response.status_mut() = StatusCode::from_u16(NO_RESPONSE).unwrap_or_default();
    response.extensions_mut().insert(NoResponse);
    response
}

/// The requests in all tarpits of a process. A reload keeps it, and so makes no room for more.
#[derive(Clone, Debug)]
pub struct TarpitSlots(Arc<Tarpits>);

#[derive(Debug)]
struct Tarpits {
    taken: AtomicU32,
    metrics: Bans,
    released: watch::Sender<bool>,
}

#[derive(Debug)]
pub(super) struct TarpitSlot {
    slots: TarpitSlots,
    _shown: GaugeGuard,
    released: watch::Receiver<bool>,
}

impl TarpitSlots {
    /// No requests yet. The metrics show how many are held.
    pub fn new(metrics: &Bans) -> Self {
        Self(Arc::new(Tarpits {
            taken: AtomicU32::new(0),
            metrics: metrics.clone(),
            released: watch::Sender::new(false),
        }))
    }

    /// Releases all requests and holds no more, as a drain waits for every request.
    pub fn release(&self) {
        self.0.released.send_replace(true);
    }

    /// A slot, unless `most` are taken or all were released.
    pub(super) fn enter(&self, most: NonZeroU32) -> Option<TarpitSlot> {
        let released = self.0.released.subscribe();
        if *released.borrow() {
            return None;
        }
        let one_more = |taken: u32| (taken < most.get()).then_some(taken + 1);
        let (relaxed, taken) = (Ordering::Relaxed, &self.0.taken);
        taken.fetch_update(relaxed, relaxed, one_more).ok()?;
        Some(TarpitSlot {
            slots: self.clone(),
            _shown: self.0.metrics.tarpit_held(),
            released,
        })
    }
}

impl Drop for TarpitSlot {
    fn drop(&mut self) {
        self.slots.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

impl TarpitSlot {
    /// Waits for `hold`, or until all are released.
    pub(super) async fn wait(mut self, hold: Duration) {
        // The wait ends as well when the channel is dropped.
        let _ = timeout(hold, self.released.wait_for(|released| *released)).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    fn two() -> NonZeroU32 {
        NonZeroU32::new(2).unwrap()
    }

    const HOLD: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn a_request_is_held_for_as_long_as_it_is_configured() {
        let pit = TarpitSlots::new(&Bans::default());
        let start = Instant::now();
        pit.enter(two()).unwrap().wait(HOLD).await;
        assert_eq!(start.elapsed(), HOLD);
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_are_held_than_there_are_places_and_who_leaves_makes_room() {
        let pit = TarpitSlots::new(&Bans::default());
        let (first, second) = (pit.enter(two()), pit.enter(two()));
        assert!(first.is_some() && second.is_some());
        assert!(pit.enter(two()).is_none());
        drop(first);
        assert!(pit.enter(two()).is_some());
        let three = NonZeroU32::new(3).unwrap();
        assert!(pit.enter(three).is_some(), "another tarpit may have more");
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_lets_all_go_at_once_and_holds_no_more() {
        let pit = TarpitSlots::new(&Bans::default());
        let held = pit.enter(two()).unwrap();
        let start = Instant::now();
        let waiting = tokio::spawn(held.wait(HOLD));
        tokio::task::yield_now().await;
        pit.release();
        waiting.await.unwrap();
        assert_eq!(start.elapsed(), Duration::ZERO);
        assert!(pit.enter(two()).is_none());
    }
}
