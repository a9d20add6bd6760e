//! The decoys of one route, which learn from its responses: those of its limits, of bans, and of the
//! block list.

use std::sync::Arc;

use http::HeaderMap;

use super::PreparedTreatment;
use crate::access::AccessControl;
use crate::decoy::{Shadow, withhold};
use crate::rate_limit::on_denied::OnDenied;

/// The decoys of a route, at least one, which learn from its responses and from those alone.
#[derive(Clone)]
pub(crate) struct RouteDecoys {
    of_limits: Option<Arc<Shadow>>,
    of_kept_out: Vec<(Arc<PreparedTreatment>, Arc<Shadow>)>,
}

/// What on a route uses a decoy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ShadowOwner<'r> {
    /// Clients that the route's limits deny.
    Limits,
    /// Clients that this ban bans.
    Ban(&'r str),
    /// Clients on the block list.
    BlockList,
}

impl RouteDecoys {
    /// Those of a route whose limits answer so, behind these lists and bans if there are any; none
    /// where nobody gets a decoy.
    pub(crate) fn new(on_denied: &OnDenied, access: Option<&AccessControl>) -> Option<Self> {
        let treatments = access.into_iter().flat_map(AccessControl::treatments);
        let of_kept_out = treatments.filter_map(|treatment| {
            let shadow = Shadow::new(Arc::clone(treatment.decoy()?));
            Some((Arc::clone(treatment), Arc::new(shadow)))
        });
        let decoys = Self {
            of_limits: on_denied.decoy().cloned(),
            of_kept_out: of_kept_out.collect(),
        };
        let has_some = decoys.of_limits.is_some() || !decoys.of_kept_out.is_empty();
        has_some.then_some(decoys)
    }

    /// The decoy of those who are kept out so.
    pub(super) fn decoy(&self, treatment: &PreparedTreatment) -> Option<&Arc<Shadow>> {
        let mut decoys = self.of_kept_out.iter();
        let found = decoys.find(|(of, _)| std::ptr::eq(&**of, treatment));
        found.map(|(_, shadow)| shadow)
    }

    /// Whether some learn from all responses, whether a limit applied or not.
    pub(crate) fn learn_from_all(&self) -> bool {
        !self.of_kept_out.is_empty()
    }

    /// The decoys, and for whom each is.
    pub(crate) fn all(&self) -> impl Iterator<Item = (ShadowOwner<'_>, &Arc<Shadow>)> + Clone {
        let of_limits = self.of_limits.iter();
        let of_limits = of_limits.map(|shadow| (ShadowOwner::Limits, shadow));
        let of_kept_out = self.of_kept_out.iter();
        of_limits.chain(of_kept_out.map(|(treatment, shadow)| (treatment.owner(), shadow)))
    }

    /// Removes the headers that would tell decoys from real responses.
    pub(crate) fn conceal(&self, headers: &mut HeaderMap) {
        withhold(headers, self.all().map(|(_, shadow)| &**shadow));
    }

    /// Takes over what those of the same limits, bans and lists have learnt.
    pub(crate) fn inherit(&self, earlier: &Self) {
        for (owner, shadow) in self.all() {
            let mut earlier = earlier.all();
            if let Some((_, before)) = earlier.find(|(of, _)| *of == owner) {
                shadow.inherit(before);
            }
        }
    }
}
