//! A slot that a request asks for when its body has been read, as far as that is kept. Before, its
//! upstream knows nothing of it, and a client that sends a body slowly takes no slot from others.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use weir_limit::Priority;
use weir_runtime::send_gate::{AtGate, GateKeeper, SendGate, send_gate};
use weir_telemetry::Disposition;

use super::deferred_charge::DeferredCharges;
use super::held::Refused;
use super::spent::Spent;
use crate::concurrency::{Admission, RouteConcurrency, Slot, SlotClaim};
use crate::overload::shed_response;
use crate::route::RouteState;
use crate::{Shed, Verdict};

pub(super) const fn by_upstream(priority: Priority) -> Shed {
    Shed {
        by: "upstream",
        priority,
    }
}

/// A slot that is not asked for yet, or that is waited for.
pub(super) struct DeferredSlot {
    route: Arc<RouteState>,
    claim: SlotClaim,
    keeper: GateKeeper,
    waiting: Option<Waiting>,
    /// None where no limit was asked.
    spent: Option<Box<Spent>>,
}

/// A request at the gate.
struct Waiting {
    at_gate: AtGate,
    slot: Pin<Box<dyn Future<Output = Option<Slot>> + Send>>,
}

/// A slot that a request has, or asks for later.
pub(super) enum UpstreamSlot {
    Granted(Slot),
    Deferred(DeferredSlot),
}

impl DeferredSlot {
    /// The slot for a request that gets this gate, where its route asks for one later.
    pub(super) fn new(
        route: &Arc<RouteState>,
        claim: SlotClaim,
        spent: Option<Spent>,
    ) -> (SendGate, Self) {
        let (gate, keeper) = send_gate();
        let deferred = Self {
            route: Arc::clone(route),
            claim,
            keeper,
            waiting: None,
            spent: spent.map(Box::new),
        };
        (gate, deferred)
    }

    /// Asks for a slot when the request is at the gate, and opens that when there is one.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Slot, Box<Refused>>> {
        let (at_gate, slot) = match &mut self.waiting {
            Some(waiting) => {
                let slot = ready!(waiting.slot.as_mut().poll(cx));
                (self.waiting.take().map(|waiting| waiting.at_gate), slot)
            }
            None => {
                let at_gate = ready!(self.keeper.poll_arrival(cx));
                match self.concurrency().map(|limited| limited.admit(self.claim)) {
                    Some(Admission::Admitted(slot)) => (Some(at_gate), Some(slot)),
                    Some(Admission::Waits(wait)) => {
                        let slot = Box::pin(wait.wait());
                        self.waiting = Some(Waiting { at_gate, slot });
                        return self.poll(cx);
                    }
                    Some(Admission::Shed) | None => (Some(at_gate), None),
                }
            }
        };
        Poll::Ready(match (slot, at_gate) {
            (Some(slot), Some(at_gate)) => {
                at_gate.open();
                self.settle();
                Ok(slot)
            }
            _ => Err(Box::new(self.shed())),
        })
    }

    /// What becomes of the request's deferred charges if its client leaves at the gate.
    pub(super) fn with_charges(mut self, charges: Option<Arc<DeferredCharges>>) -> Self {
        if let Some(spent) = &mut self.spent {
            spent.charges = charges;
        }
        self
    }

    fn concurrency(&self) -> Option<&RouteConcurrency> {
        self.route.shedding.by_upstream.as_ref()
    }

    /// Gives back what the limits took.
    fn shed(&mut self) -> Refused {
        self.route.shedding.count_by_upstream();
        let batch = self.spent.take().map(|spent| spent.batch);
        let shed = by_upstream(self.claim.priority);
        Refused {
            verdict: Verdict {
                shed: Some(shed),
                ..Verdict::new(Disposition::Shed)
            },
            batch: batch.unwrap_or_default(),
            response: shed_response(shed, None),
        }
    }

    /// Leaves the limits what they took, and counts their decisions.
    fn settle(&mut self) {
        if let Some(spent) = self.spent.take() {
            let Spent {
                queried,
                arrived,
                refund,
                ..
            } = *spent;
            self.route.policy.count(&queried, arrived);
            refund.cancel();
        }
    }
}

/// A request whose client leaves before its body has come, or that is answered before, is charged; a
/// request that waits for a slot is not.
impl Drop for DeferredSlot {
    fn drop(&mut self) {
        if self.waiting.is_none() {
            self.settle();
        } else if let Some(charges) = self.spent.as_ref().and_then(|spent| spent.charges.as_ref()) {
            // The limits get back all that the request took, and must not get it twice.
            charges.cancel();
        }
    }
}
