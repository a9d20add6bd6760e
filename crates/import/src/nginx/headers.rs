//! Headers that the app gets by `proxy_set_header`.

use serde_json::json;

use super::maps::variable;
use super::parse::Directive;
use super::scopes::Scopes;
use crate::configuration::{Configuration, Keys};
use crate::difference::Effect;

/// Headers of connections and framing, which Weir does not let anybody change.
pub(super) const FRAMING: [&str; 9] = [
    "connection",
    "content-length",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "expect",
];

/// The key `request_headers` of a route.
pub(super) fn request_headers(scopes: &Scopes<'_>, configuration: &mut Configuration) -> Keys {
    let (mut set, mut removed) = (Keys::new(), Vec::new());
    for directive in scopes.all(&["proxy_set_header"]) {
        let name = directive.argument(0).to_ascii_lowercase();
        let value = directive.argument(1);
        directive.is_reached.set(true);
        if is_own(&name, value) || is_unchanged(&name, value) {
            continue;
        }
        let is_free = name != "host" && !FRAMING.contains(&name.as_str());
        match template(value).filter(|_| is_free) {
            Some(value) if value.is_empty() => removed.push(name),
            Some(value) => {
                set.insert(name, json!(value));
            }
            None => differ(directive, &name, configuration),
        }
    }
    let mut edits = Keys::new();
    edits.extend((!set.is_empty()).then(|| ("set".to_owned(), json!(set))));
    edits.extend((!removed.is_empty()).then(|| ("remove".to_owned(), json!(removed))));
    let edits = (!edits.is_empty()).then(|| ("request_headers".to_owned(), json!(edits)));
    Keys::from_iter(edits)
}

fn differ(directive: &Directive, name: &str, configuration: &mut Configuration) {
    let what = match name {
        "host" => "is not translated: the app gets the name that clients send",
        "x-real-ip" => "is not translated: the app gets no such header",
        _ if name.starts_with("x-forwarded-") => {
            "is not translated: the app gets what Weir says in it"
        }
        _ => "is not translated: the app gets what the client sent",
    };
    let remedy = "say `request_headers: {set: ...}` on the route, or `remove` it there; `host` is a \
                  key of the upstream";
    directive.report(Effect::Differs, what, remedy, configuration);
}

/// Whether it says what Weir says without being told, or concerns the connection.
fn is_own(name: &str, value: &str) -> bool {
    match name {
        "host" if !value.contains('$') => !value.is_empty(),
        "host" => matches!(value, "$host" | "$http_host" | "$proxy_host"),
        "x-forwarded-host" => matches!(value, "$host" | "$http_host"),
        "x-forwarded-for" => matches!(value, "$remote_addr" | "$proxy_add_x_forwarded_for"),
        "x-forwarded-proto" => value == "$scheme",
        "connection" | "upgrade" => true,
        _ => false,
    }
}

/// Whether the app gets what the client sent, in nginx as in Weir.
fn is_unchanged(name: &str, value: &str) -> bool {
    let own = format!("$http_{}", name.replace('-', "_"));
    value == own && !name.starts_with("x-forwarded-") && name != "x-real-ip"
}

/// A text with variables as Weir has it; none if a variable has no equal.
pub(super) fn template(text: &str) -> Option<String> {
    let mut parts = text.split('$');
    let mut written = parts.next().unwrap_or_default().to_owned();
    if text.contains("{{") || text.contains("}}") {
        return None;
    }
    for part in parts {
        let (variable, rest) = variable(part);
        let value = match variable {
            "remote_addr" => "client_address",
            "host" | "http_host" => "host",
            "scheme" => "scheme",
            "request_uri" => "uri",
            "uri" | "document_uri" => "path",
            "args" | "query_string" => "query",
            "request_method" => "method",
            _ => return None,
        };
        written += &format!("{{{{ {value} }}}}{rest}");
    }
    Some(written)
}
