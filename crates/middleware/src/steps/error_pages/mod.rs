//! Pages for people in place of Weir's problem documents, and of errors in JSON that the configuration
//! has in their place.

#[cfg(feature = "config")]
mod config;

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use weir_http::media_type::prefers;
use weir_rules::Statuses;
use weir_telemetry::RequestId;

use crate::steps::response_step::{JSON, Origin, Outgoing, Phase, PreparedStep, ResponseStep};
use crate::{RequestContext, RequestHead};

const HTML: &str = "text/html";
const PROBLEM: &str = "application/problem+json";

/// The operator's own error pages, by status. Other statuses have a plain one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorPages(Arc<[(Statuses, Bytes)]>);

impl FromIterator<(Statuses, Bytes)> for ErrorPages {
    /// If several fit a status, the one for the fewest statuses is shown.
    fn from_iter<I: IntoIterator<Item = (Statuses, Bytes)>>(pages: I) -> Self {
        let mut pages: Vec<_> = pages.into_iter().collect();
        pages.sort_by_key(|(statuses, _)| statuses.count());
        Self(pages.into())
    }
}

impl ResponseStep for ErrorPages {
    fn phase(&self) -> Phase {
        Phase::Form
    }

    fn prepare(&self, request: &RequestHead<'_>) -> Option<Box<dyn PreparedStep>> {
        let headers = request.headers;
        if !prefers(headers, HTML, PROBLEM) || !prefers(headers, HTML, JSON) {
            return None;
        }
        Some(Box::new(Page {
            pages: self.clone(),
            request_id: RequestContext::request_id(request.extensions).cloned(),
        }))
    }

    fn is_for_decisions(&self) -> bool {
        true
    }
}

/// What the page for one request is made of.
#[derive(Debug)]
struct Page {
    pages: ErrorPages,
    request_id: Option<Arc<RequestId>>,
}

impl PreparedStep for Page {
    fn apply(self: Box<Self>, response: &mut Outgoing) {
        if !response.is_error_for_programs() {
            return;
        }
        response.origin = Origin::Problem;
        let (status, headers) = (response.head.status(), response.head.headers());
        let request_id = self.request_id.as_deref();
        let page = self
            .pages
            .page(status, headers.get(RETRY_AFTER), request_id);
        let content_type = HeaderValue::from_static("text/html; charset=utf-8");
        response
            .head
            .headers_mut()
            .insert(CONTENT_TYPE, content_type);
        response.replace_body(page);
    }
}

impl ErrorPages {
    fn page(
        &self,
        status: StatusCode,
        retry_after: Option<&HeaderValue>,
        request_id: Option<&RequestId>,
    ) -> Bytes {
        let mut own = self.0.iter();
        match own.find(|(statuses, _)| statuses.contains(status)) {
            Some((_, page)) => page.clone(),
            None => plain_page(status, retry_after, request_id),
        }
    }
}

/// A page with only the status, when to come back, and what to name in a report.
fn plain_page(
    status: StatusCode,
    retry_after: Option<&HeaderValue>,
    request_id: Option<&RequestId>,
) -> Bytes {
    let number = status.as_u16();
    let reason = status.canonical_reason().unwrap_or("Error");
    let seconds = retry_after.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let hint = seconds.map_or_else(String::new, |seconds| {
        let plural = if seconds == 1 { "" } else { "s" };
        format!("<p>Please try again in {seconds} second{plural}.</p>\n")
    });
    let request_id = request_id.map_or_else(String::new, |id| {
        let id = id.text();
        format!("<p>Request id: <code>{id}</code></p>\n")
    });
    let page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>{number} {reason}</title>\n</head>\n<body>\n<h1>{number} {reason}</h1>\n{hint}{request_id}\
         </body>\n</html>\n"
    );
    page.into()
}
