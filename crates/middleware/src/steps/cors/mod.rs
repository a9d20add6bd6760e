//! Requests of web pages across origins (the Fetch standard, section 3.3): which pages may read
//! responses, and which requests are preflights.
//!
//! On a route with `methods`, Weir answers preflights, and the app needs no CORS code. On other
//! routes, the app answers preflights and allows pages to read its responses; Weir does so for its
//! own responses: those of the origins that are listed, or of those that the app allowed itself.

#[cfg(feature = "config")]
mod config;
mod mirrored;
mod unreadable;

use std::sync::Arc;

use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_METHOD, ORIGIN,
};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use http_body::Body;
use weir_http::list;
use weir_http::problem::Problem;
use weir_http::request::HttpRequest;
use weir_rules::preflighted;

use crate::rate_limit::policy::{BodyBytes, LimitHook};
use crate::steps::response_step::{Outgoing, Phase, PreparedStep, ResponseStep};
use crate::{HeaderForm, HeaderForms, RequestHead, ResponseBody};
#[cfg(feature = "config")]
pub use config::CorsKeys;
use mirrored::Grant;
pub use mirrored::MirroredOrigins;
pub use unreadable::UnreadableDenials;

/// The longest host that DNS has (RFC 1035, section 2.3.4). A longer one would only make long headers.
const MAX_HOST_BYTES: usize = 253;

/// The rights of pages of other origins on a route.
#[derive(Clone, Debug)]
pub struct Cors {
    /// The origins whose pages may read responses.
    pub origins: Origins,
    /// Whether they may read the responses to requests with credentials.
    pub credentials: bool,
    /// Whether preflights count against the route's limits.
    pub counts_preflights: bool,
    /// The names of the headers that pages may read.
    pub exposed: HeaderValue,
    /// The response to preflights. Without it the app answers them, and allows pages to read its
    /// responses.
    pub preflights: Option<PreflightResponse>,
}

/// The response to a preflight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreflightResponse {
    /// The methods that pages may use.
    pub methods: HeaderValue,
    /// The headers that pages may send.
    pub headers: Option<HeaderValue>,
    /// Seconds for which browsers may cache the response.
    pub max_age: Option<HeaderValue>,
}

/// Origins of pages.
#[derive(Clone, Debug)]
pub enum Origins {
    /// All of them.
    Any,
    /// These.
    Listed(Vec<OriginPattern>),
    /// Those that the app's own responses allow.
    Mirrored(Arc<MirroredOrigins>),
}

/// An origin, or several of the same scheme.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OriginPattern {
    /// This origin, as browsers write it.
    Exact(HeaderValue),
    /// Origins of hosts below a domain, of any port, or both.
    Wildcard {
        /// The scheme, and what separates it from the host.
        scheme: Box<str>,
        /// The host, or with a leading dot, the end of hosts below a domain.
        host: Box<str>,
        /// The port with its colon, or an empty text; `None` for any port.
        port: Option<Box<str>>,
    },
}

impl OriginPattern {
    fn matches(&self, origin: &HeaderValue) -> bool {
        match self {
            Self::Exact(exact) => exact == origin,
            Self::Wildcard { scheme, host, port } => {
                let text = origin.to_str().ok();
                let text = text.and_then(|text| text.strip_prefix(&**scheme));
                text.is_some_and(|text| matches_wildcard(text, host, port.as_deref()))
            }
        }
    }
}

/// Whether an origin has this host and port. As the client writes the origin, and it goes into a
/// header, its host must consist of the characters of hosts, and it must not be longer than any.
fn matches_wildcard(text: &str, host: &str, port: Option<&str>) -> bool {
    let colon = text.rfind(':').unwrap_or(text.len());
    let (origin_host, origin_port) = text.split_at(colon);
    let digits = origin_port.strip_prefix(':').unwrap_or("0");
    let is_number = digits.len() <= 5 && digits.bytes().all(|byte| byte.is_ascii_digit());
    let is_port = is_number && digits.parse::<u16>().is_ok();
    let is_of_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let is_host = match host.starts_with('.') {
        true => {
            let below = origin_host.strip_suffix(host);
            below.is_some_and(|below| !below.is_empty() && below.bytes().all(is_of_host))
        }
        false => origin_host == host,
    };
    let is_short = origin_host.len() <= MAX_HOST_BYTES;
    is_host && is_short && is_port && port.is_none_or(|port| port == origin_port)
}

impl Cors {
    /// The names of the headers of limits in these forms, which pages need to read.
    pub fn exposed(forms: HeaderForms) -> String {
        let of_forms = forms.iter().flat_map(HeaderForm::fields);
        let mut names: Vec<&str> = vec!["Retry-After"];
        for name in of_forms {
            if !names.contains(name) {
                names.push(name);
            }
        }
        names.join(", ")
    }

    /// What pages of this origin are told; `None` if they may not read responses.
    fn grant(&self, origin: &HeaderValue) -> Option<Grant> {
        let credentials = self.credentials;
        match &self.origins {
            Origins::Any => Some(Grant {
                origin: HeaderValue::from_static("*"),
                credentials,
            }),
            Origins::Listed(listed) => {
                let is_listed = listed.iter().any(|pattern| pattern.matches(origin));
                is_listed.then(|| Grant {
                    origin: origin.clone(),
                    credentials,
                })
            }
            Origins::Mirrored(mirrored) => mirrored.grant(origin),
        }
    }

    /// Whether limits exempt a request, as an uncounted preflight of an allowed page.
    fn exempts(
        &self,
        method: &Method,
        headers: &HeaderMap,
        body_bytes: impl FnOnce() -> Option<u64>,
    ) -> bool {
        let Some(origin) = preflight_origin(method, headers, body_bytes) else {
            return false;
        };
        !self.counts_preflights
            && match &self.origins {
                Origins::Mirrored(mirrored) => mirrored.admits_preflight(origin),
                _ => self.grant(origin).is_some(),
            }
    }

    /// Whether limits leave alone what a request lacks, as a preflight never has it. Which origins
    /// the app allows is known only once preflights have come to it.
    fn excuses(
        &self,
        method: &Method,
        headers: &HeaderMap,
        body_bytes: impl FnOnce() -> Option<u64>,
    ) -> bool {
        match &self.origins {
            Origins::Mirrored(mirrored) => preflight_origin(method, headers, body_bytes)
                .is_some_and(|origin| mirrored.excuses_preflight(origin)),
            _ => self.is_preflight(method, headers, body_bytes),
        }
    }

    /// Whether a request is a preflight of an allowed page, without a body.
    fn is_preflight(
        &self,
        method: &Method,
        headers: &HeaderMap,
        body_bytes: impl FnOnce() -> Option<u64>,
    ) -> bool {
        let origin = preflight_origin(method, headers, body_bytes);
        origin.is_some_and(|origin| self.grant(origin).is_some())
    }

    /// Whether Weir answers preflights, rather than the app.
    pub fn answers_preflights(&self) -> bool {
        self.preflights.is_some()
    }

    /// The response to a preflight. `None` for other requests, and if the app answers.
    pub(crate) fn respond<Q: HttpRequest<Body: Body>, R>(
        &self,
        request: &Q,
    ) -> Option<Response<ResponseBody<R>>> {
        let preflights = self.preflights.as_ref()?;
        let headers = request.headers();
        if preflighted(request.method(), headers).is_none() {
            let is_options = request.method() == Method::OPTIONS && headers.contains_key(ORIGIN);
            let refused = is_options && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
            let detail = "Access-Control-Request-Method must be a method.";
            let problem = Problem::new(StatusCode::BAD_REQUEST, detail);
            return refused.then(|| ResponseBody::problem(problem));
        }
        if !request.body().is_end_stream() {
            return None;
        }
        if !self.is_preflight(request.method(), headers, || Some(0)) {
            let detail = "Pages of this origin may not send requests here.";
            return Some(ResponseBody::problem(Problem::new(
                StatusCode::FORBIDDEN,
                detail,
            )));
        }
        let mut response = Response::new(ResponseBody::full(Bytes::new()));
        *response.status_mut() = StatusCode::NO_CONTENT;
        let headers = response.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, preflights.methods.clone());
        if let Some(names) = &preflights.headers {
            headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
        }
        if let Some(seconds) = &preflights.max_age {
            headers.insert(ACCESS_CONTROL_MAX_AGE, seconds.clone());
        }
        Some(response)
    }

    /// Allows pages of this origin to read a response, if they may.
    fn allow(&self, origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
        let grant = origin.and_then(|origin| self.grant(origin));
        let is_for_all = grant.as_ref().is_some_and(|grant| grant.origin == "*");
        if !is_for_all && !matches!(self.origins, Origins::Any) {
            // A cache must not serve one page the response for another.
            list::vary_by(headers, &ORIGIN);
        }
        let Some(grant) = grant else {
            return;
        };
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, grant.origin);
        if grant.credentials {
            let value = HeaderValue::from_static("true");
            headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, value);
        }
        self.expose(headers);
    }

    /// Allows pages that may read a response to read the headers that Weir added.
    fn expose(&self, headers: &mut HeaderMap) {
        if headers.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN) {
            headers.append(ACCESS_CONTROL_EXPOSE_HEADERS, self.exposed.clone());
        }
    }
}

/// The origin of a request's page. `None` for several, as an app might read the other one.
fn origin(headers: &HeaderMap) -> Option<&HeaderValue> {
    let mut lines = headers.get_all(ORIGIN).iter();
    lines.next().filter(|_| lines.next().is_none())
}

/// The origin of a preflight without a body; `None` for other requests.
fn preflight_origin<'h>(
    method: &Method,
    headers: &'h HeaderMap,
    body_bytes: impl FnOnce() -> Option<u64>,
) -> Option<&'h HeaderValue> {
    preflighted(method, headers)?;
    let origin = origin(headers)?;
    (body_bytes() == Some(0)).then_some(origin)
}

impl LimitHook for Cors {
    fn exempts(&self, method: &Method, headers: &HeaderMap, body_bytes: BodyBytes<'_>) -> bool {
        self.exempts(method, headers, body_bytes)
    }

    /// A browser sends no credentials with its preflights.
    fn excuses(&self, method: &Method, headers: &HeaderMap, body_bytes: BodyBytes<'_>) -> bool {
        self.excuses(method, headers, body_bytes)
    }

    fn caveat(
        &self,
        method: &Method,
        headers: &HeaderMap,
        body_bytes: BodyBytes<'_>,
    ) -> Option<&'static str> {
        let is_mirrored = matches!(self.origins, Origins::Mirrored(_)) && !self.counts_preflights;
        (is_mirrored && preflight_origin(method, headers, body_bytes).is_some()).then_some(
            "limits leave this preflight alone once the app has let a page of its origin read a response",
        )
    }

    fn limits_shown(&self, headers: &mut HeaderMap) {
        self.expose(headers);
    }
}

impl ResponseStep for Arc<Cors> {
    fn phase(&self) -> Phase {
        Phase::OwnFields
    }

    fn prepare(&self, request: &RequestHead<'_>) -> Option<Box<dyn PreparedStep>> {
        let concerned = CorsRequest::new(self, request.headers)?;
        Some(Box::new(concerned))
    }

    fn is_for_decisions(&self) -> bool {
        true
    }
}

impl PreparedStep for CorsRequest {
    fn apply(self: Box<Self>, response: &mut Outgoing) {
        self.learn(response);
        let is_made = response.is_made();
        self.share(is_made, response.head.headers_mut());
    }
}

/// A request on a route that has CORS configured.
#[derive(Debug)]
struct CorsRequest {
    cors: Arc<Cors>,
    origin: Option<HeaderValue>,
}

impl CorsRequest {
    /// `None` if the response needs no headers about CORS.
    fn new(cors: &Arc<Cors>, headers: &HeaderMap) -> Option<Self> {
        let concerns_all = cors.answers_preflights();
        (concerns_all || headers.contains_key(ORIGIN)).then(|| Self {
            cors: Arc::clone(cors),
            origin: origin(headers).cloned(),
        })
    }

    /// Learns who may read a response of the app; others may send back any origin.
    fn learn(&self, response: &Outgoing) {
        if let Origins::Mirrored(mirrored) = &self.cors.origins
            && let Some(origin) = &self.origin
            && response.is_of_app()
        {
            mirrored.learn(origin, response.head.headers());
        }
    }

    /// Allows the page to read a response: one that `is_made` by Weir, or any on a route where Weir
    /// does all CORS.
    fn share(&self, is_made: bool, headers: &mut HeaderMap) {
        let is_told = headers.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN);
        match (is_made, self.cors.answers_preflights()) {
            (false, false) => return,
            // Configured headers of a rejection take precedence.
            (true, _) if is_told => return,
            (true, _) => {}
            (false, true) => {
                headers.remove(ACCESS_CONTROL_ALLOW_ORIGIN);
                headers.remove(ACCESS_CONTROL_ALLOW_CREDENTIALS);
                headers.remove(ACCESS_CONTROL_EXPOSE_HEADERS);
            }
        }
        self.cors.allow(self.origin.as_ref(), headers);
    }
}

#[cfg(test)]
mod tests {
    use http::Request;
    use http::header::VARY;
    use http_body_util::Full;

    use super::*;

    const PAGE: HeaderValue = HeaderValue::from_static("https://app.example.com");
    const OTHER: HeaderValue = HeaderValue::from_static("https://evil.example");

    fn cors(origins: Origins) -> Cors {
        Cors {
            origins,
            credentials: false,
            counts_preflights: false,
            exposed: Cors::exposed(HeaderForms::default()).parse().unwrap(),
            preflights: None,
        }
    }

    fn listed() -> Cors {
        cors(Origins::Listed(vec![OriginPattern::Exact(PAGE)]))
    }

    fn answering(origins: Origins) -> Cors {
        let preflights = PreflightResponse {
            methods: HeaderValue::from_static("GET, PUT"),
            headers: Some(HeaderValue::from_static("x-account")),
            max_age: Some(HeaderValue::from_static("600")),
        };
        Cors {
            preflights: Some(preflights),
            ..cors(origins)
        }
    }

    fn preflight(body: &'static str) -> Request<Full<Bytes>> {
        let request = Request::options("/").header(ORIGIN, PAGE);
        let request = request.header(ACCESS_CONTROL_REQUEST_METHOD, "POST");
        request.body(Full::from(body)).unwrap()
    }

    fn exempts(cors: &Cors, request: &Request<Full<Bytes>>) -> bool {
        let size = || request.body().size_hint().exact();
        cors.exempts(request.method(), request.headers(), size)
    }

    #[test]
    fn limits_leave_preflights_of_allowed_pages_alone_and_nothing_that_resembles_them() {
        assert!(exempts(&listed(), &preflight("")));
        assert!(!exempts(&listed(), &preflight("a body")));
        let counting = Cors {
            counts_preflights: true,
            ..listed()
        };
        let counted = preflight("");
        let (method, headers) = (counted.method(), counted.headers());
        assert!(
            !exempts(&counting, &counted) && counting.is_preflight(method, headers, || Some(0))
        );
        let altered = |alter: fn(&mut Request<Full<Bytes>>)| {
            let mut request = preflight("");
            alter(&mut request);
            exempts(&listed(), &request)
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
        cors.allow(Some(origin), &mut headers);
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

    #[test]
    fn a_wildcard_stands_for_hosts_below_a_domain_or_for_any_port() {
        let pattern = |host: &str, port: Option<&str>| OriginPattern::Wildcard {
            scheme: "https://".into(),
            host: host.into(),
            port: port.map(Into::into),
        };
        let matches = |pattern: &OriginPattern, origin: &str| {
            pattern.matches(&HeaderValue::from_str(origin).unwrap())
        };
        let below = pattern(".example.com", Some(""));
        for origin in ["https://a.example.com", "https://a-1.b.example.com"] {
            assert!(matches(&below, origin), "{origin}");
        }
        for origin in [
            "https://example.com",
            "https://.example.com",
            "http://a.example.com",
            "https://aexample.com",
            "https://a.example.com.evil.example",
            "https://evil.example/.example.com",
            "https://evil.example#.example.com",
            "https://evil.example:1@a.example.com",
            "https://a.example.com:8443",
            "https://a.example.com:",
            "https://a.example.com:443",
            "null",
            "",
        ] {
            assert!(!matches(&below, origin), "{origin}");
        }
        // The longest host that DNS has, and a longer one.
        let host =
            |bytes: usize| format!("{}.example.com", "a".repeat(bytes - ".example.com".len()));
        assert!(matches(&below, &format!("https://{}", host(253))));
        assert!(!matches(&below, &format!("https://{}", host(254))));
        let any_port = pattern("localhost", None);
        for origin in ["https://localhost", "https://localhost:3000"] {
            assert!(matches(&any_port, origin), "{origin}");
        }
        for origin in [
            "https://localhost:",
            "https://localhost:x",
            "https://localhost:1:2",
            "https://localhost:65536",
            "https://localhost:00000000000000000000000000000080",
        ] {
            assert!(!matches(&any_port, origin), "{origin}");
        }
        let port = pattern(".example.com", Some(":8443"));
        assert!(matches(&port, "https://a.example.com:8443"));
        assert!(!matches(&port, "https://a.example.com"));
    }

    fn answer(cors: &Cors, request: &Request<Full<Bytes>>) -> Option<(u16, HeaderMap)> {
        let answer = cors.respond::<_, Full<Bytes>>(request)?;
        Some((answer.status().as_u16(), answer.headers().clone()))
    }

    #[test]
    fn preflights_of_allowed_pages_are_answered_and_those_of_others_refused() {
        let cors = answering(Origins::Listed(vec![OriginPattern::Exact(PAGE)]));
        let (status, headers) = answer(&cors, &preflight("")).unwrap();
        assert_eq!(status, 204);
        assert_eq!(headers[ACCESS_CONTROL_ALLOW_METHODS], "GET, PUT");
        assert_eq!(headers[ACCESS_CONTROL_ALLOW_HEADERS], "x-account");
        assert_eq!(headers[ACCESS_CONTROL_MAX_AGE], "600");
        let mut foreign = preflight("");
        foreign.headers_mut().insert(ORIGIN, OTHER);
        let (status, headers) = answer(&cors, &foreign).unwrap();
        assert_eq!(status, 403);
        assert!(!headers.contains_key(ACCESS_CONTROL_ALLOW_METHODS));
        // `P UT` would reach the app as any other request does.
        let mut malformed = preflight("");
        let asked = HeaderValue::from_static("P UT");
        malformed
            .headers_mut()
            .insert(ACCESS_CONTROL_REQUEST_METHOD, asked);
        assert_eq!(answer(&cors, &malformed).unwrap().0, 400);
        assert!(answer(&listed(), &malformed).is_none());
        // The app gets what is not a preflight, and all of them where it answers.
        let mut other = preflight("");
        *other.method_mut() = Method::GET;
        assert!(answer(&cors, &other).is_none() && answer(&cors, &preflight("body")).is_none());
        assert!(answer(&listed(), &preflight("")).is_none());
    }

    fn shared(cors: Cors, is_made: bool, origin: Option<HeaderValue>) -> Vec<String> {
        let page = origin.map(|origin| (ORIGIN, origin));
        let request = CorsRequest::new(&Arc::new(cors), &HeaderMap::from_iter(page));
        let mut headers = HeaderMap::from_iter([
            (VARY, HeaderValue::from_static("accept, Origin")),
            (ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*")),
            (
                ACCESS_CONTROL_EXPOSE_HEADERS,
                HeaderValue::from_static("x-app"),
            ),
        ]);
        if let Some(request) = request {
            request.share(is_made, &mut headers);
        }
        let lines = headers.iter();
        lines
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect()
    }

    /// Browsers refuse a response with two answers to who may read it.
    #[test]
    fn what_the_app_says_is_replaced_where_weir_answers_and_kept_where_the_app_does() {
        let vary = "vary: accept, Origin";
        let kept = [
            vary,
            "access-control-allow-origin: *",
            "access-control-expose-headers: x-app",
        ];
        assert_eq!(shared(listed(), false, Some(PAGE)), kept);
        let answering = || answering(Origins::Listed(vec![OriginPattern::Exact(PAGE)]));
        // The operator said so for this rejection.
        assert_eq!(shared(answering(), true, Some(PAGE)), kept);
        assert_eq!(shared(answering(), false, Some(OTHER)), [vary]);
        assert_eq!(shared(answering(), false, None), [vary]);
        let own = shared(answering(), false, Some(PAGE));
        assert!(own.contains(&"access-control-allow-origin: https://app.example.com".to_owned()));
        assert!(!own.concat().contains("x-app"), "{own:?}");
    }

    #[test]
    fn a_response_varies_by_origin_also_if_no_page_has_asked() {
        let cors = Arc::new(answering(Origins::Listed(vec![OriginPattern::Exact(PAGE)])));
        let mut headers = HeaderMap::new();
        let request = CorsRequest::new(&cors, &HeaderMap::new()).unwrap();
        request.share(false, &mut headers);
        assert_eq!(headers[VARY], "origin");
        assert_eq!(headers.len(), 1);
    }
}
