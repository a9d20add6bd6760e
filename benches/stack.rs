//! The whole stack but for the sockets: a request goes through every layer to an upstream that
//! answers at once.
#![allow(missing_docs, reason = "the macros of criterion make public items")]
#![expect(
    clippy::unwrap_used,
    reason = "a bench that cannot be set up has nothing to say"
)]

use criterion::{Criterion, criterion_group, criterion_main};

#[path = "support/stack.rs"]
mod support;

fn stack(c: &mut Criterion) {
    let mut ask = support::asking();
    let mut group = c.benchmark_group("stack");
    for path in support::PATHS {
        group.bench_function(path.trim_start_matches('/'), |bencher| {
            bencher.iter(|| ask(path));
        });
    }
    group.finish();
}

criterion_group!(benches, stack);
criterion_main!(benches);
