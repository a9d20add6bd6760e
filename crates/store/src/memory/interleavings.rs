use std::sync::Arc;

use futures_util::FutureExt;
use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::thread;
use weir_runtime::sync::in_random_orders;

use super::*;
use crate::tests::contract::{NOW, batch, owed, spend};

const BURST: u64 = 10;

fn memory() -> Arc<Memory> {
    let max_buckets = NonZeroUsize::MIN.saturating_add(99_999);
    Arc::new(Memory::new(MemorySettings { max_buckets }))
}

fn remaining(memory: &Memory, key: &str) -> u64 {
    let outcome = memory.decide_now(&batch([spend(key, 1)]), NOW);
    let decision = outcome.decisions.into_iter().flatten().next();
    decision.map_or(0, |decision| {
        decision.remaining + u64::from(decision.allowed)
    })
}

/// Batches over two buckets in both orders, some of which are given back.
#[test]
fn a_bucket_never_gives_more_than_its_burst_and_a_batch_never_takes_from_a_part() {
    let law = || {
        let memory = memory();
        let taken = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = [["L:a", "L:b"], ["L:b", "L:a"], ["L:a", "L:c"]]
            .into_iter()
            .map(|keys| {
                let (memory, taken) = (Arc::clone(&memory), Arc::clone(&taken));
                thread::spawn(move || {
                    for turn in 0..3 {
                        let both = || batch(keys.map(|key| spend(key, 2)));
                        if !memory.decide_now(&both(), NOW).is_allowed() {
                            continue;
                        }
                        if turn == 1 {
                            memory
                                .refund(owed(both()), NOW)
                                .now_or_never()
                                .unwrap()
                                .unwrap();
                        } else {
                            // The first key of the last thread is in all batches.
                            taken.fetch_add(2, Ordering::SeqCst);
                        }
                    }
                    memory.sweep_all(NOW);
                })
            })
            .collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        let taken = taken.load(Ordering::SeqCst);
        assert!(taken <= BURST);
        assert_eq!(remaining(&memory, "L:a"), BURST - taken);
        let others = remaining(&memory, "L:b") + remaining(&memory, "L:c");
        assert_eq!(others, 2 * BURST - taken, "a part of a batch was taken");
    };
    in_random_orders(law, 3_000);
}
