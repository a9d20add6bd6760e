//! How much a refund gives back: the request's body.

use serde::Deserialize;

use super::body;
use super::refused::Refused;
use crate::server::RequestBody;

/// A body, by example.
const FORM: &str = "{\"cost\": 1}";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Refund {
    #[serde(default = "one")]
    cost: u64,
}

fn one() -> u64 {
    1
}

/// The units that a body asks for; 1 when it is empty.
///
/// A query is refused: whoever says there how much is to be given back would give back 1.
pub(super) async fn read(query: Option<&str>, body: RequestBody) -> Result<u64, Refused> {
    refuse_query(query)?;
    parse(&body::read(body, FORM).await?)
}

fn refuse_query(query: Option<&str>) -> Result<(), Refused> {
    match query {
        None | Some("") => Ok(()),
        Some(_) => Err(Refused::Query { form: FORM }),
    }
}

fn parse(body: &[u8]) -> Result<u64, Refused> {
    if body.is_empty() {
        return Ok(one());
    }
    let refund: Refund = body::parse(body, FORM)?;
    Ok(refund.cost)
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use http_body_util::BodyExt;
    use serde_json::Value;

    use super::*;

    fn cost(body: &str) -> Option<u64> {
        parse(body.as_bytes()).ok()
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
