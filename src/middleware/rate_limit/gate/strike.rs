//! Counts a strike, and begins a ban with the last of them.
//!
//! However many strikes come at once, on however many gateways, one ban begins: whoever takes the
//! turn counts the offence and sets the ban, each in one call that is atomic in the store. Should a
//! gateway die between two of them, the next strike begins the ban once its turn has come back.

use std::time::Duration;

use smallvec::smallvec;

use super::{Gate, PreparedBan};
use crate::limit::{Batch, BucketKey, Decision};
use crate::middleware::rate_limit::background::Background;
use crate::store::Outcome;
use crate::telemetry::BanBegun;

impl Gate {
    /// Counts a strike of a subject in the background.
    pub(super) fn strike(&self, ban: usize, subject: BucketKey, background: &Background) {
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
        });
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
        let is_ours = |decision: &Option<Decision>| decision.is_some_and(|it| it.allowed);
        if turn.decisions.iter().all(is_ours) {
            self.begin().await?;
        }
        Some(())
    }

    async fn begin(&self) -> Option<()> {
        let ban = &self.ban.policy.ban;
        let counted = match ban.offend(self.subject) {
            Some(offence) => self.ask(smallvec![offence]).await?.decisions.pop()?,
            None => None,
        };
        let offence = ban.terms().offence(counted.as_ref());
        let length = ban.terms().length(offence);
        self.ask(smallvec![ban.begin(self.subject, length)]).await?;
        self.tell(offence, length);
        // This process knows of the ban from now on, whatever other denials it still remembers.
        self.ask(smallvec![ban.check(self.subject)]).await?;
        let strikes = ban.strikes_key(self.subject);
        self.background.store.reset(smallvec![strikes]).await.ok()
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
