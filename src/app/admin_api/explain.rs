//! Explains the treatment of a request by the configuration in force.
//!
//! ```text
//! POST /v1/explain    {"method": "GET", "path": "/a", "ip": "203.0.113.9", "headers": ["a: b"]}
//! ```

use std::net::IpAddr;

use http::Method;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use serde::Deserialize;

use super::Api;
use super::endpoint::{Call, Endpoint, Reply, json_response};
use super::error::ApiError;
use super::request::{parse_body, read_body_up_to};
use super::responses::Explanation;
use crate::app::explain::{self, explain_in_force};
use crate::app::features::Load;

/// It changes nothing although it is a `POST`.
pub(super) const ENDPOINTS: &[Endpoint] = &[Endpoint::new("/v1/explain", "POST", |api, call| {
    Box::pin(respond(api, call))
})
.only_asking()];

/// An example of a request's body.
const FORM: &str = "{\"path\": \"/a\", \"ip\": \"203.0.113.9\", \"headers\": [\"a: b\"]}";

/// As much as the head of a request may have, unless it is configured otherwise.
const MAX_BYTES: usize = 64 * 1024;

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct Explained {
    #[serde(default = "get")]
    method: String,
    path: String,
    /// The address that it would come from.
    #[cfg_attr(test, schemars(with = "String"))]
    ip: IpAddr,
    /// Each as NAME:VALUE.
    #[serde(default)]
    headers: Vec<String>,
}

fn get() -> String {
    Method::GET.to_string()
}

impl Explained {
    fn request(&self) -> Result<Parts, String> {
        let lines = self.headers.iter();
        let lines = lines.map(|line| explain::parse_header(line));
        let headers = lines.collect::<Result<Vec<(HeaderName, HeaderValue)>, _>>()?;
        let mut all = HeaderMap::new();
        for (name, value) in headers {
            all.append(name, value);
        }
        let method = self.method.parse();
        let method = method.map_err(|_| format!("{:?} is not a method", self.method))?;
        let uri = explain::parse_path(&self.path)?;
        Ok(explain::request_head(method, uri, all))
    }
}

async fn respond(api: &Api, call: Call<'_>) -> Reply {
    let snapshot = api.snapshot();
    let load = Load::new(&snapshot.upstreams, api.features.worker_levels());
    let body = read_body_up_to(MAX_BYTES, call.body, FORM).await?;
    let explained: Explained = parse_body(&body, FORM)?;
    let request = explained.request();
    let request = request.map_err(|cause| ApiError::Body { form: FORM, cause })?;
    let explanation = explain_in_force(&snapshot.settings, (&request, explained.ip), &load);
    json_response(&Explanation { explanation })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(body: &str) -> String {
        let explained: Explained = serde_json::from_str(body).unwrap();
        explained.request().unwrap_err()
    }

    #[test]
    fn a_request_is_described_as_on_the_command_line() {
        let text =
            r#"{"path": "/a?b=c", "ip": "2001:db8::1", "headers": ["Host: h", "a:1", "a:2"]}"#;
        let explained: Explained = serde_json::from_str(text).unwrap();
        let request = explained.request().unwrap();
        assert_eq!(
            (request.method, request.uri.query()),
            (Method::GET, Some("b=c"))
        );
        assert_eq!(request.headers.get_all("a").iter().count(), 2);
        assert_eq!(request.headers["host"], "h");
    }

    #[test]
    fn what_is_not_a_request_is_refused_with_the_reason() {
        let host = r#"{"path": "http://h/a", "ip": "192.0.2.1"}"#;
        assert!(refused(host).contains("path"), "{}", refused(host));
        let header = r#"{"path": "/", "ip": "192.0.2.1", "headers": ["nonsense"]}"#;
        assert_eq!(refused(header), "write it as NAME:VALUE");
        let method = r#"{"path": "/", "ip": "192.0.2.1", "method": "G T"}"#;
        assert_eq!(refused(method), "\"G T\" is not a method");
        let ip = serde_json::from_str::<Explained>(r#"{"path": "/", "ip": "here"}"#);
        assert!(ip.is_err());
    }
}
