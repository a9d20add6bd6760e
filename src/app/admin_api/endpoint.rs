//! The paths of the admin API, and what may be done with each.

use std::borrow::Cow;
use std::str::Utf8Error;

use http::Method;
use percent_encoding::percent_decode_str;
use serde_json::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    Top,
    Findings,
    Gateways,
    Buckets,
    Bucket,
    Refund,
    Bans,
    Ban,
    Config,
    LogLevel,
    OpenApi,
    Explain,
    Events,
    Overrides,
}

/// A path with parameters in braces, and the methods that it has.
pub(super) struct PathEntry {
    pub(super) template: &'static str,
    pub(super) methods: &'static str,
    endpoint: Endpoint,
}

const fn path(template: &'static str, methods: &'static str, endpoint: Endpoint) -> PathEntry {
    PathEntry {
        template,
        methods,
        endpoint,
    }
}

/// Explains a request. It changes nothing although it is a `POST`.
pub(super) const EXPLAIN: &str = "/v1/explain";

/// All paths. `docs/openapi.json` has the same, which a test compares.
pub(super) const PATHS: [PathEntry; 16] = [
    path("/v1/top", "GET, HEAD", Endpoint::Top),
    path("/v1/findings", "GET, HEAD", Endpoint::Findings),
    path("/v1/gateways", "GET, HEAD", Endpoint::Gateways),
    path("/v1/buckets/{limit}", "GET, HEAD", Endpoint::Buckets),
    path(
        "/v1/buckets/{limit}/{subject}",
        "GET, HEAD, DELETE",
        Endpoint::Bucket,
    ),
    path(
        "/v1/buckets/{limit}/{subject}/refund",
        "POST",
        Endpoint::Refund,
    ),
    path("/v1/bans", "GET, HEAD", Endpoint::Bans),
    path(
        "/v1/bans/{ban}/{subject}",
        "GET, HEAD, PUT, DELETE",
        Endpoint::Ban,
    ),
    path("/v1/overrides", "GET, HEAD", Endpoint::Overrides),
    path("/v1/overrides/{limit}", "GET, HEAD", Endpoint::Overrides),
    path(
        "/v1/overrides/{limit}/{id}",
        "GET, HEAD, PUT, DELETE",
        Endpoint::Overrides,
    ),
    path(EXPLAIN, "POST", Endpoint::Explain),
    path("/v1/events", "GET", Endpoint::Events),
    path("/v1/config", "GET, HEAD", Endpoint::Config),
    path(
        "/v1/log-level",
        "GET, HEAD, PUT, DELETE",
        Endpoint::LogLevel,
    ),
    path("/v1/openapi.json", "GET, HEAD", Endpoint::OpenApi),
];

const OPENAPI: &str = include_str!("../../../docs/openapi.json");

/// docs/openapi.json, which tests derive from the types of answers.
pub(super) fn document() -> Value {
    serde_json::from_str(OPENAPI).unwrap_or_default()
}

/// An endpoint, and what its path says of it.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) endpoint: Endpoint,
    methods: &'static str,
    parameters: Vec<String>,
}

#[derive(Debug)]
pub(super) enum PathError {
    Unknown,
    NotUtf8,
}

impl Target {
    pub(super) fn find(path: &str) -> Result<Self, PathError> {
        let found = PATHS.iter().find_map(|entry| {
            let parameters = parameters(entry.template, path)?;
            Some((entry, parameters))
        });
        let (entry, parameters) = found.ok_or(PathError::Unknown)?;
        Ok(Self {
            endpoint: entry.endpoint,
            methods: entry.methods,
            parameters: parameters.map_err(|_| PathError::NotUtf8)?,
        })
    }

    /// Whether the path has a method; if not, the error has those that it has.
    pub(super) fn check(&self, method: &Method) -> Result<(), &'static str> {
        let mut methods = self.methods.split(", ");
        let is_there = methods.any(|allowed| allowed == method.as_str());
        is_there.then_some(()).ok_or(self.methods)
    }

    /// The parameters of the path, in their order.
    pub(super) fn parameters(&self) -> &[String] {
        &self.parameters
    }

    /// The parameter at this place of the path; none if the template has fewer.
    pub(super) fn parameter(&self, index: usize) -> &str {
        self.parameters.get(index).map_or("", String::as_str)
    }
}

/// The values of the parameters of a template, percent-decoded; none if the path does not fit it.
fn parameters(template: &str, path: &str) -> Option<Result<Vec<String>, Utf8Error>> {
    let (mut expected, mut given) = (template.split('/'), path.split('/'));
    let mut values = Vec::new();
    loop {
        match (expected.next(), given.next()) {
            (None, None) => return Some(values.into_iter().collect()),
            (Some(expected), Some(given)) if expected.starts_with('{') => {
                let value = percent_decode_str(given).decode_utf8();
                values.push(value.map(Cow::into_owned));
            }
            (Some(expected), Some(given)) if expected == given => {}
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str) -> Option<(Endpoint, Vec<String>)> {
        let target = Target::find(path).ok()?;
        Some((target.endpoint, target.parameters))
    }

    fn target(endpoint: Endpoint, parameters: &[&str]) -> Option<(Endpoint, Vec<String>)> {
        let parameters = parameters.iter().map(ToString::to_string);
        Some((endpoint, parameters.collect()))
    }

    #[test]
    fn a_path_names_a_limit_and_a_subject() {
        use Endpoint::{Bucket, Buckets, Refund};
        assert_eq!(found("/v1/buckets/L"), target(Buckets, &["L"]));
        assert_eq!(found("/v1/buckets/L/acme"), target(Bucket, &["L", "acme"]));
        let network = "/v1/buckets/L/2001:db8::%2F64/refund";
        assert_eq!(found(network), target(Refund, &["L", "2001:db8::/64"]));
        assert_eq!(
            found("/v1/buckets/L/refund"),
            target(Bucket, &["L", "refund"])
        );
        // An id of several parts has an encoding of its own.
        let nested = "/v1/buckets/L/a%253Ab:c";
        assert_eq!(found(nested), target(Bucket, &["L", "a%3Ab:c"]));
    }

    #[test]
    fn other_paths_name_nothing() {
        for path in [
            "/v1",
            "/v1/",
            "/v1/buckets",
            "/v1/buckets/L/a/b",
            "/v1/buckets/L/a/refund/b",
            "/v1/other/L/a",
            "/v1/other/L/%FF",
            "/v1/top/",
        ] {
            let refused = Target::find(path);
            assert!(matches!(refused, Err(PathError::Unknown)), "{path}");
        }
    }

    #[test]
    fn a_parameter_that_is_not_utf8_is_a_bad_request_and_not_an_unknown_path() {
        for path in ["/v1/buckets/L/%FF", "/v1/overrides/%c3/a"] {
            let refused = Target::find(path);
            assert!(matches!(refused, Err(PathError::NotUtf8)), "{path}");
        }
    }

    /// Neither can grow alone.
    #[test]
    fn the_document_has_the_paths_and_methods_that_there_are() {
        let document = document();
        let documented = document["paths"].as_object().unwrap().iter();
        let documented = documented.filter(|(path, _)| path.starts_with("/v1/"));
        let mut documented: Vec<(&str, Vec<String>)> = documented
            .map(|(path, methods)| {
                let methods = methods.as_object().unwrap().keys();
                (&**path, methods.map(|name| name.to_uppercase()).collect())
            })
            .collect();
        let of_entry = |entry: &'static PathEntry| {
            let methods = entry.methods.split(", ").filter(|method| *method != "HEAD");
            (entry.template, methods.map(str::to_owned).collect())
        };
        let mut there: Vec<(&str, Vec<String>)> = PATHS.iter().map(of_entry).collect();
        for methods in documented.iter_mut().chain(&mut there) {
            methods.1.sort();
        }
        documented.sort();
        there.sort();
        assert_eq!(documented, there);
    }

    #[test]
    fn a_path_has_the_methods_of_its_entry_and_no_other() {
        let has = |path: &str, method| Target::find(path).unwrap().check(&method).is_ok();
        let bucket = "/v1/buckets/L/a";
        assert!(has(bucket, Method::GET) && has(bucket, Method::DELETE));
        assert!(!has(bucket, Method::POST) && !has(bucket, Method::PUT));
        let refund = "/v1/buckets/L/a/refund";
        assert!(has(refund, Method::POST) && !has(refund, Method::GET));
    }
}
