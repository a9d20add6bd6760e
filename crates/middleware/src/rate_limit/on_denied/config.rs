//! The keys of `on_denied` of a route, and what they come to in words.

use std::sync::Arc;

use http::StatusCode;
use serde::Deserialize;
use weir_rules::RouteMatcher;
use weir_yaml::{HumanDuration, Lowered, Lowering, Span, Spanned, WordOr};

use super::OnDenied;
use crate::RoutePolicy;
use crate::decoy::Decoys;
use crate::rate_limit::delay::{Delay, DelayKeys};
use crate::response_keys::RejectionKeys;

/// What a request that a limit denies gets.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "OnDenied"))]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the page of the reference describes each")]
pub enum OnDeniedKeys {
    Reject(Option<RejectionKeys>),
    Shadow(Spanned<String>),
    Delay(Spanned<WordOr<DelayKeys<Self>>>),
}

impl OnDeniedKeys {
    /// What a denied request gets, and how it waits before.
    pub fn lower(
        written: &Spanned<Self>,
        cx: &mut Lowering<'_>,
        decoys: &Decoys<'_>,
    ) -> (Lowered<OnDenied>, Lowered<Option<Arc<Delay>>>) {
        let Self::Delay(delay) = &written.value else {
            return (written.value.at_last(cx, decoys), Ok(None));
        };
        let (otherwise, delay) = DelayKeys::lower(delay, cx);
        let otherwise = match otherwise {
            Some(otherwise) => otherwise.value.at_last(cx, decoys),
            None => Ok(OnDenied::default()),
        };
        (otherwise, delay.map(|delay| Some(Arc::new(delay))))
    }

    /// What a request gets that is denied at last.
    fn at_last(&self, cx: &mut Lowering<'_>, decoys: &Decoys<'_>) -> Lowered<OnDenied> {
        match self {
            Self::Reject(None) => Ok(OnDenied::default()),
            Self::Reject(Some(keys)) => {
                let rejection = keys.rejection(cx, StatusCode::TOO_MANY_REQUESTS);
                rejection.map(OnDenied::Reject)
            }
            Self::Shadow(name) => decoys.of_route(cx, name).map(OnDenied::Shadow),
            Self::Delay(delay) => Err(cx
                .error(delay.span, "a request does not wait twice")
                .help("say `reject` or `shadow` here")),
        }
    }

    /// Notes the decoy that it names, so that it is not reported as unused.
    pub fn note_decoy(&self, decoys: &Decoys<'_>) {
        match self {
            Self::Reject(_) => {}
            Self::Shadow(name) => decoys.note(name),
            Self::Delay(delay) => {
                if let WordOr::More(delay) = &delay.value
                    && let Some(otherwise) = delay.otherwise.as_deref()
                {
                    otherwise.note_decoy(decoys);
                }
            }
        }
    }
}

impl OnDenied {
    /// Makes sure that a route captures what the answer uses.
    pub fn require_captures(
        &self,
        cx: &mut Lowering<'_>,
        matcher: Option<&RouteMatcher>,
        span: Span,
    ) {
        if let (Self::Shadow(shadow), Some(matcher)) = (self, matcher) {
            shadow.require_captures(cx, matcher, span);
        }
    }
}

impl<L> RoutePolicy<L> {
    /// What becomes of a request that a limit denies, in a few words for a list.
    pub fn denial_in_brief(&self) -> String {
        let denied = match &self.on_denied {
            OnDenied::Reject(rejection) => format!("rejects with {}", rejection.status.as_u16()),
            OnDenied::Shadow(shadow) => format!("shadow-bans with {}", shadow.decoy().name()),
        };
        match &self.delay {
            Some(delay) => {
                let longest = HumanDuration(delay.longest);
                format!("delays by up to {longest}, else {denied}")
            }
            None => denied,
        }
    }

    /// The same in full.
    pub fn denial_in_full(&self) -> String {
        let denied = match &self.on_denied {
            OnDenied::Reject(rejection) => rejection.to_string(),
            OnDenied::Shadow(shadow) => {
                format!("shadow ban: {}, nothing is forwarded", shadow.decoy())
            }
        };
        match &self.delay {
            Some(delay) => {
                let (longest, most) = (HumanDuration(delay.longest), delay.max_requests);
                format!(
                    "waits for its turn, for at most {longest} and beside {most} others; else {denied}"
                )
            }
            None => denied,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weir_yaml::testing::lower;

    use super::*;

    /// How long a request may wait, if it may, and the status that it gets at last.
    fn read(keys: &str) -> Result<(Option<Duration>, u16), String> {
        lower::<OnDeniedKeys, _>(keys, |cx, written| {
            let decoys = Decoys::default();
            let (on_denied, delay) = OnDeniedKeys::lower(written, cx, &decoys);
            let status = on_denied?.status().as_u16();
            Ok((delay?.map(|delay| delay.longest), status))
        })
    }

    #[test]
    fn a_request_waits_or_not_and_gets_a_status_at_last() {
        let second = Some(Duration::from_secs(1));
        assert_eq!(read("reject"), Ok((None, 429)));
        assert_eq!(read("{reject: {status: 503}}"), Ok((None, 503)));
        assert_eq!(read("{delay: 1s}"), Ok((second, 429)));
        let otherwise = "{delay: {up_to: 1s, otherwise: {reject: {status: 503}}}}";
        assert_eq!(read(otherwise), Ok((second, 503)));
    }

    #[test]
    fn a_wait_that_is_too_long_or_follows_another_is_refused() {
        for (keys, message) in [
            ("{delay: 3s}", "a delay is at most 2s"),
            ("{delay: {up_to: 3s}}", "a delay is at most 2s"),
            (
                "{delay: {up_to: 1s, otherwise: {delay: 1s}}}",
                "a request does not wait twice",
            ),
            (
                "{delay: {up_to: 1s, otherwise: {shadow: sent}}}",
                "unknown decoy \"sent\"",
            ),
        ] {
            let found = read(keys).unwrap_err();
            assert!(found.contains(message), "{keys}: {found}");
        }
    }
}
