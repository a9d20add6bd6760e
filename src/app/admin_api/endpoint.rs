//! An endpoint of the admin API: a path, what may be done with it, and what responds there. Each
//! module has a table of its own; [`endpoints`](super::endpoints) chains them.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Response, request};
use http_body_util::{BodyExt, Full};
use serde::Serialize;
use weir_limit::time::Timestamp;
use weir_server::{AdminBody, RequestBody};

use super::Api;
use super::authorization::Operator;
use super::error::ApiError;

/// What an endpoint responds.
pub(in crate::app) type Reply = Result<Response<AdminBody>, ApiError>;

/// Responds to a request.
type Respond = for<'a> fn(&'a Api, Call<'a>) -> BoxFuture<'a, Reply>;

/// A row of a module's table.
pub(in crate::app) struct Endpoint {
    /// The path, with parameters in braces.
    pub(super) template: &'static str,
    /// The methods that are allowed, separated by commas.
    pub(super) methods: &'static str,
    /// Whether it changes nothing, whatever the method.
    pub(super) only_asks: bool,
    pub(super) respond: Respond,
}

impl Endpoint {
    pub(in crate::app) const fn new(
        template: &'static str,
        methods: &'static str,
        respond: Respond,
    ) -> Self {
        Self {
            template,
            methods,
            only_asks: false,
            respond,
        }
    }

    /// The same, where a `POST` changes nothing.
    pub(super) const fn only_asking(self) -> Self {
        Self {
            only_asks: true,
            ..self
        }
    }
}

/// A request to an endpoint.
pub(in crate::app) struct Call<'a> {
    pub(in crate::app) operator: &'a Operator,
    /// The path's parameters, in their order.
    pub(in crate::app) parameters: &'a [String],
    pub(in crate::app) head: request::Parts,
    pub(in crate::app) body: RequestBody,
    pub(in crate::app) now: Timestamp,
}

impl Call<'_> {
    /// The parameter at this place of the path; none if the template has fewer.
    pub(in crate::app) fn parameter(&self, index: usize) -> &str {
        self.parameters.get(index).map_or("", String::as_str)
    }

    pub(in crate::app) fn query(&self) -> Option<&str> {
        self.head.uri.query()
    }
}

/// A response in JSON.
pub(in crate::app) fn json_response(response: &impl Serialize) -> Reply {
    let text = serde_json::to_string(response);
    let text = text.map_err(|cause| ApiError::System(cause.into()))?;
    let body = Full::<Bytes>::from(format!("{text}\n")).boxed_unsync();
    Ok(with_type("application/json", body))
}

pub(super) fn with_type(media_type: &'static str, body: AdminBody) -> Response<AdminBody> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
