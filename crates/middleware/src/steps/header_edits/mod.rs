//! Headers that a route sets, adds and removes, on requests to its upstream or on responses.

#[cfg(feature = "config")]
mod config;

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Request};
use smallvec::SmallVec;
use weir_rules::{RequestAttributes, is_lookalike};

use crate::request_template::RequestTemplate;
use crate::steps::response_step::{Outgoing, Phase, PreparedStep, ResponseStep};
use crate::{RequestContext, RequestHead};

#[cfg(feature = "config")]
pub use config::HeaderEditsKeys;

/// Headers to remove, to set and to add, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderEdits {
    /// Headers to remove.
    pub remove: Vec<HeaderName>,
    /// Headers that replace those of the same name.
    pub set: Vec<(HeaderName, HeaderTemplate)>,
    /// Header lines that stand beside those of the same name.
    pub add: Vec<(HeaderName, HeaderTemplate)>,
    /// For responses: whether those of Weir's own, denials and errors, are edited too.
    pub always: bool,
}

/// The value of a header that is set or added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderTemplate {
    /// The same for all requests.
    Fixed(HeaderValue),
    /// With values of the request. A header without any value is not sent.
    Template(RequestTemplate),
}

impl HeaderTemplate {
    fn render(&self, request: &RequestAttributes<'_>) -> Option<HeaderValue> {
        match self {
            Self::Fixed(value) => Some(value.clone()),
            Self::Template(template) => {
                let text = template.header_text(request);
                let value = (!text.is_empty()).then(|| text.into_value());
                value.flatten()
            }
        }
    }
}

/// The edits for one request, with its values in them.
#[derive(Debug)]
pub struct RenderedEdits {
    edits: Arc<HeaderEdits>,
    /// Those of `set`, then those of `add`.
    values: SmallVec<[Option<HeaderValue>; 4]>,
}

impl HeaderEdits {
    pub(crate) fn shows_account(&self) -> bool {
        let mut templates = self.set.iter().chain(&self.add);
        templates.any(|(_, template)| match template {
            HeaderTemplate::Fixed(_) => false,
            HeaderTemplate::Template(template) => template.shows_account(),
        })
    }

    /// The edits for a request.
    pub fn render(self: &Arc<Self>, request: &RequestAttributes<'_>) -> RenderedEdits {
        let templates = self.set.iter().chain(&self.add);
        RenderedEdits {
            values: templates
                .map(|(_, template)| template.render(request))
                .collect(),
            edits: Arc::clone(self),
        }
    }
}

impl RenderedEdits {
    /// The lines that are set or added, by name.
    pub fn lines(&self) -> impl Iterator<Item = (&HeaderName, &HeaderValue)> {
        let names = self.edits.set.iter().chain(&self.edits.add);
        let lines = names.zip(&self.values);
        lines.filter_map(|((name, _), value)| Some((name, value.as_ref()?)))
    }

    /// Edits the headers of a request to an upstream. Removes also headers that an app could take
    /// for one that is removed or set.
    pub fn apply_to_request(self, headers: &mut HeaderMap) {
        let edits = Arc::clone(&self.edits);
        let set = edits.set.iter().map(|(name, _)| name);
        let changed: SmallVec<[&HeaderName; 8]> = edits.remove.iter().chain(set).collect();
        remove_names(headers, |name| {
            changed.iter().any(|real| is_lookalike(name, real))
        });
        self.apply(headers);
    }

    /// Edits the headers. A header that would be set to an empty value is removed, so that a client
    /// cannot set it instead.
    pub fn apply(self, headers: &mut HeaderMap) {
        let Self { edits, values } = self;
        for name in &edits.remove {
            headers.remove(name);
        }
        let mut values = values.into_iter();
        for ((name, _), value) in edits.set.iter().zip(&mut values) {
            match value {
                Some(value) => headers.insert(name, value),
                None => headers.remove(name),
            };
        }
        for ((name, _), value) in edits.add.iter().zip(values) {
            if let Some(value) = value {
                headers.append(name, value);
            }
        }
    }
}

/// Edits of responses.
impl ResponseStep for Arc<HeaderEdits> {
    fn phase(&self) -> Phase {
        Phase::AppFields
    }

    fn prepare(&self, request: &RequestHead<'_>) -> Option<Box<dyn PreparedStep>> {
        Some(Box::new(ResponseEdits::new(self, request)))
    }
}

/// What a route changes about the headers of one response.
#[derive(Debug)]
enum ResponseEdits {
    Rendered(RenderedEdits),
    /// The account, which they show, is learned before the response is there.
    Unverified {
        edits: Arc<HeaderEdits>,
        request: Box<Request<()>>,
    },
}

impl ResponseEdits {
    fn new(edits: &Arc<HeaderEdits>, request: &RequestHead<'_>) -> Self {
        let is_known = RequestContext::unverified(request.extensions).is_none();
        if is_known || !edits.shows_account() {
            return Self::Rendered(edits.render(&request.attributes()));
        }
        let mut head = Request::new(());
        *head.method_mut() = request.method.clone();
        *head.uri_mut() = request.uri.clone();
        *head.headers_mut() = request.headers.clone();
        *head.extensions_mut() = request.extensions.clone();
        Self::Unverified {
            edits: Arc::clone(edits),
            request: Box::new(head),
        }
    }

    fn rendered(self) -> RenderedEdits {
        match self {
            Self::Rendered(edits) => edits,
            Self::Unverified { edits, mut request } => {
                RequestContext::entry(request.extensions_mut()).complete_identity();
                edits.render(&RequestHead::new(&*request).attributes())
            }
        }
    }
}

impl PreparedStep for ResponseEdits {
    fn apply(self: Box<Self>, response: &mut Outgoing) {
        let edits = self.rendered();
        // What suits the app's responses, such as how long they may be cached, is wrong for a 429.
        if !response.is_made() || edits.edits.always {
            edits.apply(response.head.headers_mut());
        }
    }
}

pub(crate) fn remove_names(headers: &mut HeaderMap, is_removed: impl Fn(&HeaderName) -> bool) {
    let names = headers.keys().filter(|name| is_removed(name));
    let names: SmallVec<[HeaderName; 1]> = names.cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request_template::tests::with_values;

    fn template(text: &str) -> HeaderTemplate {
        HeaderTemplate::Template(RequestTemplate::parse(text).unwrap())
    }

    fn named(name: &'static str, value: HeaderTemplate) -> (HeaderName, HeaderTemplate) {
        (HeaderName::from_static(name), value)
    }

    fn edited(edits: HeaderEdits, headers: &[(&'static str, &'static str)]) -> Vec<String> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_static(value));
        }
        let captures = [("evil", "a\r\nx-evil: 1"), ("good", "red")];
        let edits = Arc::new(edits);
        let rendered = with_values("/", &captures, |values| edits.render(values));
        rendered.apply(&mut map);
        let lines = map.iter();
        lines
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect()
    }

    #[test]
    fn headers_are_removed_then_set_then_added() {
        let edits = HeaderEdits {
            remove: vec![HeaderName::from_static("a"), HeaderName::from_static("d")],
            set: vec![
                named("b", HeaderTemplate::Fixed(HeaderValue::from_static("2"))),
                named("d", template("{{ path.good }}")),
            ],
            add: vec![named("c", template("{{ client_address }}"))],
            always: false,
        };
        let before = [
            ("a", "0"),
            ("a", "1"),
            ("b", "0"),
            ("b", "1"),
            ("c", "0"),
            ("d", "0"),
        ];
        let mut lines = edited(edits, &before);
        lines.sort();
        assert_eq!(lines, ["b: 2", "c: 0", "c: 203.0.113.9", "d: red"]);
    }

    /// A client must not be able to name an account to the upstream by having none.
    #[test]
    fn a_header_without_a_value_is_removed_and_nothing_is_injected() {
        for value in ["{{ account }}", "{{ path.none }}", "{{ path.evil }}"] {
            let edits = HeaderEdits {
                set: vec![named("x-account", template(value))],
                add: vec![named("x-account", template(value))],
                ..HeaderEdits::default()
            };
            assert!(
                edited(edits, &[("x-account", "root")]).is_empty(),
                "{value}"
            );
        }
    }
}
