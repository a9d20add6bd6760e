//! One bucket under several definitions of its limit, each with another tolerance: while gateways
//! are updated one after the other, and after a limit was changed.
//!
//! A debt that is beyond a definition's own tolerance was made by another definition, and is never
//! forgiven: what is forgiven in a shared bucket, the laxer definition hands out a second time. So
//! the stricter one counts in a bucket of its own, the next *level*, which begins empty, and
//! charges what it admits to the levels above as well. `docs/ALGORITHMS.md` has the bound and its
//! proof.

use crate::Quota;
use crate::time::{Nanos, Timestamp};

/// How many levels a bucket has. A definition that finds the last one beyond its tolerance, too,
/// waits until it is not.
pub const LEVELS: usize = 4;

const SECOND: u64 = Nanos::from_secs(1).get();

/// A level below the first, as a store keeps it. The default is one that never was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// Its theoretical arrival time.
    pub tat: Timestamp,
    /// The second of the TAT that the level above had when this one was last used. Its nanoseconds
    /// are a hash of the definition that used it.
    pub above: Timestamp,
}

/// The level at which a definition counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelChoice {
    /// How many levels are above it.
    pub index: usize,
    /// Its debt.
    pub debt: Nanos,
    /// The debt of the level above, which is the same for the first.
    pub above: Nanos,
    /// Whether it begins now, empty, and has to be written for that.
    pub begins: bool,
    /// Which definition it is.
    pub user: u32,
}

impl LevelChoice {
    /// The first level, with this debt.
    pub const fn first(debt: Nanos) -> Self {
        Self {
            index: 0,
            debt,
            above: debt,
            begins: false,
            user: 0,
        }
    }

    /// A level below the first after this much is taken from it.
    pub fn level_after(&self, taken: Nanos, now: Timestamp) -> Level {
        let second = (now + self.above + taken).as_secs() * SECOND;
        Level {
            tat: now + self.debt + taken,
            above: Timestamp::from_nanos(second + u64::from(self.user)),
        }
    }
}

impl Quota {
    /// The level that counts for this quota, by the debt of the first and what is kept of the
    /// others.
    ///
    /// A level counts only if the one above was beyond the tolerance ever since it was last used:
    /// else the units that came back in it meanwhile have been handed out above. A definition that
    /// did not use the next level waits here if the debt is its own after all: stricter definitions
    /// charge to this level what they admit by that one.
    pub fn choose_level(
        &self,
        debt: Nanos,
        deeper: &[Level; LEVELS - 1],
        now: Timestamp,
    ) -> LevelChoice {
        let user = self.user();
        let mut choice = LevelChoice::first(debt);
        for (index, level) in (1..).zip(deeper) {
            if !self.is_foreign(choice.debt) {
                break;
            }
            let counts = level.above.as_secs() >= (now + self.greatest_debt()).as_secs();
            let debt = level.tat.since(now);
            let is_own = level.above.as_nanos() % SECOND == u64::from(user);
            let explains =
                !self.is_foreign(choice.debt.saturating_sub(debt)) && !self.is_foreign(debt);
            if counts && !is_own && explains {
                break;
            }
            choice = LevelChoice {
                index,
                debt: if counts {
                    debt
                } else {
                    debt.max(self.tolerance())
                },
                above: choice.debt,
                begins: !counts,
                user,
            };
        }
        choice
    }

    /// A hash of the definition, below a second's nanoseconds.
    fn user(&self) -> u32 {
        let both = self.emission_interval().get() ^ self.tolerance().get().rotate_left(32);
        let user = both.wrapping_mul(0x9e37_79b9_7f4a_7c15) % SECOND;
        u32::try_from(user).unwrap_or_default()
    }
}
