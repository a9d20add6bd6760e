//! What the overrides of a limit go by, those by the admin API too.

use weir_limit::{Algorithm, Quota};
use weir_yaml::{Lowered, Lowering, Span, Spanned};

use super::prefetch::PrefetchRule;
use super::quota::{QuotaParameters, burst_span, quota};
use super::schema::OverrideEntry;

/// What the overrides of a limit go by, beside what they say themselves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OverrideRules {
    pub(super) algorithm: Algorithm,
    /// Whether that is for lack of a definition and of overrides.
    pub(super) is_undefined: bool,
    pub(super) prefetch: Option<PrefetchRule>,
}

impl OverrideRules {
    /// The same for the override of a limit that may be neither defined nor overridden: then it says
    /// how the limit counts.
    pub(super) fn or_by(self, entry: &OverrideEntry) -> Self {
        let is_in_flight = self.is_undefined && entry.in_flight.is_some();
        Self {
            algorithm: match is_in_flight {
                true => Algorithm::InFlight,
                false => self.algorithm,
            },
            ..self
        }
    }

    /// The quota of an override.
    pub(super) fn quota(
        self,
        cx: &mut Lowering<'_>,
        name: Span,
        written: &Spanned<OverrideEntry>,
        cost: Option<u64>,
    ) -> Lowered<Quota> {
        let parameters = QuotaParameters {
            name,
            span: written.span,
            burst: written.burst,
            count: written.count,
            period: written.period,
            in_flight: written.in_flight,
        };
        let quota = quota(cx, self.algorithm, &parameters)?;
        let quota = self
            .prefetch
            .map_or(quota, |prefetch| prefetch.apply(quota));
        require_burst(cx, quota, cost, written)
    }
}

/// Leaves out an override that is only retained and could never let a request of this cost pass.
/// Where overrides are written, it is the cost that is in error.
fn require_burst(
    cx: &mut Lowering<'_>,
    quota: Quota,
    cost: Option<u64>,
    written: &Spanned<OverrideEntry>,
) -> Lowered<Quota> {
    let burst = quota.burst().get();
    let Some(cost) = cost.filter(|cost| burst < *cost) else {
        return Ok(quota);
    };
    let span = burst_span(written.burst, written.count, written.span);
    let message = format!("a cost of {cost} never passes a burst of {burst}");
    Err(cx.error(span, message).into())
}
