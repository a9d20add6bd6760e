//! What is said of outages of the store: each by itself, unless there are many.

use std::time::Duration;

use tokio::time::Instant;

/// How often an outage is told at most.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// The outages of a store, and what was said of them.
#[derive(Debug, Default)]
pub(super) struct Outages {
    /// When an outage was told last.
    told: Option<Instant>,
    /// Whether the store was told to be out of reach, and not yet to be back.
    open: bool,
    /// Outages that nothing was said of.
    untold: u64,
    unreachable: bool,
}

/// What is to be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Saying {
    /// The store is out of reach, for so many times since that was said.
    Unreachable(u64),
    /// It is back.
    Reachable,
    /// It was out of reach so many times since that was said, and is back.
    Flapped(u64),
}

impl Outages {
    /// The store went out of reach, or came back.
    pub(super) fn changed(&mut self, reachable: bool, now: Instant) -> Option<Saying> {
        self.unreachable = !reachable;
        if reachable {
            let closes = std::mem::take(&mut self.open) && self.untold == 0;
            return closes.then_some(Saying::Reachable);
        }
        self.untold += 1;
        self.due(now)
    }

    /// Says what was left unsaid, once it is time.
    pub(super) fn due(&mut self, now: Instant) -> Option<Saying> {
        let may = self.told.is_none_or(|told| now - told >= TELL_EVERY);
        if !may || self.untold == 0 {
            return None;
        }
        self.told = Some(now);
        self.open = self.unreachable;
        let times = std::mem::take(&mut self.untold);
        Some(match self.unreachable {
            true => Saying::Unreachable(times),
            false => Saying::Flapped(times),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Story {
        outages: Outages,
        begin: Instant,
    }

    impl Story {
        fn new() -> Self {
            Self {
                outages: Outages::default(),
                begin: Instant::now(),
            }
        }

        fn changed(&mut self, reachable: bool, seconds: u64) -> Option<Saying> {
            let now = self.begin + Duration::from_secs(seconds);
            self.outages.changed(reachable, now)
        }

        fn due(&mut self, seconds: u64) -> Option<Saying> {
            self.outages.due(self.begin + Duration::from_secs(seconds))
        }
    }

    #[test]
    fn an_outage_and_its_end_are_said_at_once() {
        let mut story = Story::new();
        assert_eq!(story.changed(false, 0), Some(Saying::Unreachable(1)));
        assert_eq!(story.due(59), None);
        assert_eq!(story.changed(true, 300), Some(Saying::Reachable));
        assert_eq!(story.changed(false, 301), Some(Saying::Unreachable(1)));
        assert_eq!(story.changed(true, 302), Some(Saying::Reachable));
        assert_eq!(story.due(1000), None);
    }

    /// A flapping Redis wrote a dozen pairs of lines in six seconds.
    #[test]
    fn of_many_outages_no_more_than_one_is_said_in_a_minute_and_none_is_forgotten() {
        let mut story = Story::new();
        let mut said = Vec::new();
        for second in 0..150 {
            // Out of reach in each even second, and back in each odd one.
            said.extend(story.changed(second % 2 == 1, second));
            said.extend(story.due(second));
        }
        let one_and_its_end = [Saying::Unreachable(1), Saying::Reachable];
        let many = [Saying::Unreachable(30), Saying::Reachable];
        assert_eq!(said, [one_and_its_end, many, many].concat());
        assert_eq!(story.due(179), None);
        assert_eq!(story.due(180), Some(Saying::Flapped(14)));
        assert_eq!(story.due(1000), None);
    }

    #[test]
    fn an_outage_that_was_kept_quiet_is_said_if_it_lasts_and_so_is_its_end() {
        let mut story = Story::new();
        story.changed(false, 0);
        story.changed(true, 1);
        assert_eq!(story.changed(false, 2), None);
        assert_eq!(story.due(60), Some(Saying::Unreachable(1)));
        assert_eq!(story.changed(true, 61), Some(Saying::Reachable));
    }
}
