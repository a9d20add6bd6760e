use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::*;
use crate::limit::Claim;
use crate::store::leases::contract::{Subject, lease_contract};

impl Subject for MemoryLeases {
    fn leases(&self) -> &dyn Leases {
        self
    }
}

lease_contract!(MemoryLeases::default());

fn claims(key: &str, most: u64) -> Claims {
    let most = NonZeroU64::new(most).unwrap();
    [Claim::new(key.into(), most)].into()
}

#[test]
fn nothing_is_remembered_of_who_is_not_in_flight() {
    let in_flight = MemoryLeases::default();
    for number in 0..1000 {
        drop(in_flight.acquire_now(&claims(&format!("L:{number}"), 1)));
    }
    assert_eq!(in_flight.subjects(), 0);
    let one = in_flight.acquire_now(&claims("L:a", 1));
    drop(in_flight.acquire_now(&claims("L:a", 1)));
    assert_eq!(in_flight.subjects(), 1);
    drop(one);
    assert_eq!(in_flight.subjects(), 0);
}

#[test]
fn memory_is_given_back_when_many_subjects_are_gone() {
    let in_flight = MemoryLeases::default();
    let key = |number: u32| format!("L:{number}");
    let held: Vec<_> = (0..20_000)
        .map(|number| in_flight.acquire_now(&claims(&key(number), 1)))
        .collect();
    drop(held);
    let shards = in_flight.0.shards.iter();
    let most = shards
        .map(|shard| shard.lock().by_tag.capacity())
        .max()
        .unwrap();
    assert!(most <= 2 * SPARE, "{most}");
}

#[test]
fn threads_never_hold_more_than_there_are_places() {
    let in_flight = MemoryLeases::default();
    let inside = AtomicU64::new(0);
    let client = || {
        for _ in 0..2000 {
            // Two subjects, of which the second is never full on its own.
            let both = [claims("L:a", 3), claims("L:b", 4)].concat();
            let leased = in_flight.acquire_now(&both.into());
            if leased.outcome.is_allowed() {
                assert!(inside.fetch_add(1, Ordering::SeqCst) < 3);
                thread::yield_now();
                inside.fetch_sub(1, Ordering::SeqCst);
            }
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..6).map(|_| scope.spawn(client)).collect();
        threads.into_iter().for_each(|it| it.join().unwrap());
    });
    assert_eq!(in_flight.subjects(), 0);
}

#[tokio::test]
async fn a_forgotten_lease_takes_nothing_off_those_that_came_after_it() {
    let in_flight = MemoryLeases::default();
    let forgotten = in_flight.acquire_now(&claims("L:a", 1));
    let keys = [BucketKey::from("L:a")];
    in_flight.forget(keys.into()).await.unwrap();
    let after = in_flight.acquire_now(&claims("L:a", 1));
    assert!(after.outcome.is_allowed());
    drop(forgotten);
    let refused = in_flight.acquire_now(&claims("L:a", 1));
    assert!(!refused.outcome.is_allowed());
}
