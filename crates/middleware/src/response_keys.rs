//! The keys of a response that Weir makes itself: the status, headers and a body.

use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use serde::Deserialize;
use weir_yaml::{
    Entries, FieldName, Lowered, Lowering, ResponseStatus, Spanned, all, is_of_connection,
};

use crate::{FixedResponse, Rejection};

/// An answer to take the place of the problem document.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Rejection"))]
#[serde(deny_unknown_fields)]
pub struct RejectionKeys {
    /// The status. Default: `429` for a denial, `403` for a blocked client, `200`
    /// for a response of a route.
    status: Option<Spanned<ResponseStatus>>,
    /// Additional headers. The body of a route's `response` is `text/plain; charset=utf-8` unless
    /// they say otherwise.
    headers: Option<Entries<Spanned<String>, FieldName>>,
    /// The body, which `HEAD` does not get. Default: a problem document; empty for a response of a
    /// route.
    body: Option<String>,
}

impl RejectionKeys {
    /// The rejection, with this status unless they say another.
    ///
    /// # Errors
    /// When the keys are in error, which is reported.
    pub fn rejection(&self, cx: &mut Lowering<'_>, default: StatusCode) -> Lowered<Rejection> {
        let status = status(self.status, default);
        let headers = response_headers(cx, self.headers.as_ref());
        if self.body.as_ref().is_none_or(|body| !body.is_empty()) {
            refuse_body(cx, self.status, "say `body: \"\"`");
        }
        Ok(Rejection {
            status,
            headers: headers?,
            body: self.body.clone().map(Into::into),
        })
    }

    /// A response that is the same to all requests. A text is plain text unless the headers say
    /// otherwise: a browser that guesses might take it for a page.
    ///
    /// # Errors
    /// When the keys are in error, which is reported.
    pub fn fixed_response(&self, cx: &mut Lowering<'_>) -> Lowered<FixedResponse> {
        let status = status(self.status, StatusCode::OK);
        let headers = response_headers(cx, self.headers.as_ref());
        let body: Bytes = self.body.clone().unwrap_or_default().into();
        if !body.is_empty() {
            refuse_body(cx, self.status, "leave `body` out");
        }
        let mut headers = headers?;
        if !body.is_empty() {
            let plain = HeaderValue::from_static("text/plain; charset=utf-8");
            headers.entry(CONTENT_TYPE).or_insert(plain);
        }
        Ok(FixedResponse {
            status,
            headers,
            body,
        })
    }

    /// The status that they say, if they do.
    pub(crate) fn status(&self) -> Option<StatusCode> {
        self.status.map(|written| written.value.0)
    }
}

pub(crate) fn status(written: Option<Spanned<ResponseStatus>>, default: StatusCode) -> StatusCode {
    written.map_or(default, |written| written.value.0)
}

/// Refuses a body with a status whose answers have none (RFC 9110, section 6.4.1): a client would
/// take it for the beginning of the next answer, or hang waiting for it.
pub(crate) fn refuse_body(
    cx: &mut Lowering<'_>,
    status: Option<Spanned<ResponseStatus>>,
    help: &str,
) {
    let has_none = |status: &Spanned<ResponseStatus>| matches!(status.0.as_u16(), 204 | 205 | 304);
    if let Some(status) = status.filter(has_none) {
        let number = status.0.as_u16();
        let message = format!("a response of status {number} has no body");
        cx.error(status.span, message).help(help);
    }
}

/// The headers of a response that Weir makes.
pub(crate) fn response_headers(
    cx: &mut Lowering<'_>,
    written: Option<&Entries<Spanned<String>, FieldName>>,
) -> Lowered<HeaderMap> {
    let fields = written.into_iter().flat_map(|fields| &fields.0);
    all(fields.map(|(name, value)| {
        if is_of_connection(name.0.as_str()) {
            let message = format!("`{}` is set by the server itself", name.0);
            cx.error(name.span, message).help("leave it out");
        }
        Ok((name.0.clone(), cx.header_value(value)?))
    }))
}
