//! The head of a request, as bytes.

use http::{HeaderMap, request};

/// Writes the head of a request whose target is in origin form, but for a path that may be empty, as it can be
/// before a query in an absolute form. Nothing in it needs checking: a method,
/// a target, a name or a value with a line break cannot be made.
pub(super) fn write(head: &request::Parts, to: &mut Vec<u8>) {
    let target = head.uri.path_and_query();
    let target = target.map_or("/", |target| target.as_str());
    to.extend_from_slice(head.method.as_str().as_bytes());
    to.push(b' ');
    if target.starts_with('?') {
        to.push(b'/');
    }
    to.extend_from_slice(target.as_bytes());
    to.extend_from_slice(b" HTTP/1.1\r\n");
    write_fields(&head.headers, to);
}

/// Writes fields, and the empty line that ends them.
pub(super) fn write_fields(fields: &HeaderMap, to: &mut Vec<u8>) {
    for (name, value) in fields {
        to.extend_from_slice(name.as_str().as_bytes());
        to.extend_from_slice(b": ");
        to.extend_from_slice(value.as_bytes());
        to.extend_from_slice(b"\r\n");
    }
    to.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn written(target: &str) -> String {
        let request = Request::get(target).header("a", "1").header("b", "2");
        let (head, ()) = request.header("a", "3").body(()).unwrap().into_parts();
        let mut text = Vec::new();
        write(&head, &mut text);
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn a_head_has_its_fields_line_by_line_and_ends_with_an_empty_one() {
        let fields = "a: 1\r\na: 3\r\nb: 2\r\n\r\n";
        assert_eq!(written("/x?y"), format!("GET /x?y HTTP/1.1\r\n{fields}"));
        assert_eq!(written("*"), format!("GET * HTTP/1.1\r\n{fields}"));
        let absolute = "http://app.example.com?y";
        assert_eq!(written(absolute), format!("GET /?y HTTP/1.1\r\n{fields}"));
    }
}
