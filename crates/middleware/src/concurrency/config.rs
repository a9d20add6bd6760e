//! The keys of `concurrency`.

use std::num::NonZeroU32;

use serde::Deserialize;
use weir_limit::ConcurrencyBounds;
use weir_rules::Enforcement;
use weir_yaml::{HumanDuration, Lowered, Lowering, Span, Spanned, WordOr};

use super::ConcurrencySettings;

const ADAPTIVE: &str = "adaptive";

/// The greatest limit that is found by itself, unless told otherwise.
const DEFAULT_MAX: u32 = 1000;

/// How many requests may be in flight to an upstream.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Concurrency"))]
#[serde(deny_unknown_fields)]
pub struct ConcurrencyKeys {
    /// How many requests each gateway may have in flight, until their responses begin; `adaptive`
    /// finds the number by the latency of responses. Type: `adaptive` or a number. Default:
    /// `adaptive`.
    limit: Option<Spanned<String>>,
    /// With `adaptive`: the limit is never below this. Default: `1`.
    min: Option<Spanned<NonZeroU32>>,
    /// With `adaptive`: the limit is never above this. Default: `1000`.
    max: Option<Spanned<NonZeroU32>>,
    /// How long a request may wait before it is shed; `0s` for not at all. By default, requests of
    /// priority `high` and `critical` may wait four times as long, while there are not more of them
    /// than fit. Default: half of the upstream's latency, at most 500 ms.
    max_wait: Option<Spanned<HumanDuration>>,
    /// Whether requests are shed, or [only logged and counted](#dry-runs). Type: as of
    /// [routes](#routes). Default: `true`.
    pub enforce: Option<Spanned<Enforcement>>,
}

impl ConcurrencyKeys {
    /// The limit of an upstream, where the gateway enforces no more than `of_all`.
    ///
    /// # Errors
    /// When the keys are in error, which is reported.
    pub fn lower(
        written: &Spanned<WordOr<Self>>,
        cx: &mut Lowering<'_>,
        of_all: Enforcement,
    ) -> Lowered<ConcurrencySettings> {
        let none = Self::default();
        let (limit, keys) = match &written.value {
            WordOr::Word(limit) => (Some((limit, written.span)), &none),
            WordOr::More(keys) => {
                let limit = keys.limit.as_ref();
                (limit.map(|limit| (&limit.value, limit.span)), keys)
            }
        };
        let bounds = match limit {
            Some((limit, span)) if limit != ADAPTIVE => fixed(cx, limit, span, keys)?,
            _ => adaptive(cx, written.span, keys)?,
        };
        Ok(ConcurrencySettings {
            bounds,
            max_wait: keys.max_wait.map(|wait| wait.value.0),
            enforcement: of_all.min(keys.enforce.map(|it| it.value).unwrap_or_default()),
        })
    }
}

fn fixed(
    cx: &mut Lowering<'_>,
    limit: &str,
    span: Span,
    keys: &ConcurrencyKeys,
) -> Lowered<ConcurrencyBounds> {
    let Ok(number) = limit.parse::<NonZeroU32>() else {
        let message = format!("`{limit}` is neither `{ADAPTIVE}` nor a number of requests");
        let error = cx.error(span, message);
        return Err(error.help("say `concurrency: adaptive`, or leave it out for no limit"));
    };
    if let Some(bound) = keys.min.as_ref().or(keys.max.as_ref()) {
        let error = cx.error(bound.span, "a limit that is a number does not adapt");
        return Err(error.help(format!("leave this out, or say `limit: {ADAPTIVE}`")));
    }
    Ok(ConcurrencyBounds {
        min: number,
        max: number,
    })
}

fn adaptive(
    cx: &mut Lowering<'_>,
    span: Span,
    keys: &ConcurrencyKeys,
) -> Lowered<ConcurrencyBounds> {
    let min = keys.min.as_ref().map_or(NonZeroU32::MIN, |min| min.value);
    let default = NonZeroU32::new(DEFAULT_MAX)
        .unwrap_or(NonZeroU32::MIN)
        .max(min);
    let max = keys.max.as_ref().map_or(default, |max| max.value);
    if max <= min {
        let span = keys.max.as_ref().map_or(span, |max| max.span);
        let error = cx.error(span, "the limit has no room to adapt");
        return Err(error.help("raise `max` above `min`, or say a number as the `limit`"));
    }
    Ok(ConcurrencyBounds { min, max })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weir_yaml::testing::lower;

    use super::*;

    fn read(keys: &str) -> Result<ConcurrencySettings, String> {
        lower(keys, |cx, written| {
            ConcurrencyKeys::lower(written, cx, Enforcement::FULL)
        })
    }

    #[test]
    fn a_limit_adapts_between_its_bounds_or_is_a_number() {
        let bounds = |written: &str| {
            let limited = read(written).unwrap();
            let (min, max) = (limited.bounds.min.get(), limited.bounds.max.get());
            (min, max, limited.max_wait)
        };
        assert_eq!(bounds("adaptive"), (1, 1000, None));
        assert_eq!(bounds("{min: 5, max: 50}"), (5, 50, None));
        assert_eq!(bounds("8"), (8, 8, None));
        let wait = Some(Duration::from_secs(1));
        assert_eq!(bounds("{limit: 8, max_wait: 1s}"), (8, 8, wait));
    }

    #[test]
    fn a_limit_that_cannot_hold_is_refused_with_what_to_write() {
        for (written, message, help) in [
            (
                "adaptve",
                "neither `adaptive` nor a number",
                "`concurrency: adaptive`",
            ),
            ("0", "neither `adaptive` nor a number", "leave it out"),
            ("{limit: 8, max: 9}", "does not adapt", "`limit: adaptive`"),
            ("{min: 9, max: 9}", "no room to adapt", "raise `max`"),
        ] {
            let found = read(written).unwrap_err();
            assert!(found.contains(message), "{written}: {found}");
            assert!(found.contains(help), "{written}: {found}");
        }
    }
}
