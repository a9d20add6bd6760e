//! What the banned and the blocked get, prepared for every route.

use std::sync::Arc;

use bytes::Bytes;

use crate::middleware::decoy::Shadow;
use crate::middleware::rate_limit::reject;
use crate::middleware::{Rejection, Treatment};

/// What somebody gets who is kept out, with all that can be prepared at load time.
pub(in crate::middleware::rate_limit) struct PreparedTreatment {
    treatment: Treatment,
    /// By route, where there is a decoy: each learns from its own route's answers.
    shadows: Vec<Arc<Shadow>>,
    /// The problem document of an honest answer.
    document: Bytes,
}

impl PreparedTreatment {
    pub(super) fn new(treatment: Treatment, routes: usize, detail: &str) -> Self {
        let shadows = match &treatment {
            Treatment::Shadow(decoy) => (0..routes)
                .map(|_| Arc::new(Shadow::new(Arc::clone(decoy))))
                .collect(),
            _ => Vec::new(),
        };
        let status = honest(&treatment).map_or(Rejection::default().status, |it| it.status);
        Self {
            treatment,
            shadows,
            document: reject::kept_out(status, detail),
        }
    }

    pub(super) fn treatment(&self) -> &Treatment {
        &self.treatment
    }

    pub(super) fn document(&self) -> Bytes {
        self.document.clone()
    }

    pub(super) fn shadows(&self) -> &[Arc<Shadow>] {
        &self.shadows
    }

    /// The decoy of a route; none where no route matched.
    pub(super) fn shadow(&self, route: Option<usize>) -> Option<&Arc<Shadow>> {
        self.shadows.get(route?)
    }
}

/// The honest answer of a treatment, if it has one.
fn honest(treatment: &Treatment) -> Option<&Rejection> {
    match treatment {
        Treatment::Reject(rejection) => Some(rejection),
        Treatment::Tarpit(tarpit) => Some(&tarpit.rejection),
        Treatment::Shadow(_) | Treatment::Divert(_) | Treatment::Drop => None,
    }
}
