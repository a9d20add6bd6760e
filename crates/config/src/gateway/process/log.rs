//! What is logged.

use std::num::NonZeroU32;

use serde::Deserialize;
use weir_logging::{LogFormat, LogSettings};
use weir_yaml::{Lowered, Lowering, Spanned, words};

use crate::foreign::{AccessFormat, Config, Parsed, Word};

#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Log {
    /// `auto` is `human` on a terminal and `json` elsewhere. Default: `auto`. Takes a
    /// restart.
    pub(crate) format: Option<Word<LogFormat>>,
    /// A line for every request, whatever the `level`. Default: `true`. Takes a restart.
    pub(crate) access: Option<Spanned<bool>>,
    /// The form of these lines, if it is another than `format`:
    /// [templates](LOGS.md#other-formats-of-the-access-log). Takes a restart.
    pub(crate) access_format: Option<Spanned<Parsed<AccessFormat>>>,
    /// `error`, `warn`, `info`, `debug`, `trace`, `off`, or a filter of `tracing` such as
    /// `info,weir::proxy=debug`. Type: filter. Default: `info`. Takes a
    /// restart.
    pub(crate) level: Option<Spanned<String>>,
    /// How the access log shows accounts: as a hash, or by the account's name, which may be a
    /// secret. Default: `hash`.
    pub(crate) account: Option<LogAccount>,
    /// Whether the access log shows queries, which may hold secrets, also those of a `Referer`.
    /// Default: `false`.
    pub(crate) query: Option<bool>,
    /// How many lines a second the access log has for requests that were [not let
    /// through](LOGS.md#the-access-log); the others are counted.
    pub(crate) denied_per_second: Option<NonZeroU32>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum LogAccount {
    Hash,
    Plain,
}

words!(LogFormat, by Config: "auto" => Self::Auto, "human" => Self::Text, "json" => Self::Json);

pub(super) fn log(cx: &mut Lowering<'_>, log: Option<&Log>) -> Lowered<LogSettings> {
    let mut settings = LogSettings::default();
    let Some(log) = log else {
        return Ok(settings);
    };
    if let Some(format) = log.format {
        settings.format = format.0;
    }
    if let Some(access) = &log.access {
        settings.access = access.value;
    }
    if let Some(format) = &log.access_format {
        if !settings.access {
            let error = cx.error(format.span, "`access: false` leaves nothing to format");
            return Err(error.help("remove one of the two"));
        }
        settings.access_format = Some(format.0.0.clone());
    }
    if let Some(level) = &log.level {
        settings.level.clone_from(&level.value);
        cx.ok(level.span, settings.check())?;
    }
    Ok(settings)
}
