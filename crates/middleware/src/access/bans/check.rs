//! Checks one request for bans and strikes. The response to a request that is a strike waits for
//! it, so that the ban holds from the next request on.

use std::mem;
use std::sync::Arc;

use http::StatusCode;
use smallvec::{SmallVec, smallvec};
use tokio::task::JoinHandle;
use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{Batch, BucketKey, Decision, Transaction};
use weir_rules::RequestAttributes;
use weir_store::Outcome;
use weir_telemetry::ban_begun;

use super::refused_peers::RefusedPeer;
use super::told_waits::DeniedSubject;
use super::{BanCause, BanPolicy, BegunBan, PreparedBan, PreparedBans, StrikeCause};
use crate::access::treatment::PreparedTreatment;
use crate::backend::{Backend, PendingTasks};
use crate::rate_limit::held::{Held, HeldResponse, Responder};

/// Bounds a path that is kept as the cause of a strike.
const MAX_PATH_CHARS: usize = 200;

/// A request, as far as bans care about it.
pub struct BanCheck {
    backend: Backend,
    subjects: Subjects,
    /// The ban that would keep the request out, if it were acted upon.
    would_hold: Option<Arc<str>>,
    /// Strikes that are being counted, of bans that are acted upon.
    striking: PendingTasks,
}

type Subjects = SmallVec<[BanSubject; 2]>;

/// A denial, and what its client was told.
#[derive(Clone, Copy)]
pub struct TellingDenial {
    /// The wait, if it was told one. Nobody asked it to wait otherwise.
    pub wait: Option<Nanos>,
    pub at: Timestamp,
}

struct BanSubject {
    ban: Arc<PreparedBan>,
    subject: BucketKey,
    /// Whether the ban is acted upon.
    acts: bool,
    /// Whether a strike is out of the question: there was one, or the subject is banned already.
    is_done: bool,
    /// Whether its standing ban, which is not acted upon, has counted the request.
    is_counted: bool,
}

/// The ban that keeps a request out.
pub struct ActiveBan {
    pub name: Arc<str>,
    pub treatment: Arc<PreparedTreatment>,
    /// The rest of the ban.
    pub retry_in: Nanos,
}

impl PreparedBans {
    /// The standing ban that keeps a request out. If several do, the first of the configuration
    /// decides. One that `awaits_account` will be checked again when that is known: a ban that is not
    /// enforced, or whose treatment looks real, is counted then.
    pub(in crate::access) fn standing(
        &self,
        request: &RequestAttributes<'_>,
        awaits_account: bool,
    ) -> Option<ActiveBan> {
        self.0.iter().find_map(|ban| {
            if !ban.known.any_standing() {
                return None;
            }
            let retry_in = ban.known.standing(&ban.policy.ban, request, request.now)?;
            let subject = ban.policy.ban.subject(request)?;
            let key = ban.policy.ban.ban_key(&subject);
            let acts = ban.policy.enforcement.acts_on(&key);
            if !awaits_account || acts && !ban.treatment.looks_real() {
                ban.metrics.held(acts);
            }
            acts.then(|| ActiveBan {
                name: Arc::clone(ban.policy.ban.name()),
                treatment: Arc::clone(&ban.treatment),
                retry_in,
            })
        })
    }

    /// Begins the check of a request; `None` if no ban has a subject in it.
    pub(in crate::access) fn check(
        &self,
        request: &RequestAttributes<'_>,
        backend: &Backend,
    ) -> Option<(Box<BanCheck>, Batch)> {
        let found = self.0.iter().filter_map(|ban| {
            let policy = &ban.policy;
            let subject = policy.ban.subject(request)?;
            let check = policy.ban.check(&subject);
            let acts = policy.enforcement.acts_on(&check.key);
            let mode = if acts {
                check.mode
            } else {
                check.mode.non_denying()
            };
            let is_standing = || {
                let standing = ban.known.standing(&policy.ban, request, backend.now());
                standing.is_some()
            };
            let subject = BanSubject {
                ban: Arc::clone(ban),
                subject,
                acts,
                is_done: false,
                is_counted: !acts && ban.known.any_standing() && is_standing(),
            };
            Some((subject, Transaction { mode, ..check }))
        });
        let (subjects, checks): (Subjects, Batch) = found.unzip();
        (!checks.is_empty()).then(|| {
            let check = BanCheck {
                backend: backend.clone(),
                subjects,
                would_hold: None,
                striking: PendingTasks::new(),
            };
            (Box::new(check), checks)
        })
    }
}

impl BanCheck {
    /// The ban that would keep the request out, if it were acted upon.
    pub fn would_hold(&mut self) -> Option<Arc<str>> {
        self.would_hold.take()
    }

    /// The strikes that the response has to wait for, so that a ban which begins with one of them
    /// holds from the next request on.
    pub fn striking(&mut self) -> PendingTasks {
        mem::take(&mut self.striking)
    }

    /// The number of decisions about bans, which are the first of a batch.
    pub fn len(&self) -> usize {
        self.subjects.len()
    }

    /// Whether no ban would be acted upon.
    pub fn is_idle(&self) -> bool {
        self.subjects.iter().all(|subject| !subject.acts)
    }

    /// The ban that keeps the request out, by the first decisions of an outcome, which are taken
    /// off. If several hold, the first decides.
    pub fn apply(&mut self, outcome: &mut Outcome) -> Option<ActiveBan> {
        let count = self.subjects.len().min(outcome.decisions.len());
        let decisions: SmallVec<[Option<Decision>; 3]> = outcome.decisions.drain(..count).collect();
        let mut active = None;
        for (subject, decision) in self.subjects.iter_mut().zip(decisions) {
            let Some(decision) = decision.filter(|decision| !decision.fits()) else {
                continue;
            };
            subject.is_done = true;
            let ban = &subject.ban;
            let name = Arc::clone(ban.policy.ban.name());
            if !subject.acts {
                self.would_hold.get_or_insert(name);
            } else if active.is_none() {
                if ban.treatment.drops_in_kernel() {
                    let until = self.backend.now() + decision.retry_in;
                    let refused = ban.known.refused_peers();
                    refused.came(RefusedPeer::banned(&name, &subject.subject), until);
                }
                active = Some(ActiveBan {
                    name,
                    treatment: Arc::clone(&ban.treatment),
                    retry_in: decision.retry_in,
                });
            }
        }
        active
    }

    /// Counts the bans that hold, and the path as a strike where none keeps the request out.
    pub fn count(&mut self, is_banned: bool, path: &str) {
        let holding = self.subjects.iter();
        let holding = holding.filter(|subject| subject.is_done && !subject.is_counted);
        holding.for_each(|subject| subject.ban.metrics.held(subject.acts));
        if is_banned {
            return;
        }
        self.strike(|_, policy| {
            let is_strike = policy.paths.matches(path);
            is_strike.then(|| StrikeCause::Path(path.chars().take(MAX_PATH_CHARS).collect()))
        });
    }

    /// These limits have denied the request.
    pub fn denied_by<'l>(
        &mut self,
        limits: impl Iterator<Item = &'l str> + Clone,
        denial: TellingDenial,
    ) {
        self.strike(|subject, policy| {
            let limit = policy.striking(limits.clone())?;
            let is_strike = subject.is_strike(denial);
            is_strike.then(|| StrikeCause::Limit(Arc::clone(limit)))
        });
    }

    /// These limits would have denied the request, were they acted upon. Bans that are not acted
    /// upon either take that for a strike, or a dry run of both would show no ban. The client is
    /// taken for one that was told, as it would be if both were acted upon.
    pub fn would_be_denied_by<'l>(
        &mut self,
        limits: impl Iterator<Item = &'l str> + Clone,
        denial: TellingDenial,
    ) {
        self.strike(|subject, policy| {
            let limit = policy.striking(limits.clone()).filter(|_| !subject.acts)?;
            let is_strike = subject.is_strike(denial);
            is_strike.then(|| StrikeCause::Limit(Arc::clone(limit)))
        });
    }

    /// The response has this status.
    fn answered(&mut self, status: StatusCode) {
        self.strike(|_, policy| {
            let is_strike = policy.statuses.contains(status);
            is_strike.then(|| StrikeCause::Status(status.as_u16()))
        });
    }

    /// A request is one strike of a ban at the most.
    fn strike(&mut self, cause: impl Fn(&BanSubject, &BanPolicy) -> Option<StrikeCause>) {
        let open = self.subjects.iter_mut().filter(|subject| !subject.is_done);
        for subject in open {
            if let Some(cause) = cause(subject, &subject.ban.policy) {
                subject.is_done = true;
                let key = subject.subject.clone();
                let striking = count_strike(&subject.ban, key, cause, &self.backend);
                self.striking.extend(striking.filter(|_| subject.acts));
            }
        }
    }
}

impl Held for BanCheck {
    /// Counts the strike that the response may be. One that only looks like the service's is none.
    fn responded(&mut self, response: &mut HeldResponse) {
        if response.by == Responder::Service {
            self.answered(response.head.status());
        }
        response.tasks.append(&mut self.striking());
    }

    fn answered_here(&mut self) -> PendingTasks {
        self.striking()
    }
}

impl BanSubject {
    /// Whether a limit's denial is a strike: more of its clients are to wait than share it, or nobody
    /// tells it to wait.
    fn is_strike(&self, denial: TellingDenial) -> bool {
        let policy = &self.ban.policy;
        let Some(wait) = denial.wait.filter(|_| policy.workers > 0) else {
            return true;
        };
        let denied = DeniedSubject {
            ban: policy.ban.name(),
            subject: &self.subject,
        };
        let told = self.ban.known.told_waits();
        told.is_too_early(denied, wait, policy.workers, denial.at)
    }
}

/// Counts a strike of a subject, and begins a ban with the last of them. The handle, if any, waits
/// for that.
///
/// However many strikes come at once, on however many gateways, one ban begins: the one that takes
/// the turn sets the ban and counts the offence, in one call. Should a gateway die or lose the
/// store before, there is neither, and the next strike begins the ban once its turn has come back.
/// A turn may be had twice, where a store stood in for another; then the first ban stands.
pub(super) fn count_strike(
    ban: &Arc<PreparedBan>,
    subject: BucketKey,
    cause: StrikeCause,
    backend: &Backend,
) -> Option<JoinHandle<()>> {
    let strike = Strike {
        ban: Arc::clone(ban),
        subject,
        cause,
        backend: backend.clone(),
    };
    backend.tasks.run(async move {
        // The store reports its failures itself; the next strike counts again.
        let _ = strike.count().await;
    })
}

struct Strike {
    ban: Arc<PreparedBan>,
    subject: BucketKey,
    cause: StrikeCause,
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
        let now = self.backend.now();
        let begun = self
            .ask_at(now, ban.begin_for(&self.subject, offence))
            .await?;
        if !ban.has_begun(&begun.decisions) {
            return None;
        }
        let length = ban.schedule().length(offence);
        let (name, subject) = (ban.name(), self.subject.as_str());
        ban_begun(&self.ban.metrics, name, subject, offence, length);
        self.ban.known.begun(BegunBan {
            ban: Arc::clone(ban.name()),
            subject: self.subject.as_str().to_owned(),
            since: now,
            until: now + length.into(),
            cause: BanCause::Strikes {
                last: self.cause.clone(),
                count: ban.strikes().burst().get(),
                offence,
            },
        });
        // This process knows of the ban from now on, whatever other denials it still remembers.
        self.ask(smallvec![ban.check(&self.subject)]).await?;
        let strikes = smallvec![ban.strikes_key(&self.subject)];
        let forgotten = self.backend.store.reset(strikes);
        // The ban holds already, so its subject need not wait for this.
        let tasks = &self.backend.tasks;
        tasks.run(async move { drop(forgotten.await) });
        Some(())
    }

    async fn ask(&self, batch: Batch) -> Option<Outcome> {
        self.ask_at(self.backend.now(), batch).await
    }

    async fn ask_at(&self, now: Timestamp, batch: Batch) -> Option<Outcome> {
        self.backend.store.decide(&batch, now).await.ok()
    }
}
