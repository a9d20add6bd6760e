//! What the process runs with: its configuration, and the level of its log.

use std::time::Duration;

use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use super::authorization::Operator;
use super::error::ApiError;
use super::request::{parse_body, read_body};
use crate::app::reloads::Snapshot;
use crate::config::{HumanDuration, Until};
use crate::server::RequestBody;
use crate::telemetry::{LevelInForce, LogLevel, LogLevelSet};
use crate::time::{Clock, SystemClock, Timestamp};

/// An example of the body that sets the level of the log.
const LEVEL_FORM: &str = "{\"level\": \"debug\", \"for\": \"10m\"}";

/// The configuration in force, without its secrets.
pub(super) fn config(snapshot: &Snapshot) -> Value {
    let refused = snapshot.refused.lock().clone();
    json!({
        "loaded_at": Until(snapshot.settings.loaded_at).to_string(),
        "files": snapshot.settings.to_json(),
        "warnings": snapshot.settings.warnings.lines().collect::<Vec<_>>(),
        "refused": refused.map(|refused| json!({
            "at": Until(refused.at).to_string(),
            "errors": refused.errors,
        })),
    })
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Setting {
    level: String,
    #[serde(rename = "for")]
    length: Option<HumanDuration>,
}

/// Shows the level of the log, after it is set by `PUT`, or restored by `DELETE`.
pub(super) async fn log_level(
    levels: &LogLevel,
    method: &Method,
    body: RequestBody,
    operator: &Operator,
) -> Result<Value, ApiError> {
    let by = operator.name();
    match *method {
        Method::PUT => set(levels, &read_body(body, LEVEL_FORM).await?, by)?,
        Method::DELETE => {
            levels.restore(None);
            LogLevelSet {
                level: levels.configured(),
                until: None,
                by,
            }
            .emit();
        }
        _ => {}
    }
    let set = levels.in_force();
    let until = set.as_ref().and_then(|set| set.until);
    Ok(json!({
        "level": set.as_ref().map_or(levels.configured(), |set| &set.level),
        "configured": levels.configured(),
        "until": until.map(moment),
    }))
}

fn set(levels: &LogLevel, body: &[u8], by: &str) -> Result<(), ApiError> {
    let setting: Setting = parse_body(body, LEVEL_FORM)?;
    let length = setting.length.map(|HumanDuration(length)| length);
    let until = length.map(|length| (SystemClock.now() + length.into()).as_secs());
    let level = LevelInForce {
        level: setting.level.clone(),
        until,
    };
    let set = levels.set(level).map_err(|cause| ApiError::Body {
        form: LEVEL_FORM,
        cause: cause.to_string(),
    })?;
    LogLevelSet {
        level: &setting.level,
        until: until.map(moment).as_deref(),
        by,
    }
    .emit();
    if let Some(length) = length {
        restore_later(levels.clone(), set, length);
    }
    Ok(())
}

fn restore_later(levels: LogLevel, set: u64, length: Duration) {
    tokio::spawn(async move {
        tokio::time::sleep(length).await;
        levels.restore(Some(set));
    });
}

fn moment(seconds: u64) -> String {
    let nanos = seconds.saturating_mul(1_000_000_000);
    Until(Timestamp::from_nanos(nanos)).to_string()
}
