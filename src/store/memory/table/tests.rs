use std::collections::HashMap;
use std::num::NonZeroU64;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::limit::{Quota, Transaction};

const SECOND: u64 = 1_000_000_000;

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_nanos(seconds * SECOND)
}

/// Spreads small numbers over the tags' whole range.
fn tag(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) & !Room::BITS
}

/// Keeps a bucket from which a unit can be taken again, and again.
fn set(table: &mut Table, tag: u64, tat: Timestamp, now: Timestamp) -> bool {
    let quota = Quota::new(100, 1, Duration::from_secs(1000)).unwrap();
    let one = Transaction::new("L:a".into(), quota, NonZeroU64::MIN);
    let after = one.untouched(tat.since(now));
    table.set(table.look(tag), &one, &after, now)
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
        assert!(room(slots_for(buckets)) >= buckets, "{buckets}");
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
    assert_eq!(table.tat(tag(1)), None);
    assert!(set(&mut table, tag(12), at(500), at(0)));
    assert_eq!(table.tat(tag(2)), None);
    assert_eq!(table.len(), 10);
    assert!((3..=12).all(|number| table.tat(tag(number)).is_some()));
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
        range.filter(|&n| table.tat(tag(n)).is_some()).count()
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
                prop_assert_eq!(table.tat(tag), Some(tat));
            }
        }
    }
}
