//! One bucket: finds, shows and changes it.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::authorization::Operator;
use super::error::ApiError;
use crate::app::stores::AdminStores;
use crate::config::{Settings, Until, suggest};
use crate::limit::{BucketKey, Decision, Mode, Quota, Transaction};
use crate::rules::{IdWarning, Limit, Override, OverrideOrigin};
use crate::store::StoreError;
use crate::telemetry::{BucketRefunded, BucketReset};
use crate::time::{Nanos, Timestamp};

/// A bucket of a limit in force.
pub(super) struct Bucket {
    limit: Arc<Limit>,
    subject: String,
    pub(super) key: BucketKey,
    overridden: Option<Override>,
    quota: Quota,
}

/// What an operator does to a bucket.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    /// Makes it full, or deletes the leases of the requests in flight.
    Reset,
    /// Gives back this many units, at most as many as were taken.
    Refund(u64),
}

/// The limit of this name.
pub(super) fn limit_named<'s>(
    settings: &'s Settings,
    name: &str,
) -> Result<&'s Arc<Limit>, ApiError> {
    settings.limit(name).ok_or_else(|| {
        let limits = settings.limits();
        ApiError::NoSuchLimit {
            name: name.to_owned(),
            help: suggest(name, limits.iter().map(|limit| limit.name())),
        }
    })
}

impl Bucket {
    pub(super) fn find(
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
            quota: quota.ok_or_else(|| ApiError::NotCounted(name.to_owned()))?,
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

    /// What asks how the bucket stands, and changes nothing.
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
            None => {
                stores
                    .read
                    .decide([look].into_iter().collect(), now)
                    .await?
            }
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
                BucketReset { limit, key, by }.emit();
            }
            Change::Refund(_) if self.quota.is_in_flight() => {
                return Err(ApiError::InFlight(limit.to_owned()));
            }
            Change::Refund(cost) => {
                let Some(cost) = NonZeroU64::new(cost) else {
                    // Nothing is given back, as in Boulder.
                    return Ok(());
                };
                // At most the burst can have been taken.
                let cost = cost.min(self.quota.burst());
                let back = self.transaction(Mode::CheckAndSpend, cost);
                stores
                    .change
                    .refund([back].into_iter().collect(), now)
                    .await?;
                BucketRefunded {
                    limit,
                    key,
                    cost: cost.get(),
                    by,
                }
                .emit();
            }
        }
        Ok(())
    }

    /// The bucket as JSON; times are in seconds.
    pub(super) fn to_json(&self, settings: &Settings, decision: &Decision) -> Value {
        let doubt = self.limit.id_warning(&self.subject);
        with_warning(self.state(settings, decision), doubt)
    }

    /// The same without warnings.
    pub(super) fn state(&self, settings: &Settings, decision: &Decision) -> Value {
        let quota = self.quota;
        let written = settings.parameters_of(self.limit.name(), &quota);
        let overridden = self.overridden.as_ref();
        let overridden = overridden.map(|entry| {
            json!({
                "id": entry.id,
                "comment": entry.comment,
                "until": entry.until.map(|until| Until(until).to_string()),
                "origin": match entry.origin {
                    OverrideOrigin::Configuration => "file",
                    OverrideOrigin::AdminApi => "api",
                },
            })
        });
        if quota.is_in_flight() {
            let most = quota.burst().get();
            return json!({
                "limit": self.limit.name(),
                "subject": self.subject,
                "key": self.key.as_str(),
                "override": overridden,
                "algorithm": quota.algorithm().name(),
                "most": most,
                "in_flight": most.saturating_sub(decision.remaining),
                "remaining": decision.remaining,
            });
        }
        json!({
            "limit": self.limit.name(),
            "subject": self.subject,
            "key": self.key.as_str(),
            "override": overridden,
            "algorithm": quota.algorithm().name(),
            "burst": quota.burst(),
            "count": written.and_then(|written| written.count),
            // A calendar's windows have no period.
            "period": written.and_then(|written| written.period).map(|period| period.to_string()),
            "remaining": decision.remaining,
            "retry_in": seconds(decision.retry_in),
            "reset_in": seconds(decision.reset_in),
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

/// Adds a warning about an id that may belong to another subject.
pub(super) fn with_warning(mut described: Value, doubt: Option<IdWarning>) -> Value {
    if let (Some(members), Some(doubt)) = (described.as_object_mut(), doubt) {
        members.insert("warning".to_owned(), doubt.to_string().into());
    }
    described
}

fn seconds(span: Nanos) -> f64 {
    Duration::from(span).as_secs_f64()
}
