//! How far ahead of its requests a gateway may take units from a shared bucket.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::time::Nanos;

/// Units that a gateway may take from a hot bucket before there are requests to spend them.
///
/// It says how far decisions may be off: by at most these units for each gateway. It makes a
/// difference only where buckets are shared, and only for [`Algorithm::Gcra`](super::Algorithm).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefetch {
    units: NonZeroU32,
    max_age_millis: u32,
}

impl Prefetch {
    /// Fewer units than these save next to nothing.
    pub const MIN_UNITS: u32 = 8;

    /// How long units are held, unless told otherwise.
    pub const DEFAULT_MAX_AGE: Duration = Duration::from_millis(250);

    /// At most this many units, none of them held for longer than `max_age`, which is cut to whole
    /// milliseconds. None for fewer units than [`Prefetch::MIN_UNITS`], or less than a millisecond.
    pub fn new(units: u32, max_age: Duration) -> Option<Self> {
        let max_age_millis = u32::try_from(max_age.as_millis()).unwrap_or(u32::MAX);
        let units = NonZeroU32::new(units).filter(|units| units.get() >= Self::MIN_UNITS)?;
        (max_age_millis > 0).then_some(Self {
            units,
            max_age_millis,
        })
    }

    /// How many units a gateway holds of a bucket at most, those included that are on their way.
    pub const fn units(self) -> u64 {
        self.units.get() as u64
    }

    /// How long a gateway holds them at most.
    pub const fn max_age(self) -> Nanos {
        Nanos::new(self.max_age_millis as u64 * 1_000_000)
    }
}
