//! The keys of `hsts`.

use std::time::Duration;

use http::HeaderValue;
use serde::Deserialize;
use weir_yaml::{HumanDuration, Lowered, Lowering, Spanned};

use super::Hsts;

const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// What browsers are told about HTTPS.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Hsts"))]
#[serde(deny_unknown_fields)]
pub struct HstsKeys {
    /// For how long browsers remember it; `0s` makes them forget.
    max_age: Spanned<HumanDuration>,
    /// Whether it holds for all hosts below as well. Default: `false`.
    include_subdomains: Option<bool>,
    /// Whether browsers may put the host on their lists; needs a `max_age` of `365d` and
    /// `include_subdomains`. Default: `false`.
    preload: Option<Spanned<bool>>,
}

impl HstsKeys {
    /// The value of `Strict-Transport-Security` (RFC 6797).
    ///
    /// # Errors
    /// When the keys are in error, which is reported.
    pub fn lower(&self, cx: &mut Lowering<'_>) -> Lowered<Option<Hsts>> {
        let preload = self.preload(cx)?;
        let mut value = format!("max-age={}", self.max_age.value.0.as_secs());
        if self.include_subdomains == Some(true) {
            value.push_str("; includeSubDomains");
        }
        if preload {
            value.push_str("; preload");
        }
        Ok(HeaderValue::from_str(&value).ok().map(Hsts))
    }

    /// Browsers take no host into their lists that does not say the rest as well.
    fn preload(&self, cx: &mut Lowering<'_>) -> Lowered<bool> {
        let Some(preload) = self.preload.filter(|preload| preload.value) else {
            return Ok(false);
        };
        let is_enough = self.max_age.value.0 >= YEAR && self.include_subdomains == Some(true);
        if !is_enough {
            let message =
                "`preload` needs a `max_age` of at least 365d and `include_subdomains: true`";
            return Err(cx
                .error(preload.span, message)
                .help("say both, or leave `preload` out"));
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use weir_yaml::testing::lower;

    use super::*;

    fn read(keys: &str) -> Result<String, String> {
        let hsts = lower::<HstsKeys, _>(keys, |cx, written| written.lower(cx));
        hsts.map(|hsts| hsts.unwrap().0.to_str().unwrap().to_owned())
    }

    #[test]
    fn the_header_says_what_is_written() {
        assert_eq!(read("{max_age: 1d}").unwrap(), "max-age=86400");
        let all = read("{max_age: 365d, include_subdomains: true, preload: true}");
        assert_eq!(all.unwrap(), "max-age=31536000; includeSubDomains; preload");
    }

    #[test]
    fn preload_needs_what_browsers_ask_for() {
        for keys in [
            "{max_age: 364d, include_subdomains: true, preload: true}",
            "{max_age: 365d, preload: true}",
        ] {
            let found = read(keys).unwrap_err();
            assert!(found.contains("preload: `preload` needs"), "{found}");
        }
    }
}
