//! Parses the query and the body of a request to the admin API.

use std::fmt;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use weir_console::query::parameters;
use weir_server::RequestBody;

use super::error::ApiError;

/// More than enough for an override.
const MAX_BYTES: usize = 8 * 1024;

/// The whole body, of which `form` is an example.
pub(in crate::app) async fn read_body(
    body: RequestBody,
    form: &'static str,
) -> Result<Bytes, ApiError> {
    read_body_up_to(MAX_BYTES, body, form).await
}

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

/// Parses a body, of which `form` is an example.
pub(in crate::app) fn parse_body<T: DeserializeOwned>(
    body: &[u8],
    form: &'static str,
) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|cause| ApiError::Body {
        form,
        cause: cause.to_string(),
    })
}

pub(super) fn no_parameters(query: Option<&str>) -> Result<(), ApiError> {
    match parameters(query).next() {
        None => Ok(()),
        Some((pair, _)) => Err(ApiError::parameter(pair, "there are none here")),
    }
}

const DEFAULT_COUNT: usize = 100;

const MAX_COUNT: usize = 1000;

pub(super) const PAGE_PARAMETERS: &str =
    "there are count=NUMBER, of 1 to 1000, and cursor=NEXT, from the page before";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::app) struct Page {
    pub(in crate::app) count: usize,
    /// The beginning of the page; `None` for the first.
    pub(in crate::app) cursor: Option<Cursor>,
}

/// The beginning of a page, after the last item of the page before. It is opaque to clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::app) struct Cursor {
    /// The position of the store's scan.
    pub(in crate::app) position: u64,
    /// One of several nodes.
    pub(in crate::app) node: String,
    /// The last item of those that the store has shown at this position.
    pub(in crate::app) after: String,
}

impl Page {
    pub(in crate::app) fn parse(query: Option<&str>) -> Result<Self, ApiError> {
        let mut page = Self {
            count: DEFAULT_COUNT,
            cursor: None,
        };
        for (pair, (name, value)) in parameters(query) {
            let refused = || ApiError::parameter(pair, PAGE_PARAMETERS);
            match name {
                "count" => {
                    let count = value.parse().ok();
                    let count = count.filter(|count| (1..=MAX_COUNT).contains(count));
                    page.count = count.ok_or_else(refused)?;
                }
                "cursor" => page.cursor = Some(Cursor::parse(&value).ok_or_else(refused)?),
                _ => return Err(refused()),
            }
        }
        Ok(page)
    }
}

impl Cursor {
    fn parse(text: &str) -> Option<Self> {
        let text = String::from_utf8(BASE64_URL_SAFE_NO_PAD.decode(text).ok()?).ok()?;
        let mut parts = text.splitn(3, '\n');
        Some(Self {
            position: parts.next()?.parse().ok()?,
            node: parts.next()?.to_owned(),
            after: parts.next()?.to_owned(),
        })
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}\n{}\n{}", self.position, self.node, self.after);
        f.write_str(&BASE64_URL_SAFE_NO_PAD.encode(text))
    }
}

/// An example of the body of a refund.
const REFUND_FORM: &str = "{\"cost\": 1}";

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct Refund {
    /// At most the burst is given back at a time.
    #[serde(default = "one")]
    cost: u64,
}

fn one() -> u64 {
    1
}

/// The units in the body, or 1 if it is empty.
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

    fn cost(body: &str) -> Option<u64> {
        units(body.as_bytes()).ok()
    }

    fn page(query: &str) -> Option<Page> {
        Page::parse(Some(query)).ok()
    }

    #[test]
    fn a_cursor_leads_back_to_where_it_was_made() {
        let cursor = Cursor {
            position: u64::MAX,
            node: "[::1]:7000".to_owned(),
            after: "L:a\n\"b".to_owned(),
        };
        let next = page(&format!("count=7&cursor={cursor}")).unwrap();
        assert_eq!((next.count, next.cursor), (7, Some(cursor)));
        assert_eq!(page("").unwrap().cursor, None);
    }

    #[test]
    fn made_up_cursors_and_counts_without_bound_are_refused() {
        for query in [
            "cursor=",
            "cursor=0",
            "cursor=%00",
            "cursor=AAAA",
            "cursor=LTEKCg",
            "count=0",
            "count=1001",
            "count=-1",
            "count=99999999999999999999",
            "page=2",
        ] {
            assert_eq!(page(query), None, "{query}");
        }
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
