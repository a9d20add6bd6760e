//! One reading of the clock for all that a thread does in one turn, which is one poll of a
//! connection.
//!
//! A request passes layers that each want to know the time: when it arrived, when the store was
//! asked, since when an upstream has its turn. Between two of them pass less than microseconds, and
//! a reading costs as much as some of them. So the first one within a turn reads the clock, and the
//! others see the same; a turn is over before its task waits for anything. Where there is no turn,
//! as in a library's user's server, each reads the clock anew.
//!
//! What measures work within a turn must not use this, as it would find that none took any time.

use std::cell::Cell;

use tokio::time::Instant;

thread_local! {
    static TURN: Cell<State> = const { Cell::new(State::None) };
}

/// What this thread is at.
#[derive(Clone, Copy)]
enum State {
    /// No turn.
    None,
    /// A turn in which nothing has asked for the time.
    Unread,
    Read(Instant),
}

/// A turn of this thread, which lasts until this is dropped. Hold it in no future: a turn is over
/// when its task waits. One within another is part of that.
#[must_use = "the turn is over when this is dropped"]
pub struct Turn {
    is_outermost: bool,
}

impl Turn {
    /// Begins a turn, or joins the one that has begun.
    pub fn begin() -> Self {
        let is_outermost = matches!(TURN.get(), State::None);
        if is_outermost {
            TURN.set(State::Unread);
        }
        Self { is_outermost }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.is_outermost {
            TURN.set(State::None);
        }
    }
}

/// The present moment, as it was when this turn first asked for it.
pub fn now() -> Instant {
    match TURN.get() {
        State::Read(now) => now,
        State::None => Instant::now(),
        State::Unread => {
            let now = Instant::now();
            TURN.set(State::Read(now));
            now
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_turn_reads_the_clock_once() {
        let turn = Turn::begin();
        let first = now();
        let within = Turn::begin();
        // A turn within another must not end it.
        drop(within);
        advance(Duration::from_secs(1)).await;
        assert_eq!(now(), first);
        drop(turn);
        let next = Turn::begin();
        assert_eq!(now() - first, Duration::from_secs(1));
        drop(next);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_turn_each_reading_is_a_new_one() {
        let first = now();
        advance(Duration::from_secs(1)).await;
        assert_eq!(now() - first, Duration::from_secs(1));
    }
}
