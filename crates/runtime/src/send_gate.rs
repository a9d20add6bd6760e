//! A gate between a request's body and its server: whoever reads the body first waits here, once it
//! is read, for leave to send the request.
//!
//! A layer that decides by the load of the server makes the gate and leaves it in the request's
//! extensions. The service that reads bodies first takes it from there. Neither knows the other,
//! and either may be dropped.

use std::task::{Context, Poll};

use tokio::sync::{mpsc, oneshot};

/// The gate, as it goes with the request.
#[derive(Clone, Debug)]
pub struct SendGate(mpsc::UnboundedSender<oneshot::Sender<()>>);

/// The side that opens the gate.
#[derive(Debug)]
pub struct GateKeeper(mpsc::UnboundedReceiver<oneshot::Sender<()>>);

/// A request that has its body and waits at the gate.
#[derive(Debug)]
pub struct AtGate(oneshot::Sender<()>);

/// A gate that is closed.
pub fn send_gate() -> (SendGate, GateKeeper) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (SendGate(sender), GateKeeper(receiver))
}

impl SendGate {
    /// Waits until the gate is open.
    pub async fn pass(self) {
        let (open, opened) = oneshot::channel();
        if self.0.send(open).is_ok() {
            let _ = opened.await;
        }
    }
}

impl GateKeeper {
    /// Waits for the request to come to the gate. It never does if it is answered before.
    pub fn poll_arrival(&mut self, cx: &mut Context<'_>) -> Poll<AtGate> {
        match self.0.poll_recv(cx) {
            Poll::Ready(Some(open)) => Poll::Ready(AtGate(open)),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}

impl AtGate {
    /// Lets the request pass.
    pub fn open(self) {
        let _ = self.0.send(());
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test]
    async fn nothing_passes_before_the_gate_is_opened() {
        let (gate, mut keeper) = send_gate();
        let passing = tokio::spawn(gate.pass());
        let at_gate = poll_fn(|cx| keeper.poll_arrival(cx)).await;
        tokio::task::yield_now().await;
        assert!(!passing.is_finished());
        at_gate.open();
        passing.await.unwrap();
    }

    #[tokio::test]
    async fn a_gate_that_nobody_keeps_holds_nothing_back() {
        let (gate, keeper) = send_gate();
        drop(keeper);
        gate.pass().await;
    }
}
