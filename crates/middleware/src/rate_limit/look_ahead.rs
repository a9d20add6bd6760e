//! Requests whose account only a password names that nobody has verified yet. What needs no account
//! is looked at first, and nothing is taken. The password of a request that is refused by that is
//! not verified; any other request starts again with its account.

use std::mem;

use weir_http::request::HttpRequest;
use weir_limit::time::Timestamp;
use weir_limit::{Batch, Transaction};

use super::decisions::QueriedLimits;
use super::policy::{PreparedLimit, RoutePolicy};
use super::{LimitedRequest, LimitedService, RateLimit, ResponseState};
use crate::backend::Backend;
use crate::{RequestContext, rejection};

impl<S> RateLimit<S> {
    /// Whether the lists may allow accounts, so that nothing is decided before they are known.
    pub(super) fn lists_accounts(&self) -> bool {
        matches!(&self.settings.access, Some(access) if access.allows_accounts())
    }

    /// Whether the lists may allow the account of a request, which has to be learned first.
    pub(super) fn needs_account_for_lists<Q: HttpRequest>(&self, request: &Q) -> bool {
        self.lists_accounts() && RequestContext::unverified(request.extensions()).is_some()
    }

    /// Verifies the password of a request, and starts again with its account.
    #[cold]
    pub(super) fn learn_account<Q: LimitedRequest>(
        &mut self,
        mut request: Q,
    ) -> ResponseState<S::Future, S::ResponseBody>
    where
        S: LimitedService<Q>,
    {
        let unverified = RequestContext::entry(request.extensions_mut())
            .unverified
            .take();
        let Some(unverified) = unverified else {
            return self.start_again(request);
        };
        let clone = self.clone();
        let mut ready = mem::replace(self, clone);
        ResponseState::Waiting {
            decision: Box::pin(async move {
                match unverified.verify(&mut request).await {
                    true => ready.start_again(request),
                    false => ResponseState::unavailable(rejection::unverified(), None),
                }
            }),
        }
    }

    /// Goes on with a request whose account is known now.
    #[cold]
    fn start_again<Q: LimitedRequest>(
        &mut self,
        request: Q,
    ) -> ResponseState<S::Future, S::ResponseBody>
    where
        S: LimitedService<Q>,
    {
        self.start(request, true)
    }
}

/// What the store is asked in the end about a request whose account is not known yet.
pub(super) struct LookAhead {
    batch: Box<Batch>,
    /// Where its limits begin.
    limits: usize,
}

impl LookAhead {
    /// Has a batch take nothing of its limits, which begin at this index, until the account is known.
    pub(super) fn new(batch: &mut Batch, limits: usize) -> Self {
        let whole = Box::new(batch.clone());
        let of_limits = batch.iter_mut().skip(limits);
        of_limits.for_each(|asked| asked.mode = asked.mode.non_spending());
        Self {
            batch: whole,
            limits,
        }
    }

    /// Counts a request that was refused before its limits were asked for more than a look.
    pub(super) fn count_refused(
        self,
        policy: &RoutePolicy<PreparedLimit>,
        queried: &mut QueriedLimits,
        now: Timestamp,
        backend: &Backend,
    ) {
        let of_limits = self.batch.iter().skip(self.limits);
        for (queried, transaction) in queried.limits.iter_mut().zip(of_limits) {
            if let Some(limit) = policy.limit(queried.limit.into()) {
                queried.subject = limit.record_subject(transaction, now, None);
            }
        }
        let counts_denied = |asked: &Transaction| asked.quota.algorithm().counts_denied();
        if self.batch.iter().any(counts_denied) {
            let counted = backend.store.decide(&self.batch, now);
            backend.tasks.run(async move { drop(counted.await) });
        }
    }
}
