//! The headers of responses that nginx makes itself: their type, and those of `add_header`.

use serde_json::json;

use super::headers::FRAMING;
use super::parse::Directive;
use super::scopes::Scopes;
use crate::configuration::{Configuration, Keys};
use crate::difference::Effect;

/// The statuses of responses that get the headers of an `add_header` without `always`.
const STATUSES: [u16; 10] = [200, 201, 204, 206, 301, 302, 303, 304, 307, 308];

/// The types of extensions, unless a file has `types`.
const DEFAULT_TYPES: [(&str, &str); 3] = [
    ("html", "text/html"),
    ("gif", "image/gif"),
    ("jpg", "image/jpeg"),
];

/// The headers of a text that is returned with a status for this path, or for several ones. What
/// has no equal is listed.
pub(super) fn headers_of_text(
    scopes: &Scopes<'_>,
    (status, path): (u16, Option<&str>),
    at: &Directive,
    configuration: &mut Configuration,
) -> Keys {
    let mut headers = added_headers(scopes, status, configuration);
    let types = Types::of(scopes);
    if path.is_none() && !types.is_empty() {
        let what = "gets one type for all paths: nginx goes by the extension of the path where \
                    `types` has it";
        let remedy = "nothing, unless clients go by the type: with `types {}` both are the same";
        at.report(Effect::Differs, what, remedy, configuration);
    }
    let extension = path.and_then(extension).map(str::to_ascii_lowercase);
    let own = extension.and_then(|extension| types.find(&extension));
    let kind = own.or(Some(scopes.value("default_type")).filter(|kind| !kind.is_empty()));
    let kind = json!(kind.unwrap_or("text/plain"));
    headers.insert("content-type".to_owned(), kind);
    headers
}

/// The headers that `add_header` gives a response with a status. Those that have no equal are
/// listed.
pub(super) fn added_headers(
    scopes: &Scopes<'_>,
    status: u16,
    configuration: &mut Configuration,
) -> Keys {
    let is_sent = |it: &&Directive| it.argument(2) == "always" || STATUSES.contains(&status);
    let added = scopes.all(&["add_header"]).into_iter().filter(is_sent);
    let mut headers = Keys::new();
    // nginx sends no header without a value.
    for directive in added.filter(|it| !it.argument(1).is_empty()) {
        let name = directive.argument(0).to_ascii_lowercase();
        let value = directive.argument(1);
        let is_free = !FRAMING.contains(&&*name) && !NOT_ADDED.contains(&&*name);
        if is_free && !value.contains('$') && !headers.contains_key(&name) {
            headers.insert(name, json!(value));
            continue;
        }
        let what = "is not translated: responses without an upstream do not have it";
        let remedy = "write it among the `headers` of `response` or `reject`, whose values are \
                      fixed";
        directive.report(Effect::Differs, what, remedy, configuration);
    }
    headers
}

/// Headers that are not added to a response: Weir has them already, or lets nobody change them.
const NOT_ADDED: [&str; 6] = [
    "content-type",
    "date",
    "http2-settings",
    "location",
    "proxy-authenticate",
    "proxy-authorization",
];

/// The types of extensions.
enum Types<'d> {
    Default,
    Written(Vec<&'d Directive>),
}

impl<'d> Types<'d> {
    fn of(scopes: &Scopes<'d>) -> Self {
        let blocks = scopes.all(&["types"]);
        match blocks.is_empty() {
            true => Self::Default,
            false => Self::Written(blocks.iter().flat_map(|types| &types.block).collect()),
        }
    }

    fn is_empty(&self) -> bool {
        matches!(self, Self::Written(types) if types.is_empty())
    }

    fn find(&self, extension: &str) -> Option<&'d str> {
        let is_meant = |it: &&String| it.eq_ignore_ascii_case(extension);
        match self {
            Self::Default => {
                let mut types = DEFAULT_TYPES.iter();
                types.find_map(|(of, kind)| (*of == extension).then_some(*kind))
            }
            Self::Written(types) => {
                // Of two types of an extension, the last one counts.
                let mut types = types.iter().rev();
                let found = types.find(|it| it.arguments.iter().any(|own| is_meant(&own)))?;
                Some(&found.name)
            }
        }
    }
}

/// The extension of a path. A name that begins with a point has none.
fn extension(path: &str) -> Option<&str> {
    let name = path.rsplit('/').next()?;
    let (before, extension) = name.rsplit_once('.')?;
    (!before.is_empty()).then_some(extension)
}
