//! Counts a strike, and begins a ban with the last of them. The response to the request that is the
//! strike waits for it, so that the ban holds from the next one on.
//!
//! However many strikes come at once, on however many gateways, one ban begins: the one that takes
//! the turn sets the ban and counts the offence, in one call. Should a gateway die or lose the
//! store before, there is neither, and the next strike begins the ban once its turn has come back.
//! A turn may be had twice, where a store stood in for another; then the first ban stands.

use std::sync::Arc;
use std::time::Duration;

use smallvec::smallvec;
use tokio::task::JoinHandle;

use super::PreparedBan;
use crate::limit::{Batch, BucketKey};
use crate::middleware::backend::Backend;
use crate::store::Outcome;
use crate::telemetry::BanBegun;

/// Counts a strike of a subject. The handle, if any, waits for the ban that it may begin.
pub(super) fn run(
    ban: &Arc<PreparedBan>,
    subject: BucketKey,
    backend: &Backend,
) -> Option<JoinHandle<()>> {
    let strike = Strike {
        ban: Arc::clone(ban),
        subject,
        backend: backend.clone(),
    };
    backend.tasks.run(async move {
        // A store that fails has said so itself; the next strike counts again.
        let _ = strike.count().await;
    })
}

struct Strike {
    ban: Arc<PreparedBan>,
    subject: BucketKey,
    backend: Backend,
}

impl Strike {
    /// None when a store that is out of reach has ended it.
    async fn count(self) -> Option<()> {
        let ban = &self.ban.policy.ban;
        let counted = self.ask(ban.strike(&self.subject)).await?;
        if !ban.is_due(&counted.decisions) {
            return Some(());
        }
        let turn = self.ask(ban.take_turn(&self.subject)).await?;
        match ban.offence(&turn.decisions) {
            Some(offence) => self.begin(offence).await,
            None => Some(()),
        }
    }

    async fn begin(&self, offence: usize) -> Option<()> {
        let ban = &self.ban.policy.ban;
        let begun = self.ask(ban.begin_for(&self.subject, offence)).await?;
        if !ban.has_begun(&begun.decisions) {
            return None;
        }
        self.tell(offence, ban.schedule().length(offence));
        // This process knows of the ban from now on, whatever other denials it still remembers.
        self.ask(smallvec![ban.check(&self.subject)]).await?;
        let strikes = smallvec![ban.strikes_key(&self.subject)];
        let forgotten = self.backend.store.reset(strikes);
        // The ban holds already, so its subject need not wait for this.
        let tasks = &self.backend.tasks;
        tasks.run(async move { drop(forgotten.await) });
        Some(())
    }

    fn tell(&self, offence: usize, length: Duration) {
        BanBegun {
            ban: self.ban.policy.ban.name(),
            subject: self.subject.as_str(),
            offence,
            length,
        }
        .emit(&self.ban.metrics);
    }

    async fn ask(&self, batch: Batch) -> Option<Outcome> {
        let now = self.backend.now();
        self.backend.store.decide(batch, now).await.ok()
    }
}
