//! What a decision costs: the arithmetic alone, on the memory store, and on a real Redis.

#![allow(missing_docs, reason = "the macros of criterion make public items")]
#![allow(
    clippy::unwrap_used,
    reason = "a bench that cannot run may as well panic"
)]

use std::hint::black_box;
use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use futures_util::FutureExt;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::runtime::{Builder, Runtime};
use weir::limit::{Batch, Quota, Transaction};
use weir::store::{Memory, MemorySettings, Redis, RedisSettings, Store, Unobserved};
use weir::time::{Clock, Nanos, SystemClock};
use weir_testing::RedisServer;

/// So much that no measurement empties a bucket, and so slowly back that none is full again before
/// it ends.
fn quota() -> Quota {
    Quota::new(1 << 27, 1, Duration::from_secs(20)).unwrap()
}

fn transaction(key: &str) -> Transaction {
    Transaction::new(key.into(), quota(), NonZeroU64::MIN)
}

fn batch(limits: usize) -> Batch {
    let key = |limit| format!("Limit{limit}:203.0.113.9");
    (0..limits).map(|limit| transaction(&key(limit))).collect()
}

/// The batch of one limit for one of many clients.
fn batch_of(client: usize) -> Batch {
    let [.., second, third, fourth] = client.to_be_bytes();
    let key = format!("RequestsPerAddress:10.{second}.{third}.{fourth}");
    [transaction(&key)].into_iter().collect()
}

fn arithmetic(criterion: &mut Criterion) {
    let transaction = transaction("L:a");
    criterion.bench_function("gcra alone", |bencher| {
        bencher.iter(|| black_box(&transaction).decide(black_box(Nanos::new(12_345))));
    });
}

/// What is made for a decision is made before it is timed, and little enough of it at once to stay
/// in the first-level cache.
const AT_ONCE: BatchSize = BatchSize::NumIterations(32);

fn memory(criterion: &mut Criterion) {
    // Without this argument it is but tried whether the benches run.
    let measures = std::env::args().any(|argument| argument == "--bench");
    let sizes: &[usize] = if measures {
        &[1_000_000, 10_000_000]
    } else {
        &[1000]
    };
    for &buckets in sizes {
        known(criterion, &filled(buckets), buckets);
    }
}

/// A store with so many buckets, which is at its bound but for what its shards differ by.
fn filled(buckets: usize) -> Memory {
    let max_buckets = NonZeroUsize::new(buckets).unwrap();
    let store = Memory::new(MemorySettings { max_buckets });
    for client in 0..buckets {
        decide_in(&store, batch_of(client));
    }
    store
}

fn decide_in(store: &Memory, batch: Batch) -> bool {
    let outcome = store.decide(&batch, SystemClock.now()).now_or_never();
    outcome.unwrap().unwrap().is_allowed()
}

fn known(criterion: &mut Criterion, store: &Memory, buckets: usize) {
    let mut group = criterion.benchmark_group(format!("memory of {buckets}"));
    let decide = |batch: Batch| decide_in(store, batch);

    let mut random = StdRng::seed_from_u64(1);
    let mut any = || batch_of(random.random_range(0..buckets));
    group.bench_function("known", |bencher| {
        bencher.iter_batched(&mut any, decide, AT_ONCE);
    });
    for limits in [1, 3] {
        let same = || batch(limits);
        group.bench_function(format!("the same {limits} again"), |bencher| {
            bencher.iter_batched(same, decide, AT_ONCE);
        });
    }
    group.bench_function("the same, contended", |bencher| {
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    decide(batch(1));
                }
            });
            bencher.iter_batched(|| batch(1), decide, AT_ONCE);
            done.store(true, Ordering::Relaxed);
        });
    });
    // Last, as each pushes out one of the others.
    let mut new = (buckets..).map(batch_of);
    group.bench_function("new, at the bound", |bencher| {
        bencher.iter_batched(|| new.next().unwrap(), decide, AT_ONCE);
    });
    group.finish();
}

fn redis(criterion: &mut Criterion) {
    let server = RedisServer::start();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let store = runtime.block_on(connect(&server));
    for limits in [1, 3] {
        let batch = batch(limits);
        criterion.bench_function(&format!("redis, {limits}"), |bencher| {
            bencher.iter(|| decide(&runtime, &store, batch.clone()));
        });
    }
}

async fn connect(server: &RedisServer) -> Redis {
    let settings = RedisSettings::parse(&server.url(), None, None).unwrap();
    let redis = Redis::spawn(settings, Arc::new(Unobserved)).unwrap();
    redis.connected(Duration::from_secs(20)).await.unwrap();
    redis
}

fn decide(runtime: &Runtime, store: &Redis, batch: Batch) -> bool {
    let outcome = runtime.block_on(store.decide(&batch, SystemClock.now()));
    outcome.unwrap().is_allowed()
}

criterion_group!(benches, arithmetic, memory, redis);
criterion_main!(benches);
