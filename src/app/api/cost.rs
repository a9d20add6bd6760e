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
pub(super) async fn read(body: RequestBody) -> Result<u64, Refused> {
    parse(&body::read(body, FORM).await?)
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
