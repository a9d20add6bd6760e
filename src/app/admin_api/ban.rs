//! The ban of one subject: finds, shows, sets and lifts it.

use std::time::Duration;

use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use smallvec::smallvec;

use super::authorization::Operator;
use super::bucket::with_warning;
use super::error::ApiError;
use super::request::{BANS, parse_body, read_body, segments};
use crate::app::stores::AdminStores;
use crate::config::{HumanDuration, Settings, suggest};
use crate::limit::{Batch, BucketKey, Decision};
use crate::rules::Ban;
use crate::server::RequestBody;
use crate::store::{Outcome, StoreError};
use crate::telemetry::{BanLifted, BanSet};
use crate::time::{Nanos, Timestamp};

/// An example of the body that sets a ban.
const FORM: &str = "{\"for\": \"1h\"}";

/// A subject of a ban in force.
pub(super) struct BanTarget<'s> {
    ban: &'s Ban,
    id: String,
    subject: BucketKey,
}

/// What is to be done.
pub(super) enum Act {
    Show,
    /// Deletes the subject's ban, strikes and offences.
    Lift,
    /// Bans it for this long from now on.
    Set(Duration),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Setting {
    #[serde(rename = "for")]
    length: String,
}

impl<'s> BanTarget<'s> {
    /// The subject that a path names; none if it is not the path of a ban.
    pub(super) fn find(settings: &'s Settings, path: &str) -> Result<Option<Self>, ApiError> {
        let Some(segments) = segments(path, BANS) else {
            return Ok(None);
        };
        let [name, id] = <[String; 2]>::try_from(segments).map_err(|_| ApiError::NoSuchPath)?;
        let bans = || settings.access.bans.iter().map(|policy| &*policy.ban);
        let Some(ban) = bans().find(|ban| **ban.name() == *name) else {
            let help = suggest(&name, bans().map(|ban| &**ban.name()));
            return Err(ApiError::NoSuchBan { name, help });
        };
        let subject = ban.subject_of(&id)?;
        Ok(Some(Self { ban, id, subject }))
    }

    pub(super) async fn act(&self, method: &Method, body: RequestBody) -> Result<Act, ApiError> {
        match *method {
            Method::GET | Method::HEAD => Ok(Act::Show),
            Method::DELETE => Ok(Act::Lift),
            Method::PUT => self.length(&read_body(body, FORM).await?).map(Act::Set),
            _ => Err(ApiError::Method("GET, HEAD, PUT, DELETE")),
        }
    }

    /// The length that the body asks for, or that of a first ban if it is empty.
    fn length(&self, body: &[u8]) -> Result<Duration, ApiError> {
        let (first, longest) = (self.ban.schedule().first(), self.ban.schedule().longest());
        if body.is_empty() {
            return Ok(first);
        }
        let setting: Setting = parse_body(body, FORM)?;
        let refused = |cause: String| ApiError::Body { form: FORM, cause };
        let HumanDuration(length) = setting
            .length
            .parse()
            .map_err(|cause: crate::config::HumanDurationError| refused(cause.to_string()))?;
        if length.is_zero() || length > longest {
            let longest = HumanDuration(longest);
            let cause = format!("the duration must be greater than 0 and at most {longest}");
            return Err(refused(cause));
        }
        Ok(length)
    }

    pub(super) async fn change(
        &self,
        stores: &AdminStores,
        act: &Act,
        operator: &Operator,
        now: Timestamp,
    ) -> Result<(), ApiError> {
        let (ban, subject) = (&**self.ban.name(), self.subject.as_str());
        let by = operator.name();
        match *act {
            Act::Show => {}
            Act::Lift => {
                stores.change.reset(self.ban.keys(&self.subject)).await?;
                BanLifted { ban, subject, by }.emit();
            }
            Act::Set(length) => {
                let key = self.ban.ban_key(&self.subject);
                stores.change.reset(smallvec![key]).await?;
                let begin = self.ban.begin(&self.subject, length);
                stores.change.decide(smallvec![begin], now).await?;
                // So that this process knows of the ban at once, as if it had begun it itself.
                let check = self.ban.check(&self.subject);
                stores.change.decide(smallvec![check], now).await?;
                BanSet {
                    ban,
                    subject,
                    length,
                    by,
                }
                .emit();
            }
        }
        Ok(())
    }

    /// The state of the subject as JSON; times are in seconds.
    pub(super) async fn to_json(
        &self,
        stores: &AdminStores,
        now: Timestamp,
    ) -> Result<Value, ApiError> {
        let peek: Batch = self.ban.peek(&self.subject);
        let Outcome { decisions, .. } = stores.read.decide(peek, now).await?;
        let mut decisions = decisions.into_iter();
        let mut next = || decisions.next().flatten();
        // Without a fallback, a store decides or fails.
        let refused = || ApiError::Store(StoreError::OutOfReach);
        let (held, strikes) = (next().ok_or_else(refused)?, next().ok_or_else(refused)?);
        let offences = next();
        let state = json!({
            "ban": &**self.ban.name(),
            "subject": self.id,
            "key": self.ban.ban_key(&self.subject).as_str(),
            "banned": !held.reset_in.is_zero(),
            "ends_in": seconds(held.reset_in),
            "strikes": taken(self.ban.strikes().burst().get(), &strikes),
            "offences": offences.map(|decision| taken(self.ban.schedule().lengths().len() as u64, &decision)),
        });
        Ok(with_warning(state, self.ban.id_warning(&self.id)))
    }
}

/// How many units are taken from a bucket.
fn taken(burst: u64, decision: &Decision) -> u64 {
    burst.saturating_sub(decision.remaining)
}

fn seconds(span: Nanos) -> f64 {
    Duration::from(span).as_secs_f64()
}
