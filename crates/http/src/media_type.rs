//! Which of two media types a client prefers, by its `Accept` header (RFC 9110, section 12.5.1), and
//! the weights of such headers.

use http::header::ACCEPT;
use http::{HeaderMap, HeaderName};

use crate::list;

/// Preferences are compared in thousandths, as they have three decimals at most.
const WHOLE: u16 = 1000;

/// Whether the client names `wanted`, and does not prefer `other`. A wildcard names nothing: a
/// client that accepts anything gets the default form.
pub fn prefers(headers: &HeaderMap, wanted: &str, other: &str) -> bool {
    // Most clients are not browsers.
    if headers.get(ACCEPT).is_none_or(|value| value == "*/*") {
        return false;
    }
    let Some(quality) = quality(headers, wanted).filter(|quality| *quality > 0) else {
        return false;
    };
    quality >= self::quality(headers, other).unwrap_or(0)
}

/// The weight of a media type, if the client names it.
fn quality(headers: &HeaderMap, media_type: &str) -> Option<u16> {
    weight_of(headers, &ACCEPT, |range| {
        range.eq_ignore_ascii_case(media_type)
    })
}

/// The weight of the first member of a header's list that is wanted, if there is one.
pub fn weight_of(
    headers: &HeaderMap,
    name: &HeaderName,
    is_wanted: impl Fn(&str) -> bool,
) -> Option<u16> {
    list::texts(headers, name).find_map(|member| {
        let mut parts = member.split(';').map(str::trim);
        let found = is_wanted(parts.next()?);
        found.then(|| parts.find_map(weight).unwrap_or(WHOLE))
    })
}

/// The weight of a parameter `q`, in thousandths; zero if it is malformed.
fn weight(parameter: &str) -> Option<u16> {
    let (name, value) = parameter.split_once('=')?;
    if !name.trim().eq_ignore_ascii_case("q") {
        return None;
    }
    let (whole, decimals) = value.trim().split_once('.').unwrap_or((value.trim(), ""));
    let thousandths = format!("{decimals:0<3}").parse::<u16>();
    match (whole.parse::<u16>(), thousandths) {
        (Ok(0), Ok(thousandths)) if decimals.len() <= 3 => Some(thousandths),
        (Ok(1), Ok(0)) => Some(WHOLE),
        _ => Some(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn html(accept: &'static str) -> bool {
        let headers = [(ACCEPT, http::HeaderValue::from_static(accept))];
        prefers(
            &headers.into_iter().collect(),
            "text/html",
            "application/json",
        )
    }

    #[test]
    fn what_is_named_and_not_wanted_less_is_preferred() {
        for browser in [
            "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
            "TEXT/HTML ; q=0.5 , application/json;q=0.25",
            "text/html;level=1;Q=1.0",
            "application/json;q=0.9, text/html",
        ] {
            assert!(html(browser), "{browser}");
        }
    }

    #[test]
    fn wildcards_zero_weights_and_what_is_no_number_prefer_nothing() {
        for other in [
            "",
            "*/*",
            "text/*",
            "application/json",
            "application/json, text/html;q=0.9",
            "text/html;q=0",
            "text/html;q=0.000",
            "text/html;q=7",
            "text/html;q=0.1234",
            "text/html;q=x",
            "text/htmlx",
        ] {
            assert!(!html(other), "{other}");
        }
        assert!(!prefers(&HeaderMap::new(), "text/html", "application/json"));
    }
}
