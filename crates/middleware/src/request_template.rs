//! Texts with values of the request in them, such as `https://{{ host }}{{ uri }}`: for headers
//! that are set, and for where a client is redirected to.
//!
//! Values come from clients. In a header they cannot break out, as a value with a control character
//! is not one of a header. In a URL they are percent-encoded, and none of them can name the host
//! but `host` itself.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, utf8_percent_encode};
use thiserror::Error;
use weir_rules::{RequestAttributes, requested_host, with_one_slash};

use super::ClientIdentity;
use super::header_text::HeaderText;

/// Encoded in a captured value within a URL: all characters with a meaning there. Captures keep
/// some characters percent-encoded, and these stay so.
const CAPTURED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/')
    .remove(b'%');

/// Encoded in a request's target within a URL.
const TARGET: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'<').add(b'>').add(b'\\');

/// Encoded in a request's target that is the value of a parameter.
const PARAMETER: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/');

/// A text in which `{{ name }}` stands for a value of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestTemplate {
    pub(super) pieces: Vec<Piece>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Text(Box<str>),
    Value(RequestValue),
}

/// A value of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestValue {
    /// The account, as the log shows it.
    Account,
    /// The capture of this name in the route's path.
    Capture(Box<str>),
    ClientAddress,
    /// The requested host, without the port.
    Host,
    Method,
    Path,
    /// The query, without its question mark.
    Query,
    Route,
    /// `http` or `https`.
    Scheme,
    /// The path and the query.
    Uri,
}

/// Why a text is not a template.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// Braces that are not closed.
    #[error("{0:?} has `{{{{` without `}}}}`; write a value as {{{{ host }}}}")]
    Unclosed(String),
    /// No such value.
    #[error(
        "a request has no value `{0}`; those that it has are account, client_address, host, \
         method, path, path.NAME, query, route, scheme and uri"
    )]
    Unknown(String),
}

impl RequestTemplate {
    /// Reads a text with values such as `{{ host }}`.
    ///
    /// # Errors
    /// The error says what to write instead.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("{{") {
            let unclosed = || TemplateError::Unclosed(text.to_owned());
            let (name, after) = after.split_once("}}").ok_or_else(unclosed)?;
            if !before.is_empty() {
                pieces.push(Piece::Text(before.into()));
            }
            pieces.push(Piece::Value(RequestValue::parse(name.trim())?));
            rest = after;
        }
        if !rest.is_empty() {
            pieces.push(Piece::Text(rest.into()));
        }
        Ok(Self { pieces })
    }

    /// The text, if it is the same for all requests.
    pub fn as_fixed(&self) -> Option<&str> {
        match self.pieces.as_slice() {
            [] => Some(""),
            [Piece::Text(text)] => Some(text),
            _ => None,
        }
    }

    pub(super) fn shows_account(&self) -> bool {
        let account = Piece::Value(RequestValue::Account);
        self.pieces.contains(&account)
    }

    /// The names of captures that it uses.
    pub fn captures_used(&self) -> impl Iterator<Item = &str> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Value(RequestValue::Capture(name)) => Some(&**name),
            _ => None,
        })
    }

    pub(super) fn header_text(&self, request: &RequestAttributes<'_>) -> HeaderText {
        let mut text = HeaderText::default();
        for piece in &self.pieces {
            match piece {
                Piece::Text(fixed) => text.push(fixed),
                Piece::Value(value) => value.write(request, &mut text),
            }
        }
        text
    }

    /// The text for one request as a URL. `None` if the URL needs a host that the request lacks.
    pub(super) fn url(&self, request: &RequestAttributes<'_>) -> Option<String> {
        let mut url = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Text(fixed) => url.push_str(fixed),
                Piece::Value(RequestValue::Host) => url.push_str(&host(request)?),
                Piece::Value(RequestValue::Path | RequestValue::Uri) if path(request) == "*" => {
                    url.push('/');
                }
                Piece::Value(value) => {
                    let mut text = HeaderText::default();
                    value.write(request, &mut text);
                    let bytes = text.into_bytes();
                    let set = match value {
                        RequestValue::Path | RequestValue::Query | RequestValue::Uri => {
                            match is_in_parameter(&url) {
                                true => PARAMETER,
                                false => TARGET,
                            }
                        }
                        _ => CAPTURED,
                    };
                    let text = String::from_utf8_lossy(&bytes);
                    url.extend(utf8_percent_encode(&text, set));
                }
            }
        }
        Some(url)
    }
}

/// Whether this beginning of a URL ends within the value of a parameter, as that before `{{ uri }}`
/// in `?next=https://{{ host }}{{ uri }}`.
fn is_in_parameter(url: &str) -> bool {
    let query = url.split_once('?').map(|(_, query)| query);
    let last = query.and_then(|query| query.rsplit(['&', '#']).next());
    url.ends_with('=') || last.is_some_and(|parameter| parameter.contains('='))
}

/// Shows the template as it is written.
impl fmt::Display for RequestTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for piece in &self.pieces {
            match piece {
                Piece::Text(fixed) => f.write_str(fixed)?,
                Piece::Value(value) => write!(f, "{{{{ {value} }}}}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for RequestValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Account => "account",
            Self::ClientAddress => "client_address",
            Self::Host => "host",
            Self::Method => "method",
            Self::Path => "path",
            Self::Query => "query",
            Self::Route => "route",
            Self::Scheme => "scheme",
            Self::Uri => "uri",
            Self::Capture(name) => return write!(f, "path.{name}"),
        })
    }
}

impl RequestValue {
    fn parse(name: &str) -> Result<Self, TemplateError> {
        Ok(match name {
            "account" => Self::Account,
            "client_address" => Self::ClientAddress,
            "host" => Self::Host,
            "method" => Self::Method,
            "path" => Self::Path,
            "query" => Self::Query,
            "route" => Self::Route,
            "scheme" => Self::Scheme,
            "uri" => Self::Uri,
            _ => match name.strip_prefix("path.") {
                Some(capture) if !capture.is_empty() => Self::Capture(capture.into()),
                _ => return Err(TemplateError::Unknown(name.to_owned())),
            },
        })
    }
}

/// The requested host, in lower case and without the port.
fn host<'r>(request: &RequestAttributes<'r>) -> Option<Cow<'r, str>> {
    requested_host(request.uri, request.headers)
}

/// The path with one leading slash, so that it cannot be read as a host; or the asterisk of
/// `OPTIONS *`.
fn path<'r>(request: &RequestAttributes<'r>) -> Cow<'r, str> {
    match request.uri.path() {
        "*" => Cow::Borrowed("*"),
        path => with_one_slash(path),
    }
}

impl RequestValue {
    fn write(&self, request: &RequestAttributes<'_>, text: &mut HeaderText) {
        let written = match self {
            Self::Account => match request.account {
                Some(account) => write!(text, "{account}"),
                None => Ok(()),
            },
            Self::ClientAddress if request.client == ClientIdentity::UNKNOWN => Ok(()),
            Self::ClientAddress => write!(text, "{}", request.client),
            Self::Capture(name) => text.write_str(request.captures.get(name).unwrap_or_default()),
            Self::Host => text.write_str(&host(request).unwrap_or_default()),
            Self::Method => text.write_str(request.method.as_str()),
            Self::Path => text.write_str(&path(request)),
            Self::Query => text.write_str(request.uri.query().unwrap_or_default()),
            Self::Route => text.write_str(request.route),
            Self::Scheme => text.write_str(if request.secure { "https" } else { "http" }),
            Self::Uri => {
                text.push(&path(request));
                match request.uri.query() {
                    Some(query) => write!(text, "?{query}"),
                    None => Ok(()),
                }
            }
        };
        // Writing to memory does not fail.
        debug_assert!(written.is_ok());
    }
}

#[cfg(feature = "config")]
impl RequestTemplate {
    /// Makes sure that it uses only what the route's path captures.
    ///
    /// # Errors
    /// When it uses another capture, which is reported.
    pub fn require_captures(
        &self,
        cx: &mut weir_yaml::Lowering<'_>,
        matcher: Option<&weir_rules::RouteMatcher>,
        span: weir_yaml::Span,
    ) -> weir_yaml::Lowered<()> {
        let Some(matcher) = matcher else {
            return Ok(());
        };
        weir_yaml::all(self.captures_used().map(|name| {
            if matcher.capture_names().any(|captured| captured == name) {
                return Ok(());
            }
            let message = format!("the route captures no `{name}`");
            let help = format!("capture it in the route's path as `{{{name}}}`");
            Err(cx.error(span, message).help(help))
        }))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use http::header::HOST;
    use http::{HeaderMap, HeaderValue, Method};
    use weir_limit::time::Timestamp;
    use weir_rules::Captures;

    use super::*;
    use crate::RequestHead;

    /// What templates are given for a request of 203.0.113.9 to this URI.
    pub(crate) fn with_values<T>(
        uri: &str,
        captures: &[(&str, &str)],
        use_them: impl FnOnce(&RequestAttributes<'_>) -> T,
    ) -> T {
        let host = HeaderValue::from_static("App.Example.com:8080");
        let captures = Captures::from_iter(captures.iter().copied());
        use_them(&RequestAttributes {
            method: &Method::GET,
            uri: &uri.parse().unwrap(),
            headers: &HeaderMap::from_iter([(HOST, host)]),
            client: "203.0.113.9".parse().unwrap(),
            secure: false,
            account: None,
            route: "all",
            captures: &captures,
            now: Timestamp::from_nanos(0),
        })
    }

    fn in_header(template: &str, uri: &str, captures: &[(&str, &str)]) -> Option<HeaderValue> {
        let template = RequestTemplate::parse(template).unwrap();
        with_values(uri, captures, |values| {
            template.header_text(values).into_value()
        })
    }

    fn in_url(template: &str, uri: &str, captures: &[(&str, &str)]) -> String {
        let template = RequestTemplate::parse(template).unwrap();
        with_values(uri, captures, |values| template.url(values).unwrap())
    }

    /// A header without a text is left out, or removed where the client sent it.
    #[test]
    fn a_client_that_nobody_identified_is_never_shown_by_an_address() {
        let request = http::Request::new(());
        let attributes = RequestHead::new(&request).attributes();
        let text = |template: &str| {
            let template = RequestTemplate::parse(template).unwrap();
            template.header_text(&attributes).into_value().unwrap()
        };
        assert_eq!(text("{{ client_address }}"), "");
        assert_eq!(text("from {{ client_address }}/32"), "from /32");
    }

    #[test]
    fn values_stand_where_their_names_are() {
        for (template, text) in [
            ("fixed", "fixed"),
            ("{{client_address}}!", "203.0.113.9!"),
            (
                "{{ scheme }}://{{ host }}{{ uri }}",
                "http://app.example.com/a%2Fb?c=d&e",
            ),
            ("{{ method }} {{ path }} {{ query }}", "GET /a%2Fb c=d&e"),
            (
                "{{ route }}-{{ path.team }}-{{ path.none }}{{ account }}",
                "all-red-",
            ),
        ] {
            let value = in_header(template, "/a%2Fb?c=d&e", &[("team", "red")]).unwrap();
            assert_eq!(value, text, "{template}");
        }
    }

    #[test]
    fn a_value_with_a_control_character_is_not_one_of_a_header() {
        assert_eq!(in_header("{{ path.x }}", "/", &[("x", "a\r\nb: c")]), None);
        assert_eq!(in_header("{{ path.x }}", "/", &[("x", "a\0")]), None);
    }

    #[test]
    fn captured_values_mean_nothing_in_a_url() {
        let evil = [("x", "a b&c=d?#\u{e9}\r\n\\\"<%2F")];
        let url = in_url("/s?q={{ path.x }}", "/", &evil);
        assert_eq!(url, "/s?q=a%20b%26c%3Dd%3F%23%C3%A9%0D%0A%5C%22%3C%2F");
    }

    #[test]
    fn a_path_in_a_url_begins_with_one_slash() {
        for uri in [
            "//evil.example/x?y",
            "///evil.example/x?y",
            "/evil.example/x?y",
        ] {
            assert_eq!(in_url("{{ uri }}", uri, &[]), "/evil.example/x?y");
        }
        assert_eq!(
            in_url("{{ path }}/", "//evil.example", &[]),
            "/evil.example/"
        );
    }

    /// A URL has no way to say it: `https://host/*` is another resource.
    #[test]
    fn an_asterisk_does_not_become_a_path() {
        for (template, url) in [
            ("https://{{ host }}{{ uri }}", "https://app.example.com/"),
            (
                "https://{{ host }}:81{{ path }}",
                "https://app.example.com:81/",
            ),
            ("{{ uri }}", "/"),
        ] {
            assert_eq!(in_url(template, "*", &[]), url);
        }
        assert_eq!(in_header("{{ uri }}", "*", &[]).unwrap(), "*");
    }

    #[test]
    fn what_is_not_a_template_is_told() {
        for (text, told) in [
            ("{{ host", "without"),
            ("{{ hots }}", "`hots`"),
            ("{{ }}", "has no value"),
            ("{{ path. }}", "path.NAME"),
            ("{{ host | upper }}", "has no value"),
        ] {
            let error = RequestTemplate::parse(text).unwrap_err().to_string();
            assert!(error.contains(told), "{text}: {error}");
        }
        assert!(RequestTemplate::parse("{ a } }} {").is_ok());
    }
}
