//! Requests of web pages across origins (the Fetch standard, section 3.3): which pages may read the
//! responses that Weir makes itself, and which requests are preflights.

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS,
    ORIGIN, VARY,
};
use http::{HeaderMap, HeaderValue, Method, Request};
use http_body::Body;

use crate::middleware::HeaderForms;
use crate::rules::preflighted;

/// What pages of other origins may do on a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cors {
    /// The origins whose pages may read answers.
    pub origins: Origins,
    /// Whether they may read the answers to requests with credentials.
    pub credentials: bool,
    /// Whether preflights are held to the route's limits like all requests.
    pub counts_preflights: bool,
    /// The names of the headers that pages may read.
    pub exposed: HeaderValue,
}

/// Origins of pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origins {
    /// All of them.
    Any,
    /// These, as browsers write them.
    Listed(Vec<HeaderValue>),
}

impl Cors {
    /// The headers that a page must be allowed to read, where limits are shown in these forms.
    pub fn exposed(forms: HeaderForms) -> HeaderValue {
        let all = [
            (true, "Retry-After"),
            (forms.draft, "RateLimit-Policy, RateLimit"),
            (
                forms.draft_03,
                "RateLimit-Limit, RateLimit-Remaining, RateLimit-Reset",
            ),
            (
                forms.x_ratelimit,
                "X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset",
            ),
        ];
        let names = all.iter().filter(|(on, _)| *on).map(|(_, names)| *names);
        let names: Vec<&str> = names.collect();
        HeaderValue::from_str(&names.join(", ")).unwrap_or(HeaderValue::from_static("*"))
    }

    fn allows(&self, origin: &HeaderValue) -> bool {
        match &self.origins {
            Origins::Any => true,
            Origins::Listed(listed) => listed.contains(origin),
        }
    }

    /// Whether limits leave a request alone: it is a preflight of an allowed page, and preflights
    /// are not counted. A request with a body is not a preflight.
    pub(super) fn exempts<B: Body>(&self, request: &Request<B>) -> bool {
        !self.counts_preflights && self.is_preflight(request)
    }

    /// The same of a request without a body.
    pub fn exempts_head(&self, method: &Method, headers: &HeaderMap) -> bool {
        !self.counts_preflights && self.is_head_of_preflight(method, headers)
    }

    /// Whether a request is a preflight of an allowed page.
    pub(super) fn is_preflight<B: Body>(&self, request: &Request<B>) -> bool {
        self.is_head_of_preflight(request.method(), request.headers())
            && request.body().is_end_stream()
    }

    fn is_head_of_preflight(&self, method: &Method, headers: &HeaderMap) -> bool {
        // An app might go by another of several origins.
        let mut origins = headers.get_all(ORIGIN).iter();
        let mut allowed = || match (origins.next(), origins.next()) {
            (Some(origin), None) => self.allows(origin),
            _ => false,
        };
        preflighted(method, headers).is_some() && allowed()
    }

    /// Lets pages of this origin read an answer that was made here, if they may.
    pub(super) fn allow(&self, origin: &HeaderValue, headers: &mut HeaderMap) {
        // The operator's own words on a rejection come first.
        if headers.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN) {
            return;
        }
        if self.origins != Origins::Any {
            // Caches must not show one page the answer that another may read.
            headers.append(VARY, HeaderValue::from_static("origin"));
        }
        if !self.allows(origin) {
            return;
        }
        let allowed = match self.origins {
            Origins::Any => HeaderValue::from_static("*"),
            Origins::Listed(_) => origin.clone(),
        };
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, allowed);
        if self.credentials {
            let value = HeaderValue::from_static("true");
            headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, value);
        }
        self.expose(headers);
    }

    /// Lets pages that may read a response read the headers that Weir added to it.
    pub(super) fn expose(&self, headers: &mut HeaderMap) {
        if headers.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN) {
            headers.append(ACCESS_CONTROL_EXPOSE_HEADERS, self.exposed.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use http::header::ACCESS_CONTROL_REQUEST_METHOD;
    use http_body_util::Full;

    use super::*;

    const PAGE: HeaderValue = HeaderValue::from_static("https://app.example.com");
    const OTHER: HeaderValue = HeaderValue::from_static("https://evil.example");

    fn cors(origins: Origins) -> Cors {
        Cors {
            origins,
            credentials: false,
            counts_preflights: false,
            exposed: Cors::exposed(HeaderForms::default()),
        }
    }

    fn listed() -> Cors {
        cors(Origins::Listed(vec![PAGE]))
    }

    fn preflight(body: &'static str) -> Request<Full<bytes::Bytes>> {
        let request = Request::options("/").header(ORIGIN, PAGE);
        let request = request.header(ACCESS_CONTROL_REQUEST_METHOD, "POST");
        request.body(Full::from(body)).unwrap()
    }

    #[test]
    fn limits_leave_preflights_of_allowed_pages_alone_and_nothing_that_resembles_them() {
        assert!(listed().exempts(&preflight("")));
        assert!(!listed().exempts(&preflight("a body")));
        let counting = Cors {
            counts_preflights: true,
            ..listed()
        };
        assert!(!counting.exempts(&preflight("")) && counting.is_preflight(&preflight("")));
        let altered = |alter: fn(&mut Request<Full<bytes::Bytes>>)| {
            let mut request = preflight("");
            alter(&mut request);
            listed().exempts(&request)
        };
        assert!(!altered(|request| *request.method_mut() = Method::GET));
        assert!(!altered(|request| drop(
            request.headers_mut().remove(ORIGIN)
        )));
        assert!(!altered(|request| drop(
            request.headers_mut().insert(ORIGIN, OTHER)
        )));
        // An app might go by the other one.
        assert!(!altered(|request| {
            request.headers_mut().append(ORIGIN, OTHER);
        }));
        assert!(!altered(|request| {
            request.headers_mut().remove(ACCESS_CONTROL_REQUEST_METHOD);
        }));
    }

    fn allowed_headers(cors: &Cors, origin: &HeaderValue) -> Vec<String> {
        let mut headers = HeaderMap::new();
        cors.allow(origin, &mut headers);
        let lines = headers.iter();
        lines
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect()
    }

    #[test]
    fn pages_of_allowed_origins_may_read_the_headers_of_limits_and_others_nothing() {
        let exposed = "access-control-expose-headers: Retry-After, RateLimit-Policy, RateLimit";
        let allowed = "access-control-allow-origin: https://app.example.com";
        assert_eq!(
            allowed_headers(&listed(), &PAGE),
            ["vary: origin", allowed, exposed]
        );
        assert_eq!(allowed_headers(&listed(), &OTHER), ["vary: origin"]);
        let any = cors(Origins::Any);
        assert_eq!(
            allowed_headers(&any, &OTHER),
            ["access-control-allow-origin: *", exposed]
        );
        let with_credentials = Cors {
            credentials: true,
            ..listed()
        };
        let line = "access-control-allow-credentials: true".to_owned();
        assert!(allowed_headers(&with_credentials, &PAGE).contains(&line));
    }

    #[test]
    fn what_an_upstream_does_not_show_a_page_stays_hidden() {
        let mut headers = HeaderMap::new();
        listed().expose(&mut headers);
        assert!(headers.is_empty());
    }
}
