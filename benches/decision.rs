//! What a decision costs: the arithmetic alone, on the memory store, and on a real Redis.

#![allow(missing_docs, reason = "the macros of criterion make public items")]
#![allow(
    clippy::unwrap_used,
    reason = "a bench that cannot run may as well panic"
)]

use std::hint::black_box;
use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use futures_util::FutureExt;
use tokio::runtime::{Builder, Runtime};
use weir::limit::{Batch, Quota, Transaction};
use weir::store::{Memory, MemorySettings, Redis, RedisSettings, Store, Unobserved};
use weir::time::{Clock, Nanos, SystemClock};

#[path = "../tests/it/support/redis_server.rs"]
mod redis_server;
use redis_server::RedisServer;

/// One unit comes back each nanosecond, so that the bench empties no bucket.
fn transaction(key: &str) -> Transaction {
    let quota = Quota::new(1 << 40, 1_000_000_000, Duration::from_secs(1)).unwrap();
    Transaction::new(key.into(), quota, NonZeroU64::MIN)
}

fn batch(limits: usize) -> Batch {
    let key = |limit| format!("Limit{limit}:203.0.113.9");
    (0..limits).map(|limit| transaction(&key(limit))).collect()
}

fn arithmetic(criterion: &mut Criterion) {
    let one = transaction("L:a");
    criterion.bench_function("gcra alone", |bencher| {
        bencher.iter(|| black_box(&one).decide(black_box(Nanos::new(12_345))));
    });
}

fn memory(criterion: &mut Criterion) {
    let max_buckets = NonZeroUsize::new(1_000_000).unwrap();
    let store = Memory::new(MemorySettings { max_buckets });
    let decide = |batch: Batch| store.decide(batch, SystemClock.now()).now_or_never();
    for limits in [1, 3] {
        let batch = batch(limits);
        criterion.bench_function(&format!("memory, {limits} known"), |bencher| {
            bencher.iter(|| decide(batch.clone()));
        });
    }
    let mut number = 0_u64;
    criterion.bench_function("memory, 1 new", |bencher| {
        bencher.iter(|| {
            number += 1;
            decide([transaction(&format!("L:{number}"))].into_iter().collect())
        });
    });
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
    let outcome = runtime.block_on(store.decide(batch, SystemClock.now()));
    outcome.unwrap().is_allowed()
}

criterion_group!(benches, arithmetic, memory, redis);
criterion_main!(benches);
