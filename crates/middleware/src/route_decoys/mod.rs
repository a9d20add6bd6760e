//! The decoys of one route, which learn from its responses: those of its limits, and of who is kept
//! out.

mod sample;

use std::sync::Arc;

use http::HeaderMap;

use crate::access::AccessControl;
use crate::decoy::{Shadow, withhold};
use crate::rate_limit::on_denied::OnDenied;

/// The decoys of a route, at least one, which learn from its responses and from those alone.
#[derive(Clone)]
pub(super) struct RouteDecoys(Vec<(ShadowOwner, Arc<Shadow>)>);

/// What on a route uses a decoy.
#[derive(Clone, PartialEq, Eq)]
enum ShadowOwner {
    /// Clients that the route's limits deny.
    Limits,
    /// Clients that the ban of this name keeps out, or the block list.
    KeptOut(Option<Arc<str>>),
}

impl RouteDecoys {
    /// Those of a route whose limits answer so, behind these lists and bans if there are any; none
    /// where nobody gets a decoy.
    pub(super) fn new(on_denied: &OnDenied, access: Option<&AccessControl>) -> Option<Self> {
        let of_limits = on_denied.decoy().cloned();
        let of_limits = of_limits.map(|shadow| (ShadowOwner::Limits, shadow));
        let treatments = access.into_iter().flat_map(AccessControl::treatments);
        let of_kept_out = treatments.filter_map(|treatment| {
            let shadow = Shadow::new(Arc::clone(treatment.decoy()?));
            let owner = ShadowOwner::KeptOut(treatment.ban().map(Arc::from));
            Some((owner, Arc::new(shadow)))
        });
        let all: Vec<_> = of_limits.into_iter().chain(of_kept_out).collect();
        (!all.is_empty()).then_some(Self(all))
    }

    /// The decoy of clients that the ban of this name keeps out, or the block list.
    pub(super) fn of_kept_out(&self, ban: Option<&str>) -> Option<&Arc<Shadow>> {
        self.find(|owner| matches!(owner, ShadowOwner::KeptOut(by) if by.as_deref() == ban))
    }

    fn find(&self, is_owner: impl Fn(&ShadowOwner) -> bool) -> Option<&Arc<Shadow>> {
        let mut all = self.0.iter();
        all.find_map(|(owner, shadow)| is_owner(owner).then_some(shadow))
    }

    /// Whether some learn from all responses, whether a limit applied or not.
    pub(super) fn learn_from_all(&self) -> bool {
        self.0.iter().any(|(of, _)| *of != ShadowOwner::Limits)
    }

    /// Removes the headers that would tell decoys from real responses.
    pub(super) fn conceal(&self, headers: &mut HeaderMap) {
        withhold(headers, self.0.iter().map(|(_, shadow)| &**shadow));
    }

    /// Takes over what those of the same limits, bans and lists have learnt.
    pub(super) fn inherit(&self, earlier: &Self) {
        for (owner, shadow) in &self.0 {
            if let Some(before) = earlier.find(|of| of == owner) {
                shadow.inherit(before);
            }
        }
    }
}
