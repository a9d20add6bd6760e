//! The bound, by a model: any number of gateways, any schedule.

use std::time::Duration;

use proptest::prelude::*;
use weir_limit::time::Nanos;
use weir_limit::{Prefetch, Quota};
use weir_store::tests::contract::{NOW, owed};

use super::tests::{Shared, Way, gateway, settle};
use super::*;
use std::num::NonZeroU64;

/// What happens next.
#[derive(Clone, Debug)]
enum Step {
    /// Requests of this cost reach a gateway at the same moment.
    Requests {
        gateway: usize,
        count: u64,
        cost: u64,
    },
    /// A request that another limit denies, or that is refunded.
    Undone { gateway: usize, cost: u64 },
    /// Time passes, of which the tasks take notice.
    Passes { micros: u64 },
    /// A gateway's calls ahead are held up, so that they overlap with what follows.
    HeldUp,
    /// They go on.
    GoesOn,
    /// A gateway ends, and starts afresh.
    Restarts { gateway: usize },
}

const GATEWAYS: usize = 3;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let gateway = 0..GATEWAYS;
    let step = prop_oneof![
        8 => (gateway.clone(), 1..60u64, 1..4u64)
            .prop_map(|(gateway, count, cost)| Step::Requests { gateway, count, cost }),
        2 => (gateway.clone(), 1..4u64).prop_map(|(gateway, cost)| Step::Undone { gateway, cost }),
        6 => (1..30_000u64).prop_map(|micros| Step::Passes { micros }),
        1 => (100_000..400_000u64).prop_map(|micros| Step::Passes { micros }),
        1 => Just(Step::HeldUp),
        2 => Just(Step::GoesOn),
        1 => gateway.prop_map(|gateway| Step::Restarts { gateway }),
    ];
    prop::collection::vec(step, 1..120)
}

/// Bursts and rates by which the bucket is now full and now empty.
fn quotas() -> impl Strategy<Value = Quota> {
    let units = 8..100u32;
    (units, 200..2000u64, 100..20_000u64).prop_map(|(units, burst, count)| {
        let prefetch = Prefetch::new(units, Duration::from_millis(20));
        Quota::new(burst, count, Duration::from_secs(1))
            .unwrap()
            .with_prefetch(prefetch)
    })
}

/// Gateways over one bucket, and what they have admitted.
struct Model {
    shared: Arc<Shared>,
    gateways: Vec<Prefetching<Way>>,
    quota: Quota,
    now: Timestamp,
    /// When units were admitted, and how many.
    admitted: Vec<(Timestamp, u64)>,
    /// Requests that wait, with the moment of each.
    waiting: Vec<(StoreFuture<Outcome>, u64)>,
}

impl Model {
    fn new(quota: Quota) -> Self {
        let shared = Shared::new();
        Self {
            gateways: (0..GATEWAYS).map(|_| gateway(&shared)).collect(),
            shared,
            quota,
            now: NOW,
            admitted: Vec::new(),
            waiting: Vec::new(),
        }
    }

    async fn take(&mut self, step: Step) {
        match step {
            Step::Requests {
                gateway,
                count,
                cost,
            } => {
                for _ in 0..count {
                    let batch = smallvec![self.spend(cost)];
                    let answer = self.gateways[gateway].admit(&batch, self.now);
                    self.waiting.push((answer, cost));
                    self.poll();
                }
            }
            Step::Undone { gateway, cost } => {
                let batch: Batch = smallvec![self.spend(cost)];
                let answer = self.gateways[gateway].admit(&batch.clone(), self.now);
                if let Some(Ok(outcome)) = futures_util::FutureExt::now_or_never(answer)
                    && outcome.is_allowed()
                {
                    self.gateways[gateway]
                        .refund(owed(batch), self.now)
                        .await
                        .unwrap();
                }
            }
            Step::Passes { micros } => {
                self.now = self.now + Nanos::new(micros * 1000);
                time::advance(Duration::from_micros(micros)).await;
            }
            Step::HeldUp => {
                self.shared.gate.forget_permits(usize::MAX >> 4);
            }
            Step::GoesOn => self.shared.gate.add_permits(1_000),
            Step::Restarts { gateway: number } => {
                self.shared.gate.add_permits(1_000);
                let ended = std::mem::replace(&mut self.gateways[number], gateway(&self.shared));
                ended.end().await;
            }
        }
        settle().await;
        self.poll();
    }

    /// Notes what has been decided by now.
    fn poll(&mut self) {
        let (now, admitted) = (self.now, &mut self.admitted);
        self.waiting.retain_mut(|(answer, cost)| {
            let Some(outcome) = futures_util::FutureExt::now_or_never(answer) else {
                return true;
            };
            if outcome.unwrap().is_allowed() {
                admitted.push((now, *cost));
            }
            false
        });
    }

    fn spend(&self, cost: u64) -> Transaction {
        Transaction::new("L:hot".into(), self.quota, NonZeroU64::new(cost).unwrap())
    }

    /// In every time, at most the burst, what has come back, and what the gateways held before.
    fn check(&self) -> Result<(), TestCaseError> {
        let held = GATEWAYS as u64 * self.quota.prefetch().unwrap().units();
        for (from, (start, _)) in self.admitted.iter().enumerate() {
            let mut units = 0;
            for (end, cost) in &self.admitted[from..] {
                units += cost;
                let back = end.since(*start).get() / self.quota.emission_interval().get();
                let bound = self.quota.burst().get() + back + held;
                prop_assert!(units <= bound, "{units} of {bound} in {start:?}..{end:?}");
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn gateways_never_admit_more_than_the_quota_and_what_all_may_hold(
        quota in quotas(),
        steps in steps(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut model = Model::new(quota);
            for step in steps {
                model.take(step).await;
            }
            model.take(Step::GoesOn).await;
            model.check()
        })?;
    }
}
