//! The leases of one request, and how they end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use super::commands::LeaseId;
use super::keeper::Keeper;
use crate::store::redis::mixed::Key;

/// Tells the leases of this process from those of others.
static PROCESS: LazyLock<u64> = LazyLock::new(rand::random);

static NEXT: AtomicU64 = AtomicU64::new(0);

/// One lease: wished for, then taken or not.
pub(super) struct Lease {
    pub(super) id: LeaseId,
    pub(super) key: Key,
}

/// The leases of one request, released when this is dropped.
pub(super) struct Guard {
    keeper: Arc<Keeper>,
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

impl Guard {
    /// They are given back when this is dropped, whether or not they were ever taken.
    pub(super) fn new(keeper: Arc<Keeper>, leases: Vec<Lease>) -> Self {
        Self { keeper, leases }
    }

    /// Forgets the leases that were not taken.
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
        self.keeper.hold(&self.leases);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.leases.is_empty() {
            self.keeper.let_go(self.leases.drain(..));
        }
    }
}
