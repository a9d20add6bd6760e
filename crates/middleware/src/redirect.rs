//! Redirects: their targets and responses.

use bytes::Bytes;
use http::header::{HeaderValue, LOCATION};
use http::{Response, StatusCode};
use http_body_util::Full;
use thiserror::Error;
use weir_http::problem::Problem;
use weir_rules::{RequestAttributes, with_one_slash};

use super::request_template::{Piece, RequestTemplate, RequestValue};

/// A response that sends the client elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    status: StatusCode,
    to: RequestTemplate,
}

/// Why a redirect cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RedirectError {
    /// The target is neither a path nor a URL.
    #[error(
        "{0:?} is neither a path nor a URL; begin it with `/`, `{{{{ uri }}}}`, `https://` or \
         `http://`"
    )]
    NotAUrl(String),
    /// A value of the request could say which host the client is sent to.
    #[error(
        "clients could choose the host of {0:?}; end the host with `/`, `{{{{ uri }}}}` or \
         `{{{{ path }}}}` before other values"
    )]
    OpenHost(String),
    /// A character that is not one of URLs.
    #[error("{0:?} stands in a URL only percent-encoded; write it as {1}")]
    NotEncoded(char, String),
    /// The status does not redirect.
    #[error("{0} is not the status of a redirect; choose 301, 302, 303, 307 or 308")]
    Status(u16),
}

impl Redirect {
    /// A redirect by this status to a path or URL.
    ///
    /// # Errors
    /// When it is none, or would let clients choose the host.
    pub fn new(status: u16, to: RequestTemplate, text: &str) -> Result<Self, RedirectError> {
        let redirects = matches!(status, 301 | 302 | 303 | 307 | 308);
        let known = StatusCode::from_u16(status).ok().filter(|_| redirects);
        let known = known.ok_or(RedirectError::Status(status))?;
        check(&to, text)?;
        Ok(Self { status: known, to })
    }

    /// The status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The target, with the names of values.
    pub fn to(&self) -> &RequestTemplate {
        &self.to
    }

    /// The target of a request; `None` if it lacks the host that the target needs.
    pub fn location(&self, request: &RequestAttributes<'_>) -> Option<HeaderValue> {
        let url = self.to.url(request)?;
        let url = match url.starts_with('/') {
            // A second slash would make a host of what follows.
            true => with_one_slash(&url).into_owned(),
            false => url,
        };
        HeaderValue::try_from(url).ok()
    }

    pub(super) fn respond(&self, request: &RequestAttributes<'_>) -> Response<Full<Bytes>> {
        let Some(location) = self.location(request) else {
            return no_host();
        };
        let mut response = Response::new(Full::default());
        *response.status_mut() = self.status;
        response.headers_mut().insert(LOCATION, location);
        response
    }
}

/// The response to a request that cannot be redirected, as it names no host to redirect it on.
fn no_host() -> Response<Full<Bytes>> {
    let detail = "The request must name a host.";
    Problem::new(StatusCode::BAD_REQUEST, detail).into_response()
}

/// Stand for values while a target is checked; no text has these characters.
const SCHEME: char = '\u{1}';
const HOST: char = '\u{2}';
const OTHER: char = '\u{3}';

fn check(to: &RequestTemplate, text: &str) -> Result<(), RedirectError> {
    let mut shape = String::new();
    for piece in &to.pieces {
        match piece {
            Piece::Text(fixed) => {
                check_characters(fixed)?;
                shape.push_str(fixed);
            }
            Piece::Value(RequestValue::Scheme) => shape.push(SCHEME),
            Piece::Value(RequestValue::Host) => shape.push(HOST),
            // Both begin with one slash.
            Piece::Value(RequestValue::Path | RequestValue::Uri) => shape.push_str("/path"),
            Piece::Value(_) => shape.push(OTHER),
        }
    }
    if shape.starts_with('/') && !shape.starts_with("//") {
        return Ok(());
    }
    let schemes = ["https://", "http://", "\u{1}://"];
    let behind = schemes.iter().find_map(|scheme| shape.strip_prefix(scheme));
    let not_a_url = || RedirectError::NotAUrl(text.to_owned());
    let behind = behind.ok_or_else(not_a_url)?;
    let authority = behind.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains([OTHER, SCHEME]) {
        return Err(RedirectError::OpenHost(text.to_owned()));
    }
    if authority.is_empty() || authority.starts_with(':') || authority.contains('@') {
        return Err(not_a_url());
    }
    Ok(())
}

fn check_characters(text: &str) -> Result<(), RedirectError> {
    let is_of_url = |char: &char| char.is_ascii_graphic() && !"\"<>\\^`{|}".contains(*char);
    match text.chars().find(|char| !is_of_url(char)) {
        Some(char) => {
            let mut bytes = [0; 4];
            let encoded = char.encode_utf8(&mut bytes).bytes();
            let encoded = encoded.map(|byte| format!("%{byte:02X}")).collect();
            Err(RedirectError::NotEncoded(char, encoded))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::request_template::tests::with_values;
    use super::*;

    fn redirect(to: &str) -> Result<Redirect, RedirectError> {
        Redirect::new(302, RequestTemplate::parse(to).unwrap(), to)
    }

    fn location(to: &str, uri: &str, captures: &[(&str, &str)]) -> String {
        let redirect = redirect(to).unwrap();
        let location = with_values(uri, captures, |values| redirect.location(values));
        location.unwrap().to_str().unwrap().to_owned()
    }

    #[test]
    fn a_client_is_sent_to_a_path_or_a_url() {
        let captures = [("id", "a b"), ("rest", "/x")];
        for (to, expected) in [
            ("/new", "/new"),
            (
                "/new/{{ path.id }}?from={{ host }}",
                "/new/a%20b?from=app.example.com",
            ),
            ("{{ path }}/", "/old/"),
            (
                "https://{{ host }}{{ uri }}",
                "https://app.example.com/old?q=1",
            ),
            (
                "{{ scheme }}://{{ host }}:81/{{ query }}",
                "http://app.example.com:81/q=1",
            ),
            ("/new?{{ query }}&a=1", "/new?q=1&a=1"),
            (
                "/new?from={{ uri }}&q={{ query }}",
                "/new?from=/old%3Fq%3D1&q=q%3D1",
            ),
            (
                "https://www.{{ host }}?{{ query }}",
                "https://www.app.example.com?q=1",
            ),
            (
                "https://[2001:db8::1]:8443{{ path }}",
                "https://[2001:db8::1]:8443/old",
            ),
        ] {
            assert_eq!(location(to, "/old?q=1", &captures), expected, "{to}");
        }
    }

    /// `&` in a query added parameters of the client's to those of the configuration.
    #[test]
    fn what_is_the_value_of_a_parameter_ends_it_with_no_character() {
        let to = "/login?next={{ path }}&query={{ query }}&ok=1";
        assert_eq!(
            location(to, "/a%20b;c?x=1&admin=1#", &[]),
            "/login?next=/a%2520b%3Bc&query=x%3D1%26admin%3D1&ok=1"
        );
        for (to, expected) in [
            (
                "/login?next=https://{{ host }}{{ uri }}",
                "/login?next=https://app.example.com/a%3Fx%3D1%26admin%3D1",
            ),
            (
                "/login?next={{ path }}?{{ query }}&ok=1",
                "/login?next=/a?x%3D1%26admin%3D1&ok=1",
            ),
            ("/b?ok=1&{{ query }}", "/b?ok=1&x=1&admin=1"),
            ("/b=c{{ uri }}", "/b=c/a?x=1&admin=1"),
        ] {
            assert_eq!(location(to, "/a?x=1&admin=1", &[]), expected, "{to}");
        }
    }

    #[test]
    fn no_request_can_choose_the_host() {
        let evil = [("rest", "/evil.example")];
        assert_eq!(location("/{{ path.rest }}", "/", &evil), "/evil.example");
        assert_eq!(
            location("{{ uri }}", "//evil.example/", &[]),
            "/evil.example/"
        );
        let on_host = "https://a.example{{ uri }}";
        assert_eq!(
            location(on_host, "//evil.example", &[]),
            "https://a.example/evil.example"
        );
        for to in [
            "https://a.example{{ path.rest }}",
            "https://{{ path.rest }}/",
            "https://a{{ query }}",
            "https://a.example:{{ query }}/",
            "https://{{ scheme }}/",
        ] {
            assert!(
                matches!(redirect(to), Err(RedirectError::OpenHost(_))),
                "{to}"
            );
        }
    }

    #[test]
    fn what_is_not_a_target_is_told() {
        for to in [
            "",
            "new",
            "//a.example",
            "{{ path.x }}",
            "ftp://a",
            "https://",
            "https:///x",
            "https://:80/",
            "https://u@a.example/",
            "javascript:alert(1)",
            "{{ host }}/",
        ] {
            assert!(
                matches!(redirect(to), Err(RedirectError::NotAUrl(_))),
                "{to}"
            );
        }
        for to in ["/a b", "/a\r\nx: y", "/\u{e9}", "/a\\b", "/a\"b"] {
            assert!(
                matches!(redirect(to), Err(RedirectError::NotEncoded(..))),
                "{to:?}"
            );
        }
        for status in [200, 300, 304, 305, 306, 309, 404, 99] {
            let to = RequestTemplate::parse("/new").unwrap();
            assert_eq!(
                Redirect::new(status, to, "/new"),
                Err(RedirectError::Status(status))
            );
        }
    }
}
