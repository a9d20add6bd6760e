//! Which endpoint a request is for.

use std::borrow::Cow;
use std::str::Utf8Error;

use http::Method;
use percent_encoding::percent_decode_str;

use super::endpoint::{Call, Endpoint, Reply};
use super::error::ApiError;
use super::{Api, endpoints};

/// An endpoint, and what its path says of it.
pub(in crate::app) struct Target {
    endpoint: &'static Endpoint,
    parameters: Vec<String>,
}

impl Target {
    pub(in crate::app) fn find(path: &str) -> Result<Self, ApiError> {
        let found = endpoints().find_map(|endpoint| {
            let parameters = parameters(endpoint.template, path)?;
            Some((endpoint, parameters))
        });
        let (endpoint, parameters) = found.ok_or(ApiError::NoSuchPath)?;
        Ok(Self {
            endpoint,
            parameters: parameters.map_err(|_| ApiError::NotUtf8)?,
        })
    }

    /// Whether the path has a method.
    pub(in crate::app) fn check(&self, method: &Method) -> Result<(), ApiError> {
        let methods = self.endpoint.methods;
        let mut all = methods.split(", ");
        let is_there = all.any(|allowed| allowed == method.as_str());
        is_there.then_some(()).ok_or(ApiError::Method(methods))
    }

    /// Whether it changes nothing, whatever the method.
    pub(super) const fn only_asks(&self) -> bool {
        self.endpoint.only_asks
    }

    /// The parameters of the path, in their order.
    pub(in crate::app) fn parameters(&self) -> &[String] {
        &self.parameters
    }

    pub(super) async fn respond(&self, api: &Api, call: Call<'_>) -> Reply {
        (self.endpoint.respond)(api, call).await
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
    use super::super::process::document;
    use super::*;

    fn found(path: &str) -> Option<(&'static str, Vec<String>)> {
        let target = Target::find(path).ok()?;
        Some((target.endpoint.template, target.parameters))
    }

    fn target(template: &'static str, parameters: &[&str]) -> Option<(&'static str, Vec<String>)> {
        let parameters = parameters.iter().map(ToString::to_string);
        Some((template, parameters.collect()))
    }

    #[test]
    fn a_path_names_a_limit_and_a_subject() {
        let (buckets, bucket) = ("/v1/buckets/{limit}", "/v1/buckets/{limit}/{subject}");
        let refund = "/v1/buckets/{limit}/{subject}/refund";
        assert_eq!(found("/v1/buckets/L"), target(buckets, &["L"]));
        assert_eq!(found("/v1/buckets/L/acme"), target(bucket, &["L", "acme"]));
        let network = "/v1/buckets/L/2001:db8::%2F64/refund";
        assert_eq!(found(network), target(refund, &["L", "2001:db8::/64"]));
        assert_eq!(
            found("/v1/buckets/L/refund"),
            target(bucket, &["L", "refund"])
        );
        // An id of several parts has an encoding of its own.
        let nested = "/v1/buckets/L/a%253Ab:c";
        assert_eq!(found(nested), target(bucket, &["L", "a%3Ab:c"]));
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
            assert!(matches!(refused, Err(ApiError::NoSuchPath)), "{path}");
        }
    }

    #[test]
    fn a_parameter_that_is_not_utf8_is_a_bad_request_and_not_an_unknown_path() {
        for path in ["/v1/buckets/L/%FF", "/v1/overrides/%c3/a"] {
            let refused = Target::find(path);
            assert!(matches!(refused, Err(ApiError::NotUtf8)), "{path}");
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
        let of_entry = |entry: &'static Endpoint| {
            let methods = entry.methods.split(", ").filter(|method| *method != "HEAD");
            (entry.template, methods.map(str::to_owned).collect())
        };
        let mut there: Vec<(&str, Vec<String>)> = endpoints().map(of_entry).collect();
        for methods in documented.iter_mut().chain(&mut there) {
            methods.1.sort();
        }
        documented.sort();
        there.sort();
        assert_eq!(documented, there);
    }

    /// Of two that match a path, the first one would get the requests of both.
    #[test]
    fn no_endpoint_gets_the_requests_of_another() {
        for endpoint in endpoints() {
            let parts = endpoint.template.split('/');
            let filled = parts.map(|part| part.strip_prefix('{').map_or(part, |_| "x"));
            let path = filled.collect::<Vec<_>>().join("/");
            let found = Target::find(&path).unwrap().endpoint;
            assert!(std::ptr::eq(found, endpoint), "{path}: {}", found.template);
        }
    }

    /// A read-only token may send any method there.
    #[test]
    fn no_entry_but_that_of_explanations_says_that_it_changes_nothing() {
        let asking = endpoints().filter(|entry| entry.only_asks);
        let asking: Vec<_> = asking.map(|entry| entry.template).collect();
        assert_eq!(asking, ["/v1/explain"]);
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
