//! Headers that are lists (RFC 9110, section 5.6.1).

use http::header::{HeaderMap, HeaderName, HeaderValue, VARY};

/// All elements of one line, the empty ones too, which a list may have without end.
pub fn elements(line: &HeaderValue) -> impl DoubleEndedIterator<Item = &[u8]> {
    let elements = line.as_bytes().split(|byte| *byte == b',');
    elements.map(<[u8]>::trim_ascii)
}

/// The elements of one line that are not empty.
pub fn members(line: &HeaderValue) -> impl DoubleEndedIterator<Item = &[u8]> {
    elements(line).filter(|element| !element.is_empty())
}

/// The members of all lines of a field. Lines that are not visible ASCII have none.
pub fn texts<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = &'h str> + use<'h> {
    let lines = headers.get_all(name).into_iter();
    let lines = lines.filter(|line| line.to_str().is_ok());
    let members = lines.flat_map(members);
    members.filter_map(|member| str::from_utf8(member).ok())
}

/// Says in `Vary` that the response depends on a header of the request, unless it says so already.
pub fn vary_by(headers: &mut HeaderMap, name: &HeaderName) {
    let is_it =
        |member: &[u8]| member == b"*" || member.eq_ignore_ascii_case(name.as_str().as_bytes());
    let is_listed = headers.get_all(VARY).iter().flat_map(members).any(is_it);
    if !is_listed {
        headers.append(VARY, name.clone().into());
    }
}

#[cfg(test)]
mod tests {
    use http::header::ORIGIN;

    use super::*;

    fn vary(lines: &[&'static str]) -> HeaderMap {
        let lines = lines.iter();
        lines
            .map(|line| (VARY, HeaderValue::from_static(line)))
            .collect()
    }

    #[test]
    fn members_are_those_of_all_lines_and_none_is_empty() {
        let headers = vary(&["a,, b ,", "", "\tc"]);
        let texts: Vec<&str> = texts(&headers, &VARY).collect();
        assert_eq!(texts, ["a", "b", "c"]);
    }

    #[test]
    fn a_header_is_added_to_vary_unless_it_is_listed() {
        for (lines, is_added) in [
            (&[][..], true),
            (&["accept", "x-origin"], true),
            (&["accept, Origin"], false),
            (&["accept", "*"], false),
        ] {
            let mut headers = vary(lines);
            vary_by(&mut headers, &ORIGIN);
            let added = headers.get_all(VARY).iter().count() - lines.len();
            assert_eq!(added, usize::from(is_added), "{lines:?}");
        }
    }
}
