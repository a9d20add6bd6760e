//! Counts a strike, and begins a ban with the last of them. The response to the request that is the
//! strike waits for it, so that the ban holds from the next one on.
//!
//! However many strikes come at once, on however many gateways, one ban begins: whoever takes the
//! turn sets the ban and counts the offence, in one call. Should a gateway die or lose the store
//! before, there is neither, and the next strike begins the ban once its turn has come back. A turn
//! may be had twice, where a store stood in for another; then the first ban stands.

use std::time::Duration;

use smallvec::smallvec;
use tokio::task::JoinHandle;

use super::{Gate, PreparedBan};
use crate::limit::{Batch, BucketKey};
use crate::middleware::rate_limit::background::Background;
use crate::store::Outcome;
use crate::telemetry::BanBegun;

impl Gate {
    /// Counts a strike of a subject. The handle, if any, waits for the ban that it may begin.
    pub(super) fn strike(
        &self,
        ban: usize,
        subject: BucketKey,
        background: &Background,
    ) -> Option<JoinHandle<()>> {
        let (gate, store) = (self.clone(), background.clone());
        background.unsettled.run(async move {
            if let Some(ban) = gate.ban(ban) {
                // A store that fails has said so itself; the next strike counts again.
                let _ = Striking {
                    ban,
                    subject: &subject,
                    background: &store,
                }
                .strike()
                .await;
            }
        })
    }
}

struct Striking<'a> {
    ban: &'a PreparedBan,
    subject: &'a BucketKey,
    background: &'a Background,
}

impl Striking<'_> {
    /// None when a store that is out of reach has ended it.
    async fn strike(self) -> Option<()> {
        let ban = &self.ban.policy.ban;
        let counted = self.ask(ban.strike(self.subject)).await?;
        if !ban.is_due(&counted.decisions) {
            return Some(());
        }
        let turn = self.ask(ban.take_turn(self.subject)).await?;
        match ban.offence(&turn.decisions) {
            Some(offence) => self.begin(offence).await,
            None => Some(()),
        }
    }

    async fn begin(&self, offence: usize) -> Option<()> {
        let ban = &self.ban.policy.ban;
        let begun = self.ask(ban.punish(self.subject, offence)).await?;
        if !ban.has_begun(&begun.decisions) {
            return None;
        }
        self.tell(offence, ban.terms().length(offence));
        // This process knows of the ban from now on, whatever other denials it still remembers.
        self.ask(smallvec![ban.check(self.subject)]).await?;
        let strikes = smallvec![ban.strikes_key(self.subject)];
        let forgotten = self.background.store.reset(strikes);
        // The ban holds already, so its subject need not wait for this.
        self.background
            .unsettled
            .run(async move { drop(forgotten.await) });
        Some(())
    }

    fn tell(&self, offence: usize, length: Duration) {
        let policy = &self.ban.policy;
        BanBegun {
            ban: policy.ban.name(),
            subject: self.subject.as_str(),
            offence,
            length,
        }
        .emit(&self.ban.metrics);
    }

    async fn ask(&self, batch: Batch) -> Option<Outcome> {
        let now = self.background.now();
        self.background.store.decide(batch, now).await.ok()
    }
}
