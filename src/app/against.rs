//! What another configuration changes for the subjects of a fleet that runs, by what they have sent
//! in the last minute and in the last hour.
//!
//! A subject that sent more in that time than passes at most, however its requests were spread, is
//! over the limit at once. Requests count as one unit each.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use http::Method;
use serde::Serialize;
use serde_json::Value;
use weir_config::Settings;
use weir_limit::time::{Clock, Nanos, SystemClock, Timestamp};
use weir_limit::{Algorithm, Alignment, Quota};
use weir_rules::Limit;
use weir_yaml::{HumanDuration, pluralized};

use super::admin_api::findings::{is_enforced, quota_of};
use super::admin_client::{AdminClient, AdminError};
use super::wording::describe_quota;

/// The effects of a configuration on live subjects.
#[derive(Debug, Serialize)]
pub struct LiveCheck {
    /// How many gateways are counted.
    pub gateways: u64,
    /// Why these are not all, if so.
    pub alone: Option<String>,
    /// How many subjects were looked at: all that gateways know of.
    pub subjects: usize,
    /// How many requests of a subject may be missing, at most; none where a gateway is not counted.
    pub uncounted: Option<u64>,
    /// The worst first.
    pub effects: Vec<Effect>,
}

/// What becomes of a subject, or of the subjects of a limit.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Effect {
    /// What it is.
    pub kind: EffectKind,
    /// The limit.
    pub limit: String,
    /// The subject; none for all of the limit.
    pub subject: Option<String>,
    /// A sentence about it.
    pub text: String,
}

/// What a configuration does to a subject, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EffectKind {
    /// It is denied from the first moment on.
    OverAtOnce,
    /// The limit counts by something else, or requests in flight: nothing is known.
    Unknown,
    /// The limit is gone.
    NotLimited,
}

/// A subject, and what it has sent within a period.
struct Sent<'a> {
    limit: &'a str,
    subject: &'a str,
    /// The account's name, or the subject.
    shown: &'a str,
    key: &'a str,
    requests: u64,
    denied: u64,
    seconds: u64,
}

impl LiveCheck {
    /// Asks the gateway of `client` for the subjects of its fleet.
    ///
    /// # Errors
    /// When it does not respond, or refuses.
    pub fn run(settings: &Settings, client: &AdminClient) -> Result<Self, AdminError> {
        let top = |period: &str| {
            // Each gateway publishes a bounded number.
            let path = format!("/v1/top?scope=fleet&period={period}&count={}", u32::MAX);
            client.request(Method::GET, &path, None)
        };
        let answers = [top("minute")?, top("hour")?];
        Ok(Self::new(settings, &answers, SystemClock.now()))
    }

    /// The effects on the subjects of these answers of `/v1/top`, of a minute and of an hour.
    fn new(settings: &Settings, answers: &[Value; 2], now: Timestamp) -> Self {
        let mut found: BTreeMap<(&str, &str), Effect> = BTreeMap::new();
        let mut seen: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for sent in answers.iter().flat_map(Sent::all) {
            seen.entry(sent.limit).or_default().insert(sent.key);
            let Some(limit) = settings.limit(sent.limit).filter(|limit| sent.is_of(limit)) else {
                continue;
            };
            let Some(quota) = quota_of(limit, sent.subject, now) else {
                continue;
            };
            let effect = sent.effect(quota, is_enforced(settings, limit, sent.key), now);
            if let Some(effect) = effect {
                // That of the minute comes first.
                found.entry((sent.limit, sent.key)).or_insert(effect);
            }
        }
        let mut effects: Vec<Effect> = found.into_values().collect();
        let of_limits = seen
            .iter()
            .filter_map(|(name, keys)| of_limit(settings, name, keys));
        effects.extend(of_limits);
        effects.sort();
        let [minute, _] = answers;
        Self {
            gateways: minute["gateways"].as_u64().unwrap_or(1),
            alone: minute["alone"].as_str().map(str::to_owned),
            subjects: seen.values().map(BTreeSet::len).sum(),
            uncounted: uncounted(answers),
            effects,
        }
    }

    /// Whether somebody is denied from the first moment on.
    pub fn is_anybody_over(&self) -> bool {
        let mut effects = self.effects.iter();
        effects.any(|effect| effect.kind == EffectKind::OverAtOnce)
    }
}

/// The greatest number of requests that one of the subjects may lack.
fn uncounted(answers: &[Value; 2]) -> Option<u64> {
    let subjects = answers.iter().map(|answer| answer["subjects"].as_array());
    let mut uncounted = subjects
        .flatten()
        .flatten()
        .map(|subject| subject["uncounted"].as_u64());
    uncounted.try_fold(0, |most, missing| Some(most.max(missing?)))
}

/// How many requests of a time up to `now` pass at most, however they are spread over it.
fn most_passing(quota: Quota, time: Nanos, now: Timestamp) -> u64 {
    let (burst, period) = (quota.burst().get(), quota.tolerance().get().max(1));
    let window = |at: Timestamp| at.as_nanos() / period;
    let windows = match quota.algorithm() {
        Algorithm::Gcra | Algorithm::InFlight => {
            return burst.saturating_add(time.get() / quota.emission_interval().get());
        }
        Algorithm::FixedWindow(Alignment::Period) => {
            window(now) - window(now.saturating_sub(time)) + 1
        }
        Algorithm::FixedWindow(_) => time.get().div_ceil(period) + 1,
        Algorithm::SlidingWindow { .. } | Algorithm::SlidingLog { .. } => {
            time.get().div_ceil(period)
        }
    };
    burst.saturating_mul(windows)
}

/// What becomes of all subjects of a limit, if one rule holds for them.
fn of_limit(settings: &Settings, name: &str, keys: &BTreeSet<&str>) -> Option<Effect> {
    let subjects = pluralized(keys.len(), "subject");
    let counts_any = |limit| keys.iter().any(|key| counts_key(limit, key));
    let (kind, text) = match settings.limit(name) {
        None => (
            EffectKind::NotLimited,
            format!("no route uses it any more; it counts {subjects} now"),
        ),
        Some(limit) if !counts_any(limit) && !keys.iter().all(|key| is_shortened(key)) => (
            EffectKind::Unknown,
            format!("it counts by something else now, so buckets of {subjects} begin full"),
        ),
        Some(limit) if limit.quota().is_some_and(|quota| quota.is_in_flight()) => (
            EffectKind::Unknown,
            format!("requests in flight of {subjects} are not known"),
        ),
        Some(_) => return None,
    };
    Some(Effect {
        kind,
        limit: name.to_owned(),
        subject: None,
        text,
    })
}

/// Whether the limit would count the subject in this bucket.
fn counts_key(limit: &Limit, key: &str) -> bool {
    let bucket = limit.bucket_of(&limit.id_of(key));
    bucket.is_ok_and(|bucket| bucket.as_str() == key)
}

/// Whether a part of the key stands for a text that is too long for it, so that nothing tells by
/// what was counted.
fn is_shortened(key: &str) -> bool {
    key.split(':').any(|part| part.starts_with('#'))
}

impl<'a> Sent<'a> {
    /// The subjects of an answer of `/v1/top`.
    fn all(answer: &'a Value) -> impl Iterator<Item = Self> {
        let subjects = answer["subjects"].as_array().into_iter().flatten();
        subjects.filter_map(|subject| {
            Some(Self {
                limit: subject["limit"].as_str()?,
                subject: subject["subject"].as_str()?,
                shown: subject["name"].as_str().or(subject["subject"].as_str())?,
                key: subject["key"].as_str()?,
                requests: subject["requests"].as_u64()?,
                denied: subject["denied"].as_u64()?,
                seconds: answer["period"].as_u64()?,
            })
        })
    }

    fn is_of(&self, limit: &Limit) -> bool {
        counts_key(limit, self.key) || is_shortened(self.key)
    }

    /// What this quota does to the subject; none if it is denied no more than it is now.
    fn effect(&self, quota: Quota, is_enforced: bool, now: Timestamp) -> Option<Effect> {
        if quota.is_in_flight() {
            return None;
        }
        let passing = most_passing(quota, Nanos::from_secs(self.seconds), now);
        let denied = self.requests.saturating_sub(passing);
        if denied <= self.denied {
            return None;
        }
        let share = |part: u64| format!("{:.0}%", 100.0 * part as f64 / self.requests as f64);
        let requests = usize::try_from(self.requests).unwrap_or(usize::MAX);
        let text = format!(
            "sent {} in the last {}; {}, would deny at least {} of them{}, and {} are denied now",
            pluralized(requests, "request"),
            HumanDuration(Duration::from_secs(self.seconds)),
            describe_quota(quota),
            share(denied),
            if is_enforced {
                ""
            } else {
                ", were it enforced"
            },
            share(self.denied),
        );
        Some(Effect {
            kind: EffectKind::OverAtOnce,
            limit: self.limit.to_owned(),
            subject: Some(self.shown.to_owned()),
            text,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use weir_config::testing::Folder;

    const GATEWAY: &str = r#"
admin: {address: 127.0.0.1:9901}
upstreams: {app: {servers: ["http://127.0.0.1:3000"]}}
routes: [{name: all, match: {}, upstream: app, limits: [A, B, C, {limit: D, enforce: false}]}]
"#;

    const LIMITS: &str = "A: {per: address, burst: 10, count: 60, period: 1m}\n\
                          B: {per: address/24/48, burst: 10, count: 60, period: 1m}\n\
                          C: {per: address, in_flight: 5}\n\
                          D: {per: address, burst: 10, count: 60, period: 1h}\n";

    const OVERRIDES: &str = "- A: {burst: 900, count: 900, period: 1m, ids: [192.0.2.9]}\n";

    fn subject(limit: &str, subject: &str, requests: u64, denied: u64) -> Value {
        json!({
            "limit": limit, "subject": subject, "name": null, "key": format!("{limit}:{subject}"),
            "requests": requests, "denied": denied,
        })
    }

    #[test]
    fn no_more_is_ever_expected_to_pass_than_the_windows_of_that_time_hold() {
        let at = |seconds: u64| Timestamp::from_nanos((1_800_000_000 + seconds) * 1_000_000_000);
        let quota = |algorithm, period| {
            Quota::windowed(algorithm, 100, Duration::from_secs(period)).unwrap()
        };
        let fixed = |alignment| Algorithm::FixedWindow(alignment);
        let sliding = Algorithm::SlidingWindow {
            count_denied: false,
        };
        let (period, first) = (fixed(Alignment::Period), fixed(Alignment::FirstRequest));
        for (quota, seconds, now, passing) in [
            (
                Quota::new(10, 60, Duration::from_secs(60)).unwrap(),
                60,
                30,
                70,
            ),
            // A minute and an hour begin at 0.
            (quota(period, 60), 60, 30, 200),
            (quota(period, 3600), 60, 90, 100),
            (quota(period, 3600), 60, 30, 200),
            (quota(period, 40), 60, 70, 200),
            (quota(period, 40), 60, 90, 300),
            (quota(first, 3600), 60, 90, 200),
            (quota(sliding, 60), 60, 30, 100),
            (quota(sliding, 3600), 60, 30, 100),
            (quota(sliding, 40), 60, 30, 200),
        ] {
            let most = most_passing(quota, Nanos::from_secs(seconds), at(now));
            assert_eq!(most, passing, "{quota:?} at {now}");
        }
    }

    #[test]
    fn who_is_over_at_once_is_never_left_out_and_who_is_denied_now_is_no_news() {
        let folder = Folder::with(&[
            ("gateway.yaml", GATEWAY),
            ("limits/defaults.yaml", LIMITS),
            ("limits/overrides.yaml", OVERRIDES),
        ]);
        let minute = json!({"period": 60, "gateways": 3, "alone": null, "subjects": [
            // It is the first, and nothing tells that it is of this limit.
            subject("A", "#0123456789abcdef0123456789abcdef", 30, 0),
            subject("A", "192.0.2.1", 700, 20),
            subject("A", "192.0.2.2", 700, 690),
            subject("A", "192.0.2.3", 66, 0),
            subject("A", "192.0.2.4", 30, 0),
            subject("A", "192.0.2.9", 700, 0),
            subject("B", "192.0.2.1", 700, 0),
            subject("C", "192.0.2.1", 700, 0),
            subject("D", "192.0.2.1", 15, 0),
            subject("Old", "192.0.2.1", 15, 0),
        ]});
        let hour = json!({"period": 3600, "gateways": 3, "alone": null, "subjects": [
            subject("D", "192.0.2.1", 700, 0),
        ]});
        let check = LiveCheck::new(&folder.settings(), &[minute, hour], Timestamp::default());
        assert_eq!((check.gateways, check.subjects), (3, 10));
        assert!(check.is_anybody_over());
        let shown: Vec<_> = check
            .effects
            .iter()
            .map(|effect| {
                let subject = effect.subject.as_deref().unwrap_or("-");
                format!(
                    "{:?} {} {subject}: {}",
                    effect.kind, effect.limit, effect.text
                )
            })
            .collect();
        insta::assert_snapshot!(shown.join("\n"), @r"
        OverAtOnce A 192.0.2.1: sent 700 requests in the last 1m; 10 at once, then one each 1s, would deny at least 90% of them, and 3% are denied now
        OverAtOnce D 192.0.2.1: sent 15 requests in the last 1m; 10 at once, then one each 1m, would deny at least 27% of them, were it enforced, and 0% are denied now
        Unknown B -: it counts by something else now, so buckets of 1 subject begin full
        Unknown C -: requests in flight of 1 subject are not known
        NotLimited Old -: no route uses it any more; it counts 1 subject now
        ");
    }
}
