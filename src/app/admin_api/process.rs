//! The configuration of the process, the level of its log, and what describes this API.

use std::time::Duration;

use http::Method;
use serde::Deserialize;
use serde_json::Value;
use weir_config::FileSchemas;
use weir_console::query::parameters;
use weir_limit::time::{Clock, SystemClock, Timestamp};
use weir_logging::{LevelInForce, LogLevel};
use weir_server::RequestBody;
use weir_telemetry::audit;
use weir_yaml::HumanDuration;

use super::Api;
use super::authorization::Operator;
use super::endpoint::{Call, Endpoint, Reply, json_response};
use super::error::ApiError;
use super::request::{no_parameters, parse_body, read_body};
use super::responses::{self, Config, DateTime, RefusedConfig};
use crate::app::reloads::Snapshot;
use crate::app::schemas;

pub(super) const ENDPOINTS: &[Endpoint] = &[
    Endpoint::new("/v1/config", "GET, HEAD", |api, call| {
        Box::pin(async move { json_response(&config(&api.snapshot(), call.query())?) })
    }),
    Endpoint::new("/v1/log-level", "GET, HEAD, PUT, DELETE", |api, call| {
        Box::pin(show_log_level(api, call))
    }),
    Endpoint::new("/v1/openapi.json", "GET, HEAD", |_, call| {
        Box::pin(async move {
            no_parameters(call.query())?;
            json_response(&document())
        })
    }),
];

const OPENAPI: &str = include_str!("../../../docs/openapi.json");

/// docs/openapi.json, which tests derive from the types of answers.
pub(super) fn document() -> Value {
    serde_json::from_str(OPENAPI).unwrap_or_default()
}

/// An example of the body that sets the level of the log.
const LEVEL_FORM: &str = "{\"level\": \"debug\", \"for\": \"10m\"}";

/// The configuration in force, without its secrets.
fn config(snapshot: &Snapshot, query: Option<&str>) -> Result<Config, ApiError> {
    let with_defaults = with_defaults(query)?;
    let [gateway, defaults, overrides] = [schemas::GATEWAY, schemas::DEFAULTS, schemas::OVERRIDES]
        .map(|schema| serde_json::from_str(schema).unwrap_or_default());
    let file_schemas = FileSchemas {
        gateway: &gateway,
        defaults: &defaults,
        overrides: &overrides,
    };
    let refused = snapshot.refused.lock().clone();
    Ok(Config {
        loaded_at: DateTime(snapshot.settings.loaded_at),
        files: snapshot
            .settings
            .to_json(with_defaults.then_some(file_schemas)),
        restart_keys: file_schemas.restart_keys(),
        warnings: snapshot.settings.warnings.lines().collect(),
        refused: refused.map(|refused| RefusedConfig {
            at: DateTime(refused.at),
            errors: refused.errors,
        }),
    })
}

fn with_defaults(query: Option<&str>) -> Result<bool, ApiError> {
    let mut with_defaults = false;
    for (pair, (name, value)) in parameters(query) {
        with_defaults = match (name, &*value) {
            ("defaults", "true") => true,
            _ => return Err(ApiError::parameter(pair, "there is defaults=true alone")),
        };
    }
    Ok(with_defaults)
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct Setting {
    /// A level, or such as `info,weir::proxy=debug`.
    level: String,
    /// A duration such as `10m`.
    #[serde(rename = "for")]
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    length: Option<HumanDuration>,
}

async fn show_log_level(api: &Api, call: Call<'_>) -> Reply {
    no_parameters(call.query())?;
    let level = log_level(&api.log_level, &call.head.method, call.body, call.operator);
    json_response(&level.await?)
}

/// Shows the level of the log, after it is set by `PUT`, or restored by `DELETE`.
async fn log_level(
    levels: &LogLevel,
    method: &Method,
    body: RequestBody,
    operator: &Operator,
) -> Result<responses::LogLevel, ApiError> {
    let by = operator.name();
    match *method {
        Method::PUT => set(levels, &read_body(body, LEVEL_FORM).await?, by)?,
        Method::DELETE => {
            levels.restore(None);
            audit::log_level_set(by, levels.configured(), None);
        }
        _ => {}
    }
    let set = levels.in_force();
    let until = set.as_ref().and_then(|set| set.until);
    let level = set.map_or_else(|| levels.configured().to_owned(), |set| set.level);
    Ok(responses::LogLevel {
        level,
        configured: levels.configured().to_owned(),
        until: until.map(date_time),
    })
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
    let logged = until.map(|until| date_time(until).to_string());
    audit::log_level_set(by, &setting.level, logged.as_deref());
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

fn date_time(seconds: u64) -> DateTime {
    DateTime(Timestamp::from_nanos(seconds.saturating_mul(1_000_000_000)))
}
