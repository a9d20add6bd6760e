//! What is to be done about a request: whether it passes the gate, and what the store is asked.

use std::time::Instant;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower::Service;

use super::RateLimit;
use super::future::ResponseFuture;
use super::gate::{BanCheck, Gate};
use super::metered::Metered;
use super::plan::{Plan, Prepared, StoreQuery};
use super::question::AwaitingDecision;
use crate::limit::Batch;
use crate::rules::{Access, Captures};
use crate::time::Timestamp;

impl<S> RateLimit<S> {
    /// Holds a request to its route's limits.
    pub(super) fn limit<B, R>(&mut self, request: Request<B>) -> ResponseFuture<S, B, R>
    where
        S: Service<Request<Metered<B>>, Response = Response<R>> + Clone,
        B: Body + Send + 'static,
        B::Data: Send,
        R: Body<Data = Bytes> + Send + 'static,
    {
        let Some(policy) = self.settings.policy(request.extensions()) else {
            let future = self.inner.call(request.map(Metered::unmetered));
            return ResponseFuture::unlimited(future, None);
        };
        let now = self.settings.background.now();
        match policy.plan(&request, now) {
            Plan::Unlimited => {
                let future = self.inner.call(request.map(Metered::unmetered));
                let policy = policy.conceals().then(|| policy.clone());
                ResponseFuture::unlimited(future, policy)
            }
            Plan::Lacking(lack) => ResponseFuture::lacking(policy, &lack, request),
            Plan::Ask(inquiry) => {
                let policy = policy.clone();
                self.ask(policy, inquiry, None, request, now)
            }
        }
    }

    /// Lets a request in that is on no list, or does what its list says.
    pub(super) fn pass<B, R>(&mut self, gate: &Gate, request: Request<B>) -> ResponseFuture<S, B, R>
    where
        S: Service<Request<Metered<B>>, Response = Response<R>> + Clone,
        B: Body + Send + 'static,
        B::Data: Send,
        R: Body<Data = Bytes> + Send + 'static,
    {
        match gate.access(request.extensions()) {
            Access::Unlisted if gate.watches() => self.watch(gate, request),
            Access::Unlisted => self.limit(request),
            Access::Blocked(_) => {
                let route = self.settings.route(request.extensions());
                ResponseFuture::blocked(gate, route, request, self.take_ready())
            }
            Access::Allowed(_) => {
                let policy = self.settings.policy(request.extensions());
                let policy = policy.filter(|it| it.conceals()).cloned();
                let future = self.inner.call(request.map(Metered::unmetered));
                ResponseFuture::allowed(future, policy)
            }
        }
    }

    /// Holds a request to bans and to its route's limits, all at once.
    fn watch<B, R>(&mut self, gate: &Gate, request: Request<B>) -> ResponseFuture<S, B, R>
    where
        S: Service<Request<Metered<B>>, Response = Response<R>> + Clone,
        B: Body + Send + 'static,
        B::Data: Send,
        R: Body<Data = Bytes> + Send + 'static,
    {
        let extensions = request.extensions();
        let policy = self.settings.policy(extensions);
        let policy = policy.unwrap_or_else(|| gate.unrouted()).clone();
        let no_captures = Captures::default();
        let now = self.settings.background.now();
        let facts = policy.facts(&request, &no_captures, now);
        let route = self.settings.route(extensions);
        let Some((mut watch, checks)) = gate.watch(&facts, route, &self.settings.background) else {
            return self.limit(request);
        };
        let inquiry = match policy.plan(&request, now) {
            Plan::Ask(inquiry) => inquiry,
            Plan::Unlimited => StoreQuery::default(),
            Plan::Lacking(lack) => {
                watch.lacks(lack);
                StoreQuery::default()
            }
        };
        self.ask(policy, inquiry, Some((watch, checks)), request, now)
    }

    /// Asks the store about a request, about bans first: one that is remembered has to answer before
    /// another denial that is.
    fn ask<B, R>(
        &mut self,
        policy: Prepared,
        inquiry: StoreQuery,
        bans: Option<(Box<BanCheck>, Batch)>,
        request: Request<B>,
        now: Timestamp,
    ) -> ResponseFuture<S, B, R>
    where
        S: Service<Request<Metered<B>>, Response = Response<R>> + Clone,
        B: Body + Send + 'static,
        B::Data: Send,
        R: Body<Data = Bytes> + Send + 'static,
    {
        let StoreQuery {
            mut batch,
            claims,
            asked,
            dues,
        } = inquiry;
        let leasing = self.settings.leasing(claims, &batch, now);
        let watch = bans.map(|(watch, checks)| {
            batch.insert_many(0, checks);
            watch
        });
        let question = AwaitingDecision {
            policy,
            asked,
            dues: self.settings.dues(dues, now),
            leasing,
            watch,
            request,
            inner: self.take_ready(),
            since: Instant::now(),
        };
        let passes = question.is_idle();
        let pending = self.settings.background.admit(batch, now, passes);
        ResponseFuture::asking(question, pending)
    }

    /// The service that is ready, to go with a request; its clone takes its place.
    fn take_ready(&mut self) -> S
    where
        S: Clone,
    {
        let clone = self.inner.clone();
        std::mem::replace(&mut self.inner, clone)
    }
}
