//! Parses the path and the body of a request to the admin API.

use bytes::Bytes;
use http::Method;
use http_body_util::{BodyExt, Limited};
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::error::ApiError;
use crate::server::RequestBody;

const BUCKETS: &str = "/v1/buckets/";

/// The prefix of the paths of bans.
pub(super) const BANS: &str = "/v1/bans/";

/// What a path names.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// The limit's name.
    pub(super) limit: String,
    /// The subject, in the form of an override's id.
    pub(super) subject: String,
    /// The path is that of the bucket's refunds.
    refund: bool,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Show,
    Reset,
    Refund,
}

impl Target {
    pub(super) fn parse(path: &str) -> Result<Self, ApiError> {
        let segments = segments(path, BUCKETS);
        let (limit, subject, refund) = match segments.as_deref() {
            Some([limit, subject]) => (limit, subject, false),
            Some([limit, subject, last]) if last == "refund" => (limit, subject, true),
            _ => return Err(ApiError::NoSuchPath),
        };
        Ok(Self {
            limit: limit.clone(),
            subject: subject.clone(),
            refund,
        })
    }

    pub(super) fn act(&self, method: &Method) -> Result<Act, ApiError> {
        match (self.refund, method) {
            (false, &Method::GET | &Method::HEAD) => Ok(Act::Show),
            (false, &Method::DELETE) => Ok(Act::Reset),
            (true, &Method::POST) => Ok(Act::Refund),
            (false, _) => Err(ApiError::Method("GET, HEAD, DELETE")),
            (true, _) => Err(ApiError::Method("POST")),
        }
    }
}

/// The segments of a path after `start`; none if it does not begin so, or is not UTF-8.
pub(super) fn segments(path: &str, start: &str) -> Option<Vec<String>> {
    path.strip_prefix(start)?.split('/').map(decoded).collect()
}

/// A percent-decoded segment; none if it is not UTF-8.
fn decoded(segment: &str) -> Option<String> {
    let text = percent_decode_str(segment).decode_utf8();
    text.ok().map(Into::into)
}

/// More than enough for an override.
const MAX_BYTES: usize = 8 * 1024;

/// The whole body, of which `form` is an example.
pub(super) async fn read_body(body: RequestBody, form: &'static str) -> Result<Bytes, ApiError> {
    read_body_up_to(MAX_BYTES, body, form).await
}

/// The same of a body that may have so many bytes.
pub(super) async fn read_body_up_to(
    max_bytes: usize,
    body: RequestBody,
    form: &'static str,
) -> Result<Bytes, ApiError> {
    let body = Limited::new(body, max_bytes).collect().await;
    let body = body.map_err(|cause| ApiError::Body {
        form,
        cause: cause.to_string(),
    })?;
    Ok(body.to_bytes())
}

/// What the body says, of which `form` is an example.
pub(super) fn parse_body<T: DeserializeOwned>(
    body: &[u8],
    form: &'static str,
) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|cause| ApiError::Body {
        form,
        cause: cause.to_string(),
    })
}

/// An example of the body of a refund.
const REFUND_FORM: &str = "{\"cost\": 1}";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Refund {
    #[serde(default = "one")]
    cost: u64,
}

fn one() -> u64 {
    1
}

/// The units that the body asks for, or 1 if it is empty.
///
/// A query is refused: a client that put the cost there would refund 1.
pub(super) async fn refunded_units(
    query: Option<&str>,
    body: RequestBody,
) -> Result<u64, ApiError> {
    refuse_query(query)?;
    units(&read_body(body, REFUND_FORM).await?)
}

fn refuse_query(query: Option<&str>) -> Result<(), ApiError> {
    match query {
        None | Some("") => Ok(()),
        Some(_) => Err(ApiError::Query { form: REFUND_FORM }),
    }
}

fn units(body: &[u8]) -> Result<u64, ApiError> {
    if body.is_empty() {
        return Ok(one());
    }
    let refund: Refund = parse_body(body, REFUND_FORM)?;
    Ok(refund.cost)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::StatusCode;
    use serde_json::Value;

    fn target(limit: &str, subject: &str, refund: bool) -> Option<Target> {
        Some(Target {
            limit: limit.to_owned(),
            subject: subject.to_owned(),
            refund,
        })
    }

    fn parsed(path: &str) -> Option<Target> {
        Target::parse(path).ok()
    }

    #[test]
    fn a_path_names_a_limit_and_a_subject() {
        assert_eq!(parsed("/v1/buckets/L/acme"), target("L", "acme", false));
        let network = "/v1/buckets/L/2001:db8::%2F64/refund";
        assert_eq!(parsed(network), target("L", "2001:db8::/64", true));
        assert_eq!(parsed("/v1/buckets/L/refund"), target("L", "refund", false));
        // An id of several parts has an encoding of its own.
        let nested = "/v1/buckets/L/a%253Ab:c";
        assert_eq!(parsed(nested), target("L", "a%3Ab:c", false));
    }

    #[test]
    fn other_paths_name_nothing() {
        for path in [
            "/v1/buckets",
            "/v1/buckets/",
            "/v1/buckets/L",
            "/v1/buckets/L/a/b",
            "/v1/buckets/L/a/refund/b",
            "/v1/buckets/L/%FF",
            "/v1/other/L/a",
        ] {
            assert_eq!(parsed(path), None, "{path}");
        }
    }

    #[test]
    fn each_method_does_one_thing() {
        let act = |path, method| parsed(path).unwrap().act(&method).ok();
        assert_eq!(act("/v1/buckets/L/a", Method::GET), Some(Act::Show));
        assert_eq!(act("/v1/buckets/L/a", Method::DELETE), Some(Act::Reset));
        assert_eq!(act("/v1/buckets/L/a", Method::POST), None);
        let refund = "/v1/buckets/L/a/refund";
        assert_eq!(act(refund, Method::POST), Some(Act::Refund));
        assert_eq!(act(refund, Method::GET), None);
    }

    fn cost(body: &str) -> Option<u64> {
        units(body.as_bytes()).ok()
    }

    #[test]
    fn a_refund_is_of_one_unit_unless_told_otherwise() {
        assert_eq!(cost(""), Some(1));
        assert_eq!(cost("{}"), Some(1));
        assert_eq!(cost("{\"cost\": 25}"), Some(25));
        assert_eq!(cost("{\"cost\": 0}"), Some(0));
    }

    #[tokio::test]
    async fn a_query_is_refused_with_the_body_to_send() {
        for query in [None, Some("")] {
            assert!(refuse_query(query).is_ok(), "{query:?}");
        }
        for query in ["cost=0", "cost=2", "x"] {
            let response = refuse_query(Some(query)).unwrap_err().into_response();
            assert_eq!(response.status(), StatusCode::BAD_REQUEST, "{query}");
            let body = response.into_body().collect().await.unwrap().to_bytes();
            let problem: Value = serde_json::from_slice(&body).unwrap();
            let detail = problem["detail"].as_str().unwrap();
            assert!(detail.contains("{\"cost\": 1}"), "{detail}");
        }
    }

    #[test]
    fn what_is_no_number_of_units_is_refused() {
        for body in [
            "{\"cost\": -1}",
            "{\"cost\": 1.5}",
            "{\"costs\": 1}",
            "cost=1",
            "1",
        ] {
            assert_eq!(cost(body), None, "{body}");
        }
    }
}
