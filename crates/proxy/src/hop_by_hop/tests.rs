use http::HeaderValue;
use proptest::prelude::*;

use super::*;

fn headers(fields: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        headers.append(
            HeaderName::from_bytes(name.as_bytes()).unwrap(),
            HeaderValue::from_str(value).unwrap(),
        );
    }
    headers
}

fn left(fields: &[(&str, &str)]) -> Vec<(String, String)> {
    let mut headers = headers(fields);
    strip(&mut headers);
    lines(&headers)
}

fn lines(headers: &HeaderMap) -> Vec<(String, String)> {
    headers
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
        .collect()
}

fn owned(fields: &[(&str, &str)]) -> Vec<(String, String)> {
    lines(&headers(fields))
}

#[test]
fn fields_of_the_connection_are_removed_and_the_others_keep_their_order() {
    let fields = [
        ("server", "nginx"),
        ("connection", "keep-alive"),
        ("date", "today"),
        ("keep-alive", "timeout=5"),
        ("set-cookie", "a=1"),
        ("set-cookie", "b=2"),
        ("transfer-encoding", "chunked"),
        ("etag", "x"),
    ];
    let kept = [
        ("server", "nginx"),
        ("date", "today"),
        ("set-cookie", "a=1"),
        ("set-cookie", "b=2"),
        ("etag", "x"),
    ];
    assert_eq!(left(&fields), owned(&kept));
}

#[test]
fn fields_of_the_connection_at_the_end_are_removed_in_place() {
    let fields = [
        ("date", "today"),
        ("connection", "keep-alive"),
        ("keep-alive", "timeout=5"),
        ("transfer-encoding", "chunked"),
    ];
    assert_eq!(left(&fields), owned(&[("date", "today")]));
}

#[test]
fn every_line_of_connection_names_fields() {
    let fields = [
        ("connection", "x-one, X-Two"),
        ("x-one", "1"),
        ("x-two", "2"),
        ("connection", ",, x-three ,"),
        ("x-three", "3"),
        ("x-four", "4"),
    ];
    assert_eq!(left(&fields), owned(&[("x-four", "4")]));
}

#[test]
fn connection_cannot_remove_what_tells_who_the_client_is_or_where_the_body_ends() {
    let kept = [
        ("host", "app"),
        ("content-length", "3"),
        ("x-forwarded-for", "203.0.113.9"),
        ("forwarded", "for=203.0.113.9"),
        ("x-real-ip", "203.0.113.9"),
        ("authorization", "Bearer t"),
        ("cookie", "session=1"),
    ];
    let names: Vec<&str> = kept.iter().map(|(name, _)| *name).collect();
    let mut fields = kept.to_vec();
    let list = names.join(", ");
    fields.push(("connection", &list));
    assert_eq!(left(&fields), owned(&kept));
}

#[test]
fn a_member_is_found_in_any_line_and_case() {
    let headers = headers(&[("te", "deflate;q=0.5"), ("te", "gzip, Trailers")]);
    assert!(has_token(&headers, TE, "trailers"));
    assert!(!has_token(&headers, TE, "deflate"));
}

fn field() -> impl Strategy<Value = (String, String)> {
    let name = prop::sample::select(vec![
        "connection",
        "keep-alive",
        "transfer-encoding",
        "te",
        "upgrade",
        "proxy-connection",
        "x-a",
        "x-b",
        "x-c",
        "host",
        "content-length",
        "x-forwarded-for",
        "set-cookie",
    ]);
    let value = prop::sample::select(vec![
        "x-a",
        "X-B , close",
        "keep-alive, x-c",
        "host, content-length, x-forwarded-for",
        "bad name, x-a",
        ",",
        "1",
    ]);
    (name, value).prop_map(|(name, value)| (name.to_owned(), value.to_owned()))
}

proptest! {
    /// The same by the book: split, compare, filter.
    #[test]
    fn what_is_left_is_what_was_not_named(fields in prop::collection::vec(field(), 0..12)) {
        let fields: Vec<(&str, &str)> =
            fields.iter().map(|(name, value)| (&**name, &**value)).collect();
        let before = headers(&fields);
        let named: Vec<String> = fields
            .iter()
            .filter(|(name, _)| *name == "connection")
            .flat_map(|(_, value)| value.split(','))
            .map(|option| option.trim().to_ascii_lowercase())
            .collect();
        let expected: Vec<(String, String)> = lines(&before)
            .into_iter()
            .filter(|(name, _)| {
                let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
                let named = named.iter().any(|option| option == name.as_str());
                !is_hop_by_hop(&name) && (!named || is_kept(&name))
            })
            .collect();
        let mut after = before;
        strip(&mut after);
        prop_assert_eq!(lines(&after), expected);
    }
}
