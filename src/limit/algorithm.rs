//! The ways of counting.

use crate::limit::Calendar;

/// How a limit counts. See `docs/ALGORITHMS.md` for what each costs and where each errs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// The generic cell rate algorithm, which is a token bucket: units come back one by one.
    #[default]
    Gcra,
    /// A count that begins anew with every window.
    FixedWindow(Alignment),
    /// Counts of sixty sub-windows, summed over the period and one sub-window more.
    SlidingWindow {
        /// Whether the cost of a request that this limit denies is counted as well.
        count_denied: bool,
    },
    /// Every unit, with the moment at which it was taken.
    SlidingLog {
        /// Whether the cost of a request that this limit denies is counted as well.
        count_denied: bool,
    },
    /// Not what passes in a time, but how much is under way at once: see [`Claim`](super::Claim).
    /// It is counted in leases, and no transaction of a batch is decided by it.
    InFlight,
}

/// Where fixed windows begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alignment {
    /// At multiples of the period since the Unix epoch, for all subjects alike.
    Period,
    /// With a subject's first request after its last window has ended.
    FirstRequest,
    /// With the days, weeks or months of a time zone.
    Calendar(Calendar),
}

impl Algorithm {
    /// The name, as it is written in configurations.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Gcra => "gcra",
            Self::FixedWindow(_) => "fixed_window",
            Self::SlidingWindow { .. } => "sliding_window",
            Self::SlidingLog { .. } => "sliding_log",
            Self::InFlight => "in_flight",
        }
    }

    /// Whether it counts in windows.
    pub const fn is_windowed(&self) -> bool {
        !matches!(self, Self::Gcra | Self::InFlight)
    }

    /// Whether the cost of a request that the limit denies is counted as well.
    pub const fn counts_denied(&self) -> bool {
        match self {
            Self::Gcra | Self::FixedWindow(_) | Self::InFlight => false,
            Self::SlidingWindow { count_denied } | Self::SlidingLog { count_denied } => {
                *count_denied
            }
        }
    }
}
