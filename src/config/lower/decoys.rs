//! The invented answers of shadow bans.

use std::sync::Arc;

use http::StatusCode;

use super::{Lowered, Lowering};
use crate::config::schema;
use crate::config::yaml::{Entries, Spanned};
use crate::middleware::decoy::Decoy;

/// All decoys, by their names; none in the place of one in error.
#[derive(Default)]
pub(super) struct Decoys<'w> {
    written: Option<&'w Spanned<Entries<Spanned<schema::Decoy>>>>,
    lowered: Vec<Lowered<Arc<Decoy>>>,
}

impl Lowering<'_> {
    pub(super) fn decoys<'w>(
        &mut self,
        written: Option<&'w Spanned<Entries<Spanned<schema::Decoy>>>>,
    ) -> Decoys<'w> {
        let decoys = written.into_iter().flat_map(|it| &it.value.0);
        let lowered = decoys
            .map(|(name, decoy)| self.decoy(name, decoy).map(Arc::new))
            .collect();
        Decoys { written, lowered }
    }

    fn decoy(&mut self, name: &Spanned<String>, decoy: &Spanned<schema::Decoy>) -> Lowered<Decoy> {
        let status = self.status(decoy.status, StatusCode::OK);
        let headers = self.answer_fields(decoy.headers.as_ref());
        let body = decoy.body.as_ref();
        let place = body.map_or(decoy.place, |body| body.place);
        let text = body.map_or("", |body| body.value.as_str());
        if !text.is_empty() {
            self.no_body_without_room(decoy.status, "leave `body` out");
        }
        let decoy = Decoy::new(name, status?, headers?, text);
        let decoy = self.ok(place, decoy)?;
        if !decoy.is_well_formed() {
            self.warn(place, "this body is no JSON where the request has no value to put in")
                .remedy(
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
        let written = decoys.written.into_iter().flat_map(|it| &it.value.0);
        let mut both = written.zip(&decoys.lowered);
        if let Some((_, decoy)) = both.find(|((it, _), _)| it.value == name.value) {
            return decoy.clone();
        }
        let place = decoys.written.map(|it| it.place);
        Err(self.unknown("decoy", name, place, "decoys are defined under `decoys`"))
    }
}
