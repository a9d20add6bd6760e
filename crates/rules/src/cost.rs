//! Costs of requests: fixed, or stated by headers, body or response.

use std::num::NonZeroU64;
use std::sync::Arc;

use http::{HeaderMap, HeaderName};
use weir_http::list;

use super::json_units::JsonPointer;

/// The cost of a request, in units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cost {
    /// The same for all requests.
    Fixed(NonZeroU64),
    /// As many as the request or its response says. Clones share it.
    Measured(Arc<MeasuredCost>),
}

/// A cost that each request has of its own. Of what says it, the first in this order counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MeasuredCost {
    /// The numbers in a response's JSON, or in the data of its events, whose sum is the units.
    pub response_json: Arc<[JsonPointer]>,
    /// The response's trailer that says the units.
    pub response_trailer: Option<HeaderName>,
    /// The response's header that says the units.
    pub response_header: Option<HeaderName>,
    /// The request's header that says the units.
    pub request_header: Option<HeaderName>,
    /// Bytes of the request's body that make a unit; one that is begun counts.
    pub request_bytes: Option<NonZeroU64>,
    /// The units where nothing else says them.
    pub default: u64,
}

/// The cost of a request, as far as it is known on arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// The units, as far as can be said.
    pub units: u64,
    /// The final cost.
    pub pending: PendingCost,
}

/// The source of a request's final cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PendingCost {
    /// Nothing.
    Nothing,
    /// The response.
    Response,
    /// The size of the body, which is not known yet, unless the response says the cost.
    Body,
}

impl Estimate {
    pub(crate) const fn fixed(cost: NonZeroU64) -> Self {
        Self {
            units: cost.get(),
            pending: PendingCost::Nothing,
        }
    }
}

impl Default for Cost {
    fn default() -> Self {
        Self::Fixed(NonZeroU64::MIN)
    }
}

impl MeasuredCost {
    /// The cost of a request with these headers and a body of `body_bytes`, if that is known.
    pub fn estimate(&self, headers: &HeaderMap, body_bytes: Option<u64>) -> Estimate {
        let header = self.request_header.as_ref();
        let (units, pending) = match header.and_then(|name| cost_header(headers, name)) {
            Some(units) => (units, PendingCost::Nothing),
            None => match (self.request_bytes, body_bytes) {
                (Some(unit), Some(bytes)) => (bytes.div_ceil(unit.get()), PendingCost::Nothing),
                (Some(_), None) => (self.default, PendingCost::Body),
                (None, _) => (self.default, PendingCost::Nothing),
            },
        };
        let pending = match pending {
            PendingCost::Nothing if self.is_said_by_response() => PendingCost::Response,
            pending => pending,
        };
        Estimate { units, pending }
    }

    /// Whether the head of the request says it all.
    pub(crate) fn is_known_by_head(&self) -> bool {
        self.request_bytes.is_none() && !self.is_said_by_response()
    }

    fn is_said_by_response(&self) -> bool {
        self.response_header.is_some() || self.is_said_by_response_body()
    }

    /// Whether the response's body, or what follows it, may say the units.
    pub fn is_said_by_response_body(&self) -> bool {
        !self.response_json.is_empty() || self.response_trailer.is_some()
    }
}

/// The units that a header says, the most where it says several. A value that is not a number says
/// nothing.
pub fn cost_header(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    // One line with commas is the same as several (RFC 9110, section 5.3). A client's own is there
    // as well where a proxy adds its line to it.
    list::texts(headers, name).filter_map(units).max()
}

/// A number that is too great to be read is greater than any bucket.
fn units(text: &str) -> Option<u64> {
    let text = text.trim();
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const HEADER: HeaderName = HeaderName::from_static("x-cost");

    fn measured() -> MeasuredCost {
        MeasuredCost {
            request_header: Some(HEADER),
            request_bytes: NonZeroU64::new(1024),
            default: 3,
            ..MeasuredCost::default()
        }
    }

    fn headers(value: &'static str) -> HeaderMap {
        [(HEADER, HeaderValue::from_static(value))]
            .into_iter()
            .collect()
    }

    fn known(units: u64) -> Estimate {
        let pending = PendingCost::Nothing;
        Estimate { units, pending }
    }

    #[test]
    fn a_header_says_the_cost_before_the_body_does() {
        let estimate = |value| measured().estimate(&headers(value), Some(2048));
        assert_eq!(estimate("7"), known(7));
        assert_eq!(estimate(" 0 "), known(0));
        for malformed in ["", "many", "-1", "1.5", "+4", "1 2"] {
            assert_eq!(estimate(malformed), known(2), "{malformed:?}");
        }
        assert_eq!(estimate("99999999999999999999999"), known(u64::MAX));
    }

    #[test]
    fn of_several_costs_the_greatest_counts() {
        let mut headers = headers("0");
        headers.append(HEADER, HeaderValue::from_static("many, 10"));
        headers.append(HEADER, HeaderValue::from_static("7,"));
        assert_eq!(measured().estimate(&headers, None), known(10));
    }

    #[test]
    fn a_body_costs_each_unit_that_it_begins() {
        let estimate = |bytes| measured().estimate(&HeaderMap::new(), Some(bytes)).units;
        assert_eq!([0, 1, 1024, 1025].map(estimate), [0, 1, 1, 2]);
    }

    #[test]
    fn a_body_of_unknown_size_costs_the_default_until_it_is_known() {
        let estimate = measured().estimate(&HeaderMap::new(), None);
        assert_eq!((estimate.units, estimate.pending), (3, PendingCost::Body));
    }

    #[test]
    fn a_response_may_change_what_the_request_said() {
        let postpaid = MeasuredCost {
            response_header: Some(HEADER),
            ..measured()
        };
        let estimate = postpaid.estimate(&headers("7"), Some(0));
        assert_eq!(
            (estimate.units, estimate.pending),
            (7, PendingCost::Response)
        );
    }
}
