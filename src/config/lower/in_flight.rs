//! Limits on requests in flight, which have one number and no rate.

use super::quota::WrittenQuota;
use super::{Lowered, Lowering};
use crate::config::schema;
use crate::config::yaml::{Span, Spanned};
use crate::limit::Quota;

impl Lowering<'_> {
    /// Refuses what says how a limit on requests in flight counts: it counts in its own way.
    pub(super) fn in_flight_alone(&mut self, limit: &schema::DefaultLimit) {
        self.of_no_use_in_flight([
            ("algorithm", limit.algorithm.map(|it| it.span)),
            ("align", limit.align.map(|it| it.span)),
            ("calendar", limit.calendar.map(|it| it.span)),
            ("time_zone", limit.time_zone.as_ref().map(|it| it.span)),
            ("count_denied", limit.count_denied.map(|it| it.span)),
        ]);
    }

    /// The quota of a limit on requests in flight, or of an override of one.
    pub(super) fn in_flight_quota(&mut self, written: &WrittenQuota) -> Lowered<Quota> {
        self.of_no_use_in_flight([
            ("burst", written.burst.map(|it| it.span)),
            ("count", written.count.map(|it| it.span)),
            ("period", written.period.map(|it| it.span)),
        ]);
        let most = self.required("in_flight", written.in_flight, written)?;
        self.ok(most.span, Quota::in_flight(most.value))
    }

    /// Refuses the number of requests in flight in the override of a limit of another kind.
    pub(super) fn no_in_flight(&mut self, most: Option<Spanned<u64>>) {
        if let Some(most) = most {
            self.error(
                most.span,
                "this limit has a rate, and is not one on requests in flight",
            )
            .help("leave `in_flight` out, or define another limit with it");
        }
    }

    pub(super) fn of_no_use_in_flight(
        &mut self,
        keys: impl IntoIterator<Item = (&'static str, Option<Span>)>,
    ) {
        for (key, span) in keys {
            if let Some(span) = span {
                self.error(span, format!("`{key}` is of no use beside `in_flight`"))
                    .help("leave it out, or use a limit of its own for the rate");
            }
        }
    }
}
