//! Renews the leases that are held here, and releases those that are over.
//!
//! One task does both, so that a renewal never comes after the release of its lease and brings it
//! to life again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{self, MissedTickBehavior};

use super::client::{Client, Key};
use super::lease_commands::{self, LeaseId, Term};
use super::resp::Request;
use crate::store::{Call, StoreError};
use crate::time::{Clock, Nanos, SystemClock};

/// How often a lease is renewed before it would expire.
const RENEWALS: u32 = 3;

/// The most leases that one pipeline renews or releases, to let other commands in between.
const AT_ONCE: usize = 512;

/// How long a release that failed waits for its next attempt.
const AFTER_FAILURE: Duration = Duration::from_millis(100);

/// Tells the leases of this process from those of others.
static PROCESS: LazyLock<u64> = LazyLock::new(rand::random);

static NEXT: AtomicU64 = AtomicU64::new(0);

/// Leases that are held through one connection, and the task that looks after them.
pub(super) struct LeaseRenewer {
    leases: Arc<HeldLeases>,
    task: JoinHandle<()>,
}

impl LeaseRenewer {
    /// Holds nothing. Must be called on a tokio runtime.
    pub(super) fn spawn(client: &Arc<Client>, lasts: Duration) -> Self {
        let leases = HeldLeases::new(lasts);
        let task = Arc::clone(&leases).keep(Arc::clone(client));
        Self {
            leases,
            task: tokio::spawn(task),
        }
    }

    /// What is held.
    pub(super) fn leases(&self) -> Arc<HeldLeases> {
        Arc::clone(&self.leases)
    }
}

impl Drop for LeaseRenewer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// One lease: wished for, then taken or not.
pub(super) struct Lease {
    pub(super) id: LeaseId,
    pub(super) key: Key,
}

/// The leases of one request, released when this is dropped.
pub(super) struct RequestLeases {
    holder: Arc<HeldLeases>,
    leases: Vec<Lease>,
}

impl Lease {
    /// A lease unlike all others.
    pub(super) fn new(key: Key) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut id = LeaseId::default();
        let (process, own) = id.split_at_mut(size_of::<u64>());
        process.copy_from_slice(&PROCESS.to_be_bytes());
        own.copy_from_slice(&number.to_be_bytes());
        Self { id, key }
    }
}

impl RequestLeases {
    /// They are given back when this is dropped, whether or not they were ever taken.
    fn new(holder: Arc<HeldLeases>, leases: Vec<Lease>) -> Self {
        Self { holder, leases }
    }

    /// Drops the leases that were not taken.
    pub(super) fn keep_taken(&mut self, taken: impl Fn(usize) -> bool) {
        let mut index = 0;
        self.leases.retain(|_| {
            index += 1;
            taken(index - 1)
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// Renews the leases from now on, until this is dropped.
    pub(super) fn hold(&self) {
        self.holder.hold(&self.leases);
    }
}

impl Drop for RequestLeases {
    fn drop(&mut self) {
        if !self.leases.is_empty() {
            self.holder.let_go(self.leases.drain(..));
        }
    }
}

/// What is held through one connection.
pub(super) struct HeldLeases {
    lasts: Duration,
    leases: Mutex<Leases>,
    /// Something is to be released.
    changed: Notify,
    /// Everything was.
    all_released: Notify,
}

#[derive(Default)]
struct Leases {
    held: HashMap<LeaseId, Key>,
    released: Vec<Released>,
    /// Releases under way.
    leaving: usize,
}

/// A lease that is over, which Redis is to be told of until it would have expired.
struct Released {
    lease: LeaseId,
    key: Key,
    until: Instant,
}

impl HeldLeases {
    /// Holds nothing. `lasts` is how long a lease lasts when it is not renewed.
    pub(super) fn new(lasts: Duration) -> Arc<Self> {
        Arc::new(Self {
            lasts,
            leases: Mutex::default(),
            changed: Notify::new(),
            all_released: Notify::new(),
        })
    }

    /// How long a lease lasts.
    pub(super) fn lasts(&self) -> Nanos {
        self.lasts.into()
    }

    /// Leases that Redis is about to be asked for. It is told that they are over even if nobody
    /// ever learns whether they were taken.
    pub(super) fn guard(self: &Arc<Self>, leases: Vec<Lease>) -> RequestLeases {
        RequestLeases::new(Arc::clone(self), leases)
    }

    /// Renews these from now on.
    pub(super) fn hold(&self, leases: &[Lease]) {
        let held = leases.iter().map(|lease| (lease.id, lease.key.clone()));
        self.leases.lock().held.extend(held);
    }

    /// These are over.
    pub(super) fn let_go(&self, over: impl Iterator<Item = Lease>) {
        let until = self.until();
        let mut leases = self.leases.lock();
        for Lease { id: lease, key } in over {
            leases.held.remove(&lease);
            leases.released.push(Released { lease, key, until });
        }
        drop(leases);
        self.changed.notify_one();
    }

    /// Ends everything that is held, and waits until Redis was told.
    pub(super) async fn end(&self) {
        self.leases.lock().release_all(self.until());
        self.changed.notify_one();
        loop {
            let all_released = self.all_released.notified();
            if self.unreleased() == 0 {
                return;
            }
            all_released.await;
        }
    }

    /// How many leases are over of which Redis was not told yet.
    pub(super) fn unreleased(&self) -> usize {
        self.leases.lock().unreleased()
    }

    /// Until when a lease that is over now may be there, unless Redis is told.
    fn until(&self) -> Instant {
        Instant::now() + self.lasts
    }

    /// Renews and releases, for ever.
    pub(super) async fn keep(self: Arc<Self>, client: Arc<Client>) {
        let pause = (self.lasts / RENEWALS).max(Duration::from_millis(1));
        let mut turns = time::interval(pause);
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first turn comes at once, when nothing is held.
        turns.tick().await;
        loop {
            tokio::select! {
                () = self.changed.notified() => {
                    if self.release(&client).await.is_err() {
                        time::sleep(AFTER_FAILURE).await;
                        self.changed.notify_one();
                    }
                }
                _ = turns.tick() => self.renew(&client).await,
            }
        }
    }

    async fn release(&self, client: &Client) -> Result<(), StoreError> {
        loop {
            let leaving = self.leases.lock().leave();
            if leaving.is_empty() {
                self.all_released.notify_waiters();
                return Ok(());
            }
            let mut request = Request::default();
            for released in &leaving {
                lease_commands::release(&mut request, &released.key, released.lease);
            }
            let told = client.tell(Call::Release, request).await;
            self.leases.lock().left(leaving, told.is_ok());
            told?;
        }
    }

    async fn renew(&self, client: &Client) {
        let held = self.leases.lock().all_held();
        for some in held.chunks(AT_ONCE) {
            let term = Term {
                now: SystemClock.now(),
                lasts: self.lasts(),
            };
            let mut request = Request::default();
            for (lease, key) in some {
                lease_commands::renew(&mut request, key, *lease, term);
            }
            if client.tell(Call::Renew, request).await.is_err() {
                // There are more turns before they expire.
                return;
            }
        }
    }
}

impl Leases {
    fn unreleased(&self) -> usize {
        self.released.len() + self.leaving
    }

    fn release_all(&mut self, until: Instant) {
        let held = self.held.drain();
        self.released
            .extend(held.map(|(lease, key)| Released { lease, key, until }));
    }

    /// Takes out some of what is to be released.
    fn leave(&mut self) -> Vec<Released> {
        let now = Instant::now();
        self.released.retain(|released| released.until > now);
        let from = self.released.len().saturating_sub(AT_ONCE);
        let leaving = self.released.split_off(from);
        self.leaving = leaving.len();
        leaving
    }

    /// Puts back what Redis could not be told of.
    fn left(&mut self, leaving: Vec<Released>, told: bool) {
        self.leaving = 0;
        if !told {
            self.released.extend(leaving);
        }
    }

    fn all_held(&self) -> Vec<(LeaseId, Key)> {
        let held = self.held.iter();
        held.map(|(lease, key)| (*lease, key.clone())).collect()
    }
}
