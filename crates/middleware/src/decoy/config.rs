//! The keys of `decoys`, and the names by which others choose one.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use weir_rules::RouteMatcher;
use weir_yaml::{Entries, FieldName, Lowered, Lowering, ResponseStatus, Span, Spanned};

use super::counters::is_counter;
use super::{Decoy, Shadow};
use crate::response_keys::{refuse_body, response_headers, status};

/// The answer that a shadow-banned request gets.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Decoy"))]
#[serde(deny_unknown_fields)]
pub struct DecoyKeys {
    /// The status, which should be that of a real response. Default: `200`.
    status: Option<Spanned<ResponseStatus>>,
    /// Headers with fixed values, such as `content-type`.
    headers: Option<Entries<Spanned<String>, FieldName>>,
    /// The body. Type: template. Default: `""`.
    body: Option<Spanned<String>>,
}

/// All decoys, by their names; none in the place of one in error.
#[derive(Default)]
pub struct Decoys<'w> {
    written: Option<&'w Spanned<Entries<Spanned<DecoyKeys>>>>,
    by_name: HashMap<&'w str, Lowered<Arc<Decoy>>>,
    /// The names that others said.
    named: RefCell<HashSet<String>>,
}

impl<'w> Decoys<'w> {
    /// Lowers all of them.
    pub fn read(
        cx: &mut Lowering<'_>,
        written: Option<&'w Spanned<Entries<Spanned<DecoyKeys>>>>,
    ) -> Self {
        let decoys = written.into_iter().flat_map(|decoys| &decoys.value.0);
        let lowered = decoys
            .map(|(name, written)| (name.as_str(), decoy(cx, name, written).map(Arc::new)))
            .collect();
        Self {
            written,
            by_name: lowered,
            named: RefCell::default(),
        }
    }

    /// A decoy for the requests of one route.
    pub(crate) fn of_route(
        &self,
        cx: &mut Lowering<'_>,
        name: &Spanned<String>,
    ) -> Lowered<Arc<Shadow>> {
        Ok(Arc::new(Shadow::new(self.find(cx, name)?)))
    }

    /// A decoy for requests of any route, of which none need capture what it uses.
    pub(crate) fn of_all_routes(
        &self,
        cx: &mut Lowering<'_>,
        name: &Spanned<String>,
    ) -> Lowered<Arc<Decoy>> {
        let decoy = self.find(cx, name)?;
        for used in decoy.captures_used() {
            let message = format!(
                "decoy \"{}\" uses path.{used}, which few routes capture",
                name.value
            );
            cx.error(name.span, message)
                .help("choose one without captured segments, as the banned get it on every route");
        }
        Ok(decoy)
    }

    fn find(&self, cx: &mut Lowering<'_>, name: &Spanned<String>) -> Lowered<Arc<Decoy>> {
        self.note(name);
        if let Some(decoy) = self.by_name.get(name.as_str()) {
            return decoy.clone();
        }
        Err(cx.unknown(
            "decoy",
            name,
            self.written.map(|written| written.span),
            "decoys are defined under `decoys`",
        ))
    }

    /// Remembers that something names the decoy.
    pub(crate) fn note(&self, name: &str) {
        self.named.borrow_mut().insert(name.to_owned());
    }

    /// Reports those that nothing has named.
    pub fn warn_of_unused(&self, cx: &mut Lowering<'_>) {
        let named = self.named.borrow();
        let written = self.written.into_iter();
        for (name, _) in written.flat_map(|written| &written.value.0) {
            if !named.contains(name.as_str()) {
                let help = format!(
                    "say `on_denied: {{shadow: {}}}` on a route or a ban",
                    name.value
                );
                cx.warn(name.span, "nothing uses this decoy").help(help);
            }
        }
    }
}

impl Shadow {
    /// Makes sure that the route captures what the decoy uses.
    pub(crate) fn require_captures(
        &self,
        cx: &mut Lowering<'_>,
        matcher: &RouteMatcher,
        span: Span,
    ) {
        for name in self.decoy.captures_used() {
            if !matcher.capture_names().any(|captured| captured == name) {
                let decoy = self.decoy.name();
                let message = format!("decoy \"{decoy}\" uses path.{name}, which this route lacks");
                cx.error(span, message)
                    .help(format!("capture it in the route's path as `{{{name}}}`"));
            }
        }
    }
}

fn decoy(
    cx: &mut Lowering<'_>,
    name: &Spanned<String>,
    decoy: &Spanned<DecoyKeys>,
) -> Lowered<Decoy> {
    let status = status(decoy.status, StatusCode::OK);
    let headers = response_headers(cx, decoy.headers.as_ref());
    let body = decoy.body.as_ref();
    let span = body.map_or(decoy.span, |body| body.span);
    let text = body.map_or("", |body| body.value.as_str());
    if !text.is_empty() {
        refuse_body(cx, decoy.status, "leave `body` out");
    }
    let headers = headers?;
    warn_of_counters(cx, decoy, &headers);
    let decoy = Decoy::new(name, status, headers, text);
    let decoy = cx.ok(span, decoy)?;
    if !decoy.is_well_formed() {
        cx.warn(
            span,
            "this body is not JSON when the request lacks the values",
        )
        .help(
            "write \"{{ body.name }}\" for a text, and {{ body.count | default(0) }} for a number",
        );
    }
    Ok(decoy)
}

/// A counter that stands still tells the client that nobody counts its requests.
fn warn_of_counters(cx: &mut Lowering<'_>, decoy: &Spanned<DecoyKeys>, headers: &HeaderMap) {
    if let Some(name) = headers.keys().find(|name| is_counter(name.as_str())) {
        let message = format!(
            "{name} is the same in each decoy, and tells a client that nobody counts its requests"
        );
        cx.warn(decoy.span, message).help(
            "leave it out: clients do not get such headers of the app on a route with a decoy, and \
             `ratelimit_headers` of the route sends Weir's own",
        );
    }
}

#[cfg(test)]
mod tests {
    use weir_yaml::testing::lower;

    use super::*;

    /// What is said of decoys of which a route takes the one that is called `sent`, and all routes
    /// as well if `everywhere`.
    fn said(keys: &str, everywhere: bool) -> String {
        let read = lower::<Entries<Spanned<DecoyKeys>>, _>(keys, |cx, written| {
            let decoys = Decoys::read(cx, Some(written));
            let name = Spanned {
                value: "sent".to_owned(),
                span: written.span,
            };
            decoys.of_route(cx, &name)?;
            if everywhere {
                decoys.of_all_routes(cx, &name)?;
            }
            decoys.warn_of_unused(cx);
            Ok(())
        });
        read.err().unwrap_or_default()
    }

    #[test]
    fn what_a_decoy_cannot_be_is_told() {
        for (keys, message) in [
            (
                "{sent: {status: 204, body: hi}}",
                "a response of status 204 has no body",
            ),
            ("{sent: {body: '{{ path.'}}", "syntax error"),
            (
                "{sent: {headers: {connection: close}}}",
                "`connection` is set by the server itself",
            ),
            ("{send: {}}", "unknown decoy \"sent\""),
            ("{sent: {}, other: {}}", "other: nothing uses this decoy"),
            (
                "{sent: {headers: {content-type: application/json}, body: '{\"id\":{{ uuid() }}}'}}",
                "is not JSON when the request lacks the values",
            ),
            (
                "{sent: {headers: {x-ratelimit-remaining: '9'}}}",
                "is the same in each decoy",
            ),
        ] {
            let found = said(keys, false);
            assert!(found.contains(message), "{keys}: {found}");
        }
        assert_eq!(said("{sent: {status: 204}}", true), "");
    }

    #[test]
    fn a_decoy_of_all_routes_uses_nothing_that_one_of_them_may_not_capture() {
        let keys = "{sent: {body: '{{ path.team }}'}}";
        assert_eq!(said(keys, false), "");
        let found = said(keys, true);
        assert!(found.contains("which few routes capture"), "{found}");
    }
}
