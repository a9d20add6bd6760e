//! What a route does with requests that its limits let through, beside forwarding: it rewrites the
//! path, edits headers, or responds itself.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, Uri};
use http_body::Body;
use weir_http::request::HttpRequest;
use weir_rules::{PathPrefix, with_one_slash};

use super::redirect::Redirect;
use super::steps::{Cors, HeaderEdits};
use super::{RequestHead, ResponseBody};

/// Tells apps the prefix that was stripped from a path. The layer `Forwarded` removes the header
/// from requests of clients.
const FORWARDED_PREFIX: HeaderName = HeaderName::from_static("x-forwarded-prefix");

/// The actions of a route beside forwarding.
#[derive(Clone, Debug, Default)]
pub struct RouteAction {
    /// What answers the preflights of pages of other origins in place of the app, if it does not.
    pub preflights: Option<Arc<Cors>>,
    /// The change of the path.
    pub rewrite: Option<PathRewrite>,
    /// Edits of the headers of requests to the upstream.
    pub request_headers: Option<Arc<HeaderEdits>>,
    /// Edits of the headers of responses.
    pub response_headers: Option<Arc<HeaderEdits>>,
    /// The response in place of an upstream's.
    pub response: Option<LocalResponse>,
}

/// A response that the configuration describes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalResponse {
    /// A redirect.
    Redirect(Redirect),
    /// The same response to all requests.
    Fixed(FixedResponse),
}

/// A response that is the same to all requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedResponse {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

/// A change of the beginning of paths. What follows, and the query, stay as they were sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathRewrite {
    /// The prefix to take off.
    pub strip_prefix: Option<PathPrefix>,
    /// The path in front of the rest, without a slash at its end.
    pub add_prefix: Option<Box<str>>,
}

impl RouteAction {
    /// Whether it leaves requests as they are.
    fn is_idle(&self) -> bool {
        self.preflights.is_none()
            && self.rewrite.is_none()
            && self.request_headers.is_none()
            && self.response.is_none()
    }

    /// Whether requests need an account: those that are forwarded do, for the log and for the
    /// choice of a server.
    pub(super) fn needs_account(&self) -> bool {
        let edits = self.response_headers.as_ref();
        let is_shown = edits.is_some_and(|edits| edits.shows_account());
        is_shown
            || match &self.response {
                None => true,
                Some(LocalResponse::Redirect(redirect)) => redirect.to().shows_account(),
                Some(LocalResponse::Fixed(_)) => false,
            }
    }

    /// The actions on requests of a route; `None` if they are only forwarded.
    pub(super) fn before_upstream(&self) -> Option<Arc<RequestAction>> {
        (!self.is_idle()).then(|| Arc::new(RequestAction(self.clone())))
    }
}

/// The actions on requests of a route before its upstream.
#[derive(Debug)]
pub(super) struct RequestAction(RouteAction);

impl RequestAction {
    /// Changes the request to the form that the upstream gets, or returns the response in its
    /// place. A request that `is_diverted` to another upstream gets its response there.
    pub(super) fn apply<Q: HttpRequest<Body: Body>, R>(
        &self,
        request: &mut Q,
        is_diverted: bool,
    ) -> Option<Box<Response<ResponseBody<R>>>> {
        let action = &self.0;
        if let Some(cors) = &action.preflights
            && let Some(response) = cors.respond(request)
        {
            return Some(Box::new(response));
        }
        match &action.response {
            Some(answer) if !is_diverted => {
                self.rewrite(request);
                Some(Box::new(answer.respond(request)))
            }
            _ => {
                // Values of headers are of the path as it was sent.
                let edits = action.request_headers.as_ref();
                let edits =
                    edits.map(|edits| edits.render(&RequestHead::new(request).attributes()));
                self.rewrite(request);
                if let Some(edits) = edits {
                    edits.apply_to_request(request.headers_mut());
                }
                None
            }
        }
    }

    fn rewrite<Q: HttpRequest>(&self, request: &mut Q) {
        let Some(rewrite) = &self.0.rewrite else {
            return;
        };
        let Some(uri) = rewrite.rewritten(request.uri()) else {
            return;
        };
        *request.uri_mut() = uri;
        let prefix = rewrite.strip_prefix.as_ref().map(PathPrefix::as_str);
        if let Some(prefix) = prefix.and_then(|prefix| HeaderValue::from_str(prefix).ok()) {
            request.headers_mut().append(FORWARDED_PREFIX, prefix);
        }
    }
}

impl LocalResponse {
    fn respond<Q: HttpRequest, R>(&self, request: &Q) -> Response<ResponseBody<R>> {
        match self {
            Self::Redirect(redirect) => {
                let head = RequestHead::new(request);
                ResponseBody::whole(redirect.respond(&head.attributes()))
            }
            Self::Fixed(fixed) => fixed.respond(),
        }
    }
}

impl FixedResponse {
    fn respond<R>(&self) -> Response<ResponseBody<R>> {
        let mut response = Response::new(ResponseBody::full(self.body.clone()));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers.clone();
        response
    }
}

impl PathRewrite {
    /// The request target with the rewritten path; `None` if it is not a path.
    pub fn rewritten(&self, uri: &Uri) -> Option<Uri> {
        let path = uri.path();
        let rest = match &self.strip_prefix {
            Some(prefix) => prefix.rest(path)?,
            None if path.starts_with('/') => with_one_slash(path),
            None => return None,
        };
        let mut target = String::with_capacity(path.len());
        target.push_str(self.add_prefix.as_deref().unwrap_or_default());
        target.push_str(&rest);
        if target.is_empty() {
            target.push('/');
        }
        if let Some(query) = uri.query() {
            target.push('?');
            target.push_str(query);
        }
        let mut parts = uri.clone().into_parts();
        parts.path_and_query = Some(PathAndQuery::try_from(target).ok()?);
        Uri::from_parts(parts).ok()
    }

    /// The change in words.
    pub fn description(&self) -> Cow<'static, str> {
        match (&self.strip_prefix, &self.add_prefix) {
            (Some(strip), Some(add)) => format!("{} becomes {add}", strip.as_str()).into(),
            (Some(strip), None) => format!("without {}", strip.as_str()).into(),
            (None, Some(add)) => format!("below {add}").into(),
            (None, None) => "as it is".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Request;
    use http_body_util::Full;

    use super::*;

    fn rewritten(strip: Option<&str>, add: Option<&str>, uri: &str) -> Option<String> {
        let rewrite = PathRewrite {
            strip_prefix: strip.map(|prefix| PathPrefix::parse(prefix).unwrap()),
            add_prefix: add.map(Into::into),
        };
        let uri = rewrite.rewritten(&uri.parse().unwrap())?;
        Some(uri.to_string())
    }

    #[test]
    fn a_prefix_is_replaced_and_all_else_stays() {
        for (strip, add, uri, expected) in [
            (Some("/api"), None, "/api/x%2Fy/?q=%20&r", "/x%2Fy/?q=%20&r"),
            (Some("/api"), None, "/api", "/"),
            (Some("/api"), None, "/api?q", "/?q"),
            (Some("/api"), None, "/api/?", "/?"),
            (Some("/api"), Some("/v2"), "/api", "/v2"),
            (Some("/api"), Some("/v2"), "/api/", "/v2/"),
            (Some("/api"), Some("/v2"), "/api//x?q", "/v2/x?q"),
            (None, Some("/v2"), "/", "/v2/"),
            (None, Some("/v2"), "//evil.example/x", "/v2/evil.example/x"),
            (
                Some("/api"),
                None,
                "https://a.example:81/api/x?q",
                "https://a.example:81/x?q",
            ),
            (
                Some("/api"),
                None,
                "https://a.example/api",
                "https://a.example/",
            ),
        ] {
            assert_eq!(
                rewritten(strip, add, uri).as_deref(),
                Some(expected),
                "{uri}"
            );
        }
        assert_eq!(rewritten(None, Some("/v2"), "*"), None);
    }

    fn fixed(action: RouteAction) -> Arc<RequestAction> {
        action.before_upstream().expect("something to do")
    }

    /// A banned client that is sent to another upstream must not get what others get.
    #[test]
    fn a_diverted_request_is_rewritten_and_not_answered() {
        let rewrite = PathRewrite {
            strip_prefix: Some(PathPrefix::parse("/api").unwrap()),
            add_prefix: None,
        };
        let action = fixed(RouteAction {
            rewrite: Some(rewrite),
            response: Some(LocalResponse::Fixed(FixedResponse {
                status: StatusCode::OK,
                headers: HeaderMap::new(),
                body: Bytes::new(),
            })),
            ..RouteAction::default()
        });
        let mut diverted = Request::get("/api/x")
            .body(Full::<Bytes>::default())
            .unwrap();
        let response = action.apply::<_, Full<Bytes>>(&mut diverted, true);
        assert!(response.is_none());
        assert_eq!(diverted.uri(), "/x");
        assert_eq!(diverted.headers()[FORWARDED_PREFIX], "/api");
    }

    #[test]
    fn a_route_that_only_forwards_has_nothing_to_do_before() {
        let response_headers = Some(Arc::default());
        let action = RouteAction {
            response_headers,
            ..RouteAction::default()
        };
        assert!(action.before_upstream().is_none());
    }
}
