//! The keys of `on_denied` of bans, and of the list of the blocked, and what they come to in words.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;
use weir_yaml::{HumanDuration, Lowered, Lowering, PositiveDuration, Span, Spanned};

use super::{Tarpit, Treatment};
use crate::Rejection;
use crate::decoy::Decoys;
use crate::response_keys::RejectionKeys;

/// How long requests are held by default: longer than most scanners wait.
const DEFAULT_HOLD: Duration = Duration::from_secs(30);

/// No client waits for longer.
const LONGEST_HOLD: Duration = Duration::from_secs(3600);

/// How many requests are held by default: each of them keeps a connection.
const DEFAULT_MOST: NonZeroU32 = NonZeroU32::new(1000).unwrap();

/// What a banned or blocked request gets.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Treatment"))]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the page of the reference describes each")]
pub enum TreatmentKeys {
    Reject(Option<RejectionKeys>),
    Shadow(Spanned<String>),
    Divert(Spanned<String>),
    Tarpit(Option<TarpitKeys>),
    Drop(Option<DropKeys>),
}

/// What is dropped beside requests.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Drop"))]
#[serde(deny_unknown_fields)]
pub struct DropKeys {
    /// With `auto`, whoever is dropped cannot connect again until the ban ends or is lifted: the
    /// kernel drops its SYN packets, or, where it may not be asked, its connections are closed when
    /// they are accepted; see [below](#connections-that-the-kernel-drops). Type: `auto` or `off`.
    /// Default: `off`.
    in_kernel: Option<Spanned<InKernel>>,
}

/// Whether the kernel may drop connections.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
enum InKernel {
    Auto,
    Off,
}

/// How requests are held.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Tarpit"))]
#[serde(deny_unknown_fields)]
pub struct TarpitKeys {
    /// How long a request is held, at most `1h`; a drain releases all of them. Default: `30s`.
    hold: Option<Spanned<PositiveDuration>>,
    /// How many requests all tarpits of a gateway hold together; any further request is answered at
    /// once. Default: `1000`.
    most: Option<Spanned<NonZeroU32>>,
}

/// The name of an upstream, if there is one of that name.
type FindUpstream<'f> = &'f dyn Fn(&mut Lowering<'_>, &Spanned<String>) -> Lowered<Arc<str>>;

impl TreatmentKeys {
    /// What banned or blocked clients get: by default an honest response of this status.
    ///
    /// # Errors
    /// When the keys are in error, which is reported.
    pub fn lower(
        written: Option<&Spanned<Self>>,
        cx: &mut Lowering<'_>,
        status: StatusCode,
        decoys: &Decoys<'_>,
        find_upstream: FindUpstream<'_>,
    ) -> Lowered<Treatment> {
        let honest = Rejection {
            status,
            ..Rejection::default()
        };
        match written.map(|written| &written.value) {
            None | Some(Self::Reject(None)) => Ok(Treatment::Reject(honest)),
            Some(Self::Reject(Some(keys))) => keys.rejection(cx, status).map(Treatment::Reject),
            Some(Self::Shadow(name)) => decoys.of_all_routes(cx, name).map(Treatment::Shadow),
            Some(Self::Divert(name)) => find_upstream(cx, name).map(Treatment::Divert),
            Some(Self::Tarpit(keys)) => {
                let keys = keys.as_ref();
                let most = keys.and_then(|keys| keys.most);
                Ok(Treatment::Tarpit(Tarpit {
                    hold: hold(cx, keys.and_then(|keys| keys.hold))?,
                    most: most.map_or(DEFAULT_MOST, |most| most.value),
                    rejection: honest,
                }))
            }
            Some(Self::Drop(keys)) => Ok(Treatment::Drop {
                in_kernel: keys.as_ref().and_then(DropKeys::in_kernel).is_some(),
            }),
        }
    }

    /// Where `in_kernel: auto` is written, if it is.
    pub fn in_kernel(&self) -> Option<Span> {
        match self {
            Self::Drop(keys) => keys.as_ref()?.in_kernel(),
            _ => None,
        }
    }

    /// Whether clients are asked to come again, by 429 or 503.
    pub fn asks_again(&self) -> bool {
        match self {
            Self::Reject(keys) => {
                let status = keys.as_ref().and_then(RejectionKeys::status);
                status.is_none_or(|status| matches!(status.as_u16(), 429 | 503))
            }
            _ => false,
        }
    }
}

impl Treatment {
    /// What the client gets, in words.
    pub fn describe(&self) -> String {
        match self {
            Self::Reject(rejection) => rejection.to_string(),
            Self::Shadow(decoy) => {
                format!("{decoy} wherever a route matches; nothing is forwarded")
            }
            Self::Divert(upstream) => format!("the answer of upstream {upstream}"),
            Self::Tarpit(tarpit) => {
                let hold = HumanDuration(tarpit.hold);
                format!("nothing for {hold}, and then {}", tarpit.rejection)
            }
            Self::Drop { in_kernel: false } => "no answer: the connection is closed".to_owned(),
            Self::Drop { in_kernel: true } => {
                "no answer: the connection is closed, and further ones are dropped by the kernel"
                    .to_owned()
            }
        }
    }
}

impl DropKeys {
    fn in_kernel(&self) -> Option<Span> {
        let written = self.in_kernel?;
        (written.value == InKernel::Auto).then_some(written.span)
    }
}

fn hold(cx: &mut Lowering<'_>, written: Option<Spanned<PositiveDuration>>) -> Lowered<Duration> {
    let Some(written) = written else {
        return Ok(DEFAULT_HOLD);
    };
    let hold = written.value.0;
    if hold > LONGEST_HOLD {
        let message = format!("no client waits for {}", HumanDuration(hold));
        cx.error(written.span, message)
            .help("a request is held for 1h at most");
    }
    Ok(hold)
}

#[cfg(test)]
mod tests {
    use weir_yaml::testing::lower;

    use super::*;

    fn read(keys: &str) -> Result<Treatment, String> {
        lower::<TreatmentKeys, _>(keys, |cx, written| {
            let find = |cx: &mut Lowering<'_>, name: &Spanned<String>| match name.as_str() {
                "trap" => Ok("trap".into()),
                _ => Err(cx.unknown("upstream", name, None, "")),
            };
            let decoys = Decoys::default();
            TreatmentKeys::lower(Some(written), cx, StatusCode::FORBIDDEN, &decoys, &find)
        })
    }

    #[test]
    fn keys_become_treatments_with_the_status_of_what_has_them() {
        let status = |keys: &str| match read(keys).unwrap() {
            Treatment::Reject(rejection) => rejection.status.as_u16(),
            Treatment::Tarpit(tarpit) => tarpit.rejection.status.as_u16(),
            other => panic!("{other:?}"),
        };
        assert_eq!(status("reject"), 403);
        assert_eq!(status("{reject: {status: 429}}"), 429);
        assert_eq!(status("{tarpit: {hold: 1m, most: 5}}"), 403);
        let Treatment::Divert(upstream) = read("{divert: trap}").unwrap() else {
            panic!("not diverted")
        };
        assert_eq!(&*upstream, "trap");
        for (keys, expected) in [("auto", true), ("off", false)] {
            let read = read(&format!("{{drop: {{in_kernel: {keys}}}}}")).unwrap();
            let is_as_written =
                matches!(read, Treatment::Drop { in_kernel } if in_kernel == expected);
            assert!(is_as_written, "{keys}: {read:?}");
        }
    }

    #[test]
    fn a_treatment_that_cannot_be_is_refused() {
        for (keys, message) in [
            ("{tarpit: {hold: 2h}}", "no client waits for 2h"),
            ("{divert: trapp}", "unknown upstream \"trapp\""),
            ("{shadow: sent}", "unknown decoy \"sent\""),
            (
                "{reject: {status: 204}}",
                "a response of status 204 has no body",
            ),
        ] {
            let found = read(keys).unwrap_err();
            assert!(found.contains(message), "{keys}: {found}");
        }
    }
}
