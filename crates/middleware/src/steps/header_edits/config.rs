//! The keys of `request_headers` and `response_headers`.

use std::sync::Arc;

use http::header::{EXPECT, HOST};
use http::{HeaderName, HeaderValue};
use serde::Deserialize;
use weir_rules::RouteMatcher;
use weir_yaml::{Entries, FieldName, Lowered, Lowering, OneOrMany, Spanned, all, is_of_connection};

use super::{HeaderEdits, HeaderTemplate};
use crate::RequestTemplate;

/// What is changed about headers. `always` is for those of responses alone.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "HeaderEdits"))]
#[serde(deny_unknown_fields)]
pub struct HeaderEditsKeys {
    /// Headers that are removed, before all else. Type: name or list of them.
    remove: Option<Spanned<OneOrMany<Spanned<FieldName>>>>,
    /// Headers that take the place of those with the same name.
    set: Option<Spanned<Entries<Spanned<String>, FieldName>>>,
    /// Headers that are added beside those with the same name.
    add: Option<Spanned<Entries<Spanned<String>, FieldName>>>,
    /// For `response_headers`: whether denials and errors that Weir responds with are changed as
    /// well. Default: `false`.
    always: Option<Spanned<bool>>,
}

/// Which headers are edited.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Requests,
    Responses,
}

impl HeaderEditsKeys {
    /// The headers that are set, added or removed, as they are written.
    pub fn names(&self) -> impl Iterator<Item = &Spanned<FieldName>> {
        let entries = self.set.iter().chain(&self.add);
        let written = entries.flat_map(|entries| entries.0.iter().map(|(name, _)| name));
        written.chain(self.remove.iter().flat_map(|names| &names.value.0))
    }

    /// The edits of requests on a route that matches so. None where nothing is edited.
    ///
    /// # Errors
    /// When the keys are in error, which is reported.
    pub fn of_requests(
        written: &Spanned<Self>,
        cx: &mut Lowering<'_>,
        matcher: Option<&RouteMatcher>,
    ) -> Lowered<Option<Arc<HeaderEdits>>> {
        if let Some(always) = &written.always {
            cx.error(
                always.span,
                "`always` is for `response_headers`: denied requests are not forwarded",
            )
            .help("leave it out");
        }
        edits(cx, written, Of::Requests, matcher)
    }

    /// The same for responses.
    ///
    /// # Errors
    /// When the keys are in error, which is reported.
    pub fn of_responses(
        written: &Spanned<Self>,
        cx: &mut Lowering<'_>,
        matcher: Option<&RouteMatcher>,
    ) -> Lowered<Option<Arc<HeaderEdits>>> {
        edits(cx, written, Of::Responses, matcher)
    }
}

fn edits(
    cx: &mut Lowering<'_>,
    written: &Spanned<HeaderEditsKeys>,
    of: Of,
    matcher: Option<&RouteMatcher>,
) -> Lowered<Option<Arc<HeaderEdits>>> {
    let set = templates(cx, written.set.as_ref(), of, matcher);
    let add = templates(cx, written.add.as_ref(), of, matcher);
    let remove = written.remove.iter().flat_map(|names| &names.value.0);
    let remove = all(remove.map(|name| editable(cx, name, of)));
    let is_idle = written.set.as_ref().is_none_or(|set| cx.is_empty(set))
        && written.add.as_ref().is_none_or(|add| cx.is_empty(add))
        && written
            .remove
            .as_ref()
            .is_none_or(|names| cx.is_empty(names));
    let edits = HeaderEdits {
        set: set?,
        add: add?,
        remove: remove?,
        always: written.always.is_some_and(|always| always.value),
    };
    if is_idle && edits.always {
        return Err(cx
            .error(written.span, "no header is changed")
            .help("say `set`, `add` or `remove`"));
    }
    // An empty list leaves out what the defaults change.
    Ok((!is_idle).then(|| Arc::new(edits)))
}

fn templates(
    cx: &mut Lowering<'_>,
    written: Option<&Spanned<Entries<Spanned<String>, FieldName>>>,
    of: Of,
    matcher: Option<&RouteMatcher>,
) -> Lowered<Vec<(HeaderName, HeaderTemplate)>> {
    let written = written.into_iter().flat_map(|entries| &entries.value.0);
    all(written.map(|(name, value)| {
        let (name, value) = (editable(cx, name, of), header_template(cx, value, matcher));
        Ok((name?, value?))
    }))
}

/// A header that may be changed.
fn editable(cx: &mut Lowering<'_>, name: &Spanned<FieldName>, of: Of) -> Lowered<HeaderName> {
    let header = name.0.clone();
    let is_of_connection =
        is_of_connection(header.as_str()) || (of == Of::Requests && header == EXPECT);
    let refused = |cx: &mut Lowering<'_>, message: String, help: &str| {
        Err(cx.error(name.span, message).help(help))
    };
    if is_of_connection {
        let message = format!("`{header}` is of one connection, and the proxy sets it itself");
        return refused(cx, message, "leave it out");
    }
    if of == Of::Requests && header == HOST {
        let message = "`host` is set for all requests to an upstream".to_owned();
        return refused(cx, message, "say `host` on the upstream");
    }
    Ok(header)
}

fn header_template(
    cx: &mut Lowering<'_>,
    text: &Spanned<String>,
    matcher: Option<&RouteMatcher>,
) -> Lowered<HeaderTemplate> {
    if text.value.trim().is_empty() {
        let message = "a header without a value is not sent";
        return Err(cx
            .error(text.span, message)
            .help("list it under `remove` to keep it away"));
    }
    let template = cx.ok(text.span, RequestTemplate::parse(text))?;
    template.require_captures(cx, matcher, text.span)?;
    // What stands between values must be of a header, too.
    let value: Lowered<HeaderValue> = cx.header_value(text);
    Ok(match template.as_fixed() {
        Some(_) => HeaderTemplate::Fixed(value?),
        None => {
            value?;
            HeaderTemplate::Template(template)
        }
    })
}

#[cfg(test)]
mod tests {
    use weir_rules::PathPattern;
    use weir_yaml::testing::lower;

    use super::*;

    fn read(of: Of, keys: &str) -> Result<Option<HeaderEdits>, String> {
        let matcher = RouteMatcher {
            host: None,
            path: PathPattern::parse("/{team}/*").unwrap(),
            path_regex: None,
            methods: Vec::new(),
            headers: Vec::new(),
            query: Vec::new(),
            preflights: false,
        };
        let edits = lower::<HeaderEditsKeys, _>(keys, |cx, written| match of {
            Of::Requests => HeaderEditsKeys::of_requests(written, cx, Some(&matcher)),
            Of::Responses => HeaderEditsKeys::of_responses(written, cx, Some(&matcher)),
        });
        edits.map(|edits| edits.map(|edits| (*edits).clone()))
    }

    #[test]
    fn what_is_written_is_edited_and_empty_lists_leave_out_what_the_defaults_edit() {
        let keys = "{remove: server, set: {x-a: '1'}, add: {x-b: '{{ path.team }}'}, always: true}";
        let edits = read(Of::Responses, keys).unwrap().unwrap();
        let fixed = HeaderTemplate::Fixed(HeaderValue::from_static("1"));
        let template = RequestTemplate::parse("{{ path.team }}").unwrap();
        let expected = HeaderEdits {
            remove: vec![HeaderName::from_static("server")],
            set: vec![(HeaderName::from_static("x-a"), fixed)],
            add: vec![(
                HeaderName::from_static("x-b"),
                HeaderTemplate::Template(template),
            )],
            always: true,
        };
        assert_eq!(edits, expected);
        assert_eq!(read(Of::Requests, "{}"), Ok(None));
        assert_eq!(read(Of::Responses, "{remove: [], set: {}}"), Ok(None));
    }

    #[test]
    fn edits_that_cannot_be_made_are_refused() {
        for (of, keys, message) in [
            (
                Of::Requests,
                "{remove: a, always: true}",
                "`always` is for `response_headers`",
            ),
            (Of::Responses, "{always: true}", "no header is changed"),
            (
                Of::Responses,
                "{set: {connection: close}}",
                "is of one connection",
            ),
            (Of::Requests, "{remove: expect}", "is of one connection"),
            (
                Of::Requests,
                "{set: {host: a}}",
                "`host` is set for all requests",
            ),
            (
                Of::Responses,
                "{set: {x-a: ''}}",
                "a header without a value",
            ),
            (
                Of::Responses,
                "{set: {x-a: '{{ path.user }}'}}",
                "captures no `user`",
            ),
            (Of::Responses, "{sets: {}}", "did you mean \"set\"?"),
        ] {
            let found = read(of, keys).unwrap_err();
            assert!(found.contains(message), "{keys}: {found}");
            assert!(found.contains("1 error, "), "{keys}: {found}");
        }
        assert!(read(Of::Responses, "{remove: expect, set: {host: a}}").is_ok());
    }
}
