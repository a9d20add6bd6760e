//! The invented answers of shadow bans.

use std::collections::HashMap;
use std::sync::Arc;

use http::StatusCode;

use super::{Lowered, Lowering};
use crate::config::schema;
use crate::config::yaml::{Entries, Span, Spanned};
use crate::middleware::decoy::Decoy;

/// All decoys, by their names; none in the place of one in error.
#[derive(Default)]
pub(super) struct Decoys<'w> {
    span: Option<Span>,
    by_name: HashMap<&'w str, Lowered<Arc<Decoy>>>,
}

impl Lowering<'_> {
    pub(super) fn decoys<'w>(
        &mut self,
        written: Option<&'w Spanned<Entries<Spanned<schema::Decoy>>>>,
    ) -> Decoys<'w> {
        let decoys = written.into_iter().flat_map(|it| &it.value.0);
        let by_name = decoys
            .map(|(name, decoy)| (name.as_str(), self.decoy(name, decoy).map(Arc::new)))
            .collect();
        Decoys {
            span: written.map(|written| written.span),
            by_name,
        }
    }

    fn decoy(&mut self, name: &Spanned<String>, decoy: &Spanned<schema::Decoy>) -> Lowered<Decoy> {
        let status = self.status(decoy.status, StatusCode::OK);
        let headers = self.answer_fields(decoy.headers.as_ref());
        let body = decoy.body.as_ref();
        let span = body.map_or(decoy.span, |body| body.span);
        let text = body.map_or("", |body| body.value.as_str());
        if !text.is_empty() {
            self.no_body_without_room(decoy.status, "leave `body` out");
        }
        let decoy = Decoy::new(name, status?, headers?, text);
        let decoy = self.ok(span, decoy)?;
        if !decoy.is_well_formed() {
            self.warn(span, "this body is no JSON where the request has no value to put in")
                .help(
                    "write \"{{ body.name }}\" for a text, and {{ body.count | default(0) }} for a number",
                );
        }
        Ok(decoy)
    }

    /// A decoy by its name.
    pub(super) fn find_decoy(
        &mut self,
        name: &Spanned<String>,
        decoys: &Decoys<'_>,
    ) -> Lowered<Arc<Decoy>> {
        if let Some(decoy) = decoys.by_name.get(name.as_str()) {
            return decoy.clone();
        }
        Err(self.unknown(
            "decoy",
            name,
            decoys.span,
            "decoys are defined under `decoys`",
        ))
    }
}
