//! What every limiter is given to do: the same keys, the same quota, the same order.

use std::fmt::Write;
use std::num::NonZeroU32;
use std::time::Duration;

/// What a bucket holds: more than is asked of any here, so every decision is an allowed one and
/// takes a unit.
pub const BURST: NonZeroU32 = NonZeroU32::new(40_000_000).unwrap();

/// So few units come back that no bucket is full again before a measurement ends.
pub const UNITS_A_DAY: NonZeroU32 = NonZeroU32::new(1000).unwrap();

pub const DAY: Duration = Duration::from_secs(86_400);

/// Each number below 2^24 has an address of its own.
pub const MAX_BUCKETS: u32 = 1 << 24;

/// The bucket key of a client, such as `RequestsPerAddress:10.1.134.160`.
pub fn write_key(number: u32, key: &mut String) {
    let [_, second, third, fourth] = number.to_be_bytes();
    key.clear();
    // Nothing fails that writes to a string.
    let _ = write!(key, "RequestsPerAddress:10.{second}.{third}.{fourth}");
}

/// SplitMix64: numbers in an order that no cache foresees, alike for all who are measured.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u32) -> u32 {
        // The upper half of the product is below the bound.
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u32
    }

    /// An order of so many things.
    pub fn order(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by_cached_key(|_| self.next());
        order
    }
}
