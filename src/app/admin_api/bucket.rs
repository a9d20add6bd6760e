//! One bucket: finds, shows and changes it.

use std::num::NonZeroU64;
use std::sync::Arc;

use http::{Method, StatusCode};
use thiserror::Error;
use weir_config::Settings;
use weir_limit::time::Timestamp;
use weir_limit::{Batch, BucketKey, Decision, Mode, Quota, Transaction};
use weir_rules::{IdError, Limit, Override};
use weir_store::{Owed, StoreError};
use weir_telemetry::audit;
use weir_yaml::suggest;

use super::Api;
use super::authorization::Operator;
use super::endpoint::{Call, Endpoint, Reply, json_response};
use super::error::{ApiError, ResponseError};
use super::request;
use super::responses::{
    self, BucketIdentity, BucketNotes, DateTime, InFlightBucket, UnitBucket, seconds,
};
use crate::app::stores::AdminStores;

pub(super) const ENDPOINTS: &[Endpoint] = &[
    Endpoint::new(
        "/v1/buckets/{limit}/{subject}",
        "GET, HEAD, DELETE",
        |api, call| Box::pin(show(api, call)),
    ),
    Endpoint::new(
        "/v1/buckets/{limit}/{subject}/refund",
        "POST",
        |api, call| Box::pin(refund(api, call)),
    ),
];

/// Why a bucket is not shown or not changed.
#[derive(Debug, Error)]
pub(super) enum BucketError {
    /// `help` names a similar limit that may be meant.
    #[error("No route uses a limit \"{name}\"; {}", help.as_deref().unwrap_or(NO_OTHERS))]
    NoSuchLimit { name: String, help: Option<String> },
    #[error("\"{0}\" applies only to subjects with an override; this one has none.")]
    NotCounted(String),
    #[error("A place of \"{0}\" comes back when its request ends; DELETE frees all places.")]
    InFlight(String),
}

const NO_OTHERS: &str = "there are none";

impl ResponseError for BucketError {
    fn status(&self) -> StatusCode {
        match self {
            Self::NoSuchLimit { .. } | Self::NotCounted(_) => StatusCode::NOT_FOUND,
            Self::InFlight(_) => StatusCode::CONFLICT,
        }
    }
}

/// The limit has no such subject.
impl ResponseError for IdError {
    fn status(&self) -> StatusCode {
        StatusCode::BAD_REQUEST
    }
}

/// Shows a bucket, after it is made full by `DELETE`.
async fn show(api: &Api, call: Call<'_>) -> Reply {
    let snapshot = api.snapshot();
    let bucket = BucketTarget::of(&call, &snapshot.settings)?;
    if call.head.method == Method::DELETE {
        let stores = api.admin_stores().await?;
        bucket
            .change(stores, Change::Reset, call.operator, call.now)
            .await?;
    }
    bucket.respond(api, &snapshot.settings, call.now).await
}

async fn refund(api: &Api, call: Call<'_>) -> Reply {
    let snapshot = api.snapshot();
    let bucket = BucketTarget::of(&call, &snapshot.settings)?;
    let units = request::refunded_units(call.head.uri.query(), call.body).await?;
    let (stores, change) = (api.admin_stores().await?, Change::Refund(units));
    bucket
        .change(stores, change, call.operator, call.now)
        .await?;
    bucket.respond(api, &snapshot.settings, call.now).await
}

pub(super) struct BucketTarget {
    limit: Arc<Limit>,
    subject: String,
    pub(super) key: BucketKey,
    overridden: Option<Override>,
    quota: Quota,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    /// Makes it full, or deletes the leases of the requests in flight.
    Reset,
    /// Gives back this many units, at most as many as were taken.
    Refund(u64),
}

pub(in crate::app) fn limit_named<'s>(
    settings: &'s Settings,
    name: &str,
) -> Result<&'s Arc<Limit>, ApiError> {
    settings.limit(name).ok_or_else(|| {
        let limits = settings.limits();
        let refusal = BucketError::NoSuchLimit {
            name: name.to_owned(),
            help: suggest(name, limits.iter().map(|limit| limit.name())),
        };
        refusal.into()
    })
}

impl BucketTarget {
    /// The bucket that a request's path names.
    fn of(call: &Call<'_>, settings: &Settings) -> Result<Self, ApiError> {
        Self::find(settings, call.parameter(0), call.parameter(1), call.now)
    }

    async fn respond(&self, api: &Api, settings: &Settings, now: Timestamp) -> Reply {
        let decision = self.read(api.admin_stores().await?, now).await?;
        let notes = BucketNotes {
            name: None,
            warning: self.warning(),
        };
        json_response(&self.response(settings, &decision, notes))
    }

    fn find(
        settings: &Settings,
        name: &str,
        subject: &str,
        now: Timestamp,
    ) -> Result<Self, ApiError> {
        let limit = limit_named(settings, name)?;
        let overridden = limit.override_of(subject, now)?;
        let quota = overridden.map(|entry| entry.quota).or(limit.quota());
        Ok(Self {
            limit: Arc::clone(limit),
            subject: subject.to_owned(),
            key: limit.bucket_of(subject)?,
            overridden: overridden.cloned(),
            quota: quota.ok_or_else(|| BucketError::NotCounted(name.to_owned()))?,
        })
    }

    /// The bucket with this key; none if the limit does not count its subject.
    pub(super) fn with_key(limit: &Arc<Limit>, key: &str, now: Timestamp) -> Option<Self> {
        let subject = limit.id_of(key);
        let is_id = limit
            .bucket_of(&subject)
            .is_ok_and(|own| own.as_str() == key);
        let overridden = is_id.then(|| limit.override_of(&subject, now).ok().flatten());
        let overridden = overridden.flatten().cloned();
        let quota = overridden
            .as_ref()
            .map(|entry| entry.quota)
            .or(limit.quota());
        Some(Self {
            limit: Arc::clone(limit),
            subject,
            key: key.into(),
            overridden,
            quota: quota?,
        })
    }

    /// A transaction that reads the bucket and spends nothing.
    pub(super) fn peek(&self) -> Transaction {
        self.transaction(Mode::Peek, NonZeroU64::MIN)
    }

    /// The state of the bucket, for a request of cost 1.
    pub(super) async fn read(
        &self,
        stores: &AdminStores,
        now: Timestamp,
    ) -> Result<Decision, ApiError> {
        let look = self.transaction(Mode::CheckOnly, NonZeroU64::MIN);
        let outcome = match look.claim() {
            Some(claim) => stores.leases.acquire([claim].into(), now).await?.outcome,
            None => stores.read.decide(&Batch::from_iter([look]), now).await?,
        };
        let decision = outcome.decisions.into_iter().flatten().next();
        // Without a fallback, a store decides or fails.
        decision.ok_or(ApiError::Store(StoreError::OutOfReach))
    }

    pub(super) async fn change(
        &self,
        stores: &AdminStores,
        change: Change,
        operator: &Operator,
        now: Timestamp,
    ) -> Result<(), ApiError> {
        let (limit, key) = (self.limit.name(), self.key.as_str());
        let by = operator.name();
        match change {
            Change::Reset => {
                let keys = [self.key.clone()].into();
                match self.quota.is_in_flight() {
                    true => stores.leases.delete(keys).await?,
                    false => stores.change.reset(keys).await?,
                }
                audit::bucket_reset(by, limit, key);
            }
            Change::Refund(_) if self.quota.is_in_flight() => {
                return Err(BucketError::InFlight(limit.to_owned()).into());
            }
            Change::Refund(cost) => {
                let Some(cost) = NonZeroU64::new(cost) else {
                    // Nothing is given back, as in Boulder.
                    return Ok(());
                };
                // At most the burst can have been taken.
                let cost = cost.min(self.quota.burst());
                let back = self.transaction(Mode::CheckAndSpend, cost);
                let owed = [Owed::whole(back)].into_iter().collect();
                stores.change.refund(owed, now).await?;
                audit::bucket_refunded(by, limit, key, cost.get());
            }
        }
        Ok(())
    }

    /// A warning if its id may belong to another subject.
    pub(super) fn warning(&self) -> Option<String> {
        let warning = self.limit.id_warning(&self.subject);
        warning.map(|warning| warning.to_string())
    }

    pub(super) fn response(
        &self,
        settings: &Settings,
        decision: &Decision,
        notes: BucketNotes,
    ) -> responses::Bucket {
        let quota = self.quota;
        let overridden = self.overridden.as_ref();
        let identity = BucketIdentity {
            limit: self.limit.name().to_owned(),
            subject: self.subject.clone(),
            key: self.key.as_str().to_owned(),
            overridden: overridden.map(|entry| responses::Override {
                id: entry.id.clone(),
                comment: entry.comment.clone(),
                until: entry.until.map(DateTime),
                origin: entry.origin.into(),
            }),
        };
        let (algorithm, remaining) = (quota.algorithm().name(), decision.remaining);
        let burst = quota.burst().get();
        if quota.is_in_flight() {
            return responses::Bucket::InFlight(InFlightBucket {
                identity,
                algorithm,
                most: burst,
                in_flight: burst.saturating_sub(remaining),
                remaining,
                notes,
            });
        }
        let written = settings.parameters_of(self.limit.name(), &quota);
        let period = written.and_then(|written| written.period);
        responses::Bucket::Units(UnitBucket {
            identity,
            algorithm,
            burst,
            count: written.and_then(|written| written.count),
            period: period.map(|period| period.to_string()),
            remaining,
            retry_in: seconds(decision.retry_in),
            reset_in: seconds(decision.reset_in),
            notes,
        })
    }

    fn transaction(&self, mode: Mode, cost: NonZeroU64) -> Transaction {
        // What an operator gives back is for all gateways.
        let quota = self.quota.with_prefetch(None);
        Transaction {
            mode,
            ..Transaction::new(self.key.clone(), quota, cost)
        }
    }
}
