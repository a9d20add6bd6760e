use std::num::NonZeroUsize;

use futures_util::FutureExt;
use shuttle::thread;
use weir_runtime::sync::in_random_orders;

use super::*;
use crate::tests::contract::{NOW, batch, owed, spend};
use crate::{Memory, MemorySettings};

const BURST: u64 = 10;

/// A denial that a request has heard of before a refund is remembered after it, unless the refund
/// is noticed.
#[test]
fn a_denial_from_before_a_refund_is_never_remembered_after_it() {
    let law = || {
        let max_buckets = NonZeroUsize::MIN.saturating_add(99);
        let store = Memory::new(MemorySettings { max_buckets });
        let cached = Arc::new(DenialCached::new(store, Arc::default()));
        let decide = |cost| {
            let outcome = cached.decide(&batch([spend("L:a", cost)]), NOW);
            outcome.now_or_never().unwrap().unwrap()
        };
        assert!(decide(BURST).is_allowed());
        let hammers = [(); 2].map(|()| {
            let cached = Arc::clone(&cached);
            thread::spawn(move || {
                for _ in 0..2 {
                    let outcome = cached.decide(&batch([spend("L:a", 2)]), NOW);
                    let outcome = outcome.now_or_never().unwrap().unwrap();
                    assert!(!outcome.is_allowed());
                }
            })
        });
        let refund = cached.refund(owed([spend("L:a", 1)]), NOW);
        refund.now_or_never().unwrap().unwrap();
        hammers
            .into_iter()
            .for_each(|hammer| hammer.join().unwrap());
        assert!(
            decide(1).is_allowed(),
            "the unit that was given back is not to be had"
        );
    };
    in_random_orders(law, 3_000);
}
