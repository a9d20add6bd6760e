//! Templates of decoys, for [`crate::fuzzing`].

use http::{HeaderMap, HeaderValue, header};

use super::template::{Facts, Template};
use crate::rules::Captures;

/// A template, and after a line of `---` the body of a request that it is rendered for.
pub fn template(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else {
        return;
    };
    let (source, body) = text.split_once("\n---\n").unwrap_or((text, ""));
    for content_type in ["application/json", "text/html", "text/plain"] {
        let Ok(template) = Template::parse(source, content_type) else {
            continue;
        };
        template.is_well_formed();
        template.captures_used();
        for form in ["application/json", "application/x-www-form-urlencoded"] {
            render(&template, form, body);
        }
    }
}

/// Renders for a body of this form. It may fail; it must not take long, or the process down.
fn render(template: &Template, form: &'static str, body: &str) {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(form));
    let captures: Captures = [("team", "red\"<")].into_iter().collect();
    let _ = template.render(&Facts {
        captures: Some(&captures),
        headers: &headers,
        body: body.as_bytes(),
    });
}
