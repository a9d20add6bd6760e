//! The actions of a route beside forwarding, for `weir explain`.

use std::fmt::{self, Write};
use std::sync::Arc;

use weir_config::Route;
use weir_middleware::{HeaderEdits, LocalResponse};
use weir_rules::RequestAttributes;

/// Writes where a request goes or what answers it, and which headers change.
pub(super) fn write_action(
    out: &mut String,
    route: &Route,
    facts: &RequestAttributes<'_>,
) -> fmt::Result {
    let action = &route.action;
    let rewrite = action.rewrite.as_ref();
    let rewritten = rewrite.and_then(|rewrite| rewrite.rewritten(facts.uri));
    match &action.response {
        Some(LocalResponse::Redirect(redirect)) => {
            let status = redirect.status();
            let rewritten = RequestAttributes {
                uri: rewritten.as_ref().unwrap_or(facts.uri),
                ..*facts
            };
            match redirect.location(&rewritten) {
                Some(location) => {
                    let location = String::from_utf8_lossy(location.as_bytes()).into_owned();
                    writeln!(out, "  is redirected to {location} ({status})")?;
                }
                None => writeln!(out, "  cannot be redirected, as it names no host (400)")?,
            }
        }
        Some(LocalResponse::Fixed(fixed)) => {
            let (status, bytes) = (fixed.status, fixed.body.len());
            writeln!(
                out,
                "  is answered with {status} and a fixed body of {bytes} bytes"
            )?;
        }
        None => {
            write_upstream(out, route)?;
            if let Some(target) = rewritten.as_ref().and_then(http::Uri::path_and_query) {
                writeln!(out, "  as {target}")?;
            }
        }
    }
    write_edits(out, "request", action.request_headers.as_ref(), facts)?;
    write_edits(out, "response", action.response_headers.as_ref(), facts)
}

fn write_upstream(out: &mut String, route: &Route) -> fmt::Result {
    let Some(upstream) = &route.upstream else {
        return writeln!(
            out,
            "  goes nowhere from here (404): the route is for decisions alone"
        );
    };
    let kind = match upstream.is_demo {
        true => " (the demo upstream)",
        false => "",
    };
    writeln!(out, "  goes to upstream {}{kind}", upstream.settings.name)
}

fn write_edits(
    out: &mut String,
    of: &str,
    edits: Option<&Arc<HeaderEdits>>,
    facts: &RequestAttributes<'_>,
) -> fmt::Result {
    let Some(edits) = edits else { return Ok(()) };
    for name in &edits.remove {
        writeln!(out, "  removes {of} header {name}")?;
    }
    let rendered = edits.render(facts);
    for (name, value) in rendered.lines() {
        let value = String::from_utf8_lossy(value.as_bytes());
        writeln!(out, "  {of} header {name}: {value}")?;
    }
    Ok(())
}
