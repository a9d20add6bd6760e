//! One shard's buckets: an open-addressing table with linear probing.
//!
//! # Memory
//! A slot takes 16 bytes and at most 7 of 8 slots are used, so a table at its limit takes 16 x 8/7
//! = 18.3 bytes a bucket. A table grows by half when a sweep leaves more than 7/8 of its capacity
//! used, that is from a load of at least 0.766 to one of 0.51: 31.3 bytes a bucket, and 52.2 while
//! the old slots are still there. A sweep shrinks a table that is less than a quarter full, so no
//! table takes more than 64 bytes a bucket for longer than from one sweep to the next.
//!
//! What an eviction has to know of a bucket beside its TAT is in nine bits of the tag's word.

use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{BucketClass, CLOCK_TOLERANCE, LEVELS, Level, Transaction};

use super::eviction::{Headroom, cheapest};
use super::shards::{self, Bounded, Shards};
use crate::hashed_key::HashedKey;

/// Buckets for each shard: with fewer, a shard is not worth its lock.
const BUCKETS_PER_SHARD: usize = 16_384;

/// More locks than this are of no use to any number of threads; it also keeps the longest hold of
/// one, to grow a shard's table, at some milliseconds for a store of a hundred million buckets.
const MAX_SHARDS: usize = 256;

/// The size of the first allocation, unless the limit needs less.
const MIN_SLOTS: usize = 16;

const EMPTY: Slot = Slot {
    word: 0,
    tat: Timestamp::from_nanos(0),
};

#[derive(Clone, Copy)]
struct Slot {
    /// The tag, and in its lowest bits the headroom.
    word: u64,
    tat: Timestamp,
}

/// A bucket as it was looked for. It holds until the table is changed.
#[derive(Clone, Copy)]
pub(super) struct Lookup {
    tag: u64,
    /// Its slot; none if the bucket is not kept.
    at: Option<usize>,
    /// The TAT; long ago for an unknown bucket, which counts as full.
    tat: Timestamp,
}

/// Shards for `max_buckets` of limits in all. Every other shard is for the buckets of bans, of
/// which there may be as many: no flood of subjects that limits count takes their place.
pub(super) fn shards(max_buckets: usize) -> Shards<Table> {
    let count = shards::count(max_buckets, BUCKETS_PER_SHARD, MAX_SHARDS);
    let limit = |shard| max_buckets / count + usize::from(shard < max_buckets % count);
    Shards::new(2 * count, |shard| Table::new(limit(shard / 2)))
}

/// What stands for a key in these tables. The lowest bit of its shard tells buckets of bans from
/// those of limits. The tag is never zero, and without the headroom's bits.
pub(super) fn key(key: HashedKey, class: BucketClass) -> HashedKey {
    HashedKey {
        shard: key.shard << 1 | u64::from(class != BucketClass::Limit),
        tag: (key.tag & !Headroom::BITS).max(Headroom::BITS + 1),
    }
}

/// What stands for a level below the first, and for what it knows of the one above, in the same
/// shard. An odd factor maps no two tags to one.
fn level_tags(tag: u64, index: usize) -> [u64; 2] {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let number = 2 * index as u64;
    [number, number + 1].map(|number| {
        let mixed = (tag | number).wrapping_mul(FACTOR);
        (mixed & !Headroom::BITS).max(Headroom::BITS + 1)
    })
}

impl Lookup {
    pub(super) fn tag(&self) -> u64 {
        self.tag
    }

    pub(super) fn debt(&self, now: Timestamp) -> Nanos {
        self.tat.since(now)
    }
}

impl Slot {
    fn new(tag: u64, headroom: Headroom, tat: Timestamp) -> Self {
        let word = tag | headroom.bits();
        Self { word, tat }
    }

    fn is_empty(self) -> bool {
        self.word == EMPTY.word
    }

    fn has(self, tag: u64) -> bool {
        self.word ^ tag <= Headroom::BITS
    }

    fn tag(self) -> u64 {
        self.word & !Headroom::BITS
    }

    fn headroom(self) -> Headroom {
        Headroom::from_bits(self.word & Headroom::BITS)
    }

    /// Whether the bucket is full, and would be on any clock that is not more than
    /// [`CLOCK_TOLERANCE`] behind: a clock that steps back by less finds what it left.
    fn is_expired(self, now: Timestamp) -> bool {
        self.tat + CLOCK_TOLERANCE <= now
    }
}

/// TATs by tag, at most `limit` of them.
pub(super) struct Table {
    slots: Box<[Slot]>,
    len: usize,
    limit: usize,
    hand: usize,
}

impl Table {
    /// An empty table, which has allocated nothing yet.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            slots: Box::default(),
            len: 0,
            limit,
            hand: 0,
        }
    }

    pub(super) fn lookup(&self, tag: u64) -> Lookup {
        let at = self.find(tag).ok();
        let tat = at.map_or(EMPTY.tat, |at| self.slot(at).tat);
        Lookup { tag, at, tat }
    }

    /// Keeps a bucket with this debt after a transaction. Tells whether another bucket had to be
    /// evicted for it before its time.
    pub(super) fn set(
        &mut self,
        found: Lookup,
        transaction: &Transaction,
        debt: Nanos,
        now: Timestamp,
    ) -> bool {
        let tat = now + debt;
        match found.at.and_then(|at| self.slots.get_mut(at)) {
            // The headroom stays what it was until the bucket has been full.
            Some(slot) if found.tat > now => {
                *slot = Slot::new(found.tag, slot.headroom(), tat);
                false
            }
            Some(slot) => {
                *slot = Slot::new(found.tag, Headroom::after_allowing(transaction), tat);
                false
            }
            None => {
                let evicted = self.make_room(now);
                self.insert(Slot::new(
                    found.tag,
                    Headroom::after_allowing(transaction),
                    tat,
                ));
                evicted
            }
        }
    }

    /// The levels of a bucket below the first. They are kept as buckets are, two for each level:
    /// one for its TAT, and one for that of the level above.
    pub(super) fn levels(&self, tag: u64) -> [Level; LEVELS - 1] {
        std::array::from_fn(|index| {
            let [tat, above] = level_tags(tag, index + 1).map(|tag| self.lookup(tag).tat);
            Level { tat, above }
        })
    }

    /// Keeps a level below the first. Tells how many buckets had to be evicted for it.
    pub(super) fn set_level(
        &mut self,
        (tag, index): (u64, usize),
        transaction: &Transaction,
        level: Level,
        now: Timestamp,
    ) -> u64 {
        let both = level_tags(tag, index)
            .into_iter()
            .zip([level.tat, level.above]);
        both.map(|(tag, tat)| {
            let found = self.lookup(tag);
            u64::from(self.set(found, transaction, tat.since(now), now))
        })
        .sum()
    }

    /// Notes that a bucket denies a transaction, if it is kept.
    pub(super) fn note_denial(&mut self, found: Lookup, transaction: &Transaction) {
        if let Some(slot) = found.at.and_then(|at| self.slots.get_mut(at)) {
            *slot = Slot::new(found.tag, slot.headroom().denying(transaction), slot.tat);
        }
    }

    pub(super) fn remove(&mut self, tag: u64) {
        let deeper = (1..LEVELS).flat_map(|index| level_tags(tag, index));
        for tag in [tag].into_iter().chain(deeper) {
            if let Ok(at) = self.find(tag) {
                self.remove_at(at);
            }
        }
    }

    fn drop_expired(&mut self, now: Timestamp) {
        let mut at = 0;
        while at < self.slots.len() {
            let slot = self.slot(at);
            if !slot.is_empty() && slot.is_expired(now) {
                // What follows moves up into this slot, which is then looked at again.
                self.remove_at(at);
            } else {
                at += 1;
            }
        }
    }

    fn make_room(&mut self, now: Timestamp) -> bool {
        if self.len < self.limit.min(capacity(self.slots.len())) {
            return false;
        }
        let greatest = slots_for(self.limit);
        if self.slots.len() < greatest {
            self.sweep_or_grow(now, greatest);
        }
        self.len >= self.limit && self.evict(now)
    }

    /// Growing when a sweep frees less than an eighth keeps the cost of sweeping at a constant
    /// number of slots for each insertion.
    fn sweep_or_grow(&mut self, now: Timestamp, greatest: usize) {
        self.drop_expired(now);
        if 8 * self.len >= 7 * capacity(self.slots.len()) {
            let half_as_much_again = self.slots.len() + self.slots.len() / 2;
            self.resize(half_as_much_again.max(MIN_SLOTS).min(greatest));
        }
    }

    /// Evicts the bucket that costs the least. Tells whether it had not expired.
    fn evict(&mut self, now: Timestamp) -> bool {
        let eviction_cost = |at| {
            let slot: Slot = self.slots.get(at).copied().unwrap_or(EMPTY);
            (!slot.is_empty()).then(|| slot.headroom().eviction_cost(slot.tat, now))
        };
        let Some(at) = cheapest(&mut self.hand, self.slots.len(), eviction_cost) else {
            return false;
        };
        let expired = self.slot(at).is_expired(now);
        self.remove_at(at);
        !expired
    }

    fn resize(&mut self, slots: usize) {
        let old = std::mem::replace(&mut self.slots, vec![EMPTY; slots].into_boxed_slice());
        self.len = 0;
        self.hand = 0;
        for &slot in old.iter().filter(|slot| !slot.is_empty()) {
            self.insert(slot);
        }
    }

    /// Puts in a bucket that is not there yet. There is always an empty slot, by [`capacity`].
    fn insert(&mut self, slot: Slot) {
        if let Err(at) = self.find(slot.tag()) {
            self.put(at, slot);
            self.len += 1;
        }
    }

    /// The slot of the tag, or else the empty slot where it belongs.
    fn find(&self, tag: u64) -> Result<usize, usize> {
        let mut at = self.home(tag);
        loop {
            match self.slot(at) {
                slot if slot.has(tag) => return Ok(at),
                slot if slot.is_empty() => return Err(at),
                _ => at = self.wrap(at + 1),
            }
        }
    }

    /// Empties a slot and moves up those behind it that a probe would otherwise no longer reach.
    fn remove_at(&mut self, mut hole: usize) {
        let mut at = self.wrap(hole + 1);
        while !self.slot(at).is_empty() {
            let slot = self.slot(at);
            if self.distance(self.home(slot.tag()), at) >= self.distance(hole, at) {
                self.put(hole, slot);
                hole = at;
            }
            at = self.wrap(at + 1);
        }
        self.put(hole, EMPTY);
        self.len -= 1;
    }

    /// Maps the tag's whole range evenly to the slots, however many there are.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the upper half of the product is below the number of slots"
    )]
    fn home(&self, tag: u64) -> usize {
        ((u128::from(tag) * self.slots.len() as u128) >> 64) as usize
    }

    fn distance(&self, from: usize, to: usize) -> usize {
        if from <= to {
            to - from
        } else {
            to + self.slots.len() - from
        }
    }

    /// Brings an index that is at most twice too great back into the table.
    fn wrap(&self, at: usize) -> usize {
        if at < self.slots.len() {
            at
        } else {
            at - self.slots.len()
        }
    }

    fn slot(&self, at: usize) -> Slot {
        self.slots.get(at).copied().unwrap_or(EMPTY)
    }

    fn put(&mut self, at: usize, new: Slot) {
        if let Some(slot) = self.slots.get_mut(at) {
            *slot = new;
        }
    }
}

impl Bounded for Table {
    fn len(&self) -> usize {
        self.len
    }

    fn bytes(&self) -> usize {
        size_of_val(&*self.slots)
    }

    fn sweep(&mut self, now: Timestamp) {
        self.drop_expired(now);
        let wanted = slots_for(2 * self.len);
        if 4 * self.len < self.slots.len() && wanted < self.slots.len() {
            self.resize(wanted);
        }
    }
}

/// How many buckets these slots may hold; always leaves a slot empty, which ends every probe.
fn capacity(slots: usize) -> usize {
    slots - slots.div_ceil(8)
}

fn slots_for(buckets: usize) -> usize {
    buckets + buckets.div_ceil(7)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::num::NonZeroU64;
    use std::time::Duration;

    use proptest::prelude::*;
    use weir_limit::{Quota, Transaction};

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_nanos(seconds * SECOND)
    }

    /// Spreads small numbers over the tags' whole range.
    fn tag(number: u64) -> u64 {
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15) & !Headroom::BITS
    }

    /// Keeps a bucket from which a unit can be taken again, and again.
    fn set(table: &mut Table, tag: u64, tat: Timestamp, now: Timestamp) -> bool {
        let quota = Quota::new(100, 1, Duration::from_secs(1000)).unwrap();
        let transaction = Transaction::new("L:a".into(), quota, NonZeroU64::MIN);
        table.set(table.lookup(tag), &transaction, tat.since(now), now)
    }

    fn filled(limit: usize, buckets: u64) -> Table {
        let mut table = Table::new(limit);
        for number in 1..=buckets {
            set(&mut table, tag(number), at(100 + number), at(0));
        }
        table
    }

    #[test]
    fn the_slots_for_a_number_of_buckets_have_room_for_them() {
        for buckets in 0..10_000 {
            assert!(capacity(slots_for(buckets)) >= buckets, "{buckets}");
        }
    }

    #[test]
    fn an_empty_table_takes_no_memory() {
        assert_eq!(Table::new(1000).bytes(), 0);
    }

    #[test]
    fn the_fullest_bucket_is_evicted_first() {
        let mut table = filled(10, 10);
        assert!(set(&mut table, tag(11), at(500), at(0)));
        assert_eq!(table.lookup(tag(1)).at, None);
        assert!(set(&mut table, tag(12), at(500), at(0)));
        assert_eq!(table.lookup(tag(2)).at, None);
        assert_eq!(table.len(), 10);
        assert!((3..=12).all(|number| table.lookup(tag(number)).at.is_some()));
    }

    #[test]
    fn an_expired_bucket_makes_room_without_an_eviction() {
        let mut table = filled(10, 10);
        assert!(!set(&mut table, tag(11), at(500), at(102)));
        assert_eq!(table.len(), 10);
    }

    #[test]
    fn evictions_in_a_great_table_prefer_full_buckets_to_empty_ones() {
        let mut table = filled(1000, 1000);
        for number in 1001..=1500 {
            set(&mut table, tag(number), at(100 + number), at(0));
        }
        let kept = |range: std::ops::RangeInclusive<u64>| {
            range.filter(|&n| table.lookup(tag(n)).at.is_some()).count()
        };
        assert!(kept(1..=250) < 100, "{} of the fullest left", kept(1..=250));
        assert!(
            kept(1251..=1500) > 240,
            "{} of the emptiest",
            kept(1251..=1500)
        );
    }

    #[test]
    fn a_bucket_takes_at_most_32_bytes_once_there_are_many_and_18_at_the_limit() {
        let mut table = Table::new(10_000);
        for number in 1..=10_000 {
            set(&mut table, tag(number), at(100), at(0));
            let bytes = table.bytes();
            assert!(
                number < 20 || bytes <= 32 * table.len(),
                "{bytes} at {number}"
            );
        }
        assert!(table.bytes() <= 183 * 10_000 / 10);
    }

    #[test]
    fn a_sweep_forgets_what_has_expired_and_gives_the_memory_back() {
        let mut table = filled(10_000, 10_000);
        table.sweep(at(10_000));
        assert_eq!(table.len(), 101);
        assert!(table.bytes() <= 64 * 101);
        table.sweep(at(20_000));
        assert_eq!((table.len(), table.bytes()), (0, 0));
    }

    #[test]
    fn a_table_of_short_lived_buckets_does_not_grow() {
        let mut table = Table::new(100_000);
        for number in 1..=10_000 {
            set(&mut table, tag(number), at(number), at(number));
        }
        assert!(table.bytes() <= 64 * size_of::<Slot>(), "{}", table.bytes());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Set(u64, u64),
        Remove(u64),
        Sweep(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        // Few distinct tags from the ends of the range: long runs that wrap round.
        let tag = prop_oneof![1..40_u64, (0..40_u64).prop_map(|back| (1 << 55) - 1 - back)]
            .prop_map(|tag| tag << 9);
        prop_oneof![
            6 => (tag.clone(), 1..50_u64).prop_map(|(tag, tat)| Step::Set(tag, tat)),
            3 => tag.prop_map(Step::Remove),
            1 => (1..20_u64).prop_map(Step::Sweep),
        ]
    }

    proptest! {
        #[test]
        fn a_table_remembers_what_a_map_remembers(steps in prop::collection::vec(step(), 1..400)) {
            let mut table = Table::new(1000);
            let mut map = HashMap::new();
            for step in steps {
                match step {
                    Step::Set(tag, tat) => {
                        set(&mut table, tag, at(tat), at(0));
                        map.insert(tag, at(tat));
                    }
                    Step::Remove(tag) => {
                        table.remove(tag);
                        map.remove(&tag);
                    }
                    Step::Sweep(now) => {
                        table.sweep(at(now));
                        map.retain(|_, tat| *tat + CLOCK_TOLERANCE > at(now));
                    }
                }
                prop_assert_eq!(table.len(), map.len());
                for (&tag, &tat) in &map {
                    prop_assert_eq!(table.lookup(tag).tat, tat);
                }
            }
        }
    }
}
