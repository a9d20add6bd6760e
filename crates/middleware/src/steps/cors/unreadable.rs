//! Limits whose denials web pages cannot read, as the routes have no CORS and the pages are of
//! another origin than the gateway: a browser shows such a page an error of CORS in place of a 429.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::header::{HOST, HeaderName, UPGRADE};
use http::{HeaderMap, HeaderValue, Uri};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::origin;

const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// A limit is named for so long after it denied a page.
const NAMED_FOR: Duration = Duration::from_secs(600);

/// The limits of one configuration that denied pages of other origins lately.
#[derive(Debug, Default)]
pub struct UnreadableDenials(Mutex<BTreeMap<Arc<str>, Instant>>);

impl UnreadableDenials {
    /// Remembers the limit that denied this request on a route without CORS, if a page sent it.
    pub(crate) fn note(&self, limit: Arc<str>, uri: &Uri, headers: &HeaderMap) {
        if is_of_other_origin(uri, headers)
            && let Some(mut limits) = self.0.try_lock()
        {
            limits.insert(limit, Instant::now());
        }
    }

    /// The names of the limits, in their order.
    pub fn limits(&self) -> Vec<Arc<str>> {
        let mut limits = self.0.lock();
        limits.retain(|_, at| at.elapsed() < NAMED_FOR);
        limits.keys().cloned().collect()
    }
}

/// Whether a script of a page sent a request whose response it can read by CORS alone. Browsers that
/// do not say so themselves are known by an origin that is not the gateway's.
fn is_of_other_origin(uri: &Uri, headers: &HeaderMap) -> bool {
    let Some(origin) = origin(headers) else {
        return false;
    };
    if let Some(mode) = headers.get(SEC_FETCH_MODE) {
        let is_same = |site: &HeaderValue| site == "same-origin";
        return mode == "cors" && !headers.get(SEC_FETCH_SITE).is_some_and(is_same);
    }
    let host = headers.get(HOST).map(HeaderValue::as_bytes);
    let host = host.or_else(|| uri.authority().map(|host| host.as_str().as_bytes()));
    let is_own = |host| Some(host) == origin.to_str().ok().and_then(authority);
    !headers.contains_key(UPGRADE) && !host.is_some_and(is_own)
}

/// The host and port of an origin.
fn authority(origin: &str) -> Option<&[u8]> {
    origin.split_once("://").map(|(_, host)| host.as_bytes())
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn noted(headers: &[(&str, &str)]) -> bool {
        let mut request = Request::get("/x").header(HOST, "api.example.com");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(()).unwrap();
        let denials = UnreadableDenials::default();
        denials.note("L".into(), request.uri(), request.headers());
        denials.limits() == [Arc::<str>::from("L")]
    }

    #[test]
    fn requests_that_no_script_of_another_origin_sent_are_none_of_a_page() {
        let page = ("origin", "https://app.example.com");
        let own = ("origin", "https://api.example.com");
        assert!(noted(&[page]));
        assert!(noted(&[("origin", "null")]));
        assert!(!noted(&[]));
        assert!(!noted(&[own]));
        assert!(!noted(&[page, ("upgrade", "websocket")]));
        assert!(noted(&[page, ("sec-fetch-mode", "cors")]));
        let site = |site| noted(&[own, ("sec-fetch-mode", "cors"), ("sec-fetch-site", site)]);
        // A proxy in front may change the host, and the browser knows.
        assert!(site("cross-site") && site("same-site") && !site("same-origin"));
        assert!(!noted(&[page, ("sec-fetch-mode", "navigate")]));
        assert!(!noted(&[page, ("sec-fetch-mode", "websocket")]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_is_named_for_ten_minutes() {
        let denials = UnreadableDenials::default();
        let headers = HeaderMap::from_iter([(http::header::ORIGIN, "null".parse().unwrap())]);
        denials.note("L".into(), &Uri::from_static("/"), &headers);
        tokio::time::advance(NAMED_FOR - Duration::from_secs(1)).await;
        assert_eq!(denials.limits(), [Arc::<str>::from("L")]);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(denials.limits().is_empty());
    }
}
