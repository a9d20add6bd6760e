//! Values of headers, bearer tokens, cookies and query parameters.
//!
//! Where a client may write a value twice, it must not be able to show one to Weir and another to
//! the upstream, and so take from a new bucket with every request.

use std::borrow::Cow;
use std::ops::Deref;

use http::{HeaderMap, HeaderName};
use percent_encoding::percent_decode;

/// Stands for what comes with different values: nothing tells which of them the upstream will go
/// by, so all such requests are one subject. No header value can have a NUL.
const SEVERAL: &str = "\0several";

/// Whether a name is the `real` one but for `_` in place of `-`. CGI, and so WSGI, Rack and PHP, show
/// an app both under one name, and nothing tells which of the two it gets.
pub fn is_lookalike(name: &HeaderName, real: &HeaderName) -> bool {
    let with_dashes = |byte: u8| if byte == b'_' { b'-' } else { byte };
    let (name, real) = (name.as_str(), real.as_str());
    name != real
        && name
            .bytes()
            .map(with_dashes)
            .eq(real.bytes().map(with_dashes))
}

/// The value of a header; empty field lines are passed over.
pub(super) fn header<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h [u8]> {
    the_one(lines(headers, name), SEVERAL.as_bytes())
}

/// The token of a header of the scheme `Bearer`, whose name is case-insensitive (RFC 9110,
/// section 11.1).
pub(super) fn bearer<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h [u8]> {
    let tokens = lines(headers, name).filter_map(bearer_token);
    the_one(tokens, SEVERAL.as_bytes())
}

/// The token after `Bearer` in a header's value.
pub(super) fn bearer_token(credentials: &[u8]) -> Option<&[u8]> {
    credentials_of(credentials, b"bearer")
}

/// The credentials after the name of a scheme.
fn credentials_of<'c>(credentials: &'c [u8], scheme: &[u8]) -> Option<&'c [u8]> {
    let (name, token) = credentials.split_at_checked(scheme.len())?;
    let separated = token.first() == Some(&b' ');
    (separated && name.eq_ignore_ascii_case(scheme)).then(|| token.trim_ascii())
}

/// The credentials of the scheme `Basic`; none if there are several.
pub fn basic(headers: &HeaderMap) -> Option<&[u8]> {
    let mut credentials = lines(headers, &http::header::AUTHORIZATION)
        .filter_map(|credentials| credentials_of(credentials, b"basic"));
    let one = credentials.next()?;
    credentials.next().is_none().then_some(one)
}

/// The value of a cookie, percent-decoded and without quotes, since upstreams commonly read it so.
///
/// Some upstreams take the first value of a repeated name and some the last, so different
/// values are as one subject.
pub(super) fn cookie<'h>(headers: &'h HeaderMap, name: &str) -> Option<Cow<'h, [u8]>> {
    let values = lines(headers, &http::header::COOKIE)
        .flat_map(|line| line.split(|&byte| byte == b';'))
        .filter_map(|pair| cookie_value(pair, name));
    let decoded = values.map(|value| percent_decode(value).into());
    the_one(decoded, Cow::Borrowed(SEVERAL.as_bytes()))
}

/// The value of a query parameter, decoded as of a form.
pub(super) fn query<'u>(query: &'u str, name: &str) -> Option<Cow<'u, str>> {
    let pairs = form_urlencoded::parse(query.as_bytes()).filter(|(key, _)| key == name);
    the_one(pairs.map(|(_, value)| value), Cow::Borrowed(SEVERAL))
}

fn lines<'h>(headers: &'h HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'h [u8]> {
    let lines = headers.get_all(name).into_iter();
    lines.map(|line| line.as_bytes().trim_ascii())
}

/// The value that all have in common; empty ones are passed over.
fn the_one<V>(values: impl Iterator<Item = V>, several: V) -> Option<V>
where
    V: Deref<Target: AsRef<[u8]>> + PartialEq,
{
    let mut values = values.filter(|value| !(**value).as_ref().is_empty());
    let first = values.next()?;
    let alike = values.all(|value| value == first);
    Some(if alike { first } else { several })
}

fn cookie_value<'h>(pair: &'h [u8], name: &str) -> Option<&'h [u8]> {
    let equals = pair.iter().position(|&byte| byte == b'=')?;
    let (key, value) = (pair.get(..equals)?, pair.get(equals + 1..)?);
    let value = without_quotes(value.trim_ascii());
    (key.trim_ascii() == name.as_bytes() && !value.is_empty()).then_some(value)
}

fn without_quotes(value: &[u8]) -> &[u8] {
    value
        .strip_prefix(b"\"")
        .and_then(|value| value.strip_suffix(b"\""))
        .unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(name: &'static str, lines: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(name, HeaderValue::from_bytes(line.as_bytes()).unwrap());
        }
        headers
    }

    fn by_header(lines: &[&str]) -> Option<Vec<u8>> {
        let name = HeaderName::from_static("x-key");
        header(&headers("x-key", lines), &name).map(<[u8]>::to_vec)
    }

    fn by_bearer(lines: &[&str]) -> Option<Vec<u8>> {
        let name = http::header::AUTHORIZATION;
        bearer(&headers("authorization", lines), &name).map(<[u8]>::to_vec)
    }

    fn by_cookie(lines: &[&str]) -> Option<String> {
        let value = cookie(&headers("cookie", lines), "session")?.into_owned();
        String::from_utf8(value).ok()
    }

    #[test]
    fn an_empty_header_has_no_value() {
        assert_eq!(by_header(&[]), None);
        assert_eq!(by_header(&["", "  "]), None);
        assert_eq!(by_header(&["", "a", "a"]).unwrap(), b"a");
    }

    #[test]
    fn a_header_with_different_values_is_the_same_subject_whatever_they_are() {
        assert_eq!(by_header(&["a", "b"]).unwrap(), SEVERAL.as_bytes());
        assert_eq!(by_header(&["a", "b"]), by_header(&["a", "c", "d"]));
        assert_eq!(
            by_bearer(&["Bearer a", "bearer b"]).unwrap(),
            SEVERAL.as_bytes()
        );
    }

    #[test]
    fn the_scheme_of_a_bearer_token_is_case_insensitive() {
        assert_eq!(by_bearer(&["Bearer a"]).unwrap(), b"a");
        assert_eq!(by_bearer(&["bEARER   a"]).unwrap(), b"a");
        for other in ["Bearer", "Bearer ", "Basic a", "Bearera", ""] {
            assert_eq!(by_bearer(&[other]), None, "{other:?}");
        }
    }

    #[test]
    fn cookies_are_found_in_all_field_lines() {
        assert_eq!(by_cookie(&["a=1; session=x", "session=x"]).unwrap(), "x");
        assert_eq!(by_cookie(&["a=1", "b=2;session=y"]).unwrap(), "y");
        assert_eq!(by_cookie(&["session=; session=x=y"]).unwrap(), "x=y");
        assert_eq!(by_cookie(&["Session=x; xsession=y; session"]), None);
    }

    #[test]
    fn a_cookie_with_different_values_is_the_same_subject_whatever_they_are() {
        assert_eq!(by_cookie(&["session=x; session=y"]).unwrap(), SEVERAL);
        assert_eq!(by_cookie(&["session=1", "session=y"]).unwrap(), SEVERAL);
    }

    #[test]
    fn another_spelling_of_a_cookie_is_no_other_cookie() {
        for spelling in ["abc", "\"abc\"", "%61bc", " abc "] {
            let line = format!("session={spelling}");
            assert_eq!(by_cookie(&[&line]).unwrap(), "abc", "{spelling:?}");
        }
    }

    #[test]
    fn query_parameters_are_decoded_and_different_values_are_the_same_subject() {
        let value = |text| query(text, "q").map(Cow::into_owned);
        assert_eq!(value("a=b&q=x%20y+z&q=x+y%20z").unwrap(), "x y z");
        assert_eq!(value("q=1&q=2").unwrap(), SEVERAL);
        assert_eq!(value("q=&%71=2").unwrap(), "2");
        assert_eq!(value("q&q="), None);
    }
}
