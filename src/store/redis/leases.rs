//! Leases in Redis, shared by many gateways; see [`commands`] for how they are counted.
//!
//! A lease expires unless its gateway renews it, so that a gateway that crashed holds nothing for
//! longer. Claims of several subjects travel in one pipeline; when one is refused, what the others
//! got is given back by a second, off the response's path.

mod commands;
mod guard;
mod keeper;

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::task::JoinHandle;

use self::commands::{Found, Question, Term};
use self::guard::{Guard, Lease};
use self::keeper::Keeper;
use super::Redis;
use super::channel::Client;
use super::link::Live;
use super::replies::Replies;
use super::request::Request;
use crate::limit::{BucketKeys, Claims};
use crate::store::leases::judge;
use crate::store::{DecisionSource, Held, Leased, Leases, Outcome, StoreError, StoreFuture};
use crate::time::Timestamp;

/// Leases that are held through one connection, and the task that looks after them.
pub(super) struct LeaseRenewer {
    keeper: Arc<Keeper>,
    task: JoinHandle<()>,
}

impl LeaseRenewer {
    /// Holds nothing. Must be called on a tokio runtime.
    pub(super) fn spawn(channel: &Arc<Client>, lasts: Duration) -> Self {
        let keeper = Keeper::new(lasts);
        let task = Arc::clone(&keeper).keep(Arc::clone(channel));
        Self {
            keeper,
            task: tokio::spawn(task),
        }
    }

    /// How many leases are over of which Redis was not told yet.
    pub(super) fn unsettled(&self) -> usize {
        self.keeper.unsettled()
    }
}

impl Drop for LeaseRenewer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Leases for Redis {
    fn acquire(&self, claims: Claims, now: Timestamp) -> StoreFuture<Leased> {
        let channel = Arc::clone(&self.channel);
        let keeper = Arc::clone(&self.lessee.keeper);
        match channel.link().connection() {
            Err(error) => StoreFuture::failed(error),
            Ok(live) => StoreFuture::waiting(acquire(channel, live, keeper, claims, now)),
        }
    }

    fn forget(&self, keys: BucketKeys) -> StoreFuture<()> {
        if keys.is_empty() {
            return StoreFuture::ready(());
        }
        let mut request = Request::default();
        for key in &keys {
            commands::forget(&mut request, &self.channel.marked_key(key, commands::MARK));
        }
        self.call(request)
    }

    fn end(&self) -> StoreFuture<()> {
        let keeper = Arc::clone(&self.lessee.keeper);
        StoreFuture::waiting(async move {
            keeper.end().await;
            Ok(())
        })
    }
}

async fn acquire(
    channel: Arc<Client>,
    live: Live,
    keeper: Arc<Keeper>,
    claims: Claims,
    now: Timestamp,
) -> Result<Leased, StoreError> {
    let lasts = keeper.lasts();
    let mut request = Request::default();
    let mut leases = Vec::with_capacity(claims.len());
    for claim in &claims {
        let lease = Lease::new(channel.marked_key(&claim.key, commands::MARK));
        let term = Term { now, lasts };
        Question::of(claim).add(&mut request, &lease.key, lease.id, claim, term);
        leases.push(lease);
    }
    let guard = keeper.guard(leases);
    let replies = match request.is_empty() {
        true => Replies::new(Vec::new()),
        false => channel.ask(&live, request).await?,
    };
    let found = read(&claims, &replies).ok_or_else(|| channel.unfit(&live, &replies))?;
    Ok(leased(&claims, &found, guard))
}

fn read(claims: &Claims, replies: &Replies) -> Option<SmallVec<[Found; 1]>> {
    let mut cursor = replies.iter();
    let questions = claims.iter().map(Question::of);
    questions.map(|it| it.read(&mut cursor)).collect()
}

/// What came of claims of which this was found; when one is denied, what the others took is given
/// back.
fn leased(claims: &Claims, found: &[Found], mut guard: Guard) -> Leased {
    let others: SmallVec<[u64; 1]> = found.iter().map(|it| it.others).collect();
    let (decisions, denied) = judge(claims, &others);
    guard.keep_taken(|index| found.get(index).is_some_and(|it| it.taken));
    let held = if denied || guard.is_empty() {
        Held::NOTHING
    } else {
        guard.hold();
        Held::new(guard)
    };
    Leased {
        outcome: Outcome {
            decisions,
            basis: DecisionSource::Store,
        },
        held,
    }
}

#[cfg(test)]
mod tests;
