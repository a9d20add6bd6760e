//! What all leases must do. Each test of [`lease_contract`] runs on all of them.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::FutureExt;
use futures_util::future::join_all;
use weir_limit::{BucketKeys, Claim, Claims, Mode};

use crate::tests::contract::NOW;
use crate::tests::support::eventually_some;
use crate::{Leased, Leases, StoreFuture};

/// Leases under test.
pub trait Subject {
    fn leases(&self) -> &dyn Leases;

    /// Waits until all that was dropped is given back.
    fn settled(&self) -> StoreFuture<()> {
        StoreFuture::ready(())
    }
}

/// Runs the contract on the subjects that `$new` makes.
#[macro_export]
macro_rules! lease_contract {
    ($new:expr) => {
        $crate::lease_contract!($new;
            as_many_requests_get_a_lease_as_there_are_places,
            a_place_is_free_again_when_its_lease_is_dropped,
            what_is_denied_by_one_limit_takes_no_place_of_another,
            other_kinds_of_claims_keep_to_what_they_are,
            one_subject_twice_takes_two_places,
            fewer_places_hold_at_once_and_end_no_lease,
            deleted_leases_count_no_more_and_free_nothing,
            no_claims_are_granted_and_hold_nothing,
            an_answer_that_nobody_waits_for_holds_nothing,
            of_many_at_once_as_many_get_in_as_there_are_places,
            never_are_more_leases_held_than_there_are_places,
            the_greatest_number_of_places_counts,
        );
    };
    ($new:expr; $($name:ident,)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                let subject = $new;
                $crate::tests::lease_contract::$name(&subject).await;
            }
        )*
    };
}
pub use crate::lease_contract;

pub fn claim(key: &str, most: u64) -> Claim {
    Claim::new(key.into(), NonZeroU64::new(most).unwrap())
}

pub fn claims(claims: impl IntoIterator<Item = Claim>) -> Claims {
    claims.into_iter().collect()
}

pub async fn acquire(subject: &impl Subject, all: Claims) -> Leased {
    subject.leases().acquire(all, NOW).await.unwrap()
}

/// A lease of three places.
async fn take(subject: &impl Subject, key: &str) -> Leased {
    acquire(subject, claims([claim(key, 3)])).await
}

async fn free(subject: &impl Subject, key: &str) -> u64 {
    subject.settled().await.unwrap();
    let look = Claim {
        mode: Mode::CheckOnly,
        ..claim(key, 3)
    };
    let leased = acquire(subject, claims([look])).await;
    assert!(leased.guard.is_empty());
    leased.outcome.decisions[0].unwrap().remaining
}

fn shown(leased: &Leased) -> Vec<(bool, u64)> {
    let decisions = leased.outcome.decisions.iter();
    decisions
        .map(|decision| decision.unwrap())
        .map(|decision| (decision.allowed, decision.remaining))
        .collect()
}

pub async fn as_many_requests_get_a_lease_as_there_are_places(subject: &impl Subject) {
    let mut held = Vec::new();
    for left in (0..3).rev() {
        let leased = take(subject, "L:a").await;
        assert_eq!(shown(&leased), [(true, left)]);
        assert!(!leased.guard.is_empty());
        held.push(leased);
    }
    let refused = take(subject, "L:a").await;
    assert_eq!(shown(&refused), [(false, 0)]);
    assert!(refused.guard.is_empty());
    assert!(take(subject, "L:b").await.outcome.is_allowed());
}

pub async fn a_place_is_free_again_when_its_lease_is_dropped(subject: &impl Subject) {
    let first = take(subject, "L:a").await;
    let second = take(subject, "L:a").await;
    assert_eq!(free(subject, "L:a").await, 1);
    drop(first);
    assert_eq!(free(subject, "L:a").await, 2);
    drop(second);
    assert_eq!(free(subject, "L:a").await, 3);
}

pub async fn what_is_denied_by_one_limit_takes_no_place_of_another(subject: &impl Subject) {
    let held = acquire(subject, claims([claim("L:full", 1)])).await;
    let best_effort = Claim {
        mode: Mode::SpendOnly,
        ..claim("L:c", 3)
    };
    let all = claims([claim("L:a", 3), claim("L:full", 1), best_effort]);
    let refused = acquire(subject, all.clone()).await;
    assert_eq!(shown(&refused), [(true, 3), (false, 0), (true, 3)]);
    assert!(refused.guard.is_empty());
    assert_eq!(free(subject, "L:a").await, 3);
    assert_eq!(free(subject, "L:c").await, 3);
    drop(held);
    subject.settled().await.unwrap();
    let leased = acquire(subject, all).await;
    assert_eq!(shown(&leased), [(true, 2), (true, 0), (true, 2)]);
    drop(leased);
    assert_eq!(free(subject, "L:a").await, 3);
    assert_eq!(free(subject, "L:c").await, 3);
}

pub async fn other_kinds_of_claims_keep_to_what_they_are(subject: &impl Subject) {
    let of_mode = |mode| {
        claims([Claim {
            mode,
            ..claim("L:a", 1)
        }])
    };
    let looked = acquire(subject, of_mode(Mode::CheckOnly)).await;
    assert_eq!(shown(&looked), [(true, 1)]);
    let held = acquire(subject, of_mode(Mode::SpendOnly)).await;
    assert_eq!(shown(&held), [(true, 0)]);
    let beside = acquire(subject, of_mode(Mode::SpendOnly)).await;
    assert_eq!(shown(&beside), [(true, 0)]);
    assert!(beside.guard.is_empty());
    let looked = acquire(subject, of_mode(Mode::CheckOnly)).await;
    assert_eq!(shown(&looked), [(false, 0)]);
    // A limit that is switched off leaves them unread.
    let off = acquire(subject, of_mode(Mode::AllowOnly)).await;
    assert_eq!(shown(&off), [(true, 1)]);
    assert!(off.guard.is_empty());
    drop(held);
    assert_eq!(free(subject, "L:a").await, 3);
}

pub async fn one_subject_twice_takes_two_places(subject: &impl Subject) {
    let twice = || claims([claim("L:a", 3), claim("L:a", 3)]);
    let leased = acquire(subject, twice()).await;
    assert_eq!(shown(&leased), [(true, 2), (true, 1)]);
    assert!(!acquire(subject, twice()).await.outcome.is_allowed());
    assert_eq!(free(subject, "L:a").await, 1);
    drop(leased);
    assert_eq!(free(subject, "L:a").await, 3);
}

pub async fn fewer_places_hold_at_once_and_end_no_lease(subject: &impl Subject) {
    let mut held = Vec::new();
    for _ in 0..5 {
        held.push(acquire(subject, claims([claim("L:a", 9)])).await);
    }
    for _ in 0..3 {
        assert!(!take(subject, "L:a").await.outcome.is_allowed());
        held.pop();
        subject.settled().await.unwrap();
    }
    assert_eq!(held.len(), 2);
    assert!(take(subject, "L:a").await.outcome.is_allowed());
}

pub async fn deleted_leases_count_no_more_and_free_nothing(subject: &impl Subject) {
    let (deleted, kept) = (take(subject, "L:a").await, take(subject, "L:b").await);
    let leases = subject.leases();
    let keys = ["L:a", "L:never-seen"].map(Into::into);
    leases.delete(keys.into_iter().collect()).await.unwrap();
    leases.delete(BucketKeys::new()).await.unwrap();
    assert_eq!(free(subject, "L:a").await, 3);
    assert_eq!(free(subject, "L:b").await, 2);
    let after = take(subject, "L:a").await;
    drop(deleted);
    assert_eq!(free(subject, "L:a").await, 2);
    drop((after, kept));
}

pub async fn no_claims_are_granted_and_hold_nothing(subject: &impl Subject) {
    let leased = acquire(subject, Claims::new()).await;
    assert!(leased.outcome.is_allowed() && leased.guard.is_empty());
}

pub async fn an_answer_that_nobody_waits_for_holds_nothing(subject: &impl Subject) {
    for _ in 0..10 {
        let all = claims([claim("L:a", 3), claim("L:b", 3)]);
        // Asked for, but the answer is not taken unless it is there at once.
        drop(subject.leases().acquire(all, NOW).now_or_never());
    }
    eventually_some("all places are free", async || {
        let both = free(subject, "L:a").await + free(subject, "L:b").await;
        (both == 6).then_some(())
    })
    .await;
}

pub async fn of_many_at_once_as_many_get_in_as_there_are_places(subject: &impl Subject) {
    let requests = (0..40).map(|_| take(subject, "L:a"));
    let leased = join_all(requests).await;
    let allowed = leased.iter().filter(|leased| leased.outcome.is_allowed());
    assert_eq!(allowed.count(), 3);
}

pub async fn never_are_more_leases_held_than_there_are_places(subject: &impl Subject) {
    let inside = Arc::<AtomicU64>::default();
    let client = async |granted: &AtomicU64| {
        while granted.load(Ordering::SeqCst) < 300 {
            let leased = take(subject, "L:a").await;
            if leased.outcome.is_allowed() {
                granted.fetch_add(1, Ordering::SeqCst);
                assert!(inside.fetch_add(1, Ordering::SeqCst) < 3);
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
            }
            drop(leased);
            tokio::task::yield_now().await;
        }
    };
    let granted = AtomicU64::new(0);
    join_all((0..12).map(|_| client(&granted))).await;
    assert_eq!(free(subject, "L:a").await, 3);
}

pub async fn the_greatest_number_of_places_counts(subject: &impl Subject) {
    let leased = acquire(subject, claims([claim("L:a", u64::MAX)])).await;
    assert_eq!(shown(&leased), [(true, u64::MAX - 1)]);
    let one = acquire(subject, claims([claim("L:a", 1)])).await;
    assert!(!one.outcome.is_allowed());
}
