//! What is charged, or given back, when the response is there or over, the request's body is over,
//! or the client is gone.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body::{Body, Frame};
use smallvec::{SmallVec, smallvec};
use tokio::task::JoinHandle;
use weir_limit::time::{Clock, Timestamp};
use weir_limit::{Algorithm, BucketClass, BucketKey, Decision, Mode, Quota, Transaction};
use weir_rules::{Cost, Deferred, MeasuredCost, PendingCost, cost_header};
use weir_store::{Owed, Store};
use weir_telemetry::{LimitMetrics, Settled};

use super::decisions::{QueriedLimits, logged_cost};
use super::held::{Held, HeldResponse};
use super::response_cost::{CostReader, StatedUnits};
use crate::backend::{Backend, PendingTasks};
use crate::response_body::BodyReader;
use crate::route::RouteState;

/// How often it is tried to take what a bucket has left, while others take from it too. After that
/// they have left next to nothing.
const TRIES: usize = 4;

/// What one limit charges later.
pub(super) struct DeferredCharge {
    /// The limit's index among those of the route.
    pub(super) limit: usize,
    pub(super) decision: usize,
    /// What was asked of its bucket.
    pub(super) transaction: Transaction,
    /// Its cost, as far as was known.
    pub(super) units: u64,
    pub(super) later: Deferred,
    /// Until when what was taken is owed; none when nothing was.
    pub(super) owed_until: Option<Timestamp>,
}

/// What the limits charge later for a request that was let through.
///
/// They do it when this is dropped, whatever happened until then. All that know something which
/// matters hold on to it: the response's future, and the request's body where its size matters.
pub(super) struct DeferredCharges {
    route: Arc<RouteState>,
    backend: Backend,
    arrived: Timestamp,
    charges: Vec<DeferredCharge>,
    body_bytes: AtomicU64,
    response: OnceLock<Response>,
    /// What the response's body stated, once it is over.
    stated_by_body: OnceLock<StatedUnits>,
    /// Set where the request was shed after all.
    is_void: AtomicBool,
}

struct Response {
    status: StatusCode,
    /// The units that it states, in the order of the charges.
    units: StatedUnits,
}

impl DeferredCharge {
    /// What was decided about its bucket.
    pub(super) fn decision_in(&self, queried: &QueriedLimits) -> Option<Decision> {
        queried.limits.get(self.decision)?.decision
    }
}

/// What is to become of a bucket.
enum Change {
    Take(u64),
    GiveBack(u64),
}

impl DeferredCharges {
    /// The charges of a request that arrived then and was decided about so. A dry run charges
    /// nothing for what it would have denied.
    pub(super) fn new(
        route: &Arc<RouteState>,
        backend: &Backend,
        mut charges: Vec<DeferredCharge>,
        arrived: Timestamp,
        queried: &QueriedLimits,
    ) -> Option<Arc<Self>> {
        charges.retain(|charge| {
            let mode = route
                .policy
                .limit(charge.limit)
                .map(|limit| limit.used.mode);
            let is_dry = mode.is_some_and(Mode::checks) && !charge.transaction.mode.checks();
            !is_dry || charge.decision_in(queried).is_none_or(|found| found.fits())
        });
        if charges.is_empty() {
            return None;
        }
        Some(Arc::new(Self {
            route: Arc::clone(route),
            backend: backend.clone(),
            arrived,
            charges,
            body_bytes: AtomicU64::new(0),
            response: OnceLock::new(),
            stated_by_body: OnceLock::new(),
            is_void: AtomicBool::new(false),
        }))
    }

    /// Whether the size of the request's body matters.
    pub(super) fn is_by_body(&self) -> bool {
        let mut charges = self.charges.iter();
        charges.any(|charge| charge.later == Deferred::Take(PendingCost::Body))
    }

    /// Counts bytes of the request's body.
    pub(super) fn count(&self, bytes: usize) {
        self.body_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn record_response(&self, status: StatusCode, headers: &HeaderMap) {
        let stated = |charge: &DeferredCharge| {
            let name = self.measured(charge)?.response_header.as_ref()?;
            cost_header(headers, name)
        };
        let units = self.charges.iter().map(stated).collect();
        let _ = self.response.set(Response { status, units });
    }

    /// Charges nothing: the limits get back all that the request took.
    pub(super) fn cancel(&self) {
        self.is_void.store(true, Ordering::Relaxed);
    }

    /// Records that the inner service failed, which counts as the status that stands for that.
    pub(super) fn fail(&self) {
        let _ = self.response.set(Response {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            units: StatedUnits::new(),
        });
    }

    /// Whether the JSON of the response matters.
    pub(super) fn are_by_json(&self) -> bool {
        let mut measured = self
            .charges
            .iter()
            .filter_map(|charge| self.measured(charge));
        measured.any(|measured| !measured.response_json.is_empty())
    }

    /// What reads the body of a response, where it may say the cost of what it is charged for.
    pub(super) fn reading<B: Body>(
        self: Arc<Self>,
        response: &http::Response<B>,
    ) -> Result<Box<ResponseCost>, Arc<Self>> {
        if response.body().is_end_stream() {
            return Err(self);
        }
        let readers = self.charges.iter().enumerate().map(|(index, charge)| {
            let takes = matches!(self.change(index, charge), Some(Change::Take(_)));
            let measured = self.measured(charge).filter(|_| takes);
            measured.map_or_else(CostReader::default, |measured| {
                CostReader::new(measured, response.headers())
            })
        });
        let readers = readers.collect();
        ResponseCost::new(self, readers)
    }

    pub(super) fn record_stated_units(&self, units: StatedUnits) {
        let _ = self.stated_by_body.set(units);
    }

    /// Brings decisions and costs up to what they will be once all is charged, as far as is known.
    pub(super) fn project(&self, queried: &mut QueriedLimits) {
        for (index, charge) in self.charges.iter().enumerate() {
            let Some(limit) = queried.limits.get_mut(charge.decision) else {
                continue;
            };
            let (quota, Some(decision)) = (&limit.quota, &mut limit.decision) else {
                continue;
            };
            let Some(change) = self.change(index, charge) else {
                continue;
            };
            let now = self.backend.now();
            let present = decision.later(quota, now.since(self.arrived));
            let (after, cost) = match change {
                Change::Take(units)
                    if self.is_all_or_nothing(charge) && units > present.remaining =>
                {
                    (present, 0)
                }
                Change::Take(units) => (present.after_taking(quota, units, now), units),
                Change::GiveBack(units) => (present.after_giving_back(quota, units), 0),
            };
            *decision = after;
            limit.cost = logged_cost(cost);
        }
    }

    /// What is to become of a bucket, by what is known now.
    fn change(&self, index: usize, charge: &DeferredCharge) -> Option<Change> {
        let response = self.response.get();
        let spend = &self.route.policy.limit(charge.limit)?.used.spend;
        let counts = spend.counts(response.map(|response| response.status));
        match charge.later {
            Deferred::GiveBack if counts => None,
            Deferred::GiveBack => charge.owed_until.map(|_| Change::GiveBack(charge.units)),
            Deferred::Take(_) if !counts => None,
            Deferred::Take(pending) => {
                let by_body = self.stated_by_body.get();
                let stated = by_body.and_then(|units| units.get(index).copied()?);
                let stated = stated.or_else(|| {
                    response.and_then(|response| response.units.get(index).copied()?)
                });
                let units = stated.or_else(|| self.units_of_body(pending, charge));
                Some(Change::Take(units.unwrap_or(charge.units)))
            }
        }
    }

    fn units_of_body(&self, pending: PendingCost, charge: &DeferredCharge) -> Option<u64> {
        let unit = self.measured(charge)?.request_bytes?;
        let bytes = self.body_bytes.load(Ordering::Relaxed);
        (pending == PendingCost::Body).then(|| bytes.div_ceil(unit.get()))
    }

    /// Whether a cost that does not fit takes nothing, and not what is left.
    fn is_all_or_nothing(&self, charge: &DeferredCharge) -> bool {
        let limit = self.route.policy.limit(charge.limit);
        limit.is_some_and(|limit| limit.used.mode == Mode::SpendOnly)
    }

    fn measured(&self, charge: &DeferredCharge) -> Option<&MeasuredCost> {
        match &self.route.policy.limit(charge.limit)?.used.cost {
            Cost::Measured(measured) => Some(measured),
            Cost::Fixed(_) => None,
        }
    }

    /// Charges, now that all is known.
    pub(super) fn finish(mut self) -> PendingTasks {
        self.charge_all()
    }

    fn charge_all(&mut self) -> PendingTasks {
        let charges = std::mem::take(&mut self.charges);
        if *self.is_void.get_mut() {
            return PendingTasks::new();
        }
        let charge = |(index, charge)| self.charge(index, charge);
        charges.iter().enumerate().filter_map(charge).collect()
    }

    fn charge(&self, index: usize, charge: &DeferredCharge) -> Option<JoinHandle<()>> {
        let metrics = &self.route.policy.limit(charge.limit)?.metrics;
        let transaction = charge.transaction.clone();
        match self.change(index, charge)? {
            Change::Take(units) => {
                let cost = NonZeroU64::new(units)?;
                let count = ChargeCount::new(metrics, &transaction.key, Settled::Spent);
                let take = Transaction {
                    cost,
                    ..transaction
                };
                let (store, clock) = (self.backend.store.clone(), self.backend.clock.clone());
                let all_or_nothing = self.is_all_or_nothing(charge);
                self.backend.tasks.run(async move {
                    count.end(
                        take_remaining(&*store, &*clock, take, all_or_nothing)
                            .await
                            .is_some(),
                    );
                })
            }
            // What would have come back by itself in the meantime is owed no more.
            Change::GiveBack(_) if charge.owed_until? > self.backend.now() => {
                let count = ChargeCount::new(metrics, &transaction.key, Settled::Refunded);
                let until = charge.owed_until?;
                let owed = Owed { transaction, until };
                let now = self.backend.now();
                let answer = self.backend.store.refund(smallvec![owed], now);
                let give_back = async move { count.end(answer.await.is_ok()) };
                self.backend.tasks.run(give_back)
            }
            Change::GiveBack(_) => None,
        }
    }
}

impl Drop for DeferredCharges {
    fn drop(&mut self) {
        self.charge_all();
    }
}

/// The charges of a request that the inner service has.
pub(super) struct HeldCharges(Option<Arc<DeferredCharges>>);

impl HeldCharges {
    pub(super) fn new(charges: Arc<DeferredCharges>) -> Box<Self> {
        Box::new(Self(Some(charges)))
    }
}

impl Held for HeldCharges {
    /// Charges what the response decides, unless its body, or the request's body that is still on
    /// its way, matters.
    fn responded(&mut self, response: &mut HeldResponse) {
        let Some(charges) = self.0.take() else {
            return;
        };
        charges.record_response(response.head.status(), response.head.headers());
        if let Some(queried) = &mut response.queried {
            charges.project(queried);
        }
        match charges.reading(&response.head) {
            Ok(cost) => response.reader = Some(cost),
            Err(charges) => {
                let charges = Arc::into_inner(charges);
                let tasks = charges.map(DeferredCharges::finish);
                response.tasks.extend(tasks.into_iter().flatten());
            }
        }
    }

    fn failed(&mut self) {
        if let Some(charges) = self.0.take() {
            charges.fail();
        }
    }

    /// The limits get back all that the request took, and must not get it twice.
    fn refused(&mut self) {
        if let Some(charges) = self.0.take() {
            charges.cancel();
        }
    }
}

/// Reads the cost of a response for all charges that go by its body. Dropped before the body's
/// end, it charges what was known by then.
pub(super) struct ResponseCost {
    /// Taken when they are charged.
    charges: Option<Arc<DeferredCharges>>,
    readers: SmallVec<[CostReader; 1]>,
}

impl ResponseCost {
    /// What reads a body for these charges, unless none of them can find anything there.
    fn new(
        charges: Arc<DeferredCharges>,
        readers: SmallVec<[CostReader; 1]>,
    ) -> Result<Box<Self>, Arc<DeferredCharges>> {
        if readers.iter().all(CostReader::reads_nothing) {
            return Err(charges);
        }
        let charges = Some(charges);
        Ok(Box::new(Self { charges, readers }))
    }

    fn charge(&mut self) -> PendingTasks {
        let Some(charges) = self.charges.take() else {
            return PendingTasks::new();
        };
        charges.record_stated_units(self.readers.iter_mut().map(CostReader::units).collect());
        Arc::into_inner(charges).map_or_else(PendingTasks::new, DeferredCharges::finish)
    }
}

impl BodyReader for ResponseCost {
    fn read(&mut self, frame: &mut Frame<Bytes>) {
        for reader in &mut self.readers {
            reader.read(frame);
        }
        if let Some(trailers) = frame.trailers_mut() {
            for reader in &self.readers {
                reader.conceal(trailers);
            }
        }
    }

    fn end(mut self: Box<Self>) -> PendingTasks {
        self.charge()
    }
}

impl Drop for ResponseCost {
    fn drop(&mut self) {
        self.charge();
    }
}

/// Takes as much of the cost as the bucket has left; with `all_or_nothing`, nothing unless all of it
/// fits. `None` when the store did not decide.
async fn take_remaining(
    store: &dyn Store,
    clock: &dyn Clock,
    transaction: Transaction,
    all_or_nothing: bool,
) -> Option<()> {
    let most = match all_or_nothing {
        true => transaction.cost,
        false => transaction.cost.min(transaction.quota.burst()),
    };
    let mut next = Transaction {
        mode: first_try(&transaction.quota, most),
        cost: most,
        ..transaction
    };
    for _ in 0..TRIES {
        let outcome = store.decide(&smallvec![next.clone()], clock.now()).await;
        let decision = (*outcome.ok()?.decisions.first()?)?;
        let is_done = match decision.fits() {
            true => next.mode.spends(),
            false => all_or_nothing,
        };
        if is_done {
            break;
        }
        let Some(left) = NonZeroU64::new(decision.remaining) else {
            break;
        };
        next.mode = Mode::SpendOnly;
        next.cost = most.min(left);
    }
    Some(())
}

/// What does not fit a sliding window is written to Redis for a moment all the same, in which it
/// seems to have nothing left; so it is looked at first whether more than one unit fits.
fn first_try(quota: &Quota, cost: NonZeroU64) -> Mode {
    match quota.algorithm() {
        Algorithm::SlidingWindow { .. } | Algorithm::SlidingLog { .. } if cost.get() > 1 => {
            Mode::Peek
        }
        _ => Mode::SpendOnly,
    }
}

/// Counts how a charge ended; what is dropped before its end has failed.
struct ChargeCount {
    /// None for those who are kept out: operators see limits as they are without them.
    metrics: Option<LimitMetrics>,
    success: Settled,
    ended: bool,
}

impl ChargeCount {
    fn new(metrics: &LimitMetrics, key: &BucketKey, success: Settled) -> Self {
        Self {
            metrics: (key.class() == BucketClass::Limit).then(|| metrics.clone()),
            success,
            ended: false,
        }
    }

    fn end(mut self, succeeded: bool) {
        self.ended = succeeded;
    }
}

impl Drop for ChargeCount {
    fn drop(&mut self) {
        let how = if self.ended {
            self.success
        } else {
            Settled::Failed
        };
        if let Some(metrics) = &self.metrics {
            metrics.settled(how);
        }
    }
}
