//! How many requests a server can handle at a time, and which request is next when more come.
//!
//! [`AdaptiveLimit`] finds the number by the latency of responses. [`Slots`] gives that many
//! requests a slot each; when all are taken, it decides which requests wait, which one gets the
//! next slot, and which are shed: by priority, and among equals by the slots that their clients
//! hold.

mod adaptive;
mod slots;

pub use adaptive::{AdaptiveLimit, ConcurrencyBounds, ServerReply};
pub use slots::{Arrival, Priority, SlotRequest, Slots, WaiterId, places};
