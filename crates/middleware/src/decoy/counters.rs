//! Fields by which an app tells each client how much of a quota it has left, such as
//! `x-ratelimit-remaining`.
//!
//! The app does not count the requests of a shadow-banned client, and only the app knows how its
//! numbers go on. A number that stands still, or jumps, tells the client that it is banned. So no
//! client gets such a field on a route with a decoy. Weir adds its own fields later.

use http::{HeaderMap, HeaderName};
use smallvec::SmallVec;

use super::Shadow;

/// How the parts of such a field's name end.
const ENDS: [&str; 3] = ["ratelimit", "remaining", "quota"];

/// What is counted, and what is said of it: a name with a part of each is that of a counter. Alone
/// they are in other names as well, such as `x-memory-usage` and `x-request-id`.
const COUNTED: [&str; 8] = [
    "request", "requests", "call", "calls", "credit", "credits", "quota", "app",
];
const STATES: [&str; 3] = ["left", "usage", "used"];

/// Removes the app's counters from a real response, unless all decoys of the route are configured
/// to have the field.
pub(crate) fn withhold<'s>(
    headers: &mut HeaderMap,
    decoys: impl Iterator<Item = &'s Shadow> + Clone,
) {
    let counters = headers.keys().filter(|name| is_counter(name.as_str()));
    let mut counters: SmallVec<[HeaderName; 3]> = counters.cloned().collect();
    counters.retain(|name| !decoys.clone().all(|shadow| shadow.has_configured(name)));
    for name in counters {
        headers.remove(&name);
        if let Some(shadow) = decoys.clone().next() {
            shadow.withheld(name);
        }
    }
}

/// Whether a field of this name counts what a client has left.
pub fn is_counter(name: &str) -> bool {
    let parts = || name.split(['-', '_']);
    let has_one_of = |words: &[&str]| parts().any(|part| words.contains(&part));
    let mut before = "";
    let is_limit = parts().any(|part| {
        let is_limit = part.starts_with("limit") && matches!(before, "rate" | "call");
        before = part;
        is_limit || part.starts_with("ratelimit") || ENDS.iter().any(|end| part.ends_with(end))
    });
    is_limit || has_one_of(&COUNTED) && has_one_of(&STATES)
}

#[cfg(test)]
mod tests {
    use super::is_counter;

    #[test]
    fn the_counters_of_apps_are_known_by_their_names_and_other_fields_are_none() {
        for name in [
            "ratelimit",
            "ratelimit-policy",
            "ratelimit-remaining",
            "x-ratelimit-limit",
            "x-ratelimit-remaining-requests",
            "x-ratelimit-reset",
            "x-rate-limit-remaining",
            "x-rate-limits",
            "x-app-rate-limit-count",
            "x-shopify-shop-api-call-limit",
            "x-quota-used",
            "x-requests_remaining",
            "anthropic-ratelimit-tokens-remaining",
            "x-ratelimitreset",
            "x-ratelimitlimit",
            "x-requests-left",
            "x-calls-left",
            "x-app-usage",
            "x-credits-used",
        ] {
            assert!(is_counter(name), "{name}");
        }
        for name in [
            "content-length",
            "x-runtime",
            "x-limit",
            "x-rate",
            "cache-control",
            "x-request-id",
            "retry-after",
            "x-quotation",
            "x-memory-usage",
            "x-disk-used",
            "x-time-left",
            "x-app-version",
            "x-credits",
            "x-usage",
        ] {
            assert!(!is_counter(name), "{name}");
        }
    }
}
