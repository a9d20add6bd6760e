//! What is to be asked about one request: which buckets, with which quotas.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use smallvec::SmallVec;

use super::fields::{Label, Standing, Standings};
use super::{OnDenied, Rejection, RoutePolicy, reject};
use crate::limit::{Batch, Decision, Quota};
use crate::middleware::Sender;
use crate::rules::{Captures, Facts, Limit, RouteMatch, Source, Subject};
use crate::store::Outcome;
use crate::telemetry::{LimitMetrics, Metrics};
use crate::time::Timestamp;

/// A route's policy with all that can be prepared at load time. Clones share it.
#[derive(Clone)]
pub(super) struct Prepared(Arc<Inner>);

struct Inner {
    policy: RoutePolicy,
    limits: Vec<PreparedLimit>,
}

struct PreparedLimit {
    name: Arc<str>,
    label: Label,
    /// The problem document for a request that this limit alone denies.
    document: Bytes,
    metrics: LimitMetrics,
}

/// What is to be done about a request.
#[expect(
    clippy::large_enum_variant,
    reason = "nearly every plan is the large one, and none is kept"
)]
pub(super) enum Plan {
    /// No limit applies.
    Unlimited,
    /// A limit must have a value that the request lacks.
    Lacking(Lack),
    /// The store has to be asked.
    Ask(Batch, Asked),
}

/// A limit without the value that it counts by.
pub(super) struct Lack {
    limit: usize,
    source: Source,
}

/// The limits that a batch asks about, in its order.
pub(super) type Asked = SmallVec<[(usize, Quota); 3]>;

impl Prepared {
    pub(super) fn new(policy: RoutePolicy, metrics: &Metrics) -> Self {
        let status = match &policy.on_denied {
            OnDenied::Reject(rejection) => rejection.status,
            OnDenied::Shadow(_) => Rejection::default().status,
        };
        let prepare = |limit: &Limit| {
            let name = limit.name();
            PreparedLimit {
                name: name.into(),
                label: Label::new(name, limit.quota()),
                document: reject::document(status, &[name]),
                metrics: metrics.limit(name),
            }
        };
        let limits = policy
            .limits
            .iter()
            .map(|used| prepare(&used.limit))
            .collect();
        Self(Arc::new(Inner { policy, limits }))
    }

    pub(super) fn policy(&self) -> &RoutePolicy {
        &self.0.policy
    }

    /// Names the buckets of a request.
    pub(super) fn plan<B>(&self, request: &Request<B>, now: Timestamp) -> Plan {
        let mut batch = Batch::new();
        let mut asked = Asked::new();
        let no_captures = Captures::default();
        let facts = self.facts(request, &no_captures, now);
        for (index, used) in self.0.policy.limits.iter().enumerate() {
            match used.subject(&facts) {
                Subject::Counted { transaction, .. } => {
                    asked.push((index, transaction.quota));
                    batch.push(transaction);
                }
                Subject::Skipped(_) | Subject::Exempt => {}
                Subject::Missing(source) => {
                    return Plan::Lacking(Lack {
                        limit: index,
                        source: source.clone(),
                    });
                }
            }
        }
        if batch.is_empty() {
            Plan::Unlimited
        } else {
            Plan::Ask(batch, asked)
        }
    }

    fn facts<'a, B>(
        &'a self,
        request: &'a Request<B>,
        no_captures: &'a Captures,
        now: Timestamp,
    ) -> Facts<'a> {
        let sender = request.extensions().get::<Sender>();
        let route = request.extensions().get::<RouteMatch>();
        Facts {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            // Without an address all senders share one bucket, which errs on the strict side.
            client: sender.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |it| it.client.address),
            account: sender.and_then(|it| it.account.as_ref()),
            route: &self.0.policy.name,
            captures: route.map_or(no_captures, |found| &found.captures),
            now,
        }
    }

    fn limit(&self, index: usize) -> Option<&PreparedLimit> {
        self.0.limits.get(index)
    }

    /// The name of the limit that a request lacks a value for.
    pub(super) fn name_of(&self, lack: &Lack) -> Option<Arc<str>> {
        self.limit(lack.limit).map(|limit| Arc::clone(&limit.name))
    }

    /// Where a request stands with each limit that was asked about.
    pub(super) fn standings(&self, asked: &Asked, outcome: &Outcome) -> Standings<'_> {
        let pairs = asked.iter().zip(&outcome.decisions);
        let standing = |(&(index, quota), &decision): (&(usize, Quota), &Option<Decision>)| {
            Some(Standing {
                label: &self.limit(index)?.label,
                quota,
                decision,
            })
        };
        pairs.filter_map(standing).collect()
    }

    /// Counts the decisions, by limit.
    pub(super) fn count(&self, asked: &Asked, outcome: &Outcome) {
        for (&(index, _), decision) in asked.iter().zip(&outcome.decisions) {
            if let (Some(limit), Some(decision)) = (self.limit(index), decision) {
                limit.metrics.decided(decision.allowed);
            }
        }
    }

    /// The limits that denied, if any did.
    pub(super) fn denial(&self, asked: &Asked, outcome: &Outcome) -> Option<Denial<'_>> {
        let decisions = asked.iter().zip(&outcome.decisions);
        let mut violated: SmallVec<[(&PreparedLimit, Decision); 3]> = decisions
            .filter_map(|(&(index, _), decision)| Some((self.limit(index)?, (*decision)?)))
            .filter(|(_, decision)| !decision.allowed)
            .collect();
        violated.sort_by_key(|(_, decision)| decision.strictness());
        let strictest = violated.pop()?;
        Some(Denial {
            strictest,
            others: violated,
        })
    }
}

/// The limits that denied a request.
pub(super) struct Denial<'a> {
    strictest: (&'a PreparedLimit, Decision),
    others: SmallVec<[(&'a PreparedLimit, Decision); 3]>,
}

impl Denial<'_> {
    /// The name of the strictest.
    pub(super) fn limit(&self) -> Arc<str> {
        Arc::clone(&self.strictest.0.name)
    }

    /// The strictest decision.
    pub(super) fn decision(&self) -> &Decision {
        &self.strictest.1
    }

    /// The problem document that names them all, the strictest first.
    pub(super) fn document(&self, rejection: &Rejection) -> Bytes {
        if self.others.is_empty() {
            return self.strictest.0.document.clone();
        }
        let all = std::iter::once(&self.strictest).chain(self.others.iter().rev());
        let names: SmallVec<[&str; 3]> = all.map(|(limit, _)| &*limit.name).collect();
        reject::document(rejection.status, &names)
    }
}

impl Lack {
    /// The source of the value.
    pub(super) fn source(&self) -> &Source {
        &self.source
    }
}
