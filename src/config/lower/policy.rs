//! What a denied request gets, and what clients are told of limits.

use std::sync::Arc;

use http::StatusCode;

use super::decoys::Decoys;
use super::{Lowered, Lowering};
use crate::config::schema::{self, HeaderForm, RouteDefaults};
use crate::config::yaml::{OneOrMany, Spanned};
use crate::middleware::decoy::Shadow;
use crate::middleware::{HeaderForms, OnDenied, Rejection};

impl Lowering<'_> {
    /// What a denied request gets: as the route says, or the defaults.
    pub(super) fn on_denied(
        &mut self,
        route: &schema::Route,
        defaults: Option<&RouteDefaults>,
        decoys: &Decoys<'_>,
    ) -> Lowered<OnDenied> {
        let inherited = || defaults.and_then(|it| it.on_denied.as_ref());
        let Some(written) = route.on_denied.as_ref().or_else(inherited) else {
            return Ok(OnDenied::Reject(Rejection::default()));
        };
        match &written.value {
            schema::OnDenied::Reject(None) => Ok(OnDenied::Reject(Rejection::default())),
            schema::OnDenied::Reject(Some(written)) => self
                .rejection(written, StatusCode::TOO_MANY_REQUESTS)
                .map(OnDenied::Reject),
            schema::OnDenied::Shadow(name) => {
                let decoy = self.find_decoy(name, decoys)?;
                Ok(OnDenied::Shadow(Arc::new(Shadow::new(decoy))))
            }
        }
    }

    pub(super) fn rejection(
        &mut self,
        written: &schema::Rejection,
        status: StatusCode,
    ) -> Lowered<Rejection> {
        let status = self.status(written.status, status);
        let headers = self.answer_fields(written.headers.as_ref());
        if written.body.as_ref().is_none_or(|body| !body.is_empty()) {
            self.no_body_without_room(written.status, "say `body: \"\"`");
        }
        Ok(Rejection {
            status: status?,
            headers: headers?,
            body: written.body.clone().map(Into::into),
        })
    }

    /// Which fields a route sends. One that shadow-bans sends none unless it asks for them itself:
    /// on the answers of other routes they would tell a ban from a real answer.
    pub(super) fn header_forms(
        &mut self,
        route: &schema::Route,
        defaults: Option<&RouteDefaults>,
        shadows: bool,
    ) -> Lowered<HeaderForms> {
        let inherited = || defaults.and_then(|it| it.headers.as_ref());
        match &route.headers {
            Some(own) => self.forms(own),
            None if shadows => Ok(HeaderForms::NONE),
            None => match inherited() {
                Some(inherited) => self.forms(inherited),
                None => Ok(HeaderForms::default()),
            },
        }
    }

    fn forms(&mut self, written: &Spanned<OneOrMany<Spanned<HeaderForm>>>) -> Lowered<HeaderForms> {
        let forms: Vec<HeaderForm> = written.0.iter().map(|it| it.value).collect();
        if forms.len() > 1 && forms.contains(&HeaderForm::None) {
            let complaint = self.error(written.span, "\"none\" stands alone");
            return Err(complaint.help("leave it out, or leave the others out"));
        }
        Ok(HeaderForms {
            draft: forms.contains(&HeaderForm::Draft),
            draft_03: forms.contains(&HeaderForm::Draft03),
            x_ratelimit: forms.contains(&HeaderForm::XRatelimit),
        })
    }
}
