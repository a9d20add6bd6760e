//! The answers that Weir makes itself, as browsers want them: a page for people in place of a
//! problem document, and fields that let pages of other origins read them.
//!
//! Answers of upstreams are not touched, and neither are decoys, which have to look like those.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderValue, ORIGIN, RETRY_AFTER, VARY,
};
use http::{Extensions, Response, StatusCode};

use crate::accept::prefers;
use crate::middleware::route_state::Routed;
use crate::middleware::{Cors, ResponseBody};
use crate::problem::{MadeInOwnWords, MadeProblem};
use crate::rules::Statuses;

const HTML: &str = "text/html";
const PROBLEM: &str = "application/problem+json";

/// How answers that are made here look. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct OwnAnswers(Arc<Settings>);

#[derive(Debug, Default)]
struct Settings {
    pages: ErrorPages,
    /// Whether a route knows of other origins.
    knows_origins: bool,
}

/// Pages of the operator's for people, by status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorPages(Vec<(Statuses, Bytes)>);

impl FromIterator<(Statuses, Bytes)> for ErrorPages {
    /// Of several that fit a status, the one for the fewest statuses is shown.
    fn from_iter<I: IntoIterator<Item = (Statuses, Bytes)>>(pages: I) -> Self {
        let mut pages: Vec<_> = pages.into_iter().collect();
        pages.sort_by_key(|(statuses, _)| statuses.count());
        Self(pages)
    }
}

impl OwnAnswers {
    /// Pages for people, and whether there is a route that knows of other origins.
    pub fn new(pages: ErrorPages, knows_origins: bool) -> Self {
        Self(Arc::new(Settings {
            pages,
            knows_origins,
        }))
    }

    /// What an answer has to know of the request; nothing for most clients, which are no browsers.
    pub(super) fn asker(&self, headers: &HeaderMap, extensions: &Extensions) -> Option<Box<Asker>> {
        let is_person = prefers(headers, HTML, PROBLEM);
        let page = self.page_of_route(headers, extensions);
        (is_person || page.is_some()).then(|| {
            Box::new(Asker {
                answers: self.clone(),
                is_person,
                page,
            })
        })
    }

    fn page_of_route(&self, headers: &HeaderMap, extensions: &Extensions) -> Option<Page> {
        if !self.0.knows_origins {
            return None;
        }
        let origin = headers.get(ORIGIN)?.clone();
        let cors = extensions.get::<Routed>()?.route.cors()?.clone();
        Some(Page { cors, origin })
    }
}

/// Who waits for an answer.
#[derive(Debug)]
pub(super) struct Asker {
    answers: OwnAnswers,
    /// Whether it is somebody who reads pages.
    is_person: bool,
    /// The page that sent the request, where its route knows of other origins.
    page: Option<Page>,
}

/// A web page that sends requests.
#[derive(Debug)]
struct Page {
    cors: Arc<Cors>,
    origin: HeaderValue,
}

impl Asker {
    /// The answer as the client wants it, if it was made here.
    pub(super) fn suit<R>(
        &self,
        mut response: Response<ResponseBody<R>>,
    ) -> Response<ResponseBody<R>> {
        let extensions = response.extensions_mut();
        let is_problem = extensions.remove::<MadeProblem>().is_some();
        if !is_problem && extensions.remove::<MadeInOwnWords>().is_none() {
            return response;
        }
        if let Some(page) = &self.page {
            page.cors.allow(&page.origin, response.headers_mut());
        }
        if !is_problem {
            return response;
        }
        varies_by_accept(response.headers_mut());
        match self.is_person {
            true => self.answers.0.pages.replace(response),
            false => response,
        }
    }
}

/// The answer as programs want it that say nothing of pages: a problem document stays one, and says
/// that others get a page.
pub(super) fn suit_programs<R>(response: &mut Response<R>) {
    if is_cacheable(response) && response.extensions_mut().remove::<MadeProblem>().is_some() {
        varies_by_accept(response.headers_mut());
    }
}

/// Whether a cache may keep an answer that no upstream made: by its status (RFC 9110, section 15.1),
/// or because the operator says so.
fn is_cacheable<R>(response: &Response<R>) -> bool {
    let status = response.status();
    matches!(status.as_u16(), 404 | 405 | 410 | 414 | 501)
        || !status.is_success() && response.headers().contains_key(CACHE_CONTROL)
}

/// Caches must not show a program the page, or people the problem document.
fn varies_by_accept(headers: &mut HeaderMap) {
    headers.append(VARY, HeaderValue::from_static("accept"));
}

impl ErrorPages {
    fn replace<R>(&self, response: Response<ResponseBody<R>>) -> Response<ResponseBody<R>> {
        let (mut head, _) = response.into_parts();
        let page = self.page(head.status, head.headers.get(RETRY_AFTER));
        let content_type = HeaderValue::from_static("text/html; charset=utf-8");
        head.headers.insert(CONTENT_TYPE, content_type);
        Response::from_parts(head, ResponseBody::full(page))
    }

    fn page(&self, status: StatusCode, retry_after: Option<&HeaderValue>) -> Bytes {
        let mut own = self.0.iter();
        let own = own.find(|(statuses, _)| statuses.contains(status));
        own.map_or_else(|| plain_page(status, retry_after), |(_, page)| page.clone())
    }
}

/// A page that says no more than the status, and when to come back.
fn plain_page(status: StatusCode, retry_after: Option<&HeaderValue>) -> Bytes {
    let number = status.as_u16();
    let reason = status.canonical_reason().unwrap_or("Error");
    let seconds = retry_after.and_then(|it| it.to_str().ok()?.parse::<u64>().ok());
    let hint = seconds.map_or_else(String::new, |seconds| {
        let plural = if seconds == 1 { "" } else { "s" };
        format!("<p>Please try again in {seconds} second{plural}.</p>\n")
    });
    let page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>{number} {reason}</title>\n</head>\n<body>\n<h1>{number} {reason}</h1>\n{hint}\
         </body>\n</html>\n"
    );
    page.into()
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;

    #[test]
    fn no_problem_document_that_a_cache_may_keep_is_shown_to_people() {
        let varies = |status: u16, headers: &[(HeaderName, &'static str)]| {
            let mut response = Response::builder().status(status).body(()).unwrap();
            response.extensions_mut().insert(MadeProblem);
            for (name, value) in headers {
                let value = HeaderValue::from_static(value);
                response.headers_mut().insert(name, value);
            }
            suit_programs(&mut response);
            response.headers().contains_key(VARY)
        };
        assert!(varies(404, &[]));
        assert!(varies(429, &[(CACHE_CONTROL, "max-age=1")]));
        assert!(!varies(429, &[]));
        assert!(!varies(502, &[]));
    }
}
