//! One shard's buckets: an open-addressing table with linear probing.
//!
//! # Memory
//! A slot takes 16 bytes and at most 7 of 8 slots are used, so a table at its limit takes
//! 16 x 8/7 = 18.3 bytes a bucket. A table grows by half when a sweep leaves more than 7/8 of its
//! room used, that is from a load of at least 0.766 to one of 0.51: 31.3 bytes a bucket, and 52.2
//! while the old slots are still there. A sweep shrinks a table that is less than a quarter full,
//! so no table takes more than 64 bytes a bucket for longer than from one sweep to the next.
//!
//! What an eviction has to know of a bucket beside its TAT is in nine bits of the tag's word.

use super::eviction::{Room, least_loss};
use crate::limit::{CLOCK_TOLERANCE, Decision, Transaction};
use crate::store::hashed_key::HashedKey;
use crate::time::Timestamp;

/// The size of the first allocation, unless the limit needs less.
const FIRST_SLOTS: usize = 16;

const EMPTY: Slot = Slot {
    word: 0,
    tat: Timestamp::from_nanos(0),
};

#[derive(Clone, Copy)]
struct Slot {
    /// The tag, and in its lowest bits the room.
    word: u64,
    tat: Timestamp,
}

/// A bucket as it was looked for. It holds until the table is changed.
#[derive(Clone, Copy)]
pub(super) struct Found {
    tag: u64,
    /// Where it is; none when it is not kept.
    at: Option<usize>,
    /// Its TAT, which is long ago when it is full for all that is known.
    pub(super) tat: Timestamp,
}

/// The tag of a key in these tables: never zero, and without the bits that are for the room.
pub(super) fn tag(key: HashedKey) -> u64 {
    (key.tag & !Room::BITS).max(Room::BITS + 1)
}

impl Slot {
    fn new(tag: u64, room: Room, tat: Timestamp) -> Self {
        let word = tag | room.bits();
        Self { word, tat }
    }

    fn is_empty(self) -> bool {
        self.word == EMPTY.word
    }

    fn has(self, tag: u64) -> bool {
        self.word ^ tag <= Room::BITS
    }

    fn tag(self) -> u64 {
        self.word & !Room::BITS
    }

    fn room(self) -> Room {
        Room::from_bits(self.word & Room::BITS)
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

    /// How many buckets are kept.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The bytes that the slots take.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.slots)
    }

    /// Looks for a bucket.
    pub(super) fn look(&self, tag: u64) -> Found {
        let at = self.find(tag).ok();
        let tat = at.map_or(EMPTY.tat, |at| self.slot(at).tat);
        Found { tag, at, tat }
    }

    /// The TAT of a bucket; none of a bucket that is full for all that is known.
    pub(super) fn tat(&self, tag: u64) -> Option<Timestamp> {
        let found = self.look(tag);
        found.at.map(|_| found.tat)
    }

    /// Keeps a bucket as it is after a transaction. Tells whether another bucket had to be
    /// forgotten for it before its time.
    pub(super) fn set(
        &mut self,
        found: Found,
        one: &Transaction,
        after: &Decision,
        now: Timestamp,
    ) -> bool {
        let tat = now + after.reset_in;
        match found.at.and_then(|at| self.slots.get_mut(at)) {
            // The room stays what it was until the bucket has been full.
            Some(slot) if found.tat > now => {
                *slot = Slot::new(found.tag, slot.room(), tat);
                false
            }
            Some(slot) => {
                *slot = Slot::new(found.tag, Room::beside(one), tat);
                false
            }
            None => {
                let evicted = self.make_room(now);
                self.insert(Slot::new(found.tag, Room::beside(one), tat));
                evicted
            }
        }
    }

    /// Notes that a bucket denies a transaction, if it is kept.
    pub(super) fn note_denial(&mut self, found: Found, one: &Transaction) {
        if let Some(slot) = found.at.and_then(|at| self.slots.get_mut(at)) {
            *slot = Slot::new(found.tag, slot.room().denying(one), slot.tat);
        }
    }

    /// Forgets a bucket.
    pub(super) fn remove(&mut self, tag: u64) {
        if let Ok(at) = self.find(tag) {
            self.remove_at(at);
        }
    }

    /// Forgets the buckets that have expired, and gives memory back when few are left.
    pub(super) fn sweep(&mut self, now: Timestamp) {
        self.drop_expired(now);
        let wanted = slots_for(2 * self.len);
        if 4 * self.len < self.slots.len() && wanted < self.slots.len() {
            self.resize(wanted);
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
        if self.len < self.limit.min(room(self.slots.len())) {
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
        if 8 * self.len >= 7 * room(self.slots.len()) {
            let half_as_much_again = self.slots.len() + self.slots.len() / 2;
            self.resize(half_as_much_again.max(FIRST_SLOTS).min(greatest));
        }
    }

    /// Forgets the bucket of which the least would be lost. Tells whether it had not expired.
    fn evict(&mut self, now: Timestamp) -> bool {
        let loss = |at| {
            let slot: Slot = self.slots.get(at).copied().unwrap_or(EMPTY);
            (!slot.is_empty()).then(|| slot.room().loss(slot.tat, now))
        };
        let Some(at) = least_loss(&mut self.hand, self.slots.len(), loss) else {
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

    /// Puts in a bucket that is not there yet. There is always an empty slot, by [`room`].
    fn insert(&mut self, slot: Slot) {
        if let Err(at) = self.find(slot.tag()) {
            self.put(at, slot);
            self.len += 1;
        }
    }

    /// Where the tag is, or else the empty slot where it belongs.
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

/// How many buckets so many slots may hold; always leaves a slot empty, which ends every probe.
fn room(slots: usize) -> usize {
    slots - slots.div_ceil(8)
}

/// How many slots so many buckets need.
fn slots_for(buckets: usize) -> usize {
    buckets + buckets.div_ceil(7)
}

#[cfg(test)]
mod tests;
