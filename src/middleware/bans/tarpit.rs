//! Holds requests of the banned for a while, as many as a gateway can spare connections for.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use crate::telemetry::{GaugeGuard, KeptOut};

/// Where requests are held; there is one in a process, whatever is configured, so that a reload
/// makes no room for more.
#[derive(Clone, Debug)]
pub struct TarpitSlots(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// How many are held.
    taken: AtomicU32,
    metrics: KeptOut,
    released: watch::Sender<bool>,
}

/// A request's place in the pit.
#[derive(Debug)]
pub(super) struct TarpitSlot {
    slots: TarpitSlots,
    _shown: GaugeGuard,
    released: watch::Receiver<bool>,
}

impl TarpitSlots {
    /// An empty pit, which shows in these metrics how many it holds.
    pub fn new(metrics: &KeptOut) -> Self {
        Self(Arc::new(Inner {
            taken: AtomicU32::new(0),
            metrics: metrics.clone(),
            released: watch::Sender::new(false),
        }))
    }

    /// Lets all go, and holds nobody from now on: a drain waits for every request.
    pub fn release(&self) {
        self.0.released.send_replace(true);
    }

    /// A place, unless `most` are taken or all were let go.
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
    /// Waits for so long, or until all are let go.
    pub(super) async fn wait(mut self, hold: Duration) {
        // Without its sender there is nobody left to let go, and the wait ends as well.
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
        let pit = TarpitSlots::new(&KeptOut::default());
        let start = Instant::now();
        pit.enter(two()).unwrap().wait(HOLD).await;
        assert_eq!(start.elapsed(), HOLD);
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_are_held_than_there_are_places_and_who_leaves_makes_room() {
        let pit = TarpitSlots::new(&KeptOut::default());
        let (first, second) = (pit.enter(two()), pit.enter(two()));
        assert!(first.is_some() && second.is_some());
        assert!(pit.enter(two()).is_none());
        drop(first);
        assert!(pit.enter(two()).is_some());
        let three = NonZeroU32::new(3).unwrap();
        assert!(pit.enter(three).is_some(), "another tarpit may have more");
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_lets_all_go_at_once_and_holds_nobody_any_more() {
        let pit = TarpitSlots::new(&KeptOut::default());
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
