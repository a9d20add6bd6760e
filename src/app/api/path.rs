//! Which bucket a path names, and what a method does to it.

use http::Method;
use percent_encoding::percent_decode_str;

use super::refused::Refused;

const BUCKETS: &str = "/v1/buckets/";

/// What paths of bans begin with.
pub(super) const BANS: &str = "/v1/bans/";

/// What a path names.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// The limit's name.
    pub(super) limit: String,
    /// The subject, as an id of an override is written.
    pub(super) subject: String,
    /// The bucket's refunds, and not the bucket itself.
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
    pub(super) fn parse(path: &str) -> Result<Self, Refused> {
        let segments = segments(path, BUCKETS);
        let (limit, subject, refund) = match segments.as_deref() {
            Some([limit, subject]) => (limit, subject, false),
            Some([limit, subject, last]) if last == "refund" => (limit, subject, true),
            _ => return Err(Refused::NoSuchPath),
        };
        Ok(Self {
            limit: limit.clone(),
            subject: subject.clone(),
            refund,
        })
    }

    pub(super) fn act(&self, method: &Method) -> Result<Act, Refused> {
        match (self.refund, method) {
            (false, &Method::GET | &Method::HEAD) => Ok(Act::Show),
            (false, &Method::DELETE) => Ok(Act::Reset),
            (true, &Method::POST) => Ok(Act::Refund),
            (false, _) => Err(Refused::Method("GET, HEAD, DELETE")),
            (true, _) => Err(Refused::Method("POST")),
        }
    }
}

/// The segments of a path behind `start`; none when it begins otherwise, or is no text.
pub(super) fn segments(path: &str, start: &str) -> Option<Vec<String>> {
    path.strip_prefix(start)?.split('/').map(decoded).collect()
}

/// A segment without its percent-encoding; none when it is no text.
fn decoded(segment: &str) -> Option<String> {
    let text = percent_decode_str(segment).decode_utf8();
    text.ok().map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
