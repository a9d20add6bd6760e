//! What bans have to do with one request: whether one holds, and whether it is a strike.

use std::sync::Arc;

use http::StatusCode;
use smallvec::SmallVec;

use super::{AccessControl, BanPolicy, PreparedBan, PreparedTreatment, strike};
use crate::limit::{Batch, BucketKey, Decision, Transaction};
use crate::middleware::backend::{Backend, PendingTasks};
use crate::rules::RequestAttributes;
use crate::store::Outcome;
use crate::time::Nanos;

/// A request, as far as bans care about it.
pub(in crate::middleware) struct BanCheck {
    backend: Backend,
    subjects: Subjects,
    /// The ban that would keep the request out, if it were acted upon.
    would_hold: Option<Arc<str>>,
    /// Strikes that are being counted, of bans that are acted upon.
    striking: PendingTasks,
}

/// The subjects that bans have in a request.
type Subjects = SmallVec<[BanSubject; 2]>;

struct BanSubject {
    ban: Arc<PreparedBan>,
    subject: BucketKey,
    /// Whether the ban is acted upon.
    acts: bool,
    /// Whether a strike is out of the question: there was one, or the subject is banned already.
    is_done: bool,
}

/// The ban that keeps a request out.
pub(in crate::middleware) struct ActiveBan {
    pub(in crate::middleware) name: Arc<str>,
    pub(in crate::middleware) treatment: Arc<PreparedTreatment>,
    /// What is left of it.
    pub(in crate::middleware) retry_in: Nanos,
}

impl AccessControl {
    /// What bans have to do with a request, and what is to be asked about them; none where no ban
    /// has a subject in it.
    pub(in crate::middleware) fn check(
        &self,
        request: &RequestAttributes<'_>,
        backend: &Backend,
    ) -> Option<(Box<BanCheck>, Batch)> {
        let found = self.0.bans.iter().filter_map(|ban| {
            let policy = &ban.policy;
            let subject = policy.ban.subject(request)?;
            let check = policy.ban.check(&subject);
            let acts = policy.enforcement.acts_on(&check.key);
            let mode = if acts {
                check.mode
            } else {
                check.mode.non_denying()
            };
            let subject = BanSubject {
                ban: Arc::clone(ban),
                subject,
                acts,
                is_done: false,
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
    pub(in crate::middleware) fn would_hold(&mut self) -> Option<Arc<str>> {
        self.would_hold.take()
    }

    /// The strikes that the response has to wait for, so that a ban which begins with one of them
    /// holds from the next request on.
    pub(in crate::middleware) fn striking(self) -> PendingTasks {
        self.striking
    }

    /// How many decisions of a batch are about bans; they come before all others.
    pub(in crate::middleware) fn len(&self) -> usize {
        self.subjects.len()
    }

    /// Whether no ban would be acted upon.
    pub(in crate::middleware) fn is_idle(&self) -> bool {
        self.subjects.iter().all(|subject| !subject.acts)
    }

    /// The ban that keeps the request for this path out, by the first decisions of an outcome,
    /// which are taken off. Of several that hold, the first decides.
    pub(in crate::middleware) fn judge(
        &mut self,
        outcome: &mut Outcome,
        path: &str,
    ) -> Option<ActiveBan> {
        let count = self.subjects.len().min(outcome.decisions.len());
        let decisions: SmallVec<[Option<Decision>; 3]> = outcome.decisions.drain(..count).collect();
        let mut active = None;
        for (subject, decision) in self.subjects.iter_mut().zip(decisions) {
            let Some(decision) = decision.filter(|decision| !decision.fits()) else {
                continue;
            };
            subject.is_done = true;
            let ban = &subject.ban;
            ban.metrics.held(subject.acts);
            let name = Arc::clone(ban.policy.ban.name());
            if !subject.acts {
                self.would_hold.get_or_insert(name);
            } else if active.is_none() {
                active = Some(ActiveBan {
                    name,
                    treatment: Arc::clone(&ban.treatment),
                    retry_in: decision.retry_in,
                });
            }
        }
        if active.is_none() {
            self.strike(|_, policy| policy.paths.matches(path));
        }
        active
    }

    /// These limits have denied the request.
    pub(in crate::middleware) fn denied_by<'l>(
        &mut self,
        limits: impl Iterator<Item = &'l str> + Clone,
    ) {
        self.strike(|_, policy| policy.strikes_by(limits.clone()));
    }

    /// These limits would have denied the request, were they acted upon. Bans that are not acted
    /// upon either take that for a strike, or a dry run of both would tell of no ban.
    pub(in crate::middleware) fn would_be_denied_by<'l>(
        &mut self,
        limits: impl Iterator<Item = &'l str> + Clone,
    ) {
        self.strike(|subject, policy| !subject.acts && policy.strikes_by(limits.clone()));
    }

    /// The response has this status.
    pub(in crate::middleware) fn answered(&mut self, status: StatusCode) {
        self.strike(|_, policy| policy.statuses.contains(status));
    }

    /// A request is one strike of a ban at the most.
    fn strike(&mut self, is_strike: impl Fn(&BanSubject, &BanPolicy) -> bool) {
        let open = self.subjects.iter_mut().filter(|subject| !subject.is_done);
        for subject in open {
            if is_strike(subject, &subject.ban.policy) {
                subject.is_done = true;
                let striking = strike::run(&subject.ban, subject.subject.clone(), &self.backend);
                self.striking.extend(striking.filter(|_| subject.acts));
            }
        }
    }
}
