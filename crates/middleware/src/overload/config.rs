//! The keys of `overload`.

use std::time::Duration;

use serde::Deserialize;
use weir_rules::Enforcement;
use weir_yaml::{Lowered, Lowering, PositiveDuration, Spanned};

use super::OverloadSettings;

/// How late a worker may be where that is watched, unless told otherwise.
const DEFAULT_MAX_DELAY: Duration = Duration::from_millis(50);

/// Timers are late by up to a millisecond, and by more on a machine that does something else as
/// well.
const MIN_MAX_DELAY: Duration = Duration::from_millis(5);

/// Clients and proxies in front give up on requests that wait for longer.
const MAX_MAX_DELAY: Duration = Duration::from_secs(10);

/// When the gateway itself is overloaded.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Overload"))]
#[serde(deny_unknown_fields)]
pub struct OverloadKeys {
    /// How late a worker may be: how long requests may wait until it turns to them. From `5ms` to
    /// `10s`. Default: `50ms`.
    max_delay: Option<Spanned<PositiveDuration>>,
    /// Whether requests are shed, or [only logged and counted](#dry-runs). Type: as of
    /// [routes](#routes). Default: `true`.
    pub enforce: Option<Spanned<Enforcement>>,
}

impl OverloadKeys {
    /// The settings, where the gateway enforces no more than `of_all`.
    ///
    /// # Errors
    /// When the keys are in error, which is reported.
    pub fn lower(&self, cx: &mut Lowering<'_>, of_all: Enforcement) -> Lowered<OverloadSettings> {
        let refused = |delay: Duration| match delay {
            delay if delay < MIN_MAX_DELAY => Some((
                "timers are late by as much without any overload",
                "say `5ms` at least; `50ms` is the default",
            )),
            delay if delay > MAX_MAX_DELAY => Some((
                "clients give up before requests have waited that long, so nothing is shed in time",
                "say `10s` at most; `50ms` is the default",
            )),
            _ => None,
        };
        if let Some(delay) = &self.max_delay
            && let Some((message, help)) = refused(delay.value.0)
        {
            return Err(cx.error(delay.span, message).help(help));
        }
        let own = self.enforce.map(|it| it.value).unwrap_or_default();
        Ok(OverloadSettings {
            max_delay: self
                .max_delay
                .map_or(DEFAULT_MAX_DELAY, |delay| delay.value.0),
            enforcement: of_all.min(own),
        })
    }
}

#[cfg(test)]
mod tests {
    use weir_yaml::testing::lower;

    use super::*;

    fn settings(keys: &str) -> Result<OverloadSettings, String> {
        below(keys, Enforcement::FULL)
    }

    fn below(keys: &str, of_all: Enforcement) -> Result<OverloadSettings, String> {
        lower::<OverloadKeys, _>(keys, |cx, written| written.lower(cx, of_all))
    }

    #[test]
    fn a_worker_may_be_late_by_as_much_as_is_written() {
        let late = |keys: &str| settings(keys).unwrap().max_delay.as_millis();
        assert_eq!(late("{}"), 50);
        assert_eq!(late("{max_delay: 5ms}"), 5);
        assert_eq!(late("{max_delay: 10s}"), 10_000);
    }

    #[test]
    fn no_gateway_counts_as_overloaded_for_as_little_as_its_timers_are_late() {
        let found = settings("{max_delay: 4ms}").unwrap_err();
        assert!(found.contains("without any overload"), "{found}");
        assert!(found.contains("say `5ms` at least"), "{found}");
    }

    #[test]
    fn no_gateway_waits_until_its_clients_have_given_up_before_it_sheds() {
        let found = settings("{max_delay: 10001ms}").unwrap_err();
        assert!(
            found.contains("a.yaml:1:13: max_delay: clients give up before"),
            "{found}"
        );
        assert!(found.contains("say `10s` at most"), "{found}");
    }

    #[test]
    fn the_least_enforcement_holds() {
        let of = |text: &str| {
            let settings = below("{enforce: 20%}", text.parse().unwrap());
            settings.unwrap().enforcement
        };
        assert_eq!(of("true"), "20%".parse().unwrap());
        assert_eq!(of("false"), Enforcement::NONE);
    }
}
