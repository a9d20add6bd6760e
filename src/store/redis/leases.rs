//! Leases in Redis, shared by many gateways; see [`lease_commands`] for how they are counted.
//!
//! A lease expires unless its gateway renews it, so that a gateway that crashed holds nothing for
//! longer. Claims of several subjects travel in one pipeline; when one is refused, what the others
//! got is given back by a second, off the response's path.

use std::sync::Arc;

use smallvec::SmallVec;

use super::Redis;
use super::client::Client;
use super::lease_commands::{self, LeaseCommand, LeaseReply, Term};
use super::lease_renewer::{HeldLeases, Lease, RequestLeases};
use super::manager::Session;
use super::resp::{Replies, Request};
use crate::limit::{BucketKeys, Claims};
use crate::store::leases::judge;
use crate::store::{DecisionSource, LeaseGuard, Leased, Leases, Outcome, StoreError, StoreFuture};
use crate::time::Timestamp;

impl Leases for Redis {
    fn acquire(&self, claims: Claims, now: Timestamp) -> StoreFuture<Leased> {
        let client = Arc::clone(&self.client);
        let held = self.renewer.leases();
        match client.manager().session() {
            Err(error) => StoreFuture::failed(error),
            Ok(session) => StoreFuture::waiting(acquire(client, session, held, claims, now)),
        }
    }

    fn delete(&self, keys: BucketKeys) -> StoreFuture<()> {
        if keys.is_empty() {
            return StoreFuture::ready(());
        }
        let mut request = Request::default();
        for key in &keys {
            lease_commands::delete(
                &mut request,
                &self.client.marked_key(key, lease_commands::MARK),
            );
        }
        self.call(request)
    }

    fn end(&self) -> StoreFuture<()> {
        let held = self.renewer.leases();
        StoreFuture::waiting(async move {
            held.end().await;
            Ok(())
        })
    }
}

async fn acquire(
    client: Arc<Client>,
    session: Arc<Session>,
    held: Arc<HeldLeases>,
    claims: Claims,
    now: Timestamp,
) -> Result<Leased, StoreError> {
    let lasts = held.lasts();
    let mut request = Request::default();
    let mut leases = Vec::with_capacity(claims.len());
    for claim in &claims {
        let lease = Lease::new(client.marked_key(&claim.key, lease_commands::MARK));
        let term = Term { now, lasts };
        LeaseCommand::of(claim).add(&mut request, &lease.key, lease.id, claim, term);
        leases.push(lease);
    }
    let request_leases = held.guard(leases);
    let replies = match request.is_empty() {
        true => Replies::new(Vec::new()),
        false => client.ask(&session, request).await?,
    };
    let found = read(&claims, &replies).ok_or_else(|| client.unfit(&session, &replies))?;
    Ok(leased(&claims, &found, request_leases))
}

fn read(claims: &Claims, replies: &Replies) -> Option<SmallVec<[LeaseReply; 1]>> {
    let mut cursor = replies.iter();
    let commands = claims.iter().map(LeaseCommand::of);
    commands.map(|command| command.read(&mut cursor)).collect()
}

/// What came of claims of which this was found; when one is denied, what the others took is given
/// back.
fn leased(claims: &Claims, found: &[LeaseReply], mut request_leases: RequestLeases) -> Leased {
    let others: SmallVec<[u64; 1]> = found.iter().map(|found| found.others).collect();
    let (decisions, denied) = judge(claims, &others);
    request_leases.keep_taken(|index| found.get(index).is_some_and(|found| found.taken));
    let guard = if denied || request_leases.is_empty() {
        LeaseGuard::EMPTY
    } else {
        request_leases.hold();
        LeaseGuard::new(request_leases)
    };
    Leased {
        outcome: Outcome {
            decisions,
            source: DecisionSource::Store,
        },
        guard,
    }
}
